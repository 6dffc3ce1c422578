"""What happened before what, as far as the host can know.

Units run beside each other, and only the host orders them: it sees that something is complete, and dispatches what
depends on it afterwards. The simulator has one order of events; the machine has any that the host did not rule out. So
two uses of the same thing are in order only where the host had *seen* the first before it *issued* the second. Without
that the simulator reports the race and gives no number.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct


class Event:
    """Something a unit did; `seen` is the host's time when it learnt of it, None until then.

    unit: whose it is. index: number of the instruction; None for a burst that the unit received.
    """

    __slots__ = ("index", "seen", "unit")

    def __init__(self, unit: str, index: int | None) -> None:
        self.unit = unit
        self.index = index
        self.seen: int | None = None

    @property
    def what(self) -> str:
        """As messages name it."""
        return f"a burst to {self.unit}" if self.index is None else f"instruction {self.index} of {self.unit}"


class Issue(Struct, frozen=True):
    """A dispatch: the host's time when it was started."""

    time: int

    def follows(self, event: Event) -> bool:
        """Whether the host had seen `event` before it issued this."""
        return event.seen is not None and event.seen <= self.time


class HostTime:
    """Counts what the host does to the card: each access has a later time than the one before it."""

    def __init__(self) -> None:
        self.now = 0

    def tick(self) -> int:
        """The time of a new access."""
        self.now += 1
        return self.now


def see(events: list[Event], now: int) -> None:
    """The host learns of `events`, which are taken out of the list."""
    for event in events:
        if event.seen is None:
            event.seen = now
    events.clear()


class Guarded:
    """State of a unit that its own instructions use and that bursts from other units change."""

    def __init__(self) -> None:
        self._own: Event | None = None
        self._arrivals: dict[tuple[int, int, int], Event] = {}

    def use(self, issue: Issue, event: Event) -> Event | None:
        """Its own unit uses it; the arrival that isn't ordered against that, if there is one."""
        self._own = event
        return self._unordered(issue, self._arrivals.values()) if self._arrivals else None

    def ordered(self, issue: Issue) -> bool:
        """Whether every arrival so far is ordered before `issue`."""
        return all(issue.follows(event) for event in self._arrivals.values())

    def used(self, event: Event) -> None:
        """Its own unit used it, after `ordered`."""
        self._own = event

    def arrive(self, source: tuple[int, int, int], issue: Issue, event: Event) -> Event | None:
        """A burst out of `source` (mesh, x, y) changes it; what isn't ordered against that, if there is something."""
        others = [arrival for key, arrival in self._arrivals.items() if key != source]
        own = [self._own] if self._own is not None else []
        self._arrivals[source] = event
        return self._unordered(issue, [*others, *own])

    def _unordered(self, issue: Issue, events: Iterable[Event]) -> Event | None:
        return next((event for event in events if not issue.follows(event)), None)
