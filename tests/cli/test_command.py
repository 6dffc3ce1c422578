"""The command as a whole: help that teaches, the version, and what a wrong call gets."""

import sys
from importlib import metadata

import pytest
import typer.main

from meshwright.cli import app

COMMAND = typer.main.get_command(app)
MAIN = "from meshwright.cli import main; main()"


def paths(command, path=()):
    """The words that lead to each command, groups left out."""
    subcommands = getattr(command, "commands", {})
    if not subcommands:
        yield path
    for name, subcommand in subcommands.items():
        yield from paths(subcommand, (*path, name))


@pytest.mark.parametrize("path", list(paths(COMMAND)), ids=" ".join)
def test_help_has_an_example_that_can_be_typed(run, path):
    result = run(*path, "--help")
    assert result.exit_code == 0
    assert "Examples" in result.stdout
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert any(line.startswith(f"meshwright {' '.join(path)}") for line in lines)


def test_every_command_is_found_from_the_first_help(run):
    shown = run("--help").stdout
    assert {"doctor", "machines"} <= set(COMMAND.commands)
    for name in COMMAND.commands:
        assert f" {name} " in shown
    assert "First steps" in shown


def test_no_command_shows_the_help(run):
    assert "First steps" in run().stdout


def test_version(run):
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"meshwright {metadata.version('meshwright')}\n")


def test_an_unknown_option_is_named(run):
    result = run("machines", "--colour")
    assert result.exit_code == 2
    assert "No such option" in result.stderr
    assert "--colour" in result.stderr


def test_the_entry_point_is_this_command():
    (script,) = metadata.entry_points(group="console_scripts", name="meshwright")
    assert script.value == "meshwright.cli:main"


def test_main_in_its_own_process(run_apart):
    done = run_apart(MAIN, "machines", "ktpu-9")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith('error: no machine and no file is called "ktpu-9"')
    assert done.stderr.count("\n") == 1


def test_the_command_does_not_read_stdin(run_apart, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert run_apart(MAIN, "doctor").returncode == 0
