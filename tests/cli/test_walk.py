"""`meshwright walk`: what it prints, its page, and what a wrong call gets."""

import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from meshwright.report import walk as walking

PAGE = Path(__file__).parents[2] / "docs" / "ktpu" / "walkthrough.md"
SECTIONS = [
    "1. The call",
    "2. The plan",
    "3. The stage graph",
    "4. The certificate",
    "5. The tiling",
    "6. The bytes in memory",
    "7. The programs",
    "8. The round",
    "9. In the cluster",
    "10. Back on the host",
    "11. What it took",
]


def test_the_page_is_what_the_command_prints(run):
    result = run("walk", "--markdown")
    assert result.exit_code == 0
    assert PAGE.read_text("utf-8") == result.stdout, (
        "the walk has changed: read the difference, and if it is meant, run "
        "`meshwright walk --markdown > docs/ktpu/walkthrough.md`"
    )


def test_the_pages_code_gives_the_pages_bits(run):
    page = run("walk", "--markdown", "5", "33", "7").stdout
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(code, names)
    found = names["c"].view(np.uint16)
    shown = re.findall(r"^\((\d+), (\d+)\) +([0-9a-f]{4}) ", page, re.MULTILINE)
    assert len(shown) == 4
    for row, column, bits in shown:
        assert int(bits, 16) == found[int(row), int(column)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("1", "1", "1"),
        ("5", "33", "7", "--mesh", "1"),
        ("32", "128", "32", "--machine", "ktpu-1"),
        ("12", "2500", "20", "--seed", "5"),
        ("8", "64", "8", "--words", "all"),
        ("8", "64", "8", "--machine", "ktpu-v13p-published"),
    ],
    ids=" ".join,
)
def test_every_step_is_told(run, arguments):
    result = run("walk", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert [line for line in lines if re.fullmatch(r"\d+\. .+", line)] == SECTIONS
    assert "evaluator's bits" in " ".join(result.stdout.split())
    assert "NOT" not in result.stdout
    again = run("walk", *arguments)
    assert again.stdout == result.stdout


def test_the_command_line_that_it_names_gives_the_same(run):
    first = run("walk", "4", "40", "4", "--machine", "ktpu-1", "--seed", "9", "--markdown").stdout
    (line,) = re.findall(r"`meshwright (walk [^`]+)`", first)
    assert run(*line.split(), "--markdown").stdout == first


def test_a_machine_file_is_named_as_it_was_given(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    preset = resources.files("meshwright.machine") / "presets" / "ktpu-1.toml"
    Path("mine.toml").write_text(preset.read_text("utf-8"), "utf-8")
    page = run("walk", "4", "40", "4", "--machine", "./mine.toml", "--markdown").stdout
    assert "`meshwright walk 4 40 4 --machine ./mine.toml --mesh 0`" in page
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert 'mw.simulated("./mine.toml")' in code
    exec(code, {})


def test_other_bits_are_an_answer_and_end_with_1(run, monkeypatch):
    right = walking.compared

    def wrong(found, evaluated, a, b):
        return right(found, np.nextafter(evaluated, np.float16(np.inf)), a, b)

    monkeypatch.setattr(walking, "compared", wrong)
    result = run("walk", "4", "4", "4")
    assert result.exit_code == 1
    assert "16 of 16 elements have NOT the evaluator's bits" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("0",), "walk 0 128 32: M, K and N are 1 at least, for C[M, N] = A[M, K] @ B[N, K].T"),
        (("--mesh", "7"), "ktpu-v13p has no mesh 7; its meshes are 0, 1, 3, 2"),
        (
            ("--machine", "grid-8x8"),
            'walk 32 128 32: grid-8x8 has numerics = "grid", and instruction words are of the "ktpu" family; take '
            "--machine ktpu-v13p, or look at a graph for this machine with `meshwright show`",
        ),
    ],
)
def test_what_is_refused(run, arguments, message):
    result = run("walk", *arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"error: {message}\n")


def test_a_size_that_is_no_number(run):
    result = run("walk", "three")
    assert result.exit_code == 2
    assert "Invalid value for 'M'" in result.stderr
