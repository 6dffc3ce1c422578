"""One chip of a grid as kernels see it: every site multiplies and does vector work, out of one memory."""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

from meshwright.errors import MachineError, PlacementError
from meshwright.ir.formats import ElementType
from meshwright.ir.ids import ChipId
from meshwright.ir.records import Site
from meshwright.machine import MachineSpec

_DEPTH: Final = 2
"""Blocks of a FIFO: one fills while the other is worked on."""
_SIDE: Final = 128
"""Rows and columns of an output block by default, at most."""
_VALUE_BYTES: Final = 2
_SUM_BYTES: Final = 4


class GridPlacement(Struct, frozen=True):
    """Chip `chip` of `machine`. Sites, tiles and blocks come from the machine's description."""

    machine: MachineSpec
    chip: int

    @property
    def value_format(self) -> ElementType:
        """Values in DRAM are bf16."""
        return ElementType.BF16

    @property
    def lane_format(self) -> ElementType:
        """Between two operations of a vector engine."""
        return ElementType.F32

    @property
    def resident_sums(self) -> bool:
        """A site's sums are out of reach of other chips."""
        return False

    @property
    def has_vector_units(self) -> bool:
        """Whether there are sites: each has a vector engine."""
        return self.machine.has(self.chip, "site")

    def matrix_sites(self) -> tuple[Site, ...]:
        """All sites."""
        try:
            return tuple(Site(ChipId(self.chip), x, y) for x, y in self.machine.coords(self.chip, "site"))
        except MachineError as error:
            raise PlacementError(str(error)) from None

    def vector_sites(self) -> tuple[Site, ...]:
        """All sites."""
        return self.matrix_sites()

    def mover_site(self) -> Site:
        """The first site: its reader and writer move what only has to be copied."""
        return self.matrix_sites()[0]

    @property
    def _tile(self) -> tuple[int, int, int]:
        rows, columns = self.machine.site.tile
        return rows, columns, rows

    def matmul_tile(self, m: int, n: int, k: int) -> tuple[int, int, int]:
        """Up to 128 x 128 outputs, smaller where that gives more sites a share, and K in even parts that fit."""
        unit_m, unit_n, unit_k = self._tile
        rows, columns = (min(_up(_SIDE, unit), _up(size, unit)) for size, unit in ((m, unit_m), (n, unit_n)))
        sites = self.machine.count("site", self.chip)
        while math.ceil(m / rows) * math.ceil(n / columns) < sites and (rows > unit_m or columns > unit_n):
            if rows >= columns and rows > unit_m:
                rows = _up(rows // 2, unit_m)
            else:
                columns = _up(columns // 2, unit_n)
        most = max(1, self._most_k(rows, columns) // unit_k)
        blocks = max(1, math.ceil(k / unit_k))
        return rows, columns, unit_k * math.ceil(blocks / math.ceil(blocks / most))

    def _most_k(self, m: int, n: int) -> int:
        """The deepest K of a block whose operands, results and sums fit a site's memory."""
        left = self.machine.site.memory_bytes - m * n * (_DEPTH * _VALUE_BYTES + _SUM_BYTES)
        unit = self._tile[2]
        return max(0, left) // (_DEPTH * _VALUE_BYTES * (m + n)) // unit * unit

    def check_tile(self, tile: tuple[int, int, int]) -> None:
        """Against the tile that an engine works on and the memory of a site."""
        m, n, k = tile
        units = self._tile
        asked = f"matmul tile {m} x {n} x {k} on {self.machine.name}"
        if any(size < 1 or size % unit for size, unit in zip(tile, units, strict=True)):
            nearest = " x ".join(str(_up(max(size, 1), unit)) for size, unit in zip(tile, units, strict=True))
            raise PlacementError(
                f"{asked}: a matrix engine works on tiles of {units[0]} x {units[1]} x {units[2]}; the nearest legal "
                f"tile is {nearest}"
            )
        fits = self._most_k(m, n)
        if k > fits:
            memory = self.machine.site.memory_bytes
            instead = f"K blocks of {fits} fit" if fits else "fewer rows or columns would fit"
            raise PlacementError(
                f"{asked}: two blocks of each operand and of the result, and the sums, take {self._bytes(tile):,} "
                f"bytes, and a site has {memory:,}; {instead}"
            )

    @staticmethod
    def _bytes(tile: tuple[int, int, int]) -> int:
        m, n, k = tile
        return _DEPTH * _VALUE_BYTES * ((m + n) * k + m * n) + _SUM_BYTES * m * n

    def vector_elements(self, blocks: int) -> int:
        """A site's memory in tiles, shared by two deep FIFOs of `blocks` blocks at up to 4 bytes an element."""
        elements = math.prod(self.machine.site.tile)
        tiles = self.machine.site.memory_bytes // (_DEPTH * _SUM_BYTES * blocks * elements)
        return max(1, tiles) * elements


def _up(value: int, multiple: int) -> int:
    return math.ceil(value / multiple) * multiple
