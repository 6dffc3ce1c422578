"""Rounds on a card in software: what runs, in which order, and what is written and polled for it."""

import numpy as np
import pytest
from tests.runtime.dispatch_rig import (
    CARD,
    MEMORY,
    MESHES,
    Recorder,
    Sums,
    arrival,
    clusters,
    copy_job,
    copy_payloads,
    cores,
    halves,
    host_copy,
    sent,
    site,
)
from tests.simulator.programs import fresh, words

from meshwright.errors import DispatchError
from meshwright.runtime.discovery import FoundUnit
from meshwright.runtime.dispatch import Dispatcher
from meshwright.runtime.jobs import HostJob, UnitJob
from meshwright.runtime.transport import InProcess
from meshwright.simulator import registers as reg
from meshwright.targets.ktpu.isa import Flit, Gemm, Program

A, B = clusters(0)[:2]


def started(**options):
    card = fresh()
    recorder = Recorder(InProcess(card))
    return card, recorder, Dispatcher(recorder, CARD, **options)


def loaded(card, *sums):
    for one in sums:
        one.load(InProcess(card))


def placed(where, **shape):
    """One product for each of these units, in memory that no other of the mesh has."""
    free, found = dict.fromkeys(MESHES, 0), []
    for at, one in enumerate(where):
        found.append(Sums(one, free[one.chip], seed=at, **shape))
        free[one.chip] = found[-1].end
    return found


def memory(card, mesh, local, count):
    return card.read_block(CARD.host_addr(mesh, local), count)


def test_nothing_to_do():
    _, recorder, dispatcher = started()
    dispatcher.run([])
    assert recorder.log == []


def test_products_on_every_cluster_of_every_mesh():
    card, _, dispatcher = started()
    sums = placed([cluster for mesh in MESHES for cluster in clusters(mesh)])
    loaded(card, *sums)
    seen = []
    dispatcher.run([one.job() for one in sums], lambda *now: seen.append(now))
    assert all(one.right(card) for one in sums)
    assert card.reports == []
    assert seen == sorted(set(seen))
    assert seen[-1] == (24, 24)


def test_more_meshes_take_no_more_calls():
    counts = []
    for meshes in (MESHES[:1], MESHES):
        card, recorder, dispatcher = started()
        sums = placed([cluster for mesh in meshes for cluster in clusters(mesh)])
        loaded(card, *sums)
        dispatcher.run([one.job() for one in sums])
        counts.append(len(recorder.log))
    assert counts[0] == counts[1] == 14


def test_the_calls_of_a_round():
    """Twelve words for two units: one set-up, a kick each, and no look at the dispatcher before the first."""
    card, recorder, dispatcher = started()
    sums = placed([A, B], m=8, k=64, n=8)
    loaded(card, *sums)
    dispatcher.run([one.job() for one in sums])
    n = len(sums[0].product.program())
    control = [(number, offset, value) for number, mesh, offset, value in recorder.registers() if offset < reg.STAGE]
    assert control == [
        (1, reg.PROG_CRED, 512),
        (1, reg.PROG_DST, reg.node_index(A.x, A.y)),
        (1, reg.PROG_BASE, 0),
        (1, reg.PROG_LEN, n),
        (1, reg.PROG_KICK, 1),
        (3, reg.PROG_DST, reg.node_index(B.x, B.y)),
        (3, reg.PROG_BASE, n),
        (3, reg.PROG_KICK, 1),
    ]
    assert [name for name, _, _ in recorder.log] == ["poll", "submit", "poll", "submit", "poll", "poll"]
    polled = [[recorder.placed(address)[1] for address in asked] for _, asked, _ in recorder.calls("poll")]
    nodes = [reg.node_status(one.x, one.y) for one in (A, B)]
    assert polled == [
        [*nodes, reg.PROG_STAT],
        [nodes[0], reg.PROG_STAT],
        [nodes[1], reg.PROG_STAT],
        [*nodes, reg.PROG_STAT],
    ]


def test_staged_flits():
    card, recorder, dispatcher = started()
    (one,) = placed([A], m=8, k=32, n=8)
    loaded(card, one)
    dispatcher.run([one.job()])
    ((_, mesh, offset, content),) = [entry for entry in recorder.registers() if entry[2] >= reg.STAGE]
    assert (mesh, offset) == (0, reg.STAGE)
    slots = np.frombuffer(content, np.uint64).reshape(-1, 5)
    flits = [Flit.from_staged(slot.tolist()) for slot in slots]
    program = words(*one.product.program())
    final = len(program) - 1
    assert flits == [Flit(type=5, payload=word, txn=1, last=int(at == final)) for at, word in enumerate(program)]


