"""Streams: the blocks that pass through a buffer, with those that repeat kept once."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.evaluate.arithmetic import Array


class Stream(Struct, frozen=True, eq=False, dict=True):
    """T blocks in order. unique: [U, *block], the ones that may differ; index: int64 [T], which of them each is.

    A load that reads the same block again (a loop of stride 0) repeats an index and copies nothing.
    """

    unique: Array
    index: NDArray[np.int64]

    @classmethod
    def of(cls, blocks: Array) -> Stream:
        """A stream of the blocks [T, *block] as they come."""
        return cls(blocks, np.arange(len(blocks), dtype=np.int64))

    def __len__(self) -> int:
        return len(self.index)

    def all(self) -> Array:
        """The blocks written out, [T, *block]."""
        in_order = len(self.unique) == len(self.index) and bool(np.all(self.index == np.arange(len(self.index))))
        return self.unique if in_order else self.unique[self.index]

    def joined(self, count: int, axis: int) -> Stream:
        """Every `count` consecutive blocks joined along `axis` of the block, repeats again kept once."""
        if count == 1:
            return self
        if (count, axis) not in self._joins:
            self._joins[count, axis] = self._join(count, axis)
        return self._joins[count, axis]

    @cached_property
    def _joins(self) -> dict[tuple[int, int], Stream]:
        # Several stages take the blocks of one load, each joining them alike.
        return {}

    def _join(self, count: int, axis: int) -> Stream:
        rows = self.index.reshape(-1, count)
        first = rows[:, 0]
        runs = np.all(rows == first[:, None] + np.arange(count)) and not len(self.unique) % count
        if runs and not np.any(first % count):
            # Runs of neighbours: the blocks as they lie, told apart by their first.
            parts, index = self.unique.reshape(-1, count, *self.unique.shape[1:]), first // count
        else:
            distinct, index = np.unique(rows, axis=0, return_inverse=True)
            parts = self.unique[distinct]  # [U, count, *block]
        moved = np.moveaxis(parts, 1, axis + 1)
        shape = list(self.unique.shape)
        shape[0] = len(parts)
        shape[axis + 1] *= count
        return Stream(moved.reshape(shape), index.reshape(-1).astype(np.int64))
