"""DRAM of one mesh: pages that appear when they are written, and what was never written is never read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from meshwright.simulator.faults import undefined, unpredictable
from meshwright.simulator.ordering import Event, Issue

Bytes = NDArray[np.uint8]

PAGE: Final = 1 << 20
_GRAIN: Final = 8
"""Bytes that are written or unwritten together: the smallest access is a 64-bit word."""
_SPAN: Final = 32
"""Bytes that share a stamp: a memory word."""


class Page:
    """`PAGE` bytes.

    newest: stamp of the last write to any of them. reads: first byte, one past the last, and event of the reads by
    units, until the host has seen those.
    """

    __slots__ = ("data", "newest", "reads", "stamp", "written")

    def __init__(self) -> None:
        self.data = np.zeros(PAGE, dtype=np.uint8)
        self.written = np.zeros(PAGE // _GRAIN, dtype=np.bool_)
        self.stamp = np.zeros(PAGE // _SPAN, dtype=np.int64)
        self.newest = 0
        self.reads: list[tuple[int, int, Event]] = []


class Dram:
    """`size` bytes at local addresses 0 on, none of them written.

    Each write has a stamp, larger than those before it, so what was derived from bytes holds as long as none of theirs
    is newer. Writes by units are kept with their events until the host has seen those: a read by anyone who can't know
    that they are complete is a race. `first_unseen`: stamp of the oldest of them, past the last write without any.
    """

    def __init__(self, mesh: int, size: int) -> None:
        self.mesh = mesh
        self.size = size
        self._pages: dict[int, Page] = {}
        self._stamp = 0
        self._unseen: dict[int, Event] = {}
        self.first_unseen = 1

    def _parts(self, address: int, count: int) -> Iterator[tuple[int, int, int, int]]:
        """For each page of a run: its number, the first and the last byte in it, and the first byte in the run."""
        done = 0
        while done < count:
            number, start = divmod(address + done, PAGE)
            stop = min(PAGE, start + count - done)
            yield number, start, stop, done
            done += stop - start

    def inside(self, address: int, count: int) -> None:
        """Trouble where the bytes aren't all populated."""
        if not 0 <= address <= address + count <= self.size:
            raise undefined(
                f"{count} bytes from local address {address:#x} on end at {address + count:#x}; mesh {self.mesh} has "
                f"bytes up to {self.size:#x}"
            )

    def write(self, address: int, data: Bytes, event: Event | None = None) -> None:
        """Write bytes; `event`: the completion of the unit that does, None for the host. Address and size in eights."""
        self.inside(address, len(data))
        for number, start, stop, done in self._stamped(address, len(data), event):
            page = self._pages[number]
            page.data[start:stop] = data[done : done + stop - start]
            page.written[start // _GRAIN : stop // _GRAIN] = True

    def spoil(self, address: int, count: int, event: Event) -> None:
        """The bytes are overwritten with nobody knows what; reading them is reported as if they were unwritten."""
        self.inside(address, count)
        for number, start, stop, _ in self._stamped(address, count, event):
            self._pages[number].written[start // _GRAIN : stop // _GRAIN] = False

    def _stamped(self, address: int, count: int, event: Event | None) -> Iterator[tuple[int, int, int, int]]:
        self._stamp += 1
        if event is not None:
            self._unseen[self._stamp] = event
        elif not self._unseen:
            self.first_unseen = self._stamp + 1
        for number, start, stop, done in self._parts(address, count):
            if (page := self._pages.get(number)) is None:
                page = self._pages[number] = Page()
            page.stamp[start // _SPAN : -(-stop // _SPAN)] = self._stamp
            page.newest = self._stamp
            yield number, start, stop, done

    @property
    def stamp(self) -> int:
        """Stamp of the last write."""
        return self._stamp

    def unchanged(self, address: int, count: int, since: int) -> bool:
        """Whether none of the bytes was written after stamp `since`."""
        pages = self._pages
        # Most memory lies in pages that nobody writes any more, which is seen at a glance.
        for number in range(address // PAGE, (address + count - 1) // PAGE + 1):
            if (page := pages.get(number)) is not None and page.newest > since:
                break
        else:
            return True
        for number, start, stop, _ in self._parts(address, count):
            page = pages.get(number)
            if page is not None and page.stamp[start // _SPAN : -(-stop // _SPAN)].max() > since:
                return False
        return True

    def pages(self, address: int, count: int) -> tuple[Page, ...]:
        """The pages of bytes that were all written."""
        return tuple(self._pages[number] for number, *_ in self._parts(address, count))

    def read(self, address: int, count: int) -> Bytes:
        """The bytes, to be looked at before the next write; trouble where one of them was never written."""
        self.inside(address, count)
        if self.written(address, count):
            number, start = divmod(address, PAGE)
            return self._pages[number].data[start : start + count]
        return np.concatenate(self.pieces(address, count))

    def written(self, address: int, count: int) -> bool:
        """Whether the bytes are in one page, and every one of them was written."""
        number, start = divmod(address, PAGE)
        stop = start + count
        if stop > PAGE or (page := self._pages.get(number)) is None:
            return False
        # A search for a zero byte takes a tenth of what `all` does.
        return b"\0" not in page.written[start // _GRAIN : -(-stop // _GRAIN)].tobytes()

    def pieces(self, address: int, count: int) -> list[Bytes]:
        """The bytes as `read` gives them, page by page."""
        self.inside(address, count)
        found: list[Bytes] = []
        for number, start, stop, done in self._parts(address, count):
            page = self._pages.get(number)
            written = None if page is None else page.written[start // _GRAIN : -(-stop // _GRAIN)]
            if page is None or written is None or not written.all():
                first = 0 if written is None else int(np.argmin(written)) * _GRAIN
                where = address + done if written is None else number * PAGE + start // _GRAIN * _GRAIN + first
                raise undefined(
                    f"local address {where:#x} of mesh {self.mesh} is read and was never written; ECC memory answers "
                    "that with an error"
                )
            found.append(page.data[start:stop])
        return found

    def ordered(self, address: int, count: int, issue: Issue | None, what: str, writer: str | None = None) -> None:
        """Trouble where a unit's write to the bytes isn't ordered before `issue` (None: before the host, now).

        writer: the unit that is about to write: its own writes are in order. Its own reads are not: a drain is complete
        before its data have arrived.
        """
        if not self._unseen or self.unchanged(address, count, self.first_unseen - 1):
            return
        for event in self._writers(address, count):
            if event.unit == writer:
                continue
            if event.seen is None or (issue is not None and not issue.follows(event)):
                raise unpredictable(
                    f"{what} {count} bytes from local address {address:#x} on, which {event.what} writes; the host had "
                    "not seen that complete, so nothing orders the two"
                )

    def unread(self, address: int, count: int, issue: Issue | None, what: str, writer: str | None = None) -> None:
        """Trouble where a unit's read of the bytes isn't ordered before `issue` (None: before the host, now).

        writer: the unit that is about to write: its own reads are in order, since a fill is complete when it is there.
        """
        for number in range(address // PAGE, (address + count - 1) // PAGE + 1):
            page = self._pages.get(number)
            for start, stop, event in page.reads if page is not None else ():
                if start >= address + count or address >= stop or event.unit == writer:
                    continue
                if event.seen is None or (issue is not None and not issue.follows(event)):
                    raise unpredictable(
                        f"{what} {count} bytes from local address {address:#x} on, which {event.what} reads; the host "
                        "had not seen that complete, so nothing orders the two"
                    )

    def _writers(self, address: int, count: int) -> Iterator[Event]:
        for number, start, stop, _ in self._parts(address, count):
            if (page := self._pages.get(number)) is None:
                continue
            for stamp in np.unique(page.stamp[start // _SPAN : -(-stop // _SPAN)]):
                if (event := self._unseen.get(int(stamp))) is not None:
                    yield event

    def forget_seen(self) -> None:
        """Drop the events that the host has seen; only while nothing older than its sight is queued."""
        for page in self._pages.values():
            if page.reads and page.reads[0][2].seen is not None:
                page.reads = [read for read in page.reads if read[2].seen is None]
        if not self._unseen or self._unseen[self.first_unseen].seen is None:
            return
        self._unseen = {stamp: event for stamp, event in self._unseen.items() if event.seen is None}
        # Stamps grow, so the first that is kept is the oldest.
        self.first_unseen = next(iter(self._unseen), self._stamp + 1)
