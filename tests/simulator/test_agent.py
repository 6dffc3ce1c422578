"""The agent as a host sees it: registers, staging, credits, completions, rounds, and finding the units of a mesh."""

import numpy as np
import pytest
from tests.simulator.programs import CARD, Host, fresh, words

from meshwright.errors import MachineError
from meshwright.machine import load
from meshwright.simulator import Assumptions, Card, Deadlock, Kind, Undefined, Unpredictable, Unsupported
from meshwright.simulator import registers as reg
from meshwright.targets.ktpu.isa import Drain, Fill, Flit, Gemm
from meshwright.targets.ktpu.isa.flit import FlitType

AT, OTHER = (1, 1), (2, 3)
FIFO = CARD.dispatch.instruction_fifo


def loaded(**options):
    card = Card(CARD, **options)
    data = np.random.default_rng(0).standard_normal(4096).astype(np.float16)
    for mesh in CARD.mesh_ids:
        card.write_block(CARD.host_addr(mesh, 0), data.tobytes())
    return card, Host(card, 0)


def fills(count, mesh=0):
    return words(*(Fill(addr=CARD.global_addr(mesh, 0), n=1, eoff=at % 256) for at in range(count)))


def stage(host, program, *, last=True, first=0):
    for slot, word in enumerate(program):
        host.stage(first + slot, word, last=last and slot == len(program) - 1)


def kick(host, at, first, count):
    """Registers and kick, without looking whether a program runs."""
    host.write(reg.PROG_DST, reg.node_index(*at))
    host.write(reg.PROG_BASE, first)
    host.write(reg.PROG_LEN, count)
    host.write(reg.PROG_KICK, 1)


# Registers


def test_registers_at_rest():
    _, host = loaded()
    assert host.read(reg.CAPS) == 288 | 4 << 16 | 1 << 24 | 3 << 32
    assert host.read(reg.STATUS) == 4
    for offset in (reg.PROG_STAT, reg.PROG_CRED, reg.SIG_DONE, reg.AUX_STAT, reg.TX_STATUS, 0x18, 0x20, 0x28, 0x3000):
        assert host.read(offset) == 0
    assert host.read(reg.RX_STATUS) == reg.RX_EMPTY
    assert host.read(reg.node_status(*AT)) == 0


def test_stored_registers_keep_what_was_written():
    _, host = loaded()
    for offset in (reg.CTRL, reg.PROG_DST, reg.PROG_LEN, reg.PROG_BASE):
        host.write(offset, 0x0123_4567_89AB_CDEF)
        assert host.read(offset) == 0x0123_4567_89AB_CDEF
    host.write(reg.stage_slot(3), 77)
    assert host.read(reg.stage_slot(3)) == 0
    host.write(0x28, 5)
    assert host.read(0x28) == 0


def test_each_mesh_has_its_own_agent():
    card, host = loaded()
    Host(card, 3).write(reg.PROG_CRED, 9)
    assert host.read(reg.PROG_CRED) == 0
    assert Host(card, 3).read(reg.PROG_CRED) == 9
    assert card.control(3) - card.control(0) == 3 << 16


def test_the_control_window_may_lie_elsewhere():
    card = Card(CARD, assumptions=Assumptions(control_base=0x4_0080_0000))
    assert card.read64(0x4_0080_0010) & 0xFFFF == 288
    with pytest.raises(MachineError, match="8 bytes at host address 0x800010 of ktpu-v13p: agents are at 0x400800000"):
        card.read64(0x80_0010)


@pytest.mark.parametrize("address", [0x90_0000, 0, 0x84_0000, 5 << 40, (1 << 40) + (1 << 32)])
def test_addresses_where_nothing_is(address):
    card, _ = loaded()
    with pytest.raises(MachineError):
        card.read64(address)
    with pytest.raises(MachineError):
        card.write64(address, 0)


