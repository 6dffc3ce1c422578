"""What access patterns mean: blocks read out of and written into arrays, all blocks of a stage together."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import EvaluationError
from meshwright.evaluate.arithmetic import Array
from meshwright.evaluate.stream import Stream
from meshwright.ir.pattern import Affine, Loop

MOST_ELEMENTS = 1 << 32
"""An evaluation refuses to hold more elements than this for one stage, rather than exhaust the memory."""

_SMALL = 1 << 12


def moving_loops(pattern: Affine) -> list[Loop]:
    """The loops that reach a new box when they turn."""
    return [loop for loop in pattern.loops if any(loop.stride) and loop.extent > 1]


def turning_loops(pattern: Affine) -> tuple[tuple[int, ...], NDArray[np.int64]]:
    """Extents of the loops that move, and for each block number the position in that smaller nest, int64 [T]."""
    if pattern.num_blocks == 0:
        return (0,), np.zeros(0, dtype=np.int64)
    extents = tuple(loop.extent for loop in moving_loops(pattern))
    if max(math.prod(extents), pattern.num_blocks) > MOST_ELEMENTS:
        raise EvaluationError(f"a pattern of {pattern.num_blocks} blocks is more than an evaluation can hold")
    if math.prod(extents) == pattern.num_blocks:
        return extents, np.arange(pattern.num_blocks, dtype=np.int64)
    position = np.zeros((1,) * len(pattern.loops), dtype=np.int64)
    weight = math.prod(extents)
    for axis, loop in enumerate(pattern.loops):
        if any(loop.stride) and loop.extent > 1:
            weight //= loop.extent
            position = position + weight * _along_loop(axis, loop.extent, len(pattern.loops))
    everywhere = np.broadcast_to(position, [loop.extent for loop in pattern.loops])
    return extents, everywhere.reshape(-1)


def _along_loop(position: int, extent: int, loops: int) -> NDArray[np.int64]:
    """0, 1, ... along one of `loops` axes."""
    return np.arange(extent, dtype=np.int64).reshape([extent if i == position else 1 for i in range(loops)])


def coordinates(pattern: Affine, axis: int) -> NDArray[np.int64]:
    """Where the boxes of the moving loops lie along one tensor axis: int64, broadcasts to [*extents, box[axis]].

    An axis that a loop doesn't move along has size 1 there: written out, coordinates are as large as the blocks.
    """
    moving = moving_loops(pattern)
    at = np.full((1,) * len(moving), pattern.offset[axis], dtype=np.int64)
    for position, loop in enumerate(moving):
        if loop.stride[axis]:
            at = at + loop.stride[axis] * _along_loop(position, loop.extent, len(moving))
    return at[..., None] + pattern.steps[axis] * np.arange(pattern.box[axis], dtype=np.int64)


def _corners(pattern: Affine, axis: int, count: int) -> NDArray[np.int64]:
    """Where the boxes of the first `count` blocks begin along one axis, int64 [count]."""
    at = np.full(count, pattern.offset[axis], dtype=np.int64)
    turns = np.unravel_index(np.arange(count), [x.extent for x in pattern.loops]) if pattern.loops else ()
    for loop, turn in zip(pattern.loops, turns, strict=True):
        at += loop.stride[axis] * turn
    return at


def obviously_disjoint(pattern: Affine) -> bool:
    """Whether no two blocks can share an element, by nesting alone: every loop moves one axis past all inside it."""
    reach = [(size - 1) * step + 1 for size, step in zip(pattern.box, pattern.steps, strict=True)]
    moving = [loop for loop in pattern.loops if loop.extent > 1]
    for loop in sorted(moving, key=lambda x: max(map(abs, x.stride), default=0)):
        axes = [axis for axis, stride in enumerate(loop.stride) if stride]
        if len(axes) != 1 or abs(loop.stride[axes[0]]) < reach[axes[0]]:
            return False
        reach[axes[0]] += abs(loop.stride[axes[0]]) * (loop.extent - 1)
    return True


class Boxes:
    """The boxes of a pattern in an array of `shape`; along `looked_up` (a gather's axis) at positions given instead.

    positions: int64 [T, box[axis]], one row a block, already relative to the piece. count: how many blocks are
    touched, from the front; all by default. Raises `EvaluationError` where a box reaches outside and there is no pad.
    """

    def __init__(
        self,
        pattern: Affine,
        shape: tuple[int, ...],
        what: str,
        looked_up: int | None = None,
        positions: NDArray[np.int64] | None = None,
        count: int | None = None,
    ) -> None:
        self.pattern = pattern
        self.shape = shape
        blocks = pattern.num_blocks if count is None else count
        # Looked-up positions may differ block by block, and the front of a nest is not a nest: every block is its own.
        self._listed = positions is not None or blocks != pattern.num_blocks
        if self._listed:
            self.extents, self.index = (blocks,), np.arange(blocks, dtype=np.int64)
        else:
            self.extents, self.index = turning_loops(pattern)
        self._regular = not self._listed and 0 not in self.extents
        if math.prod(self.extents) * math.prod(pattern.box) > MOST_ELEMENTS:
            raise EvaluationError(f"{what}: {blocks} blocks of {pattern.box} are too much to hold")
        self._at = [self._along(axis, looked_up, positions) for axis in range(len(shape))]
        self._inside = [(at >= 0) & (at < size) for at, size in zip(self._at, shape, strict=True)]
        self.reaches_out = not all(bool(inside.all()) for inside in self._inside)
        if self.reaches_out and pattern.pad is None:
            raise EvaluationError(f"{what}: {self._outside()}; a pattern without a pad has to stay inside")

    def _along(self, axis: int, looked_up: int | None, positions: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Coordinates along `axis`, shaped to broadcast against the other axes': [*extents or 1, 1.., box, ..1]."""
        if self._regular:
            at = coordinates(self.pattern, axis)
        elif positions is not None and axis == looked_up:
            at = positions
        else:
            steps = self.pattern.steps[axis] * np.arange(self.pattern.box[axis], dtype=np.int64)
            at = _corners(self.pattern, axis, self.extents[0])[:, None] + steps
        return at.reshape(*at.shape[:-1], *(size if a == axis else 1 for a, size in enumerate(self.pattern.box)))

    def _outside(self) -> str:
        for axis, (at, size) in enumerate(zip(self._at, self.shape, strict=True)):
            if at.size and (at.min() < 0 or at.max() >= size):
                return f"reaches {at.min()} to {at.max()} along axis {axis}, which has {size}"
        return "stays inside"

    def _view(self, array: Array, origin: tuple[int, ...]) -> Array:
        """The boxes as a view [*extents, *box] of `array`, whose first element is at `origin`."""
        loops = moving_loops(self.pattern)
        strides = [sum(s * byte for s, byte in zip(loop.stride, array.strides, strict=True)) for loop in loops] + [
            step * byte for step, byte in zip(self.pattern.steps, array.strides, strict=True)
        ]
        # The ellipsis keeps the corner of an array without axes an array; indexing it with () would copy the element.
        corner = array[(..., *(slice(o - low, None) for o, low in zip(self.pattern.offset, origin, strict=True)))]
        return np.lib.stride_tricks.as_strided(corner, (*self.extents, *self.pattern.box), strides)

    @cached_property
    def _canvas(self) -> tuple[tuple[int, int], ...] | None:
        """Along each axis where the boxes begin and end, outside as well; None where that is far more than they hold.

        Boxes that reach out are read from, and written to, an array of this size: a copy of whole rows is many times
        faster than picking elements.
        """
        if not self._regular:
            return None
        ranges = tuple((int(at.min()), int(at.max()) + 1) for at in self._at)
        volume = math.prod(stop - start for start, stop in ranges)
        return ranges if volume <= 2 * math.prod(self.extents) * math.prod(self.pattern.box) + _SMALL else None

    def _overlap(self, canvas: tuple[tuple[int, int], ...]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Where the array and a canvas meet: slices of the canvas, slices of the array."""
        ends = [(max(a, 0), max(min(b, size), a, 0)) for (a, b), size in zip(canvas, self.shape, strict=True)]
        there = tuple(slice(a - low, b - low) for (a, b), (low, _) in zip(ends, canvas, strict=True))
        return there, tuple(slice(a, b) for a, b in ends)

    def read(self, array: Array, pad: Array, block: tuple[int, ...]) -> Stream:
        """The blocks, reading `pad` outside the array."""
        if self._regular and not self.reaches_out:
            values = self._view(array, (0,) * array.ndim)
        elif self._canvas is not None:
            canvas = np.full([stop - start for start, stop in self._canvas], pad, dtype=array.dtype)
            there, here = self._overlap(self._canvas)
            canvas[there] = array[here]
            values = self._view(canvas, tuple(start for start, _ in self._canvas))
        else:
            clipped = tuple(np.clip(at, 0, max(size - 1, 0)) for at, size in zip(self._at, self.shape, strict=True))
            values = array[clipped] if array.size else np.full(self._everything(), pad, dtype=array.dtype)
            if self.reaches_out:
                values = np.where(self._mask(), values, pad)
            values = np.broadcast_to(values, self._everything())
        return Stream(np.ascontiguousarray(values).reshape(math.prod(self.extents), *block), self.index)

    def _everything(self) -> tuple[int, ...]:
        return (*self.extents, *self.pattern.box)

    def _mask(self) -> NDArray[np.bool_]:
        mask = np.ones(self._everything(), dtype=np.bool_)
        for inside in self._inside:
            mask &= inside
        return mask

    def write(self, array: Array, blocks: Array) -> None:
        """Puts the blocks [T, *block] where they belong in a contiguous array, cutting off what lies outside."""
        values = blocks.reshape(self._everything())
        if self._regular and not self.reaches_out:
            self._view(array, (0,) * array.ndim)[...] = values
        elif self._canvas is not None:
            canvas = np.empty([stop - start for start, stop in self._canvas], dtype=array.dtype)
            there, here = self._overlap(self._canvas)
            canvas[there] = array[here]
            self._view(canvas, tuple(start for start, _ in self._canvas))[...] = values
            array[here] = canvas[there]
        else:
            array.reshape(-1, copy=False)[self.touched()] = values[self._mask()]

    def touched(self) -> NDArray[np.int64]:
        """Flat indices of every element touched inside the array, int64, repeats included."""
        mask = self._mask()
        flat: NDArray[np.int64] = np.zeros(int(mask.sum()), dtype=np.int64)
        for at, size in zip(self._at, self.shape, strict=True):
            flat = flat * size + np.broadcast_to(at, mask.shape)[mask]
        return flat

    def last_touches(self) -> NDArray[np.int64]:
        """For every element of the array the number of the last block that touches it, -1 for none; flat, int64."""
        last = np.full(math.prod(self.shape), -1, dtype=np.int64)
        final = np.full(math.prod(self.extents), -1, dtype=np.int64)
        np.maximum.at(final, self.index, np.arange(len(self.index)))
        block = final.reshape(*self.extents, *(1,) * len(self.pattern.box))
        np.maximum.at(last, self.touched(), np.broadcast_to(block, self._everything())[self._mask()])
        return last

    @cached_property
    def touched_count(self) -> int:
        """How many elements are touched inside the array, repeats included."""
        if not self.reaches_out:
            return math.prod(self._everything())
        moved = [sum(at.shape[loop] > 1 for at in self._at) for loop in range(len(self.extents))]
        if max(moved, default=0) <= 1:  # Axes are independent of each other.
            return math.prod(int(inside.sum()) for inside in self._inside)
        return int(self._mask().sum())

    @cached_property
    def _hull(self) -> tuple[tuple[int, int], ...] | None:
        """The first and last coordinate touched along each axis; None where nothing is touched."""
        if math.prod(self._everything()) == 0 or not all(inside.any() for inside in self._inside):
            return None
        return tuple(
            (max(int(at.min()), 0), min(int(at.max()), size - 1)) for at, size in zip(self._at, self.shape, strict=True)
        )

    def obviously_apart_from(self, other: Boxes) -> bool:
        """Whether the rectangles around both sets of boxes don't meet, so that they can't share an element."""
        if self._hull is None or other._hull is None:
            return True
        return any(a[1] < b[0] or b[1] < a[0] for a, b in zip(self._hull, other._hull, strict=True))

    def overlapping(self) -> bool:
        """Whether two of the blocks share an element inside the array."""
        if len(self.index) != math.prod(self.extents):
            return True
        if len(self.index) <= 1 and not self._listed:
            return False
        if not self._listed and obviously_disjoint(self.pattern):
            return False
        touched = self.touched()
        return len(np.unique(touched)) != len(touched)
