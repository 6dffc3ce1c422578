"""Memory layouts in numpy: the oracle of the compiled ones, and what runs without them."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

TILE_BYTES: Final = 64
"""Of a sub-tile of accumulator words: two granules."""
CODE_BITS: Final = 22
TILE_BITS: Final = 16 * CODE_BITS


class Tiling(Struct, frozen=True):
    """Index order of an image: (outer row, outer column, inner row, inner column, rows of a tile, bytes of its row)."""

    outer_rows: int
    outer_columns: int
    inner_rows: int
    inner_columns: int
    tile_rows: int
    run_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes of the image."""
        return self.rows * self.row_bytes

    @property
    def rows(self) -> int:
        """Rows of the matrix with its padding."""
        return self.outer_rows * self.inner_rows * self.tile_rows

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the matrix with its padding."""
        return self.outer_columns * self.inner_columns * self.run_bytes


def pack_tiles(matrix: NDArray[np.uint8], tiling: Tiling) -> NDArray[np.uint8]:
    """The image of a matrix of bytes, zero where the tiles reach past it."""
    whole = np.zeros((tiling.rows, tiling.row_bytes), dtype=np.uint8)
    whole[: matrix.shape[0], : matrix.shape[1]] = matrix
    axes = whole.reshape(
        tiling.outer_rows,
        tiling.inner_rows,
        tiling.tile_rows,
        tiling.outer_columns,
        tiling.inner_columns,
        tiling.run_bytes,
    )
    return axes.transpose(0, 3, 1, 4, 2, 5).reshape(-1)


def unpack_tiles(image: NDArray[np.uint8], tiling: Tiling, shape: tuple[int, int]) -> NDArray[np.uint8]:
    """The matrix of bytes that an image holds."""
    axes = image.reshape(
        tiling.outer_rows,
        tiling.outer_columns,
        tiling.inner_rows,
        tiling.inner_columns,
        tiling.tile_rows,
        tiling.run_bytes,
    )
    whole = axes.transpose(0, 2, 4, 1, 3, 5).reshape(tiling.rows, tiling.row_bytes)
    return np.ascontiguousarray(whole[: shape[0], : shape[1]])


def pack_accumulator(codes: NDArray[np.uint32], gm: int, gn: int) -> NDArray[np.uint8] | None:
    """Codes `[4 * gm, 4 * gn]` as 64 bytes for each sub-tile; None where a code has more than 22 bits."""
    if codes.size and int(codes.max()) >> CODE_BITS:
        return None
    tiles = codes.reshape(gm, 4, gn, 4).transpose(0, 2, 1, 3).reshape(gm * gn, 16, 1)
    bits = tiles >> np.arange(CODE_BITS, dtype=np.uint32) & 1
    image = np.zeros((gm * gn, TILE_BYTES), dtype=np.uint8)
    packed = np.packbits(bits.reshape(gm * gn, TILE_BITS).astype(np.uint8), axis=1, bitorder="little")
    image[:, : packed.shape[1]] = packed
    return image.reshape(-1)


def unpack_accumulator(image: NDArray[np.uint8], gm: int, gn: int) -> NDArray[np.uint32] | None:
    """Codes `[4 * gm, 4 * gn]` of an image; None where bits past a sub-tile's 352 are set."""
    bits = np.unpackbits(image.reshape(gm * gn, TILE_BYTES), axis=1, bitorder="little")
    if bits[:, TILE_BITS:].any():
        return None
    weights = np.uint32(1) << np.arange(CODE_BITS, dtype=np.uint32)
    codes = (bits[:, :TILE_BITS].reshape(gm * gn, 16, CODE_BITS) * weights).sum(axis=-1, dtype=np.uint32)
    return np.ascontiguousarray(codes.reshape(gm, gn, 4, 4).transpose(0, 2, 1, 3)).reshape(4 * gm, 4 * gn)
