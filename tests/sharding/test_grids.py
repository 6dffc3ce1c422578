"""Ranks as a grid: a spec for each axis, and every operation along either."""

import numpy as np
import pytest

from meshwright.errors import PlacementError, SplitError
from meshwright.ir.pool import Pool
from meshwright.ir.spec import COPIED, PARTIAL, Spec
from sharding.samples import (
    GRID,
    POOLS,
    assembled,
    labelled,
    pieces,
    real_grid,
    run_and_compare_bytes,
    scaled,
    shuffled,
    uneven,
)

S0, S1 = Spec.on(0), Spec.on(1)
SHAPE = (48, 24)
grids = pytest.mark.parametrize("rows_columns", [(2, 4), (2, 2), (1, 4), (2, 1), (1, 1), (2, 3)], ids=str)
alongs = pytest.mark.parametrize("along", [0, 1])


def value_of(seed=0):
    return np.random.default_rng(seed).integers(-99, 99, SHAPE).astype(np.float64)


@grids
@pytest.mark.parametrize("specs", [(a, b) for a in (COPIED, S0, S1) for b in (COPIED, S0, S1)], ids=str)
def test_what_is_put_comes_back_and_every_rank_has_its_own(rows_columns, specs):
    group = real_grid(*rows_columns)
    value = value_of()
    held = group.put(value, specs)
    assert held.specs == specs and np.array_equal(held.numpy(), value)
    for piece, place in zip(pieces(held), held.places(), strict=True):
        assert np.array_equal(piece, value[place])


def test_nested_splits_of_one_axis_cut_the_outer_grid_axis_first():
    group = real_grid(2, 4)
    held = group.put(np.arange(16.0), (S0, S0))
    assert [piece.tolist() for piece in pieces(held)] == [[2.0 * r, 2.0 * r + 1] for r in range(8)]
    assert held.local == (2,)
    # The inner cuts are brought together first; then the outer ones can be.
    rows = group.reshard(held, COPIED, along=1)
    assert rows.specs == (S0, COPIED) and np.array_equal(rows.numpy(), np.arange(16.0))
    whole = group.reshard(rows, COPIED, along=0)
    assert whole.specs == (COPIED, COPIED) and np.array_equal(whole.numpy(), np.arange(16.0))


@pytest.mark.parametrize("to", [COPIED, S0, S1], ids=str)
@pytest.mark.parametrize("other", [COPIED, S0, S1], ids=str)
@pytest.mark.parametrize("start", [COPIED, S0, S1], ids=str)
@alongs
@pytest.mark.parametrize("rows_columns", [(2, 4), (2, 2)], ids=str)
def test_reshard_along_one_axis_leaves_the_other_alone(rows_columns, along, start, other, to):
    group = real_grid(*rows_columns)
    specs = (start, other) if along == 0 else (other, start)
    value = value_of(1)
    held = group.put(value, specs)
    nested = along == 0 and other.axis is not None and other.axis in (start.axis, to.axis)
    if start == to or nested:
        with pytest.raises(SplitError):
            group.plan_reshard(held, to, along)
        return
    result = run_and_compare_bytes(group, group.plan_reshard(held, to, along))
    assert result.specs == ((to, other) if along == 0 else (other, to))
    assert np.array_equal(result.numpy(), value)
    for piece, place in zip(pieces(result), result.places(), strict=True):
        assert np.array_equal(piece, value[place])


def contributions(rows, columns, along, pool, shape=SHAPE):
    """One contribution a rank along one axis of the grid, the same along the other; and their fold."""
    count = (rows, columns)[along]
    parts = uneven(shape, count)
    if pool is Pool.PROD:
        parts = [np.sign(p) * (1 + np.abs(p) % 3) for p in parts]
    ranks = [parts[r] if along == 0 else parts[c] for r in range(rows) for c in range(columns)]
    return ranks, POOLS[pool](np.stack(parts), axis=0)


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool.value)
@alongs
@grids
def test_folds_along_one_axis(rows_columns, along, pool):
    group = real_grid(*rows_columns)
    parts, whole = contributions(*rows_columns, along, pool)
    specs = (Spec(partial=pool), COPIED) if along == 0 else (COPIED, Spec(partial=pool))
    value = assembled(group, parts, specs)
    everywhere = run_and_compare_bytes(group, group.plan_all_reduce(value, along))
    assert everywhere.specs == (COPIED, COPIED)
    assert all(np.array_equal(piece, whole) for piece in pieces(everywhere))
    scattered = run_and_compare_bytes(group, group.plan_reduce_scatter(value, 1, along))
    assert scattered.specs == ((S1, COPIED) if along == 0 else (COPIED, S1))
    assert np.array_equal(scattered.numpy(), whole)
    root = rows_columns[along] - 1
    one = run_and_compare_bytes(group, group.plan_to_one(value, root, along))
    assert np.array_equal(one.numpy(), whole)
    assert one.ranks.grid == (rows_columns[1 - along],)
    back = run_and_compare_bytes(group, group.plan_broadcast(one))
    assert back.specs == (COPIED, COPIED) and back.meshes == group.meshes
    assert all(np.array_equal(piece, whole) for piece in pieces(back))


