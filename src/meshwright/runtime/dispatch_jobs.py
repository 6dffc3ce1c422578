"""Jobs as the dispatcher cuts them: words, where they were cut, and which signals each word causes elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from meshwright.errors import DispatchError
from meshwright.ir.ids import ChipId
from meshwright.ir.records import Site
from meshwright.machine import MachineSpec
from meshwright.runtime.jobs import Job, UnitJob
from meshwright.targets.ktpu.isa.cluster import Drain
from meshwright.targets.ktpu.isa.disassembler import line_of
from meshwright.targets.ktpu.isa.flit import Flit, FlitType
from meshwright.targets.ktpu.isa.payload import Run
from meshwright.targets.ktpu.isa.program import Program

WORD_BYTES: Final = 32
TRANSACTIONS: Final = 256
"""Numbers that a flit can have, so that the answer to one kick is told from that to another."""
_BURST: Final = 8
"""Granules that a DRAIN to a unit sends at a time; each burst is acknowledged. Source: the card's specification."""
_ACCUMULATOR: Final = 2
_GRANULES: Final = {_ACCUMULATOR: 2}
"""Granules of a sub-tile in a burst, by the receiver's buffer, where it isn't one."""


def _header(txn: int, last: bool) -> bytes:
    bits = Flit(type=FlitType.CU_INST, txn=txn, last=int(last)).encode() >> 8 * WORD_BYTES
    return bits.to_bytes(8, "little")


class Encoder:
    """Words of programs, 32 bytes each. Those of the programs of the last run are kept, for one that runs again."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Program, tuple[bytes, ...]]] = {}
        self._now: dict[int, tuple[Program, tuple[bytes, ...]]] = {}

    def begin(self) -> None:
        """A run begins: what the one before it didn't use is forgotten."""
        self._kept, self._now = self._now, {}

    def words(self, program: Program) -> tuple[bytes, ...]:
        """The words of a program; `InstructionError` for one that can't be encoded."""
        # The program is kept with them, so that no other can have its identity.
        found = self._now.get(id(program)) or self._kept.get(id(program))
        if found is None:
            found = program, tuple(word.to_bytes(WORD_BYTES, "little") for word in program.encode())
        self._now[id(program)] = found
        return found[1]


def staged(words: Sequence[bytes], txn: int) -> bytes:
    """The staging slots of one kick: five 64-bit words for each instruction word, `last` set on the final one."""
    header, final = _header(txn, last=False), len(words) - 1
    slots = [word + header for word in words[:final]]
    return b"".join((*slots, words[final], _header(txn, last=True)))


class Caused(Struct, frozen=True):
    """Signals that word number `word` of a program causes at the unit at `site`."""

    word: int
    site: Site
    signals: int


class Work:
    """A `UnitJob` on its way: `sent` of its words have been cut off, `flying` pieces of it are not complete."""

    def __init__(self, position: int, job: UnitJob, words: tuple[bytes, ...], caused: tuple[Caused, ...]) -> None:
        self.position = position
        self.job = job
        self.words = words
        self.caused = caused
        self.sent = 0
        self.flying = 0

    @property
    def left(self) -> int:
        """Words that are still to be sent."""
        return len(self.words) - self.sent

    @property
    def complete(self) -> bool:
        """Whether every word has been sent and every piece is complete."""
        return not self.left and not self.flying

    @property
    def label(self) -> str:
        """As messages name it."""
        return f"job {self.position}, {self.job.what}"

    def line(self, word: int) -> str:
        """The disassembly of a word."""
        return line_of(self.job.program.words[word])

    def cut(self, most: int) -> Piece:
        """The next words, `most` at most, which count as sent from now on."""
        first, stop = self.sent, min(len(self.words), self.sent + most)
        self.sent = stop
        self.flying += 1
        arrivals: Counter[Site] = Counter()
        for cause in self.caused:
            if first <= cause.word < stop:
                arrivals[cause.site] += cause.signals
        return Piece(self, first, stop, arrivals)


class Piece(Struct, eq=False):
    """Words `first` to `stop - 1` of a work in one kick, and the signals that they cause elsewhere."""

    work: Work
    first: int
    stop: int
    arrivals: Mapping[Site, int]

    def __len__(self) -> int:
        return self.stop - self.first


