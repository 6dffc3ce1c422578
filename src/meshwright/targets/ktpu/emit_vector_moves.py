"""Loads and stores of a chain, and blocks of theirs that are taken as one."""

from __future__ import annotations

import math

import msgspec
from msgspec import Struct

from meshwright.errors import PlacementError
from meshwright.ir.ids import BufferId, StageId
from meshwright.ir.pattern import Affine


class Move(Struct, frozen=True):
    """A load or a store of a chain: stage, buffer in the core, and which boxes of which piece it touches.

    along: for each axis of the piece the axis of the results that it runs along; None where it has one element.
    """

    stage: StageId
    buffer: BufferId
    tensor: int
    rank: int
    pattern: Affine
    num_blocks: int
    along: tuple[int | None, ...] = ()


def refusal(stage: StageId, reason: str) -> PlacementError:
    """The error that says why stage `stage` can't become instructions."""
    return PlacementError(f"stage s{stage} can't be emitted for a vector core: {reason}")


def stepped_axis(move: Move, at: int) -> int | None:
    """The axis of the results that loop `at` steps along; None for several, or none."""
    stepped = [axis for axis, stride in zip(move.along, move.pattern.loops[at].stride, strict=True) if stride]
    return stepped[0] if len(stepped) == 1 else None


def with_loop_along(move: Move, at: int, axis: int) -> Move:
    """The move; an axis of one element that was lined up with none is so with `axis` where loop `at` steps along it."""
    if axis in move.along:
        return move
    strides = move.pattern.loops[at].stride
    along = tuple(axis if own is None and stride else own for own, stride in zip(move.along, strides, strict=True))
    return msgspec.structs.replace(move, along=along) if along.count(axis) == 1 else move


def goes_on(move: Move, at: int, axis: int, size: int | None = None) -> bool:
    """Whether loop `at` goes from each block to its neighbour along `axis`; or the move has one element along it.

    size: what a block must have along the axis then.
    """
    pattern = move.pattern
    steps = zip(move.along, pattern.loops[at].stride, pattern.box, pattern.steps, strict=True)
    stepped = [(along, stride, box, step) for along, stride, box, step in steps if stride]
    if not stepped:
        return not any(along == axis and box > 1 for along, box in zip(move.along, pattern.box, strict=True))
    along, stride, box, step = stepped[0]
    return len(stepped) == 1 and along == axis and size in (None, box) and stride == box * step


def without_loop(move: Move, at: int, axis: int) -> Move:
    """The move with the blocks of loop `at`, which goes on along `axis`, as one."""
    pattern = move.pattern
    loop = pattern.loops[at]
    stepped = any(loop.stride)
    box = tuple(
        size * loop.extent if stepped and along == axis else size
        for along, size in zip(move.along, pattern.box, strict=True)
    )
    loops = (*pattern.loops[:at], *pattern.loops[at + 1 :])
    made = msgspec.structs.replace(pattern, box=box, loops=loops)
    return msgspec.structs.replace(move, pattern=made, num_blocks=math.prod(each.extent for each in loops))