def test_words_are_aligned():
    card, _ = loaded()
    with pytest.raises(MachineError, match="both are multiples of 8"):
        card.read64(CARD.host_addr(0, 4))
    with pytest.raises(MachineError, match="write of 12 bytes"):
        card.write_block(CARD.host_addr(0, 0), bytes(12))


def test_dram_words_and_blocks_are_the_same_bytes():
    card, _ = loaded()
    card.write64(CARD.host_addr(2, 0x100), 0x0102_0304_0506_0708)
    assert card.read_block(CARD.host_addr(2, 0x100), 8) == bytes([8, 7, 6, 5, 4, 3, 2, 1])
    with pytest.raises(Undefined, match="local address 0x4000 of mesh 2 is read and was never written"):
        card.read64(CARD.host_addr(2, 0x4000))


def test_a_grid_machine_has_no_instruction_words():
    with pytest.raises(MachineError, match='numerics = "grid"'):
        Card(load("grid-8x8"))


# Rounds


def test_a_round_as_the_procedure_says():
    card, host = loaded()
    program = words(Fill(addr=0, n=4), Fill(addr=0, n=4, sel=1), Gemm(gm=2, gn=2, nk=2), Drain(addr=0x8000, n=4))
    host.round({AT: program, OTHER: fills(3)}, credit=8)
    status = host.read(reg.node_status(*AT))
    assert status == 1 << 56 | 4 << 8 | 1
    assert host.read(reg.SIG_DONE) == 7
    # Each kick costs the credit of its last flit.
    assert host.read(reg.PROG_CRED) == 8 - 2
    host.write(reg.SIG_DONE, 0)
    assert host.read(reg.SIG_DONE) == 0
    host.round({AT: program}, credit=3)
    assert host.count(AT) == 8
    assert len(card.read_block(CARD.host_addr(0, 0x8000), 128)) == 128


def test_a_long_program_goes_in_windows():
    _, host = loaded()
    host.run(AT, fills(300), credit=5)
    assert host.count(AT) == 300


def test_the_batch_completion_carries_the_transaction():
    card, host = loaded()
    host.write(reg.PROG_CRED, 4)
    flit = Flit(type=FlitType.CU_INST, payload=fills(1)[0], txn=0x5A, last=1)
    card.write_block(card.control(0, reg.stage_slot(0)), np.array(flit.staged(), np.uint64).tobytes())
    kick(host, AT, 0, 1)
    assert host.read(reg.node_status(*AT)) == 1 << 56 | 0x5A << 24 | 1 << 8 | 1


def test_the_mirror_is_shown_twice_and_counts_modulo_65536():
    card, host = loaded()
    host.round({AT: fills(2)})
    assert host.read(reg.node_status(*AT) + 0x800) == host.read(reg.node_status(*AT)) != 0
    for _ in range(130):
        card.submit(0, AT, fills(504))
        card.run_until_idle()
    assert host.count(AT) == (2 + 130 * 504) % 65536 == 65522
    host.round({AT: fills(20)})
    assert host.count(AT) == 6


def test_without_the_last_flag_every_credit_comes_back():
    _, host = loaded()
    host.write(reg.PROG_CRED, 4)
    stage(host, fills(10), last=False)
    kick(host, AT, 0, 10)
    assert host.read(reg.PROG_CRED) == 4
    assert host.read(reg.node_status(*AT)) == 10 << 8 | 1


def test_the_dispatcher_stands_still_without_credit():
    card, host = loaded()
    host.write(reg.PROG_CRED, 1)
    stage(host, fills(1))
    kick(host, AT, 0, 1)
    assert host.read(reg.PROG_CRED) == 0
    stage(host, fills(3))
    kick(host, AT, 0, 3)
    assert host.read(reg.PROG_STAT) == 3 << 1 | 1
    assert host.read(reg.STATUS) == 5
    with pytest.raises(Deadlock, match=r"mesh 0, dispatcher: 3 flits for MG \(1, 1\) of mesh 0 wait for a credit"):
        card.run_until_idle()
    host.write(reg.PROG_CRED, 2)
    assert host.read(reg.PROG_STAT) >> 17 == 1
    assert host.count(AT) == 4


