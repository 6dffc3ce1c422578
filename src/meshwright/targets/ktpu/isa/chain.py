"""Chains of ALU words, and the predicates between them, as the vector core takes them.

Source: RTL and its simulation. Predicates are not scoreboarded: whoever reads one too early reads what it was before.
"""

from __future__ import annotations

from typing import Final

from meshwright.targets.ktpu.isa.fields import InstructionError
from meshwright.targets.ktpu.isa.vector import Alu
from meshwright.targets.ktpu.isa.vector_formats import COMPARES, Mask, Mode, Source

_DEPTH: Final = {Mode.FLAT: 1, Mode.D2: 2, Mode.D4: 4, Mode.TREE: 4}
"""ALU words of one operation; TREE gathers an ordinary word as D4 does."""
_LONG: Final = 64
"""From this many elements on, one operation between a compare and its reader is enough; below, two."""


class Chains:
    """The words of an operation that is being gathered, and how long ago each predicate was written."""

    def __init__(self) -> None:
        self.mode = Mode.FLAT
        self._gathered = 0
        self._since: dict[int, int] = {}
        self._last_pr: int | None = None

    def alu(self, word: Alu, length: int | None) -> None:
        """One ALU word, vectors having `length` elements if that is known."""
        sources = (word.sa, word.sb, word.sc)
        if self._gathered == 0 and Source.C in sources:
            raise InstructionError("a slot takes C, the stage before, in the first word of a chain (F_CHAIN)")
        if self._gathered and Source.V in sources:
            raise InstructionError(
                f"a slot takes V in word {self._gathered + 1} of a chain; only the first may, used or not (F_VSRC): "
                "set slots without use to K"
            )
        self._last_pr = word.pr
        self._gathered += 1
        if self._gathered < _DEPTH[self.mode]:
            return
        self._gathered = 0
        compares = word.op in COMPARES
        if word.pm != Mask.ALL and not compares:
            self._read(word.pr, length)
        self._since = {pr: since + 1 for pr, since in self._since.items()}
        if compares:
            self._since[word.pr] = 0

    def interrupted(self) -> None:
        """Another word than an ALU word: no chain may be open."""
        if self._gathered:
            depth = _DEPTH[self.mode]
            raise InstructionError(
                f"{self._gathered} of {depth} words of a chain stand before it; in {self.mode.name} mode {depth} ALU "
                "words make one operation"
            )

    def set_mode(self, mode: Mode) -> None:
        """VSETMODE, which also waits until the pipe is empty."""
        self.mode = mode
        self.drained()

    def drained(self) -> None:
        """The pipe is empty: predicates are what the compares made them."""
        self._since = {}

    def reduced(self, pr: int) -> None:
        """A VRED went by."""
        self._last_pr = pr

    def read_by_reduction(self, pr: int, length: int | None) -> None:
        """VRED ANY or ALL, which looks at the predicate that the ALU or VRED word before it names."""
        if self._last_pr != pr:
            before = "not known" if self._last_pr is None else f"P{self._last_pr}"
            raise InstructionError(
                f"it reads the predicate of the ALU or VRED word before it, which is {before}, not P{pr}; issue it "
                "twice: the second reads its own"
            )
        self._read(pr, length)

    def _read(self, pr: int, length: int | None) -> None:
        needed = 1 if length is not None and length >= _LONG else 2
        since = self._since.get(pr, needed)
        if since < needed:
            raise InstructionError(
                f"P{pr} is read {since} operations after its compare, before it is written; put {needed - since} more "
                "in between, or a word that empties the pipe, such as VSETMODE"
            )

    def halted(self) -> None:
        """The end of a run, which the next one starts from."""
        if self.mode is not Mode.FLAT:
            raise InstructionError(
                f"the run ends in {self.mode.name} mode, which stays; put VSETMODE mode=FLAT before it"
            )
