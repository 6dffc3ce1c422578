"""Building plans: the steps of a kernel on every rank, and of a product summed along a chain of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from meshwright import targets
from meshwright.errors import PlacementError, SplitError
from meshwright.ir.spec import COPIED, Spec
from meshwright.kernels.kernel import Kernel, Shaped
from meshwright.kernels.matmul import MatrixProduct
from meshwright.machine import MachineSpec
from meshwright.sharding.plan import AddTiles, Copy, DrainTiles, OpenTiles, Plan, Ref, Slot, Step
from meshwright.sharding.rules import result_specs
from meshwright.sharding.value import Ranks, Sharded


def _inputs(values: Sequence[Sharded], names: Sequence[str]) -> list[Slot]:
    return [
        Slot(v.name or n.replace(" ", "_"), v.shaped, v.specs, v.meshes, v.ranks.grid)
        for v, n in zip(values, names, strict=True)
    ]


def plan_kernel(
    machine: MachineSpec, hosts: Sequence[int], kernel: Kernel, values: Sequence[Sharded], names: Sequence[str]
) -> Plan:
    """The kernel on every rank's pieces; where a mesh lacks the unit, on one of `hosts`, with its pieces copied."""
    ranks = _same_ranks(kernel.name, values, names)
    specs = result_specs(kernel, values, names)
    shaped = kernel.result([v.shaped for v in values])
    slots = _inputs(values, names)
    into = len(slots)
    slots.append(Slot(kernel.name, shaped, specs, ranks.meshes, ranks.grid))
    steps: list[Step] = []
    moved: list[str] = []
    for rank, mesh in enumerate(ranks.meshes):
        node = host_of(machine, kernel, mesh, hosts)
        args = [Ref(i, rank) for i in range(len(values))]
        after: list[int] = []
        if node != mesh:
            moved.append(f"mesh {mesh} has no vector core, so mesh {node} works on its share")
            args = _copied_over(slots, steps, args, node, rank)
            after = list(range(len(steps) - len(args), len(steps)))
        steps.append(Step(rank, kernel, tuple(args), Ref(into, rank), node, tuple(after)))
    reason = _reason(kernel, values, names, specs)
    return Plan(machine, ranks, tuple(values), tuple(slots), tuple(steps), into, "; ".join([reason, *moved]))


def _same_ranks(what: str, values: Sequence[Sharded], names: Sequence[str]) -> Ranks:
    first = values[0].ranks
    for value, name in zip(values, names, strict=True):
        if not value.ranks.alike(first):
            raise SplitError(
                f"{what}: `{values[0].name or names[0]}` is on meshes {', '.join(map(str, first.meshes))} and "
                f"`{value.name or name}` on {', '.join(map(str, value.meshes))}; every rank needs a piece of both. "
                "Bring one to where the other is: group.broadcast(...)"
            )
    return first


def _copied_over(slots: list[Slot], steps: list[Step], args: Sequence[Ref], node: int, rank: int) -> list[Ref]:
    moved: list[Ref] = []
    for ref in args:
        source = slots[ref.slot]
        shaped = Shaped(source.local, source.shaped.format)
        slots.append(Slot(f"{source.name}_of_{source.meshes[ref.rank]}", shaped, (COPIED,), (node,), (1,)))
        moved.append(Ref(len(slots) - 1, 0))
        steps.append(Step(rank, Copy(), (ref,), moved[-1], source.meshes[ref.rank]))
    return moved


def host_of(machine: MachineSpec, kernel: Kernel, mesh: int, meshes: Sequence[int]) -> int:
    """The mesh that does a rank's work: its own, or the nearest of the group that has the unit.

    Of equally near ones the later in the chain: where sums end up. Raises `PlacementError` where no mesh of the group
    has the unit, naming those of the machine that do.
    """
    if kernel.unit != "vector" or targets.placement(machine, mesh).has_vector_units:
        return mesh
    able = [m for m in meshes if targets.placement(machine, m).has_vector_units]
    if not able:
        elsewhere = [m for m in machine.mesh_ids if targets.placement(machine, m).has_vector_units]
        raise PlacementError(
            f"{kernel.name} needs a vector core, and none of the group's meshes {', '.join(map(str, meshes))} has one; "
            f"on {machine.name} meshes {', '.join(map(str, elsewhere))} do: open a group that includes one"
        )
    return min(able, key=lambda m: (machine.mesh_hops(mesh, m), -meshes.index(m)))


