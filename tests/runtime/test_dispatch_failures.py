"""Units that hang, fault or count wrongly, simulators that raise, connections that end, and Ctrl-C."""

import msgspec
import pytest
from tests.runtime.dispatch_rig import (
    CARD,
    MEMORY,
    Clock,
    Cut,
    Quick,
    Recorder,
    Sums,
    arrival,
    clusters,
    cores,
    dispatching,
    gemms,
    hanging,
    host_copy,
    message_of,
    quick,
    sent,
)
from tests.simulator.programs import fresh

from meshwright.errors import DispatchError, UnitFault, UnitTimeout, UnitWedged
from meshwright.machine.figures import DispatchSpec
from meshwright.runtime.dispatch import Dispatcher
from meshwright.runtime.dispatch_mirror import fault_name
from meshwright.runtime.jobs import HostJob, UnitJob
from meshwright.runtime.transport import InProcess, stopped
from meshwright.simulator import Kind, MachineFault, Report, Undefined
from meshwright.simulator import registers as reg
from meshwright.simulator.faults import raised
from meshwright.simulator.ordering import Event
from meshwright.simulator.unit import Signal
from meshwright.simulator.vector_core import Fault
from meshwright.targets.ktpu.isa import Drain, Fill, Program, Run, load_code
from meshwright.targets.ktpu.isa import vector as isa

A, B, C = clusters(0)[:3]
FAR = clusters(1)[0]
CORE = cores(0)[0]


# Units that never answer

UNREAD = (
    "its counters can't be read (not modelled: mesh 0, agent [host write of 8 bytes at 0x800140]: control register 2 "
    "of MG (1, 1) of mesh 0: it counts cycles)"
)


def test_a_unit_that_never_answers():
    card = quick(MG=hanging(Quick, 0, (1, 1), 4))
    dispatcher = dispatching(card)
    jobs = [gemms(A, 3, "first"), gemms(A, 3, "second", gm=7), gemms(B, 2, "other")]
    assert message_of(UnitTimeout, dispatcher, jobs) == (
        "MG (1, 1) of mesh 0 made no progress for 30 s: job 1, second, instruction 1 of 3, `GEMM gm=7` (4 of 6 words "
        "of this round are counted); it says that it is busy, with room for 511 more instructions, " + UNREAD + "\n"
        "To use what hangs again, reset or reprogram the card, and make another Dispatcher; jobs for other units are "
        "still taken"
    )
    (wedged,) = dispatcher.wedged
    assert (wedged.mesh, wedged.kind, wedged.at) == (0, "MG", (1, 1))


def test_work_for_a_unit_that_hangs_is_refused_at_once_and_other_work_runs():
    card = quick(MG=hanging(Quick, 0, (1, 1), 0))
    recorder = Recorder(InProcess(card))
    clock = Clock()
    dispatcher = Dispatcher(recorder, CARD, clock=clock, sleep=clock.sleep)
    message_of(UnitTimeout, dispatcher, [gemms(A)])
    clock.now += 12
    recorder.log.clear()
    assert message_of(UnitWedged, dispatcher, [gemms(B), gemms(A, what="again")]) == (
        "job 1, again, needs MG (1, 1) of mesh 0, which has been out of use for 12.0 s: it made no progress for 30 s "
        "at job 0, gemms, instruction 0 of 1, `GEMM` (0 of 1 words of this round are counted). To use it again, "
        "reset or reprogram the card, and make another Dispatcher; until then, place this work elsewhere"
    )
    sends = UnitJob(B, Program("MG", (sent(B, A),)), "send", (), (arrival(A),))
    assert "job 0, send, needs MG (1, 1) of mesh 0, which" in message_of(UnitWedged, dispatcher, [sends])
    assert recorder.log == []
    done = []
    dispatcher.run([gemms(B, 200), gemms(C, 3), gemms(FAR, 5)], lambda *now: done.append(now))
    assert done[-1] == (3, 3)


def test_a_unit_is_given_its_time_from_its_last_completion():
    """The unit hangs in its second window, long after it was first kicked."""
    card = quick(MG=hanging(Quick, 0, (1, 1), 150))
    clock = Clock(tick=1.0)
    dispatcher = Dispatcher(InProcess(card), CARD, timeout=30, clock=clock, sleep=clock.sleep)
    message = message_of(UnitTimeout, dispatcher, [gemms(A, 200)])
    assert "job 0, gemms, instruction 150 of 200, `GEMM` (22 of 72 words of this round are counted)" in message
    assert 30 < clock.now < 40


