"""Runs of a cluster's queue executed as a whole, with the same bits, completions and reports as one by one.

A compiled planner decodes a prefix of the queue and follows which entries are where, which sweeps continue each other
and what is drained. It ends where anything would be in trouble, or is for the cluster itself: bursts between units,
other meshes, another anchor, a sweep that continues a tile that somebody has looked at. What such a word does or
reports is told by `Cluster.execute` alone, which is also what runs where nothing is compiled. Then memory is asked
whether it can be read and written in order, the products that are drained run as few calls of the kernel, and only
what is past every check is written back.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import islice, takewhile
from types import ModuleType
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.numerics.fp22 import STANDARD_ANCHOR
from meshwright.simulator.accumulator import Accumulator, Sweeps
from meshwright.simulator.arithmetic import Names
from meshwright.simulator.memory import Bytes
from meshwright.simulator.operands import Bank, Extent, Part, Segment, part_of
from meshwright.simulator.ordering import Event, Guarded, Issue
from meshwright.simulator.unit import GRANULE, LONGEST_FILL, Ahead, Queued, Setting, Source
from meshwright.targets.ktpu.isa import Drain, Fill, Gemm

Reads: TypeAlias = dict[tuple[int, int], tuple[int, int]]
"""Entries that a sweep reads: first and one past the last, by side and bank."""

WORTH: Final = 24
"""Fewer instructions are executed faster one by one."""
_LONGEST: Final = 4096
_SHORTEST: Final = 64
_MOST_SINGLE: Final = 64
_WORD_BYTES: Final = 32
"""Of an instruction word."""
_INDEX_BITS: Final = 8
"""Bits of an entry's number in the name of an L1 entry; the segment's place among the segments of a run is above."""
_NEVER: Final = -1
_SIDES, _BANKS = 2, 2
_RAMP: Final = np.arange(1 << _INDEX_BITS, dtype=np.int32)
_MOST_OUT: Final = 8 << 20
"""Bytes of drained results at a time: they are in the cache when they are written to memory."""


@cache
def _module() -> ModuleType | None:
    try:
        return importlib.import_module("meshwright.simulator._cluster")
    except ImportError:
        return None


@cache
def _layout() -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """Places of the fields that the planner looks at, and the reserved bits of each opcode."""
    module = _module()
    names: Sequence[str] = () if module is None else module.FIELDS
    formats = [kind.format for kind in (Fill, Gemm, Drain)]
    table = {**formats[0].free, "op": next(field for field in formats[0].fields if field.name == "op")}
    fields = np.zeros((len(names), 4), dtype=np.int32)
    for row, name in zip(fields, names, strict=True):
        for at, (hi, lo) in enumerate(table[name].parts):
            row[2 * at : 2 * at + 2] = lo, hi - lo + 1
    reserved = b"".join(format_.reserved.to_bytes(_WORD_BYTES, "little") for format_ in formats)
    return fields, np.frombuffer(reserved, dtype=np.uint64).reshape(len(formats), -1)


class _Planned(Struct, frozen=True):
    """What the planner found; see native/cluster/plan.h. busy, layers, chains, drains: tuples of their members."""

    done: int
    last_l1: int
    last_tiles: int
    opened: int
    busy: list[tuple[int, int]]
    layers: list[tuple[int, bool, int, int, int, Names | None, Names | None]]
    chains: list[tuple[int, int, int, int, int]]
    drains: list[tuple[int, int, int, int]]
    operands: list[Names]


class _Slots:
    """Segments by a small number; the name of an entry is that number and the entry's own."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._of: dict[int, int] = {}

    def of(self, segment: Segment) -> int:
        """The number of a segment, a new one where it has none."""
        slot = self._of.setdefault(segment.number, len(self.segments))
        if slot == len(self.segments):
            self.segments.append(segment)
        return slot

    def names(self, extents: Iterable[Extent]) -> list[Names]:
        """The names of each extent's entries."""
        return [
            _RAMP[index : index + stop - start] + np.int32(self.of(segment) << _INDEX_BITS)
            for start, stop, segment, index in extents
        ]

    def extents(self, names: Names) -> list[Extent]:
        """The extents of entries by name; entries that nothing filled are left out."""
        filled = names != _NEVER
        follows = np.diff(names) == 1
        ends = (filled[1:] & filled[:-1] & ~follows) | (filled[1:] != filled[:-1])
        starts = [0, *(np.flatnonzero(ends) + 1).tolist()]
        return [
            (start, stop, self.segments[name >> _INDEX_BITS], name & (1 << _INDEX_BITS) - 1)
            for start, stop, name in zip(starts, [*starts[1:], len(names)], names[starts].tolist(), strict=True)
            if name != _NEVER
        ]


