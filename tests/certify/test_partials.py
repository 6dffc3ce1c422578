"""What values lack, followed through graphs: partials of every pool, slices, tables, memory, and grids of ranks."""

from __future__ import annotations

from itertools import pairwise

import pytest

from certify.hand_made import CARD, F16, F32, GRID, TWO, chain_sum, cluster, elementwise, on_partials, rows, site
from certify.hand_made import vector_core as core
from meshwright.certify import Verdict, certify
from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.contributions import Held
from meshwright.ir.expression import Binary, BinaryOp, Expr, Operand
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.library import absolute, exp2, maximum
from meshwright.ir.operation import Matmul, Permute, Reduce, Unit, combine
from meshwright.ir.partials import contents, coordinates, promised
from meshwright.ir.pattern import Affine, Gather, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Tensor
from meshwright.ir.spec import COPIED, PARTIAL, Spec

X, Y = Operand(0), Operand(1)
MAXIMUM = Spec(partial=Pool.MAX)


def verdicts(graph: Graph, machine=CARD) -> tuple[str, str]:
    certificate = certify(graph, machine)
    return tuple(certificate.entry(name).verdict.value for name in ("UnreducedShard", "EachSummandOnce"))


HELD, BROKEN = ("held", "held"), ("broken", "not decided")


@pytest.mark.parametrize(
    ("expr", "pool", "others", "expected"),
    [
        (X * 3.0, Pool.SUM, (), HELD),
        (-X, Pool.SUM, (), HELD),
        (X + 10.0, Pool.SUM, (), BROKEN),
        (X * X, Pool.SUM, (), BROKEN),
        (absolute(X), Pool.SUM, (), BROKEN),
        (maximum(X, 0.0), Pool.SUM, (), BROKEN),
        (X + Y, Pool.SUM, (PARTIAL,), HELD),
        (X - Y * 2.0, Pool.SUM, (PARTIAL,), HELD),
        (X * Y, Pool.SUM, (PARTIAL,), BROKEN),
        (X * Y, Pool.SUM, (COPIED,), HELD),
        (X + Y, Pool.SUM, (COPIED,), BROKEN),
        (X + Y, Pool.SUM, (MAXIMUM,), BROKEN),
        (X * 2.0, Pool.MAX, (), HELD),
        (X * -2.0, Pool.MAX, (), BROKEN),
        (X + 10.0, Pool.MAX, (), HELD),
        (exp2(X), Pool.MAX, (), HELD),
        (maximum(X, Y), Pool.MAX, (MAXIMUM,), HELD),
        (Binary(BinaryOp.MIN, X, Y), Pool.MAX, (MAXIMUM,), BROKEN),
        (X * Y, Pool.PROD, (Spec(partial=Pool.PROD),), HELD),
        (X * 2.0, Pool.PROD, (), BROKEN),
    ],
)
def test_what_may_be_done_to_contributions(expr: Expr, pool: Pool, others: tuple[Spec, ...], expected) -> None:
    assert verdicts(on_partials(expr, pool, Spec(partial=pool), others)) == expected


def test_a_partial_is_stored_in_its_own_pool() -> None:
    certificate = certify(on_partials(X, Pool.MAX, PARTIAL), CARD)
    assert certificate.entry("EachSummandOnce").message == (
        "s5 (Store at 3:(1,0)) stores to 'y', a partial sum, and folds max over p0 of contributions 0 of 2 by sum: "
        "that is another value"
    )


def reduced(chips, specs: Spec, fold: Pool, result: Spec = COPIED, grid=(), outs=1) -> Graph:
    """A partial of chips reduced by an AllReduce onto the first one or all of them, on a grid machine."""
    g = GraphBuilder()
    p = g.tensor("p", (1, 4), F32, chips, specs, grid)
    ends = chips[:outs]
    y = g.tensor("y", (1, 4), F32, ends, result)
    ins = [g.fifo(site(chip), (1, 4), F32) for chip in chips]
    made = [g.fifo(site(chip, 1), (1, 4), F32) for chip in ends]
    for b in ins:
        g.load(p, whole((1, 4)), b)
    g.stage(AllReduce(fold, p, combine(len(chips), 2, fold, Unit.VECTOR)), ins, made)
    for b in made:
        g.store(y, whole((1, 4)), b)
    return g.graph()


