"""Where two computations part: the first value that only one of them has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from msgspec import Struct

from meshwright.certify.pieces import join_logical
from meshwright.certify.systems import FieldSystem, Inputs, fold, split_inputs, tensor_named
from meshwright.errors import EvaluationError
from meshwright.evaluate.arithmetic import Array
from meshwright.evaluate.field_twin import Residues
from meshwright.evaluate.walk import evaluate
from meshwright.ir.flow import stage_order
from meshwright.ir.graph import Graph
from meshwright.ir.ids import StageId
from meshwright.ir.records import Store


class Parting(Struct, frozen=True):
    """The first place, in the graph's order of stages, that the reference doesn't have.

    tensor: an intermediate value of the same name in both that differs. stage, function: the stage of the graph that
    asks a function which isn't interpreted for arguments that the reference never asks it for; `in_reference` the
    other way round.
    """

    tensor: str | None = None
    stage: StageId | None = None
    function: str | None = None
    in_reference: bool = False

    def __str__(self) -> str:
        if self.tensor is not None:
            return f"they part at {self.tensor!r}, which both store and which differs"
        whose, other = ("the reference", "the graph") if self.in_reference else ("the graph", "the reference")
        return f"they part at stage s{self.stage} of {whose}: it asks {self.function} for what {other} never does"


class _Asked(Struct, frozen=True, eq=False):
    stage: StageId
    function: str
    arguments: Residues


def _asked(system: FieldSystem, graph: Graph, inputs: Inputs, names: Mapping[str, str]) -> list[_Asked]:
    """Every question to a function that isn't interpreted, in order."""
    order = stage_order(graph)
    found: list[_Asked] = []
    done = 0

    def hashed(function: str, x: Residues) -> None:
        found.append(_Asked(order[done], function, np.unique(x)))

    def progress(finished: int, _: int) -> None:
        nonlocal done
        done = finished

    recording = FieldSystem(system.seed, system.constants, hashed)
    given = split_inputs(recording, graph, inputs, names)
    evaluate(graph, given, recording.arithmetic, progress=progress)
    return found


def parting(
    system: FieldSystem, graph: Graph, reference: Graph, inputs: Inputs, names: Mapping[str, str]
) -> Parting | None:
    """The first place where the graph parts from the reference on these inputs, or None where none is seen."""
    by_name = _by_name(system, graph, reference, inputs, names)
    if by_name is not None:
        return Parting(tensor=by_name)
    mine = _asked(system, graph, inputs, names)
    theirs = _asked(system, reference, inputs, {})
    found = _alone(mine, theirs)
    if found is not None:
        return Parting(stage=found.stage, function=found.function)
    found = _alone(theirs, mine)
    return None if found is None else Parting(stage=found.stage, function=found.function, in_reference=True)


def _alone(mine: list[_Asked], theirs: list[_Asked]) -> _Asked | None:
    known: dict[str, Residues] = {}
    for function in {asked.function for asked in theirs}:
        known[function] = np.unique(np.concatenate([a.arguments for a in theirs if a.function == function]))
    nothing: Residues = np.empty(0, dtype=np.uint64)
    for asked in mine:
        if not np.isin(asked.arguments, known.get(asked.function, nothing)).all():
            return asked
    return None


def _by_name(
    system: FieldSystem, graph: Graph, reference: Graph, inputs: Inputs, names: Mapping[str, str]
) -> str | None:
    """The first intermediate value of the same name and shape in both that differs, in the order of its stores."""
    stores = [graph.stages[s].kind for s in stage_order(graph)]
    stored = dict.fromkeys(graph.tensors[k.tensor].name for k in stores if isinstance(k, Store))
    others = {reference.tensors[t].name: t for t in reference.stored() - set(reference.outputs())}
    called = {here: name for name, here in names.items()}
    common: dict[str, str] = {}
    for here in stored:
        name = called.get(here, here)
        if name in others and tensor_named(graph, here).shape == reference.tensors[others[name]].shape:
            common[here] = name
    first = _wholes(system, graph, tuple(common), split_inputs(system, graph, inputs, names))
    second = _wholes(system, reference, tuple(common.values()), split_inputs(system, reference, inputs, {}))
    for here, name in common.items():
        if here in first and name in second and not np.array_equal(first[here], second[name]):
            return name
    return None


def _wholes(
    system: FieldSystem, graph: Graph, names: tuple[str, ...], given: Mapping[str, tuple[Array, ...]]
) -> dict[str, Array]:
    """Stored values put together; those that aren't stored whole, as scratch space may be, are left out."""
    try:
        made = evaluate(graph, given, system.arithmetic, names)
    except EvaluationError:
        if len(names) <= 1:
            return {}
        found: dict[str, Array] = {}
        for name in names:
            found.update(_wholes(system, graph, (name,), given))
        return found
    found = {}
    for name in names:
        tensor = tensor_named(graph, name)
        found[name] = join_logical(tensor, made[name], partial(fold, system, tensor.format))
    return found
