"""Bytes over links, against sums done by hand. The chain of meshes is 0 - 1 - 3 - 2."""

from __future__ import annotations

import re

import msgspec
import pytest

from meshwright.errors import PlacementError
from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.expression import Operand
from meshwright.ir.formats import ElementType as E
from meshwright.ir.ids import ChipId
from meshwright.ir.operation import Generic, Matmul, Unit, combine
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Site
from meshwright.ir.spec import PARTIAL
from meshwright.machine import load
from meshwright.runtime.traffic import link_bytes

CARD = load("ktpu-v13p")
GRID = load("grid-2x4x4")


def at(chip):
    return Site(ChipId(chip), 1, 1)


def moved(source, target, format=E.F16, blocks=3, runs_on=None):
    """Three blocks of 4 x 4 from one mesh's DRAM to another's, through a FIFO where it runs."""
    builder = GraphBuilder()
    pattern = Affine((0, 0), (4, 4), (Loop(blocks, (4, 0)),))
    x, y = (builder.tensor(name, (4 * blocks, 4), format, [c]) for name, c in (("x", source), ("y", target)))
    fifo = builder.fifo(at(source if runs_on is None else runs_on), (4, 4), format)
    builder.load(x, pattern, fifo, rank=0)
    builder.store(y, pattern, fifo, rank=0)
    return builder.graph()


def test_a_store_at_home_crosses_nothing() -> None:
    assert link_bytes(moved(0, 0), CARD) == {}


def test_a_remote_store_over_one_link() -> None:
    # 16 halves are 32 bytes, one granule; three blocks.
    assert link_bytes(moved(1, 3), CARD) == {(1, 3): 96}
    assert link_bytes(moved(3, 1), CARD) == {(3, 1): 96}


def test_a_remote_store_over_three_links() -> None:
    assert link_bytes(moved(0, 2, E.F32), CARD) == {(0, 1): 192, (1, 3): 192, (3, 2): 192}


def test_a_grid_pays_for_its_elements() -> None:
    assert link_bytes(moved(1, 0, E.BF16), GRID) == {(1, 0): 96}


def test_reads_that_do_not_cross() -> None:
    with pytest.raises(
        PlacementError,
        match=re.escape(
            "stage s0 on mesh 1 loads 'x' from mesh 0; on ktpu-v13p reads don't cross a link: copy it from where it is"
        ),
    ):
        link_bytes(moved(0, 1, runs_on=1), CARD)


def test_reads_that_cross_are_paid_for() -> None:
    reading = msgspec.structs.replace(CARD, crosses=(*CARD.crosses, "read"))
    assert link_bytes(moved(0, 3, runs_on=3), reading) == {(0, 1): 96, (1, 3): 96}


def test_a_mesh_that_no_link_leads_to() -> None:
    meshes = tuple(msgspec.structs.replace(mesh, at=(2 * mesh.id, 0)) for mesh in GRID.meshes)
    apart = msgspec.structs.replace(GRID, meshes=meshes, links=(), topology="grid2d")
    with pytest.raises(
        PlacementError, match=re.escape("stage s1 on mesh 0 stores 'y' to mesh 1; on grid-2x4x4 no link leads there")
    ):
        link_bytes(moved(0, 1, E.BF16), apart)


def test_writes_over_several_links_where_none_forwards() -> None:
    short = msgspec.structs.replace(CARD, forwards=False)
    assert link_bytes(moved(0, 1), short) == {(0, 1): 96}
    with pytest.raises(
        PlacementError,
        match=re.escape(
            "stage s1 on mesh 0 stores 'y' to mesh 3, 2 links away; on ktpu-v13p a link passes nothing on: "
            "go over mesh 1 step by step"
        ),
    ):
        link_bytes(moved(0, 3), short)


def test_writes_where_they_do_not_cross() -> None:
    closed = msgspec.structs.replace(CARD, crosses=())
    with pytest.raises(
        PlacementError,
        match=re.escape("stage s1 on mesh 0 stores 'y' to mesh 1; on ktpu-v13p writes don't cross a link"),
    ):
        link_bytes(moved(0, 1), closed)