def _reason(kernel: Kernel, values: Sequence[Sharded], names: Sequence[str], specs: Sequence[Spec]) -> str:
    given = ", ".join(f"{v.name or n} {' x '.join(map(str, v.specs))}" for v, n in zip(values, names, strict=True))
    how = " x ".join(map(str, specs))
    return f"{given} gives {how} with no data moved between meshes"


def plan_chain(
    machine: MachineSpec,
    values: tuple[Sharded, Sharded],
    tile: tuple[int, int, int] | None,
) -> Plan:
    """A product with K split on every rank, summed in accumulators from the first rank to the last, which drains it.

    Raises `SplitError` unless both operands are split on K over at least two ranks, and `PlacementError` where two
    ranks that follow each other aren't neighbours or the tile doesn't fit.
    """
    a, b = values
    kernel = MatrixProduct(tile)
    ranks = _same_ranks("matmul_chain_reduce", values, ("a", "b"))
    shaped = kernel.result([a.shaped, b.shaped])
    if len(ranks.meshes) == 1:
        raise SplitError("matmul_chain_reduce over one mesh has nothing to add up; matmul gives the whole product")
    specs = result_specs(kernel, values, ("a", "b"))
    if specs[0].partial is None:
        raise SplitError(
            f"matmul_chain_reduce: `a` {a.shaped} is {a.spec}, `b` {b.shaped} is {b.spec}; that product is {specs[0]} "
            "and has no partial sums to add. Split both on their last axis, or use matmul"
        )
    for here, there in pairwise(ranks.meshes):
        if there not in machine.neighbours(here):
            raise PlacementError(
                f"matmul_chain_reduce over meshes {', '.join(map(str, ranks.meshes))}: {here} and {there} are "
                f"{machine.mesh_hops(here, there)} links apart, and a sum moves between neighbours only. "
                f"In the order of the links: {', '.join(map(str, machine.path(ranks.meshes[0], ranks.meshes[-1])))}"
            )
    slots = _inputs(values, ("a", "b"))
    partial = len(slots)
    slots.append(Slot("sum", shaped, specs, ranks.meshes, ranks.grid, resident=True))
    last = len(ranks.meshes) - 1
    slots.append(Slot("matmul", shaped, (COPIED,), (ranks.meshes[last],), (1,)))
    placement = targets.placement(machine, ranks.meshes[0])
    m, n = shaped.shape[-2:]
    chosen = tile or placement.matmul_tile(m, n, a.local[-1])
    placement.check_tile(chosen)
    steps = [
        Step(rank, OpenTiles(chosen), (Ref(0, rank), Ref(1, rank)), Ref(partial, rank), mesh)
        for rank, mesh in enumerate(ranks.meshes)
    ]
    for rank in range(1, len(ranks.meshes)):
        # The sum of the ranks before is in the tile of the one before; its last addition is the step just written.
        before = (rank - 1,) if rank == 1 else (len(steps) - 1,)
        after = tuple(dict.fromkeys((rank, *before)))
        steps.append(Step(rank, AddTiles(), (Ref(partial, rank - 1),), Ref(partial, rank), ranks.meshes[rank], after))
    drain = Step(last, DrainTiles(), (Ref(partial, last),), Ref(partial + 1, 0), ranks.meshes[last], (len(steps) - 1,))
    chain = "-".join(map(str, ranks.meshes))
    reason = f"a {a.spec}, b {b.spec}: a partial sum on every mesh, added in the accumulators along {chain}"
    return Plan(machine, ranks, values, tuple(slots), (*steps, drain), partial + 1, reason)
