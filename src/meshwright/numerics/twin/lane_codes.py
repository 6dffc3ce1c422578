"""Numpy twin of the E8M15 format itself: fields, rounding and conversions.

An E8M15 code is {sign, exponent bias 127, 15 mantissa bits} in the low 24 bits of a uint32: the top 24 bits of a
float32. Exponent 0 is zero whatever the mantissa; there are no subnormals. RTL vectors in
tests/golden/vector_convert.npz.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.uint32]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

CANONICAL_NAN: Final = 0x7FC000
INFINITY: Final = 0x7F8000
ONE: Final = 0x3F8000
SIGN: Final = 0x800000


@dataclass(frozen=True, slots=True)
class Fields:
    """The parts of E8M15 codes, each int64 of the codes' shape."""

    sign: Integers
    exponent: Integers
    mantissa: Integers

    @property
    def is_zero(self) -> Booleans:
        """Where the exponent field is 0."""
        return self.exponent == 0

    @property
    def is_infinite(self) -> Booleans:
        """Where the code is an infinity."""
        return (self.exponent == 255) & (self.mantissa == 0)

    @property
    def is_nan(self) -> Booleans:
        """Where the code is a NaN of whatever payload."""
        return (self.exponent == 255) & (self.mantissa != 0)


def split(codes: Codes) -> Fields:
    """Fields of codes."""
    wide = codes.astype(np.int64)
    return Fields((wide >> 23) & 1, (wide >> 15) & 0xFF, wide & 0x7FFF)


def round_even(value: Integers, dropped: Integers, lost: Booleans | bool = False) -> Integers:
    """`value` >= 0 without its low `dropped` >= 1 bits, to nearest even; `lost` says that more was cut off below."""
    kept = value >> dropped
    guard = (value >> (dropped - 1)) & 1
    below = (value & (np.left_shift(np.int64(1), dropped - 1) - 1)) != 0
    return kept + ((guard == 1) & (below | lost | (kept & 1 == 1)))


def pack(sign: Integers, value: Integers, unit: Integers, lost: Booleans | bool = False) -> Codes:
    """The code nearest (-1)^sign * value * 2^unit, ties to even unless `lost`; `value` in [0, 2^53).

    Overflow gives infinity, underflow a zero of the sign, and 0 +0.
    """
    length = np.frexp(value.astype(np.float64))[1].astype(np.int64)
    dropped = length - 16
    rounded = np.where(
        dropped > 0,
        round_even(value, np.maximum(dropped, 1), lost),
        value << np.maximum(-dropped, 0),
    )
    carry = rounded >> 16
    exponent = length - 1 + unit + 127 + carry
    mantissa = (rounded >> carry) & 0x7FFF
    finite = np.where(exponent <= 0, 0, (exponent << 15) | mantissa)
    magnitude = np.where(exponent >= 255, INFINITY, finite)
    return np.where(value == 0, 0, (sign << 23) | magnitude).astype(np.uint32)


def from_fp16(bits: npt.NDArray[np.uint16]) -> Codes:
    """Codes of fp16 bit patterns: exact, subnormals normalised, a NaN's payload kept as it is."""
    wide = bits.astype(np.int64)
    sign, exponent, fraction = (wide >> 15) << 23, (wide >> 10) & 31, wide & 1023
    length = np.frexp(fraction.astype(np.float64))[1].astype(np.int64)
    subnormal = ((length + 102) << 15) | ((fraction << np.maximum(16 - length, 0)) & 0x7FFF)
    magnitude = ((exponent + 112) << 15) | (fraction << 5)
    magnitude = np.where(exponent == 0, np.where(fraction == 0, 0, subnormal), magnitude)
    magnitude = np.where(exponent == 31, INFINITY | (fraction << 5), magnitude)
    return (sign | magnitude).astype(np.uint32)


def to_fp16(codes: Codes) -> npt.NDArray[np.uint16]:
    """fp16 bit patterns of codes: nearest even, with subnormals; finite overflow gives 65504, infinity stays.

    A NaN keeps its sign and the top of its payload, with the quiet bit set.
    """
    x = split(codes)
    exponent = x.exponent - 112
    dropped = np.clip(np.where(exponent >= 1, 5, 6 - exponent), 5, 40)
    base = np.maximum(exponent - 1, 0) << 10
    rounded = base + round_even(x.mantissa | 0x8000, dropped)
    magnitude = np.where(x.is_zero, 0, np.minimum(rounded, 0x7BFF))
    magnitude = np.where(x.is_infinite, 0x7C00, magnitude)
    magnitude = np.where(x.is_nan, 0x7E00 | (x.mantissa >> 5), magnitude)
    return ((x.sign << 15) | magnitude).astype(np.uint16)


def from_fp32(bits: npt.NDArray[np.uint32]) -> Codes:
    """Codes of float32 bit patterns: nearest even, subnormals to a zero of their sign, a NaN's top payload, quiet."""
    wide = bits.astype(np.int64)
    sign, magnitude = (wide >> 31) << 23, wide & 0x7FFFFFFF
    rounded = round_even(magnitude, np.full(magnitude.shape, 8))
    rounded = np.where(magnitude < 0x800000, 0, rounded)
    rounded = np.where(magnitude > 0x7F800000, (magnitude >> 8) | 0x4000, rounded)
    return (sign | rounded).astype(np.uint32)


def to_fp32(codes: Codes) -> npt.NDArray[np.uint32]:
    """float32 bit patterns of codes: exact, a zero's mantissa dropped, a NaN's payload kept."""
    zero = (codes >> 15) & 0xFF == 0
    return (np.where(zero, codes & SIGN, codes).astype(np.uint32) << np.uint32(8)).astype(np.uint32)


def from_fp22(codes: Codes) -> Codes:
    """E8M15 codes of FP22 accumulator codes: exact; E=127 becomes exponent 255, an infinity or a NaN."""
    wide = codes.astype(np.int64)
    sign, exponent, mantissa = ((wide >> 21) & 1) << 23, (wide >> 14) & 0x7F, wide & 0x3FFF
    field = np.where(exponent == 127, 255, exponent + 64)
    return (sign | np.where(exponent == 0, 0, (field << 15) | (mantissa << 1))).astype(np.uint32)
