"""Chains of stages made by hand: FIFOs that round, statistics that pass them, f32 inputs, several results, sharing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.targets.ktpu.vector_rig import CARD, CHIP, check, halves, placed, tasks_of

from meshwright.errors import PlacementError
from meshwright.ir import library
from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.expression import Operand
from meshwright.ir.formats import ElementType as E
from meshwright.ir.operation import Generic, Reduce
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.pool import Pool
from meshwright.targets.ktpu.isa.payload import Desc
from meshwright.targets.ktpu.placement import KtpuPlacement

SITE = KtpuPlacement(CARD, CHIP).vector_sites()[0]
A, B = Operand(0), Operand(1)


class Chain:
    """A graph under construction, at one vector core."""

    def __init__(self, *block: int) -> None:
        self.builder = GraphBuilder()
        self.block = block

    def load(self, name, shape=None, format=E.F16):
        shape = shape or self.block
        tensor = self.builder.tensor(name, shape, format, (CHIP,))
        fifo = self.builder.fifo(SITE, shape, format)
        self.builder.load(tensor, whole(shape), fifo)
        return fifo

    def generic(self, exprs, ins, formats=(E.E8M15,), block=None):
        block = block or self.block
        outs = [self.builder.fifo(SITE, block, format) for format in formats]
        maps = (tuple(range(len(block))),) * len(ins)
        self.builder.compute(Generic(tuple(exprs), maps), ins, outs)
        return outs if len(outs) > 1 else outs[0]

    def reduce(self, pool, source, format=E.E8M15):
        out = self.builder.fifo(SITE, (*self.block[:-1], 1), format)
        self.builder.compute(Reduce(pool, (len(self.block) - 1,)), (source,), (out,))
        return out

    def store(self, name, source, shape=None):
        shape = shape or self.block
        self.builder.store(self.builder.tensor(name, shape, E.F16, (CHIP,)), whole(shape), source)

    def graph(self):
        return self.builder.graph()


lengths = st.integers(2, 300)


@settings(deadline=None, max_examples=12)
@given(st.integers(1, 9), lengths, st.sampled_from([E.F16, E.E8M15]), st.sampled_from([E.F16, E.E8M15]))
def test_fifos_between_stages_round_as_they_are_declared(rows, length, first, second):
    chain = Chain(rows, length)
    x = chain.load("x")
    scaled, again = chain.generic([A * (1.0 / 3.0), A * (1.0 / 3.0)], [x], [first, second])
    shifted = chain.generic([library.exp(A) + 0.1], [scaled], [second])
    chain.store("y", chain.generic([A * B], [again, shifted], [E.F16]))
    check(chain.graph(), {"x": halves(rows, length)}, "padded")


@settings(deadline=None, max_examples=16)
@given(st.integers(1, 5), lengths, st.sampled_from([Pool.SUM, Pool.MAX, Pool.MIN]), st.sampled_from([E.F16, E.E8M15]))
def test_statistics_that_pass_a_fifo(rows, length, pool, format):
    chain = Chain(rows, length)
    term, x = chain.generic([A * 0.3, A], [chain.load("x")], [format, E.E8M15])
    folded = chain.reduce(pool, term, format)
    finished = chain.generic([A * 0.7 + 0.01], [folded], [format], (rows, 1))
    chain.store("y", chain.generic([A * B], [x, finished], [E.F16]))
    check(chain.graph(), {"x": halves(rows, length, seed=length)}, "padded")


@settings(deadline=None, max_examples=12)
@given(st.integers(1, 6), lengths)
def test_floats_come_in_rounded_to_the_lane(rows, length):
    chain = Chain(rows, length)
    x, y = chain.load("x", format=E.F32), chain.load("y")
    chain.store("z", chain.generic([A * B], [x, y], [E.F16]))
    floats = np.random.default_rng(length).standard_normal((rows, length)).astype(np.float32)
    check(chain.graph(), {"x": floats, "y": halves(rows, length)}, "padded")


def test_rows_and_their_statistics_in_one_chain():
    for length in (48, 128, 200):
        chain = Chain(32, length)
        x = chain.load("x")
        squares, kept = chain.generic([A * A, A + 1.0], [x], [E.E8M15, E.E8M15])
        total, root = chain.generic([A, library.rsqrt(A)], [chain.reduce(Pool.SUM, squares)], [E.F16, E.E8M15], (32, 1))
        chain.store("rows", chain.generic([A * B], [kept, root], [E.F16]))
        chain.store("totals", total, (32, 1))
        check(chain.graph(), {"x": halves(32, length)}, "padded")
        if length % 16 == 0:
            check(chain.graph(), {"x": halves(32, length)}, "rows")


def test_one_element_a_row_comes_in_beside_rows():
    for layout in ("rows", "padded"):
        chain = Chain(40, 64)
        x, s = chain.load("x"), chain.load("s", (40, 1))
        offset = chain.generic([library.exp(A * 0.1)], [s], [E.E8M15], (40, 1))
        chain.store("y", chain.generic([A * B], [x, offset], [E.F16]))
        check(chain.graph(), {"x": halves(40, 64), "s": halves(40, 1, seed=5)}, layout)


def test_two_folds_of_the_same_rows():
    chain = Chain(6, 100)
    first, second, third = chain.generic([A, A, A], [chain.load("x")], [E.E8M15] * 3)
    lows, highs = chain.reduce(Pool.MIN, first), chain.reduce(Pool.MAX, second)
    low, again = chain.generic([A, A], [lows], [E.E8M15] * 2, (6, 1))
    span = chain.generic([library.reciprocal(B - A)], [low, highs], [E.E8M15], (6, 1))
    centred = chain.generic([A - B], [third, again])
    chain.store("y", chain.generic([A * B], [centred, span], [E.F16]))
    check(chain.graph(), {"x": halves(6, 100)}, "padded")


def test_two_chains_of_one_core_are_two_tasks_in_order():
    builder = GraphBuilder()
    x, y, z = (builder.tensor(name, (4, 64), E.F16, (CHIP,)) for name in "xyz")
    stored = []
    for source, target in ((x, y), (y, z)):
        taken, made = (builder.fifo(SITE, (4, 64), E.F16) for _ in range(2))
        builder.load(source, whole((4, 64)), taken, after=stored)
        builder.compute(Generic.elementwise(A + 1.0, 1, 2), (taken,), (made,))
        stored = [builder.store(target, whole((4, 64)), made)]
    graph = builder.graph()
    first, second = tasks_of(graph, placed(graph, "rows"))
    assert (first.stages, first.after) == ((0, 1, 2), ())
    assert (second.stages, second.after) == ((3, 4, 5), (2,))
    check(graph, {"x": halves(4, 64)})


def test_blocks_in_any_order():
    # Columns outermost: the blocks of a row are far apart in the sequence.
    builder = GraphBuilder()
    x, y = (builder.tensor(name, (12, 96), E.F16, (CHIP,)) for name in "xy")
    pattern = Affine((0, 0), (3, 32), (Loop(3, (0, 32)), Loop(4, (3, 0))))
    taken, made = (builder.fifo(SITE, (3, 32), E.F16) for _ in range(2))
    builder.load(x, pattern, taken)
    builder.compute(Generic.elementwise(A * 0.1, 1, 2), (taken,), (made,))
    builder.store(y, pattern, made)
    check(builder.graph(), {"x": halves(12, 96)})


def test_rows_further_apart_than_a_walk_steps_have_a_fill_each():
    builder = GraphBuilder()
    shape = (4, 70000)
    x, y = (builder.tensor(name, size, E.F16, (CHIP,)) for name, size in (("x", shape), ("y", (4, 64))))
    taken, made = (builder.fifo(SITE, (4, 64), E.F16) for _ in range(2))
    builder.load(x, Affine((0, 1600), (4, 64)), taken)
    builder.compute(Generic.elementwise(A * 0.1, 1, 2), (taken,), (made,))
    builder.store(y, whole((4, 64)), made)
    graph = builder.graph()
    where = placed(graph, "padded")
    (task,) = tasks_of(graph, where)
    filled = [payload.value for payload in task.program.words if isinstance(payload, Desc) and payload.fld == 0]
    first = where[graph.tensor_id("x"), 0].address + 2 * 1600
    assert set(filled) >= {first + 2 * 70000 * row for row in range(4)}
    check(graph, {"x": halves(*shape)}, "padded")


def refused(graph, layout="padded") -> str:
    with pytest.raises(PlacementError) as error:
        tasks_of(graph, placed(graph, layout))
    return str(error.value)


def test_refused_formats():
    chain = Chain(4, 32)
    chain.builder.store(
        chain.builder.tensor("y", (4, 32), E.F32, (CHIP,)),
        whole((4, 32)),
        chain.generic([A], [chain.load("x")], [E.F32]),
    )
    assert refused(chain.graph()) == (
        "stage s2 can't be emitted for a vector core: it stores f32, and the core's f32 stores overwrite every second "
        "word; store f16"
    )
    chain = Chain(4, 32)
    middle = chain.generic([A], [chain.load("x")], [E.F32])
    chain.store("y", chain.generic([A], [middle], [E.F16]))
    assert refused(chain.graph()) == (
        "stage s1 can't be emitted for a vector core: its result goes on as f32; between stages a core has e8m15 and "
        "f16"
    )


def test_refused_folds():
    chain = Chain(4, 32)
    chain.store("y", chain.generic([A], [chain.reduce(Pool.PROD, chain.load("x"))], [E.F16], (4, 1)), (4, 1))
    assert refused(chain.graph()) == (
        "stage s1 can't be emitted for a vector core: a core folds sum, max and min; it has no prod"
    )
    builder = GraphBuilder()
    x, y = (builder.tensor(name, (4, size), E.F16, (CHIP,)) for name, size in (("x", 32), ("y", 1)))
    taken, value, place = (builder.fifo(SITE, (4, size), f) for size, f in ((32, E.F16), (1, E.F16), (1, E.I32)))
    builder.load(x, whole((4, 32)), taken)
    builder.compute(Reduce(Pool.ARGMAX, (1,)), (taken,), (value, place))
    builder.store(y, whole((4, 1)), value)
    builder.store(builder.tensor("at", (4, 1), E.I32, (CHIP,)), whole((4, 1)), place)
    assert refused(builder.graph()) == (
        "stage s1 can't be emitted for a vector core: a core folds sum, max and min; it has no argmax"
    )


def test_refused_whole_numbers():
    chain = Chain(4, 32)
    ids, x = chain.load("ids", format=E.I32), chain.load("x")
    chain.store("y", chain.generic([library.select(A > 2.0, B, 0.0)], [ids, x], [E.F16]))
    assert refused(chain.graph()) == (
        "stage s0 can't be emitted for a vector core: it loads i32; a core loads f16 and f32; it has no instructions "
        "for whole numbers"
    )


def test_refused_pads():
    builder = GraphBuilder()
    x, y = (builder.tensor(name, (4, 32), E.F16, (CHIP,)) for name in "xy")
    taken, made = (builder.fifo(SITE, (4, 32), E.F16) for _ in range(2))
    builder.load(x, Affine((1, 0), (4, 32), pad=0.0), taken)
    builder.compute(Generic.elementwise(A, 1, 2), (taken,), (made,))
    builder.store(y, whole((4, 32)), made)
    assert refused(builder.graph()) == (
        "stage s0 can't be emitted for a vector core: block 0 reads 1 elements past its tensor: a pad"
    )
