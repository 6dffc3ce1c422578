"""Runs of ALU words as one lane program: a stretch of a vector core's code is computed in one pass.

What a stretch needs of the state (registers, how many operations a predicate is still away from being readable) is
part of its key, so that the same code over and over is compiled once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from meshwright.numerics.lane_program import (
    SLOTS,
    Constant,
    Input,
    Instruction,
    Output,
    Predicate,
    Program,
    Register,
)
from meshwright.numerics.lane_program import Source as LaneSource
from meshwright.simulator.vector_core_state import CONSTANTS, PREDICATES, VECTOR_REGISTERS, Fault
from meshwright.targets.ktpu.isa.vector import Alu
from meshwright.targets.ktpu.isa.vector_formats import COMPARES, Mask, Mode, Source

LANE_OPS: Final = {
    **{
        f"V{op.upper()}": op
        for op in ("mov", "neg", "abs", "add", "sub", "mul", "fma", "fnma", "max", "min", "sel", "exp2", "log2", "inv")
    },
    "VRSQRT": "rsqrt",
    "VCMPLT": "lt",
    "VCMPGT": "gt",
    "VCMPEQ": "eq",
}
"""The lane's name of each ALU operation."""

DEPTHS: Final = {Mode.FLAT: 1, Mode.D2: 2, Mode.D4: 4, Mode.TREE: 4}
"""ALU words of one operation; what is gathered in TREE mode is a chain of four."""

Kind: TypeAlias = Literal["V", "S", "K", "P", "L1"]
"""What an input of a lane program is of a core: a register of some kind, or words of L1."""
Pending = tuple[int, ...]
"""For each predicate how many operations have to pass before its newest value can be read."""

SETTLED: Final[Pending] = (0,) * PREDICATES


def predicate_gap(length: int) -> int:
    """ALU words that have to stand between a compare and what reads its predicate, for vectors of `length`.

    Two up to 32 elements and one from 64 on (RTL); between them nothing was measured, so two are asked for there.
    """
    return 1 if length >= 64 else 2


class Operation(Struct, frozen=True):
    """One elementwise operation: a word, or the words of a chain; the last one says where the result goes."""

    pc: int
    words: tuple[Alu, ...]

    @property
    def last(self) -> Alu:
        """The word with destination and mask."""
        return self.words[-1]

    @property
    def is_compare(self) -> bool:
        """Whether it writes a predicate; compares are never masked."""
        return self.last.op in COMPARES

    @property
    def masked(self) -> bool:
        """Whether it writes only where its predicate says so."""
        return self.last.pm != Mask.ALL and not self.is_compare

    def chain_fault(self) -> Fault | None:
        """What the decoder refuses in a chain: a link before there is one, or a vector register after the first."""
        for at, word in enumerate(self.words):
            selectors = (word.sa, word.sb, word.sc)
            if at == 0 and Source.C in selectors:
                return Fault.CHAIN
            if at and Source.V in selectors:
                return Fault.VSRC
        return None


def reads(word: Alu) -> tuple[tuple[int, int], ...]:
    """(selector, register) of each slot that the word's operation looks at."""
    slots = {"a": (word.sa, word.va), "b": (word.sb, word.vb), "c": (word.sc, word.vc)}
    return tuple(slots[slot] for slot in SLOTS[LANE_OPS[word.op]])


class Merge(Struct, frozen=True):
    """A masked write into a register that the stretch hasn't written: it ends the stretch, and keeps other elements."""

    register: int
    predicate: int
    when: bool


class Stretch(Struct, frozen=True):
    """Operations that run in one pass.

    inputs: what they are, in the program's order. stale: indices of operations that read a predicate
    too early. pending: after the last operation.
    """

    operations: tuple[Operation, ...]
    program: Program
    inputs: tuple[tuple[Kind, int], ...]
    vectors: tuple[int, ...]
    predicates: tuple[int, ...]
    merge: Merge | None
    stale: frozenset[int]
    pending: Pending