def test_a_value_that_is_partial_along_both_axes():
    group = real_grid(2, 4)
    parts = uneven((4, 4), 8)
    value = assembled(group, parts, (PARTIAL, PARTIAL))
    rows = group.all_reduce(value, along=1)
    assert rows.specs == (PARTIAL, COPIED)
    assert np.array_equal(group.all_reduce(rows, along=0).numpy(), sum(parts))
    corner = group.reduce(group.reduce(value, 3, along=1), 1)
    assert corner.meshes == (7,) and np.array_equal(corner.numpy(), sum(parts))
    spread = run_and_compare_bytes(group, group.plan_broadcast(corner))
    assert all(np.array_equal(piece, sum(parts)) for piece in pieces(spread))
    # Partial along one axis, on one row: copied to the other rows it stays so.
    row = group.reduce(value, 0, along=0)
    again = group.broadcast(row)
    assert again.specs == (COPIED, PARTIAL)
    assert np.array_equal(group.all_reduce(again, along=1).numpy(), sum(parts))


@alongs
def test_shift_and_all_to_all_along_an_axis(along):
    group = real_grid(2, 4)
    count = (2, 4)[along]
    whole = labelled(SHAPE, count, 0) % 2048
    held = group.split(whole, 0, along=along)
    shifted = run_and_compare_bytes(group, group.plan_shift(held, 1, along))
    for rank, piece in enumerate(pieces(shifted)):
        row, column = divmod(rank, 4)
        source = (row - 1) % 2 * 4 + column if along == 0 else row * 4 + (column - 1) % 4
        assert np.array_equal(piece, pieces(held)[source])
    turned = run_and_compare_bytes(group, group.plan_all_to_all(held, 1, along))
    assert np.array_equal(turned.numpy(), whole)


PRODUCTS = {
    "rows by columns": ((S0, COPIED), (COPIED, S0), (S0, S1)),
    "rows, contraction": ((S0, S1), (COPIED, S1), (S0, PARTIAL)),
    "contraction, columns": ((S1, COPIED), (S1, S0), (PARTIAL, S1)),
    "contraction twice": ((S1, S1), (S1, S1), (PARTIAL, PARTIAL)),
    "rows twice": ((S0, S0), (COPIED, COPIED), (S0, S0)),
    "copied": ((COPIED, COPIED), (COPIED, COPIED), (COPIED, COPIED)),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("rows_columns", [(2, 4), (2, 2)], ids=str)
def test_pairings_are_judged_axis_by_axis(rows_columns, name):
    group = real_grid(*rows_columns)
    specs_a, specs_b, expected = PRODUCTS[name]
    rng = np.random.default_rng(3)
    a, b = rng.integers(-4, 5, (16, 32)).astype(float), rng.integers(-4, 5, (8, 32)).astype(float)
    plan = group.plan_matmul(group.put(a, specs_a), group.put(b, specs_b))
    assert plan.specs == expected and plan.link_bytes() == {}
    value = group.run(plan)
    for along, spec in enumerate(expected):
        if spec.partial is not None:
            value = group.all_reduce(value, along)
    assert np.array_equal(value.numpy(), a @ b.T)


@alongs
def test_chains_along_an_axis(along):
    group = real_grid(2, 4)
    rng = np.random.default_rng(4)
    a, b = rng.integers(-4, 5, (16, 256)).astype(float), rng.integers(-4, 5, (32, 256)).astype(float)
    specs_a = (S1, S0) if along == 0 else (S0, S1)
    specs_b = (S1, COPIED) if along == 0 else (COPIED, S1)
    plan = group.plan_chain_reduce(group.put(a, specs_a), group.put(b, specs_b), along=along)
    value = run_and_compare_bytes(group, plan)
    assert value.specs == (S0,) and value.ranks.grid == ((2, 4)[1 - along],)
    assert value.meshes == ((4, 5, 6, 7) if along == 0 else (3, 7))
    assert np.array_equal(value.numpy(), a @ b.T)
    again = group.run(shuffled(plan, 1))
    assert np.array_equal(again.numpy(), value.numpy())


def test_every_rank_of_the_other_axis_is_worked_on_alone():
    """A kernel over values split along both axes, one of them on a mesh without a vector core."""
    group = real_grid(2, 4)
    value = value_of(5) * np.repeat([scaled(0), scaled(1)], 24)[:, None]
    result = group.each(lambda x: x * 2.0 + 1.0, group.put(value, (S0, S1)))
    assert result.specs == (S0, S1) and np.array_equal(result.numpy(), value * 2 + 1)


def test_the_meshes_of_a_grid_are_those_that_lie_there():
    assert real_grid(2, 2).meshes == (0, 1, 4, 5)
    assert real_grid(2, 2, meshes=(2, 3, 6, 7)).meshes == (2, 3, 6, 7)
    with pytest.raises(SplitError, match="a grid of 3 x 2 ranks takes 6 meshes, row by row, and there are 4"):
        real_grid(3, 2)


def test_a_line_that_is_no_line_of_neighbours_is_refused():
    group = real_grid(2, 2, meshes=(0, 2, 4, 6))
    value = group.split(np.ones((4, 4)), 0, along=1)
    with pytest.raises(PlacementError, match="0 and 2 follow each other and are 2 links apart"):
        group.all_gather(value, along=1)
    assert np.array_equal(group.all_gather(group.split(np.ones((4, 4)), 0, along=0), along=0).numpy(), np.ones((4, 4)))


def test_ways_lead_through_the_group_only():
    group = real_grid(1, 2, meshes=(5, 6))
    assert GRID.neighbours(5) == (1, 4, 6)
    value = group.each(lambda x: x + 1.0, group.split(np.zeros((4, 4)), 0, along=1))
    assert np.array_equal(value.numpy(), np.ones((4, 4)))
