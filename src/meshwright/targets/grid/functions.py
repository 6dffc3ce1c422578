"""float32 arithmetic of a vector engine, stated to the bit: the same on every processor and with every numpy.

numpy's own exp2 and log2 differ between processors in the last bit, its maximum between zeros of both signs, and so
does which nan an addition gives. Here everything is made of operations that IEEE 754 defines.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Singles = NDArray[np.float32]
Doubles = NDArray[np.float64]

_EXP2_TERMS: Final = tuple(math.log(2.0) ** n / math.factorial(n) for n in range(13))
_LOG2_TERMS: Final = tuple(2.0 / (math.log(2.0) * n) for n in range(1, 24, 2))
_SIGN_BITS: Final = 0x7FFFFFFF


def canonical(values: Singles) -> Singles:
    """The values with every nan the quiet positive one, 0x7FC00000."""
    return np.where(np.isnan(values), np.float32(np.nan), values)


def exp2(x: Singles) -> Singles:
    """2^x: the Taylor polynomial of degree 12 about the nearest whole number in float64, rounded once to float32."""
    wide = np.clip(x.astype(np.float64), -200.0, 200.0)
    whole = np.rint(wide)
    power = np.ldexp(_polynomial(wide - whole, _EXP2_TERMS), np.nan_to_num(whole).astype(np.int32))
    return power.astype(np.float32)


def log2(x: Singles) -> Singles:
    """The logarithm to base 2 in float64, rounded once to float32; -inf of zeros, nan below.

    With x = 2^e m, m in [sqrt(1/2), sqrt(2)): e + 2 / ln 2 * artanh((m - 1) / (m + 1)), 12 terms of artanh.
    """
    mantissa, exponent = np.frexp(x.astype(np.float64))
    low = mantissa < math.sqrt(0.5)
    m = np.where(low, 2.0 * mantissa, mantissa)
    ratio = (m - 1.0) / (m + 1.0)
    value = (exponent - low) + ratio * _polynomial(ratio * ratio, _LOG2_TERMS)
    special = np.where(x < 0, np.nan, np.where(x == 0, -np.inf, x))
    return np.where((x > 0) & np.isfinite(x), value, special).astype(np.float32)


def _polynomial(x: Doubles, coefficients: tuple[float, ...]) -> Doubles:
    total = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def rsqrt(x: Singles) -> Singles:
    """1 / sqrt(x): root and division in float64, rounded once to float32."""
    return (1.0 / np.sqrt(x.astype(np.float64))).astype(np.float32)


def multiply_add(a: Singles, b: Singles, c: Singles) -> Singles:
    """A * b + c with one rounding.

    The product of two float32 is exact in float64. The sum is rounded to odd there, which keeps what float32 needs to
    round it once.
    """
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total = np.asarray(product + addend)
    part = total - product
    lost = (product - (total - part)) + (addend - part)
    bits = total.view(np.int64)
    even = np.isfinite(total) & (lost != 0) & (bits & 1 == 0)
    # The neighbour on the side of what was lost is odd: one up in magnitude where the signs agree, else one down.
    step = np.where((lost > 0) == (total > 0), 1, -1)
    return np.where(even, bits + step, bits).view(np.float64).astype(np.float32)


def order_keys(x: Singles) -> NDArray[np.int32]:
    """Whole numbers in the order of the values, -0 just below +0."""
    bits = np.asarray(x).view(np.int32)
    return np.where(bits < 0, bits ^ _SIGN_BITS, bits)


def from_keys(keys: NDArray[Any]) -> Singles:
    """The inverse of `order_keys`."""
    bits = keys.astype(np.int32)
    return np.where(bits < 0, bits ^ _SIGN_BITS, bits).astype(np.int32).view(np.float32)


def maximum(a: Singles, b: Singles) -> Singles:
    """The larger; +0 is larger than -0; nan where either is."""
    chosen = from_keys(np.maximum(order_keys(a), order_keys(b)))
    return np.where(np.isnan(a) | np.isnan(b), np.float32(np.nan), chosen)


def minimum(a: Singles, b: Singles) -> Singles:
    """The smaller; -0 is smaller than +0; nan where either is."""
    chosen = from_keys(np.minimum(order_keys(a), order_keys(b)))
    return np.where(np.isnan(a) | np.isnan(b), np.float32(np.nan), chosen)


def largest(rows: Singles) -> Singles:
    """The largest [...] of each row [..., L], as `maximum` folds it."""
    return np.where(np.isnan(rows).any(-1), np.float32(np.nan), from_keys(order_keys(rows).max(-1)))


def smallest(rows: Singles) -> Singles:
    """The smallest [...] of each row [..., L], as `minimum` folds it."""
    return np.where(np.isnan(rows).any(-1), np.float32(np.nan), from_keys(order_keys(rows).min(-1)))
