"""Rows of a table by index, dealt over the sites of a chip."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from meshwright.errors import KernelError
from meshwright.ir.build import GraphBuilder
from meshwright.ir.formats import ElementType
from meshwright.ir.ids import StageId
from meshwright.ir.pattern import Affine, Gather
from meshwright.kernels.blocks import dividing
from meshwright.kernels.kernel import Contraction, Piece, Shaped, UnitKind
from meshwright.kernels.nest import Nest
from meshwright.kernels.operands import require_operands
from meshwright.kernels.placement import Placement

_NAME: Final = "spread embedding"


class SpreadEmbedding(Struct, frozen=True):
    """`table[indices]`: a table [rows, columns] and whole numbers [count] give [count, columns], a share a site.

    An index that the table hasn't got is refused where it is read, never clamped. Indices past the end of a last block
    are read as 0, and the rows that they name cut where they are stored.

    block: indices of a block; None for an equal share of each site, at most one tile's rows. depth: blocks of a FIFO.
    """

    block: int | None = None
    depth: int = 2

    @property
    def name(self) -> str:
        """What messages call it."""
        return _NAME

    @property
    def unit(self) -> UnitKind:
        """Movers: here the reader and the writer of every site."""
        return "mover"

    def result(self, operands: Sequence[Shaped]) -> Shaped:
        """A row of the table for every index; `KernelError` for another table or indices that aren't whole."""
        require_operands(_NAME, operands, {2: "a table and indices"})
        table, indices = operands
        if len(table.shape) != 2 or not indices.format.is_integer or len(indices.shape) != 1:
            raise KernelError(
                f"{_NAME}: the table is {table} and the indices are {indices}; a table is [rows, columns], and indices "
                "are whole numbers (i32) with one axis"
            )
        if self.depth < 1 or (self.block is not None and self.block < 1):
            raise KernelError(f"{_NAME}(block={self.block}, depth={self.depth}): both are at least 1")
        return Shaped((*indices.shape, table.shape[1]), table.format)

    def axes(self, operands: Sequence[Shaped]) -> tuple[tuple[int | None, ...], ...]:
        """Columns are columns, indices are rows of the result; any row of the table may be looked up."""
        return (None, 1), (0,)

    def contractions(self, operands: Sequence[Shaped]) -> tuple[Contraction, ...]:
        """None."""
        return ()

    def linear_in(self, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
        """In the table."""
        return together == frozenset((0,))

    def emit(
        self, builder: GraphBuilder, placement: Placement, operands: Sequence[Piece], result: Piece
    ) -> tuple[StageId, ...]:
        """At each site its indices, the rows that they name, and a store."""
        table, indices = operands
        count, columns = result.shape
        sites = placement.matrix_sites()
        down = self.block or min(math.ceil(count / len(sites)), placement.matmul_tile(1, 1, 1)[0])
        # Nothing ragged across: with a pad, a row that isn't there would read as the pad instead of being refused.
        across = dividing(columns, placement.vector_elements(2) // down)
        nest = Nest.over(result.shape, (down, across))
        element = builder.element_type(table.tensor)
        stores: list[StageId] = []
        for share, site in zip(nest.dealt(len(sites)), sites, strict=False):
            wanted = builder.fifo(site, (down,), ElementType.I32, self.depth)
            builder.load(indices.tensor, share.pattern((0,), indices.shape), wanted, indices.rank, indices.ready)
            found = builder.fifo(site, (down, across), element, self.depth)
            rows = share.pattern((None, 1), table.shape)
            base = Affine(rows.offset, (down, across), rows.loops)
            builder.load(table.tensor, Gather(base, 0, wanted), found, table.rank, table.ready)
            stores.append(builder.store(result.tensor, share.pattern((0, 1), result.shape), found, result.rank))
        return tuple(stores)
