"""Blocks of a chain that follow each other, taken as one: no result depends on which block an element was in.

A kernel cuts blocks by what a core holds; what a core can reach is words of 16 elements. Blocks of 4 columns that lie
side by side are rows of whole words only together.
"""

from __future__ import annotations

import msgspec

from meshwright.targets.ktpu.emit_vector_moves import goes_on, stepped_axis, with_loop_along, without_loop
from meshwright.targets.ktpu.emit_vector_stages import Chain


def with_joined_blocks(chain: Chain) -> Chain:
    """The same chain in fewer blocks: loops that step from a block to the next one along an unfolded axis are gone."""
    moves = [*chain.loads, *chain.stores]
    nests = {tuple(loop.extent for loop in move.pattern.loops) for move in moves}
    if len(nests) != 1 or any(move.num_blocks != move.pattern.num_blocks for move in moves):
        return chain
    (extents,) = nests
    size = list(chain.size)
    for at in reversed(range(len(extents))):
        axis = stepped_axis(moves[-1], at)
        if axis is None or axis in chain.folded:
            continue
        found = [with_loop_along(move, at, axis) for move in moves]
        if all(goes_on(move, at, axis, size[axis]) for move in found):
            size[axis] *= extents[at]
            moves = [without_loop(move, at, axis) for move in found]
    loads = tuple(moves[: len(chain.loads)])
    return msgspec.structs.replace(chain, loads=loads, stores=tuple(moves[len(loads) :]), size=tuple(size))
