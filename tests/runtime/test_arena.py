"""Arenas against a model that knows only which bytes are whose."""

from __future__ import annotations

import re

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from meshwright.errors import DeviceError
from meshwright.runtime.arena import Arena, Span

KIB = 1024


class Spans(RuleBasedStateMachine):
    """Spans are handed out and given back; no two meet, and every byte comes back."""

    spans = Bundle("spans")

    @initialize(start=st.integers(0, 1000), size=st.integers(2048, 8192), alignment=st.sampled_from([32, 256]))
    def begin(self, start, size, alignment) -> None:
        self.arena = Arena((start, start + size), alignment)
        first = -(-start // alignment) * alignment
        self.usable = range(first, (start + size) // alignment * alignment, alignment)
        self.owner: dict[int, Span] = {}
        self.stale: list[Span] = []

    def free_runs(self) -> list[int]:
        """Sizes of the longest runs of free units, in bytes."""
        runs, current = [], 0
        for unit in self.usable:
            current = 0 if unit in self.owner else current + self.arena.alignment
            if current == self.arena.alignment:
                runs.append(current)
            elif current:
                runs[-1] = current
        return runs

    @rule(target=spans, size=st.integers(0, 3000))
    def allocate(self, size):
        needed = max(1, -(-size // self.arena.alignment)) * self.arena.alignment
        runs = self.free_runs()
        if max(runs, default=0) < needed:
            message = f"the largest free span has {max(runs, default=0):,} ({sum(runs):,} are free in all)"
            with pytest.raises(DeviceError, match=re.escape(message)):
                self.arena.allocate(size)
            return None
        best = min(run for run in runs if run >= needed)
        span = self.arena.allocate(size)
        assert span.size == needed
        assert span.start % self.arena.alignment == 0
        taken = range(span.start, span.stop, self.arena.alignment)
        assert all(unit in self.usable and unit not in self.owner for unit in taken)
        assert len(self.free_run_around(span)) * self.arena.alignment == best
        self.owner.update(dict.fromkeys(taken, span))
        return span

    def free_run_around(self, span: Span) -> list[int]:
        """The run of free units that the span is about to be cut out of."""
        step = self.arena.alignment
        low = high = span.start
        while low - step in self.usable and low - step not in self.owner:
            low -= step
        while high + step in self.usable and high + step not in self.owner:
            high += step
        return list(range(low, high + step, step))

    @rule(span=consumes(spans))
    def release(self, span) -> None:
        if span is None:
            return
        if span in self.stale:
            with pytest.raises(DeviceError, match="this value was made before the device was reset"):
                self.arena.release(span)
            return
        self.arena.release(span)
        for unit in range(span.start, span.stop, self.arena.alignment):
            assert self.owner.pop(unit) == span
        with pytest.raises(DeviceError, match="has been freed; the value in it is gone"):
            self.arena.check(span)

    @rule()
    def reset(self) -> None:
        self.stale += set(self.owner.values())
        self.owner.clear()
        self.arena.reset()

    @invariant()
    def bytes_add_up(self) -> None:
        if hasattr(self, "arena"):
            used = len(self.owner) * self.arena.alignment
            assert self.arena.used_bytes == used
            assert self.arena.free_bytes == len(self.usable) * self.arena.alignment - used
            for span in set(self.owner.values()):
                self.arena.check(span)


Spans.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
TestSpans = Spans.TestCase


def test_starts_and_sizes_are_aligned() -> None:
    arena = Arena((100, 5000))
    span = arena.allocate(1)
    assert (span.start, span.size, span.stop) == (256, 256, 512)
    assert arena.allocate(257).size == 512
    assert arena.free_bytes == 4864 - 256 - 768


def test_the_smallest_hole_that_fits_is_taken() -> None:
    arena = Arena((0, 16 * KIB))
    spans = [arena.allocate(size * KIB) for size in (4, 1, 2, 1, 8)]
    arena.release(spans[0])
    arena.release(spans[2])
    assert arena.allocate(2 * KIB).start == spans[2].start
    assert arena.allocate(3 * KIB).start == spans[0].start


def test_neighbours_are_joined_when_they_come_back() -> None:
    arena = Arena((0, 4 * KIB))
    spans = [arena.allocate(KIB) for _ in range(4)]
    for i in (0, 2, 1, 3):
        arena.release(spans[i])
    assert arena.allocate(4 * KIB).start == 0


def test_out_of_memory_names_the_largest_free_span() -> None:
    arena = Arena((0, 4 * KIB), name="DRAM of mesh 2")
    spans = [arena.allocate(KIB) for _ in range(4)]
    arena.release(spans[0])
    arena.release(spans[2])
    with pytest.raises(
        DeviceError,
        match="^"
        + re.escape(
            "DRAM of mesh 2: 1,280 bytes were asked for, and the largest free span has 1,024 (2,048 are free in all). "
            "Free values that are no longer needed, or split them further"
        )
        + "$",
    ):
        arena.allocate(KIB + 1)


def test_what_an_arena_refuses() -> None:
    arena = Arena((0, KIB), name="arena")
    with pytest.raises(DeviceError, match=re.escape("arena: a span of -1 bytes was asked for")):
        arena.allocate(-1)
    span = arena.allocate(10)
    arena.release(span)
    with pytest.raises(DeviceError, match=re.escape("arena: the span at 0x0 has been freed; the value in it is gone")):
        arena.release(span)
    again = arena.allocate(10)
    assert again.start == span.start
    arena.reset()
    arena.reset()
    with pytest.raises(
        DeviceError,
        match=re.escape(
            "arena: this value was made before the device was reset (2 resets ago); its bytes are gone. Put it on the "
            "device again"
        ),
    ):
        arena.check(again)


def test_a_freed_span_is_not_the_one_that_took_its_place() -> None:
    arena = Arena((0, KIB))
    old = arena.allocate(10)
    arena.release(old)
    new = arena.allocate(20)
    assert new.start == old.start
    with pytest.raises(DeviceError, match="has been freed"):
        arena.check(old)
    arena.check(new)