def test_a_fill_that_real_clusters_wait_for_for_ever():
    card = fresh()
    job = UnitJob(A, Program("MG", (Fill(addr=CARD.global_addr(0, 0), n=0),)), "fill")
    assert "job 0, fill, instruction 0 of 1, `FILL`" in message_of(UnitTimeout, dispatching(card), [job])


def test_a_run_that_never_halts():
    card = fresh()
    job = UnitJob(CORE, Program("VC", (*load_code([isa.Barrier()] * 512), Run())), "run")
    message = message_of(UnitTimeout, dispatching(card, timeout=2), [job])
    assert message.startswith(
        "VC (1, 0) of mesh 0 made no progress for 2 s: job 0, run, instruction 512 of 513, `RUN pc=0` (0 of 1 words of "
        "this round are counted); it says that it is busy"
    )


def test_an_acknowledgement_that_never_comes():
    """The receiver takes the burst and says nothing, as after one that it rejected."""

    class Silent(Quick):
        acknowledges_rejected = False

        def send(self, word, issue):
            pass

    dispatcher = dispatching(quick(MG=Silent))
    job = UnitJob(B, Program("MG", (sent(B, A),)), "send", (), (arrival(A),))
    message = message_of(UnitTimeout, dispatcher, [job])
    assert message.startswith(
        "MG (1, 1) of mesh 0 made no progress for 30 s: acknowledgements of job 0, send, from (1, 2) of mesh 0 (1 are "
        "expected); it says that it is not busy, with room for 512 more instructions"
    )


def test_credits_that_never_come_back_take_the_whole_mesh():
    figures = DispatchSpec("a test", staged_words=128, commands=128, instruction_fifo=8)
    machine = msgspec.structs.replace(CARD, maybe_dispatch=figures)
    card = quick(machine, MG=hanging(Quick, 0, (1, 1), 3))
    dispatcher = dispatching(card, machine)
    message = message_of(UnitTimeout, dispatcher, [gemms(A, 20), gemms(FAR, 20)])
    head, mesh, cure = message.split("\n")
    assert head.startswith(
        "MG (1, 1) of mesh 0 made no progress for 30 s: job 0, gemms, instruction 3 of 20, `GEMM` (3 of 20 words of "
        "this round are counted); its status can't be read (the mailbox of mesh 0 can't be used: its agent dispatches"
    )
    assert mesh == (
        "mesh 0: its dispatcher has 9 flits left and 0 credits, and none comes back: all of the mesh is out of use"
    )
    assert cure == "To use what hangs again, reset or reprogram the card, and make another Dispatcher"
    assert message_of(UnitWedged, dispatcher, [gemms(B, what="next")]) == (
        "job 0, next, needs mesh 0, which has been out of use for 0.0 s: its dispatcher has 9 flits left and 0 "
        "credits, and none comes back. To use it again, reset or reprogram the card, and make another Dispatcher; "
        "until then, place this work elsewhere"
    )
    dispatcher.run([gemms(FAR, 20)])


def test_several_units_that_hang_at_once():
    def make(setting):
        unit = Quick(setting)
        unit.hang = 1 if setting.at == (1, 2) else None
        return unit

    dispatcher = dispatching(quick(MG=make))
    message = message_of(UnitTimeout, dispatcher, [gemms(B, 2), gemms(clusters(2)[1], 2), gemms(A, 2)])
    silent = [line.split(" made")[0] for line in message.split("\n")[:2]]
    assert silent == [
        "MG (1, 2) of mesh 0",
        "MG (1, 2) of mesh 2",
    ]
    assert len(dispatcher.wedged) == 2


# Faults


def faulting(*code):
    return (*load_code((*code, isa.Halt())), Run())


BAD = faulting(isa.SetImmediate(imm=0), isa.SetLength(va_sreg=0))
GOOD = faulting(isa.Barrier())


