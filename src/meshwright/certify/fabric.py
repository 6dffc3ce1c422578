"""Fabric: `NeighboursOnly`, `UnitPresent`: what moves between chips, and which unit runs what."""

from __future__ import annotations

from itertools import pairwise

from meshwright.certify.certificate import Entry, Transfers, Units, Witness
from meshwright.certify.findings import Case, broken, held
from meshwright.errors import MachineError
from meshwright.ir.expression import Operand
from meshwright.ir.graph import Graph
from meshwright.ir.ids import ChipId, StageId
from meshwright.ir.moves import moves
from meshwright.ir.operation import Generic, Matmul, Permute, Unit
from meshwright.ir.records import AllReduce, Compute, Load, Site, Stage, Store
from meshwright.machine import MachineSpec


def route(machine: MachineSpec, source: ChipId, target: ChipId) -> list[tuple[ChipId, ChipId]]:
    """The links that a transfer crosses, each with its direction; `MachineError` where there is no way."""
    return [(ChipId(a), ChipId(b)) for a, b in pairwise(machine.path(source, target))]


def crossing(stage: Stage) -> str:
    """What crosses a link for a stage, as machines name it."""
    match stage.kind:
        case Load():
            return "read"
        case Store():
            return "write"
        case _:
            return "unit_data"


def neighbours_only(case: Case) -> Entry:
    """What moves between chips moves over one link, or the machine forwards it; and it may cross a link at all."""
    name = "NeighboursOnly"
    graph, machine = case.graph, case.machine
    found = moves(graph)
    for stage, source, target in found:
        what = crossing(graph.stages[stage])
        try:
            if machine.reaches(source, target, what):  # pyright: ignore[reportArgumentType]
                continue
            message, change = _unreachable(machine, what, source, target)
        except MachineError as error:
            message, change = str(error), "place the stage on a chip that the machine has"
        witness = Witness((stage,), graph.stages[stage].ins, (source, target), change=change)
        return broken(name, f"{case.stage(stage)} moves blocks from chip {source} to {target}: {message}", witness)
    return held(name, Transfers(tuple(found)), "" if found else "nothing moves between chips")


def _unreachable(machine: MachineSpec, what: str, source: ChipId, target: ChipId) -> tuple[str, str]:
    if what not in machine.crosses:
        may = ", ".join(machine.crosses) or "nothing"
        return f"{what} doesn't cross a link of {machine.name}; {may} does", "let the chip that has the data write it"
    way = machine.path(source, target)
    hops = ", ".join(map(str, way))
    return (
        f"they are {len(way) - 1} links apart, and {machine.name} forwards nothing",
        f"go from neighbour to neighbour: {hops}",
    )


def unit_for(graph: Graph, stage: Stage, machine: MachineSpec) -> tuple[str, ...]:
    """Types of unit that can run a stage; "port" and "agent" are where movers are. Any of them will do."""
    if machine.numerics == "grid":
        return ("site",)
    match stage.kind:
        case Compute(Matmul()):
            return ("MG",)
        case Compute(Generic() as op) if op.unit is Unit.ACCUMULATOR or _drains(graph, stage, op):
            return ("MG",)
        case AllReduce(combine=combine):
            return ("MG",) if combine.unit is Unit.ACCUMULATOR else ("VC",)
        case Compute(Permute()):
            return ("VC", "port", "agent", "port+agent")
        case Compute():
            return ("VC",)
        case Load() | Store():
            return ("MG", "VC", "port", "agent", "port+agent")
        case _:
            return ("MG", "VC")


def _drains(graph: Graph, stage: Stage, op: Generic) -> bool:
    """Whether an operation only takes sums out of an accumulator, which the cluster does on its way to memory."""
    return op.exprs == (Operand(0),) and len(stage.ins) == 1 and graph.buffers[stage.ins[0]].resident


def sites_of(graph: Graph, stage: Stage) -> list[Site]:
    """Where a stage needs a unit: an `AllReduce` needs one at all its operands and results."""
    if isinstance(stage.kind, AllReduce):
        return list(dict.fromkeys(graph.buffers[b].site for b in (*stage.ins, *stage.outs)))
    return [graph.site(stage)]


def unit_present(case: Case) -> Entry:
    """At every stage's site stands a unit that can do what the stage does."""
    name = "UnitPresent"
    occupants = {mesh.id: mesh.occupants() for mesh in case.machine.meshes}
    units: list[str] = []
    runs = ""
    for index, stage in enumerate(case.graph.stages):
        needed = unit_for(case.graph, stage, case.machine)
        for site in sites_of(case.graph, stage):
            there = occupants.get(site.chip, {}).get((site.x, site.y))
            if there not in needed:
                what = "no such chip" if site.chip not in occupants else f"{there or 'nothing'} is there"
                return broken(
                    name,
                    f"{case.stage(StageId(index))} needs {' or '.join(needed)} at {site} of {case.machine.name}, and "
                    f"{what}",
                    Witness(
                        (StageId(index),), (*stage.ins, *stage.outs), (site.chip,), change=_elsewhere(case, needed)
                    ),
                )
            runs = there
        units.append(runs)
    return held(name, Units(tuple(units)))


def _elsewhere(case: Case, needed: tuple[str, ...]) -> str:
    for kind in needed:
        for mesh in case.machine.meshes:
            if at := mesh.coords(kind):
                return f"place it where there is one: {kind} at {mesh.id}:({at[0][0]},{at[0][1]})"
    return f"{case.machine.name} has no {' or '.join(needed)}; use a machine that does"