def test_an_all_reduce_makes_the_whole_everywhere() -> None:
    assert verdicts(reduced((0, 1), PARTIAL, Pool.SUM, outs=2), TWO) == HELD
    assert verdicts(reduced((0, 1), MAXIMUM, Pool.MAX), TWO) == HELD


def test_the_fold_of_another_pool() -> None:
    """Truth values 1 and 1 folded by a sum give 2."""
    assert verdicts(reduced((0, 1), MAXIMUM, Pool.SUM), TWO) == BROKEN


@pytest.mark.parametrize("missing", range(4))
def test_the_rank_that_is_missing_is_named(missing: int) -> None:
    if missing == 3:
        additions, drain = [(0, 1), (1, 2)], 2
    else:
        line = [i for i in range(4) if i != missing]
        additions, drain = list(pairwise(line)), 3
    entry = certify(chain_sum(additions=additions, drain=drain), CARD).entry("EachSummandOnce")
    assert entry.verdict is Verdict.BROKEN
    assert entry.message.endswith(f"a sum of x x w without the contribution of rank {missing}")


@pytest.mark.parametrize("twice", range(3))
def test_the_rank_that_is_added_twice_is_named(twice: int) -> None:
    additions = [(twice, 3), *((i, 3) for i in range(3))]
    entry = certify(chain_sum(additions=additions), CARD).entry("EachSummandOnce")
    assert entry.verdict is Verdict.BROKEN
    assert entry.message.endswith(f"a sum of x x w with the contribution of rank {twice} in it 2 times")


def test_a_maximum_may_have_a_contribution_twice() -> None:
    times = Held("v", Pool.MAX, 2, ((0, 2), (1, 1)))
    assert times.complete
    assert not times.repeated
    assert Held("v", Pool.SUM, 2, ((0, 2), (1, 1))).repeated == ((0, 2),)


def test_every_contribution_twice_is_not_decided() -> None:
    """Twice the value, or every summand counted twice: the graph doesn't say which."""
    assert verdicts(on_partials(X + X, Pool.SUM, PARTIAL)) == HELD
    g = GraphBuilder()
    p, y = g.tensor("p", (1, 4), F16, (0, 3), PARTIAL), g.tensor("y", (1, 4), F16, (0, 3), PARTIAL)
    for at in (core(0), core(3)):
        ins, out = [g.fifo(at, (1, 4), F16) for _ in range(2)], g.fifo(at, (1, 4), F16)
        for b in ins:
            g.load(p, whole((1, 4)), b)
        g.compute(elementwise(X + Y, 2), ins, (out,))
        g.store(y, whole((1, 4)), out)
    entry = certify(g.graph(), CARD).entry("EachSummandOnce")
    assert entry.verdict is Verdict.NOT_DECIDED
    assert entry.message == "s7 (Store at 3:(1,0)): every contribution to p is in it 2 times"


def from_memory(middle: Spec, stored: int = 2) -> Graph:
    """A partial copied to a scratch of each chip, then all summed on one vector core."""
    g = GraphBuilder()
    p = g.tensor("p", (1, 4), F16, (0, 3), PARTIAL)
    y = g.tensor("y", (1, 4), F16, [0])
    pieces = []
    for chip in (0, 3)[:stored]:
        t = g.tensor(f"t{chip}", (1, 4), F16, [0], middle)
        fifo = g.fifo(core(chip), (1, 4), F16)
        g.load(p, whole((1, 4)), fifo)
        pieces.append((t, g.store(t, whole((1, 4)), fifo, rank=0)))
    ins = [g.fifo(core(), (1, 4), F16) for _ in pieces]
    for (t, s), b in zip(pieces, ins, strict=True):
        g.load(t, whole((1, 4)), b, after=[s])
    out = g.fifo(core(), (1, 4), F16)
    g.compute(elementwise(X + Y if stored == 2 else X, len(ins)), ins, (out,))
    g.store(y, whole((1, 4)), out)
    return g.graph()


def test_contributions_are_followed_through_memory_of_one_chip() -> None:
    assert verdicts(from_memory(COPIED)) == HELD
    certificate = certify(from_memory(COPIED, 1), CARD)
    assert certificate.entry("UnreducedShard").message == (
        "s4 (Store at 0:(1,0)) stores to 'y', copied, the contribution of rank 0 alone: sum over p of contributions 0 "
        "of 2"
    )


