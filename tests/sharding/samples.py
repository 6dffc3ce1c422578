"""What the tests of sharding share: groups, contributions that show where they went, and the truth about them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from meshwright.evaluate.real import RealArithmetic
from meshwright.ir.formats import ElementType
from meshwright.ir.pool import Pool
from meshwright.ir.spec import Spec
from meshwright.machine import load
from meshwright.sharding import MeshGroup
from meshwright.sharding.steps import Copy

HERE = Path(__file__).parent
CARD = load("ktpu-v13p")
GRID = load(HERE / "machines" / "grid-2x4.toml")
STAR = load(HERE / "machines" / "star.toml")
CHAIN = CARD.mesh_ids
# Every run of neighbours on the card, both ways: 1 to 4 ranks, starting and ending anywhere.
RUNS = [CHAIN[i:j] for i in range(4) for j in range(i + 1, 5)]
RUNS += [tuple(reversed(run)) for run in RUNS if len(run) > 1]
POOLS = {Pool.SUM: np.sum, Pool.MAX: np.max, Pool.MIN: np.min, Pool.PROD: np.prod}


def real_group(meshes=None, machine=CARD):
    """A group that computes in float64, so that results are compared exactly wherever they are whole numbers."""
    return MeshGroup.open(machine, meshes, RealArithmetic())


def real_grid(rows, columns, machine=GRID, meshes=None):
    return MeshGroup.grid(machine, rows, columns, meshes, RealArithmetic())


def scaled(rank):
    """1, 16, 256, 4096, ...: pieces scaled like this show in their digits which of them went where."""
    return 16.0**rank


def uneven(shape, count, seed=0):
    """Contributions of `count` ranks: whole numbers of both signs, of uneven size, scaled by rank."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-9, 10, (count, *shape)).astype(np.float64)
    return [np.asarray(v * scaled(rank)) for rank, v in enumerate(values)]


def labelled(shape, count, axis):
    """A whole value whose slices along `axis` are scaled by the rank that they belong to."""
    values = np.arange(1, np.prod(shape, dtype=int) + 1, dtype=np.float64).reshape(shape)
    slices = np.split(values, count, axis)
    return np.concatenate([s * scaled(rank) for rank, s in enumerate(slices)], axis)


def assembled(group, parts, specs, name=""):
    """A value of pieces as they are, in the group's arithmetic."""
    tensors = [
        group.devices[m].hold(np.array(p, np.float64), ElementType.F16)
        for m, p in zip(group.meshes, parts, strict=True)
    ]
    return group.assemble(tensors, specs, name)


def partial(group, parts, pool, name=""):
    return assembled(group, parts, Spec(partial=pool), name)


def pieces(value):
    """Every rank's elements."""
    return [part.numpy() for part in value.parts]


def assert_neighbours_only(plan):
    """Every copy starts on its own mesh and ends there or on a neighbour; everything else likewise."""
    for step in plan.steps:
        node, target = step.node, plan.mesh_of(step.result)
        assert target == node or target in plan.machine.neighbours(node), step
        if isinstance(step.kernel, Copy):
            assert plan.mesh_of(step.args[0]) == node, step


def run_and_compare_bytes(group, plan):
    """Runs a plan; what it says crosses each link is what is counted when it runs."""
    assert_neighbours_only(plan)
    stated = plan.link_bytes()
    before = group.stats().crossed
    value = group.run(plan)
    after = group.stats().crossed
    assert {link: n - before.get(link, 0) for link, n in after.items() if n != before.get(link, 0)} == stated
    return value


def shuffled(plan, seed):
    """The same plan with its steps listed in another order."""
    order = np.random.default_rng(seed).permutation(len(plan.steps))
    position = {int(old): new for new, old in enumerate(order)}
    steps = tuple(
        msgspec.structs.replace(plan.steps[old], after=tuple(position[i] for i in plan.steps[old].after))
        for old in order
    )
    return msgspec.structs.replace(plan, steps=steps)


def without(plan, gone):
    """The plan without one step; those that came after it come after what it came after."""
    position = [i - (i > gone) for i in range(len(plan.steps))]
    steps = []
    for index, step in enumerate(plan.steps):
        if index == gone:
            continue
        after = [b for a in step.after for b in (plan.steps[gone].after if a == gone else (a,))]
        steps.append(msgspec.structs.replace(step, after=tuple(dict.fromkeys(position[a] for a in after))))
    return msgspec.structs.replace(plan, steps=tuple(steps))
