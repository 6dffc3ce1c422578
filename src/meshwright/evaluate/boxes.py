"""What access patterns mean: blocks read out of and written into arrays, all blocks of a stage together."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import EvaluationError
from meshwright.evaluate.arithmetic import Array
from meshwright.evaluate.stream import Stream
from meshwright.ir.pattern import Affine

MOST_ELEMENTS = 1 << 32
"""An evaluation refuses to hold more elements than this for one stage, rather than exhaust the memory."""


def turning_loops(pattern: Affine) -> tuple[tuple[int, ...], NDArray[np.int64]]:
    """Extents of the loops that move, and for each block number the position in that smaller nest, int64 [T]."""
    moving = [any(loop.stride) and loop.extent > 1 for loop in pattern.loops]
    extents = tuple(loop.extent for loop, moves in zip(pattern.loops, moving, strict=True) if moves)
    if math.prod(extents) > MOST_ELEMENTS or pattern.num_blocks > MOST_ELEMENTS:
        raise EvaluationError(f"a pattern of {pattern.num_blocks} blocks is more than an evaluation can hold")
    if math.prod(extents) == pattern.num_blocks:
        return extents, np.arange(pattern.num_blocks, dtype=np.int64)
    position = np.zeros((1,) * len(pattern.loops), dtype=np.int64)
    weight = math.prod(extents)
    for axis, (loop, moves) in enumerate(zip(pattern.loops, moving, strict=True)):
        if not moves:
            continue
        weight //= loop.extent
        shape = [1] * len(pattern.loops)
        shape[axis] = loop.extent
        position = position + weight * np.arange(loop.extent, dtype=np.int64).reshape(shape)
    everywhere = np.broadcast_to(position, [loop.extent for loop in pattern.loops])
    return extents, everywhere.reshape(-1)


def coordinates(pattern: Affine, extents: tuple[int, ...], axis: int) -> NDArray[np.int64]:
    """Where the boxes of the moving loops lie along one tensor axis: int64 [*extents, box[axis]]."""
    moving = [loop for loop in pattern.loops if any(loop.stride) and loop.extent > 1]
    at = np.full((1,) * len(extents) + (1,), pattern.offset[axis], dtype=np.int64)
    for position, loop in enumerate(moving):
        shape = [1] * (len(extents) + 1)
        shape[position] = loop.extent
        at = at + loop.stride[axis] * np.arange(loop.extent, dtype=np.int64).reshape(shape)
    return at + pattern.steps[axis] * np.arange(pattern.box[axis], dtype=np.int64)


def _grid(pattern: Affine, extents: tuple[int, ...], axis: int, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Coordinates along `axis`, shaped to broadcast against those of the other axes: [*extents, 1.., box, ..1]."""
    shape = (*at.shape[:-1], *(size if a == axis else 1 for a, size in enumerate(pattern.box)))
    return at.reshape(shape)


