"""Which jobs may be sent: their predecessors have been seen complete, and those before them at the same unit sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from meshwright.ir.records import Site
from meshwright.runtime.jobs import Job, UnitJob


class Order:
    """What of `jobs` is complete, and what may be sent because of it.

    one_after_another: each job waits for all earlier ones.
    """

    def __init__(self, jobs: Sequence[Job], *, one_after_another: bool) -> None:
        self._total = len(jobs)
        self._one = one_after_another
        self._missing = [len(set(job.after)) for job in jobs]
        self._followers: list[list[int]] = [[] for _ in jobs]
        for at, job in enumerate(jobs):
            for before in set(job.after):
                self._followers[before].append(at)
        self._complete: set[int] = set()
        self._units: dict[Site, deque[int]] = {}
        self._waiting: list[int] = []
        for at, job in enumerate(jobs):
            if isinstance(job, UnitJob):
                self._units.setdefault(job.site, deque()).append(at)
            else:
                self._waiting.append(at)

    @property
    def complete(self) -> int:
        """How many jobs are."""
        return len(self._complete)

    @property
    def finished(self) -> bool:
        """Whether all are."""
        return len(self._complete) == self._total

    @property
    def left(self) -> list[int]:
        """Jobs that are not complete."""
        return [at for at in range(self._total) if at not in self._complete]

    def done(self, at: int) -> None:
        """A job has been seen complete."""
        if at not in self._complete:
            self._complete.add(at)
            for follower in self._followers[at]:
                self._missing[follower] -= 1

    def for_units(self) -> list[int]:
        """Unit jobs that may be sent from now on, each once; those of one unit in order."""
        found: list[int] = []
        for queue in self._units.values():
            while queue and self._may(queue[0]):
                found.append(queue.popleft())
        return found

    def for_host(self) -> list[int]:
        """Host jobs that may be begun from now on, each once."""
        found = [at for at in self._waiting if self._may(at)]
        if found:
            begun = set(found)
            self._waiting = [at for at in self._waiting if at not in begun]
        return found

    def _may(self, at: int) -> bool:
        return not self._missing[at] and (not self._one or at == len(self._complete))
