"""Connections that end, Ctrl-C, and what was written read back."""

import pytest
from tests.runtime import faulty
from tests.runtime.dispatch_rig import (
    CARD,
    MEMORY,
    Cut,
    Quick,
    Recorder,
    Sums,
    clusters,
    copy_job,
    cores,
    dispatching,
    gemms,
    hanging,
    host_copy,
    message_of,
    quick,
)
from tests.simulator.programs import fresh

from meshwright.errors import ConnectionLost, DispatchError, TransportError, UnitWedged
from meshwright.runtime.dispatch import Dispatcher
from meshwright.runtime.jobs import HostJob
from meshwright.runtime.transport import InProcess, stopped
from meshwright.simulator import Kind, MachineFault, Report
from meshwright.simulator import registers as reg
from meshwright.simulator.faults import raised

A, B = clusters(0)[:2]
CORE = cores(0)[0]


# Connections


def everything(card):
    """Work on units of two meshes and the host, several rounds deep."""
    one = Sums(A, 0, m=32, k=128, n=16)
    one.load(InProcess(card))
    there = one.product.at_c
    card.write_block(CARD.host_addr(1, 0), bytes(64))
    jobs = [
        one.job(),
        copy_job(CORE, there, MEMORY, words=4, after=[0]),
        host_copy(0, MEMORY, MEMORY + 256, 128, after=[1]),
        copy_job(cores(0)[1], MEMORY + 256, MEMORY + 512, words=4, after=[2]),
    ]
    return one, jobs


def calls_of_everything():
    card = fresh()
    recorder = Recorder(InProcess(card))
    _, jobs = everything(card)
    Dispatcher(recorder, CARD).run(jobs)
    return len(recorder.log)


CALLS = calls_of_everything()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(CALLS))
def test_a_lost_connection_is_one_error_and_later_runs_are_refused(at, after):
    card = fresh()
    _, jobs = everything(card)
    lost = TransportError("no answer within 5 s")
    dispatcher = dispatching(card, wrap=lambda transport: Cut(transport, at, lost, after))
    with pytest.raises(ConnectionLost) as error:
        dispatcher.run(jobs)
    assert str(error.value) == (
        "the transport failed, and what was under way on the card is not known: no answer within 5 s. No result of "
        "this run is to be used; make another transport and Dispatcher, on a card that is reset"
    )
    assert error.value.__cause__ is lost
    assert message_of(ConnectionLost, dispatcher, jobs) == (
        "nothing can be sent any more: the transport failed (no answer within 5 s). Make another transport and "
        "Dispatcher"
    )


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(CALLS))
def test_an_interruption_is_recovered_from(at, after):
    """Ctrl-C at any call, before it is carried out or after: the next run waits for what was sent, and is right."""
    card = fresh()
    one, jobs = everything(card)
    dispatcher = dispatching(card, wrap=lambda transport: Cut(transport, at, KeyboardInterrupt(), after))
    with pytest.raises(KeyboardInterrupt):
        dispatcher.run(jobs)
    dispatcher.run(jobs)
    assert one.right(card)
    moved = [card.read_block(CARD.host_addr(0, local), 128) for local in (one.product.at_c, MEMORY + 512)]
    assert moved[0] == moved[1]
    assert card.reports == []
    assert dispatcher.wedged == ()