def test_more_in_flight_than_the_queue_holds_wedges_the_unit():
    card, host = loaded()
    host.write(reg.PROG_CRED, FIFO + 1)
    card.submit(0, AT, fills(FIFO))
    stage(host, fills(1))
    kick(host, AT, 0, 1)
    with pytest.raises(Unpredictable, match=f"{FIFO + 1} instructions in flight for MG"):
        card.run_until_idle()


def test_a_kick_while_one_runs_is_dropped():
    card, host = loaded(capture=True)
    host.write(reg.PROG_CRED, 16)
    stage(host, fills(6))
    kick(host, AT, 0, 3)
    kick(host, OTHER, 3, 3)
    assert [report.kind for report in card.reports] == [Kind.UNPREDICTABLE]
    assert "a kick that arrives while one runs is dropped" in card.reports[0].problem
    assert host.count(AT) == 3
    assert host.count(OTHER) == 0


def test_a_kick_of_nothing_is_ignored():
    card, host = loaded()
    kick(host, AT, 0, 0)
    card.run_until_idle()
    assert host.count(AT) == 0


def test_slots_that_nobody_wrote_are_stale():
    card, host = loaded()
    host.write(reg.PROG_CRED, 8)
    stage(host, fills(2))
    kick(host, AT, 0, 3)
    with pytest.raises(Undefined, match="staging slot 2 is dispatched and was never written"):
        card.run_until_idle()


def test_a_slot_of_which_a_word_is_missing_is_stale():
    card, host = loaded()
    host.write(reg.PROG_CRED, 8)
    staged = Flit(type=5, payload=fills(1)[0]).staged()
    for index in (0, 1, 2, 4):
        host.write(reg.stage_slot(0) + 8 * index, staged[index])
    kick(host, AT, 0, 1)
    with pytest.raises(Undefined, match="staging slot 0"):
        card.run_until_idle()


def test_staging_again_under_the_dispatcher_is_a_race():
    _, host = loaded()
    stage(host, fills(4))
    kick(host, AT, 0, 4)
    with pytest.raises(Unpredictable, match="slots 0 to 3 are dispatched, and slot 2 is written again"):
        host.stage(2, fills(1)[0], last=False)
    host.stage(4, fills(1)[0], last=False)


def test_staging_memory_has_an_end():
    _, host = loaded()
    host.stage(127, fills(1)[0], last=False)
    with pytest.raises(Undefined, match="there are 128 slots of 40 bytes"):
        host.write(reg.stage_slot(128), 0)
    with pytest.raises(Undefined, match="slots 120 to 129 are kicked, and staging memory has 128"):
        kick(host, AT, 120, 10)


def test_a_kick_for_nobody():
    _, host = loaded()
    with pytest.raises(Unsupported, match=r"a kick for \(3, 3\), where no unit is"):
        kick(host, (3, 3), 0, 1)


def test_flits_that_are_no_instruction_are_not_for_units():
    card, host = loaded()
    host.write(reg.PROG_CRED, 8)
    flit = Flit(type=FlitType.CU_DATA)
    card.write_block(card.control(0, reg.stage_slot(0)), np.array(flit.staged(), np.uint64).tobytes())
    kick(host, AT, 0, 1)
    with pytest.raises(Unsupported, match="has a flit of type 8"):
        card.run_until_idle()


def test_the_mover_is_not_made_up():
    card, host = loaded(capture=True)
    host.write(reg.MOVER.start, 1)
    assert card.reports[0].kind is Kind.NOT_MODELLED


# The mailbox


