"""A few whole graphs, small enough to read, that between them hold every kind of stage and of operation."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.expression import Constant, Operand, Special
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import ChipId
from meshwright.ir.library import maximum, silu
from meshwright.ir.operation import Generic, Matmul, Permute, Reduce, Unit, combine
from meshwright.ir.pattern import Affine, Gather, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Scalar, Site
from meshwright.ir.scalar import Arithmetic, Number, ReadElement, Register, Repeat, ScalarBody, ScalarOp, WriteElement
from meshwright.ir.spec import PARTIAL, Spec

F16, F32, I32, FP22 = ElementType.F16, ElementType.F32, ElementType.I32, ElementType.FP22


def site(chip: int = 0, x: int = 0, y: int = 0) -> Site:
    return Site(ChipId(chip), x, y)


def rows(count: int, size: int, columns: int) -> Affine:
    """Blocks of `size` whole rows of a matrix of so many columns."""
    return Affine((0, 0), (size, columns), (Loop(count, (size, 0)),))


def linear_layer() -> Graph:
    """y = silu(x w^T + bias): eight rows in two blocks, the contraction of six in three, with a spill."""
    g = GraphBuilder()
    x = g.tensor("x", (8, 6), F16, [0])
    w = g.tensor("w", (4, 6), F16, [0])
    bias = g.tensor("bias", (1, 4), F32, [0])
    y = g.tensor("y", (8, 4), F16, [0])
    at = site()
    a, b, c, out = g.fifo(at, (4, 2), F16), g.fifo(at, (4, 2), F16), g.fifo(at, (1, 4), F32), g.fifo(at, (4, 4), F16)
    spill = g.fifo(at, (4, 4), F16, 1)
    g.load(x, Affine((0, 0), (4, 2), (Loop(2, (4, 0)), Loop(3, (0, 2)))), a)
    g.load(w, Affine((0, 0), (4, 2), (Loop(2, (0, 0)), Loop(3, (0, 2)))), b)
    g.load(bias, Affine((0, 0), (1, 4), (Loop(2, (0, 0)),)), c)
    op = Matmul((4, 4, 2), 3, True, bias=c, spill=spill, epilogue=silu(Operand(0)), sub_blocks=(2, 4))
    g.compute(op, (a, b), (out,))
    g.store(y, rows(2, 4, 4), out, sub_blocks=(2, 4))
    return g.graph()


def chained_reduce() -> Graph:
    """Two chips multiply halves of a contraction; the sums are added in the first one's accumulator and read out."""
    g = GraphBuilder()
    x = g.tensor("x", (4, 8), F16, [0, 1], Spec(axis=1))
    w = g.tensor("w", (2, 8), F16, [0, 1], Spec(axis=1))
    part = g.tensor("part", (4, 2), F32, [0, 1], PARTIAL)
    y = g.tensor("y", (4, 2), F32, [0])
    sums = []
    for chip in (0, 1):
        at = site(chip)
        a, b, sum_ = g.fifo(at, (4, 4), F16), g.fifo(at, (2, 4), F16), g.accumulator(at, (4, 2))
        g.load(x, whole((4, 4)), a)
        g.load(w, whole((2, 4)), b)
        g.compute(Matmul((4, 2, 4), 1, True), (a, b), (sum_,))
        sums.append(sum_)
    g.stage(AllReduce(Pool.SUM, part, combine(2, 2, Pool.SUM, Unit.ACCUMULATOR)), sums, sums[:1])
    out = g.fifo(site(), (4, 2), F32)
    g.compute(Generic.elementwise(Operand(0), 1, 2), sums[:1], (out,))
    g.store(y, whole((4, 2)), out)
    return g.graph()


