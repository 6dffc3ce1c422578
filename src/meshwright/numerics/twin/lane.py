"""Numpy twin of the vector lane's arithmetic: one function an opcode, and the tree reductions.

Works on uint32 arrays of E8M15 codes; see `lane_codes` for the format. RTL vectors in tests/golden/vector_alu.npz
and tests/golden/vector_reduce.npz.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import numpy as np

from meshwright.numerics.twin import lane_functions
from meshwright.numerics.twin.lane_codes import (
    CANONICAL_NAN,
    INFINITY,
    ONE,
    SIGN,
    Booleans,
    Codes,
    Integers,
    from_fp16,
    from_fp32,
    pack,
    split,
    to_fp16,
    to_fp32,
)

ReduceKind = Literal["sum", "max", "min", "sumsq", "dot", "expsum"]

_WINDOW: Final = 48
"""The addend's shifter: 16 bits of significand above the 32 bits of a product."""


def canonical(a: Codes) -> Codes:
    """What every opcode does to a value that it passes through: a zero becomes +0, a NaN the canonical one."""
    exponent = (a >> 15) & 0xFF
    result = np.where(exponent == 0, np.uint32(0), a)
    return np.where((exponent == 255) & (a & 0x7FFF != 0), np.uint32(CANONICAL_NAN), result).astype(np.uint32)


def fma(a: Codes, b: Codes, c: Codes) -> Codes:
    """a*b + c with the machine's one rounding.

    The addend is aligned in a 48-bit window over the exact 32-bit product; what leaves the window only sets a sticky
    bit, also when subtracting, so there an exact tie of the truncated value rounds up. A zero addend sets it too. An
    addend whose unit is above the whole product is the result; a zero product gives the addend, with its sign.
    """
    x, y, z = split(a), split(b), split(c)
    sign = x.sign ^ y.sign
    product = (x.mantissa | 0x8000) * (y.mantissa | 0x8000)
    shift = x.exponent + y.exponent - z.exponent - 110
    addend = np.where(z.is_zero, 0, (z.mantissa | 0x8000) << 32)
    reach = np.clip(shift, 0, _WINDOW)
    aligned = addend >> reach
    lost = ((aligned << reach) != addend) | z.is_zero
    total = product + np.where(sign == z.sign, aligned, -aligned)
    unit = x.exponent + y.exponent - 284
    result = pack(np.where(total < 0, sign ^ 1, sign), np.abs(total), unit, lost)
    zero_product = x.is_zero | y.is_zero
    kept = np.where(z.is_zero, c & SIGN, c)
    result = np.where(zero_product | ((shift < 0) & ~z.is_zero), kept, result)
    return _fma_specials(result, (a, b, c), zero_product).astype(np.uint32)


def _fma_specials(finite: Codes, operands: tuple[Codes, Codes, Codes], zero_product: Booleans) -> Codes:
    x, y, z = (split(operand) for operand in operands)
    sign = x.sign ^ y.sign
    infinite = x.is_infinite | y.is_infinite
    result = np.where(z.is_infinite, operands[2], finite)
    result = np.where(infinite, (sign << 23).astype(np.uint32) | np.uint32(INFINITY), result)
    invalid = infinite & (zero_product | (z.is_infinite & (z.sign != sign)))
    return np.where(invalid | x.is_nan | y.is_nan | z.is_nan, np.uint32(CANONICAL_NAN), result)


def add(a: Codes, c: Codes) -> Codes:
    """a + c: the fused multiply-add with b = 1."""
    return fma(a, np.full(a.shape, ONE, np.uint32), c)


def mul(a: Codes, b: Codes) -> Codes:
    """a * b: the fused multiply-add with c = +0, whose sticky bit makes exact ties round away from zero."""
    return fma(a, b, np.zeros(a.shape, np.uint32))


def order(a: Codes) -> Integers:
    """An integer that compares as the number does, both zeros alike; NaN has none."""
    x = split(a)
    magnitude = np.where(x.is_zero, 0, (x.exponent << 15) | x.mantissa)
    return np.where(x.sign == 1, -magnitude, magnitude)


