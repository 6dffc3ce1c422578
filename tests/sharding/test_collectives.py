"""Collectives: the right elements on every rank, only over links between neighbours, and as many bytes as stated."""

import numpy as np
import pytest

from meshwright.errors import SplitError
from meshwright.ir.pool import Pool
from meshwright.ir.spec import COPIED, Spec
from meshwright.sharding.steps import Copy
from sharding.samples import (
    CARD,
    POOLS,
    RUNS,
    labelled,
    partial,
    pieces,
    real_group,
    run_and_compare_bytes,
    shuffled,
    uneven,
)

runs = pytest.mark.parametrize("meshes", RUNS, ids=lambda run: "-".join(map(str, run)))
pools = pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool.value)
SHAPE = (12, 24)
"""Divides by 1 to 4 along both axes."""


def vector_meshes(meshes):
    return any(CARD.has(mesh, "VC") for mesh in meshes)


# Alone, mesh 1 has no vector core to fold on; one rank has nothing to fold.
foldable = [run for run in RUNS if vector_meshes(run) or len(run) == 1]
foldable_runs = pytest.mark.parametrize("meshes", foldable, ids=lambda run: "-".join(map(str, run)))


def folded(parts, pool):
    return POOLS[pool](np.stack(parts), axis=0)


def factors(parts, pool):
    """Products of many scaled numbers would not be exact; small ones are."""
    return [np.sign(p) * (1 + np.abs(p) % 3) for p in parts] if pool is Pool.PROD else parts


@pools
@foldable_runs
def test_all_reduce(meshes, pool):
    group = real_group(meshes)
    parts = factors(uneven(SHAPE, len(meshes)), pool)
    value = run_and_compare_bytes(group, group.plan_all_reduce(partial(group, parts, pool)))
    assert value.specs == (COPIED,) and value.meshes == meshes
    for piece in pieces(value):
        assert np.array_equal(piece, folded(parts, pool))


@pools
@foldable_runs
def test_reduce_onto_every_rank(meshes, pool):
    for root in range(len(meshes)):
        group = real_group(meshes)
        parts = factors(uneven(SHAPE, len(meshes), seed=root), pool)
        value = run_and_compare_bytes(group, group.plan_to_one(partial(group, parts, pool), root))
        assert value.meshes == (meshes[root],)
        assert np.array_equal(value.numpy(), folded(parts, pool))


def test_a_reduce_converges_from_both_ends():
    group = real_group()
    value = partial(group, uneven((16, 16), 4), Pool.SUM)
    plan = group.plan_to_one(value, root=2)
    one = 16 * 16 * 2
    # From 0: its piece, then (mesh 1 can't fold) two pieces; from 2 at the other end: one piece.
    assert plan.link_bytes() == {(0, 1): one, (1, 3): 2 * one, (2, 3): one}


@pools
@pytest.mark.parametrize("axis", [0, 1, -1])
@foldable_runs
def test_reduce_scatter(meshes, axis, pool):
    group = real_group(meshes)
    parts = factors(uneven(SHAPE, len(meshes)), pool)
    value = run_and_compare_bytes(group, group.plan_reduce_scatter(partial(group, parts, pool), axis))
    assert value.specs == (Spec.on(axis, 2),)
    for piece, expected in zip(pieces(value), np.split(folded(parts, pool), len(meshes), axis), strict=True):
        assert np.array_equal(piece, expected)
    assert np.array_equal(value.numpy(), folded(parts, pool))


@pytest.mark.parametrize("axis", [0, 1])
@runs
def test_all_gather(meshes, axis):
    group = real_group(meshes)
    whole = labelled(SHAPE, len(meshes), axis) % 2048
    value = run_and_compare_bytes(group, group.plan_all_gather(group.split(whole, axis)))
    assert value.specs == (COPIED,)
    for piece in pieces(value):
        assert np.array_equal(piece, whole)


@runs
def test_broadcast_from_every_rank(meshes):
    for root in range(len(meshes)):
        group = real_group(meshes)
        source = group.on_rank(group.copy(labelled(SHAPE, 1, 0)), root)
        value = run_and_compare_bytes(group, group.plan_broadcast(source))
        assert value.specs == (COPIED,) and value.meshes == meshes
        for piece in pieces(value):
            assert np.array_equal(piece, source.numpy())
        links = sum(value.ranks.grid) - 1
        assert sum(group.plan_broadcast(source).link_bytes().values()) == links * 12 * 24 * 2


@pytest.mark.parametrize("by", [-1, 0, 1, 2, 5])
@runs
def test_shift(meshes, by):
    group = real_group(meshes)
    whole = labelled(SHAPE, len(meshes), 0) % 2048
    source = group.split(whole, 0)
    value = run_and_compare_bytes(group, group.plan_shift(source, by))
    assert value.specs == source.specs
    for rank, piece in enumerate(pieces(value)):
        assert np.array_equal(piece, pieces(source)[(rank - by) % len(meshes)])


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0), (0, -1)])
@runs
def test_all_to_all(meshes, before, after):
    group = real_group(meshes)
    whole = labelled(SHAPE, len(meshes), before) % 2048
    value = run_and_compare_bytes(group, group.plan_all_to_all(group.split(whole, before), after))
    assert value.specs == (Spec.on(after, 2),)
    for piece, expected in zip(pieces(value), np.split(whole, len(meshes), after), strict=True):
        assert np.array_equal(piece, expected)


