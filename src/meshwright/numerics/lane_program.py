"""Straight-line programs over vector lane values, run elementwise in one pass.

A program reads inputs in their storage formats, applies opcodes of the lane to registers, and writes outputs; nothing
in between goes to memory. Constants are E8M15 codes. Comparisons write predicates, and any other instruction may be
made to write only where a predicate is set or clear, as in the machine.

    Program(
        inputs=("fp16",),
        instructions=(
            Instruction("mul", 0, Input(0), Constant(immediate(1.5))),
            Instruction("exp2", 0, Register(0)),
        ),
        outputs=(Output(Register(0), "fp16"),),
    )
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Literal, cast, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from meshwright.errors import NumericsError
from meshwright.numerics.backend import compiled, resolve, resolve_threads
from meshwright.numerics.twin import lane as twin
from meshwright.numerics.twin import lane_codes
from meshwright.numerics.twin.lane_functions import tables

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

_OUTPUT_DTYPES: Final[dict[str, type[np.generic]]] = {
    "fp16": np.float16,
    "fp32": np.float32,
    "e8": np.uint32,
    "bool": np.bool_,
}
_TWIN_BLOCK: Final = 1 << 15


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
        if output.format not in _OUTPUT_DTYPES:
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


def execute(
    program: Program, inputs: tuple[npt.ArrayLike, ...], *, backend: str | None = None, threads: int | None = None
) -> tuple[npt.NDArray[Any], ...]:
    """The program's outputs, each of the shape that the inputs broadcast to by numpy's rules.

    A broadcast input is not materialised. Raises `NumericsError` for a wrong number of inputs, a dtype that is not
    its format's, codes with more bits than the format has, or shapes that don't broadcast.
    """
    if len(inputs) != len(program.inputs):
        raise NumericsError(f"lane program of {len(program.inputs)} inputs, given {len(inputs)}")
    arrays = [
        as_bits(f"lane program: input {number}", operand, name)
        for number, (operand, name) in enumerate(zip(inputs, program.inputs, strict=True))
    ]
    try:
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
    except ValueError:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise NumericsError(f"lane program: inputs of shapes {shapes} don't broadcast to one shape") from None
    outputs = tuple(np.empty(shape, _OUTPUT_DTYPES[output.format]) for output in program.outputs)
    chosen = resolve(backend)
    if chosen == "numpy":
        _run_twin(program, arrays, outputs)
    else:
        _run_compiled(program, arrays, outputs, shape, (chosen, resolve_threads(threads)))
    return outputs


def as_bits(where: str, operand: npt.ArrayLike, name: InputFormat) -> npt.NDArray[Any]:
    """`operand` as the unsigned integers of its format `name`, a view where it can be.

    Raises `NumericsError`, its message starting with `where`, for a dtype of another format.
    """
    array = np.asarray(operand)
    if name == "fp16":
        accepted: tuple[type[np.generic], ...] = (np.float16, np.uint16)
    elif name == "fp32":
        accepted = (np.float32, np.uint32)
    else:
        accepted = (np.uint32,)
    if array.dtype not in accepted:
        kinds = " or ".join(np.dtype(kind).name for kind in accepted)
        raise NumericsError(f"{where} is {array.dtype.name}{list(array.shape)}; its format {name} takes {kinds}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array.view(np.uint16 if name == "fp16" else np.uint32)


def excess_error(where: str, name: str) -> NumericsError:
    """The error for codes wider than format `name`."""
    width = 22 if name == "fp22" else 24
    return NumericsError(f"{where}: codes of format {name} have {width} bits, and some here have more")


_LOADS: Final[dict[str, Callable[[npt.NDArray[Any]], lane_codes.Codes]]] = {
    "fp16": lane_codes.from_fp16,
    "fp32": lane_codes.from_fp32,
    "e8": lambda codes: codes,
    "fp22": lane_codes.from_fp22,
}


def load_twin(where: str, bits: npt.NDArray[Any], name: InputFormat) -> lane_codes.Codes:
    """E8M15 codes of values in format `name`, by the numpy twin. Raises `NumericsError` for excess bits."""
    if name in ("e8", "fp22") and bits.size and int(bits.max()) >> (22 if name == "fp22" else 24):
        raise excess_error(where, name)
    return _LOADS[name](bits)


def _store_twin(codes: npt.NDArray[Any], name: OutputFormat) -> npt.NDArray[Any]:
    if name == "fp16":
        return lane_codes.to_fp16(codes).view(np.float16)
    if name == "fp32":
        return lane_codes.to_fp32(codes).view(np.float32)
    return codes


def _run_twin(program: Program, arrays: list[npt.NDArray[Any]], outputs: tuple[npt.NDArray[Any], ...]) -> None:
    if not arrays:
        for output, result in zip(outputs, _evaluate(program, []), strict=True):
            output[...] = result
        return
    # numpy's own iterator cuts the broadcast operands into one-dimensional blocks, so temporaries stay small.
    flags: list[Any] = ["external_loop", "buffered", "zerosize_ok"]
    reading: list[Any] = [["readonly"]] * len(arrays)
    blocks = np.nditer(arrays, flags, reading, order="C", buffersize=_TWIN_BLOCK)
    flat = [output.reshape(-1) for output in outputs]
    at = 0
    for block in cast("Any", blocks):
        parts = cast("list[npt.NDArray[Any]]", [block] if len(arrays) == 1 else list(block))
        values = [
            load_twin(f"lane program: input {number}", part, name)
            for number, (part, name) in enumerate(zip(parts, program.inputs, strict=True))
        ]
        for target, result in zip(flat, _evaluate(program, values), strict=True):
            target[at : at + parts[0].size] = result
        at += parts[0].size


def _evaluate(program: Program, inputs: list[lane_codes.Codes]) -> list[npt.NDArray[Any]]:
    registers: dict[int, lane_codes.Codes] = {}
    predicates: dict[int, lane_codes.Booleans] = {}

    def value(source: Source | None) -> lane_codes.Codes:
        if isinstance(source, Input):
            return inputs[source.index]
        if isinstance(source, Register):
            return registers[source.index]
        return np.array([source.code if isinstance(source, Constant) else 0], np.uint32)

    for step in program.instructions:
        read = {slot: value(getattr(step, slot) if slot in SLOTS[step.op] else None) for slot in "abc"}
        if step.op in COMPARISONS:
            predicates[step.dst] = twin.compare(cast("Any", step.op), read["a"], read["b"])
            continue
        result = twin.apply(step.op, read["a"], read["b"], read["c"])
        if step.predicate is not None:
            result = np.where(predicates[step.predicate] == step.when, result, registers[step.dst])
        registers[step.dst] = result
    return [
        predicates[output.source.index]
        if isinstance(output.source, Predicate)
        else _store_twin(value(output.source), output.format)
        for output in program.outputs
    ]


class _Lowered(msgspec.Struct, frozen=True):
    """A program in terms of slots: constants, then inputs, then registers and predicates, then one for scratch."""

    steps: npt.NDArray[np.int32]
    constants: list[int]
    outputs: list[tuple[int, int]]
    slots: int


@lru_cache(maxsize=256)
def _lower(program: Program) -> _Lowered:
    constants: dict[int, int] = {}
    for source in _all_sources(program):
        if isinstance(source, Constant):
            constants.setdefault(source.code, len(constants))
    allocation = _allocate(program, len(constants) + len(program.inputs))

    def slot(source: Source | Predicate, step: int) -> int:
        if isinstance(source, Constant):
            return constants[source.code]
        if isinstance(source, Input):
            return len(constants) + source.index
        return allocation.at[step][("register" if isinstance(source, Register) else "predicate", source.index)]

    steps: list[list[int]] = []
    for number, step in enumerate(program.instructions):
        sources = dict(zip(SLOTS[step.op], step.sources(), strict=True))
        read = {name: slot(source, number) for name, source in sources.items()}
        kind = "predicate" if step.op in COMPARISONS else "register"
        target = allocation.at[number + 1][(kind, step.dst)]
        mask = -1 if step.predicate is None else allocation.at[number][("predicate", step.predicate)]
        a = read["a"]
        row = [OPERATIONS.index(step.op), target, a, read.get("b", a), read.get("c", a), mask, int(step.when)]
        steps.append(row)
    end = len(program.instructions)
    outputs = [(FORMATS.index(output.format), slot(output.source, end)) for output in program.outputs]
    rows = np.array(steps, np.int32).reshape(-1, 7)
    return _Lowered(rows, [code << 8 for code in constants], outputs, allocation.slots + 1)


def _all_sources(program: Program) -> list[Source | Predicate]:
    read: list[Source | Predicate] = [source for step in program.instructions for source in step.sources()]
    return read + [output.source for output in program.outputs]


class _Allocation(msgspec.Struct, frozen=True):
    at: list[dict[tuple[str, int], int]]
    """Before each instruction, and after the last: the slot of every live register and predicate."""

    slots: int


def _allocate(program: Program, first: int) -> _Allocation:
    """Gives slots to registers and predicates, reusing one once its value has been read for the last time."""
    live: list[set[tuple[str, int]]] = [set() for _ in range(len(program.instructions) + 1)]
    for output in program.outputs:
        if isinstance(output.source, Register | Predicate):
            kind = "register" if isinstance(output.source, Register) else "predicate"
            live[-1].add((kind, output.source.index))
    for number, step in reversed(list(enumerate(program.instructions))):
        written = ("predicate" if step.op in COMPARISONS else "register", step.dst)
        live[number] = live[number + 1] - (set() if step.predicate is not None else {written})
        live[number] |= {("register", s.index) for s in step.sources() if isinstance(s, Register)}
        if step.predicate is not None:
            live[number] |= {("predicate", step.predicate), written}
    at: list[dict[tuple[str, int], int]] = [{}]
    free: list[int] = []
    slots = first
    for number, step in enumerate(program.instructions):
        written = ("predicate" if step.op in COMPARISONS else "register", step.dst)
        kept = {name: place for name, place in at[-1].items() if name in live[number + 1]}
        free += [place for name, place in at[-1].items() if name not in kept]
        if written not in kept:
            if not free:
                free.append(slots)
                slots += 1
            kept[written] = free.pop()
        at.append(kept)
    return _Allocation(at, slots)


def _run_compiled(
    program: Program,
    arrays: list[npt.NDArray[Any]],
    outputs: tuple[npt.NDArray[Any], ...],
    shape: tuple[int, ...],
    how: tuple[str, int],
) -> None:
    lowered = _lower(program)
    extents, strides = _collapse(shape, [np.broadcast_to(array, shape).strides for array in arrays])
    first = len(lowered.constants)
    inputs = [
        (array.ctypes.data, FORMATS.index(name), first + number, strides[number])
        for number, (array, name) in enumerate(zip(arrays, program.inputs, strict=True))
    ]
    results = [(out.ctypes.data, *where) for out, where in zip(outputs, lowered.outputs, strict=True)]
    chosen, threads = how
    excess = compiled("_lane").execute(
        chosen, lowered.steps, lowered.constants, inputs, results, extents, lowered.slots, tables(), threads
    )
    for number, (bits, name) in enumerate(zip(excess, program.inputs, strict=True)):
        if bits:
            raise excess_error(f"lane program: input {number}", name)


def _collapse(shape: tuple[int, ...], strides: list[tuple[int, ...]]) -> tuple[list[int], list[list[int]]]:
    """Merges axes that every operand steps over evenly; at least one axis is left."""
    extents: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    for axis, extent in enumerate(shape):
        if extent == 1:
            continue
        if extents and all(steps[-1] == own[axis] * extent for steps, own in zip(merged, strides, strict=True)):
            extents[-1] *= extent
            for steps, own in zip(merged, strides, strict=True):
                steps[-1] = own[axis]
            continue
        extents.append(extent)
        for steps, own in zip(merged, strides, strict=True):
            steps.append(own[axis])
    if not extents:
        return [1], [[0] for _ in strides]
    return extents, merged
