"""Copies between pieces, or boxes of them, on one chip or from one chip's DRAM into another's."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from meshwright.ir.build import GraphBuilder
from meshwright.ir.ids import StageId
from meshwright.ir.pattern import Affine
from meshwright.kernels.kernel import Piece
from meshwright.kernels.nest import Nest
from meshwright.kernels.placement import Placement

BLOCK_ELEMENTS = 2048


class CopyBoxes(Struct, frozen=True):
    """Where the box that is copied begins in the source and in the target, and its extent; None: all of the source."""

    source: tuple[int, ...] | None = None
    target: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None


def emit_copy(
    builder: GraphBuilder, placement: Placement, source: Piece, target: Piece, boxes: CopyBoxes | None = None
) -> tuple[StageId, ...]:
    """Copies `source`, which is on the placement's chip, to `target`, wherever that is; gives the store.

    A chip writes to others and does not read from them, so a copy runs where its source is.
    """
    which = boxes or CopyBoxes()
    shape = which.shape or source.shape
    nest = Nest.over(shape, exact_box(shape, BLOCK_ELEMENTS))
    pattern = nest.pattern(range(len(shape)), shape)
    element = builder.element_type(source.tensor)
    fifo = builder.fifo(placement.mover_site(), pattern.box or (1,), element)
    builder.load(source.tensor, _moved(pattern, which.source), fifo, source.rank, source.ready)
    return (builder.store(target.tensor, _moved(pattern, which.target), fifo, target.rank),)


def _moved(pattern: Affine, by: Sequence[int] | None) -> Affine:
    if by is None:
        return pattern
    return msgspec.structs.replace(pattern, offset=tuple(o + d for o, d in zip(pattern.offset, by, strict=True)))


def exact_box(shape: Sequence[int], elements: int) -> tuple[int, ...]:
    """A block of at most `elements` that tiles `shape` exactly, so that a box's neighbours are left alone."""
    box = [1] * len(shape)
    left = elements
    for axis in reversed(range(len(shape))):
        box[axis] = max((d for d in range(1, min(shape[axis], left) + 1) if shape[axis] % d == 0), default=1)
        left //= box[axis]
        if box[axis] < shape[axis]:
            break
    return tuple(box)