def reduced(pairs, chips):
    """Products of 8 x 4 in two blocks a chip that stay in accumulators, and additions (into, from) between them."""
    builder = GraphBuilder()
    rows = Affine((0, 0), (8, 32), (Loop(2, (8, 0)),))
    x = builder.tensor("x", (16, 32), E.F16, chips)
    w = builder.tensor("w", (4, 32), E.F16, chips)
    result = builder.tensor("y", (16, 4), E.F16, chips, PARTIAL)
    held = {}
    for chip in chips:
        a, b = builder.fifo(at(chip), (8, 32), E.F16), builder.fifo(at(chip), (4, 32), E.F16)
        builder.load(x, rows, a)
        builder.load(w, Affine((0, 0), (4, 32), (Loop(2, (0, 0)),)), b)
        held[chip] = builder.accumulator(at(chip), (8, 4), depth=2)
        builder.compute(Matmul((8, 4, 32), 1, True), (a, b), (held[chip],))
    for into, source in pairs:
        kind = AllReduce(Pool.SUM, result, combine(2, 2, Pool.SUM, Unit.ACCUMULATOR))
        builder.stage(kind, (held[into], held[source]), (held[into],))
    last = pairs[-1][0]
    out = builder.fifo(at(last), (8, 4), E.F16)
    builder.compute(Generic.elementwise(Operand(0), 1, 2), (held[last],), (out,))
    home = builder.tensor("home", (16, 4), E.F16, [last])
    builder.store(home, Affine((0, 0), (8, 4), (Loop(2, (8, 0)),)), out)
    return builder.graph()


# A tile of 8 x 4 words is two sub-tiles of 64 bytes; two tiles a chip.
TILES = 2 * 2 * 64


def test_a_pair_of_accumulators() -> None:
    assert link_bytes(reduced([(1, 0)], (0, 1)), CARD) == {(0, 1): TILES}
    assert link_bytes(reduced([(0, 1)], (0, 1)), CARD) == {(1, 0): TILES}


def test_a_chain_of_four_accumulators() -> None:
    graph = reduced([(1, 0), (3, 1), (2, 3)], (0, 1, 3, 2))
    assert link_bytes(graph, CARD) == {(0, 1): TILES, (1, 3): TILES, (3, 2): TILES}


def test_accumulators_two_links_apart_cross_both() -> None:
    assert link_bytes(reduced([(3, 0)], (0, 3)), CARD) == {(0, 1): TILES, (1, 3): TILES}


def folded(chips, ends):
    """Partials of 8 x 4 halves a chip, folded by vector cores."""
    builder = GraphBuilder()
    x = builder.tensor("x", (8, 4), E.F16, chips)
    ins = [builder.fifo(at(chip), (8, 4), E.F16) for chip in chips]
    for buffer in ins:
        builder.load(x, whole((8, 4)), buffer)
    outs = [builder.fifo(at(chip), (8, 4), E.F16) for chip in ends]
    partial = builder.tensor("p", (8, 4), E.F16, chips, PARTIAL)
    builder.stage(AllReduce(Pool.SUM, partial, combine(len(chips), 2, Pool.SUM, Unit.VECTOR)), ins, outs)
    y = builder.tensor("y", (8, 4), E.F16, ends)
    for buffer in outs:
        builder.store(y, whole((8, 4)), buffer)
    return builder.graph()


def test_a_rooted_reduce_passes_the_running_sum_on() -> None:
    # 32 halves are 64 bytes. From 0 to 1 to 3, and the sum from there to the root.
    assert link_bytes(folded((0, 1, 3), (3,)), CARD) == {(0, 1): 64, (1, 3): 64}
    assert link_bytes(folded((0, 1, 3), (1,)), CARD) == {(0, 1): 64, (1, 3): 64, (3, 1): 64}


def test_a_pair_fold_sends_both_its_parts() -> None:
    builder = GraphBuilder()
    values, places = (builder.tensor(n, (8, 4), f, [0, 1]) for n, f in (("v", E.F16), ("p", E.I32)))
    ins, outs = [], []
    for chip in (0, 1):
        for tensor, format in ((values, E.F16), (places, E.I32)):
            ins.append(builder.fifo(at(chip), (8, 4), format))
            builder.load(tensor, whole((8, 4)), ins[-1])
    for name, format in (("best", E.F16), ("where", E.I32)):
        outs.append(builder.fifo(at(0), (8, 4), format))
        builder.store(builder.tensor(name, (8, 4), format, [0]), whole((8, 4)), outs[-1])
    builder.stage(AllReduce(Pool.ARGMAX, values, combine(2, 2, Pool.ARGMAX, Unit.VECTOR)), ins, outs)
    assert link_bytes(builder.graph(), CARD) == {(1, 0): 64 + 128}


def test_sums_that_do_not_cross() -> None:
    closed = msgspec.structs.replace(CARD, crosses=("write",))
    with pytest.raises(
        PlacementError,
        match=re.escape(
            "stage s6 sends sums from mesh 0 to mesh 1; on ktpu-v13p blocks between units don't cross a link"
        ),
    ):
        link_bytes(reduced([(1, 0)], (0, 1)), closed)


def test_an_all_reduce_hands_the_sum_to_everyone() -> None:
    # There: 0 to 1 to 3. Back: to 1 over one link, to 0 over two.
    assert link_bytes(folded((0, 1, 3), (0, 1, 3)), CARD) == {(0, 1): 64, (1, 3): 64, (3, 1): 128, (1, 0): 64}
