"""L1 of a cluster, and the operands that a sweep takes out of it.

A fill leaves a `Segment`, quantised entries that never change; L1 knows which runs of entries it holds of which
segment. So what an operand is made of has a name, and an operand that was put together once is found again by it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.simulator.faults import undefined

_ROW: Final = np.dtype("V32")
"""A row of an entry, which is moved as a whole."""


class Segment(Struct, frozen=True, eq=False):
    """Quantised entries: elements int8 `[n, 4, 32]`, scales uint8 `[n, 4]`; `number` names them."""

    number: int
    q: NDArray[np.int8]
    scale: NDArray[np.uint8]


class Operand(Struct, frozen=True, eq=False):
    """Rows of K blocks as the product takes them: elements int8 `[rows, K]`, scales uint8 `[rows, K // 32]`."""

    q: NDArray[np.int8]
    scale: NDArray[np.uint8]


Extent: TypeAlias = tuple[int, int, Segment, int]
"""First entry, one past the last, the segment they hold entries of, and which of its entries the first one holds."""


class Part(Struct, frozen=True, eq=False):
    """What a sweep reads of one side, in the order (group, K block).

    name: groups and blocks, then for each run its segment's number, its first entry there and how many they are.
    """

    name: tuple[int, ...]
    groups: int
    blocks: int
    extents: tuple[Extent, ...]


def part_of(groups: int, blocks: int, extents: Sequence[Extent]) -> Part:
    """The part whose entries are those of `extents` one after another."""
    name = [groups, blocks]
    for start, stop, segment, index in extents:
        name += (segment.number, index, stop - start)
    return Part(tuple(name), groups, blocks, tuple(extents))


class Bank:
    """One bank of one side: `entries` entries, of which none is filled at first."""

    def __init__(self, label: str, entries: int) -> None:
        self.label = label
        self.entries = entries
        self._extents: list[Extent] = []
        """In the order of the entries, without overlap."""
        self._parts: dict[tuple[int, int, int], Part] = {}
        """Parts that were taken since the last fill."""

    def fill(self, first: int, segment: Segment) -> None:
        """Entries `first` on hold the segment's."""
        stop = first + len(segment.q)
        before: list[Extent] = []
        after: list[Extent] = []
        for extent in self._extents:
            start, end, held, index = extent
            if start < first:
                before.append(extent if end <= first else (start, first, held, index))
            if end > stop:
                after.append(extent if start >= stop else (stop, end, held, index + stop - start))
        self.hold([*before, (first, stop, segment, 0), *after])

    @property
    def extents(self) -> tuple[Extent, ...]:
        """What the entries hold, in their order, without overlap."""
        return tuple(self._extents)

    def hold(self, extents: list[Extent]) -> None:
        """The entries hold `extents`, in their order, without overlap, and nothing else."""
        self._extents = extents
        self._parts.clear()

    def part(self, first: int, groups: int, blocks: int) -> Part:
        """Entries `first + group * blocks + block`; trouble where nothing ever filled one."""
        if (part := self._parts.get((first, groups, blocks))) is not None:
            return part
        stop = first + groups * blocks
        if stop > self.entries:
            raise undefined(f"entries {first} to {stop - 1} of {self.label}, which has {self.entries}")
        found: list[Extent] = []
        at = first
        for start, end, segment, index in self._extents:
            if end <= at:
                continue
            if start > at or at >= stop:
                break
            until = min(end, stop)
            inside = index + at - start
            found.append((at, until, segment, inside))
            at = until
        if at < stop:
            raise undefined(f"entry {at} of {self.label} is read and was never filled")
        part = part_of(groups, blocks, found)
        self._parts[first, groups, blocks] = part
        return part


class Operands:
    """Operands put together from parts, the last used of them kept; `limit`: bytes kept."""

    def __init__(self, limit: int = 64 << 20) -> None:
        self._kept: OrderedDict[tuple[tuple[int, ...], ...], Operand] = OrderedDict()
        self._bytes = 0
        self._limit = limit

    def of(self, parts: Sequence[Part]) -> Operand:
        """The operand whose K blocks are those of `parts` one after another; they have the same groups."""
        key = tuple([part.name for part in parts])
        if (found := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return found
        made = _assembled(parts)
        self._kept[key] = made
        self._bytes += made.q.nbytes
        while self._bytes > self._limit and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1].q.nbytes
        return made


def _assembled(parts: Sequence[Part]) -> Operand:
    groups, rows = parts[0].groups, parts[0].extents[0][2].q.shape[1]
    blocks = sum(part.blocks for part in parts)
    q = np.empty((groups, rows, blocks), dtype=_ROW)
    scale = np.empty((groups, rows, blocks), dtype=np.uint8)
    at = 0
    for part in parts:
        elements, scales = _gathered(part)
        shape = (groups, part.blocks, rows)
        q[:, :, at : at + part.blocks] = elements.view(_ROW).reshape(shape).transpose(0, 2, 1)
        scale[:, :, at : at + part.blocks] = scales.reshape(shape).transpose(0, 2, 1)
        at += part.blocks
    return Operand(q.view(np.int8).reshape(groups * rows, blocks * 32), scale.reshape(groups * rows, blocks))


def _gathered(part: Part) -> tuple[NDArray[np.int8], NDArray[np.uint8]]:
    """Elements and scales of the part's entries, in their order."""
    runs = [(segment, slice(index, index + stop - start)) for start, stop, segment, index in part.extents]
    if len(runs) == 1:
        segment, which = runs[0]
        return segment.q[which], segment.scale[which]
    return (
        np.concatenate([segment.q[which] for segment, which in runs]),
        np.concatenate([segment.scale[which] for segment, which in runs]),
    )
