"""Host jobs on their way: spans that are read, what is made of them, blocks that are written and read back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from meshwright.errors import DispatchError, TransportError
from meshwright.runtime.dispatch_jobs import named
from meshwright.runtime.jobs import HostJob, Job, Span
from meshwright.runtime.transport import Bytes, check_block, view


class Moves:
    """The host jobs that have been begun. verify: whether what was written is read back and compared."""

    def __init__(self, jobs: Sequence[Job], *, verify: bool) -> None:
        self._jobs = jobs
        self._verify = verify
        self._to_read: list[int] = []
        self._to_make: list[tuple[int, Sequence[bytes]]] = []
        self._to_write: list[tuple[int, list[tuple[int, memoryview]]]] = []
        self._to_compare: list[tuple[int, list[tuple[int, memoryview]]]] = []

    def begin(self, positions: Sequence[int]) -> None:
        """Host jobs whose turn it is. Raises `DispatchError` for a span that no transport carries."""
        for at in positions:
            job = self._job(at)
            try:
                for address, count in job.reads:
                    check_block("read", address, count)
            except TransportError as problem:
                raise DispatchError(f"{named(at, job)}: {problem}") from None
            if job.reads:
                self._to_read.append(at)
            else:
                self._to_make.append((at, ()))
        self.make()

    def _job(self, at: int) -> HostJob:
        job = self._jobs[at]
        assert isinstance(job, HostJob)
        return job

    def writes(self) -> tuple[int, list[tuple[int, Bytes]]]:
        """How many jobs have something to write now, and the blocks of all of them."""
        return len(self._to_write), [write for _, writes in self._to_write for write in writes]

    def writer(self, number: int | None) -> str | None:
        """The job that block `number` of `writes` is of, as messages name it; None where it is no host job's."""
        blocks = (at for at, writes in self._to_write for _ in writes)
        found = None if number is None else next(islice(blocks, number, None), None)
        return None if found is None else named(found, self._job(found))

    def readers(self) -> str:
        """The jobs that `reads` reads for, as messages name them."""
        return "; ".join(named(at, self._job(at)) for at in [*self._to_read, *(at for at, _ in self._to_compare)])

    def written(self, jobs: int) -> list[int]:
        """The blocks of so many jobs have been written; those that are complete with that."""
        now, self._to_write = self._to_write[:jobs], self._to_write[jobs:]
        if not self._verify:
            return [at for at, _ in now]
        self._to_compare += [(at, writes) for at, writes in now if writes]
        return [at for at, writes in now if not writes]

    def reads(self) -> list[Span]:
        """The spans to read now: those of jobs that begin, then what is compared."""
        spans = [span for at in self._to_read for span in self._job(at).reads]
        return [*spans, *((address, len(data)) for _, writes in self._to_compare for address, data in writes)]

    def read(self, data: Sequence[bytes]) -> list[int]:
        """What `reads` named; the jobs that are complete with that. `DispatchError` where something was not written."""
        first = 0
        for at in self._to_read:
            count = len(self._job(at).reads)
            self._to_make.append((at, data[first : first + count]))
            first += count
        self._to_read = []
        compared, self._to_compare = self._to_compare, []
        for at, writes in compared:
            for (address, wanted), found in zip(writes, data[first : first + len(writes)], strict=True):
                self._compare(at, address, wanted, found)
            first += len(writes)
        return [at for at, _ in compared]

    def _compare(self, at: int, address: int, wanted: memoryview, found: bytes) -> None:
        different = np.flatnonzero(np.frombuffer(wanted, np.uint8) != np.frombuffer(found, np.uint8))
        if len(different):
            raise DispatchError(
                f"{named(at, self._job(at))}: {len(different)} of {len(wanted)} bytes written at {address:#x} read "
                f"back as something else, the first at {address + int(different[0]):#x}. The transport or the memory "
                "changed them; nothing that depends on them was sent"
            )

    def make(self) -> bool:
        """Makes what is to be written out of what has been read; whether there was anything to do."""
        now, self._to_make = self._to_make, []
        for at, data in now:
            job = self._job(at)
            try:
                made = job.make(data)
            except Exception as problem:
                # A user's function may raise anything; it is named and comes through.
                problem.add_note(f"in {named(at, job)}, which makes what the host writes")
                raise
            try:
                self._to_write.append((at, [(address, view(address, content)) for address, content in made]))
            except TransportError as problem:
                raise DispatchError(f"{named(at, job)}: {problem}") from None
        return bool(now)
