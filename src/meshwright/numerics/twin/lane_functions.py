"""Numpy twin of the vector lane's table functions: exp2, log2, inv (1/x) and rsqrt (1/sqrt x).

Each octave is cut into 32 segments; in a segment the function is the quadratic through its three Chebyshev nodes,
with coefficients rounded to 20, 24 and 28 fraction bits. The tables are computed here, from that formula, and nowhere
else: the compiled kernels are handed the same ones. RTL vectors in tests/golden/vector_alu.npz.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from functools import cache
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from meshwright.numerics.twin.lane_codes import CANONICAL_NAN, INFINITY, Codes, Integers, pack, split

Bank = Literal["exp2", "log2", "inv", "rsqrt", "rsqrt_odd"]

BANKS: Final[tuple[Bank, ...]] = ("exp2", "log2", "inv", "rsqrt", "rsqrt_odd")
"""Order of the banks in `tables()`; `rsqrt_odd` is the octave of odd exponents, 1/sqrt(2(1+f))."""

SEGMENTS: Final = 32
COEFFICIENT_BITS: Final = (20, 24, 28)
"""Fraction bits of c0, c1 and c2, in units where a segment is one long."""

VALUE_BITS: Final = 20
"""Fraction bits of an interpolated value."""

ARGUMENT_BITS: Final = 17
"""Fraction bits that exp2 keeps of its argument: 5 choose the segment, 12 are the position in it."""

_DIGITS: Final = 50


def _functions() -> dict[Bank, Callable[[Decimal], Decimal]]:
    one, two = Decimal(1), Decimal(2)
    ln2 = two.ln()
    return {
        "exp2": lambda f: (f * ln2).exp() - 1,
        "log2": lambda f: (one + f).ln() / ln2,
        "inv": lambda f: one / (one + f),
        "rsqrt": lambda f: one / (one + f).sqrt(),
        "rsqrt_odd": lambda f: one / (two * (one + f)).sqrt(),
    }


def exact_coefficients(bank: Bank) -> list[tuple[Decimal, Decimal, Decimal]]:
    """Before rounding: (c0, c1, c2) of each segment, scaled by 2^20, 2^24 and 2^28, to 50 decimal digits.

    The quadratic c0 + c1 x + c2 x^2 over x in [0, 1) meets the function at x = 1/2 + cos((2j+1) pi/6)/2, which are
    1/2 + sqrt(3)/4, 1/2 and 1/2 - sqrt(3)/4.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        function = _functions()[bank]
        half, offset = Decimal("0.5"), Decimal(3).sqrt() / 4
        scale = [Decimal(2**bits) for bits in COEFFICIENT_BITS]
        result: list[tuple[Decimal, Decimal, Decimal]] = []
        for segment in range(SEGMENTS):
            low, middle, high = (function((segment + x) / SEGMENTS) for x in (half - offset, half, half + offset))
            # Around the middle node, t = x - 1/2: middle + slope t + curve t^2.
            slope = (high - low) / (2 * offset)
            curve = (high + low - 2 * middle) / (2 * offset * offset)
            c0 = middle - slope * half + curve * half * half
            result.append((c0 * scale[0], (slope - curve) * scale[1], curve * scale[2]))
        return result


@cache
def tables() -> npt.NDArray[np.int32]:
    """Rounded coefficients, int32[5 banks, 3 (c0, c1, c2), 32 segments], read-only; banks in the order of `BANKS`."""
    rows = [
        [[int(c.to_integral_value(ROUND_HALF_EVEN)) for c in column] for column in zip(*segments, strict=True)]
        for segments in (exact_coefficients(bank) for bank in BANKS)
    ]
    result = np.array(rows, dtype=np.int32)
    result.setflags(write=False)
    return result


def interpolate(bank: Bank, index: Integers, position: Integers) -> Integers:
    """Value of the segment's quadratic, with 20 fraction bits, at `position` / 4096 in segment `index`.

    h = (c2 u + c1 2^16 + 2^15) >> 16; F = (h u + c0 2^16 + 2^15) >> 16, shifts rounding down.
    """
    c0, c1, c2 = tables()[BANKS.index(bank)].astype(np.int64)
    slope = (c2[index] * position + (c1[index] << 16) + (1 << 15)) >> 16
    return (slope * position + (c0[index] << 16) + (1 << 15)) >> 16


