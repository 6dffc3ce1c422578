"""Byte orders of the card's memories: where an element of a matrix is, and matrices to images and back.

A word is 32 bytes. A 4 x 4 fp16 sub-tile is one word; an L1 entry is 4 rows by 32 of K, 256 bytes of fp16. Source: the
card's specification. Packing runs in compiled code where that is installed, at the speed of memory, on the caller's
thread; the numpy twin gives the same bytes.
"""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.errors import MeshwrightError
from meshwright.numerics.backend import resolve
from meshwright.targets.ktpu import layout_twin as twin
from meshwright.targets.ktpu.layout_twin import Tiling

SUB_TILE: Final = 4
"""Rows, and columns, of a sub-tile; rows of an L1 entry."""
K_BLOCK: Final = 32
ELEMENT_BYTES: Final = 2
ENTRY_WORD_BYTES: Final = 32

Image: TypeAlias = NDArray[np.uint8]
"""Bytes as they lie in memory."""
ImageBytes: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]
"""What an image may be read from."""
Half: TypeAlias = NDArray[np.float16] | NDArray[np.uint16]
"""fp16 values, or their bits."""


class LayoutError(MeshwrightError, ValueError):
    """A matrix or an image that a layout is not for."""


class Layout(Protocol):
    """A byte order for matrices of one shape."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the matrix."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the image, padding included."""
        ...

    def pack(self, array: NDArray[Any], *, backend: str | None = None) -> Image:
        """The image; `LayoutError` for another shape or dtype."""
        ...

    def unpack(self, image: ImageBytes, *, backend: str | None = None) -> NDArray[Any]:
        """The matrix of an image; `LayoutError` for another number of bytes."""
        ...

    def bit(self, i: int, j: int) -> int:
        """First bit of element (i, j) in the image: byte `bit // 8`, low bits first; `LayoutError` outside."""
        ...


