"""Programs that don't say yet where their data are: addresses are offsets into images, filled in for each run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from msgspec import Struct

from meshwright.errors import PlacementError
from meshwright.targets.ktpu.isa.cluster import ClusterInstruction, Drain, Fill
from meshwright.targets.ktpu.isa.payload import Desc, Payload
from meshwright.targets.ktpu.isa.program import Program

LEAST_ADDRESS = 1 << 20
"""Where images may begin when a program is emitted to be relocated: below are words of L1, which stay as they are."""


class Reference(Struct, frozen=True):
    """Instruction `word` of a program has the address `offset` bytes into an image."""

    word: int
    image: int
    offset: int


class Relocatable(Struct, frozen=True):
    """A program, and which of its addresses are in which image; the addresses in it are those of its emission."""

    program: Program
    references: tuple[Reference, ...]

    def at(self, addresses: Mapping[int, int]) -> Program:
        """The program for images at global byte addresses, by image number."""
        return self.program.moved({r.word: addresses[r.image] + r.offset for r in self.references})

    def renumbered(self, images: Sequence[int]) -> Relocatable:
        """The same with other numbers for the images: `images[n]` for n."""
        return Relocatable(self.program, tuple(Reference(r.word, images[r.image], r.offset) for r in self.references))


def relocatable(program: Program, starts: Sequence[tuple[int, int, int]]) -> Relocatable:
    """What `program` was emitted for images at; starts: (first byte, bytes, image number), ascending.

    Raises `PlacementError` for an address that is in none of them.
    """
    firsts = [start for start, _, _ in starts]
    references: list[Reference] = []
    for number, word in enumerate(program.words):
        address = _address(word)
        if address is None:
            continue
        at = bisect_right(firsts, address) - 1
        if at < 0 or address >= firsts[at] + starts[at][1]:
            raise PlacementError(f"word {number} of a program has address {address:#x}, which is in none of its images")
        references.append(Reference(number, starts[at][2], address - firsts[at]))
    return Relocatable(program, tuple(references))


def _address(word: ClusterInstruction | Payload) -> int | None:
    """The DRAM address in an instruction, if it has one."""
    match word:
        case Fill(addr=addr):
            return addr
        case Drain(addr=addr, dnode=0):
            return addr
        case Desc(fld=0, value=value) if value >= LEAST_ADDRESS:
            return value
        case _:
            return None
