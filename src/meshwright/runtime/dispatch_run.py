"""One run of the dispatcher: what is ready is sent, what is outstanding is polled, until nothing is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from meshwright.errors import DispatchError
from meshwright.ir.records import Site
from meshwright.machine import MachineSpec
from meshwright.runtime.dispatch_jobs import TRANSACTIONS, Encoder, kind_at, named, sites_of, work_of
from meshwright.runtime.dispatch_mirror import Node, count_of
from meshwright.runtime.dispatch_moves import Moves
from meshwright.runtime.dispatch_order import Order
from meshwright.runtime.dispatch_rounds import Kick, MeshRounds, limits_of, status_of
from meshwright.runtime.jobs import Job, Span, UnitJob
from meshwright.runtime.transport import Bytes, Transport, carried_out
from meshwright.simulator import MachineFault
from meshwright.simulator import registers as reg

Progress = Callable[[int, int], None]
"""Called with how many jobs are complete, and how many there are."""

_EAGER_POLLS: Final = 8
"""Polls without news that follow each other at once."""
_FIRST_PAUSE: Final = 0.0005
_LONGEST_PAUSE: Final = 0.02


class Means(Struct, frozen=True):
    """What runs are made with; see `Dispatcher`.

    known: the mirror's counts as earlier runs left them. kicks: numbers of the last ones, by mesh.
    """

    transport: Transport
    machine: MachineSpec
    timeout: float
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    depths: Mapping[Site, int]
    known: dict[Site, int]
    kicks: dict[int, int]
    encoder: Encoder
    one_after_another: bool
    verify: bool


class Left(Struct, frozen=True):
    """A unit that a run ended without: it has work, or may have.

    target: the mirror's count when it has done what it was sent; None where that isn't known.
    """

    site: Site
    target: int | None


class NoAnswer(Exception):  # noqa: N818
    """A timeout on its way to the dispatcher, which says what there is to say; never leaves the room.

    nodes: units that made no progress in time. stuck: meshes whose dispatchers wait for credits.
    """

    def __init__(self, nodes: tuple[Node, ...], stuck: tuple[MeshRounds, ...]) -> None:
        super().__init__("no answer")
        self.nodes = nodes
        self.stuck = stuck


class Run:
    """`jobs` from the first sweep to the last. trusted: meshes on which no unit is out of use."""

    def __init__(self, means: Means, jobs: Sequence[Job], trusted: frozenset[int], progress: Progress | None) -> None:
        self._means = means
        self._jobs = jobs
        self._trusted = trusted
        self._progress = progress
        machine = means.machine
        slots = machine.dispatch.staged_words
        means.encoder.begin()
        self._works = {
            at: work_of(at, job, means.encoder.words(job.program), machine, slots)
            for at, job in enumerate(jobs)
            if isinstance(job, UnitJob)
        }
        self._sites = sites_of(jobs)
        self._nodes: dict[Site, Node] = {}
        self._meshes = {mesh: self._rounds_of(mesh) for mesh in dict.fromkeys(int(site.chip) for site in self._sites)}
        self._order = Order(jobs, one_after_another=means.one_after_another)
        self._moves = Moves(jobs, verify=means.verify)
        self._told = 0
        self._dull_polls = 0
        self._pause = _FIRST_PAUSE
        self._in_doubt: set[Site] = set()
        self._sending: list[tuple[int, MeshRounds, Kick]] = []

    def _rounds_of(self, mesh: int) -> MeshRounds:
        sites = [site for site in self._sites if site.chip == mesh]
        limits = limits_of(self._means.machine, sites, self._means.depths)
        return MeshRounds(mesh, limits, self._means.transport.agents, self._means.kicks.get(mesh, 0))

    # The loop

    def go(self) -> None:
        """Sweeps until every job is complete, then compares all counts once more.

        Whatever it raises, `left` then tells which units have work, or may have.
        """
        self._begin()
        try:
            self._sweeps()
        finally:
            self._means.kicks.update({mesh.mesh: mesh.txn for mesh in self._meshes.values()})
        self._end()

    def _sweeps(self) -> None:
        # Of a round whose credits don't add up, the last poll is not the last word.
        while not self._order.finished or any(mesh.round is not None for mesh in self._meshes.values()):
            self._release()
            moved = self._write()
            moved |= self._read()
            moved |= self._poll()
            if not moved and not self._order.finished:
                left = ", ".join(named(at, self._jobs[at]) for at in self._order.left)
                raise DispatchError(f"a defect of the dispatcher: nothing can be sent, and these are left: {left}")
            self._tell()

    def left(self) -> list[Left]:
        """Units that have work, or may have."""
        # An interruption can come between a kick and the note of it.
        for _, _, kick in self._sending:
            self._doubt(kick)
        return [
            Left(site, None if site in self._in_doubt else node.target)
            for site, node in self._nodes.items()
            if site in self._in_doubt or not node.quiet
        ]

    def concerned(self, site: Site) -> str | None:
        """The jobs that a unit has, as messages name them; None where it has none."""
        node = self._nodes.get(site)
        return None if node is None or not node.flights else node.works()

    def _begin(self) -> None:
        """Counts of all units before anything is sent; `DispatchError` where a dispatcher is at work already."""
        if not self._sites:
            return
        known = self._means.known
        words = self._counts()
        machine = self._means.machine
        self._nodes = {site: Node(site, kind_at(machine, site) or "?", word) for site, word in words.items()}
        for mesh in self._meshes.values():
            if mesh.mesh not in self._means.kicks:
                # Not the numbers that an earlier program began with, whose flits may still be staged.
                mesh.txn = sum(node.base for site, node in self._nodes.items() if site.chip == mesh.mesh) % TRANSACTIONS
        changed = [node for site, node in self._nodes.items() if known.get(site, node.base) != node.base]
        # Somebody else may have used the unit, which is all right, or an old answer came: a second reading tells.
        again = self._counts() if changed else {}
        for node in changed:
            if again[node.site] != words[node.site]:
                raise DispatchError(
                    f"{node.label} was left at {known[node.site]} signals, and then read as {node.base} and "
                    f"{count_of(again[node.site], node)} with nothing sent to it: somebody else uses it, or reads are "
                    "answered wrongly. Give the card to one dispatcher"
                )

    def _counts(self) -> dict[Site, int]:
        """The mirror's words of all units; every dispatcher has nothing to do."""
        meshes = list(self._meshes.values())
        addresses = [self._mirror(site) for site in self._sites]
        found = self._means.transport.poll([*addresses, *(mesh.register(reg.PROG_STAT) for mesh in meshes)])
        for mesh, word in zip(meshes, found[len(addresses) :], strict=True):
            if (status := status_of(word, mesh.mesh)).running:
                raise DispatchError(
                    f"the dispatcher of mesh {mesh.mesh} is at work, with {status.left} flits left and "
                    f"{status.credit} credits, and this program sent it nothing: somebody else uses the card, or an "
                    "earlier program stopped in the middle. Wait for it, or reset the card"
                )
        return dict(zip(self._sites, found, strict=False))

    def _mirror(self, site: Site) -> int:
        return self._means.transport.agents.register(site.chip, reg.node_status(site.x, site.y))

    def _end(self) -> None:
        """A signal too many that came after its round was complete is seen here at the latest."""
        if self._sites:
            now = self._means.clock()
            for site, word in self._counts().items():
                self._taken(self._nodes[site], word, now)
                self._means.known[site] = self._nodes[site].target

    def _tell(self) -> None:
        if self._progress is not None and self._order.complete != self._told:
            self._told = self._order.complete
            self._progress(self._told, len(self._jobs))

    def _release(self) -> None:
        while released := self._order.for_units():
            for at in released:
                work = self._works[at]
                if work.left:
                    self._meshes[work.job.site.chip].put(work)
                else:
                    self._order.done(at)
        self._moves.begin(self._order.for_host())

    # Writing

    def _write(self) -> bool:
        """Everything that may be written, in one call: what the host moves, then rounds, then the kicks.

        Kicks come last, so that one that is not reached is known not to have been made.
        """
        moved, moving = self._moves.writes()
        writes: list[tuple[int, Bytes]] = [*moving]
        for mesh in self._meshes.values():
            writes += mesh.set_up(self._nodes)
        kicks: list[tuple[int, MeshRounds, Kick]] = []
        for mesh in self._meshes.values():
            if (found := mesh.next_kick()) is not None:
                writes += found[1]
                kicks.append((len(writes) - 1, mesh, found[0]))
        if not writes and not moved:
            return False
        if writes:
            self._submit(writes, kicks)
        for at in self._moves.written(moved):
            self._order.done(at)
        return True

    def _submit(self, writes: list[tuple[int, Bytes]], kicks: list[tuple[int, MeshRounds, Kick]]) -> None:
        self._sending = kicks
        try:
            self._means.transport.submit(writes)
        except Exception as problem:
            # Of whatever kind it is: how far the call came is taken note of, and it goes on.
            done = carried_out(problem)
            if done is not None:
                self._kicked([kick for kick in kicks if kick[0] < done])
                self._sending = [kick for kick in kicks if kick[0] == done]
            if isinstance(problem, MachineFault) and (job := self._moves.writer(done)) is not None:
                problem.add_note(f"while the host wrote for {job}")
            raise
        self._kicked(kicks)
        self._sending = []

    def _kicked(self, kicks: Sequence[tuple[int, MeshRounds, Kick]]) -> None:
        for _, mesh, _ in kicks:
            mesh.kicked(self._nodes, self._means.clock())

    def _doubt(self, kick: Kick) -> None:
        self._in_doubt |= {kick.node.site, *(site for piece in kick.pieces for site in piece.arrivals)}

    # Reading

    def _read(self) -> bool:
        spans = self._moves.reads()
        if spans:
            data = self._collect(spans)
            for at in self._moves.read(data):
                self._order.done(at)
        return self._moves.make() or bool(spans)

    def _collect(self, spans: Sequence[Span]) -> Sequence[bytes]:
        try:
            return self._means.transport.collect(spans)
        except MachineFault as fault:
            if fault.report.at is None:
                fault.add_note(f"while the host read for {self._moves.readers()}")
            raise

    # Polling

    def _poll(self) -> bool:
        """The units that have work, then the dispatchers: what those say is not older than what the units say."""
        nodes = [node for node in self._nodes.values() if not node.quiet]
        meshes = [mesh for mesh in self._meshes.values() if mesh.watches_dispatch()]
        if not nodes and not meshes:
            return False
        addresses = [self._mirror(node.site) for node in nodes]
        words = self._means.transport.poll([*addresses, *(mesh.register(reg.PROG_STAT) for mesh in meshes)])
        now = self._means.clock()
        before = [mesh.status for mesh in meshes]
        news = [self._taken(node, word, now) for node, word in zip(nodes, words, strict=False)]
        for mesh, word in zip(meshes, words[len(nodes) :], strict=True):
            mesh.take(word, now)
        for node in nodes:
            if node.quiet:
                self._landed(node)
        for mesh in meshes:
            mesh.finish(trusted=mesh.mesh in self._trusted)
        self._wait(any(news) or before != [mesh.status for mesh in meshes], now)
        return True

    def _taken(self, node: Node, word: int, now: float) -> bool:
        try:
            return node.take(word, now)
        except DispatchError:
            self._in_doubt.add(node.site)
            raise

    def _landed(self, node: Node) -> None:
        self._meshes[node.site.chip].quiet(node.site)
        for piece in node.landed():
            work = piece.work
            work.flying -= 1
            if work.complete:
                self._order.done(work.position)

    def _wait(self, news: bool, now: float) -> None:
        """Raises `NoAnswer` where somebody has taken too long; else pauses, the longer the less there is to see."""
        late = [n for n in self._nodes.values() if not n.quiet and now - n.since > self._means.timeout]
        running = [m for m in self._meshes.values() if m.round is not None and m.status.running]
        if late or any(now - mesh.since > self._means.timeout for mesh in running):
            # Where a unit is late and its dispatcher runs, the unit has the credits that this waits for.
            silent = {node.site.chip for node in late}
            stuck = (m for m in running if m.mesh in silent or now - m.since > self._means.timeout)
            raise NoAnswer(tuple(late), tuple(stuck))
        if news:
            self._dull_polls, self._pause = 0, _FIRST_PAUSE
            return
        self._dull_polls += 1
        if self._dull_polls > _EAGER_POLLS:
            self._means.sleep(self._pause)
            self._pause = min(_LONGEST_PAUSE, 2 * self._pause)