def test_a_long_program_goes_in_windows_and_keeps_nobody_waiting():
    card, recorder, dispatcher = started()
    long, short = placed([A, B], m=64, k=256, n=16)[0], Sums(B, 0x20_0000, seed=9, m=8, k=64, n=8)
    loaded(card, long, short)
    total = len(long.product.program())
    assert total > 2 * 128
    done = []
    dispatcher.run([long.job("long"), short.job("short")], lambda *now: done.append((len(recorder.log), *now)))
    assert long.right(card)
    assert short.right(card)
    lengths = [value for _, _, offset, value in recorder.registers() if offset == reg.PROG_LEN]
    n = len(short.product.program())
    # The first round has both; from the second on the long one has all of staging memory.
    assert lengths[:3] == [128 - n, n, 128]
    assert done[0][0] <= 5


def test_dependencies_between_units_and_the_host():
    """A vector core copies a product that a cluster made, and the host moves that on to another mesh."""
    card, _, dispatcher = started()
    (one,) = placed([A], m=8, k=32, n=8)
    loaded(card, one)
    core, count = cores(0)[0], 4 * 32
    source, middle = one.product.at_c, MEMORY
    jobs = [
        one.job(),
        copy_job(core, source, middle, words=4, after=[0]),
        host_copy(0, middle, MEMORY + 0x1000, count, after=[1]),
        HostJob(
            "to mesh 2",
            ((CARD.host_addr(0, MEMORY + 0x1000), count),),
            lambda data: [(CARD.host_addr(2, MEMORY), data[0])],
            (2,),
        ),
        copy_job(cores(2)[1], MEMORY, MEMORY + 0x1000, words=4, after=[3]),
    ]
    dispatcher.run(jobs)
    assert card.reports == []
    assert memory(card, 2, MEMORY + 0x1000, count) == memory(card, 0, source, count) != bytes(count)


def test_host_jobs_of_all_meshes_share_calls():
    card, recorder, dispatcher = started()
    for mesh in MESHES:
        card.write_block(CARD.host_addr(mesh, 0), halves(mesh, 128).tobytes())
    dispatcher.run([host_copy(mesh, 0, 256, 256) for mesh in MESHES])
    assert [name for name, _, _ in recorder.log] == ["collect", "submit"]
    assert all(memory(card, mesh, 0, 256) == memory(card, mesh, 256, 256) for mesh in MESHES)


def test_a_host_job_without_reads_or_writes():
    card, recorder, dispatcher = started()
    zeros = HostJob("zeros", (), lambda data: [(CARD.host_addr(0, 0), bytes(64))])
    nothing = HostJob("nothing", (), lambda data: (), (0,))
    dispatcher.run([zeros, nothing, host_copy(0, 0, 64, 64, after=[1])])
    assert memory(card, 0, 64, 64) == bytes(64)
    assert [name for name, _, _ in recorder.log] == ["submit", "collect", "submit"]


def added(target, sources):
    """Two clusters each compute a product; the sums of the sources are added into the tiles of the target."""
    sums = placed([target, *sources], m=8, k=32, n=8)
    parts = [one.product.tile(0, 0) for one in sums]
    opening = UnitJob(target, Program("MG", tuple(parts[0])), "open")
    senders = [
        UnitJob(source, Program("MG", (*part, sent(source, target))), "send", (0,), (arrival(target),))
        for source, part in zip(sources, parts[1:], strict=True)
    ]
    drain = UnitJob(target, Program("MG", (sums[0].product.drain(0, 0),)), "drain", tuple(range(1 + len(sources))))
    return sums, [opening, *senders, drain]


@pytest.mark.parametrize("source", [B, clusters(1)[0]], ids=["same mesh", "other mesh"])
def test_arrivals_at_another_unit_are_awaited(source):
    card, recorder, dispatcher = started()
    sums, jobs = added(A, [source])
    loaded(card, *sums)
    dispatcher.run(jobs)
    found = sums[0].product.result(card, 8, 8).view(np.float16)
    wanted = sum(
        one.a.view(np.float16).astype(np.float32) @ one.b.view(np.float16).astype(np.float32).T for one in sums
    )
    assert np.abs(found - wanted).max() < 1
    assert card.reports == []
    final = recorder.calls("poll")[-1]
    counts = [word >> 8 & 0xFFFF for word in final[2][:2]]
    assert counts == [len(jobs[0].program) + 1 + 1, len(jobs[1].program)]


def test_credits_stay_below_the_queues_that_were_found():
    found = [FoundUnit(0, (A.x, A.y), "MG", 4, 7, 3), FoundUnit(0, (B.x, B.y), "MG", 4, 9, 3)]
    card, recorder, dispatcher = started(units=found)
    sums = placed([A, B])
    loaded(card, *sums)
    dispatcher.run([one.job() for one in sums])
    assert all(one.right(card) for one in sums)
    assert {value for _, _, offset, value in recorder.registers() if offset == reg.PROG_CRED} == {7}


