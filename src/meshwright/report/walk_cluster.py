"""A simulated cluster that is looked at while it executes: what came into L1, and what each sweep left."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.ir.records import Site
from meshwright.simulator import Cluster, Completion, Setting, Unit
from meshwright.simulator.operands import Operand, Operands
from meshwright.simulator.ordering import Event
from meshwright.simulator.unit import Queued
from meshwright.targets.ktpu.isa.cluster import ClusterInstruction, Drain, Fill, Gemm, decode_cluster


class Filled(Struct, frozen=True, eq=False):
    """The first entry that a FILL left in L1: elements int8 `[4, 32]`, scale fields uint8 `[4]`."""

    word: Fill
    q: NDArray[np.int8]
    scale: NDArray[np.uint8]


class Swept(Struct, frozen=True, eq=False):
    """What a GEMM read for sub-tile 0, and the codes uint32 `[4, 4]` that it left there."""

    word: Gemm
    a: Operand
    b: Operand
    codes: NDArray[np.uint32]


class Drained(Struct, frozen=True, eq=False):
    """What a DRAIN wrote for sub-tile 0: fp16 bits uint16 `[4, 4]`."""

    word: Drain
    halves: NDArray[np.uint16]


class Watch:
    """What one cluster did up to its first DRAIN. `units` makes the clusters of a `Card`; the one at `site` is watched.

    It executes its words one after the other, and its queue has the same bits and completions as if nobody looked.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.seen: list[Filled | Swept | Drained] = []
        self._operands = Operands()

    def units(self, setting: Setting) -> Unit:
        """A cluster, as `Card(units={"MG": ...})` asks for one."""
        here = setting.mesh == self.site.chip and setting.at == (self.site.x, self.site.y)
        return _Watched(setting, self._operands, self.seen.append) if here else Cluster(setting, self._operands)


class _Watched(Cluster):
    def __init__(self, setting: Setting, operands: Operands, tell: Callable[[Filled | Swept | Drained], None]) -> None:
        super().__init__(setting, operands)
        self._tell = tell
        self._looked = Operands()
        self._over = False

    def execute(self, queued: Queued, event: Event) -> Completion | None:
        """Executes an instruction, and tells what came of it."""
        done = super().execute(queued, event)
        if done is not None and not self._over:
            self._look(decode_cluster(queued.word))
        return done

    def _look(self, word: ClusterInstruction) -> None:
        match word:
            case Fill(sel=sel, fbank=bank, eoff=first):
                entry = self._operand(sel, bank, first, 1)
                self._tell(Filled(word, entry.q, entry.scale[:, 0]))
            case Gemm(nk=nk):
                a = self._operand(0, word.abank, word.aoff, nk)
                b = self._operand(1, word.bbank, word.boff, nk)
                self._tell(Swept(word, a, b, self.accumulator.codes()[0]))
            case Drain():
                self._over = True
                self._tell(Drained(word, self.accumulator.halves(1)[0]))

    def _operand(self, side: int, bank: int, first: int, blocks: int) -> Operand:
        """Four rows of so many K blocks, as they are in L1."""
        return self._looked.of([self._banks[side][bank].part(first, 1, blocks)])
