"""From a plan to its stage graph; what can't be a graph is refused here, whatever order its steps are written in."""

from __future__ import annotations

from collections.abc import Sequence

import rustworkx as rx

from meshwright import targets
from meshwright.errors import PlacementError, PlanError
from meshwright.ir.build import GraphBuilder
from meshwright.ir.graph import Graph
from meshwright.ir.ids import StageId, TensorId
from meshwright.kernels.kernel import Piece
from meshwright.kernels.matmul import ResidentShare, emit_added, emit_drained, emit_opened
from meshwright.kernels.move import CopyBoxes, emit_copy
from meshwright.sharding.plan import AddTiles, Copy, DrainTiles, OpenTiles, Plan, Ref, Step


def graph_of(plan: Plan) -> Graph:
    """The stage graph of the whole plan, all meshes. Raises `PlanError` or `PlacementError` as `check_plan` does."""
    order = check_plan(plan)
    lowering = _Lowering(plan)
    for index in order:
        lowering.add(plan.steps[index])
    return lowering.builder.graph()


def slot_name(plan: Plan, slot: int) -> str:
    """The tensor name of a slot in the plan's graph: its own name, numbered, since names may repeat."""
    return f"{plan.slots[slot].name}.{slot}"


def check_plan(plan: Plan) -> tuple[int, ...]:
    """The steps in an order in which each comes after those it has to; refuses a plan that has no sound one.

    `PlanError`: dependencies in a circle, an addition into tiles that nothing opened or that may come before their
    opening, a piece read before it is made. `PlacementError`: tiles added over more than one link, a piece read across
    a link.
    """
    digraph: rx.PyDiGraph[int, None] = rx.PyDiGraph()
    digraph.add_nodes_from(range(len(plan.steps)))
    for index, step in enumerate(plan.steps):
        for before in step.after:
            if not 0 <= before < len(plan.steps):
                raise PlanError(f"step {index} comes after step {before}, and there are {len(plan.steps)} steps")
            digraph.add_edge(before, index, None)
    try:
        order = tuple(rx.lexicographical_topological_sort(digraph, key=lambda i: f"{i:09d}"))
    except rx.DAGHasCycle:
        raise PlanError("the steps of this plan wait for each other in a circle; no step could be first") from None
    for index, step in enumerate(plan.steps):
        _check_step(plan, digraph, index, step)
    return order


def _makers(plan: Plan) -> dict[Ref, list[int]]:
    makers: dict[Ref, list[int]] = {}
    for index, step in enumerate(plan.steps):
        makers.setdefault(step.result, []).append(index)
    return makers


def _check_step(plan: Plan, digraph: rx.PyDiGraph[int, None], index: int, step: Step) -> None:
    before = rx.ancestors(digraph, index)
    makers = _makers(plan)
    for ref in step.args:
        if ref.slot < len(plan.inputs):
            continue
        made = [i for i in makers.get(ref, []) if i != index]
        if not made:
            raise PlanError(f"step {index} ({step.kernel.name}) reads {_named(plan, ref)}, which no step makes")
        late = [i for i in made if i not in before and index not in rx.ancestors(digraph, i)]
        if late:
            raise PlanError(
                f"step {index} ({step.kernel.name}) reads {_named(plan, ref)}, and nothing says that step {late[0]}, "
                f"which makes it, comes first: add {late[0]} to its `after`"
            )
    if isinstance(step.kernel, AddTiles):
        _check_addition(plan, before, index, step)
    elif not isinstance(step.kernel, Copy):
        _check_place(plan, index, step)


def _check_addition(plan: Plan, before: set[int], index: int, step: Step) -> None:
    opened = [i for i in plan.opens if plan.steps[i].result == step.result]
    if not any(i in before for i in opened):
        what = "that nothing opened" if not opened else "that may not have been opened yet"
        fix = f"add {opened[0]} to its `after`" if opened else "open them first with a product on that mesh"
        raise PlanError(
            f"step {index} adds into the tiles of {_named(plan, step.result)} {what}; they hold what was last there. "
            f"Instead: {fix}"
        )
    (source,) = step.args
    there, here = (plan.slots[r.slot].meshes[r.rank] for r in (source, step.result))
    if here not in plan.machine.neighbours(there):
        raise PlacementError(
            f"step {index} adds mesh {there}'s tiles into mesh {here}'s, {plan.machine.mesh_hops(there, here)} links "
            f"away; a reduction moves between neighbours only: {there} has {listed(plan.machine.neighbours(there))}"
        )


def _check_place(plan: Plan, index: int, step: Step) -> None:
    for ref in step.args:
        mesh = plan.slots[ref.slot].meshes[ref.rank]
        if mesh != step.node and not plan.machine.reaches(step.node, mesh, "read"):
            raise PlacementError(
                f"step {index} ({step.kernel.name}) runs on mesh {step.node} and reads {_named(plan, ref)}; reads "
                f"don't cross a link on {plan.machine.name}: copy the piece to mesh {step.node} first"
            )


def _named(plan: Plan, ref: Ref) -> str:
    slot = plan.slots[ref.slot]
    return f"{slot.name} on mesh {slot.meshes[ref.rank]}"


def listed(numbers: Sequence[int]) -> str:
    """Numbers for messages: `1 and 2`."""
    return " and ".join(map(str, numbers)) or "none"


class _Lowering:
    """A graph under construction, and what each piece is in it so far."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.builder = GraphBuilder()
        self.tensors: dict[int, TensorId] = {}
        for index, slot in enumerate(plan.slots):
            if not slot.resident:
                self.tensors[index] = self.builder.tensor(
                    slot_name(plan, index), slot.shaped.shape, slot.shaped.format, slot.meshes, slot.specs, slot.grid
                )
        self.stored: dict[Ref, tuple[StageId, ...]] = {}
        self.resident: dict[Ref, tuple[ResidentShare, ...]] = {}
        self.hands = min(
            (len(targets.placement(plan.machine, plan.steps[i].node).matrix_sites()) for i in plan.opens), default=1
        )

    def piece(self, ref: Ref) -> Piece:
        """A piece in DRAM, ready when it has been stored."""
        return Piece(self.tensors[ref.slot], ref.rank, self.plan.slots[ref.slot].local, self.stored.get(ref, ()))

    def add(self, step: Step) -> None:
        """The stages of one step."""
        place = targets.placement(self.plan.machine, step.node)
        match step.kernel:
            case Copy(source, target, shape):
                boxes = CopyBoxes(source, target, shape)
                self._store(
                    step, emit_copy(self.builder, place, self.piece(step.args[0]), self.piece(step.result), boxes)
                )
            case OpenTiles(tile=tile):
                shape = self.plan.slots[step.result.slot].local
                pieces = [self.piece(ref) for ref in step.args]
                self.resident[step.result] = emit_opened(self.builder, place, pieces, shape, tile, self.hands)
            case AddTiles():
                into, arriving = self.resident[step.result], self.resident[step.args[0]]
                emit_added(self.builder, self.tensors[self.plan.into], into, arriving)
            case DrainTiles():
                resident = self.resident[step.args[0]]
                self._store(step, emit_drained(self.builder, place, resident, self.piece(step.result)))
            case kernel:
                pieces = [self.piece(ref) for ref in step.args]
                self._store(step, kernel.emit(self.builder, place, pieces, self.piece(step.result)))

    def _store(self, step: Step, stores: tuple[StageId, ...]) -> None:
        self.stored[step.result] = (*self.stored.get(step.result, ()), *stores)