def test_an_interruption_while_a_unit_hangs():
    """What it was sent is awaited, in vain: it is out of use, and work for others runs."""
    card = quick(MG=hanging(Quick, 0, (1, 1), 0))
    dispatcher = dispatching(card, wrap=lambda transport: Cut(transport, 3, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        dispatcher.run([gemms(A)])
    assert "it has not become quiet within 30 s after a run that was given up" in message_of(
        UnitWedged, dispatcher, [gemms(A)]
    )
    dispatcher.run([gemms(B)])


# What was written, read back


def test_what_the_host_writes_is_read_back():
    card = fresh()
    recorder = Recorder(InProcess(card))
    blocks = [(CARD.host_addr(mesh, 0), bytes(range(64))) for mesh in (0, 1)]
    jobs = [HostJob(f"to {address:#x}", (), lambda data, b=(address, content): [b]) for address, content in blocks]
    Dispatcher(recorder, CARD, verify=True).run([*jobs, HostJob("nothing", (), lambda data: ())])
    assert [name for name, _, _ in recorder.log] == ["submit", "collect"]


def test_what_reads_back_as_something_else():
    card = fresh()

    class Dropping(Recorder):
        def submit(self, writes):
            super().submit([(address, b"x" * 4 + data[4:]) for address, data in writes])

    dispatcher = Dispatcher(Dropping(InProcess(card)), CARD, verify=True)
    job = HostJob("load", (), lambda data: [(CARD.host_addr(0, 64), bytes(64))])
    assert message_of(DispatchError, dispatcher, [job]) == (
        "job 0, load: 4 of 64 bytes written at 0x10000000040 read back as something else, the first at 0x10000000040. "
        "The transport or the memory changed them; nothing that depends on them was sent"
    )


def test_a_timeout_has_to_be_positive():
    with pytest.raises(DispatchError) as error:
        Dispatcher(InProcess(fresh()), CARD, timeout=0)
    assert str(error.value) == "a timeout of 0 s gives no unit a chance: give a positive one"


# What is not known after a failure


def test_a_kick_that_was_interrupted_may_have_been_made():
    """It was, and the unit hangs: that is found out before anything else is sent, and costs nobody else anything."""
    card = quick(MG=hanging(Quick, 0, (1, 1), 0))
    dispatcher = dispatching(card, wrap=lambda transport: Cut(transport, 1, KeyboardInterrupt(), after=True))
    with pytest.raises(KeyboardInterrupt):
        dispatcher.run([gemms(A)])
    dispatcher.run([gemms(B)])
    assert [wedged.at for wedged in dispatcher.wedged] == [(1, 1)]


def test_a_kick_that_failed_may_have_been_made():
    card = quick(MG=hanging(Quick, 0, (1, 1), 0))

    class Faulting(Recorder):
        def submit(self, writes):
            super().submit(writes)
            if len(self.calls("submit")) == 1:
                raise stopped(raised(Report(Kind.UNPREDICTABLE, 0, "a kick")), len(writes) - 1, len(writes))

    dispatcher = dispatching(card, wrap=Faulting)
    with pytest.raises(MachineFault):
        dispatcher.run([gemms(A)])
    dispatcher.run([gemms(B)])
    assert [wedged.at for wedged in dispatcher.wedged] == [(1, 1)]


def test_counts_that_are_read_wrong_before_anything_is_sent():
    card = quick()
    reads = Recorder(InProcess(card))
    Dispatcher(reads, CARD).run([gemms(A, 5)])
    before = sum(len(asked) for _, asked, _ in reads.calls("poll"))
    dispatcher = dispatching(
        quick(), wrap=lambda transport: faulty.CorruptReads(transport, faulty.numbered(before), bit=9)
    )
    dispatcher.run([gemms(A, 5)])
    assert message_of(DispatchError, dispatcher, [gemms(A, 5)]) == (
        "MG (1, 1) of mesh 0 was left at 5 signals, and then read as 7 and 5 with nothing sent to it: somebody else "
        "uses it, or reads are answered wrongly. Give the card to one dispatcher"
    )


def test_flits_that_another_dispatcher_staged_are_not_taken_for_ones_own():
    card = quick()
    dispatching(card).run([gemms(A, 5, gm=1)])
    staging = InProcess(card).agents.register(0, reg.STAGE)
    dispatcher = dispatching(card, wrap=lambda transport: faulty.Drop(transport, faulty.at(staging)))
    assert message_of(DispatchError, dispatcher, [gemms(A, 5, gm=2)]) == (
        "MG (1, 1) of mesh 0 ended with that of kick 1, and it was sent kick 6, in job 0, gemms. It executed something "
        "else than it was sent: a write to the card was lost or changed. Nothing that it computed is to be trusted"
    )