def test_a_fault_is_named():
    dispatcher = dispatching(fresh())
    bad = UnitJob(CORE, Program("VC", BAD), "softmax")
    assert message_of(UnitFault, dispatcher, [bad]) == (
        "VC (1, 0) of mesh 0 stopped with fault 7 (VL, a vector length of 0 or more than 128) in job 0, softmax"
    )
    dispatcher.run([UnitJob(CORE, Program("VC", GOOD), "next")])


def test_every_fault_of_a_vector_core_has_its_name():
    for fault in Fault:
        assert fault_name("VC", fault).startswith(f"fault {fault.value} ({fault.name}, ")
    assert (fault_name("VC", 10), fault_name("MG", 1)) == ("fault 10", "fault 1")


def test_a_fault_that_later_completions_hide():
    """The mirror has only the last signal; that a fault gives no credit back tells."""
    dispatcher = dispatching(fresh())
    hidden = UnitJob(CORE, Program("VC", (*BAD, *GOOD)), "softmax")
    assert message_of(UnitFault, dispatcher, [hidden]) == (
        "mesh 0: 1 of the signals in a round gave no credit back: 512 credits less 1 kicks should be left, and 510 "
        "are. They were faults of units that completed more afterwards, which hides whose; or a write of the credits "
        "was lost"
    )
    dispatcher.run([UnitJob(CORE, Program("VC", GOOD), "next")])


def signalling(code):
    """Quick clusters whose first word ends with another signal."""

    class Signals(Quick):
        def execute(self, queued, event):
            self.setting.wires.agent.signal(self.setting.at, code, 5, event)
            return super().execute(queued, event)

    return Signals


def test_a_signal_that_was_counted_twice():
    dispatcher = dispatching(quick(MG=signalling(Signal.INST_COMPLETE)))
    assert message_of(DispatchError, dispatcher, [gemms(A)]) == (
        "MG (1, 1) of mesh 0 counts 2 signals since the run began, and 1 are expected at most, 0 of which had come, in "
        "job 0, gemms. A signal was counted twice, a kick was carried out twice, or somebody else uses this unit: "
        "nothing that it computed is to be trusted. Give the card to one dispatcher, and run again"
    )
    assert "MG (1, 1) of mesh 0 counts 2 signals" in message_of(DispatchError, dispatcher, [gemms(A)])


def test_somebody_else_uses_the_mesh():
    """Another host's completions give credits back that this one didn't spend."""
    card = quick()

    class Meddling(Recorder):
        def submit(self, writes):
            super().submit(writes)
            card.mesh(0).agent.dispatcher.credit += 3

    dispatcher = dispatching(card, wrap=Meddling)
    assert message_of(DispatchError, dispatcher, [gemms(A)]) == (
        "mesh 0: 514 credits are left after a round that had 512, less 1 kicks. Completions were counted that this "
        "dispatcher did not cause: give the card to one dispatcher, and run again"
    )


def test_a_signal_that_comes_after_its_round():
    card = quick()

    class Late(Recorder):
        def poll(self, addresses):
            found = super().poll(addresses)
            if len(self.calls("poll")) == 2:
                card.mesh(0).agent.signal((1, 1), 0, 0, Event("nobody", None), credited=False)
            return found

    dispatcher = dispatching(card, wrap=Late)
    assert "MG (1, 1) of mesh 0 counts 2 signals since the run began" in message_of(
        DispatchError, dispatcher, [gemms(A)]
    )


def test_a_dispatcher_that_is_at_work_already():
    card = quick()
    card.write64(card.control(0, reg.STAGE), 0)
    card.mesh(0).agent.dispatcher._kick = object.__new__(type("Kick", (), {"left": 5}))
    dispatcher = dispatching(card)
    assert message_of(DispatchError, dispatcher, [gemms(A)]) == (
        "the dispatcher of mesh 0 is at work, with 5 flits left and 0 credits, and this program sent it nothing: "
        "somebody else uses the card, or an earlier program stopped in the middle. Wait for it, or reset the card"
    )


# A simulator that raises


def test_a_fault_of_the_simulator_comes_through_with_its_job():
    card = fresh()
    dispatcher = dispatching(card)
    drain = UnitJob(A, Program("MG", (Drain(addr=CARD.global_addr(0, 0), n=1),)), "drain")
    with pytest.raises(Undefined) as error:
        dispatcher.run([gemms_of(B), drain])
    assert error.value.report in card.reports
    assert error.value.__notes__ == ["in job 1, drain"]
    assert "needs MG (1, 1) of mesh 0, which has been out of use for" in message_of(UnitWedged, dispatcher, [drain])
    one = Sums(B, 0, m=8, k=32, n=8)
    one.load(InProcess(card))
    dispatcher.run([one.job()])
    assert one.right(card)


