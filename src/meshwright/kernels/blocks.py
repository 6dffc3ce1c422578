"""How large the blocks of a value are: as much as a unit holds, cut so that little or nothing is ragged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

WORD: Final = 16
"""Elements of f16 in a word of memory on every machine here; blocks along the last axis keep to it."""


def even(size: int, most: int, multiple: int = 1) -> int:
    """A block of at most `most` of `size` elements: one that divides, unless that would be less than half of `most`.

    multiple: what a block that doesn't divide is rounded up to, where `most` allows.
    """
    most = max(1, min(size, most))
    for block in range(most, most // 2, -1):
        if size % block == 0:
            return block
    block = math.ceil(size / math.ceil(size / most))
    return min(most, math.ceil(block / multiple) * multiple)


def at_most(most: int, total: int, units: int) -> int:
    """`most` elements, or one unit's share of `total` where that is less: then every unit has something to do."""
    return max(1, min(most, math.ceil(total / units)))


def dividing(size: int, most: int) -> int:
    """The largest block of at most `most` elements that divides `size`."""
    return next(block for block in range(max(1, min(size, most)), 0, -1) if size % block == 0)


def filled(shape: Sequence[int], elements: int, given: Mapping[int, int] | None = None) -> tuple[int, ...]:
    """A block of at most `elements`: as much of the last axis as fits, then as much of the one before.

    given: axes whose block size is settled already and not counted in `elements`.
    """
    settled = given or {}
    box = [settled.get(axis, 1) for axis in range(len(shape))]
    left = elements
    for axis in reversed([a for a in range(len(shape)) if a not in settled]):
        multiple = WORD if axis == len(shape) - 1 else 1
        box[axis] = max(1, even(shape[axis], left, multiple))
        left //= box[axis]
        if box[axis] < shape[axis]:
            break
    return tuple(box)


class Segment(Struct, frozen=True):
    """Consecutive equal blocks along an axis, none of them ragged: `count` of `block` elements from `start`."""

    start: int
    count: int
    block: int


def segments(size: int, block: int) -> tuple[Segment, ...]:
    """`size` elements as blocks of `block`, and a shorter one for the rest."""
    whole, rest = divmod(size, block)
    parts = (Segment(0, whole, block), Segment(whole * block, 1, rest))
    return tuple(part for part in parts if part.count and part.block)
