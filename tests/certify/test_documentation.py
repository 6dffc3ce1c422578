"""The pages about certificates: every example runs, and every obligation has one that holds and one that does not."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest

from meshwright.certify import MEANING, OBLIGATIONS

PAGES = Path(__file__).parents[2] / "docs" / "certificate"
_BLOCK = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


# The table of mutants has tests of its own.
@pytest.mark.parametrize("page", sorted(set(PAGES.glob("*.md")) - {PAGES / "mutations.md"}), ids=lambda page: page.stem)
def test_examples(page: Path) -> None:
    names: dict[str, Any] = {}
    runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL & 0)
    for language, code in _BLOCK.findall(page.read_text()):
        if language == "python":
            exec(compile(code, str(page), "exec"), names)
            continue
        test = doctest.DocTestParser().get_doctest(code, names, page.stem, str(page), 0)
        report: list[str] = []
        runner.run(test, out=report.append, clear_globs=False)
        names.update(test.globs)
        assert not report, "".join(report)
    assert runner.summarize(verbose=False).attempted >= 2


def test_every_obligation_has_its_entry() -> None:
    """With an example that holds, one that doesn't, and what it doesn't cover; every name on the page of its group."""
    sections = {
        match[1]: match[2]
        for page in PAGES.glob("*.md")
        for match in re.finditer(r"^## (\w+)\n(.*?)(?=^## |\Z)", page.read_text(), re.MULTILINE | re.DOTALL)
    }
    for name in (*OBLIGATIONS, MEANING):
        text = sections[name]
        assert "Demands: " in text, name
        assert "held" in text, name
        assert "broken" in text or ".message" in text, name
