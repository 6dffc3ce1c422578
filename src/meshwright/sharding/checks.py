"""Whether a plan's steps have a sound order: from what they say precedes them, never from how they are listed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import rustworkx as rx
from msgspec import Struct

from meshwright.errors import PlacementError, PlanError
from meshwright.sharding.steps import AddTiles, Copy, OpenTiles, Ref, Step, Steps
from meshwright.sharding.summands import check_summands


def check_plan(plan: Steps) -> tuple[int, ...]:
    """The steps in an order in which each comes after those it has to; refuses a plan that has no sound one.

    `PlanError`: dependencies in a circle, an addition into tiles that nothing opened or that may come before their
    opening, two additions into the same tiles in either order, a piece read before it is made, a contribution that is
    missing from a sum or in it twice. `PlacementError`: what is moved over more than one link in a step, or read across
    one.
    """
    order = _order(plan)
    checking = _Checking(plan, _before(plan, order), _makers(plan))
    for index, step in enumerate(plan.steps):
        checking.step(index, step)
    checking.resident_order()
    check_summands(plan, order)
    return order


def _order(plan: Steps) -> tuple[int, ...]:
    digraph: rx.PyDiGraph[int, None] = rx.PyDiGraph()
    digraph.add_nodes_from(range(len(plan.steps)))
    for index, step in enumerate(plan.steps):
        for before in step.after:
            if not 0 <= before < len(plan.steps):
                raise PlanError(
                    f"step {index} ({step.kernel.name}) comes after step {before}, and there are {len(plan.steps)} "
                    f"steps; name one of 0 to {len(plan.steps) - 1}"
                )
            digraph.add_edge(before, index, None)
    if not rx.is_directed_acyclic_graph(digraph):
        circle = sorted(max(rx.strongly_connected_components(digraph), key=len))
        raise PlanError(
            f"steps {listed(circle)} of this plan wait for each other in a circle; no step of it could be first. "
            "Take one of them out of another's `after`"
        )
    return tuple(rx.lexicographical_topological_sort(digraph, key=lambda i: f"{i:09d}"))


def _before(plan: Steps, order: Sequence[int]) -> list[int]:
    """For each step, as bits, all steps that have finished when it begins."""
    before = [0] * len(plan.steps)
    for index in order:
        for earlier in plan.steps[index].after:
            before[index] |= before[earlier] | 1 << earlier
    return before


def _makers(plan: Steps) -> dict[Ref, list[int]]:
    makers: dict[Ref, list[int]] = {}
    for index, step in enumerate(plan.steps):
        makers.setdefault(step.result, []).append(index)
    return makers


class _Checking(Struct, frozen=True):
    """A plan, what precedes each of its steps, and which steps make each piece."""

    plan: Steps
    before: list[int]
    makers: dict[Ref, list[int]]

    def precedes(self, earlier: int, later: int) -> bool:
        """Whether one step has to have finished when the other begins."""
        return bool(self.before[later] >> earlier & 1)

    def step(self, index: int, step: Step) -> None:
        """Everything about one step."""
        for ref in step.args:
            if ref.slot >= self.plan.given:
                self._made(index, step, ref)
        match step.kernel:
            case AddTiles():
                self._added(index, step)
            case Copy():
                self._copied(index, step)
            case _:
                self._placed(index, step)

    def _made(self, index: int, step: Step, ref: Ref) -> None:
        made = self.makers.get(ref, [])
        what = f"step {index} ({step.kernel.name}) reads {self.plan.named(ref)}"
        if not made:
            raise PlanError(f"{what}, which no step makes; give that piece a step that does")
        for maker in made:
            if not self.precedes(maker, index):
                raise PlanError(
                    f"{what}, and nothing says that step {maker}, which makes it, comes first: add {maker} to its "
                    "`after`"
                )

    def _added(self, index: int, step: Step) -> None:
        opened = [i for i in self.plan.opens if self.plan.steps[i].result == step.result]
        if not any(self.precedes(i, index) for i in opened):
            what = "that nothing opened" if not opened else "that may not have been opened yet"
            fix = f"add {opened[0]} to its `after`" if opened else "open them first with a product on that mesh"
            raise PlanError(
                f"step {index} adds into the tiles of {self.plan.named(step.result)} {what}; they hold what was last "
                f"there. Instead: {fix}"
            )
        there, here = self.plan.mesh_of(step.args[0]), self.plan.mesh_of(step.result)
        if here not in self.plan.machine.neighbours(there):
            raise PlacementError(
                f"step {index} adds mesh {there}'s tiles into mesh {here}'s, "
                f"{self.plan.machine.mesh_hops(there, here)} links away; a reduction moves between neighbours only: "
                f"{there} has {listed(self.plan.machine.neighbours(there))}"
            )

    def _copied(self, index: int, step: Step) -> None:
        source, target = (self.plan.mesh_of(ref) for ref in (step.args[0], step.result))
        if source != step.node:
            raise PlacementError(
                f"step {index} copies {self.plan.named(step.args[0])} on mesh {step.node}; a mesh writes to others "
                f"and doesn't read from them, so it runs on mesh {source}"
            )
        self._reached(index, step, target)

    def _placed(self, index: int, step: Step) -> None:
        for ref in step.args:
            mesh = self.plan.mesh_of(ref)
            if mesh != step.node and not self.plan.machine.reaches(step.node, mesh, "read"):
                raise PlacementError(
                    f"step {index} ({step.kernel.name}) runs on mesh {step.node} and reads {self.plan.named(ref)}; "
                    f"reads don't cross a link on {self.plan.machine.name}: copy the piece to mesh {step.node} first"
                )
        self._reached(index, step, self.plan.mesh_of(step.result))

    def _reached(self, index: int, step: Step, target: int) -> None:
        if target != step.node and target not in self.plan.machine.neighbours(step.node):
            way = self.plan.machine.path(step.node, target)
            raise PlacementError(
                f"step {index} ({step.kernel.name}) on mesh {step.node} writes {self.plan.named(step.result)}, "
                f"{len(way) - 1} links away; a step writes to its own mesh or a neighbour. Copy on from mesh to mesh: "
                f"{'-'.join(map(str, way))}"
            )

    def resident_order(self) -> None:
        """Everything that is done to one rank's tiles comes in one order: which it is, the sums' bits depend on."""
        position = {index: at for at, index in enumerate(sorted(range(len(self.before)), key=self._depth))}
        for ref, made in self.makers.items():
            if not self.plan.slots[ref.slot].resident:
                continue
            for first, second in pairwise(sorted(made, key=lambda i: position[i])):
                if isinstance(self.plan.steps[second].kernel, OpenTiles):
                    raise PlanError(
                        f"step {second} opens the tiles of {self.plan.named(ref)} that step {first} has filled; its "
                        "sums would be lost. Open tiles once"
                    )
                if not self.precedes(first, second):
                    raise PlanError(
                        f"steps {first} and {second} both add into the tiles of {self.plan.named(ref)}, and nothing "
                        f"says which comes first; the bits of a sum depend on it: add {first} to the `after` of "
                        f"{second}"
                    )

    def _depth(self, index: int) -> tuple[int, int]:
        return self.before[index].bit_count(), index


def listed(numbers: Sequence[int]) -> str:
    """Numbers for messages: `1 and 2`."""
    return " and ".join(map(str, numbers)) or "none"
