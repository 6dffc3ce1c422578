"""The FP22 accumulator in numpy, on float64 values: exact, and the oracle of the compiled kernels.

A code is `{sign, E7 bias 63, M14}` in the low 22 bits of a uint32. float64 holds every code and every exact
intermediate of an addition (at most 25 significant bits), so the machine's rules become float64 operations
that never round except where the rule itself rounds. Rules: RTL vectors in tests/golden/crossmesh.npz (raw
adds), tests/golden/accumulator.npz (other anchors) and tests/golden/matmul.npz.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

STANDARD_ANCHOR: Final = 40
SMALLEST: Final = 2.0**-62
"""E = 1, M = 0: what lies below is flushed to +0."""
SATURATES: Final = 2.0**64
"""A sum from here on (E >= 127) becomes `LARGEST`."""
LARGEST: Final = 2.0**65 - 2.0**50
_SIGN_EXPONENT: Final = np.int64(-(2**52))
"""Sign and exponent bits of a float64."""


def power_of_two(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest power of two not above `|x|`, with the sign of `x`; 0 for 0."""
    return (x.view(np.int64) & _SIGN_EXPONENT).view(np.float64)


def round_to_15_bits(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """`x` rounded to 15 significant bits, nearest even."""
    # x + 2^38 * power has a unit in the last place of 2^-14 * power: the addition does the rounding.
    offset = power_of_two(x)
    offset *= 2.0**38
    return (x + offset) - offset


def decode(codes: NDArray[np.uint32]) -> NDArray[np.float64]:
    """The real value of each code; E = 0 is +0 whatever the rest."""
    wide = codes.astype(np.int64)
    exponent = (wide >> 14) & 127
    bits = ((wide >> 21 & 1) << 63) | ((exponent + 960) << 52) | ((wide & 0x3FFF) << 38)
    return np.where(exponent == 0, 0, bits).view(np.float64)


def code_of(values: NDArray[np.float64]) -> NDArray[np.uint32]:
    """The code of each value, which must be one that a code has (or 0)."""
    bits = values.view(np.int64)
    sign = (bits >> 63 & 1) << 21
    code = sign | (((bits >> 52 & 0x7FF) - 960) << 14) | (bits >> 38 & 0x3FFF)
    return np.where(values == 0, 0, code).astype(np.uint32)


def encode(values: NDArray[np.float64]) -> NDArray[np.uint32]:
    """Nearest code, ties to even; below the smallest +0, above the largest the largest."""
    rounded = round_to_15_bits(np.clip(values, -LARGEST, LARGEST))
    return code_of(np.where(np.abs(rounded) < SMALLEST, 0.0, np.clip(rounded, -LARGEST, LARGEST)))


def add_values(tile: NDArray[np.float64], peer: NDArray[np.float64]) -> NDArray[np.float64]:
    """The machine's sum of two arrays of decoded codes of one shape, as decoded codes."""
    tile_is_larger = np.abs(tile) >= np.abs(peer)
    larger = np.where(tile_is_larger, tile, peer)
    smaller = np.where(tile_is_larger, peer, tile)
    # The significands carry 8 guard bits, so what is shifted in below them is dropped: truncate to `unit`.
    # The addend only matters where both operands are 0, and keeps 0 / 0 out.
    unit = power_of_two(larger)
    unit *= 2.0**-22
    unit += 1e-300
    kept = np.trunc(smaller / unit)
    kept *= unit
    # A dropped bit counts as sticky even when subtracting, so it is put back as half a unit *outward*.
    unit *= 0.5
    unit *= kept != smaller
    kept += larger
    kept += unit
    total = round_to_15_bits(kept)
    magnitude = np.abs(total)
    total[magnitude < SMALLEST] = 0.0
    too_large = magnitude >= SATURATES
    if too_large.any():
        # Adding zero leaves the other operand alone, even one with E = 127.
        too_large &= smaller != 0
        total[too_large] = np.copysign(LARGEST, total[too_large])
    return total


def add(tile: NDArray[np.uint32], peer: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The machine's sum of codes of one shape."""
    return code_of(add_values(decode(tile), decode(peer)))


def drain(codes: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """fp16 bits of codes: nearest even to 10 fraction bits, no subnormals, saturating at 65504."""
    wide = codes.astype(np.int32)
    magnitude = wide & 0x1FFFFF
    # Exponent and fraction are one number, so a carry out of the fraction arrives in the exponent by itself.
    rounded = (magnitude + 7 + (magnitude >> 4 & 1)) >> 4
    field = np.clip(rounded - (48 << 10), 0, 0x7BFF)
    field = np.where(field < 1 << 10, 0, field)
    return (field | (wide >> 21 & 1) << 15).astype(np.uint16)


def block_value(
    dot: NDArray[np.int32], scale_a: NDArray[np.uint8], scale_b: NDArray[np.uint8], anchor: int
) -> NDArray[np.uint32]:
    """Codes of scaled dot products (arrays of one shape); the exponent is cut to 7 bits and may wrap to 0."""
    field_a, field_b = scale_a.astype(np.int64), scale_b.astype(np.int64)
    product = dot.astype(np.int64) * (((field_a & 7) + 8) * ((field_b & 7) + 8))
    rounded = round_to_15_bits(np.abs(product).astype(np.float64))
    bits = rounded.view(np.int64)
    exponent = (bits >> 52) - 1023 + (field_a >> 3) + (field_b >> 3) - 6 - anchor + 63
    code = (product < 0).astype(np.int64) << 21 | (exponent & 127) << 14 | (bits >> 38 & 0x3FFF)
    return np.where(product == 0, 0, code).astype(np.uint32)


def open_tile(codes: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """What a tile holds after it was opened with `codes`: `add(0, codes)`."""
    return np.where(codes & 0x1FC000, codes, 0).astype(np.uint32)
