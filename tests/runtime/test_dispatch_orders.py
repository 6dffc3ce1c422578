"""Any jobs in any order on any units: all complete, none before its time, and the card's procedure is kept."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime import faulty
from tests.runtime.dispatch_observer import Observer, block
from tests.runtime.dispatch_rig import CARD, Clock, Quick, QuickCore, Recorder, arrival, clusters, cores, sent

from meshwright.machine.figures import DispatchSpec
from meshwright.runtime.dispatch import Dispatcher
from meshwright.runtime.dispatch_order import Order
from meshwright.runtime.dispatch_rounds import allot
from meshwright.runtime.jobs import HostJob, UnitJob
from meshwright.runtime.transport import InProcess
from meshwright.simulator import Card
from meshwright.simulator import registers as reg
from meshwright.targets.ktpu.isa import Gemm, Imem, Program

CLUSTERS = [cluster for mesh in (0, 1, 2) for cluster in clusters(mesh)[:3]]
CORES = [*cores(0), cores(2)[0]]


@st.composite
def host_jobs(draw, at, after):
    reads = ((block(at), 16),) if draw(st.booleans()) else ()
    writes = [(block(at), bytes(16))]
    return HostJob(f"host {at}", reads, lambda data: writes, after)


@st.composite
def cluster_jobs(draw, at, after):
    where = draw(st.sampled_from(CLUSTERS))
    words = [Gemm(gm=at)] * draw(st.integers(0, 30))
    arrivals = []
    for target in draw(st.lists(st.sampled_from(CLUSTERS), max_size=3, unique=True)):
        if target != where:
            tiles = draw(st.integers(1, 9))
            words.insert(draw(st.integers(0, len(words))), sent(where, target, tiles, offset=2 * at))
            arrivals.append(arrival(target, tiles))
    return UnitJob(where, Program("MG", tuple(words)), f"cluster {at}", after, tuple(arrivals))


@st.composite
def core_jobs(draw, at, after):
    words = tuple(Imem(addr=at, word=word) for word in range(draw(st.integers(0, 30))))
    return UnitJob(draw(st.sampled_from(CORES)), Program("VC", words), f"core {at}", after)


@st.composite
def graphs(draw):
    jobs = []
    for at in range(draw(st.integers(0, 24))):
        after = draw(st.lists(st.integers(0, at - 1), max_size=3, unique=True)) if at else []
        kind = draw(st.sampled_from([cluster_jobs, cluster_jobs, core_jobs, host_jobs]))
        jobs.append(draw(kind(at, tuple(after))))
    return jobs


@st.composite
def machines(draw):
    """The card with other staging memories and queues, down to the least."""
    figures = DispatchSpec(
        "a test",
        staged_words=draw(st.sampled_from([1, 2, 7, 32, 128])),
        commands=draw(st.sampled_from([8, 20, 128])),
        instruction_fifo=draw(st.sampled_from([2, 3, 32, 512])),
    )
    return msgspec.structs.replace(CARD, maybe_dispatch=figures)


class Slow(faulty.Through):
    """The mirror shows old counts for a while, and dispatchers seem to go on for a poll after a kick."""

    def __init__(self, transport, seed):
        super().__init__(transport, faulty.chance(seed, 0.4))
        self.old, self.going = {}, {}

    def made(self, access, data):
        if (offset := access.address & 0xFFFF) == reg.PROG_KICK and access.address < 1 << 40:
            self.going[access.address - offset] = 1
        return super().made(access, data)

    def answer(self, access, data):
        if access.address >= 1 << 40:
            return data
        base, offset = access.address & ~0xFFFF, access.address & 0xFFFF
        if offset == reg.PROG_STAT and self.going.get(base):
            self.going[base] -= 1
            return bytes([data[0] | 1]) + data[1:] if self.chosen(access) else data
        if offset in reg.NODE_STATUS:
            if self.chosen(access):
                return self.old.get(access.address, data)
            self.old[access.address] = data
        return data


def run(jobs, machine, seed, **options):
    """The units' words as they executed them, and what an observer says of the calls."""
    executed = {}

    def noting(kind):
        class Noting(kind):
            def execute(self, queued, event):
                executed.setdefault((self.setting.mesh, self.setting.at), []).append(queued.word)
                return super().execute(queued, event)

        return Noting

    card = Card(machine, units={"MG": noting(Quick), "VC": noting(QuickCore)})
    for at in range(len(jobs)):
        card.write_block(block(at), bytes(16))
    transport = InProcess(card) if seed is None else Slow(InProcess(card), seed)
    recorder, clock = Recorder(transport), Clock()
    progress = []
    dispatcher = Dispatcher(recorder, machine, clock=clock, sleep=clock.sleep, **options)
    dispatcher.run(jobs, lambda *now: progress.append(now))
    assert progress == sorted(set(progress))
    assert [done for done, total in progress][-1:] == [len(jobs)][: len(jobs)]
    wanted = {}
    for job in jobs:
        if isinstance(job, UnitJob) and len(job.program):
            wanted.setdefault((job.site.chip, (job.site.x, job.site.y)), []).extend(job.program.encode())
    assert executed == wanted
    observer = Observer(jobs, machine, recorder)
    observer.check_end()
    return observer


@settings(max_examples=80, deadline=None)
@given(graphs(), machines(), st.none() | st.integers(0, 1 << 16))
def test_any_jobs_on_any_units(jobs, machine, seed):
    run(jobs, machine, seed)