def compare(op: Literal["lt", "gt", "eq"], a: Codes, b: Codes) -> Booleans:
    """Where a < b, a > b or a == b; false where either is NaN."""
    left, right = order(a), order(b)
    ordered = ~(split(a).is_nan | split(b).is_nan)
    if op == "lt":
        return ordered & (left < right)
    if op == "gt":
        return ordered & (left > right)
    return ordered & (left == right)


def _select(condition: Booleans, a: Codes, b: Codes) -> Codes:
    return canonical(np.where(condition, a, b).astype(np.uint32))


def maximum(a: Codes, b: Codes) -> Codes:
    """B where a < b, else a: so a NaN in a stays, and one in b is passed over."""
    return _select(compare("lt", a, b), b, a)


def minimum(a: Codes, b: Codes) -> Codes:
    """B where a > b, else a."""
    return _select(compare("gt", a, b), b, a)


_APPLY: Final[dict[str, Callable[[Codes, Codes, Codes], Codes]]] = {
    "mov": lambda a, _b, _c: canonical(a),
    "neg": lambda a, _b, _c: canonical(a ^ np.uint32(SIGN)),
    "abs": lambda a, _b, _c: canonical(a & np.uint32(SIGN - 1)),
    "add": lambda a, _b, c: add(a, c),
    "sub": lambda a, _b, c: add(a, c ^ np.uint32(SIGN)),
    "mul": lambda a, b, _c: mul(a, b),
    "fma": fma,
    "fnma": lambda a, b, c: fma(a ^ np.uint32(SIGN), b, c),
    "max": lambda a, b, _c: maximum(a, b),
    "min": lambda a, b, _c: minimum(a, b),
    "sel": lambda a, b, c: _select(c & np.uint32(SIGN - 1) != 0, a, b),
    "exp2": lambda a, _b, _c: lane_functions.exp2(a),
    "log2": lambda a, _b, _c: lane_functions.log2(a),
    "inv": lambda a, _b, _c: lane_functions.inv(a),
    "rsqrt": lambda a, _b, _c: lane_functions.rsqrt(a),
    "round_fp16": lambda a, _b, _c: from_fp16(to_fp16(a)),
    "round_fp32": lambda a, _b, _c: from_fp32(to_fp32(a)),
}


def apply(op: str, a: Codes, b: Codes, c: Codes) -> Codes:
    """Result of one opcode on operands of one shape; slots that the opcode doesn't read are ignored."""
    return _APPLY[op](a, b, c)


_IDENTITY: Final[dict[ReduceKind, int]] = {"max": INFINITY | SIGN, "min": INFINITY}
_FOLD: Final[dict[ReduceKind, Callable[[Codes, Codes], Codes]]] = {"max": maximum, "min": minimum}
_BEAT: Final[dict[ReduceKind, int]] = {"sum": 16, "max": 16, "min": 16, "sumsq": 8, "dot": 8, "expsum": 8}
ACCUMULATORS: Final = 16


def _tree(fold: Callable[[Codes, Codes], Codes], values: Codes) -> Codes:
    while values.shape[-1] > 1:
        values = fold(values[..., 0::2], values[..., 1::2])
    return values[..., 0]


def reduce(kind: ReduceKind, x: Codes, y: Codes) -> tuple[Codes, Codes]:
    """Reduction over the last axis, a multiple of 16 long, and the leaves that it summed.

    A beat is 16 elements (sum, max, min) or 8 (the kinds that compute a leaf first), folded pairwise. Its total goes
    to accumulator (beat modulo 16), and the 16 accumulators, which start at the identity, are folded pairwise.
    """
    fold, identity, beat = _FOLD.get(kind, add), _IDENTITY.get(kind, 0), _BEAT[kind]
    leaves = x
    if kind in ("sumsq", "dot"):
        leaves = mul(x, x if kind == "sumsq" else y)
    elif kind == "expsum":
        leaves = lane_functions.exp2(x)
    totals = _tree(fold, leaves.reshape(*x.shape[:-1], x.shape[-1] // beat, beat))
    accumulators = np.full((*x.shape[:-1], ACCUMULATORS), identity, np.uint32)
    for start in range(0, totals.shape[-1], ACCUMULATORS):
        part = totals[..., start : start + ACCUMULATORS]
        width = part.shape[-1]
        accumulators[..., :width] = fold(accumulators[..., :width], part)
    return _tree(fold, accumulators), leaves
