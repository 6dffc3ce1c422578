"""Copies between pieces, on one chip or from one chip's DRAM into another's."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.ir.build import GraphBuilder
from meshwright.ir.ids import StageId
from meshwright.kernels.elementwise import vector_box
from meshwright.kernels.kernel import Piece
from meshwright.kernels.nest import Nest
from meshwright.kernels.placement import Placement

BLOCK_ELEMENTS = 2048


def emit_copy(
    builder: GraphBuilder, placement: Placement, source: Piece, target: Piece, box: Sequence[int] | None = None
) -> tuple[StageId, ...]:
    """Copies `source`, which is on the placement's chip, to `target`, wherever that is; gives the store.

    A chip writes to others and does not read from them, so a copy runs where its source is.
    """
    nest = Nest.over(source.shape, box or vector_box(source.shape, BLOCK_ELEMENTS))
    pattern = nest.pattern(range(len(source.shape)), source.shape)
    block = tuple(pattern.box) or (1,)
    fifo = builder.fifo(placement.mover_site(), block, placement.value_format)
    builder.load(source.tensor, pattern, fifo, source.rank, source.ready)
    return (builder.store(target.tensor, pattern, fifo, target.rank),)
