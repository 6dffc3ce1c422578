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
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from meshwright.errors import NumericsError
from meshwright.numerics.backend import compiled, resolve, resolve_threads
from meshwright.numerics.lane_instructions import (
    COMPARISONS,
    FORMATS,
    OPERATIONS,
    OUTPUT_DTYPES,
    SLOTS,
    Constant,
    Input,
    InputFormat,
    Instruction,
    Output,
    OutputFormat,
    Predicate,
    Program,
    Register,
    Source,
)
from meshwright.numerics.lane_lowering import collapse, lower
from meshwright.numerics.twin import lane as twin
from meshwright.numerics.twin import lane_codes
from meshwright.numerics.twin.lane_functions import tables

__all__ = [
    "COMPARISONS",
    "FORMATS",
    "OPERATIONS",
    "SLOTS",
    "Constant",
    "Input",
    "InputFormat",
    "Instruction",
    "Output",
    "OutputFormat",
    "Predicate",
    "Program",
    "Register",
    "Source",
    "execute",
]

_TWIN_BLOCK: Final = 1 << 15


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
    outputs = tuple(np.empty(shape, OUTPUT_DTYPES[output.format]) for output in program.outputs)
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
    if array.dtype.newbyteorder("=") not in accepted:
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


def _run_compiled(
    program: Program,
    arrays: list[npt.NDArray[Any]],
    outputs: tuple[npt.NDArray[Any], ...],
    shape: tuple[int, ...],
    how: tuple[str, int],
) -> None:
    lowered = lower(program)
    extents, strides = collapse(shape, [np.broadcast_to(array, shape).strides for array in arrays])
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
