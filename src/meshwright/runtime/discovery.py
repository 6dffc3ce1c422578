"""`discover`: which units a card has, as they say themselves; `check`: against a machine description."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from meshwright.errors import DeviceError
from meshwright.machine import Coord, MachineSpec
from meshwright.runtime.dispatch_mailbox import CAPS, Mailboxes, Question
from meshwright.runtime.transport import Transport


class FoundUnit(Struct, frozen=True):
    """A unit that answered, at `at` of `mesh`, with what its capabilities say.

    type: `MG`, `VC`, or the code in hexadecimal where it isn't printable. version: of the build that it is part of.
    inst_depth: the instructions that it queues. buffers: the number of them that it publishes.
    """

    mesh: int
    at: Coord
    type: str
    version: int
    inst_depth: int
    buffers: int


_HIGHEST: Final = 15
"""Coordinates have 4 bits."""
_READS: Final = 8
"""Reads of the capabilities, two of which in a row have to agree: a value of another endpoint has been seen."""


def discover(transport: Transport, machine: MachineSpec) -> tuple[FoundUnit, ...]:
    """The units of every mesh of `machine`, by mesh and place, each asked at every coordinate that one can stand at.

    Which coordinates those are, the agents say: their routers, and one further all around. All meshes are asked
    together, so that more meshes take no more transport calls. Raises `DeviceError` where capabilities differ from one
    read to the next, and what the transport raises.
    """
    boxes = Mailboxes(transport)
    places = {mesh: _places(*grid) for mesh, grid in boxes.grids(machine.mesh_ids).items()}
    found: list[FoundUnit] = []
    for turn in range(max(map(len, places.values()), default=0)):
        asked = {mesh: Question(listed[turn], CAPS) for mesh, listed in places.items() if turn < len(listed)}
        found += [_unit(mesh, asked[mesh].at, value) for mesh, value in _agreed(boxes, asked).items()]
    return tuple(sorted(found, key=lambda unit: (machine.mesh_ids.index(unit.mesh), unit.at)))


def _places(low: int, high: int) -> list[Coord]:
    span = range(max(0, low - 1), min(_HIGHEST, high + 1) + 1)
    return [(x, y) for x in span for y in span]


def _agreed(boxes: Mailboxes, asked: Mapping[int, Question]) -> dict[int, int]:
    """Capabilities by mesh, of the places where a unit is."""
    seen: dict[int, list[int | None]] = {mesh: [] for mesh in asked}
    left = dict(asked)
    for _ in range(_READS):
        for mesh, value in boxes.ask(left).items():
            seen[mesh].append(value)
        left = {mesh: question for mesh, question in left.items() if not _agree(seen[mesh])}
        if not left:
            break
    for mesh, question in left.items():
        values = ", ".join("nothing" if value is None else f"{value:#018x}" for value in seen[mesh])
        raise DeviceError(
            f"what stands at {question.at} of mesh {mesh} says something else each time it is asked for its "
            f"capabilities: {values}. Reset the card"
        )
    return {mesh: value for mesh, values in seen.items() if (value := values[-1]) is not None}


def _agree(values: Sequence[int | None]) -> bool:
    return len(values) > 1 and values[-1] == values[-2]


def _unit(mesh: int, at: Coord, value: int) -> FoundUnit:
    code = value >> 48
    type_ = "".join(map(chr, code.to_bytes(2, "big"))) if _printable(code) else f"{code:#06x}"
    return FoundUnit(mesh, at, type_, value >> 40 & 0xFF, value >> 20 & 0xFFFF, value >> 36 & 0xF)


def _printable(code: int) -> bool:
    return all(0x21 <= byte <= 0x7E for byte in code.to_bytes(2, "big"))


def check(machine: MachineSpec, found: Sequence[FoundUnit]) -> None:
    """Raises `DeviceError`, with a table of the differences, where a card has not got the units that `machine` states.

    That is: a unit is missing, is more, is of another type, or queues fewer instructions. A longer queue is no
    difference: rounds then use what is stated.
    """
    rows = list(_differences(machine, found))
    if rows:
        heads = ("mesh", "place", "stated", "found")
        table = [heads, *rows]
        widths = [max(len(row[column]) for row in table) for column in range(len(heads))]
        lines = (
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
        )
        shown = "\n".join(f"  {line}" for line in lines)
        raise DeviceError(
            f"the card is not what {machine.name} states:\n{shown}\nUse the machine description of this build, or load "
            "the build that it describes"
        )


def _differences(machine: MachineSpec, found: Sequence[FoundUnit]) -> Iterator[tuple[str, str, str, str]]:
    depth = machine.dispatch.instruction_fifo
    there = {(unit.mesh, unit.at): unit for unit in found}
    stated = {
        (mesh, at): kind
        for mesh in machine.mesh_ids
        for kind in machine.mesh(mesh).unit_types
        for at in machine.mesh(mesh).coords(kind)
    }
    for place in sorted({*stated, *there}):
        kind, unit = stated.get(place), there.get(place)
        if kind is None or unit is None or kind != unit.type or unit.inst_depth < depth:
            mesh, (x, y) = place
            wanted = "nothing" if kind is None else f"{kind}, queue of {depth}"
            seen = "nothing" if unit is None else f"{unit.type}, queue of {unit.inst_depth}, version {unit.version}"
            yield str(mesh), f"({x}, {y})", wanted, seen
