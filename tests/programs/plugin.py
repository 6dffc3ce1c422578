"""`pytest --programs`: whatever a test evaluates in the card's arithmetic is run as programs too, and compared.

Every graph that is evaluated in "ktpu" arithmetic, by a group or directly; and those that a group on a "ktpu" machine
evaluates in real arithmetic, evaluated once more with their inputs rounded to f16.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from meshwright import targets
from meshwright.errors import EvaluationError, NumericsError
from meshwright.evaluate import walk
from meshwright.evaluate.storage import storage_dtype
from meshwright.runtime import run
from programs.compare import MACHINE, Comparison

_OWN: Final = ("meshwright.runtime.programs_run", "meshwright.certify", "programs.", "tests.programs.")
"""What these evaluate is nobody's graph: copies for a memory agent, what is proved about, what is compared already."""


class Programs:
    """Replaces `evaluate` while tests run."""

    def __init__(self) -> None:
        self.comparison = Comparison()
        self.problems: dict[str, list[str]] = {}
        self.not_evaluated: Counter[str] = Counter()
        self._machine: Any = None
        self._arithmetic = targets.arithmetic(MACHINE)
        self._evaluate = walk.evaluate
        self._evaluated = run._evaluated
        self._wrapped = self._wrapper()
        self._test = ""

    # Where graphs are met.

    def start(self) -> None:
        """From now on graphs are compared."""
        self._replace(self._evaluate, self._wrapped)

        def on_devices(graph: Any, devices: Any, *rest: Any) -> Any:
            self._machine = next(iter(devices.values())).card.machine
            try:
                return self._evaluated(graph, devices, *rest)
            finally:
                self._machine = None

        run._evaluated = on_devices

    def stop(self) -> None:
        """Graphs are only evaluated again."""
        self._replace(self._wrapped, self._evaluate)
        run._evaluated = self._evaluated

    def _replace(self, old: Callable[..., Any], new: Callable[..., Any]) -> None:
        for name, module in list(sys.modules.items()):
            if not name.startswith(_OWN) and getattr(module, "evaluate", None) is old:
                module.evaluate = new

    def _wrapper(self) -> Callable[..., Any]:
        def evaluate(graph: Any, inputs: Any, arithmetic: Any, keep: Any = (), progress: Any = None) -> Any:
            made = self._evaluate(graph, inputs, arithmetic, keep, progress)
            machine, self._machine = self._machine, None
            if arithmetic.name == "ktpu":
                self._compare(graph, inputs, made, machine or MACHINE)
            elif arithmetic.name == "real" and machine is not None and machine.numerics == "ktpu":
                self._compare_rounded(graph, inputs, list(made), machine)
            return made

        return evaluate

    def _compare_rounded(self, graph: Any, inputs: Any, names: list[str], machine: Any) -> None:
        rounded = {
            name: [self._rounded(piece, graph.tensors[graph.tensor_id(name)].format) for piece in pieces]
            for name, pieces in inputs.items()
        }
        try:
            wanted = self._evaluate(graph, rounded, self._arithmetic, names)
        except (EvaluationError, NumericsError) as error:
            self.not_evaluated[str(error)] += 1
            return
        self._compare(graph, rounded, wanted, machine)

    def _rounded(self, piece: Any, format: Any) -> Any:
        with np.errstate(over="ignore"):
            return np.asarray(piece).astype(storage_dtype(format))

    def _compare(self, graph: Any, inputs: Any, wanted: Any, machine: Any) -> None:
        if machine.numerics != "ktpu":
            return
        inputs = {name: [np.asarray(piece) for piece in pieces] for name, pieces in inputs.items()}
        try:
            self.comparison.compare(graph, inputs, wanted, machine)
        except Exception as error:
            # Of any kind: the test may expect an error, and take this one for it. The session has to know.
            first = (str(error) or repr(error)).splitlines()[0]
            self.problems.setdefault(f"{type(error).__name__}: {first}", []).append(self._test)
            raise

    # What pytest asks.

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        """Remembers which test a problem belongs to; modules that tests bring in late are met here."""
        self._test = item.nodeid
        self._replace(self._evaluate, self._wrapped)
        return (yield)

    def pytest_sessionfinish(self, session: Any) -> None:
        """A problem that a test took for another error fails all the same."""
        if self.problems and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """What was compared, and what wasn't."""
        terminalreporter.section("programs")
        for line in self.comparison.tally.lines():
            terminalreporter.line(line)
        for why, count in self.not_evaluated.most_common(8):
            terminalreporter.line(f"  {count:,}  real only: {why}")
        for problem, tests in self.problems.items():
            terminalreporter.line(f"PROBLEM, {len(tests)} times, in {tests[0]}: {problem}", red=True)
