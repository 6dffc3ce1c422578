"""What a cluster has no right answer to: one small program a fault, its report, and that the unit stops."""

import numpy as np
import pytest
from msgspec.structs import replace
from tests.simulator.programs import CARD, Host, words

from meshwright.machine import load
from meshwright.simulator import (
    Assumptions,
    Card,
    Deadlock,
    Kind,
    MachineFault,
    NotModelled,
    Undefined,
    Unpredictable,
    Unsupported,
)
from meshwright.targets.ktpu.isa import Drain, Fill, Gemm

AT, OTHER = (1, 1), (2, 2)
OPERANDS = (Fill(addr=0, n=4, sel=0), Fill(addr=0, n=4, sel=1))
OPEN = (*OPERANDS, Gemm(gm=2, gn=2, nk=2))


def loaded(mesh=0, machine=CARD, **options):
    card = Card(machine, **options)
    data = np.random.default_rng(0).standard_normal(4096).astype(np.float16)
    card.write_block(machine.host_addr(mesh, 0), data.tobytes())
    return card


def to_unit(dst=OTHER, **fields):
    return Drain(**{"n": 4, "dnode": 1, "dst_x": dst[0], "dst_y": dst[1], "dbuf": 2, **fields})


FAR = {"dmesh": 1, "dfin": 0x11, "dack_y": 1}