def _corners(pattern: Affine, axis: int) -> NDArray[np.int64]:
    """Where every block's box begins along one axis, int64 [T]."""
    at = np.full(pattern.num_blocks, pattern.offset[axis], dtype=np.int64)
    turns = np.unravel_index(np.arange(pattern.num_blocks), [x.extent for x in pattern.loops]) if pattern.loops else ()
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

    positions: int64 [T, box[axis]], one row a block, already relative to the piece.
    """

    def __init__(
        self,
        pattern: Affine,
        shape: tuple[int, ...],
        what: str,
        looked_up: int | None = None,
        positions: NDArray[np.int64] | None = None,
    ) -> None:
        self.pattern = pattern
        self.shape = shape
        self._looked_up = positions is not None
        self.extents, self.index = turning_loops(pattern)
        if positions is not None:
            # Looked-up positions may differ block by block, so every block is its own.
            self.extents, self.index = (pattern.num_blocks,), np.arange(pattern.num_blocks, dtype=np.int64)
        if math.prod(self.extents) * math.prod(pattern.box) > MOST_ELEMENTS:
            raise EvaluationError(f"{what}: {pattern.num_blocks} blocks of {pattern.box} are too much to hold")
        self._at = [self._along(axis, looked_up, positions) for axis in range(len(shape))]
        self._inside = [(at >= 0) & (at < size) for at, size in zip(self._at, shape, strict=True)]
        self.reaches_out = not all(bool(inside.all()) for inside in self._inside)
        if self.reaches_out and pattern.pad is None:
            raise EvaluationError(f"{what}: {self._outside()}; a pattern without a pad has to stay inside")

    def _along(self, axis: int, looked_up: int | None, positions: NDArray[np.int64] | None) -> NDArray[np.int64]:
        if positions is None:
            return _grid(self.pattern, self.extents, axis, coordinates(self.pattern, self.extents, axis))
        if axis == looked_up:
            return _grid(self.pattern, self.extents, axis, positions)
        steps = self.pattern.steps[axis] * np.arange(self.pattern.box[axis], dtype=np.int64)
        return _grid(self.pattern, self.extents, axis, _corners(self.pattern, axis)[:, None] + steps)

    def _outside(self) -> str:
        for axis, (at, size) in enumerate(zip(self._at, self.shape, strict=True)):
            if at.size and (at.min() < 0 or at.max() >= size):
                return f"reaches {at.min()} to {at.max()} along axis {axis}, which has {size}"
        return "stays inside"

    def _view(self, array: Array) -> Array | None:
        """The boxes as a view of `array`, where they lie in it regularly; [*extents, *box]."""
        if self.reaches_out or self._looked_up or 0 in self.extents:
            return None
        moving = [loop for loop in self.pattern.loops if any(loop.stride) and loop.extent > 1]
        strides = [sum(s * byte for s, byte in zip(loop.stride, array.strides, strict=True)) for loop in moving] + [
            step * byte for step, byte in zip(self.pattern.steps, array.strides, strict=True)
        ]
        corner = array[tuple(slice(o, None) for o in self.pattern.offset)]
        return np.lib.stride_tricks.as_strided(corner, (*self.extents, *self.pattern.box), strides)

    def read(self, array: Array, pad: Array, block: tuple[int, ...]) -> Stream:
        """The blocks, reading `pad` outside the array."""
        view = self._view(array)
        if view is None:
            clipped = tuple(np.clip(at, 0, max(size - 1, 0)) for at, size in zip(self._at, self.shape, strict=True))
            values = array[clipped] if array.size else np.broadcast_to(pad, self._everything())
            if self.reaches_out:
                values = np.where(self._mask(), values, pad)
        else:
            values = view
        return Stream(np.ascontiguousarray(values).reshape(math.prod(self.extents), *block), self.index)

    def _everything(self) -> tuple[int, ...]:
        return np.broadcast_shapes(*(at.shape for at in self._at)) if self._at else self.extents

    def _mask(self) -> NDArray[np.bool_]:
        mask = np.ones(self._everything(), dtype=np.bool_)
        for inside in self._inside:
            mask &= inside
        return mask

    def write(self, array: Array, blocks: Array) -> None:
        """Puts the blocks [T, *block] where they belong, cutting off what lies outside."""
        values = blocks.reshape(self._everything())
        view = self._view(array)
        if view is not None:
            view[...] = values
            return
        mask = self._mask()
        at = tuple(np.broadcast_to(a, mask.shape)[mask] for a in self._at)
        array[at] = values[mask]

    def touched(self) -> NDArray[np.int64]:
        """Flat indices of every element touched inside the array, int64, repeats included."""
        mask = self._mask()
        flat: NDArray[np.int64] = np.zeros(int(mask.sum()), dtype=np.int64)
        for at, size in zip(self._at, self.shape, strict=True):
            flat = flat * size + np.broadcast_to(at, mask.shape)[mask]
        return flat

    def overlapping(self) -> bool:
        """Whether two of the blocks share an element inside the array."""
        if len(self.index) != math.prod(self.extents):
            return True
        if not self._looked_up and obviously_disjoint(self.pattern):
            return False
        touched = self.touched()
        return len(np.unique(touched)) != len(touched)
