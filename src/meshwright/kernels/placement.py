"""`Placement`: one chip of a machine as a kernel sees it. Targets make them; kernels ask."""

from __future__ import annotations

from typing import Protocol

from meshwright.ir.formats import ElementType
from meshwright.ir.records import Site


class Placement(Protocol):
    """Which units a chip has, how large their blocks may be, and which element types they hold.

    Methods raise `PlacementError` where the chip has no unit of the kind asked for, naming the chips that do.
    """

    @property
    def chip(self) -> int:
        """The chip's id."""
        ...

    @property
    def value_format(self) -> ElementType:
        """The element type of values in this machine's DRAM."""
        ...

    @property
    def lane_format(self) -> ElementType:
        """The element type between two operations of a vector unit."""
        ...

    @property
    def resident_sums(self) -> bool:
        """Whether sums stay in accumulators that another chip can add into."""
        ...

    @property
    def has_vector_units(self) -> bool:
        """Whether any vector work can be placed on this chip."""
        ...

    def matrix_sites(self) -> tuple[Site, ...]:
        """Sites of the matrix units."""
        ...

    def vector_sites(self) -> tuple[Site, ...]:
        """Sites of the vector units."""
        ...

    def mover_site(self) -> Site:
        """Where copies between tensors run: the memory agent."""
        ...

    def matmul_tile(self, m: int, n: int, k: int) -> tuple[int, int, int]:
        """A block (m, n, k) for a product of that size that fits the unit's memories, by default."""
        ...

    def check_tile(self, tile: tuple[int, int, int]) -> None:
        """Raises `PlacementError` with the limit and what would fit, where a matmul block is too large."""
        ...

    def vector_elements(self, blocks: int) -> int:
        """How many elements a block may have when `blocks` of them are held at a vector unit at once."""
        ...
