"""The vector lane's numbers: E8M15 arithmetic, conversions, table functions and tree reductions, to the bit.

An E8M15 code is {sign, exponent bias 127, 15 mantissa bits} in the low 24 bits of a uint32, the top 24 bits of a
float32; exponent 0 is zero whatever the mantissa, and 0x7FC000 is the NaN that arithmetic gives. Every call takes
`backend` (see `meshwright.numerics.backend`); all backends give the same bits. RTL vectors in
tests/golden/vector_alu.npz, vector_convert.npz and vector_reduce.npz.
"""

from __future__ import annotations

from functools import cache
from typing import Final, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from meshwright.errors import NumericsError
from meshwright.numerics.backend import compiled, resolve, resolve_threads
from meshwright.numerics.lane_program import (
    COMPARISONS,
    FORMATS,
    OPERATIONS,
    SLOTS,
    Input,
    InputFormat,
    Instruction,
    Output,
    OutputFormat,
    Predicate,
    Program,
    Register,
    as_bits,
    excess_error,
    execute,
    load_twin,
)
from meshwright.numerics.twin import lane as twin
from meshwright.numerics.twin.lane_codes import CANONICAL_NAN, ONE, Codes
from meshwright.numerics.twin.lane_functions import tables

__all__ = [
    "CANONICAL_NAN",
    "LANES",
    "ONE",
    "REDUCTIONS",
    "add",
    "apply",
    "compare",
    "decode",
    "expsum",
    "fma",
    "from_fp16",
    "from_fp22",
    "from_fp32",
    "immediate",
    "mul",
    "reduce",
    "sub",
    "to_fp16",
    "to_fp32",
]

LANES: Final = 16
"""Lanes of a vector core: reductions take multiples of it."""

ReduceKind = twin.ReduceKind

REDUCTIONS: Final[tuple[ReduceKind, ...]] = get_args(ReduceKind)
"""The reductions, numbered as in the machine's instruction and in native/lane/program.h."""


@cache
def _operation(op: str) -> Program:
    slots = SLOTS[op]
    operands = {slot: Input(number) for number, slot in enumerate(slots)}
    step = Instruction(op, 0, operands["a"], operands.get("b"), operands.get("c"))
    output = Output(Predicate(0), "bool") if op in COMPARISONS else Output(Register(0), "e8")
    return Program(("e8",) * len(slots), (step,), (output,))


@cache
def _conversion(source: InputFormat, target: OutputFormat) -> Program:
    return Program((source,), (), (Output(Input(0), target),))


def apply(
    op: str,
    a: npt.ArrayLike,
    b: npt.ArrayLike | None = None,
    c: npt.ArrayLike | None = None,
    *,
    backend: str | None = None,
) -> Codes:
    """One opcode on E8M15 codes, elementwise over the shape that its operands broadcast to.

    `mov neg abs exp2 log2 inv rsqrt` read slot a; `mul max min` a and b; `add sub` a and c; `fma` (a*b + c), `fnma`
    (c - a*b) and `sel` (a where c has a bit set below its sign, else b) all three. Slots that the opcode doesn't read
    are ignored, as in the machine. Raises `NumericsError` for an unknown opcode, a missing operand, or operands that
    are not uint32 codes of broadcastable shapes.
    """
    if op not in SLOTS or op in COMPARISONS:
        names = ", ".join(name for name in OPERATIONS if name not in COMPARISONS)
        raise NumericsError(f"lane.apply: no opcode {op!r}; opcodes: {names}; comparisons: lane.compare")
    given = {"a": a, "b": b, "c": c}
    operands: list[npt.ArrayLike] = []
    for slot in SLOTS[op]:
        operand = given[slot]
        if operand is None:
            raise NumericsError(f"lane.apply: {op} reads slots {', '.join(SLOTS[op])}; slot {slot} was not given")
        operands.append(operand)
    return execute(_operation(op), tuple(operands), backend=backend)[0]


def compare(
    op: Literal["lt", "gt", "eq"], a: npt.ArrayLike, b: npt.ArrayLike, *, backend: str | None = None
) -> npt.NDArray[np.bool_]:
    """Where a < b, a > b or a == b of E8M15 codes; false where either is NaN. Both zeros are equal.

    Raises `NumericsError` for another comparison, or operands that are not uint32 codes of broadcastable shapes.
    """
    if op not in COMPARISONS:
        raise NumericsError(f"lane.compare: no comparison {op!r}; comparisons: {', '.join(COMPARISONS)}")
    return execute(_operation(op), (a, b), backend=backend)[0]


def add(x: npt.ArrayLike, y: npt.ArrayLike, *, backend: str | None = None) -> Codes:
    """X + y of E8M15 codes."""
    return apply("add", x, c=y, backend=backend)


def sub(x: npt.ArrayLike, y: npt.ArrayLike, *, backend: str | None = None) -> Codes:
    """X - y of E8M15 codes; +0 - +0 is -0, as in the machine."""
    return apply("sub", x, c=y, backend=backend)


def mul(x: npt.ArrayLike, y: npt.ArrayLike, *, backend: str | None = None) -> Codes:
    """X * y of E8M15 codes; exact ties round away from zero."""
    return apply("mul", x, y, backend=backend)


def fma(x: npt.ArrayLike, y: npt.ArrayLike, z: npt.ArrayLike, *, backend: str | None = None) -> Codes:
    """X*y + z of E8M15 codes, rounded once."""
    return apply("fma", x, y, z, backend=backend)


def from_fp16(values: npt.ArrayLike, *, backend: str | None = None) -> Codes:
    """Codes of float16 values, or of their bits in uint16: exact, subnormals too; a NaN keeps its payload."""
    return execute(_conversion("fp16", "e8"), (values,), backend=backend)[0]


