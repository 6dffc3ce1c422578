"""Collectives on lines and rings: right, in the stated order, to neighbours only, every chunk one hop a step."""

import re
from functools import reduce
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.block_flow import stuck
from tests.kernels.grid_bits import BF16, brains, same_bits
from tests.kernels.multicast_machines import line, one_chip, places, ring

from meshwright import targets
from meshwright.errors import KernelError, MachineError, PlacementError, SplitError
from meshwright.evaluate.walk import evaluate
from meshwright.ir.flow import block_counts, dependencies, stage_order
from meshwright.ir.form import faults
from meshwright.ir.formats import ElementType as E
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Store
from meshwright.kernels.grid import Route, all_gather, all_reduce, reduce_scatter
from meshwright.machine import load
from meshwright.runtime.traffic import link_bytes

FOLDS = {Pool.SUM: np.add, Pool.MAX: np.maximum, Pool.MIN: np.minimum, Pool.PROD: np.multiply}
POOLS = st.sampled_from([*FOLDS])
BITS = targets.arithmetic(load("grid-8x8"))


def machines(count, closed):
    return line(count, closed=closed and count > 2)


def contributions(count, shape):
    return [brains(rank, *shape) for rank in range(count)]


def checked(graph, machine):
    """The graph, after everything that moves between chips has been found to move between neighbours."""
    assert faults(graph) == ()
    block_counts(graph)
    for stage in graph.stages:
        if isinstance(stage.kind, AllReduce):
            here, there = (graph.buffers[b].site.chip for b in stage.ins)
            assert there in machine.neighbours(here)
            assert [graph.buffers[b].site.chip for b in stage.outs] == [here]
        elif isinstance(stage.kind, Store):
            owner = graph.tensors[stage.kind.tensor].chips[graph.rank_of(stage)]
            assert owner == graph.site(stage).chip or owner in machine.neighbours(graph.site(stage).chip)
        else:
            assert {graph.buffers[b].site.chip for b in (*stage.ins, *stage.outs)} == {graph.site(stage).chip}
    return graph


def in_order(count, chunk, closed):
    """The places whose contributions are folded, as a left fold of left folds."""
    if closed:
        return [[(chunk + 1 + step) % count for step in range(count)]]
    before, after = [*range(chunk), chunk], [*range(count - 1, chunk, -1)]
    return [before, after] if after else [before]


def folded(values, pool, cut, closed, carried):
    """What a fold gives, chunk by chunk in the stated order, rounding to `carried` at every hop but the last."""
    count, axis = len(values), cut
    each = -(-values[0].shape[axis] // count)
    chunks = []
    for chunk in range(count):
        window = np.arange(min(chunk * each, values[0].shape[axis]), min((chunk + 1) * each, values[0].shape[axis]))
        take = [np.take(v, window, axis).astype(np.float32) for v in values]

        def pair(a, b):
            return FOLDS[pool](a, b).astype(carried).astype(np.float32)

        parts = [reduce(pair, [take[p] for p in way]) for way in in_order(count, chunk, closed)]
        chunks.append(reduce(pair, parts))
    return np.concatenate(chunks, axis)


counts, sizes = st.integers(1, 9), st.integers(1, 20)


@given(counts, st.booleans(), st.lists(sizes, min_size=1, max_size=3), POOLS, st.booleans(), st.data())
def test_all_reduce_is_the_fold_in_the_stated_order(count, closed, shape, pool, wide, data):
    machine = machines(count, closed)
    axis = data.draw(st.none() | st.integers(0, len(shape) - 1))
    cut = max(range(len(shape)), key=lambda a: (shape[a], -a)) if axis is None else axis
    route = Route.along(machine)
    values = contributions(count, shape)
    graph = all_reduce(route, places(machine), shape, E.BF16, pool, E.F32 if wide else None, axis)
    assert stuck(checked(graph, machine)) == []
    found = evaluate(graph, {"value": values}, BITS)["result"]
    assert len(found) == count
    expected = folded(values, pool, cut, route.closed, np.float32 if wide else BF16).astype(BF16)
    for piece in found:
        assert same_bits(piece, expected)
    exact = reduce(FOLDS[pool], [v.astype(np.float64) for v in values])
    spread = reduce(np.add, [np.abs(v.astype(np.float64)) for v in values]) if pool is Pool.SUM else np.abs(exact)
    # Every fold of two rounds once, to bf16 or (and once more at the end) to float32.
    rounding = 2.0**-8 * (1.01 if wide else count)
    assert (np.abs(expected.astype(np.float64) - exact) <= rounding * spread * 1.1).all()


@given(counts, st.booleans(), st.integers(1, 4), sizes, POOLS, st.integers(0, 1))
def test_reduce_scatter_leaves_slice_r_at_place_r(count, closed, each, other, pool, axis):
    machine = machines(count, closed)
    shape = (count * each, other) if axis == 0 else (other, count * each)
    route = Route.along(machine)
    values = contributions(count, shape)
    graph = reduce_scatter(route, places(machine), shape, E.BF16, pool, axis)
    assert stuck(checked(graph, machine)) == []
    found = evaluate(graph, {"value": values}, BITS)["result"]
    expected = folded(values, pool, axis, route.closed, BF16).astype(BF16)
    for piece, slice_ in zip(found, np.split(expected, count, axis), strict=True):
        assert same_bits(piece, slice_)


@given(counts, st.booleans(), st.integers(1, 4), sizes, st.integers(-2, 1), st.sampled_from([E.BF16, E.I32]))
def test_all_gather_puts_the_slices_together_to_the_bit(count, closed, each, other, axis, element):
    machine = machines(count, closed)
    shape = (count * each, other) if axis % 2 == 0 else (other, count * each)
    whole = brains(0, *shape) if element is E.BF16 else np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)
    graph = all_gather(Route.along(machine), places(machine), shape, element, axis)
    assert stuck(checked(graph, machine)) == []
    found = evaluate(graph, {"value": np.split(whole, count, axis)}, BITS)["result"]
    assert len(found) == count
    assert all((piece == whole).all() and piece.dtype == whole.dtype for piece in found)