def multicast_rows() -> Graph:
    """Three sites of a row each scale the same blocks; the sender is one of them. The results go through memory."""
    g = GraphBuilder()
    x = g.tensor("x", (4, 3), F32, [0])
    middle = g.tensor("middle", (3, 4, 3), F32, [0])
    y = g.tensor("y", (3, 2, 3), F32, [0])
    group = g.group(site(), (0, 0), (2, 0))
    received = [g.fifo(site(0, column), (2, 3), F32) for column in range(3)]
    g.multicast(x, rows(2, 2, 3), group, received)
    for column, buffer in enumerate(received):
        at = site(0, column)
        scaled, read, largest = g.fifo(at, (2, 3), F32), g.fifo(at, (1, 2, 3), F32), g.fifo(at, (1, 2, 3), F32)
        g.compute(Generic.elementwise(Operand(0) * (column + 1.0), 1, 2), (buffer,), (scaled,))
        stored = g.store(middle, Affine((column, 0, 0), (1, 2, 3), (Loop(2, (0, 2, 0)),)), scaled)
        again = Affine((column, 0, 0), (1, 2, 3), (Loop(2, (0, 2, 0)),), step=(1, 1, 1))
        g.load(middle, again, read, after=(stored,))
        g.compute(
            Generic((maximum(Operand(0), Constant(Special.NEGATIVE_INFINITY)),), ((0, 1, 2),)), (read,), (largest,)
        )
        summed = g.fifo(at, (1, 2, 1), F32)
        g.compute(Reduce(Pool.SUM, (2,), 2), (largest,), (summed,))
        g.store(y, Affine((column, 0, 0), (1, 2, 1)), summed)
    filler = g.fifo(site(0, 1, 1), (3, 2, 2), F32)
    g.compute(Generic((Constant(0.0),), ()), (), (filler,))
    g.store(y, Affine((0, 0, 1), (3, 2, 2)), filler)
    return g.graph()


def embedding_argmax() -> Graph:
    """Rows looked up by number, the best of two chips' scores and where it was, that doubled by a scalar program."""
    g = GraphBuilder()
    table = g.tensor("table", (16, 4), F32, [0, 1], Spec(axis=0))
    ids = g.tensor("ids", (6,), I32, [0, 1])
    scores = g.tensor("scores", (3, 2, 1), F32, [0, 1], Spec(partial=Pool.ARGMAX))
    best = g.tensor("best", (2, 3), F32, [0])
    where = g.tensor("where", (6,), I32, [0])
    contributions = []
    for chip in (0, 1):
        at = site(chip)
        index, looked_up = g.fifo(at, (2,), I32), g.fifo(at, (2, 4), F32)
        value, position = g.fifo(at, (2, 1), F32), g.fifo(at, (2, 1), I32)
        g.load(ids, Affine((0,), (2,), (Loop(3, (2,)),)), index)
        g.load(table, Gather(Affine((0, 0), (2, 4), (Loop(3, (0, 0)),), pad=0.0), 0, index, 8 * chip), looked_up)
        g.compute(Reduce(Pool.ARGMAX, (1,)), (looked_up,), (value, position))
        contributions += [value, position]
    value, position = g.fifo(site(), (2, 1), F32), g.fifo(site(), (2, 1), I32)
    op = combine(2, 2, Pool.ARGMAX, Unit.VECTOR)
    g.stage(AllReduce(Pool.ARGMAX, scores, op), contributions, (value, position))
    turned, doubled = g.fifo(site(), (2, 3), F32), g.fifo(site(), (2,), I32)
    g.compute(Permute((0, 1), (1, 3)), (value,), (turned,))
    twice = Arithmetic(ScalarOp.MUL, Register(1), Number(2))
    turn = (ReadElement(1, 0, Register(0)), WriteElement(0, Register(0), twice))
    g.stage(Scalar(ScalarBody(2, (Repeat(0, 2, turn),))), (position,), (doubled,))
    g.store(best, whole((2, 3)), turned, rank=0)
    g.store(where, Affine((0,), (2,), (Loop(3, (2,)),)), doubled)
    return g.graph()


SAMPLES: dict[str, Callable[[], Graph]] = {
    "linear_layer": linear_layer,
    "chained_reduce": chained_reduce,
    "multicast_rows": multicast_rows,
    "embedding_argmax": embedding_argmax,
}
