"""One mesh's rounds: which words are staged together, kicks one after the other, and what is polled meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from msgspec import Struct

from meshwright.errors import DispatchError, UnitFault
from meshwright.ir.records import Site
from meshwright.machine import MachineSpec
from meshwright.runtime.dispatch_jobs import TRANSACTIONS, Piece, Work, staged
from meshwright.runtime.dispatch_mirror import Flight, Node
from meshwright.runtime.transport import AgentWindow
from meshwright.simulator import registers as reg

_COMMANDS_A_KICK = 6
"""Wait, destination, first slot, number of flits, kick, and the wait for completion."""
_COMMANDS_A_ROUND = 2
"""Credits, and the end."""


class Status(Struct, frozen=True):
    """The dispatcher of a mesh: whether it runs, flits that it has left, its credits."""

    running: bool
    left: int
    credit: int


def status_of(word: int, mesh: int) -> Status:
    """The fields of PROG_STAT; `DispatchError` for a word that it never holds."""
    if word >> 33:
        raise DispatchError(
            f"PROG_STAT of mesh {mesh} reads {word:#x}: bits 63 to 33 are always 0. The word was corrupted on its way"
        )
    return Status(bool(word & 1), word >> 1 & reg.SHORT, word >> 17 & reg.SHORT)


class Limits(Struct, frozen=True):
    """Of the rounds of one mesh. slots: of staging memory. fifo: the instructions that each unit queues."""

    slots: int
    commands: int
    fifo: Mapping[Site, int]

    def most_units(self, sites: Iterable[Site]) -> int:
        """How many of these units may be kicked in one round: a kick costs one credit for good."""
        return min(self.credits(sites) - 1, (self.commands - _COMMANDS_A_ROUND) // _COMMANDS_A_KICK)

    def credits(self, sites: Iterable[Site]) -> int:
        """Credits that no unit's queue can overflow with."""
        return min((self.fifo[site] for site in sites), default=1)


