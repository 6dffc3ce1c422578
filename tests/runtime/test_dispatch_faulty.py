"""Messages that are lost, repeated, late, old or changed: an error, in bounded time, or the right result."""

import contextlib
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from tests.runtime import faulty
from tests.runtime.dispatch_rig import (
    CARD,
    MEMORY,
    Clock,
    Quick,
    QuickCore,
    Recorder,
    Sums,
    clusters,
    copy_job,
    cores,
    host_copy,
)
from tests.runtime.transport_rig import serving
from tests.simulator.programs import fresh

from meshwright.errors import ConnectionLost, DispatchError, UnitTimeout
from meshwright.runtime.dispatch import Dispatcher
from meshwright.runtime.jobs import HostJob, UnitJob
from meshwright.runtime.transport import InProcess
from meshwright.runtime.transport_socket import Remote
from meshwright.simulator import Card, MachineFault
from meshwright.simulator import registers as reg
from meshwright.targets.ktpu.isa import Gemm, Program

A, B = clusters(0)[:2]
CORE, OTHER_CORE = cores(0)


class Everything:
    """Work for clusters, vector cores and the host, two rounds deep, on a fresh card; whether it is right."""

    def __init__(self):
        self.card = fresh()
        self.sums = [Sums(A, 0, 1, m=40, k=128, n=16), Sums(B, 0x10_0000, 2, m=32, k=128, n=16)]
        for one in self.sums:
            one.load(InProcess(self.card))
        self.card.write_block(CARD.host_addr(0, MEMORY + 0x800), bytes(128))
        there = self.sums[0].product.at_c
        self.jobs = [
            *(one.job() for one in self.sums),
            copy_job(CORE, there, MEMORY, words=4, after=[0]),
            host_copy(0, MEMORY, MEMORY + 0x800, 128, after=[2]),
            copy_job(OTHER_CORE, MEMORY + 0x800, MEMORY + 0x1000, words=4, after=[3]),
        ]

    def right(self):
        there = self.sums[0].product.at_c
        copied = [self.card.read_block(CARD.host_addr(0, at), 128) for at in (there, MEMORY + 0x800, MEMORY + 0x1000)]
        return all(one.right(self.card) for one in self.sums) and len(set(copied)) == 1


def accesses():
    """How many writes and reads it takes, and which writes are of what."""
    work = Everything()
    recorder = Recorder(InProcess(work.card))
    Dispatcher(recorder, CARD, verify=True).run(work.jobs)
    assert work.right()
    assert len([1 for _, _, offset, _ in recorder.registers() if offset == reg.PROG_CRED]) == 4
    reads = sum(len(asked) for name, asked, _ in recorder.log if name != "submit")
    writes = [write for _, asked, _ in recorder.calls("submit") for write in asked]
    return [recorder.placed(address) for address, _ in writes], reads


WRITES, READS = accesses()
CONTROL = [at for at, place in enumerate(WRITES) if place is not None and place[1] < reg.STAGE]
BOUND = 10_000
"""Polls after which something is taken to hang."""


def outcome(wrap):
    """ "right", or the name of the error; nothing wrong is taken for right, and nothing goes on for ever."""
    work = Everything()
    clock = Clock(tick=0.01)
    spoiled = wrap(InProcess(work.card))
    dispatcher = Dispatcher(spoiled, CARD, timeout=2, clock=clock, sleep=clock.sleep, verify=True)
    try:
        dispatcher.run(work.jobs)
    except (DispatchError, MachineFault) as error:
        assert clock.now < 60
        return type(error).__name__
    assert clock.now < 60
    assert work.right()
    assert spoiled.spoiled
    return "right"


@pytest.mark.parametrize("number", range(len(WRITES)))
def test_a_lost_write(number):
    """Any: a register, staging memory, or memory, is missed; but for slot 0 where the card begins with that anyway."""
    found = outcome(lambda transport: faulty.Drop(transport, faulty.numbered(number)))
    first = [place and place[1] for place in WRITES].index(reg.PROG_BASE)
    assert (found == "right") == (number == first)