def test_one_kick_a_round_where_queues_are_short():
    card, recorder, dispatcher = started(units=[FoundUnit(0, (A.x, A.y), "MG", 4, 2, 3)])
    sums = placed([A, B], m=8, k=32, n=8)
    loaded(card, *sums)
    dispatcher.run([one.job() for one in sums])
    assert all(one.right(card) for one in sums)
    order = [offset for _, _, offset, _ in recorder.registers() if offset in (reg.PROG_CRED, reg.PROG_KICK)]
    assert order == [reg.PROG_CRED, reg.PROG_KICK] * 2


def test_counts_go_on_through_65536():
    card, _, dispatcher = started()
    (one,) = placed([A], m=8, k=32, n=8)
    loaded(card, one)
    mirror = card.mesh(0).agent.mirror
    dispatcher.run([one.job()])
    # As if it had been at work for long.
    mirror._nodes[A.x, A.y].count = 65534
    dispatcher.run([one.job(), one.job()])
    assert one.right(card)


def test_a_later_run_sees_what_an_earlier_one_left():
    card, _, dispatcher = started()
    sums = placed([A, B])
    loaded(card, *sums)
    for one in sums:
        dispatcher.run([one.job()])
    assert all(one.right(card) for one in sums)


# Jobs that are refused before anything is sent


def refused(jobs, message, **options):
    _, recorder, dispatcher = started(**options)
    with pytest.raises(DispatchError) as error:
        dispatcher.run(jobs)
    assert str(error.value) == message
    assert [name for name, _, _ in recorder.log if name == "submit"] == []


GEMM = Program("MG", (Gemm(),))


def test_refused_waits_for_a_later_job():
    refused(
        [UnitJob(A, GEMM, "first", (1,)), UnitJob(A, GEMM, "second")],
        "job 0, first, waits for job 1: jobs wait for earlier ones; put it after what it waits for",
    )


def test_refused_no_such_unit():
    refused(
        [UnitJob(site(1, 1, 0), Program("VC", ()), "gelu")],
        "job 0, gelu, needs a unit of type VC at 1:(1,0), where ktpu-v13p has none",
    )


def test_refused_program_of_another_type():
    refused(
        [UnitJob(A, Program("VC", ()), "gelu")],
        "job 0, gelu, needs a unit of type VC at 0:(1,1), where ktpu-v13p has MG",
    )


def test_refused_arrivals_where_no_unit_is():
    refused(
        [UnitJob(A, GEMM, "send", (), (arrival(site(1, 1, 0)),))],
        "job 0, send, needs a unit at 1:(1,0), where ktpu-v13p has none",
    )


def test_refused_no_such_mesh():
    refused(
        [UnitJob(site(7, 1, 1), GEMM, "gemm")],
        "job 0, gemm, needs a unit of type MG at 7:(1,1), where ktpu-v13p has none",
    )


def test_refused_arrivals_twice_for_one_unit():
    refused(
        [UnitJob(B, Program("MG", (sent(B, A),)), "send", (), (arrival(A), arrival(A)))],
        "job 0, send: each arrival states another site and a number of signals",
    )


def test_refused_queues_that_take_nothing():
    refused(
        [UnitJob(A, GEMM, "gemm")],
        "the unit at 0:(1,1) queues 1 instructions: a round has fewer kicks than credits and no more credits than "
        "that, so it needs 2",
        units=[FoundUnit(0, (1, 1), "MG", 4, 1, 3)],
    )


def test_refused_arrivals_that_its_drains_do_not_cause():
    program = Program("MG", (sent(A, B, 9),))
    refused(
        [UnitJob(A, program, "send", (), (arrival(B, 8),))],
        "job 0, send, states arrivals 2 at 0:(1,2), and its drains cause 3 at 0:(1,2): it would be waited for in vain, "
        "or be taken for complete too soon. State what the drains acknowledge",
    )


def test_refused_arrivals_of_runs_that_do_not_fit():
    core = cores(0)[0]
    long = copy_payloads(core, 0, 64) * 15
    refused(
        [UnitJob(core, Program("VC", long), "spread", (), (arrival(A, 8),))],
        "job 0, spread, has 15 runs in 135 words and states arrivals 2 at 0:(1,1). It doesn't fit the 128 staging "
        "slots, and nothing tells which run causes which arrivals: make one job of each run",
    )


def test_refused_misaligned_read():
    refused(
        [HostJob("odd", ((4, 8),), lambda data: ())],
        "job 0, odd: read of 8 bytes at 0x4: a transport moves 64-bit words, so the address and the size (at least one "
        "word) are multiples of 8",
    )


def test_refused_misaligned_write():
    refused(
        [HostJob("odd", (), lambda data: [(8, b"1234")])],
        "job 0, odd: write of 4 bytes at 0x8: a transport moves 64-bit words, so the address and the size (at least "
        "one word) are multiples of 8",
    )


def test_refused_while_it_runs():
    card, _, dispatcher = started()
    (one,) = placed([A])
    loaded(card, one)
    with pytest.raises(DispatchError) as error:
        dispatcher.run([one.job()], lambda *_: dispatcher.run([]))
    assert str(error.value) == "run was called while it runs: one run at a time; hand on all jobs together"