def gemms_of(where):
    return UnitJob(where, Program("MG", ()), "nothing")


def test_a_fault_at_a_read_of_the_host_leaves_units_as_they_are():
    card = fresh()
    one = Sums(A, 0)
    one.load(InProcess(card))
    dispatcher = dispatching(card)
    with pytest.raises(Undefined) as error:
        dispatcher.run([one.job(), host_copy(0, MEMORY, 0, 64, "early")])
    assert error.value.__notes__ == ["while the host read for job 1, early"]
    dispatcher.run([one.job()])
    assert one.right(card)
    assert dispatcher.wedged == ()


@pytest.mark.parametrize(("number", "note"), [(1, "while the host wrote for job 2, late"), (9, None)])
def test_a_fault_at_a_write_of_the_host(number, note):
    card = quick()

    class Faulting(Recorder):
        def submit(self, writes):
            if len(self.calls("submit")) == 1:
                self.log.append(("submit", (), None))
                self.transport.submit(writes[:number])
                raise stopped(raised(Report(Kind.UNPREDICTABLE, 0, "a race")), number, len(writes))
            super().submit(writes)

    card.write_block(CARD.host_addr(0, 0), bytes(256))
    dispatcher = dispatching(card, wrap=Faulting)
    copies = [host_copy(0, 0, 64 * at, 64, what) for at, what in ((1, "early"), (2, "late"))]
    jobs = [gemms(A, 100), *copies, gemms(B, 100), gemms(C, 100)]
    with pytest.raises(MachineFault) as error:
        dispatcher.run(jobs)
    assert error.value.__notes__[1:] == ([note] if note else [])
    dispatcher.run(jobs)
    assert dispatcher.wedged == ()


def test_a_fault_of_what_an_interrupted_run_left():
    card = fresh()
    drain = UnitJob(A, Program("MG", (Drain(addr=CARD.global_addr(0, 0), n=1),)), "drain")
    dispatcher = dispatching(card, wrap=lambda transport: Cut(transport, 2, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        dispatcher.run([drain])
    with pytest.raises(Undefined) as error:
        dispatcher.run([])
    assert error.value.__notes__ == ["in a job of a run that was given up"]
    dispatcher.run([UnitJob(B, Program("MG", ()), "nothing")])
    assert "needs MG (1, 1) of mesh 0, which has been out of use" in message_of(UnitWedged, dispatcher, [drain])


def test_a_unit_that_hangs_while_others_go_on():
    """Its time is up when it is, however busy the others are."""
    card = quick(MG=hanging(Quick, 0, (1, 1), 0))
    clock = Clock(tick=1)
    dispatcher = Dispatcher(InProcess(card), CARD, timeout=30, clock=clock, sleep=clock.sleep)
    with pytest.raises(UnitTimeout):
        dispatcher.run([gemms(A), *(gemms(FAR, 100) for _ in range(200))])
    assert clock.now < 100


def test_an_interruption_between_a_kick_and_its_note():
    card = fresh()
    one = Sums(A, 0)
    one.load(InProcess(card))

    class Interrupted(Clock):
        def __call__(self):
            if self.now == 0 and card.mesh(0).agent.dispatcher.running:
                self.now = 1
                raise KeyboardInterrupt
            return self.now

    clock = Interrupted()
    dispatcher = Dispatcher(InProcess(card), CARD, clock=clock, sleep=clock.sleep)
    with pytest.raises(KeyboardInterrupt):
        dispatcher.run([one.job()])
    dispatcher.run([one.job()])
    assert one.right(card)
    assert dispatcher.wedged == ()


def test_what_a_host_job_raises_comes_through():
    dispatcher = dispatching(quick())

    def make(data):
        raise KeyError("x")

    with pytest.raises(KeyError) as error:
        dispatcher.run([gemms(A, 100), HostJob("sums", (), make)])
    assert error.value.__notes__ == ["in job 1, sums, which makes what the host writes"]
    dispatcher.run([gemms(A, 100)])
