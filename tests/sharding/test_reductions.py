"""Sums inside accumulators: the bits of the RTL vectors, and plans that only dependencies order."""

from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from meshwright.errors import PlacementError, PlanError, SplitError
from meshwright.numerics import fp22, product
from meshwright.sharding import MeshGroup
from meshwright.sharding.steps import AddTiles, DrainTiles, OpenTiles
from sharding.samples import CARD, CHAIN, RUNS, STAR, real_group, run_and_compare_bytes, shuffled, without

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "crossmesh.npz")
CASES = [name.removesuffix("_ranks") for name in GOLDEN.files if name.endswith("_ranks")]


def bits(value):
    return np.asarray(value).view(np.uint16)


def operands(group, case):
    return [group.split(GOLDEN[f"{case}_{side}"].view(np.float16), axis=1) for side in "ab"]


@pytest.mark.parametrize("case", CASES)
def test_chains_give_the_bits_of_the_rtl(case):
    ranks = int(GOLDEN[f"{case}_ranks"])
    for meshes in [run for run in RUNS if len(run) == ranks]:
        group = MeshGroup.open(CARD, meshes)
        plan = group.plan_chain_reduce(*operands(group, case))
        for tried in (plan, shuffled(plan, 0), shuffled(plan, 1)):
            value = run_and_compare_bytes(group, tried)
            assert value.meshes == meshes[-1:]
            assert np.array_equal(bits(value), GOLDEN[f"{case}_chain_fp16"])


# On the card a mesh has two neighbours at most; four ranks need one that has three.
STARS = {2: [(CARD, (0, 1)), (CARD, (2, 3)), (STAR, (0, 3))], 4: [(STAR, (0, 1, 2, 3)), (STAR, (2, 0, 1, 3))]}


@pytest.mark.parametrize("case", CASES)
def test_stars_give_the_bits_of_the_rtl(case):
    """The last rank's tile receives rank 0, 1, ... in order."""
    ranks = int(GOLDEN[f"{case}_ranks"])
    for machine, meshes in STARS[ranks]:
        group = MeshGroup.open(machine, meshes)
        plan = group.plan_reduce(*operands(group, case), root=ranks - 1)
        for tried in (plan, shuffled(plan, 0), shuffled(plan, 1)):
            value = run_and_compare_bytes(group, tried)
            assert value.meshes == meshes[-1:]
            assert np.array_equal(bits(value), GOLDEN[f"{case}_star_fp16"])


def test_the_two_ways_differ_where_four_ranks_are_summed():
    case = next(case for case in CASES if GOLDEN[f"{case}_ranks"] == 4)
    assert not np.array_equal(GOLDEN[f"{case}_star_fp16"], GOLDEN[f"{case}_chain_fp16"])


@pytest.mark.parametrize("case", CASES)
def test_one_mesh_gives_the_bits_of_the_rtl(case):
    group = MeshGroup.open(CARD, 1)
    a, b = (group.copy(GOLDEN[f"{case}_{side}"].view(np.float16)) for side in "ab")
    assert np.array_equal(bits(group.matmul(a, b)), GOLDEN[f"{case}_onemesh_fp16"])


@pytest.mark.parametrize("tile", [None, (16, 16, 128), (8, 16, 64), (16, 4, 32)])
def test_bits_do_not_depend_on_the_tile(tile):
    case = CASES[-1]
    group = MeshGroup.open(CARD)
    plan = group.plan_chain_reduce(*operands(group, case), tile=tile)
    assert plan.tile is not None and (tile is None or plan.tile == tile)
    assert len(plan.opens) == 4
    assert np.array_equal(bits(group.run(plan)), GOLDEN[f"{case}_chain_fp16"])


@pytest.mark.parametrize("root", range(3))
def test_a_star_on_every_root_in_the_order_of_ranks(root):
    """In the accumulator's own adder, for shapes that take several tiles."""
    group = MeshGroup.open(STAR, (0, 3, 2))
    rng = np.random.default_rng(root)
    a, b = (rng.standard_normal((n, 192)).astype(np.float16) for n in (72, 136))
    values = group.split(a, 1), group.split(b, 1)
    if root != 1:
        with pytest.raises(PlacementError):
            group.matmul_reduce(*values, root=root)
        return
    slices = zip(np.split(a, 3, axis=1), np.split(b, 3, axis=1), strict=True)
    first, tile, last = (product.matmul(x, y) for x, y in slices)
    expected = fp22.drain(fp22.add(fp22.add(tile, first), last))
    assert np.array_equal(bits(group.matmul_reduce(*values, root=root)), expected.view(np.uint16))
    assert np.array_equal(bits(group.matmul_reduce(*values)), expected.view(np.uint16))