class OperandLayout(Struct, frozen=True):
    """An operand `[rows, k]` in the order in which FILLs of `groups x blocks` entries stream it.

    Index order (row tile, K chunk, group, block, 4 rows, 32 of K), rows padded to `4 * groups` and K to `32 * blocks`
    with zeros.
    """

    rows: int
    k: int
    groups: int
    blocks: int

    def __post_init__(self) -> None:
        _positive("OperandLayout", self.rows, self.k, self.groups, self.blocks)

    @property
    def tiling(self) -> Tiling:
        """The index order."""
        return Tiling(
            _parts(self.rows, SUB_TILE * self.groups),
            _parts(self.k, K_BLOCK * self.blocks),
            self.groups,
            self.blocks,
            SUB_TILE,
            K_BLOCK * ELEMENT_BYTES,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix."""
        return self.rows, self.k

    @property
    def nbytes(self) -> int:
        """Bytes of the image, padding included."""
        return self.tiling.nbytes

    @property
    def fill_bytes(self) -> int:
        """Bytes that one FILL of `groups * blocks` entries streams, one contiguous run."""
        return self.groups * self.blocks * SUB_TILE * K_BLOCK * ELEMENT_BYTES

    def fill_offset(self, tile: int, chunk: int) -> int:
        """Where in the image the run of a row tile and a K chunk starts, in bytes; `LayoutError` outside."""
        order = self.tiling
        _inside("OperandLayout: run", (tile, chunk), (order.outer_rows, order.outer_columns))
        return (tile * order.outer_columns + chunk) * self.fill_bytes

    def pack(self, array: Half, *, backend: str | None = None) -> Image:
        """The image of fp16 values or bits `[rows, k]`; `LayoutError` for another shape or dtype."""
        return _pack(_half(array, self.shape, "OperandLayout"), self.tiling, backend)

    def unpack(self, image: ImageBytes, *, backend: str | None = None) -> NDArray[np.float16]:
        """The fp16 values `[rows, k]` of an image; `LayoutError` for another number of bytes."""
        return _unpack(image, self.tiling, self.shape, backend, "OperandLayout")

    def bit(self, i: int, j: int) -> int:
        """First bit of element (i, j) in the image; `LayoutError` outside the matrix."""
        _inside("OperandLayout: element", (i, j), self.shape)
        return _bit(self.tiling, i, j * ELEMENT_BYTES)


class ResultLayout(Struct, frozen=True):
    """What GEMMs of `tile = (gm, gn)` sub-tiles drain, an instance for each place of `grid = (gi, gj)`.

    Index order (gi, gj, gm, gn, 4, 4) against a matrix of `(gi * gm * 4, gj * gn * 4)`, of which `[rows, columns]` are
    the result.
    """

    rows: int
    columns: int
    grid: tuple[int, int]
    tile: tuple[int, int]

    def __post_init__(self) -> None:
        _positive("ResultLayout", self.rows, self.columns, *self.grid, *self.tile)
        whole = self.padded
        if self.rows > whole[0] or self.columns > whole[1]:
            raise LayoutError(
                f"ResultLayout: {self.rows} x {self.columns} elements; {self.grid[0]} x {self.grid[1]} instances of "
                f"{self.tile[0]} x {self.tile[1]} sub-tiles have {whole[0]} x {whole[1]}"
            )

    @classmethod
    def over(cls, rows: int, columns: int, tile: tuple[int, int]) -> ResultLayout:
        """The smallest grid of instances of `tile` that has room for `[rows, columns]`."""
        _positive("ResultLayout", rows, columns, *tile)
        grid = _parts(rows, SUB_TILE * tile[0]), _parts(columns, SUB_TILE * tile[1])
        return cls(rows, columns, grid, tile)

    @property
    def tiling(self) -> Tiling:
        """The index order."""
        return Tiling(*self.grid, *self.tile, SUB_TILE, SUB_TILE * ELEMENT_BYTES)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix."""
        return self.rows, self.columns

    @property
    def padded(self) -> tuple[int, int]:
        """Shape with the padding that the instances compute as well."""
        return self.grid[0] * self.tile[0] * SUB_TILE, self.grid[1] * self.tile[1] * SUB_TILE

    @property
    def nbytes(self) -> int:
        """Bytes of the image, padding included."""
        return self.tiling.nbytes

    @property
    def instance_bytes(self) -> int:
        """Bytes that one instance drains, one contiguous run."""
        return self.tile[0] * self.tile[1] * SUB_TILE * SUB_TILE * ELEMENT_BYTES

    def instance_offset(self, i: int, j: int) -> int:
        """Where in the image the run of an instance starts, in bytes; `LayoutError` outside the grid."""
        _inside("ResultLayout: instance", (i, j), self.grid)
        return (i * self.grid[1] + j) * self.instance_bytes

    def pack(self, array: Half, *, backend: str | None = None) -> Image:
        """The image of fp16 values or bits `[rows, columns]`; `LayoutError` for another shape or dtype."""
        return _pack(_half(array, self.shape, "ResultLayout"), self.tiling, backend)

    def unpack(self, image: ImageBytes, *, backend: str | None = None) -> NDArray[np.float16]:
        """The fp16 values `[rows, columns]` of an image; `LayoutError` for another number of bytes."""
        return _unpack(image, self.tiling, self.shape, backend, "ResultLayout")

    def bit(self, i: int, j: int) -> int:
        """First bit of element (i, j) in the image; `LayoutError` outside the matrix."""
        _inside("ResultLayout: element", (i, j), self.shape)
        return _bit(self.tiling, i, j * ELEMENT_BYTES)


class FlatLayout(Struct, frozen=True):
    """Row-major fp16: the only order whose rows are rows, which is what vector cores load."""

    rows: int
    columns: int

    def __post_init__(self) -> None:
        _positive("FlatLayout", self.rows, self.columns)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix."""
        return self.rows, self.columns

    @property
    def nbytes(self) -> int:
        """Bytes of the image."""
        return self.rows * self.columns * ELEMENT_BYTES

    def pack(self, array: Half, *, backend: str | None = None) -> Image:
        """The image, a copy, of fp16 values or bits; `LayoutError` for another shape or dtype."""
        return _half(array, self.shape, "FlatLayout").reshape(-1).copy()

    def unpack(self, image: ImageBytes, *, backend: str | None = None) -> NDArray[np.float16]:
        """The fp16 values of an image, a copy; `LayoutError` for another number of bytes."""
        return _image(image, self.nbytes, "FlatLayout").copy().view(np.float16).reshape(self.shape)

    def bit(self, i: int, j: int) -> int:
        """First bit of element (i, j) in the image; `LayoutError` outside the matrix."""
        _inside("FlatLayout: element", (i, j), self.shape)
        return (i * self.columns + j) * ELEMENT_BYTES * 8


class QuantisedLayout(Struct, frozen=True):
    """L1 entries that are quantised already, in the order in which FILLs of `groups x blocks` entries stream them.

    The matrix is one of entries `[entry_rows, entry_blocks]`, each the `[4, 32]` bytes of `mxfp7.pack_words`; 128 bytes
    an entry. Both counts are whole tiles: the words of an entry of zeros aren't zero, so that padding belongs before
    the quantiser.
    """

    entry_rows: int
    entry_blocks: int
    groups: int
    blocks: int

    def __post_init__(self) -> None:
        _positive("QuantisedLayout", self.entry_rows, self.entry_blocks, self.groups, self.blocks)
        if self.entry_rows % self.groups or self.entry_blocks % self.blocks:
            raise LayoutError(
                f"QuantisedLayout: {self.entry_rows} x {self.entry_blocks} entries are not whole tiles of "
                f"{self.groups} x {self.blocks}; pad the operand with zeros before mxfp7.quantise"
            )

    @property
    def tiling(self) -> Tiling:
        """The index order; an entry is one run."""
        return Tiling(
            self.entry_rows // self.groups,
            self.entry_blocks // self.blocks,
            self.groups,
            self.blocks,
            1,
            SUB_TILE * ENTRY_WORD_BYTES,
        )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the array of entries."""
        return self.entry_rows, self.entry_blocks, SUB_TILE, ENTRY_WORD_BYTES

    @property
    def nbytes(self) -> int:
        """Bytes of the image."""
        return self.tiling.nbytes

    def pack(self, array: NDArray[np.uint8], *, backend: str | None = None) -> Image:
        """The image of entries as `mxfp7.pack_words` gives them; `LayoutError` for another shape or dtype."""
        words = _checked(array, self.shape, (np.dtype(np.uint8),), "QuantisedLayout")
        return _pack(np.ascontiguousarray(words).reshape(self.entry_rows, -1), self.tiling, backend)

    def unpack(self, image: ImageBytes, *, backend: str | None = None) -> NDArray[np.uint8]:
        """The entries of an image; `LayoutError` for another number of bytes."""
        given = _image(image, self.nbytes, "QuantisedLayout")
        return _unpack_bytes(given, self.tiling, (self.entry_rows, self.tiling.row_bytes), backend).reshape(self.shape)

    def bit(self, i: int, j: int) -> int:
        """First bit of entry (i, j) in the image; `LayoutError` outside."""
        _inside("QuantisedLayout: entry", (i, j), self.shape[:2])
        return _bit(self.tiling, i, j * self.tiling.run_bytes)


class AccumulatorLayout(Struct, frozen=True):
    """FP22 codes of `gm x gn` resident sub-tiles as a link carries them: two granules of 32 bytes a sub-tile.

    Sub-tile `g * gn + h`; its element (i, j) at bit `22 * (4 * i + j)`: the low 256 bits, then 96 bits zero-extended.
    The matrix is `[4 * gm, 4 * gn]` of codes in uint32.
    """

    gm: int
    gn: int

    def __post_init__(self) -> None:
        _positive("AccumulatorLayout", self.gm, self.gn)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix."""
        return SUB_TILE * self.gm, SUB_TILE * self.gn

    @property
    def nbytes(self) -> int:
        """Bytes of the image."""
        return self.gm * self.gn * twin.TILE_BYTES

    def pack(self, array: NDArray[np.uint32], *, backend: str | None = None) -> Image:
        """The image of codes; `LayoutError` for another shape or dtype, or a code of more than 22 bits."""
        codes = np.ascontiguousarray(_checked(array, self.shape, (np.dtype(np.uint32),), "AccumulatorLayout"))
        module = _compiled(backend)
        if module is None:
            image = twin.pack_accumulator(codes, self.gm, self.gn)
        else:
            image = np.empty(self.nbytes, dtype=np.uint8)
            image = image if module.pack_accumulator(_at(codes), _at(image), self.gm, self.gn) else None
        if image is None:
            raise LayoutError(
                f"AccumulatorLayout: code {int(codes.max()):#x} has more than the {twin.CODE_BITS} bits of FP22"
            )
        return image

    def unpack(self, image: ImageBytes, *, backend: str | None = None) -> NDArray[np.uint32]:
        """The codes of an image; `LayoutError` for another number of bytes, or where its padding isn't zero."""
        given = _image(image, self.nbytes, "AccumulatorLayout")
        module = _compiled(backend)
        if module is None:
            codes = twin.unpack_accumulator(given, self.gm, self.gn)
        else:
            codes = np.empty(self.shape, dtype=np.uint32)
            codes = codes if module.unpack_accumulator(_at(given), _at(codes), self.gm, self.gn) else None
        if codes is None:
            raise LayoutError(
                f"AccumulatorLayout: bits are set past the {twin.TILE_BITS} of a sub-tile; these are no accumulator "
                "words"
            )
        return codes

    def bit(self, i: int, j: int) -> int:
        """First bit of element (i, j) in the image; `LayoutError` outside the matrix."""
        _inside("AccumulatorLayout: element", (i, j), self.shape)
        tile = i // SUB_TILE * self.gn + j // SUB_TILE
        return tile * twin.TILE_BYTES * 8 + twin.CODE_BITS * (SUB_TILE * (i % SUB_TILE) + j % SUB_TILE)


def _parts(size: int, part: int) -> int:
    return -(-size // part)


def _positive(what: str, *sizes: int) -> None:
    if min(sizes) < 1:
        raise LayoutError(f"{what}: sizes {', '.join(map(str, sizes))}; each is 1 at least")


def _inside(what: str, place: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if any(not 0 <= index < size for index, size in zip(place, shape, strict=True)):
        raise LayoutError(f"{what} {place} is outside {shape}")


def _bit(tiling: Tiling, row: int, byte: int) -> int:
    outer, rest = divmod(row, tiling.inner_rows * tiling.tile_rows)
    inner, tile_row = divmod(rest, tiling.tile_rows)
    column, rest = divmod(byte, tiling.inner_columns * tiling.run_bytes)
    tile_column, run = divmod(rest, tiling.run_bytes)
    place = outer * tiling.outer_columns + column
    place = (place * tiling.inner_rows + inner) * tiling.inner_columns + tile_column
    return ((place * tiling.tile_rows + tile_row) * tiling.run_bytes + run) * 8


def _checked(array: NDArray[Any], shape: tuple[int, ...], dtypes: tuple[np.dtype[Any], ...], what: str) -> NDArray[Any]:
    if array.dtype not in dtypes or array.shape != shape:
        wanted = " or ".join(str(dtype) for dtype in dtypes)
        raise LayoutError(f"{what}: got {array.dtype}{list(array.shape)}; it is for {wanted}{list(shape)}")
    return array


def _half(array: Half, shape: tuple[int, int], what: str) -> NDArray[np.uint8]:
    checked = _checked(array, shape, (np.dtype(np.float16), np.dtype(np.uint16)), what)
    return np.ascontiguousarray(checked).view(np.uint8)


def _image(image: ImageBytes, nbytes: int, what: str) -> NDArray[np.uint8]:
    if isinstance(image, np.ndarray):
        found = np.ascontiguousarray(_checked(image, image.shape, (np.dtype(np.uint8),), what)).reshape(-1)
    else:
        found = np.frombuffer(image, dtype=np.uint8)
    if found.size != nbytes:
        raise LayoutError(f"{what}: an image of {found.size} bytes; this layout's has {nbytes}")
    return found


@cache
def _module() -> ModuleType | None:
    try:
        return importlib.import_module("meshwright.targets.ktpu._layout")
    except ImportError:
        return None


def _compiled(backend: str | None) -> ModuleType | None:
    return None if resolve(backend) == "numpy" else _module()


def _at(array: NDArray[Any]) -> int:
    return array.ctypes.data


def _order(tiling: Tiling) -> tuple[int, ...]:
    return (
        tiling.outer_rows,
        tiling.outer_columns,
        tiling.inner_rows,
        tiling.inner_columns,
        tiling.tile_rows,
        tiling.run_bytes,
    )


def _pack(matrix: NDArray[np.uint8], tiling: Tiling, backend: str | None) -> Image:
    module = _compiled(backend)
    if module is None:
        return twin.pack_tiles(matrix, tiling)
    image = np.empty(tiling.nbytes, dtype=np.uint8)
    module.pack_tiles(_at(matrix), _at(image), matrix.shape, _order(tiling))
    return image


def _unpack_bytes(
    image: NDArray[np.uint8], tiling: Tiling, shape: tuple[int, int], backend: str | None
) -> NDArray[np.uint8]:
    module = _compiled(backend)
    if module is None:
        return twin.unpack_tiles(image, tiling, shape)
    matrix = np.empty(shape, dtype=np.uint8)
    module.unpack_tiles(_at(image), _at(matrix), shape, _order(tiling))
    return matrix


def _unpack(
    image: ImageBytes, tiling: Tiling, shape: tuple[int, int], backend: str | None, what: str
) -> NDArray[np.float16]:
    given = _image(image, tiling.nbytes, what)
    return _unpack_bytes(given, tiling, (shape[0], shape[1] * ELEMENT_BYTES), backend).view(np.float16)
