"""The collectives of a group, each as a plan that can be looked at and as the call that plans and runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from meshwright.errors import SplitError
from meshwright.evaluate.walk import Progress
from meshwright.ir.spec import COPIED, Spec
from meshwright.machine import MachineSpec
from meshwright.sharding import collectives
from meshwright.sharding.plan import Plan
from meshwright.sharding.value import Ranks, Sharded
from meshwright.sharding.views import plan_reshape


class Collectives(ABC):
    """What moves values between the ranks of a group. Negative axes count from the back, as numpy's do.

    along: which axis of the rank grid; 0 is the only one of ranks in a line.
    """

    @property
    @abstractmethod
    def machine(self) -> MachineSpec:
        """The machine that the group is on."""

    @property
    @abstractmethod
    def ranks(self) -> Ranks:
        """Which mesh each rank is, on what grid."""

    @abstractmethod
    def run(self, plan: Plan, progress: Progress | None = None) -> Sharded:
        """Runs a plan."""

    @abstractmethod
    def require_own(self, value: object, name: str) -> None:
        """Raises `SplitError` unless `value` is a value of this group."""

    def on_rank(self, value: Sharded, rank: int) -> Sharded:
        """A copied value as a value on one mesh alone; nothing moves.

        Raises `SplitError` for a value that isn't copied, or a rank that isn't there.
        """
        self.require_own(value, "value")
        if not all(spec.is_copied for spec in value.specs):
            raise SplitError(
                f"on_rank({rank}) of {value}: one mesh has the whole only of a copied value. "
                "group.reshard(value, COPIED) first"
            )
        part = value.part(rank)
        ranks = Ranks(value.ranks.machine, (value.meshes[rank],), (1,), value.ranks.owner)
        return Sharded(ranks, value.shape, value.format, (COPIED,), (part,), value.name)

    def plan_to_one(self, value: Sharded, root: int = 0, along: int = 0) -> Plan:
        """A partial folded onto one rank, from both ends of the line."""
        self.require_own(value, "value")
        return collectives.plan_to_one(self.machine, value, root, along, self.ranks.meshes)

    def reduce(self, value: Sharded, root: int = 0, along: int = 0) -> Sharded:
        """Plans and runs `plan_to_one`."""
        return self.run(self.plan_to_one(value, root, along))

    def plan_all_reduce(self, value: Sharded, along: int = 0) -> Plan:
        """A partial folded, the result on every rank."""
        self.require_own(value, "value")
        return collectives.plan_all_reduce(self.machine, value, along, self.ranks.meshes)

    def all_reduce(self, value: Sharded, along: int = 0) -> Sharded:
        """Plans and runs `plan_all_reduce`."""
        return self.run(self.plan_all_reduce(value, along))

    def plan_reduce_scatter(self, value: Sharded, axis: int, along: int = 0) -> Plan:
        """A partial folded, every rank with its slice of the result along `axis`."""
        self.require_own(value, "value")
        front = _from_the_front("reduce_scatter", value, axis)
        return collectives.plan_reduce_scatter(self.machine, value, front, along, self.ranks.meshes)

    def reduce_scatter(self, value: Sharded, axis: int, along: int = 0) -> Sharded:
        """Plans and runs `plan_reduce_scatter`."""
        return self.run(self.plan_reduce_scatter(value, axis, along))

    def plan_all_gather(self, value: Sharded, along: int = 0) -> Plan:
        """A split value, the whole of it on every rank."""
        self.require_own(value, "value")
        return collectives.plan_all_gather(self.machine, value, along, self.ranks.meshes)

    def all_gather(self, value: Sharded, along: int = 0) -> Sharded:
        """Plans and runs `plan_all_gather`."""
        return self.run(self.plan_all_gather(value, along))

    def plan_broadcast(self, value: Sharded) -> Plan:
        """A value on one mesh, or on one rank of every line, copied to all ranks of the group."""
        self.require_own(value, "value")
        return collectives.plan_broadcast(self.machine, value, self.ranks)

    def broadcast(self, value: Sharded) -> Sharded:
        """Plans and runs `plan_broadcast`."""
        return self.run(self.plan_broadcast(value))

    def plan_shift(self, value: Sharded, by: int, along: int = 0) -> Plan:
        """Every rank's piece to the rank `by` positions further, around the end."""
        self.require_own(value, "value")
        return collectives.plan_shift(self.machine, value, by, along, self.ranks.meshes)

    def shift(self, value: Sharded, by: int, along: int = 0) -> Sharded:
        """Plans and runs `plan_shift`."""
        return self.run(self.plan_shift(value, by, along))

    def plan_all_to_all(self, value: Sharded, axis: int, along: int = 0) -> Plan:
        """A value split on one axis, split on `axis` instead."""
        self.require_own(value, "value")
        front = _from_the_front("all_to_all", value, axis)
        return collectives.plan_all_to_all(self.machine, value, front, along, self.ranks.meshes)

    def all_to_all(self, value: Sharded, axis: int, along: int = 0) -> Sharded:
        """Plans and runs `plan_all_to_all`."""
        return self.run(self.plan_all_to_all(value, axis, along))

    def plan_reshard(self, value: Sharded, spec: Spec, along: int = 0) -> Plan:
        """From the spec that a value has along a grid axis to another; `print(plan)` says what crosses which link."""
        self.require_own(value, "value")
        return collectives.plan_reshard(self.machine, value, spec, along, self.ranks.meshes)

    def reshard(self, value: Sharded, spec: Spec, along: int = 0) -> Sharded:
        """Plans and runs `plan_reshard`."""
        return self.run(self.plan_reshard(value, spec, along))

    def plan_reshape(self, value: Sharded, shape: Sequence[int]) -> Plan:
        """The value seen with another shape, where every split survives it; nothing crosses a link."""
        self.require_own(value, "value")
        return plan_reshape(self.machine, value, shape, self.ranks.meshes)

    def reshape(self, value: Sharded, shape: Sequence[int]) -> Sharded:
        """Plans and runs `plan_reshape`."""
        return self.run(self.plan_reshape(value, shape))


def _from_the_front(what: str, value: Sharded, axis: int) -> int:
    rank = len(value.shape)
    if not -rank <= axis < rank:
        axes = f"axes 0 to {rank - 1}, or {-rank} to -1 from the back" if rank else "no axis"
        raise SplitError(f"{what}(axis={axis}): {value} has {axes}")
    return axis % rank
