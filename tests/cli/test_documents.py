"""README and the documentation: their Python runs and prints what they say, their commands exist."""

import doctest
import re
from pathlib import Path

import pytest
import typer.main

from meshwright.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(?P<language>\w+)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page, *languages):
    return [(m["language"], m["text"]) for m in BLOCK.finditer(page.read_text("utf-8")) if m["language"] in languages]


# This page shows what is refused beside what works, and is tested with the room it is about.
TESTED_ELSEWHERE = ROOT / "docs" / "machine.md"
WITH_PYTHON = [page for page in PAGES if page != TESTED_ELSEWHERE and blocks(page, "python", "pycon")]
COMMANDS = [
    (page, line.removeprefix("$ "))
    for page in PAGES
    for _, text in blocks(page, "console")
    for line in text.splitlines()
    if line.startswith("$ meshwright ")
]


def name_of(value):
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value)


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_python_runs_and_prints_what_the_page_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    failures = []
    for language, text in blocks(page, "python", "pycon"):
        if language == "python":
            exec(compile(text, str(page), "exec"), names)
            continue
        examples = doctest.DocTestParser().get_doctest(text, names, page.name, str(page), 0)
        runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
        runner.run(examples, out=failures.append, clear_globs=False)
        names = examples.globs
    assert not failures, "\n".join(failures)


def test_pages_with_python_are_found():
    assert ROOT / "docs" / "tutorial" / "first-split.md" in WITH_PYTHON
    assert ROOT / "README.md" in WITH_PYTHON


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=name_of)
def test_commands_and_options_exist(page, line):
    command, words = typer.main.get_command(app), line.split()[1:]
    path = []
    while words and words[0] in getattr(command, "commands", {}):
        path.append(words[0])
        command = command.commands[words.pop(0)]
    assert path, f"{page.name}: {line}"
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_the_documents_name_no_machine_and_no_missing_picture():
    for page in PAGES:
        text = page.read_text("utf-8")
        assert not re.search(r"/(work|root|home)/", text), page
        for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
            assert (page.parent / picture).is_file(), f"{page}: {picture}"
