"""The sound graphs that `meshwright mutate` puts faults into: small, each of another kind, on cards and on grids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from meshwright import kernels, targets
from meshwright.certify.mutation import Subject
from meshwright.ir import library
from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.expression import Expr, Operand
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, ChipId, StageId
from meshwright.ir.operation import Generic, Matmul, Reduce, Unit, combine
from meshwright.ir.pattern import Affine, Gather, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Site
from meshwright.ir.spec import COPIED, PARTIAL, Spec
from meshwright.kernels.alone import graph_alone
from meshwright.kernels.grid import (
    Route,
    SpreadEmbedding,
    all_gather,
    all_reduce,
    mixture_of_experts,
    multicast_convolution,
    multicast_matmul,
    reduce_scatter,
)
from meshwright.kernels.grid.collectives import Places
from meshwright.kernels.kernel import Kernel, Shaped
from meshwright.machine import LinkSpec, MachineSpec, MeshSpec, UnitSpec, load
from meshwright.sharding import MeshGroup

F16, BF16, F32, I32 = ElementType.F16, ElementType.BF16, ElementType.F32, ElementType.I32


def subjects() -> tuple[Subject, ...]:
    """All of them, built from scratch."""
    return (*_plans(), *_alone(), *_multicasts(), *_routes(), *_by_hand())


# Machines


def _chip(columns: int, rows: int, chip: int = 0) -> MeshSpec:
    at = tuple((x, y) for y in range(rows) for x in range(columns))
    return MeshSpec(id=chip, routers=((0, 0), (columns - 1, rows - 1)), units=(UnitSpec("site", at),))


def grid_of(columns: int, rows: int) -> MachineSpec:
    """A machine of one chip with so many sites."""
    return replace(load("grid-8x8"), name=f"grid-{columns}x{rows}", meshes=(_chip(columns, rows),))


def grids_along(count: int, closed: bool = False) -> MachineSpec:
    """Chips of 2 x 2 sites in a line, or in a ring."""
    pair = load("grid-2x4x4")
    ends = [(chip, (chip + 1) % count) for chip in range(count if closed else count - 1)]
    return replace(
        pair,
        name=f"{'ring' if closed else 'line'} of {count}",
        topology="ring" if closed else "chain",
        meshes=tuple(_chip(2, 2, chip) for chip in range(count)),
        links=tuple(LinkSpec(between, pair.link_kinds[0].name) for between in ends),
    )


# Plans over the four meshes of a card


def _ones(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float16]]:
    return np.ones(shape, np.float16)


def _sum(a: Expr, b: Expr) -> Expr:
    return a + b


def _plans() -> Iterator[Subject]:
    group = MeshGroup.open("ktpu-v13p")
    copied, by_rows, by_k = group.copy(_ones(32, 128)), group.split(_ones(64, 128), 0), group.split(_ones(32, 256), 1)
    weights, weights_by_k = group.split(_ones(64, 128), 0), group.split(_ones(64, 256), 1)
    partial = group.run(group.plan_matmul(by_k, weights_by_k))
    again = group.run(group.plan_matmul(by_k, weights_by_k))
    scale = group.copy(_ones(128))
    made = {
        "product by columns": group.plan_matmul(copied, weights),
        "product by rows": group.plan_matmul(by_rows, group.copy(_ones(64, 128))),
        "product, partial": group.plan_matmul(by_k, weights_by_k),
        "chain reduce": group.plan_chain_reduce(by_k, weights_by_k),
        "chain reduce, tiles": group.plan_chain_reduce(by_k, weights_by_k, tile=(32, 32, 32)),
        "all-reduce": group.plan_reshard(partial, COPIED),
        "reduce-scatter": group.plan_reshard(partial, Spec.on(0)),
        "all-gather": group.plan_reshard(by_rows, COPIED),
        "all-to-all": group.plan_reshard(by_rows, Spec.on(1)),
        "softmax on each": group.plan_each(kernels.softmax(), by_rows),
        "layer norm on each": group.plan_each(kernels.layer_norm(), by_rows, scale, scale),
        "sum of partials": group.plan_each(_sum, partial, again),
        "maximum of slices": group.plan_each(kernels.reduce("max", -1), by_k),
    }
    for name, plan in made.items():
        yield Subject(name, plan.graph(), group.machine)


# Kernels on one chip


def _alone() -> Iterator[Subject]:
    card, grid = load("ktpu-v13p"), load("grid-8x8")
    half, wide = ElementType.F16, ElementType.BF16
    yield _kernel("softmax in parts", card, kernels.softmax(), Shaped((2, 6000), half))
    yield _kernel("rms norm", card, kernels.rms_norm(), Shaped((4, 384), half), Shaped((384,), half))
    yield _kernel("transpose", card, kernels.transpose(), Shaped((64, 64), half))
    yield _kernel("embedding", grid, kernels.embedding, Shaped((12, 50), wide), Shaped((4, 6), I32))


def _kernel(name: str, machine: MachineSpec, kernel: Kernel, *operands: Shaped) -> Subject:
    return Subject(name, graph_alone(kernel, targets.placement(machine, 0), operands), machine)


def _multicasts() -> Iterator[Subject]:
    def of(*shape: int) -> Shaped:
        return Shaped(shape, BF16)

    tile = (32, 32, 32)
    gelu = multicast_matmul(tile, epilogue=library.gelu)
    spilled = multicast_matmul(tile, spill=F32)
    square = multicast_matmul(tile, b_transposed=False)
    yield _kernel("multicast product with gelu", grid_of(3, 2), gelu, of(64, 64), of(96, 64), of(96))
    yield _kernel("multicast product, residual", grid_of(2, 2), square, of(64, 96), of(96, 64), of(64, 64))
    yield _kernel("multicast product, spilled", grid_of(2, 2), spilled, of(64, 128), of(64, 128))
    convolution = multicast_convolution(stride=2, padding=1)
    yield _kernel("convolution", grid_of(2, 4), convolution, of(1, 8, 6, 16), of(48, 3, 3, 16))
    routed = mixture_of_experts(2)
    yield _kernel("experts", grid_of(2, 3), routed, of(16, 32), of(3, 32), of(3, 32, 32), of(3, 32, 32))
    yield _kernel("embedding over sites", grid_of(2, 2), SpreadEmbedding(), of(50, 24), Shaped((70,), I32))


# Collectives from chip to chip


def _routes() -> Iterator[Subject]:
    def ring_sum(route: Route, places: Places) -> Graph:
        return all_reduce(route, places, (8, 6), F32)

    def line_max(route: Route, places: Places) -> Graph:
        return all_reduce(route, places, (6, 5), BF16, Pool.MAX)

    def ring_gather(route: Route, places: Places) -> Graph:
        return all_gather(route, places, (5, 10), BF16, axis=1)

    def line_scatter(route: Route, places: Places) -> Graph:
        return reduce_scatter(route, places, (8, 4), BF16)

    yield _route("ring all-reduce", grids_along(4, closed=True), ring_sum)
    yield _route("line all-reduce of maxima", grids_along(3), line_max)
    yield _route("ring all-gather", grids_along(5, closed=True), ring_gather)
    yield _route("line reduce-scatter", grids_along(4), line_scatter)


def _route(name: str, machine: MachineSpec, build: Callable[[Route, Places], Graph]) -> Subject:
    return Subject(name, build(Route.along(machine), lambda chip: targets.placement(machine, chip)), machine)


# By hand: what no kernel makes


def _by_hand() -> Iterator[Subject]:
    yield Subject("coupled multicasts", coupled(), grid_of(2, 1))
    yield Subject("a sum added back to its rows", added_back(4), grid_of(2, 2))
    yield Subject("embedding of a split table", split_embedding((0, 1, 2)), grids_along(3, closed=True))
    yield Subject("product reduced at other sites", reduced_apart((0, 1, 2)), grids_along(3, closed=True))


def coupled() -> Graph:
    """Two streams sent to two sites: one takes them in pairs, the other all of the first before any of the second.

    The second stream runs ahead of the other site, by as many of its four blocks as the first one's FIFO doesn't hold:
    three in a FIFO of three. One block less, and nothing moves.
    """
    make = GraphBuilder()
    block = (2, 4)
    rows = Affine((0, 0), block, (Loop(4, (2, 0)),))
    here, there = Site(ChipId(0), 0, 0), Site(ChipId(0), 1, 0)
    group = [make.group(here, (0, 0), (1, 0)) for _ in range(2)]
    pair = [make.fifo(here, block, BF16, 1) for _ in range(2)]
    apart = [make.fifo(there, block, BF16, depth) for depth in (1, 3)]
    stores: list[StageId] = []
    for number, name in enumerate(("x", "y")):
        tensor = make.tensor(name, (8, 4), BF16, [0])
        make.multicast(tensor, rows, group[number], (pair[number], apart[number]))
        stores.append(make.store(make.tensor(f"copy of {name}", (8, 4), BF16, [0]), rows, apart[number]))
    make.precede(stores[0], stores[1])
    total = make.fifo(here, block, BF16, 1)
    make.compute(Generic.elementwise(Operand(0) + Operand(1), 2, 2), pair, (total,))
    make.store(make.tensor("sum", (8, 4), BF16, [0]), rows, total)
    return make.graph()


def added_back(rows: int) -> Graph:
    """y = x + (the sum of the rows of x), every row: rows wait in one FIFO until the sum of all has come back.

    That FIFO holds them all, and not one block more.
    """
    make = GraphBuilder()
    x, y = make.tensor("x", (rows, 4), F32, [0]), make.tensor("y", (rows, 4), F32, [0])
    each, first = Affine((0, 0), (1, 4), (Loop(rows, (1, 0)),)), Affine((0, 0), (1, 4))
    left, right = Site(ChipId(0), 0, 0), Site(ChipId(0), 0, 1)
    near, far = make.fifo(left, (1, 4), F32, rows), make.fifo(right, (1, 4), F32)
    make.multicast(x, each, make.group(left, (0, 0), (0, 1)), (near, far))
    summed, spread, out = make.fifo(right, (1, 4), F32), make.fifo(left, (1, 4), F32), make.fifo(left, (1, 4), F32)
    total = make.scratch("total", (1, 4), F32, 0)
    make.compute(Reduce(Pool.SUM, (0,), rows), (far,), (summed,))
    stored = make.store(total, first, summed)
    make.load(total, Affine((0, 0), (1, 4), (Loop(rows, (0, 0)),)), spread, after=[stored])
    make.compute(Generic.elementwise(Operand(0) + Operand(1), 2, 2), (near, spread), (out,))
    make.store(y, each, out)
    return make.graph()


def split_embedding(chips: Sequence[int]) -> Graph:
    """Rows of a table looked up by rank; each has a slice of it, reads zeros for other rows, and all are added."""
    make = GraphBuilder()
    rows = 4 * len(chips)
    ids = make.tensor("ids", (5,), I32, chips)
    table = make.tensor("table", (rows, 3), F32, chips, Spec(axis=0))
    result = make.tensor("result", (5, 3), F32, chips)
    found: list[BufferId] = []
    for rank, chip in enumerate(chips):
        site = Site(ChipId(chip), 0, 0)
        index, out = make.fifo(site, (5,), I32), make.fifo(site, (5, 3), F32)
        make.load(ids, whole((5,)), index)
        make.load(table, Gather(Affine((0, 0), (5, 3), pad=0.0), 0, index, 4 * rank), out)
        found.append(out)
    totals = [make.fifo(Site(ChipId(chip), 0, 0), (5, 3), F32) for chip in chips]
    make.stage(AllReduce(Pool.SUM, result, combine(len(chips), 2, Pool.SUM, Unit.VECTOR)), found, totals)
    for total in totals:
        make.store(result, whole((5, 3)), total)
    return make.graph()


def reduced_apart(chips: Sequence[int]) -> Graph:
    """A product with the contraction split: partial sums go through memory to sites that reduce them."""
    make = GraphBuilder()
    count = len(chips)
    x, w = (make.tensor(name, (4, 32 * count), BF16, chips, Spec(axis=1)) for name in "xw")
    part = make.tensor("part", (4, 4), BF16, chips, PARTIAL)
    result = make.tensor("result", (4, 4), BF16, chips)
    stored: list[StageId] = []
    for chip in chips:
        at = Site(ChipId(chip), 1, 1)
        a, b, out = make.fifo(at, (4, 32), BF16), make.fifo(at, (4, 32), BF16), make.fifo(at, (4, 4), BF16)
        make.load(x, whole((4, 32)), a)
        make.load(w, whole((4, 32)), b)
        make.compute(Matmul((4, 4, 32), 1, b_transposed=True), (a, b), (out,))
        stored.append(make.store(part, whole((4, 4)), out))
    ins, totals = (tuple(make.fifo(Site(ChipId(c), 1, 0), (4, 4), BF16) for c in chips) for _ in range(2))
    for fifo, before in zip(ins, stored, strict=True):
        make.load(part, whole((4, 4)), fifo, after=[before])
    make.stage(AllReduce(Pool.SUM, result, combine(count, 2, Pool.SUM, Unit.VECTOR)), ins, totals)
    for total in totals:
        make.store(result, whole((4, 4)), total)
    return make.graph()
