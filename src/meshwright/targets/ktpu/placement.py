"""One mesh of the card as kernels see it: clusters, vector cores, and what their memories hold."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

from msgspec import Struct

from meshwright.errors import MachineError, PlacementError
from meshwright.ir.formats import ElementType
from meshwright.ir.ids import ChipId
from meshwright.ir.records import Site
from meshwright.machine import MachineSpec
from meshwright.targets.ktpu.emit_matrix_fills import usable_entries
from meshwright.targets.ktpu.tiling import FIELD, Setting, Tiling, candidates_in, ranked

_ROWS, _COLUMNS = 64, 128
_WORTH: Final = 0.8
"""Estimates are 1 % off what programs take on a clock in the median and 18 % at worst (docs/ktpu/tiling.md): a
difference that may be of the estimates' making is no reason for another tile."""
_SMALL: Final = 10_000
"""Cycles: a tenth of a millisecond at 100 MHz, less than what a host takes to see that a program is complete."""


class KtpuPlacement(Struct, frozen=True):
    """Mesh `chip` of `machine`. Sites, tiles and blocks come from the machine's description."""

    machine: MachineSpec
    chip: int

    @property
    def value_format(self) -> ElementType:
        """Values in DRAM are fp16: what clusters read and drain."""
        return ElementType.F16

    @property
    def lane_format(self) -> ElementType:
        """Between two operations of a vector core."""
        return ElementType.E8M15

    @property
    def resident_sums(self) -> bool:
        """A drain can add into the resident tile of a cluster on another mesh."""
        return True

    @property
    def has_vector_units(self) -> bool:
        """Whether the mesh has a vector core."""
        return self.machine.has(self.chip, "VC")

    def matrix_sites(self) -> tuple[Site, ...]:
        """The clusters."""
        return self._sites("MG")

    def vector_sites(self) -> tuple[Site, ...]:
        """The vector cores."""
        return self._sites("VC")

    def mover_site(self) -> Site:
        """The memory agent, or the first memory port of a mesh that states none."""
        mesh = self.machine.mesh(self.chip)
        x, y = mesh.agent if mesh.agent is not None else mesh.ports[0]
        return Site(ChipId(self.chip), x, y)

    def _sites(self, unit: str) -> tuple[Site, ...]:
        try:
            return tuple(Site(ChipId(self.chip), x, y) for x, y in self.machine.coords(self.chip, unit))
        except MachineError as error:
            raise PlacementError(str(error)) from None

    def matmul_tile(self, m: int, n: int, k: int) -> tuple[int, int, int]:
        """The plain tile, or the best of those that leave no more clusters idle where that is worth a change.

        Plain: up to 64 x 128 outputs, narrower where every cluster then has a share; K in even parts that a bank holds.
        Never more than 64 rows: the matrices of leading axes come as one tall one, and no block spans two of them.
        """
        setting = Setting.of(self.machine, self.machine.count("MG", self.chip))
        return _default_tile(m, n, k, setting, self._plain_tile(m, n, k))

    def _plain_tile(self, m: int, n: int, k: int) -> tuple[int, int, int]:
        rows, columns, _ = self._nearest_tile(min(m, _ROWS), min(n, _COLUMNS), 32)
        clusters = self.machine.count("MG", self.chip)
        while columns > LEAST_COLUMNS and math.ceil(m / rows) * math.ceil(n / columns) < clusters:
            columns = max(LEAST_COLUMNS, _up(columns // 2, 4))
        most = min(max(1, self._entries * 4 // max(rows, columns)), FIELD)
        blocks = max(1, math.ceil(k / 32))
        return rows, columns, 32 * math.ceil(blocks / math.ceil(blocks / most))

    @property
    def _entries(self) -> int:
        return usable_entries(self.machine.cluster.l1_entries)

    def check_tile(self, tile: tuple[int, int, int]) -> None:
        """Against L1, the accumulator, the sub-tile and block sizes, and the instruction's fields."""
        m, n, k = tile
        cluster = self.machine.cluster
        asked = f"matmul tile {m} x {n} x {k} on {self.machine.name}"
        instead = " x ".join(map(str, self._nearest_tile(m, n, k)))
        if m < 1 or n < 1 or k < 1 or m % 4 or n % 4 or k % 32:
            raise PlacementError(
                f"{asked}: a cluster works on sub-tiles of 4 x 4 and blocks of 32 along K; the nearest legal tile is "
                f"{instead}"
            )
        tiles = (m // 4) * (n // 4)
        if tiles > cluster.accumulator_tiles:
            raise PlacementError(
                f"{asked}: it has {tiles} sub-tiles, and the accumulator holds {cluster.accumulator_tiles}; {instead} "
                "fits"
            )
        for side, size in (("A", m), ("B", n)):
            entries = (size // 4) * (k // 32)
            if entries > cluster.l1_entries:
                raise PlacementError(
                    f"{asked}: its {side} block takes {entries} L1 entries, and a bank holds {cluster.l1_entries}; "
                    f"{instead} fits"
                )
            if entries > self._entries:
                raise PlacementError(
                    f"{asked}: its {side} block takes {entries} L1 entries, and 8-bit fields address "
                    f"{self._entries} of a bank; {instead} fits"
                )
        if max(m // 4, n // 4, k // 32) > FIELD:
            raise PlacementError(
                f"{asked}: sub-tiles and K blocks along an axis are 8-bit fields, {FIELD} at most, and wrap past it; "
                f"{instead} fits"
            )

    def _nearest_tile(self, m: int, n: int, k: int) -> tuple[int, int, int]:
        """A legal tile that keeps as much of m as is possible, then of n, then of k."""
        cluster = self.machine.cluster
        side = 4 * min(FIELD, self._entries, cluster.accumulator_tiles)
        rows = min(_up(max(m, 1), 4), side)
        columns = min(_up(max(n, 1), 4), side, cluster.accumulator_tiles // (rows // 4) * 4)
        blocks = min(math.ceil(max(k, 1) / 32), FIELD, self._entries // (max(rows, columns) // 4))
        return rows, columns, 32 * blocks

    def vector_elements(self, blocks: int) -> int:
        """Of a vector core's L1, as much as it is safe to use, shared by two deep FIFOs of `blocks` blocks."""
        core = self.machine.vector_core
        words = core.l1_safe_words // (2 * blocks)
        return max(1, min(words * LANES_A_WORD, core.walk_words * LANES_A_WORD))


LEAST_COLUMNS: Final = 16
LANES_A_WORD: Final = 16


@lru_cache(maxsize=4096)
def _default_tile(m: int, n: int, k: int, setting: Setting, plain: tuple[int, int, int]) -> tuple[int, int, int]:
    known = Tiling(m, n, k, plain[0] // 4, plain[1] // 4, plain[2] // 32, setting)
    cycles = known.cycles
    if cycles is None or cycles < _SMALL:
        return plain
    narrowest = min(LEAST_COLUMNS, plain[1])
    allowed = (t for t in candidates_in(m, n, k, setting) if t.tile[0] <= _ROWS and t.tile[1] >= narrowest)
    best = next(iter(ranked(t for t in allowed if t.at_work >= known.at_work)), known)
    return best.tile if best.cycles is not None and best.cycles < _WORTH * cycles else plain


def _up(value: int, multiple: int) -> int:
    return math.ceil(value / multiple) * multiple
