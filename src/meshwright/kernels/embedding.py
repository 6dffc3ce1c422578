"""Rows of a table by index, by the mover."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from msgspec import Struct

from meshwright.errors import KernelError
from meshwright.ir.build import GraphBuilder
from meshwright.ir.formats import ElementType
from meshwright.ir.ids import StageId
from meshwright.ir.pattern import Affine, Gather, Loop
from meshwright.kernels.blocks import Segment, even, segments
from meshwright.kernels.kernel import Contraction, Piece, Shaped, UnitKind
from meshwright.kernels.move import BLOCK_ELEMENTS
from meshwright.kernels.operands import require_operands
from meshwright.kernels.placement import Placement


class Embedding(Struct, frozen=True):
    """`table[indices]`: a table [rows, columns] and whole numbers [...] give [..., columns].

    An index that the table hasn't got is refused where it is read, never clamped.
    """

    @property
    def name(self) -> str:
        """What messages call it."""
        return "embedding"

    @property
    def unit(self) -> UnitKind:
        """The mover."""
        return "mover"

    def result(self, operands: Sequence[Shaped]) -> Shaped:
        """A row of the table for every index; `KernelError` for another table or indices that aren't whole."""
        require_operands(self.name, operands, {2: "a table and indices"})
        table, indices = operands
        if len(table.shape) != 2 or not indices.format.is_integer or not indices.shape:
            raise KernelError(
                f"embedding: the table is {table} and the indices are {indices}; a table is [rows, columns], and "
                "indices are whole numbers (i32) with at least one axis"
            )
        return Shaped((*indices.shape, table.shape[1]), table.format)

    def axes(self, operands: Sequence[Shaped]) -> tuple[tuple[int | None, ...], ...]:
        """Columns are columns; any row may be looked up, so all of them have to be there."""
        rank = len(operands[1].shape)
        return (None, rank), tuple(range(rank))

    def contractions(self, operands: Sequence[Shaped]) -> tuple[Contraction, ...]:
        """None."""
        return ()

    def linear_in(self, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
        """In the table."""
        return together == frozenset((0,))

    def emit(
        self, builder: GraphBuilder, placement: Placement, operands: Sequence[Piece], result: Piece
    ) -> tuple[StageId, ...]:
        """Indices block by block, the rows that they name, and a store; nothing ragged, so nothing is made up."""
        count, columns = result.shape[-2:]
        across = even(columns, BLOCK_ELEMENTS)
        down = even(count, max(1, BLOCK_ELEMENTS // across))
        parts = product(segments(count, down), segments(columns, across))
        return tuple(self._look_up(builder, placement, operands, result, rows, of) for rows, of in parts)

    @staticmethod
    def _look_up(
        builder: GraphBuilder,
        placement: Placement,
        operands: Sequence[Piece],
        result: Piece,
        rows: Segment,
        columns: Segment,
    ) -> StageId:
        table, indices = operands
        site, element = placement.mover_site(), builder.element_type(table.tensor)
        leading = result.shape[:-2]
        wanted = builder.fifo(site, (rows.block,), ElementType.I32)
        place = _loops(leading, rows, columns)
        index = Affine(
            (*(0,) * len(leading), rows.start),
            (*(1,) * len(leading), rows.block),
            tuple(Loop(loop.extent, loop.stride[:-1]) for loop in place),
        )
        builder.load(indices.tensor, index, wanted, indices.rank, indices.ready)
        found = builder.fifo(site, (rows.block, columns.block), element)
        along = tuple(Loop(loop.extent, (0, loop.stride[-1])) for loop in place)
        base = Affine((0, columns.start), (rows.block, columns.block), along)
        builder.load(table.tensor, Gather(base, 0, wanted), found, table.rank, table.ready)
        box = (*(1,) * len(leading), rows.block, columns.block)
        target = Affine((*(0,) * len(leading), rows.start, columns.start), box, place)
        return builder.store(result.tensor, target, found, result.rank)


def _loops(leading: Sequence[int], rows: Segment, columns: Segment) -> tuple[Loop, ...]:
    """Over the result: one leading position after another, its blocks of rows, and their blocks of columns."""
    rank = len(leading) + 2
    steps = (*(1,) * len(leading), rows.block, columns.block)
    extents = (*leading, rows.count, columns.count)
    return tuple(
        Loop(extent, tuple(step if a == axis else 0 for a in range(rank)))
        for axis, (extent, step) in enumerate(zip(extents, steps, strict=True))
    )


embedding = Embedding()