def steps_between(graph):
    """How many hops a chunk's longest way has: stages that cross a link, along the graph's dependencies."""
    crossed = {}
    before = {}
    for a, b in dependencies(graph):
        before.setdefault(b, []).append(a)
    for number in stage_order(graph):
        stage = graph.stages[number]
        chips = {graph.buffers[b].site.chip for b in (*stage.ins, *stage.outs)}
        if isinstance(stage.kind, Store):
            chips.add(graph.tensors[stage.kind.tensor].chips[graph.rank_of(stage)])
        crossed[number] = max((crossed[b] for b in before.get(number, ())), default=0) + (len(chips) > 1)
    return max(crossed.values())


@pytest.mark.parametrize("count", [3, 4, 8])
def test_a_ring_moves_what_has_to_be_moved(count):
    machine = ring(count)
    route, shape = Route.along(machine), (count * 4, 16)
    chunk = 4 * 16 * 2
    forward = dict.fromkeys(pairwise([*range(count), 0]), chunk)
    for graph, times in (
        (reduce_scatter(route, places(machine), shape, E.BF16), count - 1),
        (all_gather(route, places(machine), shape, E.BF16), count - 1),
        (all_reduce(route, places(machine), shape, E.BF16, axis=0), 2 * (count - 1)),
    ):
        assert link_bytes(graph, machine) == {link: size * times for link, size in forward.items()}
        assert steps_between(graph) == times


@pytest.mark.parametrize("count", [2, 5])
def test_a_line_moves_what_has_to_be_moved(count):
    machine = line(count)
    route, shape = Route.along(machine), (count * 4, 16)
    chunk = 4 * 16 * 2
    hops = [*pairwise(range(count))]
    scatter = {(a, b): chunk * (count - b) for a, b in hops} | {(b, a): chunk * b for a, b in hops}
    gather = {(a, b): chunk * b for a, b in hops} | {(b, a): chunk * (count - b) for a, b in hops}
    assert link_bytes(reduce_scatter(route, places(machine), shape, E.BF16), machine) == scatter
    assert link_bytes(all_gather(route, places(machine), shape, E.BF16), machine) == gather
    graph = all_reduce(route, places(machine), shape, E.BF16, axis=0)
    assert link_bytes(graph, machine) == {link: scatter[link] + gather[link] for link in scatter}
    assert steps_between(graph) == 2 * (count - 1)


def test_partial_results_in_float32_are_twice_the_bytes():
    machine = ring(4)
    narrow, wide = (
        reduce_scatter(Route.along(machine), places(machine), (8, 8), E.BF16, carried=carried)
        for carried in (None, E.F32)
    )
    # The first hop carries the contribution as it is.
    assert sum(link_bytes(wide, machine).values()) == sum(link_bytes(narrow, machine).values()) * 5 / 3


@pytest.mark.parametrize("closed", [False, True])
def test_sixty_four_chips(closed):
    machine = line(64, 1, 1, closed)
    route = Route.along(machine)
    values = contributions(64, (64, 3))
    graph = reduce_scatter(route, places(machine), (64, 3), E.BF16)
    found = evaluate(checked(graph, machine), {"value": values}, BITS)["result"]
    assert same_bits(np.concatenate(found), folded(values, Pool.SUM, 0, closed, BF16).astype(BF16))
    assert steps_between(graph) == 63


@pytest.mark.long
@pytest.mark.parametrize("closed", [False, True])
def test_all_reduce_over_sixty_four_chips(closed):
    machine = line(64, 1, 1, closed)
    values = contributions(64, (130,))
    graph = all_reduce(Route.along(machine), places(machine), (130,), E.BF16)
    found = evaluate(checked(graph, machine), {"value": values}, BITS)["result"]
    expected = folded(values, Pool.SUM, 0, closed, BF16).astype(BF16)
    assert all(same_bits(piece, expected) for piece in found)


