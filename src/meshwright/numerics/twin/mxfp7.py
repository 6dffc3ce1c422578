"""MXFP7 blocks in numpy: what the machine's quantiser does to 32 consecutive fp16 values of a row.

Rules and reciprocal table: RTL vectors in tests/golden/quantise.npz.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

BLOCK: Final = 32
"""Values that share a scale."""

_RECIPROCAL: Final = np.array([4096, 3641, 3277, 2979, 2731, 2520, 2341, 2185], dtype=np.int32)
_ZERO_BLOCK_SCALE: Final = 20 << 3
_WORD_ROWS: Final = 4
_WORD_COLUMNS: Final = 8
_WORD_BYTES: Final = 32


def _significand(bits: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """fp16 magnitudes as `significand * 2^(exponent - 25)`; field 31 is ordinary."""
    field = bits >> 10
    return (bits & 0x3FF) | ((field > 0).astype(np.int32) << 10), np.maximum(field, 1)


def _block_scale(peak: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Scale exponent and eighths (8 to 15) of a block with largest magnitude `peak` (fp16 bits, not 0)."""
    significand, exponent = _significand(peak)
    # frexp of a small integer is exact: it gives the length in bits, and 11 - length normalises.
    shift = 11 - np.frexp(significand.astype(np.float32))[1].astype(np.int32)
    eighths = -(-(significand << shift) // 126)
    wide = eighths > 15
    scale_exponent = exponent - shift - 21 + wide
    # Twice as large a scale has half as many eighths: 16 becomes 8 and 17, rounded up, 9.
    eighths = np.where(wide, (eighths + 1) >> 1, eighths)
    return np.clip(scale_exponent, -20, 11), eighths


def quantise(x: NDArray[np.uint16]) -> tuple[NDArray[np.int8], NDArray[np.uint8]]:
    """Elements `[..., K]` and scale fields `[..., K // 32]` of fp16 bits `[..., K]`, K a multiple of 32."""
    bits = x.reshape(*x.shape[:-1], x.shape[-1] // BLOCK, BLOCK).astype(np.int32)
    magnitude = bits & 0x7FFF
    peak = magnitude.max(axis=-1)
    scale_exponent, eighths = _block_scale(np.maximum(peak, 1))
    significand, exponent = _significand(magnitude)
    product = significand * _RECIPROCAL[eighths - 8][..., None]
    # From 24 on both the quotient and its half bit are 0 already: a product has at most 23 bits.
    shift = np.minimum(37 + scale_exponent[..., None] - exponent, 25)
    element = np.minimum((product >> shift) + ((product >> (shift - 1)) & 1), 63)
    element = np.where(shift >= 24, 0, element)
    q = np.where(bits >> 15, -element, element).astype(np.int8)
    scale = np.where(peak > 0, ((scale_exponent + 20) << 3) | (eighths - 8), _ZERO_BLOCK_SCALE)
    return q.reshape(x.shape), scale.astype(np.uint8)


def scale_value(scale: NDArray[np.uint8]) -> NDArray[np.float64]:
    """`2^es * m8 / 8` of scale fields, exactly."""
    field = scale.astype(np.int32)
    return np.ldexp((field & 7) + 8.0, (field >> 3) - 23)


def dequantise(q: NDArray[np.int8], scale: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The real values `[..., K]` of elements `[..., K]` and scale fields `[..., K // 32]`."""
    blocks = q.reshape(*scale.shape, BLOCK) * scale_value(scale)[..., None]
    return blocks.reshape(q.shape)


def pack_words(q: NDArray[np.int8], scale: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Four words of 32 bytes for every four rows and block: `[R, K]` to `[R // 4, K // 32, 4, 32]`.

    Word w holds columns 8 w to 8 w + 7 of the block. In each word the four scales come first, then the 7-bit
    elements, row by row; the last row comes first, and within a row the last column.
    """
    groups, blocks = q.shape[0] // _WORD_ROWS, scale.shape[1]
    elements = q.reshape(groups, _WORD_ROWS, blocks, 4, _WORD_COLUMNS)[:, ::-1, :, :, ::-1]
    elements = elements.transpose(0, 2, 3, 1, 4).view(np.uint8)
    bits = np.unpackbits(elements[..., None], axis=-1, count=7, bitorder="little")
    words = np.empty((groups, blocks, 4, _WORD_BYTES), dtype=np.uint8)
    words[..., 4:] = np.packbits(bits.reshape(groups, blocks, 4, 28 * 8), axis=-1, bitorder="little")
    words[..., :4] = scale.reshape(groups, _WORD_ROWS, blocks)[:, ::-1].transpose(0, 2, 1)[:, :, None, :]
    return words


def unpack_words(words: NDArray[np.uint8]) -> tuple[NDArray[np.int8], NDArray[np.uint8]]:
    """The elements `[R, K]` and scale fields `[R, K // 32]` of `pack_words`; scales as in the first word."""
    groups, blocks = words.shape[:2]
    bits = np.unpackbits(words[..., 4:], axis=-1, bitorder="little")
    low = np.packbits(bits.reshape(groups, blocks, 4, _WORD_ROWS, _WORD_COLUMNS, 7), axis=-1, bitorder="little")
    # Bit 6 is the sign of a 7-bit element: shift it to the top of a byte and back arithmetically.
    signed = (low[..., 0] << 1).view(np.int8) >> 1
    signed = signed.transpose(0, 3, 1, 2, 4)[:, ::-1, :, :, ::-1]
    q = np.ascontiguousarray(signed).reshape(groups * _WORD_ROWS, blocks * BLOCK)
    scale = words[:, :, 0, :4][..., ::-1].transpose(0, 2, 1)
    return q, np.ascontiguousarray(scale).reshape(groups * _WORD_ROWS, blocks)