def ask(host, place, index, txn=1):
    flit = Flit(type=FlitType.CU_CTRL, payload=index << 240, dst_x=place[0], dst_y=place[1], txn=txn)
    for at, word in enumerate(flit.staged()):
        host.write(reg.TX_FLIT.start + 8 * at, word)
    host.write(reg.TX_KICK, 1)
    if host.read(reg.RX_STATUS) & reg.RX_EMPTY:
        return None
    reply = Flit.from_staged([host.read(reg.RX_FLIT.start + 8 * at) for at in range(5)])
    host.write(reg.RX_POP, 1)
    return reply


def scan(host):
    """The units of a mesh as the procedure finds them: type by place."""
    caps = host.read(reg.CAPS)
    low, high = caps >> 24 & 0xFF, caps >> 32 & 0xFF
    found = {}
    for x in range(low - 1, high + 2):
        for y in range(low - 1, high + 2):
            reply = ask(host, (x, y), 0, txn=x + 7 * y)
            fields = (reply.payload >> 248, reply.payload >> 240 & 0xFF, reply.txn, (reply.src_x, reply.src_y))
            if fields == (2, 0, x + 7 * y, (x, y)):
                value = reply.payload >> 176 & (1 << 64) - 1
                found[x, y] = (value >> 48).to_bytes(2, "big").decode(), value >> 40 & 0xFF, value >> 20 & 0xFFFF
    return found


@pytest.mark.parametrize("mesh", CARD.mesh_ids)
def test_discovery_finds_the_units_that_are_there_and_no_others(mesh):
    found = scan(Host(fresh(), mesh))
    clusters = {at for at, (kind, *_) in found.items() if kind == "MG"}
    assert clusters == set(CARD.coords(mesh, "MG"))
    assert set(found) - clusters == set(CARD.mesh(mesh).coords("VC"))
    assert {(version, depth) for _, version, depth in found.values()} == {(4, FIFO)}


def test_the_status_of_a_unit():
    card, host = loaded()
    assert ask(host, AT, 1).payload >> 176 & (1 << 64) - 1 == FIFO << 32
    card.submit(0, AT, words(Fill(addr=0, n=256)))
    card.step()
    assert ask(host, AT, 1).payload >> 239 & 1
    assert ask(host, AT, 9).payload >> 176 & (1 << 64) - 1 == 0


@pytest.mark.parametrize("index", [2, 3])
def test_cycle_counters_are_not_made_up(index):
    card, host = loaded(capture=True)
    assert ask(host, AT, index) is None
    assert card.reports[0].kind is Kind.NOT_MODELLED


def test_a_single_instruction_out_of_the_mailbox():
    _, host = loaded()
    flit = Flit(type=FlitType.CU_INST, payload=fills(1)[0], dst_x=AT[0], dst_y=AT[1])
    for at, word in enumerate(flit.staged()):
        host.write(reg.TX_FLIT.start + 8 * at, word)
    host.write(reg.TX_KICK, 1)
    assert host.count(AT) == 1


def test_the_receive_queue_overflows_and_an_empty_one_has_no_words():
    card, host = loaded(capture=True)
    for _ in range(17):
        flit = Flit(type=FlitType.CU_CTRL, dst_x=AT[0], dst_y=AT[1])
        for at, word in enumerate(flit.staged()):
            host.write(reg.TX_FLIT.start + 8 * at, word)
        host.write(reg.TX_KICK, 1)
    assert host.read(reg.RX_STATUS) == reg.RX_OVERFLOW
    for _ in range(16):
        host.write(reg.RX_POP, 1)
    assert host.read(reg.RX_STATUS) == reg.RX_OVERFLOW | reg.RX_EMPTY
    host.read(reg.RX_FLIT.start)
    assert card.reports[0].kind is Kind.UNDEFINED


def test_the_mailbox_is_shut_while_a_program_is_dispatched():
    _, host = loaded()
    stage(host, fills(1))
    kick(host, AT, 0, 1)
    assert ask(host, AT, 0) is None
