"""The walk itself: what is checked first, what is called, what is let go of."""

from __future__ import annotations

import gc
import re
import weakref

import msgspec
import numpy as np
import pytest

from evaluate.one_site import F32, SITE, OneSite, blocks_of
from meshwright.errors import EvaluationError, GraphError
from meshwright.evaluate.real import RealArithmetic
from meshwright.evaluate.walk import evaluate
from meshwright.ir.expression import Operand
from meshwright.ir.ids import BufferId
from meshwright.ir.operation import Generic
from meshwright.ir.records import Precedence, Stage


class Counting(RealArithmetic):
    """Real arithmetic that keeps count of what it was asked, and of what it gave that is still alive."""

    def __init__(self) -> None:
        self.calls = 0
        self.given: list[weakref.ref[np.ndarray]] = []

    def ingest(self, values, format):
        self.calls += 1
        return super().ingest(values, format)

    def elementwise(self, exprs, operands, outs, unit):
        self.calls += 1
        made = super().elementwise(exprs, operands, outs, unit)
        self.given += [weakref.ref(array) for array in made]
        return made

    def alive(self) -> int:
        gc.collect()
        return sum(ref() is not None for ref in self.given)


def chain(length: int) -> OneSite:
    site = OneSite()
    fifo = site.load(np.arange(8.0).reshape(4, 2), (1, 2))
    for _ in range(length):
        out = site.fifo((1, 2))
        site.builder.compute(Generic.elementwise(Operand(0) + 1.0, 1, 2), (fifo,), (out,))
        fifo = out
    site.store(fifo, (4, 2))
    return site


def test_progress_is_told_after_every_stage() -> None:
    site = chain(3)
    told: list[tuple[int, int]] = []
    evaluate(site.builder.graph(), site.inputs, RealArithmetic(), progress=lambda done, of: told.append((done, of)))
    assert told == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


def test_streams_are_let_go_of_once_they_are_taken() -> None:
    site = chain(6)
    arithmetic = Counting()
    alive: list[int] = []
    evaluate(site.builder.graph(), site.inputs, arithmetic, progress=lambda *_: alive.append(arithmetic.alive()))
    assert max(alive) == 1
    assert alive[-1] == 0


def malformed() -> list[tuple[str, object]]:
    graph = chain(2).builder.graph()
    stages = list(graph.stages)

    def with_stages(*changed: Stage):
        return msgspec.structs.replace(graph, stages=changed)

    dangling = with_stages(*stages[:-1], msgspec.structs.replace(stages[-1], ins=(BufferId(99),)))
    unbalanced = with_stages(stages[0], *stages[1:-1], _shorter(stages[-1]))
    circle = msgspec.structs.replace(graph, precedences=(Precedence(2, 1),))
    return [
        ("Remapped: stage s3: names buffer b99, and there are 3", dangling),
        ("BlockBalance: stage s3 takes 3 blocks from b2 (3 firings of 1), and 4 are put into it", unbalanced),
        ("NoDeadlock: the stages s", circle),
    ]


def _shorter(stage: Stage) -> Stage:
    pattern = blocks_of((3, 2), (1, 2))
    return msgspec.structs.replace(stage, kind=msgspec.structs.replace(stage.kind, pattern=pattern))


@pytest.mark.parametrize(("message", "graph"), malformed(), ids=lambda x: x[:8] if isinstance(x, str) else "graph")
def test_nothing_is_computed_of_a_malformed_graph(message, graph) -> None:
    arithmetic = Counting()
    with pytest.raises(GraphError, match=re.escape(message)):
        evaluate(graph, {"x0": [np.ones((4, 2))]}, arithmetic)
    assert arithmetic.calls == 0


def test_nothing_is_computed_where_an_input_is_missing() -> None:
    arithmetic = Counting()
    with pytest.raises(EvaluationError, match=re.escape("input 'x0' (f32[4, 2]) is missing")):
        evaluate(chain(2).builder.graph(), {}, arithmetic)
    assert arithmetic.calls == 0


def test_results_are_arrays_of_their_own() -> None:
    site = OneSite()
    x = np.arange(4.0).reshape(2, 2)
    fifo = site.load(x, (2, 2))
    name = site.store(fifo, (2, 2))
    found = site.run()[name]
    found[...] = -1.0
    assert x.tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_an_accumulator_that_nothing_opened_is_refused() -> None:
    site = OneSite()
    resident = site.builder.accumulator(SITE, (2, 2))
    out = site.fifo((2, 2), F32)
    site.builder.compute(Generic.elementwise(Operand(0), 1, 2), (resident,), (out,))
    site.store(out, (2, 2))
    with pytest.raises((EvaluationError, GraphError)) as error:
        site.run()
    assert "block" in str(error.value)