class Batches:
    """Executes runs of a cluster's queue; the state that it works on is the cluster's."""

    def __init__(
        self, setting: Setting, banks: list[list[Bank]], accumulator: Accumulator, tiles: Guarded, l1: Guarded
    ) -> None:
        self._setting = setting
        self._banks = [bank for side in banks for bank in side]
        self._accumulator = accumulator
        self._tiles, self._l1 = tiles, l1
        self._module = _module() if setting.kernels.compiled else None
        fields = setting.machine.address
        self._figures = (
            len(accumulator),
            self._banks[0].entries,
            LONGEST_FILL,
            STANDARD_ANCHOR,
            setting.mesh,
            fields.mesh_shift,
            fields.mesh_bits,
            setting.machine.dram.bytes,
        )
        self._window = _LONGEST
        self._single, self._pause = 0, 1

    def execute(self, queue: deque[Queued], label: str, started: int, busy: Reads) -> tuple[Ahead, Reads] | None:
        """Execute the longest run of the first instructions that can be executed as a whole.

        label, started: of the unit, for the events. busy: entries that the sweep before may still read; those of the
        last sweep are given back.
        """
        if self._module is None or len(queue) < WORTH:
            return None
        if self._single:
            self._single -= 1
            return None
        done = self._execute(queue, label, started, busy)
        count = 0 if done is None else done[0].count
        # Looking far ahead, or at all, costs more than it saves where every few words one is for the cluster itself.
        whole = count == min(len(queue), self._window)
        self._window = _LONGEST if whole else min(max(_SHORTEST, 2 * count), _LONGEST)
        if count < WORTH:
            self._single, self._pause = self._pause, min(2 * self._pause, _MOST_SINGLE)
        else:
            self._pause = 1
        return done

    def _execute(self, queue: deque[Queued], label: str, started: int, busy: Reads) -> tuple[Ahead, Reads] | None:
        issue = queue[0].issue
        if not (self._tiles.ordered(issue) and self._l1.ordered(issue)):
            return None
        program = self._decoded(queue, issue)
        runs = program.fills
        sources = self._setting.wires.sources([run[:3] for run in runs], issue)
        limit = program.count if len(sources) == len(runs) else runs[len(sources)][3]
        slots = _Slots()
        plan, before, after = self._planned(program, slots, sources, limit, busy)
        writes = [(address, count) for _, address, count, _ in plan.drains]
        if writes and (racing := self._setting.wires.racing(writes, issue, label)) is not None:
            plan, before, after = self._planned(program, slots, sources, plan.drains[racing][0], busy)
            writes = writes[:racing]
        if not plan.done:
            return None
        data = self._results(plan, slots.segments)
        events = [Event(label, started + step) for step, *_ in plan.drains]
        self._setting.wires.store(writes, data, events)
        for source, (*_, first) in zip(sources, runs, strict=False):
            if first < plan.done:
                event = Event(label, started + first)
                events.append(event)
                source.read(event)
        for guarded, last in ((self._l1, plan.last_l1), (self._tiles, plan.last_tiles)):
            if last >= 0:
                event = Event(label, started + last)
                events.append(event)
                guarded.used(event)
        self._keep(plan, slots, before, after)
        reads = {divmod(at, _BANKS): span for at, span in enumerate(plan.busy) if span != (0, 0)}
        return Ahead(plan.done, events), reads

    def _decoded(self, queue: deque[Queued], issue: Issue) -> Any:
        """The planner's program of the first words that were dispatched together."""
        first = takewhile(
            lambda queued: queued.issue is issue and not queued.word >> 8 * _WORD_BYTES, islice(queue, self._window)
        )
        data = b"".join([queued.word.to_bytes(_WORD_BYTES, "little") for queued in first])
        if self._module is None:
            raise AssertionError("nothing is decoded without the planner")
        return self._module.decode(np.frombuffer(data, np.uint64).reshape(-1, 4), *_layout(), self._figures)

    def _planned(
        self, program: Any, slots: _Slots, sources: list[Source], limit: int, busy: Reads
    ) -> tuple[_Planned, Names, Names]:
        """The plan of the first `limit` words at most, and L1 by the names of its entries, before and after it."""
        before = np.full((len(self._banks), self._figures[1]), _NEVER, dtype=np.int32)
        for row, bank in zip(before, self._banks, strict=True):
            for (start, stop, *_), names in zip(bank.extents, slots.names(bank.extents), strict=True):
                row[start:stop] = names
        layers = self._accumulator.put_off
        last = layers[-1] if layers and layers[-1].opens else None
        left, right = (None, None) if last is None else (_named(slots, last.a), _named(slots, last.b))
        filled = [slots.of(source.segment) for source in sources]
        filled += [0] * (len(program.fills) - len(filled))
        after = before.copy()
        spans = [busy.get((side, bank), (0, 0)) for side in range(_SIDES) for bank in range(_BANKS)]
        found = program.plan(
            limit,
            filled,
            after,
            [edge for span in spans for edge in span],
            self._accumulator.opened,
            [(*sweeps.grid, sweeps.blocks, sweeps.opens, sweeps.drained) for sweeps in layers],
            left,
            right,
        )
        return _Planned(*found), before, after

    def _results(self, plan: _Planned, segments: list[Segment]) -> list[Bytes]:
        """For each drain, the bytes that it writes."""
        tiles: dict[int, NDArray[np.uint16]] = {}
        groups: dict[tuple[int, int, int], list[int]] = {}
        for number, (gm, gn, blocks, *_) in enumerate(plan.chains):
            groups.setdefault((gm, gn, blocks), []).append(number)
        for (gm, gn, blocks), chains in groups.items():
            at_once = max(1, _MOST_OUT // (gm * gn * GRANULE))
            for first in range(0, len(chains), at_once):
                some = chains[first : first + at_once]
                sides = [_stacked(plan, some, side) for side in (3, 4)]
                a, b = (names.reshape(len(names), -1, blocks) for names, _ in sides)
                found = self._setting.kernels.tiles(segments, a, b, (sides[0][1], sides[1][1]))
                tiles.update(zip(some, found, strict=True))
        return [tiles[chain][:count].reshape(-1).view(np.uint8) for _, _, count, chain in plan.drains]

    def _keep(self, plan: _Planned, slots: _Slots, before: Names, after: Names) -> None:
        """Write back what L1 holds and what is put off."""
        for bank, old, new in zip(self._banks, before, after, strict=True):
            if not np.array_equal(old, new):
                bank.hold(slots.extents(new))
        had, layers = self._accumulator.put_off, list[Sweeps]()
        for prior, drained, gm, gn, blocks, a, b in plan.layers:
            if a is None or b is None:
                layers.append(had[prior])
                layers[-1].drained = drained
                continue
            parts = [part_of(groups, blocks, slots.extents(names)) for groups, names in ((gm, a), (gn, b))]
            layers.append(Sweeps((gm, gn), True, [parts[0]], [parts[1]], blocks, drained))
        self._accumulator.put_off_instead(layers, plan.opened)


def _named(slots: _Slots, parts: list[Part]) -> Names:
    """The entries of the parts of one operand by name, in the order (group, K block)."""
    pieces = [np.concatenate(slots.names(part.extents)).reshape(part.groups, part.blocks) for part in parts]
    return np.ascontiguousarray(np.concatenate(pieces, axis=1)).reshape(-1)


def _stacked(plan: _Planned, chains: list[int], side: int) -> tuple[Names, NDArray[np.int64]]:
    """The operands on one side of some chains, each once, and which of them each chain takes."""
    numbers: dict[int, int] = {}
    index = [numbers.setdefault(plan.chains[chain][side], len(numbers)) for chain in chains]
    return np.stack([plan.operands[number] for number in numbers]), np.array(index, dtype=np.int64)
