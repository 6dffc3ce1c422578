"""Plans of one kernel on every rank's pieces."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright import targets
from meshwright.errors import PlacementError, SplitError
from meshwright.ir.spec import Spec
from meshwright.kernels.kernel import Kernel
from meshwright.machine import MachineSpec
from meshwright.sharding.builder import PlanBuilder
from meshwright.sharding.plan import Copy, Plan, Ref
from meshwright.sharding.rules import result_specs
from meshwright.sharding.value import Ranks, Sharded


def plan_kernel(
    machine: MachineSpec, hosts: Sequence[int], kernel: Kernel, values: Sequence[Sharded], names: Sequence[str]
) -> Plan:
    """The kernel on every rank's pieces; where a mesh lacks the unit, on one of `hosts`, with its pieces copied.

    Raises `SplitError` where the operands' specs have no reading, and `PlacementError` where no mesh has the unit.
    """
    ranks = same_ranks(kernel.name, values, names)
    specs = result_specs(kernel, values, names)
    build = PlanBuilder(machine, values, names)
    into = build.slot(kernel.name, kernel.result([v.shaped for v in values]), specs, ranks)
    reasons = [_reason(values, names, specs)]
    for rank, mesh in enumerate(ranks.meshes):
        node = host_of(machine, kernel, mesh, hosts)
        args = [Ref(i, rank) for i in range(len(values))]
        if node != mesh:
            reasons.append(f"mesh {mesh} has no vector core, so mesh {node} works on its share")
            args = [copied_along(build, ref, node, rank) for ref in args]
        build.step(rank, kernel, args, Ref(into, rank), node)
    return build.plan(ranks, into, "; ".join(reasons))


def same_ranks(what: str, values: Sequence[Sharded], names: Sequence[str]) -> Ranks:
    """The ranks that all values share; `SplitError` where they don't."""
    first = values[0].ranks
    for value, name in zip(values, names, strict=True):
        if not value.ranks.alike(first):
            raise SplitError(
                f"{what}: `{values[0].name or names[0]}` is on {first} and `{value.name or name}` on {value.ranks}; "
                "every rank needs a piece of both. Bring one to where the other is: group.broadcast(...)"
            )
    return first


def copied_along(build: PlanBuilder, ref: Ref, mesh: int, rank: int) -> Ref:
    """The piece on another mesh: copied from each mesh on the way to its neighbour."""
    source = build.mesh_of(ref)
    name = build.slots[ref.slot].name
    shaped = build.shaped(ref)
    for here, there in zip(path := build.machine.path(source, mesh), path[1:], strict=False):
        target = build.private(f"{name}_of_{source}", shaped, there)
        build.step(rank, Copy(), [ref], target, node=here)
        ref = target
    return ref


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
            f"{kernel.name} needs a vector core, and none of the group's meshes {', '.join(map(str, hosts))} has one; "
            f"on {machine.name} meshes {', '.join(map(str, elsewhere))} do: open a group that includes one"
        )
    return min(able, key=lambda m: (machine.mesh_hops(mesh, m), -list(hosts).index(m)))


def _reason(values: Sequence[Sharded], names: Sequence[str], specs: Sequence[Spec]) -> str:
    given = ", ".join(f"{v.name or n} {' x '.join(map(str, v.specs))}" for v, n in zip(values, names, strict=True))
    how = " x ".join(map(str, specs))
    return f"{given} gives {how} with no data moved between meshes"