@settings(max_examples=20, deadline=None)
@given(graphs(), machines(), st.none() | st.integers(0, 1 << 16))
def test_one_after_another(jobs, machine, seed):
    chained = [msgspec.structs.replace(job, after=(at - 1,)) if at else job for at, job in enumerate(jobs)]
    observer = run(jobs, machine, seed, one_after_another=True)
    again = Observer(chained, machine, observer.recorder)
    again.check_end()


@settings(max_examples=20, deadline=None)
@given(graphs(), machines(), st.integers(0, 1 << 16))
def test_the_same_calls_each_time(jobs, machine, seed):
    logs = [run(jobs, machine, seed).recorder.log for _ in range(2)]
    assert logs[0] == logs[1]


def test_the_observer_sees_what_breaks_the_rules():
    """A log in which the second job's words come before the first one's completion; so is one with too many slots."""
    first, second = (UnitJob(CLUSTERS[at], Program("MG", (Gemm(gm=at),)), "g", ()) for at in (0, 1))
    observer = run([first, second], CARD, None)
    with pytest.raises(AssertionError, match=r"job 1 was sent before jobs \[0\] were seen complete"):
        Observer([first, msgspec.structs.replace(second, after=(0,))], CARD, observer.recorder)
    with pytest.raises(AssertionError):
        Observer([second, first], CARD, observer.recorder)
    figures = DispatchSpec("a test", staged_words=1, commands=128, instruction_fifo=2)
    with pytest.raises(AssertionError):
        Observer([first, second], msgspec.structs.replace(CARD, maybe_dispatch=figures), observer.recorder)


# Shares of staging memory


@given(st.lists(st.lists(st.integers(1, 200), min_size=1, max_size=6), max_size=8), st.integers(1, 150))
def test_allotments(queues, slots):
    found = allot(queues, slots)
    assert sum(found) <= slots
    long = [at for at, lengths in enumerate(queues) if lengths[0] > slots]
    for at, (share, lengths) in enumerate(zip(found, queues, strict=True)):
        if at in long:
            assert 0 <= share <= lengths[0]
        else:
            # Whole programs, from the first on.
            assert share in [sum(lengths[:count]) for count in range(len(lengths) + 1)]
    # The first comes to its right, every long one that has room to its share, and nothing is left that is of use.
    assert not queues or found[0]
    shares = [found[at] for at in long if found[at]]
    assert all(share >= max(1, slots // len(queues)) for share in shares)
    assert not shares or (sum(found) == slots and max(shares) - min(shares) <= 1)
    heads = [lengths[0] for at, lengths in enumerate(queues) if not found[at] and at not in long]
    assert all(head > slots - sum(found) for head in heads)


@pytest.mark.parametrize(
    ("queues", "slots", "found"),
    [
        ([], 128, []),
        ([[500]], 128, [128]),
        ([[500], [4]], 128, [124, 4]),
        ([[4], [500]], 128, [4, 124]),
        ([[500], [40, 40], [400]], 128, [44, 40, 44]),
        ([[500], [10] * 50], 128, [64 + 4, 60]),
        ([[25]] * 6, 128, [25, 25, 25, 25, 25, 0]),
        ([[25, 3]] * 2, 128, [28, 28]),
        ([[5], [100], [7]], 8, [5, 2 + 1, 0]),
        ([[1], [1], [1]], 2, [1, 1, 0]),
    ],
)
def test_some_allotments(queues, slots, found):
    assert allot(queues, slots) == found


def test_who_was_left_out_comes_first_in_the_next_round():
    """Three units for two kicks a round: each gets its turn."""
    figures = DispatchSpec("a test", staged_words=128, commands=128, instruction_fifo=3)
    machine = msgspec.structs.replace(CARD, maybe_dispatch=figures)
    units = clusters(0)[:3]
    jobs = [UnitJob(where, Program("MG", (Gemm(gm=at),) * 60), "g") for at, where in enumerate(units * 3)]
    observer = run(jobs, machine, None)
    order = [value for _, _, offset, value in observer.recorder.registers() if offset == reg.PROG_DST]
    assert order == [reg.node_index(where.x, where.y) for where in units * 3]
    assert observer.most_slots == 120


def test_a_long_program_and_many_short_ones_keep_nobody_waiting():
    """Either has half of the memory as long as the other has work."""
    a, b = clusters(0)[:2]
    jobs = [UnitJob(a, Program("MG", (Gemm(gm=0),) * 640), "long")]
    jobs += [UnitJob(b, Program("MG", (Gemm(gm=at),) * 8), "short") for at in range(1, 41)]
    observer = run(jobs, CARD, None)
    lengths = [value for _, _, offset, value in observer.recorder.registers() if offset == reg.STAGE]
    assert [len(content) // 40 for content in lengths] == [128] * 7 + [640 + 320 - 7 * 128]


def test_order_gives_each_job_once():
    a, b = CLUSTERS[:2]
    jobs = [
        UnitJob(a, Program("MG", ()), "0"),
        UnitJob(b, Program("MG", ()), "1", (0,)),
        UnitJob(a, Program("MG", ()), "2"),
        UnitJob(b, Program("MG", ()), "3"),
        HostJob("4", (), lambda data: (), (2, 2, 3)),
    ]
    order = Order(jobs, one_after_another=False)
    assert (order.for_units(), order.for_host()) == ([0, 2], [])
    order.done(0)
    assert (order.for_units(), order.for_host()) == ([1, 3], [])
    for at in (1, 2, 3, 3):
        order.done(at)
    assert (order.for_units(), order.for_host(), order.complete, order.left) == ([], [4], 4, [4])
    order.done(4)
    assert order.finished
