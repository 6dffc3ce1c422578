"""Byte orders as pictures: which element of a matrix lies at which byte of its image, and the bytes there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, TypeAlias

from msgspec import Struct

from meshwright.errors import MeshwrightError
from meshwright.ir.ids import TensorId
from meshwright.targets.ktpu.layout import ELEMENT_BYTES, K_BLOCK, SUB_TILE, OperandLayout, ResultLayout
from meshwright.targets.ktpu.orders import Drained, Operand, Order

Element: TypeAlias = tuple[int, int]
"""Row and column of a matrix."""

_SHOWN: Final = 8
"""Bytes of a line of a picture: four elements."""
_MOST_MAPPED: Final = 4
"""Entries, or sub-tiles, of a picture's map, down and across."""


class Line(Struct, frozen=True):
    """Bytes of an image from `byte` on, and the element that each two of them are.

    None: an element that is padding, or, where `data` is None as well, room that nothing is read from.
    """

    byte: int
    data: bytes | None
    elements: tuple[Element | None, ...]


class Picture(Struct, frozen=True):
    """How a matrix lies in memory.

    order: the layout, with its parameters. index: the order of the indices. address: global, as instructions have it;
    host: as a host has it. unit: what the map is of; each of its rows begins with its first matrix row, and has the
    byte at which each unit begins.
    """

    name: str
    shape: Element
    order: str
    index: str
    address: int
    host: int
    nbytes: int
    lines: tuple[Line, ...]
    unit: str
    columns: tuple[int, ...]
    map: tuple[tuple[int, tuple[int, ...]], ...]
    mapped: Element
    """Units in all, down and across."""


def picture_of(name: str, order: Order, address: int, host: int, known: Mapping[int, bytes]) -> Picture:
    """The picture of a matrix that lies in `order`.

    known: bytes that were written to the image, or read from it, by their first byte in it.

    Raises `MeshwrightError` for an order of more than one matrix, or one that clusters don't use.
    """
    match order:
        case Operand(leading=(), layout=layout):
            of, marks, across = _operand(layout), (0, 8, 56, 64, 128, 192, 256, layout.fill_bytes), K_BLOCK
            index = "row tile, K chunk, group, block, 4 rows, 32 of K"
        case Drained(leading=(), layout=layout):
            pitch = order.image(TensorId(0), 0).pitch
            of, marks, across = _result(layout, pitch), (0, 8, 16, 24, 32, 64, pitch), SUB_TILE
            index = "tile down, tile across, sub-tile down, sub-tile across, 4 rows, 4 columns"
        case _:
            raise MeshwrightError(f"{name} lies in {order}, which is no order of one matrix that a cluster reads")
    rows, columns = layout.shape
    down, over = math.ceil(rows / SUB_TILE), math.ceil(columns / across)
    firsts = range(0, min(over, _MOST_MAPPED) * across, across)
    return Picture(
        name,
        layout.shape,
        str(layout),
        index,
        address,
        host,
        order.nbytes,
        _lines([byte for byte in sorted(set(marks)) if byte < order.nbytes], known, of),
        f"{SUB_TILE} x {across}",
        tuple(firsts),
        tuple((row, tuple(of.byte(row, column) for column in firsts)) for row in _rows(down)),
        (down, over),
    )


def _rows(down: int) -> range:
    return range(0, min(down, _MOST_MAPPED) * SUB_TILE, SUB_TILE)


def _lines(bytes_: list[int], known: Mapping[int, bytes], of: _Inverse) -> tuple[Line, ...]:
    """The first line, those with elements, and the first of room that nothing is read from."""
    lines = [_line(byte, known, of) for byte in bytes_]
    unread = next((line for line in lines if line.data is None), None)
    return tuple(line for line in lines if line is lines[0] or line is unread or any(line.elements))


def _line(byte: int, known: Mapping[int, bytes], of: _Inverse) -> Line:
    data: bytes | None = None
    for first, content in known.items():
        if first <= byte and byte + _SHOWN <= first + len(content):
            data = content[byte - first : byte - first + _SHOWN]
    return Line(byte, data, tuple(of.element(at) for at in range(byte, byte + _SHOWN, ELEMENT_BYTES)))


class _Inverse(Struct, frozen=True):
    """Where elements are, both ways, for sub-tiles or entries in tiles of `inner`, a tile at every `pitch` bytes.

    shape: of the matrix; across: columns of a unit, which has 4 rows. grid: tiles down and across.
    """

    shape: Element
    across: int
    grid: Element
    inner: Element
    pitch: int

    @property
    def _unit(self) -> int:
        return SUB_TILE * self.across * ELEMENT_BYTES

    def byte(self, row: int, column: int) -> int:
        """First byte of an element."""
        (i, g), (j, h) = (
            divmod(at // size, inner)
            for at, size, inner in zip((row, column), (SUB_TILE, self.across), self.inner, strict=True)
        )
        inside = (row % SUB_TILE * self.across + column % self.across) * ELEMENT_BYTES
        return (i * self.grid[1] + j) * self.pitch + (g * self.inner[1] + h) * self._unit + inside

    def element(self, byte: int) -> Element | None:
        """The element at a byte; None for padding and for room between tiles."""
        tile, rest = divmod(byte, self.pitch)
        if rest >= math.prod(self.inner) * self._unit:
            return None
        (i, j), (unit, inside) = divmod(tile, self.grid[1]), divmod(rest, self._unit)
        (g, h), (r, c) = divmod(unit, self.inner[1]), divmod(inside // ELEMENT_BYTES, self.across)
        row, column = (i * self.inner[0] + g) * SUB_TILE + r, (j * self.inner[1] + h) * self.across + c
        return (row, column) if row < self.shape[0] and column < self.shape[1] else None


def _operand(layout: OperandLayout) -> _Inverse:
    order = layout.tiling
    return _Inverse(
        layout.shape,
        K_BLOCK,
        (order.outer_rows, order.outer_columns),
        (layout.groups, layout.blocks),
        layout.fill_bytes,
    )


def _result(layout: ResultLayout, pitch: int) -> _Inverse:
    return _Inverse(layout.shape, SUB_TILE, layout.grid, layout.tile, pitch)
