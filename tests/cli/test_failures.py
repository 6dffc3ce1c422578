"""What an exception becomes: one block on stderr and an exit status."""

import signal
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from meshwright.cli.failures import reported
from meshwright.errors import GraphError, MeshwrightError, SplitError


def result_of(exception, **environment):
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    @reported
    def command() -> None:
        raise exception

    return CliRunner().invoke(app, [], env=environment)


@pytest.mark.parametrize("kind", [MeshwrightError, SplitError, GraphError])
def test_an_error_of_ours_is_its_message_and_2(kind):
    result = result_of(kind("matmul: `a` is split on axis 1.\n  Legal instead:  group.copy(a)"))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == "error: matmul: `a` is split on axis 1.\n  Legal instead:  group.copy(a)\n"


def test_long_lines_and_brackets_stay_as_they_are():
    message = "[bold]f16[32, 384][/bold] " + "x" * 400
    assert result_of(MeshwrightError(message)).stderr == f"error: {message}\n"


def test_a_defect_is_one_line_and_70():
    result = result_of(ZeroDivisionError("division by zero"))
    assert result.exit_code == 70
    assert result.stderr == (
        "error: ZeroDivisionError: division by zero: a defect of meshwright; "
        "MESHWRIGHT_TRACEBACK=1 in the environment shows where\n"
    )


@pytest.mark.parametrize(("exception", "status"), [(KeyError("x"), 70), (SplitError("no"), 2)])
def test_the_traceback_is_there_for_the_asking(exception, status):
    result = result_of(exception, MESHWRIGHT_TRACEBACK="1")
    assert result.exit_code == status
    assert "Traceback (most recent call last)" in result.stderr
    assert "in command" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: ")


def test_interrupted_is_130():
    result = result_of(KeyboardInterrupt())
    assert (result.exit_code, result.stderr) == (130, "error: interrupted\n")


def test_an_exit_of_the_command_itself_passes():
    assert result_of(typer.Exit(1)).exit_code == 1


def test_ctrl_c_in_a_running_command():
    program = """
import signal, time, typer
from meshwright.cli.failures import reported
# A shell starts what runs in the background with interrupts ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
app = typer.Typer(pretty_exceptions_enable=False)
@app.command()
@reported
def command() -> None:
    print("ready", flush=True)
    time.sleep(60)
app()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=30)
    assert running.returncode == 130
    assert errors == "error: interrupted\n"


def test_a_reader_that_goes_away_is_not_an_error():
    # More than a pipe holds, so that the writer has to notice.
    program = """
import typer
from meshwright.cli.failures import reported
app = typer.Typer(pretty_exceptions_enable=False)
@app.command()
@reported
def command() -> None:
    for _ in range(100_000):
        print("a line of some length, again and again")
app()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.stdout.close()
        assert running.stderr is not None
        errors = running.stderr.read()
    assert running.returncode == 141
    assert errors == ""
