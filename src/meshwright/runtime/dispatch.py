"""`Dispatcher`: sends jobs to the units of a card and awaits them, all meshes together. See docs/ktpu/dispatch.md."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from meshwright.errors import ConnectionLost, DispatchError, TransportError, UnitTimeout, UnitWedged
from meshwright.ir.ids import ChipId
from meshwright.ir.records import Site
from meshwright.machine import MachineSpec
from meshwright.runtime.discovery import FoundUnit
from meshwright.runtime.dispatch_failures import CURE, Wedged, busy, standing, testimony
from meshwright.runtime.dispatch_jobs import Encoder, check_jobs, kind_at, named, sites_of
from meshwright.runtime.dispatch_mailbox import Mailboxes
from meshwright.runtime.dispatch_mirror import COUNT
from meshwright.runtime.dispatch_rounds import status_of
from meshwright.runtime.dispatch_run import Means, NoAnswer, Progress, Run
from meshwright.runtime.jobs import Job
from meshwright.runtime.transport import Transport
from meshwright.simulator import MachineFault
from meshwright.simulator import registers as reg

_FIRST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.1


class Dispatcher:
    """Runs jobs on the units of `machine` through `transport`. It is the card's only user, and not for two threads.

    timeout: seconds that a unit may make no progress. clock, sleep: what tells and passes them. units: what `discover`
    found, whose queues then bound the credits; else the machine description does. one_after_another: each job is sent
    when the one before it is complete, for comparison. verify: what host jobs write is read back and compared.

    `wedged`: units that stopped answering, or whole meshes; jobs for them are refused, and others run.

    Raises `DispatchError` for a timeout that isn't positive.
    """

    def __init__(
        self,
        transport: Transport,
        machine: MachineSpec,
        *,
        timeout: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        units: Sequence[FoundUnit] = (),
        one_after_another: bool = False,
        verify: bool = False,
    ) -> None:
        if not timeout > 0:
            raise DispatchError(f"a timeout of {timeout:g} s gives no unit a chance: give a positive one")
        depths = {Site(ChipId(unit.mesh), *unit.at): unit.inst_depth for unit in units}
        self._means = Means(
            transport,
            machine,
            timeout,
            clock,
            sleep,
            depths,
            known={},
            kicks={},
            encoder=Encoder(),
            one_after_another=one_after_another,
            verify=verify,
        )
        self.wedged: tuple[Wedged, ...] = ()
        self._left: dict[Site, int | None] = {}
        self._lost: str | None = None
        self._running = False

    def run(self, jobs: Sequence[Job], progress: Progress | None = None) -> None:
        """Runs jobs, and returns when all are complete.

        progress: called with (jobs complete, jobs in all) whenever there are more.

        Raises `DispatchError` for jobs that can't be run and for what goes wrong: `UnitTimeout`, `UnitFault`,
        `UnitWedged`, `ConnectionLost`, or itself where counts can't be right; `MachineFault` from a simulator, with the
        job as a note; and whatever a host job raises. What had been sent by then is awaited when `run` is called again,
        after an interruption (Ctrl-C) too.
        """
        if self._running:
            raise DispatchError("run was called while it runs: one run at a time; hand on all jobs together")
        check_jobs(jobs, self._means.machine)
        self._usable(jobs)
        self._running = True
        try:
            self._recover()
            self._usable(jobs)
            self._run(jobs, progress)
        except ConnectionLost:
            # Of another dispatcher, which a host job uses: it says what there is to say, and this transport is well.
            raise
        except TransportError as problem:
            raise self.lose(problem) from problem
        finally:
            self._running = False

    def _usable(self, jobs: Sequence[Job]) -> None:
        """Raises where work is refused before anything of it is sent."""
        if self._lost is not None:
            raise ConnectionLost(f"nothing can be sent any more: {self._lost}. Make another transport and Dispatcher")
        for at, job in enumerate(jobs):
            for site in sites_of([job]):
                for wedged in self.wedged:
                    if wedged.concerns(site):
                        raise UnitWedged(wedged.refusal(named(at, job), self._means.clock()))

    def _run(self, jobs: Sequence[Job], progress: Progress | None) -> None:
        meshes = frozenset(self._means.machine.mesh_ids)
        trusted = meshes - {wedged.mesh for wedged in self.wedged}
        run = Run(self._means, jobs, trusted, progress)
        try:
            run.go()
        except NoAnswer as silence:
            self._remember(run)
            raise self._timed_out(silence) from None
        except MachineFault as fault:
            self._remember(run)
            self._faulted(fault, run.concerned)
            raise
        except BaseException:
            self._remember(run)
            raise

    def _remember(self, run: Run) -> None:
        for left in run.left():
            self._left[left.site] = left.target

    # What went wrong

    def lose(self, problem: TransportError) -> ConnectionLost:
        """The transport has failed: the error for that."""
        self._lost = f"the transport failed ({problem})"
        return ConnectionLost(
            f"the transport failed, and what was under way on the card is not known: {problem}. No result of this run "
            "is to be used; make another transport and Dispatcher, on a card that is reset"
        )

    def _faulted(self, fault: MachineFault, concerned: Callable[[Site], str | None]) -> None:
        report = fault.report
        if report.at is None or report.mesh not in self._means.machine.mesh_ids:
            return
        site = Site(ChipId(report.mesh), *report.at)
        if (jobs := concerned(site)) is not None:
            fault.add_note(f"in {jobs}")
            self._wedge(site, f"the simulator stopped it: {report}")

    def _wedge(self, site: Site, why: str) -> None:
        kind = kind_at(self._means.machine, site) or "?"
        found = Wedged(int(site.chip), kind, (site.x, site.y), self._means.clock(), why)
        self.wedged = (*self.wedged, found)
        self._left.pop(site, None)

    def _wedge_mesh(self, mesh: int, why: str) -> None:
        self.wedged = (*self.wedged, Wedged(mesh, "mesh", None, self._means.clock(), why))
        for site in [site for site in self._left if site.chip == mesh]:
            del self._left[site]

    def _timed_out(self, silence: NoAnswer) -> UnitTimeout:
        seconds = f"{self._means.timeout:g} s"
        mailboxes = Mailboxes(self._means.transport)
        said = testimony(mailboxes, [node.site for node in silence.nodes])
        lines: list[str] = []
        for node in silence.nodes:
            lines.append(f"{node.label} made no progress for {seconds}: {standing(node)}; {said[node.site]}")
            self._wedge(node.site, f"it made no progress for {seconds} at {standing(node)}")
        for mesh in silence.stuck:
            status = mesh.status
            stuck = f"its dispatcher has {status.left} flits left and {status.credit} credits, and none comes back"
            lines.append(f"mesh {mesh.mesh}: {stuck}: all of the mesh is out of use")
            self._wedge_mesh(mesh.mesh, stuck)
        others = "" if silence.stuck else "; jobs for other units are still taken"
        return UnitTimeout("\n".join(lines) + f"\nTo use what hangs again, {CURE}{others}")

    # What an earlier run left

    def _recover(self) -> None:
        try:
            self._settle()
        except MachineFault as fault:
            self._faulted(fault, lambda site: "a job of a run that was given up" if site in self._left else None)
            raise

    def _settle(self) -> None:
        """Waits until the units that an earlier run left at work are through, or are out of use."""
        since: dict[Site, tuple[int, float]] = {}
        pause = _FIRST_PAUSE
        while self._left:
            words, running = self._standing()
            now = self._means.clock()
            for site, word in words.items():
                if site not in self._left:
                    # Its whole mesh went out of use a moment ago.
                    continue
                if site not in since or since[site][0] != word:
                    since[site] = word, now
                if self._quiet(site, word, running):
                    del self._left[site]
                elif now - since[site][1] > self._means.timeout:
                    self._give_up(site, running)
            if self._left:
                self._means.sleep(pause)
                pause = min(_LONGEST_PAUSE, 2 * pause)

    def _standing(self) -> tuple[dict[Site, int], set[int]]:
        """Words of the mirror for what an earlier run left, and the meshes whose dispatchers are at work."""
        transport, sites = self._means.transport, list(self._left)
        meshes = list(dict.fromkeys(int(site.chip) for site in sites))
        nodes = [transport.agents.register(site.chip, reg.node_status(site.x, site.y)) for site in sites]
        words = transport.poll([*nodes, *(transport.agents.register(mesh, reg.PROG_STAT) for mesh in meshes)])
        stats = zip(meshes, words[len(sites) :], strict=True)
        return dict(zip(sites, words, strict=False)), {mesh for mesh, word in stats if status_of(word, mesh).running}

    def _quiet(self, site: Site, word: int, running: set[int]) -> bool:
        if site.chip in running:
            return False
        target = self._left[site]
        if target is not None:
            return word >> 8 & COUNT - 1 == target
        # How much it was sent isn't known: it has to say itself that it is through.
        return busy(Mailboxes(self._means.transport), site) is False

    def _give_up(self, site: Site, running: set[int]) -> None:
        given = f"not become quiet within {self._means.timeout:g} s after a run that was given up"
        if site.chip in running:
            self._wedge_mesh(int(site.chip), f"its dispatcher has {given}")
        else:
            self._wedge(site, f"it has {given}")
