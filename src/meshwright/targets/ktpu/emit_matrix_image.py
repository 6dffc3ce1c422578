"""Memory images of matrix work: how a piece of a tensor has to lie in DRAM for FILLs, or lies there after DRAINs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.ir.ids import TensorId
from meshwright.targets.ktpu.layout import (
    K_BLOCK,
    SUB_TILE,
    Image,
    ImageBytes,
    LayoutError,
    OperandLayout,
    ResultLayout,
)

BURST_BYTES: Final = 256
"""What a DRAIN to memory moves at a time; source: the card's specification."""

Corner: TypeAlias = tuple[int, ...]


class _PieceImage(Struct, frozen=True):
    """A piece of a tensor; its last two axes are a matrix, and there is one for each index of the `leading` axes.

    Matrices lie one after the other, row-major by their leading indices.
    """

    tensor: TensorId
    rank: int
    leading: tuple[int, ...]

    @property
    def matrices(self) -> int:
        """How many matrices the piece has."""
        return math.prod(self.leading)

    def _matrix(self, corner: Corner) -> int:
        number = 0
        for index, size in zip(corner[:-2], self.leading, strict=True):
            number = number * size + index
        return number


class OperandImage(_PieceImage, frozen=True):
    """An operand, whole matrices of `layout`; pads are zeros, which is what a load reads outside the tensor."""

    layout: OperandLayout

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the piece."""
        return *self.leading, *self.layout.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the image, padding included."""
        return self.matrices * self.layout.nbytes

    def run(self, corner: Corner) -> int | None:
        """Byte at which the entries of the block at `corner` begin; None where the block is all padding along K."""
        tile, chunk = corner[-2] // (SUB_TILE * self.layout.groups), corner[-1] // (K_BLOCK * self.layout.blocks)
        if corner[-1] >= self.layout.k:
            return None
        return self._matrix(corner) * self.layout.nbytes + self.layout.fill_offset(tile, chunk)

    def pack(self, array: NDArray[Any]) -> Image:
        """The bytes of fp16 values or bits `shape`; `LayoutError` for another shape or dtype."""
        if array.shape != self.shape:
            raise LayoutError(f"OperandImage: the piece is {list(self.shape)}, and the array {list(array.shape)}")
        matrices = array.reshape(-1, *self.layout.shape)
        return np.concatenate([self.layout.pack(matrix) for matrix in matrices])


class ResultImage(_PieceImage, frozen=True):
    """A result, whole matrices of `layout`; every instance begins at a burst of 256 bytes.

    So instances of 8 sub-tiles or a multiple lie as `ResultLayout` says, and smaller ones have room after them that
    their DRAINs overwrite with nobody knows what.
    """

    layout: ResultLayout

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the piece."""
        return *self.leading, *self.layout.shape

    @property
    def pitch(self) -> int:
        """Bytes from one instance to the next."""
        return -(-self.layout.instance_bytes // BURST_BYTES) * BURST_BYTES

    @property
    def instances(self) -> int:
        """How many instances all matrices have."""
        return self.matrices * math.prod(self.layout.grid)

    @property
    def nbytes(self) -> int:
        """Bytes of the image, padding included."""
        return self.instances * self.pitch

    def run(self, corner: Corner) -> int:
        """Byte at which the instance whose first element is at `corner` begins."""
        (down, across), (gm, gn) = self.layout.grid, self.layout.tile
        i, j = corner[-2] // (SUB_TILE * gm), corner[-1] // (SUB_TILE * gn)
        return ((self._matrix(corner) * down + i) * across + j) * self.pitch

    def runs(self) -> Iterator[tuple[int, int]]:
        """First byte and number of bytes of what each instance drains: the bytes that say something."""
        for number in range(self.instances):
            yield number * self.pitch, self.layout.instance_bytes

    def unpack(self, image: ImageBytes) -> NDArray[np.float16]:
        """The fp16 values `shape`; `LayoutError` for another number of bytes. Bytes outside `runs` may be anything."""
        data = np.frombuffer(image, dtype=np.uint8)
        if data.size != self.nbytes:
            raise LayoutError(f"ResultImage: the image of {list(self.shape)} has {self.nbytes} bytes, not {data.size}")
        dense = np.ascontiguousarray(data.reshape(-1, self.pitch)[:, : self.layout.instance_bytes])
        found = [self.layout.unpack(matrix) for matrix in dense.reshape(self.matrices, -1)]
        return np.stack(found).reshape(self.shape)


MatrixImage: TypeAlias = OperandImage | ResultImage
"""What memory holds of a piece; equal images are equal values, and name the place they are given."""


def sweep_blocks(groups: int, blocks: int, entries: int, field: int) -> int:
    """K blocks of one sweep: the most that divide `blocks` evenly and that a bank and the instruction's field hold.

    groups: of the larger side. 0 where not even one fits.
    """
    most = min(entries // groups, field, blocks)
    return next((size for size in range(most, 0, -1) if blocks % size == 0), 0)
