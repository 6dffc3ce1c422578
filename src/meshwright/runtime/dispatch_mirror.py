"""What the completion mirror of a mesh's agent says of one unit, against what is expected of it."""

from __future__ import annotations

from typing import Final

from meshwright.errors import DispatchError, UnitFault
from meshwright.ir.records import Site
from meshwright.runtime.dispatch_jobs import Piece
from meshwright.simulator.unit import Signal

COUNT: Final = 1 << 16
_VALID: Final = 1
_RESERVED: Final = 0xFE
_VECTOR_FAULTS: Final = {
    1: "DTYPE, an element type that the instruction can't take",
    2: "VSRC, a vector operand outside the first word of a chain",
    3: "CHAIN, an operand C in the first word of a chain",
    4: "OPCODE, an instruction that isn't there, or a step of a tree outside one",
    5: "LEN, a walk of more than 256 words",
    6: "LOOP, a loop in a loop",
    7: "VL, a vector length of 0 or more than 128",
    8: "REDVL, a reduction over a vector length that it can't take",
    9: "CUDATA, a burst for another buffer, past the end, or while another sender's was open",
}
"""Codes of a vector core's faults. Source: the card's RTL."""


def fault_name(kind: str, code: int) -> str:
    """A fault code as messages name it."""
    known = _VECTOR_FAULTS.get(code) if kind == "VC" else None
    return f"fault {code}" if known is None else f"fault {code} ({known})"


class Flight:
    """A piece that was kicked; `pending` are the units that don't have all their signals yet."""

    def __init__(self, piece: Piece, own: Site) -> None:
        self.piece = piece
        self.pending: set[Site] = {own, *piece.arrivals}


class Node:
    """One unit's place in the mirror. Counts are since the start of a run: `expected` of them, `counted` seen.

    Quiet when they are equal; `settled` were counted when it last was, and `arrivals` of those since are not its own.
    `since`: when it last made progress, or was given something to do.
    """

    def __init__(self, site: Site, kind: str, word: int) -> None:
        self.site = site
        self.kind = kind
        self.base = count_of(word, self)
        self.expected = 0
        self.counted = 0
        self.settled = 0
        self.arrivals = 0
        self.flights: list[Flight] = []
        self.since = 0.0
        self._batch: int | None = None

    @property
    def label(self) -> str:
        """As messages name it."""
        return unit_label(self.kind, self.site)

    @property
    def quiet(self) -> bool:
        """Whether all that is expected has been counted."""
        return self.counted == self.expected

    @property
    def target(self) -> int:
        """What the mirror's count is when all that is expected has come."""
        return (self.base + self.expected) % COUNT

    def kicked(self, txn: int) -> None:
        """Words are sent to it, the last of which is to be answered with this number."""
        self._batch = txn

    def expect(self, signals: int, now: float, flight: Flight, *, arrivals: bool = False) -> None:
        """So many more signals are to come, because of a piece that was kicked."""
        self.expected += signals
        self.arrivals += signals if arrivals else 0
        self.flights.append(flight)
        self.since = now

    def take(self, word: int, now: float) -> bool:
        """A word out of the mirror; whether something was counted that hadn't been.

        Raises `UnitFault` where the last signal is a fault, and `DispatchError` for a count that is past what is
        expected, an answer to another kick, and a word that no mirror holds.
        """
        new = (count_of(word, self) - self.base - self.counted) % COUNT
        if new > self.expected - self.counted:
            self._past(new)
        if not new:
            return False
        self.counted += new
        self.since = now
        code, arg = word >> 56, word >> 24 & 0xFFFF_FFFF
        if code == Signal.FAULT:
            raise UnitFault(f"{self.label} stopped with {fault_name(self.kind, arg)} in {self.works()}")
        if code not in (Signal.INST_COMPLETE, Signal.BATCH_COMPLETE, Signal.DATA_RECEIVED):
            raise DispatchError(
                f"{self.label} signalled with code {code}, which is neither a completion nor a fault, in {self.works()}"
            )
        if self.quiet and self._batch is not None:
            self._ended(code, arg)
        return True

    def _ended(self, code: int, arg: int) -> None:
        """The last of its own words is answered with the number of its kick; an arrival may hide that."""
        if code == Signal.DATA_RECEIVED and self.arrivals:
            return
        if (code, arg) != (Signal.BATCH_COMPLETE, self._batch):
            found = f"that of kick {arg}" if code == Signal.BATCH_COMPLETE else f"a signal with code {code}"
            raise DispatchError(
                f"{self.label} ended with {found}, and it was sent kick {self._batch}, in {self.works()}. It executed "
                "something else than it was sent: a write to the card was lost or changed. Nothing that it computed is "
                "to be trusted"
            )

    def landed(self) -> list[Piece]:
        """Quiet: takes note of it, and returns the pieces that are complete now."""
        found: list[Piece] = []
        for flight in self.flights:
            flight.pending.discard(self.site)
            if not flight.pending:
                found.append(flight.piece)
        self.flights.clear()
        self.settled, self.arrivals, self._batch = self.counted, 0, None
        return found

    def works(self) -> str:
        """The jobs that it is working on or that send to it, as messages name them."""
        labels = dict.fromkeys(flight.piece.work.label for flight in self.flights)
        return "; ".join(labels) or "no job"

    def _past(self, new: int) -> None:
        found = self.counted + new
        far = found if found < COUNT // 2 else found - COUNT
        raise DispatchError(
            f"{self.label} counts {far} signals since the run began, and {self.expected} are expected at most, "
            f"{self.counted} of which had come, in {self.works()}. A signal was counted twice, a kick was carried out "
            "twice, or somebody else uses this unit: nothing that it computed is to be trusted. Give the card to one "
            "dispatcher, and run again"
        )


def unit_label(kind: str, site: Site) -> str:
    """`MG (1, 2) of mesh 0`."""
    return f"{kind} ({site.x}, {site.y}) of mesh {site.chip}"


def count_of(word: int, node: Node) -> int:
    """The count in a word of the mirror; `DispatchError` for a word that no mirror holds."""
    if word & _RESERVED or (word and not word & _VALID):
        raise DispatchError(
            f"the completion mirror reads {word:#018x} for {node.label}: bits 7 to 1 are always 0, and bit 0 is 1 "
            "where anything was counted. The word was corrupted on its way; nothing more is read from it"
        )
    return word >> 8 & COUNT - 1
