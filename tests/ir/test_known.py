"""Blocks that are known beforehand, against what an evaluation makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certify.hand_made import F32, GRID, site
from meshwright.certify import Verdict, certify
from meshwright.errors import EvaluationError
from meshwright.evaluate.real import RealArithmetic
from meshwright.evaluate.scalars import run_scalar
from meshwright.evaluate.walk import evaluate
from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.expression import Constant
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.known import known_block
from meshwright.ir.operation import Generic
from meshwright.ir.pattern import Affine, Gather
from meshwright.ir.records import Scalar
from meshwright.ir.scalar import (
    Arithmetic,
    Choose,
    Number,
    ReadElement,
    Register,
    Repeat,
    ScalarBody,
    ScalarExpr,
    ScalarOp,
    SetRegister,
    WriteElement,
)

I32 = ElementType.I32
SIZE = 4


def numbers() -> st.SearchStrategy[ScalarExpr]:
    leaves = st.integers(-9, 9).map(Number) | st.integers(0, 2).map(Register)
    return st.recursive(
        leaves,
        lambda below: (
            st.builds(Arithmetic, st.sampled_from(ScalarOp), below, below) | st.builds(Choose, below, below, below)
        ),
        max_leaves=6,
    )


positions = numbers().map(lambda e: Arithmetic(ScalarOp.MODULO, e, Number(SIZE)))
flat = (
    st.builds(SetRegister, st.integers(0, 2), numbers())
    | st.builds(ReadElement, st.integers(0, 2), st.just(0), positions, st.just(True))
    | st.builds(WriteElement, st.just(0), positions | numbers(), numbers())
)
programs = st.lists(
    flat | st.builds(Repeat, st.integers(0, 2), st.integers(0, 4), st.lists(flat, max_size=3).map(tuple)), max_size=6
).map(lambda statements: ScalarBody(3, tuple(statements)))


def scattered(body: ScalarBody, pad: float | None = None) -> Graph:
    """Four numbers stored where a program says."""
    g = GraphBuilder()
    x, y = g.tensor("x", (SIZE,), F32, [0]), g.tensor("y", (SIZE,), F32, [0])
    index, fifo = g.fifo(site(), (SIZE,), I32), g.fifo(site(), (SIZE,), F32)
    g.stage(Scalar(body), (), (index,))
    g.load(x, whole((SIZE,)), fifo)
    g.store(y, Gather(Affine((0,), (SIZE,), pad=pad), 0, index), fifo)
    return g.graph()


@settings(max_examples=150, deadline=None)
@given(programs)
def test_programs_write_what_the_evaluator_writes(body: ScalarBody) -> None:
    known = known_block(scattered(body), 0)
    try:
        (made,) = run_scalar(body, [], [(SIZE, True)], 1)
    except EvaluationError:
        assert known is None
        return
    # A number past 64 bits wraps when evaluated, and isn't followed here.
    assert known == tuple(made[0]) or (known is None and may_wrap(body))


def may_wrap(body: ScalarBody) -> bool:
    """Whether a program multiplies often enough to leave 64 bits: nine times nine in loops of four, nested."""
    return str(body).count("MUL") >= 2 or "Repeat" in str(body)


def reversing(start: int = SIZE - 1, down: int = 1) -> ScalarBody:
    """`start`, `start - down`, and so on."""
    value = Arithmetic(ScalarOp.SUB, Number(start), Arithmetic(ScalarOp.MUL, Register(0), Number(down)))
    return ScalarBody(1, (Repeat(0, SIZE, (WriteElement(0, Register(0), value),)),))


def test_a_scatter_of_known_positions_is_decided() -> None:
    certificate = certify(scattered(reversing()), GRID)
    assert certificate.verdict is Verdict.HELD
    (y,) = evaluate(scattered(reversing()), {"x": [np.arange(4.0)]}, RealArithmetic())["y"]
    assert y.tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("body", "pad", "obligation", "message"),
    [
        (
            reversing(3, 0),
            None,
            "WrittenOnce",
            "s2 (Store at 0:(0,0)) writes some elements within [3:4] of 'y' more than once",
        ),
        (reversing(4), None, "ReadAfterWrite", "s2 (Store at 0:(0,0)) reaches 1 to 4 along axis 0 of 'y', which has 4"),
        (reversing(4), 0.0, "Covered", "nothing stores [0:1] of 'y', which is a result"),
    ],
)  # fmt: skip
def test_a_scatter_that_is_wrong(body: ScalarBody, pad: float | None, obligation: str, message: str) -> None:
    entry = certify(scattered(body, pad), GRID).entry(obligation)
    assert (entry.verdict, entry.message) == (Verdict.BROKEN, message)
    with pytest.raises(EvaluationError):
        evaluate(scattered(body, pad), {"x": [np.arange(4.0)]}, RealArithmetic())


def test_a_constant_is_known_and_a_loaded_index_is_not() -> None:
    g = GraphBuilder()
    ids = g.tensor("ids", (1,), I32, [0])
    x, y = g.tensor("x", (2,), F32, [0]), g.tensor("y", (2,), F32, [0])
    constant, loaded = g.fifo(site(), (1,), I32), g.fifo(site(), (1,), I32)
    first, second = g.fifo(site(), (1,), F32), g.fifo(site(), (1,), F32)
    g.compute(Generic((Constant(1.0),), ()), (), (constant,))
    g.load(ids, whole((1,)), loaded)
    for fifo, index in ((first, constant), (second, loaded)):
        g.load(x, Affine((0,), (1,)), fifo)
        g.store(y, Gather(Affine((0,), (1,)), 0, index), fifo)
    graph = g.graph()
    assert known_block(graph, constant) == (1,)
    assert known_block(graph, loaded) is None
    entry = certify(graph, GRID).entry("WrittenOnce")
    assert entry.verdict is Verdict.NOT_DECIDED
    assert entry.message == "'y': s5 looks its positions up; they aren't known here"


def test_long_programs_are_not_run() -> None:
    turns = ScalarBody(1, (Repeat(0, 1 << 15, (SetRegister(0, Number(1)),)),))
    assert known_block(scattered(turns), 0) is None
