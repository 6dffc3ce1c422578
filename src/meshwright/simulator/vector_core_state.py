"""What a vector core holds between two runs, and which of it is known.

Every register element and every half word of L1 carries a taint: 0, or the number of the `Defect` because of which
nobody can say what the silicon would hold there. A taint goes where the value goes; only what leaves the core, or
steers it, has to be known. Sizes and reset values: RTL, in tests/golden/ktpu_vector_isa.json.
"""

from __future__ import annotations

import math
from enum import IntEnum
from functools import lru_cache
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.machine.figures import VectorCoreSpec
from meshwright.simulator.faults import Kind

VECTOR_REGISTERS: Final = 16
SCALAR_REGISTERS: Final = 16
PREDICATES: Final = 4
DIMENSIONS: Final = 4
ADDRESS_MASK: Final = (1 << 40) - 1
KNOWN: Final = 0
UNWRITTEN: Final = 4
"""Taints up to this one are of what nothing has written since the core was switched on."""
CONSTANTS: Final = (0x000000, 0x3F8000, 0xBF8000, 0x000000)
"""K0 to K3 after reset: 0, 1, -1, 0; only K3 can be written."""

Codes = NDArray[np.uint32]
Taints = NDArray[np.uint16]
Addresses = NDArray[np.int64]


class Fault(IntEnum):
    """Why a core stops a run and says so: the argument of its fault signal."""

    DTYPE = 1
    VSRC = 2
    CHAIN = 3
    OPCODE = 4
    LEN = 5
    LOOP = 6
    VL = 7
    REDVL = 8
    CUDATA = 9


class Defect(Struct, frozen=True):
    """What makes a result of a program unsayable.

    kind: undefined is what no reset, store or stated rule gives a value; unpredictable is what the silicon is known to
    get wrong, or to do in an order that nothing fixes. pc: the word of instruction memory, -1 for none.
    """

    kind: Kind
    what: str
    pc: int = -1

    def __str__(self) -> str:
        where = f"word {self.pc}: " if self.pc >= 0 else ""
        return f"{where}{self.what} ({self.kind})"


class FaultError(Exception):
    """The core stops with a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.name)
        self.fault = fault


class DefectError(Exception):
    """The run's result can't be said any more."""

    def __init__(self, defect: Defect) -> None:
        super().__init__(str(defect))
        self.defect = defect


class Descriptor(Struct, frozen=True):
    """Where a walk goes: a base, and a stride and a bound for each dimension, the innermost first."""

    base: int = 0
    strides: tuple[int, ...] = (0,) * DIMENSIONS
    bounds: tuple[int, ...] = (1,) * DIMENSIONS

    @property
    def count(self) -> int:
        """Steps of the whole walk."""
        return math.prod(self.bounds)

    def walk(self, steps: int) -> Addresses:
        """The addresses of the first `steps` steps, int64; past its end a walk stays at its last address."""
        return (self.base + _offsets(self.strides, self.bounds, steps)) & ADDRESS_MASK


@lru_cache(maxsize=1024)
def _offsets(strides: tuple[int, ...], bounds: tuple[int, ...], steps: int) -> Addresses:
    index = np.minimum(np.arange(steps), min(math.prod(bounds), steps) - 1)
    offsets = np.zeros(steps, np.int64)
    for stride, bound in zip(strides, bounds, strict=True):
        index, at = np.divmod(index, bound)
        offsets += at * stride
    offsets.flags.writeable = False
    return offsets


class State:
    """Registers, L1, instruction memory and descriptors; all but K and the descriptors unknown at first.

    v: E8M15 codes [16, 128]; s: 24-bit words; p: booleans [4, 128]; l1: uint16 [words, 16].
    """

    def __init__(self, spec: VectorCoreSpec) -> None:
        self.spec = spec
        self._reasons: list[Defect] = [Defect(Kind.UNDEFINED, "")]
        self._numbers: dict[Defect, int] = {}
        unset = [
            self.taint(Defect(Kind.UNDEFINED, f"{what} that nothing has written is used"))
            for what in ("a vector register element", "a scalar register", "a predicate", "an element of L1")
        ]
        length, halves = spec.vector_length, spec.word_bytes // 2
        self.v: Codes = np.zeros((VECTOR_REGISTERS, length), np.uint32)
        self.s: Codes = np.zeros(SCALAR_REGISTERS, np.uint32)
        self.p: NDArray[np.bool_] = np.zeros((PREDICATES, length), np.bool_)
        self.k: Codes = np.array(CONSTANTS, np.uint32)
        self.l1: NDArray[np.uint16] = np.zeros((spec.l1_words, halves), np.uint16)
        self.v_taint: Taints = np.full(self.v.shape, unset[0], np.uint16)
        self.s_taint: Taints = np.full(self.s.shape, unset[1], np.uint16)
        self.p_taint: Taints = np.full(self.p.shape, unset[2], np.uint16)
        self.l1_taint: Taints = np.full(self.l1.shape, unset[3], np.uint16)
        self.descriptors = [Descriptor() for _ in range(spec.descriptors)]
        self.imem: list[int | None] = [None] * spec.instructions
        self.imem_version = 0
        self.length = spec.vector_length
        self.mode = 0

    def taint(self, defect: Defect) -> int:
        """The number that stands for `defect`."""
        if defect not in self._numbers:
            self._numbers[defect] = len(self._reasons)
            self._reasons.append(defect)
        return self._numbers[defect]

    def require_known(self, *taints: Taints | np.uint16) -> None:
        """`DefectError` with the reason where one of them isn't `KNOWN`."""
        for taint in taints:
            worst = int(np.max(taint, initial=KNOWN))
            if worst != KNOWN:
                raise DefectError(self._reasons[worst])

    @property
    def chunks(self) -> int:
        """Chunks of a vector: 16 elements each, the last one perhaps not whole."""
        return -(-self.length // self.spec.lanes)

    def write_imem(self, address: int, word: int) -> None:
        """Puts a word into instruction memory."""
        if self.imem[address] != word:
            self.imem[address] = word
            self.imem_version += 1

    def write_descriptor(self, number: int, field: int, value: tuple[int, int] | int) -> None:
        """Sets a base (field 0), or a dimension's stride and bound (1 to 4); a bound of 0 is 1."""
        old = self.descriptors[number]
        if isinstance(value, int):
            self.descriptors[number] = Descriptor(value & ADDRESS_MASK, old.strides, old.bounds)
            return
        strides, bounds = list(old.strides), list(old.bounds)
        strides[field - 1], bounds[field - 1] = value[0], value[1] or 1
        self.descriptors[number] = Descriptor(old.base, tuple(strides), tuple(bounds))
