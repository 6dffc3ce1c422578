"""Blocks of a chain that follow each other, taken as one: no result depends on which block an element was in.

A kernel cuts blocks by what a core holds; what a core can reach is words of 16 elements. Blocks of 4 columns that lie
side by side are rows of whole words only together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from meshwright.ir.pattern import Loop
from meshwright.targets.ktpu.emit_vector_stages import Chain, Move


def with_joined_blocks(chain: Chain) -> Chain:
    """The same chain in fewer blocks: loops that step from a block to the next one along an unfolded axis are gone."""
    moves = [*chain.loads, *chain.stores]
    nests = {tuple(loop.extent for loop in _loops(move)) for move in moves}
    if len(nests) != 1 or any(move.num_blocks != move.pattern.num_blocks for move in moves):
        return chain
    (extents,) = nests
    size = list(chain.size)
    for at in reversed(range(len(extents))):
        axis = _axis(moves[-1], at)
        if axis is None or axis in chain.folded:
            continue
        found = [_lined_up(move, at, axis) for move in moves]
        if all(_steps_on(move, at, axis, size[axis]) for move in found):
            size[axis] *= extents[at]
            moves = [_without(move, at, axis) for move in found]
    loads = tuple(moves[: len(chain.loads)])
    return msgspec.structs.replace(chain, loads=loads, stores=tuple(moves[len(loads) :]), size=tuple(size))


def _loops(move: Move) -> Sequence[Loop]:
    """The loops from block to block of the chain, without the one over parts of a row."""
    loops = move.pattern.loops
    return loops[:-1] if move.blocks > 1 and loops and loops[-1].extent == move.blocks else loops


def _axis(move: Move, at: int) -> int | None:
    """The axis of the chain that a loop steps along; None for several, or none."""
    stepped = [axis for axis, stride in zip(move.along, _loops(move)[at].stride, strict=True) if stride]
    return stepped[0] if len(stepped) == 1 else None


def _lined_up(move: Move, at: int, axis: int) -> Move:
    """The move, where the loop steps along an axis of one element that was lined up with none, along `axis` there."""
    if axis in move.along:
        return move
    strides = _loops(move)[at].stride
    along = tuple(axis if own is None and stride else own for own, stride in zip(move.along, strides, strict=True))
    return msgspec.structs.replace(move, along=along) if along.count(axis) == 1 else move


def _steps_on(move: Move, at: int, axis: int, size: int) -> bool:
    """Whether the loop goes from each block to its neighbour along the axis; or the move has one element along it."""
    steps = zip(move.along, _loops(move)[at].stride, move.pattern.box, move.pattern.steps, strict=True)
    stepped = [(along, stride, box, step) for along, stride, box, step in steps if stride]
    if not stepped:
        return not any(along == axis and box > 1 for along, box in zip(move.along, move.pattern.box, strict=True))
    along, stride, box, step = stepped[0]
    return len(stepped) == 1 and along == axis and box == size and stride == box * step


def _without(move: Move, at: int, axis: int) -> Move:
    """The move with the loop's blocks as one."""
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