def to_fp16(codes: npt.ArrayLike, *, backend: str | None = None) -> npt.NDArray[np.float16]:
    """float16 of codes: nearest even, with subnormals; finite overflow gives 65504, infinities stay."""
    return execute(_conversion("e8", "fp16"), (codes,), backend=backend)[0]


def from_fp32(values: npt.ArrayLike, *, backend: str | None = None) -> Codes:
    """Codes of float32 values, or of their bits in uint32: nearest even; subnormals become zeros of their sign."""
    return execute(_conversion("fp32", "e8"), (values,), backend=backend)[0]


def to_fp32(codes: npt.ArrayLike, *, backend: str | None = None) -> npt.NDArray[np.float32]:
    """float32 of codes: exact."""
    return execute(_conversion("e8", "fp32"), (codes,), backend=backend)[0]


def from_fp22(codes: npt.ArrayLike, *, backend: str | None = None) -> Codes:
    """E8M15 codes of FP22 accumulator codes in uint32: exact; E = 127 becomes an infinity or a NaN."""
    return execute(_conversion("fp22", "e8"), (codes,), backend=backend)[0]


def immediate(value: float) -> int:
    """The code that an assembler makes of a scalar constant: the nearest float32, truncated to its top 24 bits."""
    return int(np.float32(value).view(np.uint32)) >> 8


def decode(codes: npt.ArrayLike, *, backend: str | None = None) -> npt.NDArray[np.float64]:
    """The numbers that codes stand for, as float64."""
    with np.errstate(invalid="ignore"):  # a signalling NaN among them
        return to_fp32(codes, backend=backend).astype(np.float64)


def reduce(
    kind: ReduceKind,
    x: npt.ArrayLike,
    y: npt.ArrayLike | None = None,
    *,
    format: InputFormat = "e8",
    backend: str | None = None,
    threads: int | None = None,
) -> Codes:
    """Codes [...] of x [..., 16 n] reduced over its last axis, every node of the tree rounded.

    Beats of 16 elements (sum, max, min) or 8 (sumsq: x*x, dot: x*y, expsum: exp2(x), leaf first) are folded pairwise;
    beat i goes to accumulator i modulo 16; the 16 accumulators, which start at 0, -infinity or +infinity, are folded
    pairwise. A vector core takes at most 128 elements, one beat an accumulator; here longer rows go on rotating.
    `format` is that of x and y. Raises `NumericsError` for another kind, a length that is no multiple of 16, or a y
    that is missing, not wanted, or of another shape.
    """
    return _reduce(kind, x, y, format, backend, threads)[0]


def expsum(
    x: npt.ArrayLike, *, format: InputFormat = "e8", backend: str | None = None, threads: int | None = None
) -> tuple[Codes, Codes]:
    """The sum of exp2(x) over the last axis, as `reduce("expsum", x)`, and the leaves exp2(x), as the machine keeps.

    Nothing is subtracted first. Raises `NumericsError` as `reduce` does.
    """
    return _reduce("expsum", x, None, format, backend, threads)


def _reduce(
    kind: ReduceKind,
    x: npt.ArrayLike,
    y: npt.ArrayLike | None,
    name: InputFormat,
    backend: str | None,
    threads: int | None,
) -> tuple[Codes, Codes]:
    call = f"lane.reduce({kind!r})"
    if kind not in REDUCTIONS:
        raise NumericsError(f"{call}: no such reduction; reductions: {', '.join(REDUCTIONS)}")
    if name not in get_args(InputFormat):
        raise NumericsError(f"{call}: no format {name!r}; formats: fp16, fp32, e8, fp22")
    if (y is not None) != (kind == "dot"):
        raise NumericsError(f"{call}: " + ("`y` was not given" if kind == "dot" else "`y` is for dot only"))
    left = as_bits(f"{call}: `x`", x, name)
    right = left if y is None else as_bits(f"{call}: `y`", y, name)
    if left.ndim == 0 or left.shape[-1] == 0 or left.shape[-1] % LANES:
        raise NumericsError(
            f"{call}: `x` is {list(left.shape)}; the last axis must be a multiple of {LANES}: "
            "pad it with the reduction's identity"
        )
    if right.shape != left.shape:
        raise NumericsError(f"{call}: `x` is {list(left.shape)} and `y` {list(right.shape)}; they must agree")
    chosen = resolve(backend)
    if chosen == "numpy":
        return twin.reduce(kind, load_twin(f"{call}: `x`", left, name), load_twin(f"{call}: `y`", right, name))
    operands = (np.ascontiguousarray(left), np.ascontiguousarray(right))
    return _reduce_compiled(call, kind, operands, name, (chosen, resolve_threads(threads)))


def _reduce_compiled(
    call: str, kind: ReduceKind, operands: tuple[Codes, Codes], name: InputFormat, how: tuple[str, int]
) -> tuple[Codes, Codes]:
    left, right = operands
    totals = np.empty(left.shape[:-1], np.uint32)
    leaves = np.empty(left.shape if kind == "expsum" else (0,), np.uint32)
    chosen, threads = how
    excess = compiled("_lane").reduce(
        chosen,
        REDUCTIONS.index(kind),
        FORMATS.index(name),
        left.ctypes.data,
        right.ctypes.data,
        totals.ctypes.data,
        leaves.ctypes.data,
        totals.size,
        left.shape[-1],
        tables(),
        threads,
    )
    for operand, bits in zip(("x", "y"), cast("list[int]", excess), strict=True):
        if bits:
            raise excess_error(f"{call}: `{operand}`", name)
    return totals, leaves