def test_what_crosses_the_links_of_a_chain():
    group = MeshGroup.open(CARD)
    values = [group.split(np.ones((64, 512)), 1), group.split(np.ones((128, 512)), 1)]
    plan = group.plan_chain_reduce(*values)
    # Two granules of 32 bytes for 16 sums.
    assert plan.link_bytes() == dict.fromkeys(pairwise(CHAIN), 64 * 128 // 16 * 64)
    assert "over links: 0 to 1 32,768 bytes, 1 to 3 32,768 bytes, 3 to 2 32,768 bytes" in str(plan)


def test_planning_runs_nothing():
    group = real_group()
    value, weights = np.arange(64.0 * 32).reshape(32, 64), np.arange(64.0 * 16).reshape(16, 64)
    a, b = group.split(value, 1), group.split(weights, 1)
    before = group.stats()
    group.plan_matmul(a, b)
    group.plan_each(lambda x: x * 2.0, a)
    group.plan_chain_reduce(a, b)
    group.plan_reshard(a, a.spec.on(0))
    group.plan_all_gather(a)
    group.plan_shift(a, 1)
    two = real_group(2)
    quiet = two.stats()
    plan = two.plan_reduce(two.split(value, 1), two.split(weights, 1))
    print(plan)
    assert two.stats().graphs_run == quiet.graphs_run == 0 and two.stats().crossed == {}
    assert group.stats() == before
    assert before.graphs_run == 0 and before.crossed == {} and all(d.runs == 0 for d in before.devices.values())
    two.run(plan)
    assert two.stats().graphs_run == 1 and all(d.runs == 1 for d in two.stats().devices.values())


# Plans that are wrong, whatever the order of their steps.


def chain(ranks=4):
    group = MeshGroup.open(CARD, ranks)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((16, 64 * ranks)).astype(np.float16) for _ in range(2))
    return group, group.plan_chain_reduce(group.split(a, 1), group.split(b, 1))


def changed(plan, where, **fields):
    """The plan with the steps for which `where(step)` holds changed."""
    steps = tuple(msgspec.structs.replace(s, **fields) if where(s) else s for s in plan.steps)
    return msgspec.structs.replace(plan, steps=steps)


def refused(group, plan, message, error=PlanError):
    for tried in (plan, shuffled(plan, 0), shuffled(plan, 1)):
        runs = group.stats().graphs_run
        with pytest.raises(error, match=message):
            group.run(tried)
        with pytest.raises(error, match=message):
            str(tried)
        assert group.stats().graphs_run == runs


@pytest.mark.parametrize("rank", range(1, 4))
def test_an_addition_into_tiles_that_nothing_opened(rank):
    group, plan = chain()
    opened = next(i for i, s in enumerate(plan.steps) if isinstance(s.kernel, OpenTiles) and s.rank == rank)
    refused(group, without(plan, opened), "that nothing opened; they hold what was last there")


def test_an_addition_that_may_come_before_its_opening():
    group, plan = chain()
    refused(group, changed(plan, lambda s: isinstance(s.kernel, AddTiles), after=()), "reads sum on mesh")
    one_source = changed(
        plan,
        lambda s: isinstance(s.kernel, AddTiles) and s.rank == 1,
        after=tuple(i for i, s in enumerate(plan.steps) if isinstance(s.kernel, OpenTiles) and s.rank == 0),
    )
    refused(group, one_source, "that may not have been opened yet")


def test_a_drain_that_may_come_too_early():
    group, plan = chain()
    refused(group, changed(plan, lambda s: isinstance(s.kernel, DrainTiles), after=()), "comes first: add")


@pytest.mark.parametrize("rank", range(3))
def test_a_summand_that_is_missing_is_named(rank):
    """The sum of ranks 0 to `rank` isn't passed on."""
    group, plan = chain()
    gone = next(i for i, s in enumerate(plan.steps) if isinstance(s.kernel, AddTiles) and s.args[0].rank == rank)
    refused(group, without(plan, gone), rf"the contribution of rank 0 \(mesh {CHAIN[0]}\) is missing from it")


