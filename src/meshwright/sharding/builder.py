"""`PlanBuilder`: collects slots and steps; a step comes after whatever made the pieces that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from meshwright.errors import MachineError, PlacementError
from meshwright.ir.spec import COPIED, Spec
from meshwright.kernels.kernel import Shaped
from meshwright.machine import MachineSpec
from meshwright.machine.fabric import Fabric
from meshwright.sharding.plan import Plan
from meshwright.sharding.steps import AddTiles, Copy, Ref, Slot, Step, StepKernel
from meshwright.sharding.value import Ranks, Sharded


class PlanBuilder:
    """A plan under construction. Inputs come first; every piece is made by the steps that name it as their result.

    hosts: the group's meshes; what moves passes through these and no others.
    """

    def __init__(
        self, machine: MachineSpec, hosts: Sequence[int], inputs: Sequence[Sharded], names: Sequence[str]
    ) -> None:
        self.machine = machine
        self.hosts = tuple(hosts)
        self.inputs = tuple(inputs)
        self.slots: list[Slot] = [
            Slot(v.name or n.replace(" ", "_"), v.shaped, v.specs, v.meshes, v.ranks.grid)
            for v, n in zip(inputs, names, strict=True)
        ]
        self.steps: list[Step] = []
        self._makers: dict[Ref, list[int]] = {}
        self._passed_on: set[int] = set()

    def slot(self, name: str, shaped: Shaped, specs: Sequence[Spec], ranks: Ranks, *, resident: bool = False) -> int:
        """A value over all of `ranks`."""
        self.slots.append(Slot(name, shaped, tuple(specs), ranks.meshes, ranks.grid, resident))
        return len(self.slots) - 1

    def private(self, name: str, shaped: Shaped, mesh: int) -> Ref:
        """A piece on one mesh that only this plan uses."""
        self.slots.append(Slot(name, shaped, (COPIED,), (mesh,), (1,)))
        return Ref(len(self.slots) - 1, 0)

    def mesh_of(self, ref: Ref) -> int:
        """The mesh that holds a piece."""
        return self.slots[ref.slot].meshes[ref.rank]

    def shaped(self, ref: Ref) -> Shaped:
        """Shape and element type of a piece."""
        slot = self.slots[ref.slot]
        return Shaped(slot.local, slot.shaped.format)

    def step(self, rank: int, kernel: StepKernel, args: Sequence[Ref], result: Ref, node: int | None = None) -> int:
        """A step on mesh `node` (by default where its result is); it comes after what made `args`.

        A step that adds to a piece made before also comes after the steps that made that.
        """
        reads = [*args, result] if isinstance(kernel, AddTiles) else list(args)
        after = tuple(dict.fromkeys(maker for ref in reads for maker in self._makers.get(ref, ())))
        where = self.mesh_of(result) if node is None else node
        self.steps.append(Step(rank, kernel, tuple(args), result, where, after))
        self._makers.setdefault(result, []).append(len(self.steps) - 1)
        return len(self.steps) - 1

    def way(self, source: int, target: int) -> tuple[int, ...]:
        """Meshes of the group from one to another, both included; `PlacementError` where only others lead there."""
        inside = [link.between for link in self.machine.links if set(link.between) <= set(self.hosts)]
        try:
            return Fabric(self.machine.name, self.hosts, inside).path(source, target)
        except MachineError:
            path = self.machine.path(source, target)
            outside = [mesh for mesh in path if mesh not in self.hosts]
            raise PlacementError(
                f"from mesh {source} to mesh {target} the way is {'-'.join(map(str, path))}, and the group hasn't got "
                f"mesh {', '.join(map(str, outside))}; open it with those as well"
            ) from None

    def copied_along(self, ref: Ref, mesh: int, rank: int) -> Ref:
        """The piece on another mesh: copied from each mesh on the way to its neighbour."""
        source, shaped = self.mesh_of(ref), self.shaped(ref)
        name = self.slots[ref.slot].name
        if ref.slot not in self._passed_on and ref.slot < len(self.inputs):
            name = f"{name}_of_{source}"
        for here, there in pairwise(self.way(source, mesh)):
            target = self.private(name, shaped, there)
            self._passed_on.add(target.slot)
            self.step(rank, Copy(), [ref], target, node=here)
            ref = target
        return ref

    def plan(self, ranks: Ranks, into: int, reason: str) -> Plan:
        """The frozen plan; `into` is the slot of its result."""
        return Plan(
            self.machine, len(self.inputs), tuple(self.slots), tuple(self.steps), into, ranks, self.inputs, reason
        )
