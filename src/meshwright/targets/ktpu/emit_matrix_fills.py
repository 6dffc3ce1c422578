"""What is in the L1 of a cluster while a program runs, and so which FILLs can be left out."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from meshwright.targets.ktpu.isa.cluster import Fill

LONGEST_FILL: Final = 255
"""Entries; 256 wraps to 0 and the unit waits forever. Source: the card's specification."""
ENTRY_BYTES: Final = 256
BANKS: Final = 2
ADDRESSED: Final = 256
"""Entries of a bank: `eoff`, `aoff` and `boff` have 8 bits. Source: the card's specification."""


def usable_entries(entries: int) -> int:
    """Of a bank of `entries`, those that instructions can name; an address past them wraps silently."""
    return min(entries, ADDRESSED)


class Slot(Struct, frozen=True):
    """Entries of a bank that hold the operand of one sweep, from `first` on."""

    bank: int
    first: int


class Side:
    """One side of L1 for sweeps that take `size` entries each, in an order that is known beforehand.

    sel: 0 for A, 1 for B. entries: of a bank. order: the address of each sweep's entries.

    What a sweep reads must not be filled while it runs, and a GEMM completes when its sweep starts: so a fill goes to
    the other bank than the sweep before reads, there over the entries that are needed again last.
    """

    def __init__(self, sel: int, size: int, entries: int, order: Sequence[int]) -> None:
        self._sel = sel
        self._size = size
        self._slots = [Slot(bank, at * size) for at in range(entries // size) for bank in range(BANKS)]
        self._held: dict[Slot, int] = {}
        self._uses: defaultdict[int, list[int]] = defaultdict(list)
        for at, address in enumerate(order):
            self._uses[address].append(at)
        self._now = -1

    def take(self, address: int, busy: int | None) -> tuple[Slot, list[Fill]]:
        """Where the next sweep finds the entries at `address`, and the FILLs that bring them there, if any are needed.

        busy: the bank that a sweep may be reading.
        """
        self._now += 1
        for slot, held in self._held.items():
            if held == address:
                return slot, []
        slot = max((slot for slot in self._slots if slot.bank != busy), key=self._needed_again)
        self._held[slot] = address
        return slot, list(self._fills(address, slot))

    def forget(self) -> None:
        """Something else has been filled over what was held."""
        self._held.clear()

    def _needed_again(self, slot: Slot) -> float:
        """The sweep that reads next what the slot holds; the first of those that nobody will wins."""
        if slot not in self._held:
            return math.inf
        uses = self._uses[self._held[slot]]
        at = bisect_right(uses, self._now)
        return uses[at] if at < len(uses) else math.inf

    def _fills(self, address: int, slot: Slot) -> Iterator[Fill]:
        for done in range(0, self._size, LONGEST_FILL):
            yield Fill(
                addr=address + ENTRY_BYTES * done,
                n=min(LONGEST_FILL, self._size - done),
                sel=self._sel,
                eoff=slot.first + done,
                fbank=slot.bank,
            )
