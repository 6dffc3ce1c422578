"""Runs the command in this process, and in one of its own where that is what is tested."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from meshwright.cli import app

Run = Callable[..., Result]
RunApart = Callable[..., "subprocess.CompletedProcess[str]"]
_CHOICES = ("MESHWRIGHT_BACKEND", "MESHWRIGHT_THREADS", "MESHWRIGHT_TRACEBACK")


@pytest.fixture(autouse=True)
def _no_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _CHOICES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run() -> Run:
    """Run `meshwright ARGUMENTS...` in this process."""

    def run_here(*arguments: str, **environment: str) -> Result:
        return CliRunner().invoke(app, arguments, env=environment, prog_name="meshwright")

    return run_here


@pytest.fixture
def run_apart() -> RunApart:
    """Run a Python program in a process of its own."""

    def run_there(program: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run_there