def test_a_promise_between_chips_is_kept_where_it_is_made() -> None:
    """A tensor of two chips that says that it is copied may not hold contributions, even for a while."""
    g = GraphBuilder()
    p, t = g.tensor("p", (1, 4), F16, (0, 3), PARTIAL), g.tensor("t", (1, 4), F16, (0, 3))
    y = g.tensor("y", (1, 4), F16, [0])
    stores = []
    for chip in (0, 3):
        fifo = g.fifo(core(chip), (1, 4), F16)
        g.load(p, whole((1, 4)), fifo)
        stores.append(g.store(t, whole((1, 4)), fifo))
    fifo = g.fifo(core(), (1, 4), F16)
    g.load(t, whole((1, 4)), fifo, after=stores)
    g.store(y, whole((1, 4)), fifo)
    certificate = certify(g.graph(), CARD)
    assert certificate.entry("UnreducedShard").message.startswith("s1 (Store at 0:(1,0)) stores to 't', copied, the")


def rows_of_a_table(pad: float | None) -> Graph:
    """Rows of a table that two chips have halves of; each leaves out what it hasn't got."""
    g = GraphBuilder()
    table = g.tensor("table", (16, 4), F32, (0, 1), Spec(axis=0))
    ids = g.tensor("ids", (2,), ElementType.I32, (0, 1))
    y = g.tensor("y", (2, 4), F32, (0, 1), PARTIAL)
    for chip in (0, 1):
        index, found = g.fifo(site(chip), (2,), ElementType.I32), g.fifo(site(chip), (2, 4), F32)
        g.load(ids, whole((2,)), index)
        g.load(table, Gather(Affine((0, 0), (2, 4), pad=pad), 0, index, 8 * chip), found)
        g.store(y, whole((2, 4)), found)
    return g.graph()


def test_rows_that_are_zero_elsewhere_are_contributions_to_a_sum() -> None:
    assert verdicts(rows_of_a_table(0.0), TWO) == HELD
    assert [str(c.held) for c in contents(rows_of_a_table(0.0)).buffers if c.held] == [
        "sum over rows of table of contributions 0 of 2",
        "sum over rows of table of contributions 1 of 2",
    ]
    certificate = certify(rows_of_a_table(-1.0), TWO)
    assert certificate.entry("UnreducedShard").message == (
        "s1 (Load at 0:(0,0)): rows of table that aren't held read -1"
    )


