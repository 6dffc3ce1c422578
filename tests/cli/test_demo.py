"""The demo as a user runs it."""

import re

import pytest
from typer.testing import CliRunner

from meshwright.cli import app, demo
from meshwright.frontend.embedding import run_encoder


@pytest.fixture
def run():
    return lambda *arguments: CliRunner().invoke(app, ["demo", *arguments])


def test_whole_model(run):
    done = run("A first sentence.", "Another one.", "--meshes", "2")
    assert done.exit_code == 0, done.output
    assert "2 sentences" in done.output
    assert "nothing split by contraction: bits on 2 meshes and on one are equal" in done.output
    assert re.search(
        r"certificates: 138 stage graphs with [\d,]+ stages, 25 obligations each, .*: 3,450 held\n", done.output
    )
    assert "mesh 1 has no vector core, so mesh 0 works on its share" in done.output
    worst = re.search(r"cosine (\d\.\d+) or more", done.output)
    assert worst is not None
    assert float(worst[1]) > 0.99
    assert re.search(r"time: .* GMAC/s evaluated bit for bit; float32 numpy: .* GMAC/s", done.output)


def test_one_mesh_has_nothing_to_compare(run):
    done = run("A sentence.", "--meshes", "1")
    assert done.exit_code == 0, done.output
    assert "bits on" not in done.output


def test_instruction_words_give_the_bits_of_the_evaluator(run):
    done = run("A sentence.", "--meshes", "2", "--backend", "simulator")
    assert done.exit_code == 0, done.output
    assert (
        "run as instruction words on 2 meshes of a card in software: bits of all 6 layers are equal to the evaluator's"
        in done.output
    )
    programs = re.search(r"programs +([\d,]+) +([\d,]+)", done.output)
    assert programs is not None
    assert all(int(count.replace(",", "")) > 100 for count in programs.groups())


def test_bits_that_differ_are_an_error(run, monkeypatch):
    def one_bit_off(*arguments):
        made = run_encoder(*arguments)
        if arguments[-1] == "simulator":
            made.layers[3].view("u2")[0, 0, 0] ^= 1
        return made

    monkeypatch.setattr(demo, "run_encoder", one_bit_off)
    done = run("A sentence.", "--meshes", "1", "--backend", "simulator")
    assert done.exit_code == 2
    assert done.stderr.strip().startswith(
        "error: the simulator and the evaluator don't agree: 1 of layer 3 of 1,920 values each differ."
    )


def test_feed_forward(run):
    done = run("--part", "feed-forward")
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.output.splitlines() if re.match(r"\d ", line)]
    layers = [line for line in lines if line[-1] == "rms"]
    assert [line[0] for line in layers] == list("012345")
    assert all("bits equal" in " ".join(line) for line in layers)
    assert re.search(r"stage graphs: 24, with [\d,]+ stages, [\d,]+ buffers and \d+ tensors", done.output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["  "], "error: sentence 1 is empty; give text to embed"),
        (["--meshes", "8"], "error: --meshes 8: ktpu-v13p has 4 meshes; ask for 1 to 4"),
        (["--machine", "ktpu-1", "--meshes", "2"], "error: --meshes 2: ktpu-1 has 1 mesh; ask for 1 to 1"),
        (
            ["--part", "feed-forward", "--backend", "simulator"],
            "error: --part feed-forward has no instruction words to show: --backend simulator runs the whole encoder",
        ),
    ],
)
def test_refusals(run, arguments, message):
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stderr.strip() == message