@lru_cache(maxsize=4096)
def compile_stretch(operations: tuple[Operation, ...], gap: int, pending: Pending) -> Stretch:
    """As many of the operations as one pass can take, from the first on; at least one.

    gap: what `predicate_gap` gives for the vector length. pending: before the first operation.
    """
    code = LaneCode()
    waits = list(pending)
    stale: set[int] = set()
    taken = 0
    for operation in operations:
        last = operation.last
        if operation.masked and waits[last.pr]:
            stale.add(taken)
        waits = [max(wait - 1, 0) for wait in waits]
        if operation.is_compare:
            waits[last.pr] = gap
        code.add(operation)
        taken += 1
        if code.merge is not None:
            break
    vectors, predicates = tuple(sorted(code.written)), tuple(sorted(code.compared))
    outputs = [Output(Register(v), "e8") for v in vectors] + [Output(Predicate(p), "bool") for p in predicates]
    formats = ("e8",) * len(code.inputs)
    program = Program(formats, (*code.head, *code.instructions), tuple(outputs))
    return Stretch(
        operations[:taken],
        program,
        tuple(code.inputs),
        vectors,
        predicates,
        code.merge,
        frozenset(stale),
        tuple(waits),
    )


class LaneCode:
    """ALU operations as instructions of a lane program, and what they read of the state before them.

    inputs: what they read, in the program's order. written and compared: the registers and predicates that they write.
    merge: the masked write, if there is one, that can't be an instruction. There is none after it.
    """

    def __init__(self) -> None:
        self.head: list[Instruction] = []
        self.instructions: list[Instruction] = []
        self.inputs: dict[tuple[Kind, int], int] = {}
        self.written: set[int] = set()
        self.compared: set[int] = set()
        self.merge: Merge | None = None

    def add(self, operation: Operation) -> None:
        """Adds an operation."""
        for at, word in enumerate(operation.words[:-1]):
            self.instructions.append(self.instruction(word, VECTOR_REGISTERS + at, at))
        last, link = operation.last, len(operation.words) - 1
        if operation.is_compare:
            self.instructions.append(self.instruction(last, last.pr, link))
            self.compared.add(last.pr)
            return
        made = self.instruction(last, last.vd, link)
        if not operation.masked:
            self.instructions.append(made)
        elif last.vd in self.written:
            self._need_predicate(last.pr)
            when = last.pm == Mask.SET
            masked = Instruction(made.op, made.dst, made.a, made.b, made.c, predicate=last.pr, when=when)
            self.instructions.append(masked)
        else:
            # A move into the lane program's register would change a NaN or a zero that has to stay as it is.
            self.instructions.append(made)
            self.merge = Merge(last.vd, last.pr, last.pm == Mask.SET)
        self.written.add(last.vd)

    def instruction(self, word: Alu, target: int, link: int) -> Instruction:
        """A word as an instruction into register (of a compare: predicate) `target`; link: its number in a chain."""
        slots = SLOTS[LANE_OPS[word.op]]
        read = dict(zip(slots, (self._source(*source, link) for source in reads(word)), strict=True))
        return Instruction(LANE_OPS[word.op], target, read["a"], read.get("b"), read.get("c"))

    def _source(self, selector: int, register: int, link: int) -> LaneSource:
        if selector == Source.C:
            return Register(VECTOR_REGISTERS + link - 1)
        if selector == Source.S:
            return Input(self.input("S", register))
        if selector == Source.K:
            register &= 3
            return Input(self.input("K", 3)) if register == 3 else Constant(CONSTANTS[register])
        return self.vector(register)

    def vector(self, register: int) -> LaneSource:
        """Where the program finds a vector register."""
        return Register(register) if register in self.written else Input(self.input("V", register))

    def input(self, kind: Kind, number: int) -> int:
        """The program's input for a register of the state before it."""
        return self.inputs.setdefault((kind, number), len(self.inputs))

    def _need_predicate(self, number: int) -> None:
        if number in self.compared or ("P", number) in self.inputs:
            return
        self.head.append(Instruction("gt", number, Input(self.input("P", number)), Constant(0)))


def depth(mode: int) -> int:
    """ALU words of one operation in `mode`."""
    return DEPTHS[Mode(mode)]


def operations_of(words: Sequence[tuple[int, Alu]], depth: int) -> tuple[Operation, ...]:
    """Whole operations made of consecutive ALU words (pc, word); words left over make none."""
    whole = len(words) // depth * depth
    groups = (words[at : at + depth] for at in range(0, whole, depth))
    return tuple(Operation(group[0][0], tuple(word for _, word in group)) for group in groups)