def folded_slices(pool: Pool, box: int, transposed: bool = False) -> Graph:
    """A fold along an axis of which each of two chips has 8 elements, in blocks of `box`."""
    g = GraphBuilder()
    x = g.tensor("x", (2, 16), F32, (0, 1), Spec(axis=1))
    y = g.tensor("y", (2, 1), F32, (0, 1), Spec(partial=pool))
    for chip in (0, 1):
        a, b = g.fifo(site(chip), (1, box), F32), g.fifo(site(chip), (1, 1), F32)
        loops = (Loop(2, (1, 0)), Loop(8 // box, (0, box)))
        g.load(x, Affine((0, 0), (1, box), loops), a)
        if transposed:
            turned = g.fifo(site(chip), (box, 1), F32)
            g.compute(Permute((1, 0)), (a,), (turned,))
            g.compute(Reduce(pool, (0,), 8 // box), (turned,), (b,))
        else:
            g.compute(Reduce(pool, (1,), 8 // box), (a,), (b,))
        g.store(y, rows(2, 1), b)
    return g.graph()


@pytest.mark.parametrize("box", [1, 2, 8])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("pool", [Pool.SUM, Pool.MAX])
def test_a_fold_along_a_cut_axis_is_a_contribution(pool: Pool, box: int, transposed: bool) -> None:
    graph = folded_slices(pool, box, transposed)
    assert verdicts(graph, TWO) == HELD
    assert sum(c.held is not None for c in contents(graph).buffers) == 2


def test_a_fold_of_a_part_of_a_slice_is_not_decided() -> None:
    """A head of several in a slice, or a piece of a sum: the graph doesn't say which."""
    g = GraphBuilder()
    x = g.tensor("x", (4, 128), F16, (0, 1), Spec(axis=1))
    w = g.tensor("w", (4, 32), F16, (0, 1))
    y = g.tensor("y", (4, 4), F16, (0, 1))
    for chip in (0, 1):
        a, b, out = (g.fifo(cluster(chip), block, F16) for block in ((4, 32), (4, 32), (4, 4)))
        g.load(x, whole((4, 32)), a)
        g.load(w, whole((4, 32)), b)
        g.compute(Matmul((4, 4, 32), 1, True), (a, b), (out,))
        g.store(y, whole((4, 4)), out)
    certificate = certify(g.graph(), CARD)
    assert certificate.entry("UnreducedShard").verdict is Verdict.NOT_DECIDED
    assert certificate.entry("UnreducedShard").message == (
        "s2 (Compute at 0:(1,1)): a fold runs over a part of slice 0 of x, which is cut in 2"
    )


def test_a_product_over_an_axis_that_isnt_cut_is_whole() -> None:
    """`ij,i->j` with rows split: refusing too much is a fault too."""
    g = GraphBuilder()
    x = g.tensor("x", (8, 32), F16, (0, 1), Spec(axis=0))
    w = g.tensor("w", (4, 32), F16, (0, 1))
    y = g.tensor("y", (8, 4), F16, (0, 1), Spec(axis=0))
    for chip in (0, 1):
        a, b, out = (g.fifo(cluster(chip), block, F16) for block in ((4, 32), (4, 32), (4, 4)))
        g.load(x, whole((4, 32)), a)
        g.load(w, whole((4, 32)), b)
        g.compute(Matmul((4, 4, 32), 1, True), (a, b), (out,))
        g.store(y, whole((4, 4)), out)
    assert verdicts(g.graph()) == HELD


def test_pieces_on_a_grid_of_ranks() -> None:
    tensor = Tensor("p", (4, 8), F32, (0, 1, 2, 3, 4, 5), (Spec(axis=1), PARTIAL), (2, 3))
    assert [coordinates(tensor, rank) for rank in range(6)] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    made = promised(tensor, 4)
    assert made.held == Held("p slice 1", Pool.SUM, 3, ((1, 1),))
    (along,) = made.along
    assert (along.of, along.index, along.count, along.axis) == ("p", 1, 2, 1)


def test_one_rank_lacks_nothing() -> None:
    assert promised(Tensor("p", (4,), F32, (0,), (PARTIAL,)), 0).held is None


def test_reduced_over_one_axis_of_a_grid_still_lacks_the_other() -> None:
    """Four contributions on a 2 x 2 grid, two of them folded: stored as the whole, the others are missed."""
    g = GraphBuilder()
    p = g.tensor("p", (1, 4), F32, (0, 1), (PARTIAL, PARTIAL), (2, 1))
    assert contents(_sum_of(g, p, 2)).findings == ()
    g = GraphBuilder()
    p = g.tensor("p", (1, 4), F32, (0, 1, 2, 3), (PARTIAL, PARTIAL), (2, 2))
    (finding,) = contents(_sum_of(g, p, 2)).findings
    assert finding.obligation == "EachSummandOnce"
    assert finding.positions == (2, 3)


def _sum_of(g: GraphBuilder, p, count: int) -> Graph:
    y = g.tensor("y", (1, 4), F32, [0])
    ins = [g.fifo(site(chip), (1, 4), F32) for chip in range(count)]
    for b in ins:
        g.load(p, whole((1, 4)), b)
    out = g.fifo(site(0, 1), (1, 4), F32)
    g.stage(AllReduce(Pool.SUM, p, combine(count, 2, Pool.SUM, Unit.VECTOR)), ins, (out,))
    g.store(y, whole((1, 4)), out)
    return g.graph()


def test_multicast_carries_what_is_lacking() -> None:
    g = GraphBuilder()
    p = g.tensor("p", (1, 4), F32, (0, 1), PARTIAL)
    y = g.tensor("y", (1, 4), F32, [0])
    buffers = [g.fifo(site(0, x), (1, 4), F32) for x in (0, 1)]
    g.multicast(p, whole((1, 4)), g.group(site(), (0, 0), (1, 0)), buffers)
    z = g.tensor("z", (1, 4), F32, (0, 1), PARTIAL)
    g.store(z, whole((1, 4)), buffers[0])
    g.store(y, whole((1, 4)), buffers[1])
    entry = certify(g.graph(), GRID).entry("UnreducedShard")
    assert entry.message.startswith("s3 (Store at 0:(1,0)) stores to 'y', copied, the contribution of rank 0 alone")