def exp2(codes: Codes) -> Codes:
    """2^x of E8M15 codes.

    The magnitude is rounded to 17 fraction bits, half away from zero. Where 128 <= |x| < 256 the whole part wraps
    modulo 256 into [-128, 127]; from 256 on the answer is infinity or +0.
    """
    x = split(codes)
    significand = (x.mantissa | 0x8000) * (x.exponent > 0)
    shift = np.clip(x.exponent - 142 + ARGUMENT_BITS, -40, 16)
    right = np.maximum(-shift, 0)
    half = np.where(right > 0, np.left_shift(1, np.maximum(right - 1, 0)), 0)
    magnitude = ((significand << np.maximum(shift, 0)) + half) >> right
    fixed = np.where(x.sign == 1, -magnitude, magnitude)
    index, position = (fixed >> 12) & 31, fixed & 4095
    whole = (((fixed >> ARGUMENT_BITS) + 128) & 255) - 128
    fraction = np.where((index == 0) & (position == 0), 0, interpolate("exp2", index, position))
    result = pack(np.zeros_like(fixed), (1 << VALUE_BITS) + fraction, whole - VALUE_BITS)
    far = np.where(x.sign == 1, np.uint32(0), np.uint32(INFINITY))
    result = np.where(x.exponent >= 127 + 8, far, result)
    return np.where(x.is_nan, np.uint32(CANONICAL_NAN), result)


def log2(codes: Codes) -> Codes:
    """log2 x of E8M15 codes: NaN below zero, -infinity at either zero.

    The fraction has 20 bits absolute, so relative precision is lost near 1, as in the machine.
    """
    x = split(codes)
    fraction = interpolate("log2", x.mantissa >> 10, (x.mantissa & 1023) << 2)
    value = ((x.exponent - 127) << VALUE_BITS) + np.where(x.mantissa == 0, 0, fraction)
    result = pack((value < 0).astype(np.int64), np.abs(value), np.full_like(value, -VALUE_BITS))
    result = np.where(x.is_infinite, np.uint32(INFINITY), result)
    result = np.where((x.sign == 1) | x.is_nan, np.uint32(CANONICAL_NAN), result)
    return np.where(x.is_zero, np.uint32(INFINITY | 0x800000), result)


def inv(codes: Codes) -> Codes:
    """1/x of E8M15 codes: infinity of its sign at a zero, zero of its sign at an infinity and where it underflows."""
    x = split(codes)
    fraction = interpolate("inv", x.mantissa >> 10, (x.mantissa & 1023) << 2)
    value = np.where(x.mantissa == 0, 1 << VALUE_BITS, fraction)
    result = pack(x.sign, value, 127 - VALUE_BITS - x.exponent)
    sign = (x.sign << 23).astype(np.uint32)
    result = np.where(x.is_zero, sign | np.uint32(INFINITY), result)
    result = np.where(x.is_infinite, sign, result)
    return np.where(x.is_nan, np.uint32(CANONICAL_NAN), result)


def rsqrt(codes: Codes) -> Codes:
    """1/sqrt x of E8M15 codes: NaN below zero, +infinity at either zero."""
    x = split(codes)
    power = x.exponent - 127
    index, position = x.mantissa >> 10, (x.mantissa & 1023) << 2
    even = np.where(x.mantissa == 0, 1 << VALUE_BITS, interpolate("rsqrt", index, position))
    value = np.where(power & 1 == 1, interpolate("rsqrt_odd", index, position), even)
    result = pack(np.zeros_like(value), value, -VALUE_BITS - (power >> 1))
    result = np.where(x.is_infinite, np.uint32(0), result)
    result = np.where((x.sign == 1) | x.is_nan, np.uint32(CANONICAL_NAN), result)
    return np.where(x.is_zero, np.uint32(INFINITY), result)
