"""The page about instruction words: its command serves a card, and its other process gets the evaluator's bits there.

Its `python` and `pycon` blocks are run in `test_documents`; here is the rest.
"""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "programs.md"
MAIN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from meshwright.cli import main; main()"
)


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_two_processes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (command,), (other,) = blocks("console"), blocks("py")
    words = shlex.split(command.removeprefix("$ "))
    assert words[0] == "meshwright"
    names = {}
    exec(blocks("python")[0], names)
    wanted = names["y"].view(np.uint16).copy()
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *words[1:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline().startswith("ktpu-v13p at unix:")
        names["y"] = None
        exec(other, names)
        assert (names["y"].view(np.uint16) == wanted).all()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.communicate(timeout=30)


def test_every_block_is_of_a_kind_that_is_run():
    kinds = set(re.findall(r"^```(\w+)", PAGE.read_text("utf-8"), re.MULTILINE))
    assert kinds == {"python", "pycon", "py", "console"}
