"""`Arena`: the DRAM of one device, handed out in spans."""

from __future__ import annotations

import bisect

from msgspec import Struct

from meshwright.errors import DeviceError


class Span(Struct, frozen=True, order=True):
    """Bytes `start` to `start + size` of a mesh's DRAM.

    epoch: how often the arena had been reset. serial: how many spans it had handed out, so that a span is told from
    the one that had the same bytes before it.
    """

    start: int
    size: int
    epoch: int
    serial: int

    @property
    def stop(self) -> int:
        """The first byte after it."""
        return self.start + self.size


class Arena:
    """Spans of a window of DRAM: best fit, aligned, neighbours joined again when they are given back.

    window: (first byte, first byte after). alignment: of starts and sizes, in bytes: a drain burst moves whole bursts.
    """

    def __init__(self, window: tuple[int, int], alignment: int = 256, name: str = "arena") -> None:
        self.window = window
        self.alignment = alignment
        self.name = name
        self.epoch = 0
        self._serial = 0
        self._free: list[tuple[int, int]] = [self._aligned(window)]
        self._used: dict[int, Span] = {}

    def _aligned(self, window: tuple[int, int]) -> tuple[int, int]:
        start = -(-window[0] // self.alignment) * self.alignment
        return start, window[1] // self.alignment * self.alignment

    def allocate(self, size: int) -> Span:
        """A span of at least `size` bytes; `DeviceError` names the largest free span where there is none."""
        if size < 0:
            raise DeviceError(f"{self.name}: a span of {size} bytes was asked for")
        needed = max(1, -(-size // self.alignment)) * self.alignment
        fitting = [(stop - start, start, stop) for start, stop in self._free if stop - start >= needed]
        if not fitting:
            largest = max((stop - start for start, stop in self._free), default=0)
            raise DeviceError(
                f"{self.name}: {needed:,} bytes were asked for, and the largest free span has {largest:,} "
                f"({self.free_bytes:,} are free in all). Free values that are no longer needed, or split them further"
            )
        _, start, stop = min(fitting)
        self._free.remove((start, stop))
        if start + needed < stop:
            bisect.insort(self._free, (start + needed, stop))
        span = Span(start, needed, self.epoch, self._serial)
        self._serial += 1
        self._used[start] = span
        return span

    def release(self, span: Span) -> None:
        """Gives a span back; `DeviceError` for one that isn't handed out (any more)."""
        self.check(span)
        del self._used[span.start]
        start, stop = span.start, span.stop
        position = bisect.bisect(self._free, (start, stop))
        if position < len(self._free) and self._free[position][0] == stop:
            stop = self._free.pop(position)[1]
        if position > 0 and self._free[position - 1][1] == start:
            start = self._free.pop(position - 1)[0]
        bisect.insort(self._free, (start, stop))

    def check(self, span: Span) -> None:
        """Raises `DeviceError` unless `span` is handed out and from before no reset."""
        if span.epoch != self.epoch:
            raise DeviceError(
                f"{self.name}: this value was made before the device was reset ({self.epoch - span.epoch} resets ago); "
                "its bytes are gone. Put it on the device again"
            )
        if self._used.get(span.start) != span:
            raise DeviceError(f"{self.name}: the span at {span.start:#x} has been freed; the value in it is gone")

    def reset(self) -> None:
        """Takes everything back; spans from before are refused from now on."""
        self.epoch += 1
        self._free = [self._aligned(self.window)]
        self._used.clear()

    @property
    def used_bytes(self) -> int:
        """Bytes handed out."""
        return sum(span.size for span in self._used.values())

    @property
    def free_bytes(self) -> int:
        """Bytes not handed out."""
        return sum(stop - start for start, stop in self._free)