@pytest.mark.parametrize("number", range(len(WRITES)))
def test_a_write_that_is_carried_out_twice(number):
    found = outcome(lambda transport: faulty.Duplicate(transport, faulty.numbered(number)))
    if WRITES[number] is None or WRITES[number][1] != reg.PROG_KICK:
        assert found == "right"


@pytest.mark.parametrize("number", CONTROL)
@pytest.mark.parametrize("seed", range(3))
def test_a_turned_bit_in_a_register_that_is_written(number, seed):
    outcome(lambda transport: faulty.CorruptWrites(transport, faulty.numbered(number), seed=seed))


@pytest.mark.parametrize("bit", [*range(256, 288, 3), 259, 267, 271])
def test_a_turned_bit_in_the_header_of_a_staged_flit(bit):
    """Of the last flit of the first kick; the dispatcher of the card writes both places itself."""
    staging = next(at for at, place in enumerate(WRITES) if place is not None and place[1] >= reg.STAGE)
    slot = 128 - 1
    found = outcome(lambda transport: faulty.CorruptWrites(transport, faulty.numbered(staging), bit=slot * 320 + bit))
    assert (found == "right") == (bit >= 272 or bit < 259)


@pytest.mark.parametrize("number", range(READS))
def test_a_read_that_answers_what_it_answered_before(number):
    assert outcome_of_read(lambda transport: faulty.Stale(transport, faulty.numbered(number))) == "right"


def outcome_of_read(wrap):
    """As `outcome`; the read may be one that isn't spoiled, such as a first one."""

    class Named:
        def __init__(self, transport):
            self.transport, self.spoiled = wrap(transport), [None]

        def __getattr__(self, name):
            return getattr(self.transport, name)

    return outcome(Named)


def memory_free(condition):
    """Of registers only: nothing tells a changed word of memory from a right one."""
    return faulty.every(lambda access: access.address >> CARD.address.host_window_shift == 0, condition)


@pytest.mark.parametrize("number", range(READS))
@pytest.mark.parametrize("bit", [0, 1, 8, 9, 12, 23, 30, 56, 58, 63])
def test_a_turned_bit_in_a_register_that_is_read(number, bit):
    outcome_of_read(lambda transport: faulty.CorruptReads(transport, memory_free(faulty.numbered(number)), bit=bit))


@pytest.mark.parametrize("seed", range(20))
def test_many_old_answers(seed):
    """Half of the reads of the mirror are old; completions come when they come, and everything is right."""
    nodes = [InProcess(fresh()).agents.register(0, reg.node_status(x, y)) for x in range(4) for y in range(5)]
    work = faulty.every(faulty.at(*nodes), faulty.chance(seed, 0.5))
    assert outcome(lambda transport: faulty.Stale(transport, work)) == "right"


def test_late_answers():
    found = outcome(lambda transport: faulty.Delay(transport, faulty.chance(1, 0.2), 0.002))
    assert found == "right"


@pytest.mark.parametrize("seed", range(30))
def test_anything_at_once(seed):
    """Lost and repeated registers, old answers and turned bits, a few of each."""

    def wrap(transport):
        registers = memory_free(faulty.chance(seed, 0.02))
        transport = faulty.Drop(transport, memory_free(faulty.chance(seed + 1000, 0.02)))
        transport = faulty.Duplicate(transport, memory_free(faulty.chance(seed + 2000, 0.02)))
        transport = faulty.Stale(transport, memory_free(faulty.chance(seed + 3000, 0.05)))
        return faulty.CorruptReads(transport, registers, seed=seed)

    outcome_of_read(wrap)


