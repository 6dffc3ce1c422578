"""The matrix product in numpy: exact dot products of a block by float32 BLAS, then the accumulator's rules.

Rules: RTL vectors in tests/golden/matmul.npz and tests/golden/matmul_machine.npz.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from meshwright.numerics.twin import fp22
from meshwright.numerics.twin.mxfp7 import BLOCK

_CHUNK: Final = 1 << 13
"""Outputs worked on at a time. A handful of float64 arrays of this size stay in a second-level cache, and 2^18
multiplications a block is where OpenBLAS still runs on the caller's thread: its threads would spin between blocks."""
_COLUMNS: Final = 512
_SHIFT_CAP: Final = 30


class _Operand:
    """Elements of some rows as float32 `[T, rows, blocks, 32]` and their scales' eighths and exponents."""

    def __init__(self, q: NDArray[np.int8], scale: NDArray[np.uint8]) -> None:
        field = scale.astype(np.int32)
        self.elements = q.reshape(*scale.shape, BLOCK).astype(np.float32)
        self.eighths = ((field & 7) + 8).astype(np.float64)
        self.exponent = field >> 3
        # 23 of the 46 by which a pair's exponents are lowered (anchor 40, and 6 for the two scales' eighths).
        self.scale = np.ldexp(self.eighths, self.exponent - 23)


def _dot(a: _Operand, b: _Operand, block: int) -> NDArray[np.float64]:
    """Exact dot products `[T, rows, columns]` of one block: at most 2^17, far inside float32's integers."""
    left, right = a.elements[:, :, block], b.elements[:, :, block]
    return (left @ right.swapaxes(-1, -2)).astype(np.float64)


def _scaled(a: _Operand, b: _Operand, block: int) -> NDArray[np.float64]:
    """The value of one block before rounding."""
    value = _dot(a, b, block)
    value *= a.scale[:, :, block, None]
    value *= b.scale[:, None, :, block]
    return value


def _merged(a: _Operand, b: _Operand, block: int) -> NDArray[np.float64]:
    """The value of blocks `block` and `block + 1` merged before rounding: aligned to the larger exponent."""
    products: list[NDArray[np.float64]] = []
    exponents: list[NDArray[np.int32]] = []
    for index in (block, block + 1):
        eighths = a.eighths[:, :, index, None] * b.eighths[:, None, :, index]
        products.append(_dot(a, b, index) * eighths)
        exponents.append(a.exponent[:, :, index, None] + b.exponent[:, None, :, index])
    common = np.maximum(*exponents)
    total = np.zeros_like(products[0])
    for product, exponent in zip(products, exponents, strict=True):
        total += np.trunc(np.ldexp(product, -np.minimum(common - exponent, _SHIFT_CAP)))
    return np.ldexp(total, common - 46)


def _block_values(a: _Operand, b: _Operand, pumped: bool) -> Iterator[NDArray[np.float64]]:
    """What is added to the tile, in order: one rounded value a block, or a pair of blocks where `pumped`."""
    blocks = a.elements.shape[2]
    for block in range(0, blocks, 2 if pumped else 1):
        pair = pumped and block + 1 < blocks
        yield fp22.round_to_15_bits(_merged(a, b, block) if pair else _scaled(a, b, block))


def _slices(length: int, step: int) -> list[slice]:
    return [slice(first, first + step) for first in range(0, length, step)]


def _tiles(products: int, rows: int, columns: int) -> tuple[list[slice], list[slice], list[slice]]:
    """Slices over products, rows and columns; one of each is about `_CHUNK` outputs."""
    columns_step = min(columns, _COLUMNS)
    rows_step = min(rows, max(1, _CHUNK // columns_step))
    products_step = max(1, _CHUNK // (rows_step * columns_step))
    return _slices(products, products_step), _slices(rows, rows_step), _slices(columns, columns_step)


def matmul(
    entries_a: tuple[NDArray[np.int8], NDArray[np.uint8]],
    entries_b: tuple[NDArray[np.int8], NDArray[np.uint8]],
    indices: tuple[NDArray[np.int64], NDArray[np.int64]],
    start: NDArray[np.uint32] | None = None,
    *,
    pumped: bool = False,
) -> NDArray[np.uint32]:
    """Products `[T, M, N]`: the t-th takes entry `indices[0][t]` of a and `indices[1][t]` of b.

    Entries are elements `[B, rows, K]` and their scales `[B, rows, K // 32]`; `start` `[T, M, N]` is
    continued.
    """
    (qa, sa), (qb, sb), (a_index, b_index) = entries_a, entries_b, indices
    products, rows, columns = len(a_index), qa.shape[1], qb.shape[1]
    out = np.zeros((products, rows, columns), dtype=np.uint32) if start is None else start.copy()
    if out.size == 0 or qa.shape[2] == 0:
        return out
    some_products, some_rows, some_columns = _tiles(products, rows, columns)
    for which, column in itertools.product(some_products, some_columns):
        b = _Operand(qb[b_index[which], column], sb[b_index[which], column])
        for row in some_rows:
            a = _Operand(qa[a_index[which], row], sa[a_index[which], row])
            tile = fp22.decode(out[which, row, column])
            for value in _block_values(a, b, pumped):
                tile = fp22.add_values(tile, value)
            out[which, row, column] = fp22.code_of(tile)
    return out
