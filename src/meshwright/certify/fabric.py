"""Fabric: `NeighboursOnly`, `UnitPresent`: what moves between chips, and which unit runs what."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from meshwright.certify.certificate import Entry, Transfers, Units, Witness
from meshwright.certify.findings import Case, broken, held
from meshwright.ir.ids import ChipId, StageId
from meshwright.ir.moves import moves
from meshwright.ir.records import Load, Stage, Store
from meshwright.ir.room import occupants, sites_of, unit_at, units_for
from meshwright.machine import MachineSpec


def route(machine: MachineSpec, source: ChipId, target: ChipId) -> list[tuple[ChipId, ChipId]]:
    """The links that a transfer crosses, each with its direction; `MachineError` where there is no way."""
    return [(ChipId(a), ChipId(b)) for a, b in pairwise(machine.path(source, target))]


def crossing(stage: Stage) -> Literal["read", "write", "unit_data"]:
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
        there = {source, target} <= set(machine.mesh_ids)
        if there and machine.reaches(source, target, what):
            continue
        message, change = _unreachable(machine, what, source, target) if there else _gone(machine, source, target)
        witness = Witness((stage,), graph.stages[stage].ins, (source, target), change=change)
        return broken(name, f"{case.stage(stage)} moves blocks from chip {source} to {target}: {message}", witness)
    return held(name, Transfers(tuple(found)), "" if found else "nothing moves between chips")


def _gone(machine: MachineSpec, source: ChipId, target: ChipId) -> tuple[str, str]:
    gone = next(chip for chip in (source, target) if chip not in machine.mesh_ids)
    known = ", ".join(map(str, machine.mesh_ids))
    return f"{machine.name} has no chip {gone}", f"use one that is there: {known}"


def _unreachable(machine: MachineSpec, what: str, source: ChipId, target: ChipId) -> tuple[str, str]:
    if what not in machine.crosses:
        may = ", ".join(machine.crosses) or "nothing"
        return f"{what} doesn't cross a link of {machine.name}; {may} does", "let the chip that has the data write it"
    if not machine.fabric.joined(source, target):
        return f"no links of {machine.name} lead there", "use chips that are joined"
    way = machine.path(source, target)
    apart = f"they are {len(way) - 1} links apart, and {machine.name} forwards nothing"
    return apart, f"go from neighbour to neighbour: {', '.join(map(str, way))}"


def unit_present(case: Case) -> Entry:
    """At every stage's site stands a unit that can do what the stage does."""
    name = "UnitPresent"
    there = occupants(case.machine)
    units: list[str] = []
    for index, stage in enumerate(case.graph.stages):
        able = units_for(case.graph, stage, case.machine)
        found = ""
        for site in sites_of(case.graph, stage):
            found = unit_at(there, site)
            if found not in able:
                what = "there is no such chip" if site.chip not in there else f"{found or 'nothing'} is there"
                witness = Witness((StageId(index),), (*stage.ins, *stage.outs), (site.chip,), change=_else(case, able))
                needs = f"{case.stage(StageId(index))} needs {' or '.join(able)} at {site} of {case.machine.name}"
                return broken(name, f"{needs}, and {what}", witness)
        units.append(found)
    return held(name, Units(tuple(units)))


def _else(case: Case, needed: tuple[str, ...]) -> str:
    for kind in needed:
        for mesh in case.machine.meshes:
            if at := mesh.coords(kind):
                return f"place it where there is one: {kind} at {mesh.id}:({at[0][0]},{at[0][1]})"
    return f"{case.machine.name} has no {' or '.join(needed)}; use a machine that does"
