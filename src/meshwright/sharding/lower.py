"""From a plan to its stage graph. Pieces without elements have no stages: there is nothing to compute or to move."""

from __future__ import annotations

import math
from functools import lru_cache

from meshwright import targets
from meshwright.ir.build import GraphBuilder
from meshwright.ir.graph import Graph
from meshwright.ir.ids import StageId, TensorId
from meshwright.kernels.kernel import Piece
from meshwright.kernels.matmul import ResidentShare, emit_added, emit_drained, emit_opened
from meshwright.kernels.move import CopyBoxes, emit_copy
from meshwright.sharding.checks import check_plan
from meshwright.sharding.steps import AddTiles, Copy, DrainTiles, OpenTiles, Ref, Step, Steps


def graph_of(plan: Steps) -> Graph:
    """The stage graph of the whole plan, all meshes. Raises `PlanError` or `PlacementError` as `check_plan` does."""
    steps = Steps(plan.machine, plan.given, plan.slots, plan.steps, plan.into)
    try:
        hash(steps)
    except TypeError:  # A kernel of one's own that has no hash: its graph is made anew each time.
        return _lowered(steps)
    return _known(steps)


@lru_cache(maxsize=256)
def _known(plan: Steps) -> Graph:
    # Layers of a model differ in their values and not in their steps: one graph serves them all, and what readers have
    # found of it (its form, its order) goes with it.
    return _lowered(plan)


def _lowered(plan: Steps) -> Graph:
    order = check_plan(plan)
    lowering = _Lowering(plan)
    for index in order:
        if not empty(plan, plan.steps[index]):
            lowering.add(plan.steps[index])
    return lowering.builder.graph()


def empty(plan: Steps, step: Step) -> bool:
    """Whether a step makes no element."""
    made = step.kernel.shape if isinstance(step.kernel, Copy) and step.kernel.shape is not None else None
    return not math.prod(plan.slots[step.result.slot].local if made is None else made)


def slot_name(plan: Steps, slot: int) -> str:
    """The tensor name of a slot in the plan's graph: its own name, numbered, since names may repeat."""
    return f"{plan.slots[slot].name}.{slot}"


class _Lowering:
    """A graph under construction, and what each piece is in it so far."""

    def __init__(self, plan: Steps) -> None:
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