def check_jobs(jobs: Sequence[Job], machine: MachineSpec) -> None:
    """Raises `DispatchError` where a job waits for itself or a later one, or names a unit that can't take it."""
    kinds = {site: kind_at(machine, site) for site in sites_of(jobs)}
    for position, job in enumerate(jobs):
        for before in job.after:
            if not 0 <= before < position:
                raise DispatchError(
                    f"{named(position, job)}, waits for job {before}: jobs wait for earlier ones; put it after what it "
                    "waits for"
                )
        if isinstance(job, UnitJob):
            wanted = [(job.site, f"a unit of type {job.program.unit}", job.program.unit)]
            wanted += [(arrival.site, "a unit", kinds[arrival.site]) for arrival in job.arrivals]
            for site, what, kind in wanted:
                if kinds[site] is None or kinds[site] != kind:
                    raise DispatchError(
                        f"{named(position, job)}, needs {what} at {site}, where {machine.name} has "
                        f"{kinds[site] or 'none'}"
                    )


def kind_at(machine: MachineSpec, site: Site) -> str | None:
    """Type of the unit at a site; None where none is."""
    if site.chip not in machine.mesh_ids:
        return None
    mesh = machine.mesh(site.chip)
    return next((kind for kind in mesh.unit_types if (site.x, site.y) in mesh.coords(kind)), None)


def named(position: int, job: Job) -> str:
    """A job as messages name it."""
    return f"job {position}, {job.what}"


def work_of(position: int, job: UnitJob, words: tuple[bytes, ...], machine: MachineSpec, slots: int) -> Work:
    """A job, its encoded words and what they cause; slots: staging slots of a mesh.

    Raises `DispatchError` where the stated arrivals are not those that the drains of a cluster's program cause, or
    can't be awaited.
    """
    stated = {arrival.site: arrival.signals for arrival in job.arrivals if arrival.signals}
    if len(stated) < sum(1 for arrival in job.arrivals if arrival.signals) or min(stated.values(), default=1) < 0:
        raise DispatchError(f"{named(position, job)}: each arrival states another site and a number of signals")
    if job.program.unit == "MG":
        caused = tuple(_drained(job, machine))
        found = Counter[Site]()
        for cause in caused:
            found[cause.site] += cause.signals
        if found != stated:
            raise DispatchError(
                f"{named(position, job)}, states arrivals {_listed(stated)}, and its drains cause {_listed(found)}: "
                "it would be waited for in vain, or be taken for complete too soon. State what the drains acknowledge"
            )
        return Work(position, job, words, caused)
    return Work(position, job, words, _vector_causes(position, job, stated, slots))


def _vector_causes(position: int, job: UnitJob, stated: Mapping[Site, int], slots: int) -> tuple[Caused, ...]:
    """Which of a vector core's runs sends is in its code: with one run it is that one, else they are not cut apart."""
    runs = [at for at, word in enumerate(job.program.words) if isinstance(word, Run)]
    if stated and not runs:
        raise DispatchError(f"{named(position, job)}, states arrivals {_listed(stated)}, and has no RUN to cause them")
    if stated and len(runs) > 1 and len(job.program) > slots:
        raise DispatchError(
            f"{named(position, job)}, has {len(runs)} runs in {len(job.program)} words and states arrivals "
            f"{_listed(stated)}. It doesn't fit the {slots} staging slots, and nothing tells which run causes which "
            "arrivals: make one job of each run"
        )
    return tuple(Caused(runs[-1], site, signals) for site, signals in stated.items())


def _drained(job: UnitJob, machine: MachineSpec) -> Iterator[Caused]:
    for at, word in enumerate(job.program.words):
        if isinstance(word, Drain) and word.dnode and word.dflags & 1 and word.n:
            far = word.dfin != 0
            mesh = word.dmesh if far else int(job.site.chip)
            x, y = (word.dfin & 15, word.dfin >> 4) if far else (word.dst_x, word.dst_y)
            # Anything else than the agent of the receiver's mesh gets the signal, and counts nothing.
            if mesh in machine.mesh_ids and machine.mesh(mesh).agent == (word.dack_x, word.dack_y):
                granules = word.n * _GRANULES.get(word.dbuf, 1)
                yield Caused(at, Site(ChipId(mesh), x, y), -(-granules // _BURST))


def _listed(arrivals: Mapping[Site, int]) -> str:
    return ", ".join(f"{signals} at {site}" for site, signals in arrivals.items()) or "none"


def sites_of(jobs: Sequence[Job]) -> tuple[Site, ...]:
    """Every unit that work is sent to or that acknowledges, in order of mention."""
    found: dict[Site, None] = {}
    for job in jobs:
        if isinstance(job, UnitJob):
            found[job.site] = None
            found.update(dict.fromkeys(arrival.site for arrival in job.arrivals))
    return tuple(found)
