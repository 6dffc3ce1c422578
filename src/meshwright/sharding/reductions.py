"""Products whose contraction is split, summed inside the accumulators: along a chain of ranks, or straight to one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from meshwright import targets
from meshwright.errors import PlacementError, SplitError
from meshwright.ir.pool import Pool
from meshwright.ir.spec import COPIED, Spec
from meshwright.kernels.kernel import Shaped
from meshwright.kernels.matmul import MatrixProduct
from meshwright.machine import MachineSpec
from meshwright.sharding.builder import PlanBuilder
from meshwright.sharding.lines import lines, listed, neighbouring_lines, require_axis, without_axis
from meshwright.sharding.plan import Plan
from meshwright.sharding.planner import same_ranks
from meshwright.sharding.rules import result_specs
from meshwright.sharding.steps import AddTiles, DrainTiles, OpenTiles, Ref
from meshwright.sharding.value import Ranks, Sharded

Tile = tuple[int, int, int]
Addition = tuple[int, int]


def plan_chain(machine: MachineSpec, values: tuple[Sharded, Sharded], tile: Tile | None, along: int = 0) -> Plan:
    """Summed from the first rank to the last along one axis of the rank grid; the last one of each line drains it.

    tile: stated, the sums stay resident, one tile a cluster; None: a tile is chosen and tiles follow each other
    through the accumulators. Raises `SplitError` unless both operands are split on K along that axis over at least
    two ranks, or where a stated tile would have to be filled more than once; `PlacementError` where ranks that follow
    each other aren't neighbours or the tile doesn't fit.
    """
    what = "matmul_chain_reduce"
    ranks, specs = _checked(what, values, along)
    every = neighbouring_lines(machine, what, ranks, along)
    chains = [list(pairwise(line)) for line in every]
    meshes = "; ".join("-".join(str(ranks.meshes[r]) for r in line) for line in every)
    return _summed(machine, what, values, specs, along, chains, tile, f"added in the accumulators along {meshes}")


def plan_star(
    machine: MachineSpec, values: tuple[Sharded, Sharded], tile: Tile | None, root: int | None, along: int = 0
) -> Plan:
    """Every rank's sums go straight into one rank's tiles, in rank order; each has to be a neighbour of that one.

    root: the position along the axis that collects; None: the last from which all others are one link away. Raises as
    `plan_chain` does.
    """
    what = "matmul_reduce"
    ranks, specs = _checked(what, values, along)
    stars: list[list[Addition]] = []
    roots: list[int] = []
    for line in lines(ranks, along):
        meshes = [ranks.meshes[rank] for rank in line]
        at = _star_root(machine, what, meshes, root)
        stars.append([(rank, line[at]) for i, rank in enumerate(line) if i != at])
        roots.append(meshes[at])
    reason = f"added straight into the accumulators of mesh {listed(roots)}"
    return _summed(machine, what, values, specs, along, stars, tile, reason)


def _star_root(machine: MachineSpec, what: str, meshes: Sequence[int], root: int | None) -> int:
    able = [i for i, m in enumerate(meshes) if all(o == m or o in machine.neighbours(m) for o in meshes)]
    if root is not None and not 0 <= root < len(meshes):
        raise SplitError(f"{what}(root={root}): a line has {len(meshes)} ranks; name one of 0 to {len(meshes) - 1}")
    if root in able or (root is None and able):
        return able[-1] if root is None else root
    where = "no mesh of them" if root is None else f"mesh {meshes[root]}, rank {root}, is not a neighbour of all others"
    missing = f"{where} is a neighbour of all others" if root is None else where
    other = f"matmul_reduce(root={able[-1]}) collects on mesh {meshes[able[-1]]}" if able else ""
    chain = "matmul_chain_reduce adds from neighbour to neighbour along the chain"
    raise PlacementError(
        f"{what} over meshes {listed(meshes)}: {missing}, and a sum moves over one link only. {other or chain}"
    )


def _checked(what: str, values: tuple[Sharded, Sharded], along: int) -> tuple[Ranks, tuple[Spec, ...]]:
    ranks = same_ranks(what, values, ("a", "b"))
    require_axis(what, ranks, along)
    if ranks.grid[along] == 1:
        raise SplitError(
            f"{what} over one mesh, {ranks.meshes[0]}: there is nothing to add up. "
            "group.matmul(a, b) gives the whole product"
        )
    specs = result_specs(MatrixProduct(), values, ("a", "b"))
    if specs[along].partial is not Pool.SUM:
        a, b = values
        k_a, k_b = len(a.shape) - 1, len(b.shape) - 1
        raise SplitError(
            f"{what}: `a` {a.shaped} is {a.specs[along]} and `b` {b.shaped} is {b.specs[along]}: their product is "
            f"{specs[along]} and has no partial sums to add.\n"
            f"  Legal instead:  group.split(a, axis={k_a}), group.split(b, axis={k_b})   sums of slices of K\n"
            "                  group.matmul(a, b)                               the product as the operands are"
        )
    return ranks, specs


def _summed(
    machine: MachineSpec,
    what: str,
    values: tuple[Sharded, Sharded],
    specs: tuple[Spec, ...],
    along: int,
    additions: Sequence[Sequence[Addition]],
    tile: Tile | None,
    how: str,
) -> Plan:
    a, b = values
    ranks = a.ranks
    shaped = MatrixProduct().result([a.shaped, b.shaped])
    build = PlanBuilder(machine, ranks.meshes, values, ("a", "b"))
    partial = build.slot("sum", shaped, specs, ranks, resident=True)
    chosen = _tile(machine, what, ranks.meshes, build.shaped(Ref(partial, 0)), a.local[-1], tile)
    roots = [line[-1][1] for line in additions]
    left = without_axis(ranks, along, roots)
    kept_specs = (*specs[:along], *specs[along + 1 :]) or (COPIED,)
    into = build.slot("matmul", shaped, kept_specs, left)
    for rank, mesh in enumerate(ranks.meshes):
        build.step(rank, OpenTiles(chosen), [Ref(0, rank), Ref(1, rank)], Ref(partial, rank), mesh)
    for position, line in enumerate(additions):
        for source, target in line:
            build.step(target, AddTiles(), [Ref(partial, source)], Ref(partial, target))
        build.step(roots[position], DrainTiles(), [Ref(partial, roots[position])], Ref(into, position))
    return build.plan(left, into, f"a {a.specs[along]}, b {b.specs[along]}: a partial sum on every mesh, {how}")


def _tile(machine: MachineSpec, what: str, meshes: Sequence[int], local: Shaped, k: int, stated: Tile | None) -> Tile:
    places = [targets.placement(machine, mesh) for mesh in meshes]
    if not all(p.resident_sums for p in places):
        raise PlacementError(
            f"{what}: accumulators of {machine.name} can't be added into from another mesh; matmul gives a partial sum "
            "and group.all_reduce adds it up"
        )
    if stated is None:
        return places[0].matmul_tile(local.shape[-2], local.shape[-1], k)
    for place in places:
        place.check_tile(stated)
    instances = math.prod(local.shape[:-2]) * math.prod(
        math.ceil(size / t) for size, t in zip(local.shape[-2:], stated, strict=False)
    )
    clusters = min(len(p.matrix_sites()) for p in places)
    if instances > clusters:
        raise SplitError(
            f"{what}: {local} takes {instances} instances of the stated tile {stated[0]} x {stated[1]}, and {clusters} "
            "clusters keep one each resident; the next would open over sums that nobody has drained. Leave `tile` "
            "out, and instances follow each other through the accumulators, or split the rows or columns further"
        )
    return stated
