from typer.testing import CliRunner

from meshwright.cli import app


def test_prints_the_table_of_the_documentation():
    done = CliRunner().invoke(app, ["accuracy"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.strip().splitlines()
    assert lines[0].startswith("|")
    assert any("softmax" in line for line in lines)
    other = CliRunner().invoke(app, ["accuracy", "--seed", "1"])
    assert other.stdout != done.stdout


def test_a_machine_that_is_not_there():
    done = CliRunner().invoke(app, ["accuracy", "--machine", "nowhere"])
    assert done.exit_code == 2
    assert "nowhere" in done.stderr
