"""What the simulator reports instead of a number that nobody can trust, and the exceptions that carry a report."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from msgspec import Struct

from meshwright.errors import MeshwrightError
from meshwright.machine import Coord


class Kind(StrEnum):
    """Why there is no answer."""

    UNDEFINED = "undefined"
    """A value that nobody set is used, or a word that the machine gives no meaning."""
    UNPREDICTABLE = "unpredictable"
    """The answer would depend on time: nothing orders two things that must be ordered."""
    UNSUPPORTED = "unsupported"
    """The machine has not got what is asked of it."""
    NOT_MODELLED = "not modelled"
    """The machine has it, and the simulator has not."""
    DEADLOCK = "deadlock"
    """Units are busy and nothing can go on."""


class Report(Struct, frozen=True):
    """One fault: where, at which instruction, and what is wrong.

    at: coordinate of the unit, or None for the agent and the host. index: number of the instruction since the unit was
    made, or None. instruction: its disassembly, or what was asked.
    """

    kind: Kind
    mesh: int
    problem: str
    unit: str = "agent"
    at: Coord | None = None
    index: int | None = None
    instruction: str = ""

    def __str__(self) -> str:
        where = f"mesh {self.mesh}, {self.unit}" + ("" if self.at is None else f" ({self.at[0]}, {self.at[1]})")
        which = "" if self.index is None else f", instruction {self.index}"
        asked = f" [{self.instruction}]" if self.instruction else ""
        return f"{self.kind}: {where}{which}{asked}: {self.problem}"


class MachineFault(MeshwrightError, RuntimeError):  # noqa: N818
    """The machine can't give a right answer; `report` says where and why."""

    kind: ClassVar[Kind]

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


class Undefined(MachineFault):
    """See `Kind.UNDEFINED`."""

    kind = Kind.UNDEFINED


class Unpredictable(MachineFault):
    """See `Kind.UNPREDICTABLE`."""

    kind = Kind.UNPREDICTABLE


class Unsupported(MachineFault):
    """See `Kind.UNSUPPORTED`."""

    kind = Kind.UNSUPPORTED


class NotModelled(MachineFault):
    """See `Kind.NOT_MODELLED`."""

    kind = Kind.NOT_MODELLED


class Deadlock(MachineFault):
    """See `Kind.DEADLOCK`."""

    kind = Kind.DEADLOCK


_OF_KIND: dict[Kind, type[MachineFault]] = {
    cls.kind: cls for cls in (Undefined, Unpredictable, Unsupported, NotModelled, Deadlock)
}


def raised(report: Report) -> MachineFault:
    """The exception of a report's kind."""
    return _OF_KIND[report.kind](report)


class Trouble(Exception):  # noqa: N818
    """A problem on its way to the unit that adds where and at which instruction it happened; never leaves the room."""

    def __init__(self, kind: Kind, problem: str) -> None:
        super().__init__(problem)
        self.kind = kind
        self.problem = problem


def undefined(problem: str) -> Trouble:
    """Trouble of kind `Kind.UNDEFINED`."""
    return Trouble(Kind.UNDEFINED, problem)


def unpredictable(problem: str) -> Trouble:
    """Trouble of kind `Kind.UNPREDICTABLE`."""
    return Trouble(Kind.UNPREDICTABLE, problem)


def unsupported(problem: str) -> Trouble:
    """Trouble of kind `Kind.UNSUPPORTED`."""
    return Trouble(Kind.UNSUPPORTED, problem)


def not_modelled(problem: str) -> Trouble:
    """Trouble of kind `Kind.NOT_MODELLED`."""
    return Trouble(Kind.NOT_MODELLED, problem)


class Rejected(Trouble):
    """A burst that a unit counts out and drops; whether it acknowledges is the unit's."""

    def __init__(self, problem: str) -> None:
        super().__init__(Kind.UNSUPPORTED, problem)