def test_a_summand_that_is_in_it_twice_is_named():
    group, plan = chain(2)
    addition = next(i for i, s in enumerate(plan.steps) if isinstance(s.kernel, AddTiles))
    twice = msgspec.structs.replace(plan.steps[addition], after=(*plan.steps[addition].after, addition))
    drain = next(i for i, s in enumerate(plan.steps) if isinstance(s.kernel, DrainTiles))
    steps = [*plan.steps, twice]
    steps[drain] = msgspec.structs.replace(steps[drain], after=(*steps[drain].after, len(steps) - 1))
    refused(group, msgspec.structs.replace(plan, steps=tuple(steps)), r"of rank 0 \(mesh 0\) is in it 2 times")


def test_two_additions_in_no_stated_order():
    group = MeshGroup.open(STAR)
    a = group.split(np.ones((16, 128)), 1)
    plan = group.plan_reduce(a, group.split(np.ones((16, 128)), 1))
    opened = {s.result.rank: i for i, s in enumerate(plan.steps) if isinstance(s.kernel, OpenTiles)}
    loose = tuple(
        msgspec.structs.replace(s, after=(opened[s.args[0].rank], opened[3])) if isinstance(s.kernel, AddTiles) else s
        for s in plan.steps
    )
    refused(group, msgspec.structs.replace(plan, steps=loose), "the bits of a sum depend on it")


def test_tiles_opened_a_second_time():
    group, plan = chain(2)
    addition = next(i for i, s in enumerate(plan.steps) if isinstance(s.kernel, AddTiles))
    again = next(s for s in plan.steps if isinstance(s.kernel, OpenTiles) and s.rank == 1)
    again = msgspec.structs.replace(again, after=(addition,))
    drain = next(i for i, s in enumerate(plan.steps) if isinstance(s.kernel, DrainTiles))
    steps = [*plan.steps, again]
    steps[drain] = msgspec.structs.replace(steps[drain], after=(*steps[drain].after, len(steps) - 1))
    refused(group, msgspec.structs.replace(plan, steps=tuple(steps)), "would be lost. Open tiles once")


def test_tiles_added_over_more_than_one_link():
    group, plan = chain()
    jumps = changed(
        plan,
        lambda s: isinstance(s.kernel, AddTiles) and s.rank == 3,
        args=(msgspec.structs.replace(plan.steps[0].result, rank=0),),
    )
    refused(group, jumps, "3 links away; a reduction moves between neighbours only", PlacementError)


def test_steps_that_wait_for_each_other():
    group, plan = chain(2)
    circle = changed(plan, lambda s: isinstance(s.kernel, OpenTiles), after=(len(plan.steps) - 1,))
    refused(group, circle, "wait for each other in a circle")


def test_a_step_after_one_that_is_not_there():
    group, plan = chain(2)
    late = changed(plan, lambda s: isinstance(s.kernel, DrainTiles), after=(0, 1, 2, 17))
    with pytest.raises(PlanError, match="comes after step 17, and there are 4 steps; name one of 0 to 3"):
        group.run(late)


def test_a_copy_over_more_than_one_link_and_one_that_reads_across():
    group = real_group()
    plan = group.plan_all_gather(group.split(np.ones((4, 8)), 0))
    first = next(s for s in plan.steps if plan.mesh_of(s.result) == 1 and s.node == 0)
    placed = next(s for s in plan.steps if s.node == 0 and s.result.slot == plan.into)
    far = changed(plan, lambda s: s is placed, result=msgspec.structs.replace(placed.result, rank=3))
    refused(group, far, "3 links away; a step writes to its own mesh or a neighbour", PlacementError)
    across = changed(plan, lambda s: s is first, node=1)
    refused(group, across, "doesn't read from them, so it runs on mesh 0", PlacementError)


def test_a_stated_tile_keeps_sums_resident_and_more_instances_are_refused():
    group = MeshGroup.open(CARD, 2)
    rng = np.random.default_rng(0)

    def made(m, n, tile):
        a, b = (rng.standard_normal((rows, 128)).astype(np.float16) for rows in (m, n))
        return group.plan_chain_reduce(group.split(a, 1), group.split(b, 1), tile=tile), a, b

    def expected(a, b):
        first, second = (product.matmul(x, y) for x, y in zip(np.split(a, 2, 1), np.split(b, 2, 1), strict=True))
        return fp22.drain(fp22.add(second, first)).view(np.uint16)

    plan, a, b = made(64, 128, (32, 64, 64))
    assert np.array_equal(bits(group.run(plan)), expected(a, b))
    with pytest.raises(SplitError, match="takes 8 instances of the stated tile 16 x 64, and 6 clusters keep one each"):
        made(64, 128, (16, 64, 64))
    # Without a stated tile instances follow each other through the accumulators.
    plan, a, b = made(640, 1280, None)
    assert np.array_equal(bits(group.run(plan)), expected(a, b))
