"""A box of a tensor as streams of equal blocks, none of them ragged: neighbours of the box are left alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise, product

from meshwright.ir.pattern import Affine, Loop
from meshwright.kernels.blocks import segments


def streams(low: Sequence[int], shape: Sequence[int], elements: int) -> tuple[Affine, ...]:
    """Patterns that together are the box of `shape` at `low` once, each in blocks of at most `elements`.

    As much of the last axis as fits, then as much of the one before; what is left over of the axis that is cut is a
    stream of its own. A box without elements has none.
    """
    if 0 in shape:
        return ()
    left = max(1, elements)
    block = [1] * len(shape)
    for axis in reversed(range(len(shape))):
        block[axis] = min(shape[axis], left)
        left //= block[axis]
        if block[axis] < shape[axis]:
            break
    found: list[Affine] = []
    for parts in product(*(segments(size, cut) for size, cut in zip(shape, block, strict=True))):
        offset = tuple(start + part.start for start, part in zip(low, parts, strict=True))
        loops = tuple(
            Loop(part.count, tuple(part.block if a == axis else 0 for a in range(len(shape))))
            for axis, part in enumerate(parts)
            if part.count > 1
        )
        found.append(Affine(offset, tuple(part.block for part in parts), loops))
    return tuple(found)


def shifted(pattern: Affine, by: Sequence[int]) -> Affine:
    """The same boxes, moved."""
    return Affine(tuple(o + d for o, d in zip(pattern.offset, by, strict=True)), pattern.box, pattern.loops)


def chunks(size: int, count: int) -> tuple[tuple[int, int], ...]:
    """`size` elements as `count` chunks (start, elements), equal but for the last ones, which may be short or empty."""
    each = math.ceil(size / count)
    starts = [min(each * number, size) for number in range(count + 1)]
    return tuple((start, stop - start) for start, stop in pairwise(starts))
