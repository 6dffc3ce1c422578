"""Plans of one kernel on every rank's pieces."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright import targets
from meshwright.errors import KernelError, PlacementError, SplitError
from meshwright.ir.spec import Spec
from meshwright.kernels.kernel import Kernel, Shaped
from meshwright.machine import MachineSpec
from meshwright.sharding.builder import PlanBuilder
from meshwright.sharding.plan import Plan
from meshwright.sharding.rules import result_specs
from meshwright.sharding.steps import Copy, Ref, Slot
from meshwright.sharding.value import Ranks, Sharded


def plan_kernel(
    machine: MachineSpec, hosts: Sequence[int], kernel: Kernel, values: Sequence[Sharded], names: Sequence[str]
) -> Plan:
    """The kernel on every rank's pieces; where a mesh lacks the unit, on one of `hosts`, with its pieces copied.

    Raises `SplitError` where the operands' specs have no reading, and `PlacementError` where no mesh has the unit.
    """
    ranks = same_ranks(kernel.name, values, names)
    specs = result_specs(kernel, values, names)
    build = PlanBuilder(machine, hosts, values, names)
    into = build.slot(kernel.name, kernel.result([v.shaped for v in values]), specs, ranks)
    reasons = [_reason(values, names, specs)]
    _require_pieces_fit(kernel, values, names, build.slots[into])
    for rank, mesh in enumerate(ranks.meshes):
        node = host_of(machine, kernel, mesh, hosts)
        if node == mesh:
            build.step(rank, kernel, [Ref(i, rank) for i in range(len(values))], Ref(into, rank))
            continue
        reasons.append(f"mesh {mesh} has no vector core, so mesh {node} works on its share")
        args = [_at(build, Ref(i, rank), value, node) for i, value in enumerate(values)]
        way = build.way(node, mesh)
        if len(way) == 2:
            build.step(rank, kernel, args, Ref(into, rank), node)
            continue
        made = build.private(kernel.name.replace(" ", "_"), build.shaped(Ref(into, rank)), node)
        build.step(rank, kernel, args, made)
        build.step(rank, Copy(), [build.copied_along(made, way[-2], rank)], Ref(into, rank), node=way[-2])
    return build.plan(ranks, into, "; ".join(reasons))


def _require_pieces_fit(kernel: Kernel, values: Sequence[Sharded], names: Sequence[str], result: Slot) -> None:
    """Raises `SplitError` unless the kernel makes a piece of the result of pieces of the operands."""
    pieces = [Shaped(v.local, v.format) for v in values]
    listing = " and ".join(
        f"`{v.name or n}` {v.shaped} {' x '.join(map(str, v.specs))}" for v, n in zip(values, names, strict=True)
    )
    try:
        made, wanted = kernel.result(pieces).shape, result.local
    except (KernelError, SplitError) as error:
        raise SplitError(
            f"{kernel.name}: {listing}; one rank's pieces, {' and '.join(map(str, pieces))}, can't be worked on alone: "
            f"{error}. Split otherwise, or copy: group.reshard(value, COPIED)"
        ) from None
    if made != wanted:
        raise SplitError(
            f"{kernel.name}: {listing}; of one rank's pieces, {' and '.join(map(str, pieces))}, it makes {list(made)}, "
            f"and a piece of the result is {list(wanted)}. Split so that every rank has whole ones, or copy: "
            "group.reshard(value, COPIED)"
        )


def same_ranks(what: str, values: Sequence[Sharded], names: Sequence[str]) -> Ranks:
    """The ranks that all values share; `SplitError` where they don't."""
    first = values[0].ranks
    for value, name in zip(values, names, strict=True):
        if not value.ranks.alike(first):
            raise SplitError(
                f"{what}: `{values[0].name or names[0]}` is on {first} and `{value.name or name}` on {value.ranks}; "
                "every rank needs a piece of both. "
                f"group.broadcast({_narrower(values[0], value, names[0], name)}) brings a value from the ranks it was "
                "reduced to back to all of them"
            )
    return first


def _narrower(a: Sharded, b: Sharded, name_a: str, name_b: str) -> str:
    """The name of the one on fewer meshes."""
    return (a.name or name_a) if len(a.meshes) < len(b.meshes) else (b.name or name_b)


def _at(build: PlanBuilder, ref: Ref, value: Sharded, mesh: int) -> Ref:
    """The rank's piece on another mesh: that mesh's own where all pieces are the same, else copied there."""
    if mesh in value.meshes and all(spec.is_copied for spec in value.specs):
        return Ref(ref.slot, value.meshes.index(mesh))
    return build.copied_along(ref, mesh, ref.rank)


def host_of(machine: MachineSpec, kernel: Kernel, mesh: int, hosts: Sequence[int]) -> int:
    """The mesh that does a rank's work: its own, or the nearest of `hosts` that has the unit.

    Of equally near ones the later in the chain: where sums end up. Raises `PlacementError` where no host has the unit,
    naming the meshes of the machine that do.
    """
    if kernel.unit != "vector" or targets.placement(machine, mesh).has_vector_units:
        return mesh
    able = [m for m in hosts if targets.placement(machine, m).has_vector_units]
    if not able:
        elsewhere = [m for m in machine.mesh_ids if targets.placement(machine, m).has_vector_units]
        raise PlacementError(
            f"{kernel.name} needs a vector core, and the group has none on mesh {', '.join(map(str, hosts))}; on "
            f"{machine.name} meshes {', '.join(map(str, elsewhere))} have: open a group that includes one"
        )
    return min(able, key=lambda m: (machine.mesh_hops(mesh, m), -list(hosts).index(m)))


def _reason(values: Sequence[Sharded], names: Sequence[str], specs: Sequence[Spec]) -> str:
    given = ", ".join(f"{v.name or n} {' x '.join(map(str, v.specs))}" for v, n in zip(values, names, strict=True))
    how = " x ".join(map(str, specs))
    return f"{given} gives {how} with no data moved between meshes"