@pytest.mark.parametrize("call", range(0, 40, 3))
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_connection_that_ends_in_the_middle_of_a_batch(call, after):
    """`ConnectionLost` where it ended before the work did, and else the right result."""
    work = Everything()
    ending = faulty.Disconnect(InProcess(work.card), call, after)
    dispatcher = Dispatcher(ending, CARD)
    try:
        dispatcher.run(work.jobs)
    except ConnectionLost:
        assert ending.calls == call + 1
    else:
        assert ending.calls <= call
        assert work.right()


# A simulator in another process


SERVER = """
import sys
from meshwright.machine import load
from meshwright.runtime.transport import InProcess
from meshwright.runtime.transport_socket import Server
from meshwright.simulator import Card
machine = load("ktpu-v13p")
server = Server(InProcess(Card(machine)), machine, sys.argv[1])
print("ready", flush=True)
server.serve()
"""


@contextlib.contextmanager
def process(address):
    with subprocess.Popen([sys.executable, "-c", SERVER, address], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout.readline() == "ready\n"
            yield server
        finally:
            server.kill()


def test_over_a_socket(tmp_path):
    card = fresh()
    with serving(InProcess(card), f"unix:{tmp_path}/card"):
        remote = Remote(f"unix:{tmp_path}/card")
        one = Sums(A, 0)
        one.load(remote)
        Dispatcher(remote, remote.machine).run([one.job()])
        remote.close()
    assert one.right(card)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_simulator_that_dies_or_hangs_in_the_middle(tmp_path, how):
    """One clear error within the time that a call may take; the process and another card stay usable."""
    address = f"unix:{tmp_path}/card"
    with process(address) as server:
        remote = Remote(address, timeout=1)
        dispatcher = Dispatcher(remote, CARD, timeout=2)
        sums = Sums(A, 0, m=64, k=512, n=64)
        sums.load(remote)
        done = threading.Event()

        def progress(*_):
            if not done.is_set():
                server.send_signal(how)
                done.set()

        start = time.monotonic()
        zeros = HostJob("zeros", (), lambda data: [(CARD.host_addr(1, 0), bytes(64))])
        with pytest.raises(ConnectionLost) as error:
            dispatcher.run([zeros, sums.job(after=[0])], progress)
        assert done.is_set()
        assert time.monotonic() - start < 10
        assert str(error.value).startswith("the transport failed, and what was under way on the card is not known: ")
        assert address in str(error.value)
        with pytest.raises(ConnectionLost, match="nothing can be sent any more"):
            dispatcher.run([])
    work = Everything()
    Dispatcher(InProcess(work.card), CARD).run(work.jobs)
    assert work.right()


@pytest.mark.parametrize("seed", range(10))
def test_waits_are_bounded_where_nothing_ever_comes_back(seed):
    """Quick units, of which some words never complete, under a clock that goes with each look at it."""
    generator = random.Random(seed)
    doomed = generator.sample([(mesh, at) for mesh in CARD.mesh_ids for at in CARD.coords(mesh, "MG")], 3)

    def make(setting):
        unit = Quick(setting)
        unit.hang = generator.randrange(20) if (setting.mesh, setting.at) in doomed else None
        return unit

    card = Card(CARD, units={"MG": make, "VC": QuickCore})
    recorder = Recorder(InProcess(card))
    clock = Clock(tick=0.01)
    dispatcher = Dispatcher(recorder, CARD, timeout=5, clock=clock, sleep=clock.sleep)
    program = Program("MG", (Gemm(),) * 20)
    jobs = [UnitJob(one, program, "gemms") for mesh in CARD.mesh_ids for one in clusters(mesh)]
    with pytest.raises(UnitTimeout):
        dispatcher.run(jobs)
    assert clock.now < 20
    assert len(recorder.log) < BOUND
    left = [job for job in jobs if not any(wedged.concerns(job.site) for wedged in dispatcher.wedged)]
    with contextlib.suppress(DispatchError):
        dispatcher.run(left)
    assert clock.now < 60
