"""What a lane program is made of: opcodes, operands, instructions, outputs; `lane_program` runs it."""

from __future__ import annotations

from typing import Final, Literal, cast, get_args

import msgspec
import numpy as np

from meshwright.errors import NumericsError

InputFormat = Literal["fp16", "fp32", "e8", "fp22"]
"""fp16: float16, or its bits as uint16; fp32: float32, or its bits as uint32; e8 and fp22: codes in uint32."""

OutputFormat = Literal["fp16", "fp32", "e8", "bool"]
"""float16, float32, E8M15 codes in uint32, or (of a predicate) booleans."""

SLOTS: Final[dict[str, str]] = {
    **dict.fromkeys(("mov", "neg", "abs", "exp2", "log2", "inv", "rsqrt", "round_fp16", "round_fp32"), "a"),
    **dict.fromkeys(("add", "sub"), "ac"),
    **dict.fromkeys(("mul", "max", "min", "lt", "gt", "eq"), "ab"),
    **dict.fromkeys(("fma", "fnma", "sel"), "abc"),
}
"""Which operand slots each opcode reads: add and sub take their second operand from slot c.

`round_fp16` and `round_fp32` store a value in that format and load it again; fp32 only makes NaNs quiet.
"""

COMPARISONS: Final = ("lt", "gt", "eq")
"""Opcodes that write a predicate."""

OPERATIONS: Final = (
    *("mov", "neg", "abs", "add", "sub", "mul", "fma", "fnma", "max", "min", "sel", "exp2", "log2", "inv", "rsqrt"),
    *("round_fp16", "round_fp32"),
    *COMPARISONS,
)
"""Every opcode, numbered as in native/lane/kernels.h."""

FORMATS: Final = ("fp16", "fp32", "e8", "fp22", "bool")
"""Every storage format, numbered as in native/lane/kernels.h."""

OUTPUT_DTYPES: Final[dict[str, type[np.generic]]] = {
    "fp16": np.float16,
    "fp32": np.float32,
    "e8": np.uint32,
    "bool": np.bool_,
}
"""dtype of each output format."""


class Input(msgspec.Struct, frozen=True, tag=True):
    """Operand: the program's input number `index`."""

    index: int


class Register(msgspec.Struct, frozen=True, tag=True):
    """Operand: a register that an earlier instruction wrote. There are as many registers as a program names."""

    index: int


class Constant(msgspec.Struct, frozen=True, tag=True):
    """Operand: an E8M15 code, the same in every lane; `lane.immediate` makes one of a number."""

    code: int


class Predicate(msgspec.Struct, frozen=True, tag=True):
    """A predicate that an earlier comparison wrote; only an output of format `bool` reads it as a value."""

    index: int


Source = Input | Register | Constant


class Instruction(msgspec.Struct, frozen=True):
    """`op` on the slots a, b, c into register `dst` (comparisons: predicate `dst`).

    With `predicate`, the register is written only where that predicate equals `when` and keeps its value elsewhere.
    Which slots an opcode reads is in `SLOTS`.
    """

    op: str
    dst: int
    a: Source
    b: Source | None = None
    c: Source | None = None
    predicate: int | None = None
    when: bool = True

    def sources(self) -> tuple[Source, ...]:
        """The operands that it reads, in the order of their slots."""
        operands = {"a": self.a, "b": self.b, "c": self.c}
        return tuple(cast("Source", operands[slot]) for slot in SLOTS[self.op])


class Output(msgspec.Struct, frozen=True):
    """A value leaving the program, and the format that it leaves in."""

    source: Source | Predicate
    format: OutputFormat


class Program(msgspec.Struct, frozen=True):
    """Inputs by format, instructions in order, outputs. Raises `NumericsError` when made of parts that don't fit."""

    inputs: tuple[InputFormat, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[Output, ...]

    def __post_init__(self) -> None:
        _check(self)


def _check(program: Program) -> None:
    for number, name in enumerate(program.inputs):
        if name not in get_args(InputFormat):
            raise NumericsError(f"lane program: input {number} has format {name!r}; formats: fp16, fp32, e8, fp22")
    registers: set[int] = set()
    predicates: set[int] = set()
    for number, step in enumerate(program.instructions):
        where = f"lane program: instruction {number} ({step.op})"
        _check_instruction(where, step, len(program.inputs), registers, predicates)
        (predicates if step.op in COMPARISONS else registers).add(step.dst)
    for number, output in enumerate(program.outputs):
        where = f"lane program: output {number}"
        if output.format not in OUTPUT_DTYPES:
            raise NumericsError(f"{where} has format {output.format!r}; formats: fp16, fp32, e8, bool")
        if isinstance(output.source, Predicate) != (output.format == "bool"):
            raise NumericsError(f"{where} is {output.source!r} as {output.format}; bool is for predicates only")
        if isinstance(output.source, Predicate):
            _check_written(where, "predicate", output.source.index, predicates)
        else:
            _check_source(where, output.source, len(program.inputs), registers)


def _check_instruction(where: str, step: Instruction, inputs: int, registers: set[int], predicates: set[int]) -> None:
    if step.op not in SLOTS:
        raise NumericsError(f"{where}: there is no such opcode; opcodes: {', '.join(OPERATIONS)}")
    if step.dst < 0:
        raise NumericsError(f"{where} writes register {step.dst}; registers are numbered from 0")
    given = {"a": step.a, "b": step.b, "c": step.c}
    for slot in SLOTS[step.op]:
        source = given[slot]
        if source is None:
            raise NumericsError(f"{where} reads slots {', '.join(SLOTS[step.op])}, and slot {slot} is empty")
        _check_source(f"{where}, slot {slot}", source, inputs, registers)
    if step.predicate is not None:
        if step.op in COMPARISONS:
            raise NumericsError(f"{where} has a predicate; comparisons write every lane")
        _check_written(where, "predicate", step.predicate, predicates)
        _check_written(f"{where}, predicated,", "register", step.dst, registers)


def _check_source(where: str, source: Source, inputs: int, registers: set[int]) -> None:
    if isinstance(source, Input) and not 0 <= source.index < inputs:
        raise NumericsError(f"{where} reads input {source.index}; the program has {inputs}")
    if isinstance(source, Constant) and not 0 <= source.code < 1 << 24:
        raise NumericsError(f"{where}: constant {source.code:#x} is no E8M15 code, which has 24 bits")
    if isinstance(source, Register):
        _check_written(where, "register", source.index, registers)


def _check_written(where: str, what: str, index: int, written: set[int]) -> None:
    if index not in written:
        raise NumericsError(f"{where} reads {what} {index} before any instruction has written it")
