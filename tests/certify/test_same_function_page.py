"""The page about `same_function`: its example says what the page says it does."""

import doctest
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "same-function.md"


def test_the_example():
    (code,), (session,) = (
        re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        for language in ("python", "pycon")
    )
    names = {}
    exec(compile(code, str(PAGE), "exec"), names)
    test = doctest.DocTestParser().get_doctest(session, names, "page", str(PAGE), 0)
    runner = doctest.DocTestRunner(verbose=False)
    told = []
    assert runner.run(test, out=told.append).failed == 0, "".join(told)