SPECS = [COPIED, Spec.on(0), Spec.on(1)]


@pytest.mark.parametrize("to", SPECS, ids=str)
@pytest.mark.parametrize("start", [*SPECS, Spec(partial=Pool.SUM), Spec(partial=Pool.MIN)], ids=str)
@pytest.mark.parametrize("meshes", [(0, 1, 3, 2), (3, 2), (0,)], ids=lambda run: "-".join(map(str, run)))
def test_reshard_from_any_spec_to_any_other(meshes, start, to):
    group = real_group(meshes)
    if start.partial is not None:
        parts = uneven(SHAPE, len(meshes))
        whole, value = folded(parts, start.partial), partial(group, parts, start.partial)
    else:
        whole = labelled(SHAPE, len(meshes), start.axis or 0) % 2048
        value = group.put(whole, start)
    if start == to:
        with pytest.raises(SplitError, match="already; use it as it is"):
            group.plan_reshard(value, to)
        return
    result = run_and_compare_bytes(group, group.plan_reshard(value, to))
    assert result.specs == (to,)
    assert np.array_equal(result.numpy(), whole)
    for piece, place in zip(pieces(result), result.places(), strict=True):
        assert np.array_equal(piece, whole[place])


def test_a_slice_moves_nothing():
    group = real_group()
    assert group.plan_reshard(group.copy(np.ones(SHAPE)), Spec.on(1)).link_bytes() == {}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("call", ["all_reduce", "reduce", "scatter", "gather", "all_to_all", "shift"])
def test_steps_listed_in_any_order_give_the_same_bits(call, seed):
    group = real_group()
    contributions, split = partial(group, uneven(SHAPE, 4), Pool.SUM), group.split(labelled(SHAPE, 4, 0) % 999, 0)
    plan = {
        "all_reduce": lambda: group.plan_all_reduce(contributions),
        "reduce": lambda: group.plan_to_one(contributions, 1),
        "scatter": lambda: group.plan_reduce_scatter(contributions, 1),
        "gather": lambda: group.plan_all_gather(split),
        "all_to_all": lambda: group.plan_all_to_all(split, 1),
        "shift": lambda: group.plan_shift(split, 1),
    }[call]()
    again = shuffled(plan, seed)
    assert again.steps != plan.steps
    for a, b in zip(pieces(group.run(plan)), pieces(group.run(again)), strict=True):
        assert np.array_equal(a, b)


def test_folds_run_where_vector_cores_are():
    """Mesh 1 passes on what arrives together with its own."""
    group = real_group()
    for plan in (
        group.plan_all_reduce(partial(group, uneven(SHAPE, 4), Pool.SUM)),
        group.plan_to_one(partial(group, uneven(SHAPE, 4), Pool.SUM), root=1),
    ):
        folds = [step for step in plan.steps if not isinstance(step.kernel, Copy)]
        assert folds and all(CARD.has(step.node, "VC") for step in folds)


@pytest.mark.parametrize("pool", [Pool.SUM, Pool.MAX])
def test_the_machine_folds_what_its_lane_folds(pool):
    """On the card's own arithmetic: the fold of small whole numbers in f16 is exact as well."""
    from meshwright.sharding import MeshGroup

    group = MeshGroup.open(CARD)
    parts = [np.full((4, 8), float(v)) for v in (1, 16, 256, 1024)]
    tensors = [
        d.put(p.astype(np.float16), group.copy(p).format) for d, p in zip(group.devices.values(), parts, strict=True)
    ]
    value = group.all_reduce(group.assemble(tensors, Spec(partial=pool)))
    assert np.array_equal(np.asarray(value), folded(parts, pool).astype(np.float16))


@pytest.mark.parametrize("shape", [(0, 8), (8, 0)])
def test_values_without_elements_go_through_every_collective(shape):
    group = real_group()
    axis = shape.index(0)
    split = group.split(np.zeros(shape), axis)
    contributions = partial(group, [np.zeros(shape)] * 4, Pool.SUM)
    for plan in (
        group.plan_all_gather(split),
        group.plan_shift(split, 1),
        group.plan_all_to_all(split, 1 - axis),
        group.plan_all_reduce(contributions),
        group.plan_to_one(contributions),
        group.plan_reduce_scatter(contributions, 1 - axis),
        group.plan_reshard(group.copy(np.zeros(shape)), Spec.on(axis)),
        group.plan_reshape(group.copy(np.zeros(shape)), (4, 0)),
    ):
        assert plan.link_bytes() == {}
        assert group.run(plan).numpy().size == 0
    assert group.stats().graphs_run == 0


def test_values_without_axes():
    group = real_group()
    assert np.array_equal(group.copy(3.0).numpy(), 3.0)
    contributions = partial(group, [np.asarray(v) for v in (1.0, 16.0, 256.0, 4096.0)], Pool.SUM)
    assert float(group.all_reduce(contributions)) == 4369.0
    assert float(group.reduce(contributions, 3)) == 4369.0
    assert float(group.each(lambda x: x * 2.0, group.copy(3.0))) == 6.0