FAULTS = {
    "unwritten": (
        (Fill(addr=0x10000, n=1),),
        Undefined,
        "local address 0x10000 of mesh 0 is read and was never written",
    ),
    "partly unwritten": (
        (Fill(addr=8192 - 256, n=2),),
        Undefined,
        "local address 0x2000 of mesh 0 is read and was never",
    ),
    "past DRAM": ((Fill(addr=(1 << 32) - 256, n=2),), Undefined, "mesh 0 has bytes up to 0x100000000"),
    "unaligned fill": ((Fill(addr=8, n=1),), Undefined, "a read of 0x8, which is not aligned to 32 bytes"),
    "other mesh": (
        (Fill(addr=1 << 36, n=1),),
        Unsupported,
        "reads do not cross, and this one would be answered with byte",
    ),
    "aperture": ((Fill(addr=1 << 39, n=1),), NotModelled, "address 0x8000000000 is in special memory, bit 39"),
    "reserved bit": ((Fill(addr=1 << 38, n=1),), Undefined, "sets bits 0b1 above its mesh field, which mean nothing"),
    "fill past the bank": (
        (Fill(addr=0, n=4, eoff=253),),
        Undefined,
        "FILL of entries 253 to 256 of L1 A, bank 0, which has 256",
    ),
    "shared fill": ((Fill(addr=0, n=1, npeer=1),), Unsupported, "a follower can't tell which fill an entry belongs to"),
    "not quantised": (
        (Fill(addr=0, n=4, preq=1),),
        Undefined,
        "a FILL of quantised entries out of memory that holds none",
    ),
    "empty L1": ((Gemm(gm=1, gn=1),), Undefined, "entry 0 of L1 A, bank 0 is read and was never filled"),
    "half filled": (
        (*OPERANDS, Gemm(gm=2, gn=3, nk=2)),
        Undefined,
        "entry 4 of L1 B, bank 0 is read and was never filled",
    ),
    "other bank": (
        (*OPERANDS, Gemm(gm=2, gn=2, nk=2, bbank=1)),
        Undefined,
        "entry 0 of L1 B, bank 1 is read and was never filled",
    ),
    "operand past the bank": (
        (*OPERANDS, Gemm(gm=2, gn=2, nk=2, aoff=254)),
        Undefined,
        "entries 254 to 257 of L1 A, bank 0, which has 256",
    ),
    "no sweep": ((*OPERANDS, Gemm(gm=0, gn=2)), Undefined, "GEMM of 0 x 2 sub-tiles over 1 K blocks"),
    "fused": ((*OPERANDS, Gemm(gm=1, gn=1, fuse=1)), NotModelled, "GEMM with emit or fuse set"),
    "emitting drain": ((*OPEN, Drain(addr=0x8000, n=1, emit=1)), NotModelled, "DRAIN with emit or fuse set"),
    "continues nothing": (
        (*OPERANDS, Gemm(gm=2, gn=2, nk=2, acc=1)),
        Undefined,
        "a sweep continues sub-tile 0, which no GEMM opened",
    ),
    "continues too much": (
        (*OPEN, Gemm(gm=4, gn=2, nk=1, acc=1)),
        Undefined,
        "a sweep continues sub-tile 4, which no GEMM opened",
    ),
    "fill under a sweep": (
        (*OPEN, Fill(addr=0, n=1, sel=1, eoff=3)),
        Unpredictable,
        "of which the last GEMM's sweep may still read 0 to 3",
    ),
    "drain of nothing": ((Drain(addr=0x8000, n=1),), Undefined, "a drain reads sub-tile 0, which no GEMM opened"),
    "drain of too much": (
        (*OPEN, Drain(addr=0x8000, n=5)),
        Undefined,
        "a drain reads sub-tile 4, which no GEMM opened",
    ),
    "drain of none": ((*OPEN, Drain(addr=0x8000, n=0)), Undefined, "DRAIN of 0 sub-tiles"),
    "drain past the accumulator": (
        (*OPEN, Drain(addr=0x8000, n=513)),
        Undefined,
        "sub-tiles 0 to 512: the accumulator has 512",
    ),
    "unaligned drain": ((*OPEN, Drain(addr=0x8020, n=4)), Undefined, "it moves whole bursts of 256 bytes"),
    "odd granule": ((*OPEN, to_unit(addr=3)), Undefined, "a sub-tile is two, so it must be even"),
    "long offset": ((*OPEN, to_unit(addr=1 << 16)), Undefined, "a descriptor has 16 bits for it"),
    "nobody there": ((*OPEN, to_unit((3, 3))), Unsupported, "it is for (3, 3), where no unit is"),
    "peer adds to nothing": (
        (*OPEN, to_unit()),
        Undefined,
        "codes of a peer are added into sub-tile 0, which no GEMM opened",
    ),
    "no buffer 3": ((*OPEN, to_unit(dbuf=3)), Unsupported, "a cluster has buffers 0, 1 and 2; the burst is for 3"),
    "L1 has an end": (
        (*OPEN, to_unit(dbuf=1, addr=2046)),
        Undefined,
        "granules 2046 to 2049 of L1, which has 2048 a side",
    ),
    "not the port": (
        (*OPEN, to_unit((1, 2), **FAR)),
        Unsupported,
        "given to (1, 2), which is no memory port of mesh 0",
    ),
    "no ack": (
        (*OPEN, to_unit((0, 1), dmesh=1, dfin=0x11)),
        Unsupported,
        "(0, 0) means the sender, whose coordinate is in mesh 1 too",
    ),
    "own mesh": (
        (*OPEN, to_unit((0, 1), dfin=0x11, dack_y=1)),
        Unsupported,
        "a destination in the same mesh is named without dfin",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault(name):
    program, error, problem = FAULTS[name]
    card = loaded()
    card.submit(0, AT, words(*program))
    with pytest.raises(error) as caught:
        card.run_until_idle()
    report = caught.value.report
    assert problem in report.problem
    assert report.kind is error.kind
    assert report.mesh == 0
    assert card.reports == [report]
    if report.index is not None:
        assert (report.unit, report.at) == ("MG", AT)
        assert report.index == len(program) - 1
        assert report.instruction.startswith(program[-1].mnemonic)
    else:
        assert "burst of" in report.instruction


def test_a_report_reads_as_a_sentence():
    card = loaded()
    card.submit(0, AT, words(*OPERANDS, Gemm(gm=2, gn=2, nk=2, acc=1)))
    with pytest.raises(MachineFault) as caught:
        card.run_until_idle()
    assert str(caught.value) == (
        "undefined: mesh 0, MG (1, 1), instruction 2 [GEMM acc=1 gm=2 gn=2 nk=2]: a sweep continues sub-tile 0, which "
        "no GEMM opened: tile memory has no reset, so it holds whatever was last there"
    )


def test_words_that_are_no_instruction():
    for word, problem in ((4 << 252, "opcode 4 means nothing to a cluster"), (1 << 252 | 1, "reserved bits are set")):
        card = loaded()
        card.submit(0, AT, [word])
        with pytest.raises(Undefined, match=problem):
            card.run_until_idle()


@pytest.mark.parametrize("count", [0, 256, 300])
def test_a_fill_that_waits_for_ever_is_a_deadlock(count):
    card = loaded()
    card.submit(0, AT, words(Fill(addr=0, n=count), Gemm(gm=1, gn=1)))
    with pytest.raises(Deadlock) as caught:
        card.run_until_idle()
    assert f"MG (1, 1) of mesh 0 waits for ever, instruction 0: FILL of {count} entries" in str(caught.value)


def test_a_burst_to_oneself_is_a_deadlock():
    card = loaded()
    card.submit(0, AT, words(*OPEN, to_unit(AT)))
    with pytest.raises(Deadlock, match=r"instruction 3: its own burst: DRAIN to \(1, 1\), where the unit itself is"):
        card.run_until_idle()


def test_a_fill_may_follow_a_sweep_in_the_other_bank_or_behind_a_drain_or_sweep():
    other = Fill(addr=0, n=4, sel=1, fbank=1)
    again = Fill(addr=0, n=4, sel=1)
    for between in (
        (other,),
        (Drain(addr=0x8000, n=4), again),
        (other, Gemm(gm=2, gn=2, nk=2, bbank=1), again),
        (Fill(addr=0, n=4, sel=1, eoff=4),),
    ):
        card = loaded()
        card.submit(0, AT, words(*OPEN, *between))
        card.run_until_idle()
        assert card.reports == []


def test_what_a_short_drain_carries_along_is_not_there_to_read():
    """A burst moves whole: three sub-tiles leave the rest of its 256 bytes unknown."""
    card = loaded()
    card.write_block(CARD.host_addr(0, 0x8000), bytes(512))
    card.submit(0, AT, words(*OPEN, Drain(addr=0x8000, n=3)))
    card.run_until_idle()
    assert len(card.read_block(CARD.host_addr(0, 0x8000), 96)) == 96
    assert card.read_block(CARD.host_addr(0, 0x8100), 256) == bytes(256)
    with pytest.raises(Undefined, match="local address 0x8060"):
        card.read_block(CARD.host_addr(0, 0x8000), 128)


def test_with_capture_the_unit_stops_and_the_others_go_on():
    card = loaded(capture=True)
    card.submit(0, AT, words(Gemm(gm=1, gn=1), *OPEN, Drain(addr=0x8000, n=4)))
    card.submit(0, OTHER, words(*OPEN, Drain(addr=0x9000, n=4)))
    card.run_until_idle()
    assert [report.kind for report in card.reports] == [Kind.UNDEFINED, Kind.DEADLOCK]
    assert "MG (1, 1) of mesh 0: stopped at a fault, 4 instructions left" in card.reports[1].problem
    assert len(card.read_block(CARD.host_addr(0, 0x9000), 128)) == 128
    assert card.read_block(CARD.host_addr(0, 0x8000), 8) == b"\xff" * 8
    assert card.reports[-1].kind is Kind.UNDEFINED


# Bursts: who is acknowledged, and what nothing orders


def signals(card, at, mesh=0):
    return Host(card, mesh).count(at)


def test_a_rejected_burst_is_acknowledged_by_a_cluster():
    card = loaded(capture=True)
    card.submit(0, AT, words(*OPEN, to_unit(dbuf=3, dflags=1, dack_y=1)))
    card.run_until_idle()
    assert [report.problem for report in card.reports] == [
        "a cluster has buffers 0, 1 and 2; the burst is for 3, and is counted out"
    ]
    assert signals(card, OTHER) == 1


@pytest.mark.parametrize(("tiles", "bursts"), [(1, 1), (4, 1), (5, 2), (16, 4)])
def test_a_drain_of_codes_goes_in_bursts_of_eight_granules(tiles, bursts):
    card = loaded()
    steps = (Fill(addr=0, n=4, sel=0), Fill(addr=0, n=4, sel=1), Gemm(gm=4, gn=4))
    for at in (AT, OTHER):
        card.submit(0, at, words(*steps))
    card.run_until_idle()
    before = signals(card, OTHER)
    card.submit(0, AT, words(to_unit(n=tiles, dflags=1, dack_y=1)))
    card.run_until_idle()
    assert signals(card, OTHER) - before == bursts


def test_without_the_flag_nothing_is_acknowledged():
    card = loaded()
    for at in (AT, OTHER):
        card.submit(0, at, words(*OPEN))
    card.run_until_idle()
    before = signals(card, OTHER)
    card.submit(0, AT, words(to_unit(dack_y=1)))
    card.submit(0, (1, 2), words(*OPEN))
    card.run_until_idle()
    assert signals(card, OTHER) == before


def test_a_peer_add_that_nothing_orders_behind_the_sweep_is_a_race():
    card = loaded()
    card.submit(0, OTHER, words(*OPEN))
    card.submit(0, AT, words(*OPEN, to_unit()))
    with pytest.raises(
        Unpredictable, match=r"changes the resident tiles, which instruction 2 of MG \(2, 2\) of mesh 0"
    ):
        card.run_until_idle()


def test_a_drain_that_nothing_orders_behind_a_peer_add_is_a_race():
    card = loaded()
    for at in (AT, OTHER):
        card.submit(0, at, words(*OPEN))
    card.run_until_idle()
    card.submit(0, AT, words(to_unit()))
    card.submit(0, OTHER, words(Drain(addr=0x8000, n=4)))
    with pytest.raises(Unpredictable):
        card.run_until_idle()


def test_a_second_sender_is_a_race_until_the_first_is_known_to_be_through():
    senders = (AT, (1, 2))
    card = loaded()
    for at in (*senders, OTHER):
        card.submit(0, at, words(*OPEN))
    card.run_until_idle()
    for at in senders:
        card.submit(0, at, words(to_unit(dflags=1, dack_y=1)))
    with pytest.raises(Unpredictable, match="Only one sender's burst may be open"):
        card.run_until_idle()
    card = loaded()
    for at in (*senders, OTHER):
        card.submit(0, at, words(*OPEN))
    card.run_until_idle()
    host = Host(card, 0)
    for at in senders:
        host.round({at: words(to_unit(dflags=1, dack_y=1))}, extra={OTHER: 1})
    assert card.reports == []


def test_the_completion_of_a_sender_says_nothing_about_its_burst():
    """The sender retires when its data are on the way; only the receiver's acknowledgement orders what follows."""
    card = loaded()
    for at in (AT, (1, 2), OTHER):
        card.submit(0, at, words(*OPEN))
    card.run_until_idle()
    host = Host(card, 0)
    host.round({AT: words(to_unit(dflags=1, dack_y=1))})
    with pytest.raises(Unpredictable, match="Only one sender"):
        host.round({(1, 2): words(to_unit(dflags=1, dack_y=1))})


def test_memory_between_units_is_a_race_until_the_host_has_seen_the_drain():
    read = Fill(addr=0x8000, n=1, sel=1, fbank=1)
    write = words(*OPERANDS, Gemm(gm=4, gn=2), Drain(addr=0x8000, n=8))
    for first, second in (((AT, OTHER)), ((AT, AT))):
        card = loaded()
        card.submit(0, first, write)
        card.submit(0, second, words(read))
        with pytest.raises(
            Unpredictable, match="it reads 256 bytes from local address 0x8000 on, which instruction 3 of"
        ):
            card.run_until_idle()
    card = loaded()
    card.submit(0, AT, write)
    card.run_until_idle()
    card.submit(0, OTHER, words(read))
    card.run_until_idle()


def to_mem():
    return Drain(addr=0x8000, n=4)


def test_two_units_that_write_the_same_bytes_race():
    card = loaded()
    for at in (AT, OTHER):
        card.submit(0, at, words(*OPEN, to_mem()))
    with pytest.raises(Unpredictable, match="it writes 128 bytes"):
        card.run_until_idle()


def test_inputs_that_are_overwritten_under_a_reader_race():
    card = loaded()
    card.submit(0, AT, words(*OPEN))
    card.submit(0, OTHER, words(*OPEN, Drain(addr=0, n=4)))
    with pytest.raises(
        Unpredictable, match=r"it writes 128 bytes from local address 0x0 on, which instruction 0 of MG"
    ):
        card.run_until_idle()
    card = loaded()
    host = Host(card, 0)
    host.write(0x60, 8)
    for slot, word in enumerate(words(*OPEN)):
        host.stage(slot, word, last=slot == 2)
    host.kick(AT, 0, 3)
    card.write_block(CARD.host_addr(0, 1024), bytes(64))
    with pytest.raises(Unpredictable, match="the host writes 64 bytes"):
        card.write_block(CARD.host_addr(0, 1024 - 64), bytes(64))
    assert host.count(AT) == 3
    card.write_block(CARD.host_addr(0, 0), bytes(64))
    assert len(card.reports) == 1


def test_a_host_that_reads_a_result_it_has_not_waited_for_is_told():
    card = loaded()
    host = Host(card, 0)
    program = words(*OPEN, to_mem())
    host.write(0x60, 8)
    for slot, word in enumerate(program):
        host.stage(slot, word, last=slot == len(program) - 1)
    host.kick(AT, 0, len(program))
    with pytest.raises(Unpredictable, match="the host reads 8 bytes"):
        card.read64(CARD.host_addr(0, 0x8000))
    assert host.count(AT) == 4
    card.read64(CARD.host_addr(0, 0x8000))


# L1 by bursts


def quantised_rows(card, at, rows):
    """Leaves sub-tiles whose fp16 words are wanted in L1 elsewhere: here any, since only their arrival counts."""
    card.submit(0, at, words(*OPEN))
    card.run_until_idle()
    return rows


def test_words_for_l1_must_be_quantised_entries_and_whole():
    card = loaded(capture=True)
    quantised_rows(card, AT, 4)
    card.submit(0, AT, words(to_unit(n=3, dbuf=0, dflags=1, dack_y=1)))
    card.run_until_idle()
    card.submit(0, OTHER, words(Fill(addr=0, n=1, sel=1), Gemm(gm=1, gn=1)))
    card.run_until_idle()
    assert "entry 0 of L1 A, bank 0 is read and only words 0, 1, 2 of it have arrived" in card.reports[0].problem
    card = loaded(capture=True)
    quantised_rows(card, AT, 4)
    card.submit(0, AT, words(to_unit(n=4, dbuf=0, dflags=1, dack_y=1)))
    card.run_until_idle()
    card.submit(0, OTHER, words(Fill(addr=0, n=1, sel=1), Gemm(gm=1, gn=1)))
    card.run_until_idle()
    assert "came in by bursts and is no quantised entry" in card.reports[0].problem


def test_bursts_to_l1_may_be_assumed_away():
    card = loaded(capture=True, assumptions=Assumptions(l1_burst="not_modelled"))
    quantised_rows(card, AT, 4)
    card.submit(0, AT, words(to_unit(n=4, dbuf=0)))
    card.run_until_idle()
    assert card.reports[0].kind is Kind.NOT_MODELLED


def test_a_cluster_of_another_build_has_fewer_tiles():
    machine = load("ktpu-1")
    small = replace(machine, maybe_cluster=replace(machine.cluster, accumulator_tiles=3))
    card = loaded(machine=small, mesh=machine.mesh_ids[0])
    at = machine.coords(machine.mesh_ids[0], "MG")[0]
    card.submit(machine.mesh_ids[0], at, words(*OPEN))
    with pytest.raises(Undefined, match="sub-tiles 0 to 3: the accumulator has 3"):
        card.run_until_idle()


def test_remote_reads_leave_their_mark_at_the_interlink():
    card = loaded(capture=True)
    card.submit(0, AT, words(Fill(addr=1 << 36, n=1)))
    card.submit(0, OTHER, words(*OPEN, to_unit((0, 1), dmesh=1, dfin=0x11)))
    card.run_until_idle()
    assert Host(card, 0).read(0x88) == 3
