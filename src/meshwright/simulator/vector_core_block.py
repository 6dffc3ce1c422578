"""Loads, ALU words and stores of a vector core in one call of the lane's kernels.

A block is straight code in FLAT mode whose vectors are whole chunks. Everything that it reads (words of L1, registers)
must be known when it begins, and nothing in it may be what the machine gets wrong; then everything that it writes is
known too, and there is nothing to follow word by word. Whatever isn't so is left to `Execution`, word by word, which
says what becomes unknown and why. Without compiled kernels there are no blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from meshwright.numerics.backend import compiled, resolve
from meshwright.numerics.lane_instructions import (
    FORMATS,
    Input,
    InputFormat,
    Instruction,
    Output,
    Predicate,
    Program,
    Register,
    Source,
)
from meshwright.numerics.lane_lowering import Lowered, lower
from meshwright.numerics.lane_program import excess_error
from meshwright.numerics.twin.lane_functions import tables
from meshwright.simulator.vector_core_alu import LaneCode, Operation, Pending, predicate_gap
from meshwright.simulator.vector_core_memory import Traffic
from meshwright.simulator.vector_core_state import KNOWN, Addresses, DefectError, Descriptor, State
from meshwright.targets.ktpu.isa import vector as isa
from meshwright.targets.ktpu.isa.vector_formats import DType, Mask, Mode

Fetch: TypeAlias = Callable[[int], tuple[isa.VectorInstruction, int] | None]
"""The instruction at a word and the word after it, None where nothing was written; `DefectError` for a wrong word."""

InputPlace: TypeAlias = tuple[int, int, int, list[int]]
"""An input of the kernels: address, number of its format, slot, and bytes from element to element."""
OutputPlace: TypeAlias = tuple[int, int, int]
"""An output of the kernels: address, number of its format, slot."""

_ENOUGH: Final = 40
"""Words after which a store ends a block: most code repeats itself from store to store, and is compiled once."""
_MOST: Final = 128
_HALF_BYTES: Final = 2
_CODE_BYTES: Final = 4
_LONGEST: Final = 128
"""Elements that the kernels load whole before they store any, so that a block may write what it reads."""


class Lanes:
    """The kernels of the lane on the arrays of one core, as a run finds them chosen."""

    def __init__(self, state: State, module: ModuleType, backend: str) -> None:
        self.module, self.backend = module, backend
        self._tables = tables()
        self._starts = {
            "V": (state.v.ctypes.data, state.v.strides[0]),
            "S": (state.s.ctypes.data, _CODE_BYTES),
            "K": (state.k.ctypes.data, _CODE_BYTES),
            "P": (state.p.ctypes.data, state.p.strides[0]),
            "L1": (state.l1.ctypes.data, state.l1.strides[0]),
        }

    def address(self, kind: str, number: int) -> int:
        """Where a register, or a word of L1, is."""
        start, size = self._starts[kind]
        return start + number * size

    def run(self, lowered: Lowered, inputs: list[InputPlace], outputs: list[OutputPlace], n: int) -> None:
        """Runs a program over `n` elements; inputs and outputs by address, as the kernels take them."""
        excess = self.module.execute(
            self.backend, lowered.steps, lowered.constants, inputs, outputs, [n], lowered.slots, self._tables, 1
        )
        if any(excess):
            raise excess_error("a vector register", "e8")


class LaneChoice:
    """The kernels for a core, as they are chosen whenever a run begins."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._made: dict[str, Lanes] = {}

    def now(self) -> Lanes | None:
        """The compiled kernels; None where numpy is chosen."""
        backend = resolve()
        if backend == "numpy" or self._state.spec.vector_length > _LONGEST:
            return None
        if backend not in self._made:
            self._made[backend] = Lanes(self._state, compiled("_lane"), backend)
        return self._made[backend]


class Block(Struct, frozen=True, eq=False):
    """Code that runs in one call.

    words, after: how many it has, and the word after it. pending: after it. last_predicate: that the last ALU word
    names, None where there is none. loaded, stored, touched: words of L1. vectors, scalars: registers that it reads.
    written, compared: registers and predicates that it writes.
    """

    words: int
    after: int
    length: int
    pending: Pending
    last_predicate: int | None
    loaded: Addresses
    stored: Addresses
    touched: Addresses
    vectors: Addresses
    scalars: Addresses
    written: Addresses
    compared: Addresses
    lowered: Lowered
    inputs: list[InputPlace]
    outputs: list[OutputPlace]

    def ready(self, state: State, traffic: Traffic) -> bool:
        """Whether everything that it reads is known, and no fill may still write what it stores to."""
        return not (
            state.l1_taint[self.loaded].any()
            or (self.scalars.size and state.s_taint[self.scalars].any())
            or (self.vectors.size and state.v_taint[self.vectors, : self.length].any())
            or traffic.may_arrive(self.stored)
        )

    def run(self, state: State, traffic: Traffic, lanes: Lanes) -> None:
        """Runs it; it is ready."""
        lanes.run(self.lowered, self.inputs, self.outputs, self.length)
        state.v_taint[self.written, : self.length] = KNOWN
        if self.compared.size:
            state.p_taint[self.compared, : self.length] = KNOWN
        state.l1_taint[self.stored] = KNOWN
        traffic.touched[self.touched] = True