def test_large_values_go_block_by_block_and_sites_take_turns():
    machine = ring(3, 2, 1)
    shape = (3 * 5, 1000)
    graph = checked(all_reduce(Route.along(machine), places(machine), shape, E.BF16), machine)
    assert max(b.elements for b in graph.buffers) <= 2048
    assert {(b.site.x, b.site.y) for b in graph.buffers} == {(0, 0), (1, 0)}
    values = contributions(3, shape)
    found = evaluate(graph, {"value": values}, BITS)["result"]
    # The longest axis, 1000 columns, is cut: 334, 334 and 332.
    assert same_bits(found[2], folded(values, Pool.SUM, 1, True, BF16).astype(BF16))


def test_part_of_a_machine_and_another_order():
    machine = ring(6)
    assert Route.along(machine) == Route((0, 1, 2, 3, 4, 5), closed=True)
    route = Route.along(machine, [4, 3, 2])
    assert route == Route((4, 3, 2))
    values = contributions(3, (7,))
    graph = checked(all_reduce(route, places(machine), (7,), E.BF16), machine)
    assert graph.tensors[0].chips == (4, 3, 2)
    found = evaluate(graph, {"value": values}, BITS)["result"]
    assert same_bits(found[0], folded(values, Pool.SUM, 0, False, BF16).astype(BF16))
    assert Route.along(line(4)) == Route((0, 1, 2, 3))
    assert Route.along(one_chip(2, 2)) == Route((0,))
    assert Route.along(machine, closed=False).closed is False
    assert len(Route.along(load("grid-2x4x4"))) == 2


ROUTES = {
    "route over chips 0, 2 of line of 4: no link joins 0 and 2, and a collective moves one hop a step. The way between "
    "them is 0, 1, 2": (line(4), [0, 2], None),
    "route over chips 0, 1, 2, 3 of line of 4, closed: no link joins 3 and 0, and a collective moves one hop a step. "
    "The way between them is 3, 2, 1, 0": (line(4), None, True),
    "route over chips 0, 1, 0 of ring of 4: chip 0 comes twice": (ring(4), [0, 1, 0], None),
    "route over chips 0, 1 of ring of 4: a ring has three chips at least; closed=False makes it a line": (
        ring(4),
        [0, 1],
        True,
    ),
}


@pytest.mark.parametrize("message", ROUTES)
def test_routes_that_are_none(message):
    machine, chips, closed = ROUTES[message]
    with pytest.raises(PlacementError, match=f"^{re.escape(message)}$"):
        Route.along(machine, chips, closed)


def test_a_square_of_chips_is_no_line_of_four():
    four = ring(4)
    meshes = tuple(
        msgspec.structs.replace(mesh, at=at)
        for mesh, at in zip(four.meshes, ((0, 0), (1, 0), (1, 1), (0, 1)), strict=True)
    )
    square = msgspec.structs.replace(four, name="square", topology="grid2d", meshes=meshes)
    # Row by row, 0 1 and 3 2: from 1 to 3 it is two links.
    with pytest.raises(PlacementError, match="no link joins 1 and 3, and a collective moves one hop a step"):
        Route.along(square, [0, 1, 3, 2])
    assert Route.along(square, [0, 1, 2, 3], closed=True).closed


def test_a_link_that_writes_do_not_cross():
    machine = msgspec.structs.replace(line(2), crosses=("doorbell",))
    with pytest.raises(PlacementError, match="writes don't cross its links, and a collective writes to the next chip"):
        Route.along(machine)
    with pytest.raises(MachineError, match="has no mesh 7"):
        Route.along(machine, [7])


def test_what_can_not_be_cut():
    route, there = Route.along(line(3)), places(line(3))
    with pytest.raises(SplitError, match="Pad axis 0 to 9 first"):
        reduce_scatter(route, there, (7, 4), E.BF16)
    with pytest.raises(SplitError, match="Pad axis 1 to 6 first"):
        all_gather(route, there, (9, 4), E.BF16, axis=1)
    with pytest.raises(KernelError, match=re.escape("all_reduce of bf16[3, 4] along axis 2: it has 2 axes")):
        all_reduce(route, there, (3, 4), E.BF16, axis=2)
    with pytest.raises(KernelError, match=re.escape("all_gather of bf16[]: it has no axes; nothing can be cut")):
        all_gather(route, there, (), E.BF16)
    with pytest.raises(
        KernelError, match=re.escape("all_reduce of bf16[3, 0]: it has no elements; nothing can be cut")
    ):
        all_reduce(route, there, (3, 0), E.BF16)
    message = (
        "all_reduce: argmax folds pairs of a value and its position, and a chunk is one value. Pools of one value are "
        "sum, max, min, prod"
    )
    with pytest.raises(KernelError, match=f"^{re.escape(message)}$"):
        all_reduce(route, there, (3, 4), E.BF16, Pool.ARGMAX)
