"""Byte orders: how a piece of a tensor lies in DRAM for the unit that reads it, or after the one that wrote it.

A piece may be held in several orders at once; bringing it from one into another is a relayout. An order says nothing
of which piece it is or where.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.evaluate.storage import storage_dtype
from meshwright.ir.formats import ElementType
from meshwright.ir.ids import TensorId
from meshwright.targets.ktpu.emit_matrix_image import MatrixImage, OperandImage, ResultImage
from meshwright.targets.ktpu.emit_vector_layout import LANES, WORD, Placed, padded_rows
from meshwright.targets.ktpu.layout import ImageBytes, LayoutError, OperandLayout, ResultLayout

Bytes: TypeAlias = NDArray[np.uint8]
_NOBODY: Final = TensorId(0), 0


class Rows(Struct, frozen=True):
    """Row-major, as vector cores and the host have it; rows along the last axis begin at multiples of `multiple`.

    Make one with `rows`: orders that place every element alike have to be equal.
    """

    shape: tuple[int, ...]
    format: ElementType
    multiple: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of the image: whole memory words."""
        return -(-math.prod(self._padded) * self.format.bits // 8 // WORD) * WORD

    @property
    def _padded(self) -> tuple[int, ...]:
        last = self.shape[-1] if self.shape else 1
        return *self.shape[:-1], -(-last // self.multiple) * self.multiple

    def placed(self, address: int) -> Placed:
        """Where the elements are, for an image at a global byte address."""
        return padded_rows(address, self.shape, self.multiple)

    def spans(self) -> Iterator[tuple[int, int]]:
        """First byte and number of bytes of what a unit has written: all of it."""
        yield 0, self.nbytes

    def pack(self, array: NDArray[Any]) -> Bytes:
        """The image; `LayoutError` for another shape or dtype."""
        dtype = storage_dtype(self.format)
        if array.shape != self.shape or array.dtype != dtype:
            raise LayoutError(
                f"Rows: got {array.dtype}{list(array.shape)}; it is for {dtype}{list(self.shape)}, {self.format}"
            )
        image = np.zeros(self.nbytes, dtype=np.uint8)
        padded = self._padded
        elements = image[: math.prod(padded) * dtype.itemsize].view(dtype).reshape(-1, padded[-1])
        last = self.shape[-1] if self.shape else 1
        elements[:, :last] = array.reshape(-1, last)
        return image

    def unpack(self, image: ImageBytes) -> NDArray[Any]:
        """The elements; `LayoutError` for another number of bytes."""
        data = np.frombuffer(image, dtype=np.uint8)
        if data.size != self.nbytes:
            raise LayoutError(f"Rows: the image of {list(self.shape)} has {self.nbytes} bytes, not {data.size}")
        dtype, padded = storage_dtype(self.format), self._padded
        elements = data[: math.prod(padded) * dtype.itemsize].view(dtype).reshape(-1, padded[-1])
        last = self.shape[-1] if self.shape else 1
        return elements[:, :last].reshape(self.shape).copy()


class Operand(Struct, frozen=True):
    """Entries in the order in which FILLs stream them; see `OperandImage`."""

    leading: tuple[int, ...]
    layout: OperandLayout

    @property
    def nbytes(self) -> int:
        """Bytes of the image, padding included."""
        return self.image(*_NOBODY).nbytes

    def image(self, tensor: TensorId, rank: int) -> OperandImage:
        """The image of a piece that lies so."""
        return OperandImage(tensor, rank, self.leading, self.layout)

    def spans(self) -> Iterator[tuple[int, int]]:
        """First byte and number of bytes of what says something: all of it."""
        yield 0, self.nbytes

    def pack(self, array: NDArray[Any]) -> Bytes:
        """The image; `LayoutError` for another shape or dtype."""
        return self.image(*_NOBODY).pack(array)

    def unpack(self, image: ImageBytes) -> NDArray[Any]:
        """The elements; `LayoutError` for another number of bytes."""
        matrices = np.frombuffer(image, dtype=np.uint8).reshape(math.prod(self.leading), -1)
        return np.stack([self.layout.unpack(one) for one in matrices]).reshape(*self.leading, *self.layout.shape)


class Drained(Struct, frozen=True):
    """Instances of a product, one after the other as clusters drain them; see `ResultImage`."""

    leading: tuple[int, ...]
    layout: ResultLayout

    @property
    def nbytes(self) -> int:
        """Bytes of the image, padding included."""
        return self.image(*_NOBODY).nbytes

    def image(self, tensor: TensorId, rank: int) -> ResultImage:
        """The image of a piece that lies so."""
        return ResultImage(tensor, rank, self.leading, self.layout)

    def spans(self) -> Iterator[tuple[int, int]]:
        """First byte and number of bytes of each run that says something; what is between may be anything."""
        image = self.image(*_NOBODY)
        if image.pitch == image.layout.instance_bytes:
            yield 0, image.nbytes
        else:
            yield from image.runs()

    def pack(self, array: NDArray[Any]) -> Bytes:
        """The image, gaps zero; `LayoutError` for another shape or dtype."""
        image = self.image(*_NOBODY)
        dense = [self.layout.pack(matrix) for matrix in array.reshape(-1, *self.layout.shape)]
        whole = np.zeros((image.instances, image.pitch), dtype=np.uint8)
        whole[:, : self.layout.instance_bytes] = np.concatenate(dense).reshape(image.instances, -1)
        return whole.reshape(-1)

    def unpack(self, image: ImageBytes) -> NDArray[Any]:
        """The elements; `LayoutError` for another number of bytes."""
        return self.image(*_NOBODY).unpack(image)


Order: TypeAlias = Rows | Operand | Drained
"""All are frozen data: equal orders place equal bytes."""


def rows(shape: tuple[int, ...], format: ElementType, padded: bool = False) -> Rows:
    """Row-major; `padded`: every row begins at a vector of 16 elements, so at a word."""
    return Rows(shape, format, LANES if padded and shape and shape[-1] % LANES else 1)


def order_of(image: MatrixImage) -> Operand | Drained:
    """How a matrix image lies."""
    if isinstance(image, OperandImage):
        return Operand(image.leading, image.layout)
    return Drained(image.leading, image.layout)