class Made(Struct, frozen=True, eq=False):
    """The block at some word, None where there is none, and the descriptors by number that this depends on."""

    descriptors: tuple[tuple[int, Descriptor], ...]
    block: Block | None

    def holds(self, state: State) -> bool:
        """Whether the descriptors are the same still."""
        return all(state.descriptors[number] == descriptor for number, descriptor in self.descriptors)


NONE: Final = Made((), None)


def compile_block(state: State, lanes: Lanes, fetch: Fetch, pc: int, end: int | None, pending: Pending) -> Made:
    """The block that begins at word `pc` and ends before word `end`.

    pending: for each predicate, how many operations it is away from being readable.
    """
    if state.mode != Mode.FLAT or state.length % state.spec.lanes:
        return NONE
    maker, at, whole = _made(state, fetch, pc, end, pending, _MOST)
    if whole != maker.words:
        maker, at, _ = _made(state, fetch, pc, end, pending, whole)
    return maker.made(lanes, at)


def _made(state: State, fetch: Fetch, pc: int, end: int | None, pending: Pending, most: int) -> tuple[_Maker, int, int]:
    """A block of at most `most` words, the word after it, and how many of its words make whole passes.

    ALU words in a row are one pass word by word too, and what becomes unknown in one pass may be more than in two. So a
    block takes all of them or none.
    """
    maker, at, whole = _Maker(state, pending), pc, 0
    while maker.words < most:
        try:
            found = None if maker.words and at in (end, 0) else fetch(at)
        except DefectError:
            break
        if found is None or not isinstance(found[0], isa.Alu):
            whole = maker.words
        if found is None or not maker.take(at, found[0]):
            break
        at = found[1]
        if not isinstance(found[0], isa.Alu):
            whole = maker.words
            if isinstance(found[0], isa.Store) and whole >= _ENOUGH:
                break
    return maker, at, whole


class _Code(LaneCode):
    """Code in which every write has a register of its own: what is stored, or read later, is what was there then.

    registers: by vector register, the program's that holds it. loaded: by vector register, the input that it was loaded
    from. kept: the program's registers that are stored.
    """

    def __init__(self) -> None:
        super().__init__()
        self.registers: dict[int, int] = {}
        self.loaded: dict[int, int] = {}
        self.kept: set[int] = set()
        self._next = 0

    def vector(self, register: int) -> Source:
        """Where the program finds a vector register."""
        if register in self.loaded:
            return Input(self.loaded[register])
        if register in self.registers:
            return Register(self.registers[register])
        return Input(self.input("V", register))

    def load(self, register: int) -> int:
        """The program's input for words of L1 that a register is loaded from."""
        number = self.input("L1", len(self.inputs))
        self.loaded[register] = number
        self.registers.pop(register, None)
        return number

    def store(self, register: int) -> Source:
        """Where the program finds a register that is stored as it is now."""
        source = self.vector(register)
        if isinstance(source, Register):
            self.kept.add(source.index)
        return source

    def takes(self, word: isa.Alu) -> bool:
        """Whether a masked word can be an instruction: one that changes what the block made and has not stored."""
        register = self.registers.get(word.vd)
        return word.pr in self.compared and register is not None and register not in self.kept

    def write(self, operation: Operation) -> None:
        """Adds an operation of one word that is no compare."""
        word = operation.last
        if operation.masked:
            made = self.instruction(word, self.registers[word.vd], 0)
            when = word.pm == Mask.SET
            made = Instruction(made.op, made.dst, made.a, made.b, made.c, predicate=word.pr, when=when)
        else:
            made = self.instruction(word, self._next, 0)
            self.registers[word.vd] = self._next
            self.loaded.pop(word.vd, None)
            self._next += 1
        self.instructions.append(made)


