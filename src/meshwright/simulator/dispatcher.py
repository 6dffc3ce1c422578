"""The dispatcher of an agent: staged flits go out to a unit as long as there are credits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.simulator.faults import Trouble, undefined, unpredictable, unsupported
from meshwright.simulator.ordering import Issue
from meshwright.simulator.registers import SHORT, SLOT_BYTES
from meshwright.simulator.unit import Queued, Unit
from meshwright.targets.ktpu.isa.flit import FLIT_WORDS, HEADER, PAYLOAD_BITS, FlitType

_LAST: Final = 1 << HEADER.free["last"].lo - PAYLOAD_BITS
_TYPE: Final = HEADER.free["type"].lo - PAYLOAD_BITS
_TXN: Final = HEADER.free["txn"].lo - PAYLOAD_BITS
_PAYLOAD_BYTES: Final = PAYLOAD_BITS // 8


class _Kick(Struct):
    """A program on its way: next slot, flits left, the unit they go to."""

    slot: int
    left: int
    unit: Unit
    issue: Issue


class Dispatcher:
    """Staging memory of `slots` flits and one program at a time out of it, over one counter of credits.

    Each flit that is pushed costs a credit, and each completion of an instruction gives one back; the completion of a
    flit with `last`, and a fault, give none.
    """

    def __init__(self, slots: int, fifo: int) -> None:
        self._staged: NDArray[np.uint64] = np.zeros((slots, FLIT_WORDS), dtype=np.uint64)
        self._written: NDArray[np.bool_] = np.zeros((slots, FLIT_WORDS), dtype=np.bool_)
        self._fifo = fifo
        self._kick: _Kick | None = None
        self.credit = 0

    @property
    def running(self) -> bool:
        """Whether flits of a kick are left to push."""
        return self._kick is not None

    @property
    def left(self) -> int:
        """Flits left to push."""
        return 0 if self._kick is None else self._kick.left

    @property
    def stalled(self) -> str | None:
        """What it waits for, if it does."""
        if self._kick is None or self.credit:
            return None
        return f"{self._kick.left} flits for {self._kick.unit.label} wait for a credit, and none is left"

    def stage(self, offset: int, data: NDArray[np.uint64]) -> None:
        """Write words at a byte offset of staging memory; trouble past its end, or under a program that runs."""
        first = offset // 8
        if first + len(data) > self._staged.size:
            raise undefined(
                f"staging words {first} to {first + len(data) - 1} are written; there are {len(self._staged)} slots of "
                f"{SLOT_BYTES} bytes"
            )
        self._staged.reshape(-1)[first : first + len(data)] = data
        self._written.reshape(-1)[first : first + len(data)] = True
        if (kick := self._kick) is not None:
            start, stop = kick.slot * FLIT_WORDS, (kick.slot + kick.left) * FLIT_WORDS
            if first < stop and start < first + len(data):
                raise unpredictable(
                    f"slots {kick.slot} to {kick.slot + kick.left - 1} are dispatched, and slot {first // FLIT_WORDS} "
                    "is written again: wait for the completion of a round before staging the next"
                )

    def start(self, slot: int, flits: int, unit: Unit, issue: Issue) -> None:
        """Start a program of `flits` flits from `slot` on; trouble where one runs, and the kick is dropped."""
        if self._kick is not None:
            raise unpredictable(
                f"a kick for {unit.label} while {self._kick.left} flits for {self._kick.unit.label} are left: a kick "
                "that arrives while one runs is dropped. Poll PROG_STAT bit 0 first"
            )
        if slot + flits > len(self._staged):
            raise undefined(
                f"slots {slot} to {slot + flits - 1} are kicked, and staging memory has {len(self._staged)}"
            )
        self._kick = _Kick(slot, flits, unit, issue)

    def dispatch(self) -> bool:
        """Push flits while there are credits; whether any was pushed."""
        kick = self._kick
        if kick is None or not self.credit:
            return False
        try:
            for queued in self._flits(kick, min(kick.left, self.credit)):
                self.credit -= 1
                kick.slot += 1
                kick.left -= 1
                self._push(kick.unit, queued)
        except Trouble:
            self._kick = None
            raise
        if not kick.left:
            self._kick = None
        return True

    def give_back(self, count: int) -> None:
        """`count` instructions are complete."""
        self.credit = self.credit + count & SHORT

    def _flits(self, kick: _Kick, count: int) -> Iterator[Queued]:
        """The next flits of a program; trouble for one that is none, once those before it are taken."""
        slots = slice(kick.slot, kick.slot + count)
        staged, written = self._staged[slots], np.all(self._written[slots], axis=1).tolist()
        data, size = staged.tobytes(), FLIT_WORDS * staged.itemsize
        for at, header in enumerate(staged[:, -1].tolist()):
            slot = slots.start + at
            if not written[at]:
                raise undefined(
                    f"staging slot {slot} is dispatched and was never written: it holds whatever was last there"
                )
            if (kind := header >> _TYPE & 15) != FlitType.CU_INST:
                raise unsupported(f"staging slot {slot} has a flit of type {kind}; units take instructions, type 5")
            word = int.from_bytes(data[at * size : at * size + _PAYLOAD_BYTES], "little")
            yield Queued(word, kick.issue, header >> _TXN & 0xFF, bool(header & _LAST))

    def _push(self, unit: Unit, queued: Queued) -> None:
        push(unit, queued, self._fifo)


def push(unit: Unit, queued: Queued, fifo: int) -> None:
    """Put an instruction into a unit's queue; trouble where more are in flight than the queue holds."""
    if len(unit.queue) >= fifo:
        unit.stopped = True
        raise unpredictable(
            f"{len(unit.queue) + 1} instructions in flight for {unit.label}, whose queue holds {fifo}: more wedge the "
            f"unit, so seed at most {fifo} credits"
        )
    unit.queue.append(queued)