def allot(queues: Sequence[Sequence[int]], slots: int) -> list[int]:
    """Staging slots for each unit, given how long the programs are that it could be sent, in order of precedence.

    A kick costs the host the same whatever its length, and controlling a card is slow, so a program is not cut unless
    it has to be: whole ones are packed, first one for each unit, then more. A program that is longer than the memory is
    cut anyway: it gets an even share, and more where others leave some. So none keeps others waiting for more than a
    round, and none is kept waiting by many short ones.
    """
    given = [0] * len(queues)
    taken = [0] * len(queues)
    long = [at for at, lengths in enumerate(queues) if lengths and lengths[0] > slots]
    left = slots
    for at, lengths in enumerate(queues):
        need = max(1, slots // len(queues)) if at in long else lengths[0] if lengths else 0
        if need <= left:
            given[at], taken[at] = need, 1
            left -= need
    for at, lengths in enumerate(queues):
        while given[at] and at not in long and taken[at] < len(lengths) and lengths[taken[at]] <= left:
            given[at] += lengths[taken[at]]
            left -= lengths[taken[at]]
            taken[at] += 1
    hungry = [at for at in long if given[at]]
    for turn, at in enumerate(hungry):
        given[at] += left // len(hungry) + (turn < left % len(hungry))
    return given


class Kick(Struct, frozen=True, eq=False):
    """Slots `first` to `first + flits - 1` for one unit; txn: the number that its last word is answered with."""

    node: Node
    first: int
    txn: int
    pieces: tuple[Piece, ...]

    @property
    def flits(self) -> int:
        """Flits that go out."""
        return sum(map(len, self.pieces))

    @property
    def latched(self) -> dict[int, int]:
        """What the registers that describe it hold when it is made, by offset."""
        site = self.node.site
        return {reg.PROG_DST: reg.node_index(site.x, site.y), reg.PROG_BASE: self.first, reg.PROG_LEN: self.flits}


class Round:
    """What is in staging memory now: kicks that are still to be made, and units that aren't through."""

    def __init__(self, kicks: Sequence[Kick], credits: int, content: bytes) -> None:
        self.kicks = deque(kicks)
        self.made = 0
        self.busy: set[Site] = set()
        self.doubted = False
        self.credits = credits
        self.content = content


class MeshRounds:
    """The rounds of one mesh. txn: the number of the kick before the first.

    In each sweep the dispatcher asks for `set_up` and `next_kick`, calls `kicked` when they have been carried out, and
    hands PROG_STAT to `take` where `watches_dispatch`.
    """

    def __init__(self, mesh: int, limits: Limits, window: AgentWindow, txn: int) -> None:
        self.mesh = mesh
        self.txn = txn
        self.round: Round | None = None
        self.status = Status(running=False, left=0, credit=0)
        self.since = 0.0
        self._limits = limits
        self._window = window
        self._ready: dict[Site, deque[Work]] = {}
        self._served: dict[Site, int] = {}
        self._turn = 0
        self._latched: dict[int, int] = {}
        self._idle = True

    def register(self, offset: int) -> int:
        """Host address of a register of the mesh's agent."""
        return self._window.register(self.mesh, offset)

    def put(self, work: Work) -> None:
        """A work whose predecessors have been seen complete; works of one unit come in order."""
        self._ready.setdefault(work.job.site, deque()).append(work)

    # Writing

    def set_up(self, nodes: Mapping[Site, Node]) -> list[tuple[int, bytes]]:
        """Credits and staging memory of a new round, if there is one to begin; its kicks come out of `next_kick`."""
        if self.round is not None or not any(self._ready.values()):
            return []
        self.round = self._plan(nodes)
        self._idle = True
        return [
            (self.register(reg.PROG_CRED), _word(self.round.credits)),
            (self.register(reg.STAGE), self.round.content),
        ]

    def next_kick(self) -> tuple[Kick, list[tuple[int, bytes]]] | None:
        """The kick that may be made now, and its writes; the last of them makes it."""
        if self.round is None or not self.round.kicks or not self._idle:
            return None
        kick = self.round.kicks[0]
        changed = [(offset, value) for offset, value in kick.latched.items() if self._latched.get(offset) != value]
        writes = [(self.register(offset), _word(value)) for offset, value in (*changed, (reg.PROG_KICK, 1))]
        return kick, writes

    def kicked(self, nodes: Mapping[Site, Node], now: float) -> None:
        """The kick of `next_kick` has been made: its signals are expected from now on."""
        assert self.round is not None
        kick = self.round.kicks.popleft()
        site = kick.node.site
        self._latched = kick.latched
        self._idle = False
        self.since = now
        self.round.made += 1
        self.round.busy.add(site)
        kick.node.kicked(kick.txn)
        for piece in kick.pieces:
            flight = Flight(piece, site)
            kick.node.expect(len(piece), now, flight)
            for other, signals in piece.arrivals.items():
                nodes[other].expect(signals, now, flight, arrivals=True)

    def _plan(self, nodes: Mapping[Site, Node]) -> Round:
        waiting = sorted((site for site, works in self._ready.items() if works), key=lambda s: self._served.get(s, 0))
        waiting = waiting[: self._limits.most_units(waiting)]
        # No round has more programs than slots.
        queues = [[work.left for work in islice(self._ready[site], self._limits.slots)] for site in waiting]
        kicks: list[Kick] = []
        content: list[bytes] = []
        first = 0
        for site, given in zip(waiting, allot(queues, self._limits.slots), strict=True):
            pieces = self._cut(site, given)
            if pieces:
                self.txn = (self.txn + 1) % TRANSACTIONS
                kick = Kick(nodes[site], first, self.txn, pieces)
                kicks.append(kick)
                words = [word for piece in pieces for word in piece.work.words[piece.first : piece.stop]]
                content.append(staged(words, kick.txn))
                first += kick.flits
                self._turn += 1
                self._served[site] = self._turn
        return Round(kicks, self._limits.credits(kick.node.site for kick in kicks), b"".join(content))

    def _cut(self, site: Site, slots: int) -> tuple[Piece, ...]:
        works, pieces = self._ready[site], list[Piece]()
        while slots:
            pieces.append(works[0].cut(slots))
            slots -= len(pieces[-1])
            if not works[0].left:
                works.popleft()
        return tuple(pieces)

    # Polling

    def watches_dispatch(self) -> bool:
        """Whether PROG_STAT is to be polled: kicks are left, or the credits are to be compared at the end."""
        return self.round is not None and self.round.made > 0

    def take(self, word: int, now: float) -> None:
        """PROG_STAT, read after the mirror words of the same poll."""
        status = status_of(word, self.mesh)
        if status != self.status:
            self.since = now
        self.status = status
        self._idle = not status.running

    def quiet(self, site: Site) -> None:
        """A unit has all its signals."""
        if self.round is not None:
            self.round.busy.discard(site)

    def finish(self, *, trusted: bool) -> None:
        """Ends the round if every kick has been made and is complete.

        Raises `UnitFault` where the credits tell that something else than completions was counted. Not so unless
        `trusted`: a unit that didn't answer in an earlier run may do it now.
        """
        now = self.round
        if now is None or now.kicks or now.busy:
            return
        missing = now.credits - now.made - self.status.credit
        if missing and trusted:
            if now.doubted:
                self._unpaid(missing, now)
            # It may have been an old answer: asked again, it has to differ.
            now.doubted = True
            return
        self.round = None

    def _unpaid(self, missing: int, ended: Round) -> None:
        if missing > 0:
            raise UnitFault(
                f"mesh {self.mesh}: {missing} of the signals in a round gave no credit back: {ended.credits} credits "
                f"less {ended.made} kicks should be left, and {self.status.credit} are. They were faults of "
                "units that completed more afterwards, which hides whose; or a write of the credits was lost"
            )
        raise DispatchError(
            f"mesh {self.mesh}: {self.status.credit} credits are left after a round that had {ended.credits}, less "
            f"{ended.made} kicks. Completions were counted that this dispatcher did not cause: give the card to one "
            "dispatcher, and run again"
        )


def _word(value: int) -> bytes:
    return value.to_bytes(8, "little")


def limits_of(machine: MachineSpec, sites: Iterable[Site], depths: Mapping[Site, int]) -> Limits:
    """The limits for rounds with these units; depths: of their queues, where they were found out.

    Raises `DispatchError` for a queue that is too short to be sent anything.
    """
    figures = machine.dispatch
    if figures.commands < _COMMANDS_A_ROUND + _COMMANDS_A_KICK:
        raise DispatchError(f"{machine.name} takes {figures.commands} commands a round, and one kick takes more")
    fifo = {site: depths.get(site, figures.instruction_fifo) for site in sites}
    for site, depth in fifo.items():
        if depth < 2:
            raise DispatchError(
                f"the unit at {site} queues {depth} instructions: a round has fewer kicks than credits and no more "
                "credits than that, so it needs 2"
            )
    return Limits(figures.staged_words, figures.commands, fifo)