class _Maker:
    """A block while it is made."""

    def __init__(self, state: State, pending: Pending) -> None:
        self._state = state
        self._gap = predicate_gap(state.length)
        self._waits = list(pending)
        self._code = _Code()
        self._memory: dict[int, tuple[InputFormat, Addresses]] = {}
        self._stores: list[tuple[Addresses, Source]] = []
        self._last_predicate: int | None = None
        self._descriptors: dict[int, Descriptor] = {}
        self.words = 0

    def take(self, pc: int, instruction: isa.VectorInstruction) -> bool:
        """Whether the instruction is of the block; it is in it then."""
        match instruction:
            case isa.Alu():
                taken = self._alu(pc, instruction)
            case isa.Load():
                taken = self._load(instruction)
            case isa.Store():
                taken = self._store(instruction)
            case _:
                taken = False
        self.words += taken
        return taken

    def _alu(self, pc: int, word: isa.Alu) -> bool:
        operation, code = Operation(pc, (word,)), self._code
        if operation.chain_fault() is not None:
            return False
        # A predicate from before, or one that isn't there yet, is for word by word.
        if operation.masked and (self._waits[word.pr] or not code.takes(word)):
            return False
        self._waits = [max(wait - 1, 0) for wait in self._waits]
        if operation.is_compare:
            code.add(operation)
            self._waits[word.pr] = self._gap
        else:
            code.write(operation)
        self._last_predicate = word.pr
        return True

    def _walk(self, instruction: isa.Load | isa.Store) -> Addresses | None:
        """The words of L1, where they follow each other."""
        state = self._state
        if instruction.dtype not in (DType.FP16, DType.FP32):
            return None
        descriptor = state.descriptors[instruction.ad]
        steps = state.chunks * (2 if instruction.dtype == DType.FP32 else 1)
        words = (descriptor.walk(steps) + instruction.offset) % state.spec.l1_words
        self._descriptors[instruction.ad] = descriptor
        return words if np.array_equal(words, words[0] + np.arange(steps)) else None

    def _load(self, instruction: isa.Load) -> bool:
        words = self._walk(instruction)
        # What the block has stored is in L1 only at its end.
        if words is None or any(np.intersect1d(words, stored).size for stored, _ in self._stores):
            return False
        number = self._code.load(instruction.vd)
        self._memory[number] = ("fp32" if instruction.dtype == DType.FP32 else "fp16"), words
        self._waits = [0] * len(self._waits)
        return True

    def _store(self, instruction: isa.Store) -> bool:
        words = self._walk(instruction)
        if words is None or instruction.dtype != DType.FP16:
            return False
        self._stores.append((words, self._code.store(instruction.vd)))
        self._waits = [0] * len(self._waits)
        return True

    def made(self, lanes: Lanes, after: int) -> Made:
        """The block, where it has words enough to be worth a call."""
        descriptors = tuple(self._descriptors.items())
        return Made(descriptors, self._block(lanes, after) if self.words > 1 else None)

    def _block(self, lanes: Lanes, after: int) -> Block:
        code = self._code
        held = [*sorted(code.registers), *sorted(code.loaded)]
        outputs = [Output(code.vector(register), "e8") for register in held]
        outputs += [Output(Predicate(number), "bool") for number in sorted(code.compared)]
        outputs += [Output(source, "fp16") for _, source in self._stores]
        formats: list[InputFormat] = ["e8"] * len(code.inputs)
        for number, (name, _) in self._memory.items():
            formats[number] = name
        lowered = lower(Program(tuple(formats), tuple(code.instructions), tuple(outputs)))
        places = [lanes.address("V", register) for register in held]
        places += [lanes.address("P", number) for number in sorted(code.compared)]
        places += [lanes.address("L1", int(words[0])) for words, _ in self._stores]
        loaded = [words for _, words in self._memory.values()]
        stored = [words for words, _ in self._stores]
        return Block(
            words=self.words,
            after=after,
            length=self._state.length,
            pending=tuple(self._waits),
            last_predicate=self._last_predicate,
            loaded=_joined(loaded),
            stored=_joined(stored),
            touched=_joined([*loaded, *stored]),
            vectors=_numbers(number for kind, number in code.inputs if kind == "V"),
            scalars=_numbers(number for kind, number in code.inputs if kind == "S"),
            written=_numbers(held),
            compared=_numbers(sorted(code.compared)),
            lowered=lowered,
            inputs=[self._input(lanes, lowered, *item) for item in code.inputs.items()],
            outputs=[(place, *where) for place, where in zip(places, lowered.outputs, strict=True)],
        )

    def _input(self, lanes: Lanes, lowered: Lowered, what: tuple[str, int], number: int) -> InputPlace:
        kind, register = what
        slot = len(lowered.constants) + number
        if number in self._memory:
            name, words = self._memory[number]
            stride = _HALF_BYTES if name == "fp16" else _CODE_BYTES
            return lanes.address("L1", int(words[0])), FORMATS.index(name), slot, [stride]
        return lanes.address(kind, register), FORMATS.index("e8"), slot, [_CODE_BYTES if kind == "V" else 0]


def _joined(words: list[Addresses]) -> Addresses:
    return np.unique(np.concatenate(words)) if words else np.zeros(0, np.int64)


def _numbers(numbers: Iterable[int]) -> Addresses:
    return np.array(list(numbers), np.int64)
