"""Tiles that leave a cluster for another one: peer adds, chains and stars over meshes, and what the links count."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.simulator.programs import CARD, Host, Product, drained, fresh, up, words

from meshwright.numerics import product
from meshwright.simulator import Assumptions, Card, Kind
from meshwright.simulator import registers as reg
from meshwright.targets.ktpu.isa import Drain

GOLDEN = Path(__file__).parents[1] / "golden"
PEERS = np.load(GOLDEN / "peer_add.npz")
CROSSMESH = np.load(GOLDEN / "crossmesh.npz")
AT = (1, 1)
PORT = (0, 1)
AGENT = (0, 1)
BURST = 8


def to_unit(tiles, dst, **fields):
    return Drain(n=tiles, dnode=1, dst_x=dst[0], dst_y=dst[1], dbuf=2, dflags=1, **fields)


def to_mesh(tiles, mesh, at=AT, **fields):
    """A drain into the resident tiles of a cluster of another mesh, acknowledged to the agent there."""
    return Drain(
        n=tiles,
        dnode=1,
        dst_x=PORT[0],
        dst_y=PORT[1],
        dbuf=2,
        dflags=1,
        dack_x=AGENT[0],
        dack_y=AGENT[1],
        dmesh=mesh,
        dfin=at[1] << 4 | at[0],
        **fields,
    )


def acknowledgements(tiles):
    return -(-2 * tiles // BURST)


@pytest.mark.parametrize("case", ["normal_32x128x32", "cancel_32x128x32", "large_16x256x16"])
def test_golden_peer_add_on_one_mesh(case):
    a, b = PEERS[f"{case}_a"], PEERS[f"{case}_b"]
    (m, k), n = a.shape, len(b)
    gm, gn, half = m // 4, n // 4, k // 2
    first = Product(a[:, :half], b[:, :half], gm, gn, 2)
    second = Product(a[:, half:], b[:, half:], gm, gn, 2, base=up(first.end))
    card = fresh()
    first.load(card)
    second.load(card)
    host, sender, receiver, tiles = Host(card, 0), (2, 2), (1, 3), gm * gn
    host.round({receiver: words(*first.tile(0, 0)), sender: words(*second.tile(0, 0), second.drain(0, 0))})
    drain = to_unit(tiles, receiver, dack_x=AGENT[0], dack_y=AGENT[1])
    host.round({sender: words(drain)}, extra={receiver: acknowledgements(tiles)})
    host.round({receiver: words(first.drain(0, 0))})
    assert np.array_equal(second.result(card, m, n), PEERS[f"{case}_c_second_half"])
    assert np.array_equal(first.result(card, m, n), PEERS[f"{case}_c_peer_add"])


def partials(card, case, meshes):
    """The partial product of each rank on its mesh, in the resident tiles; the products, for their addresses."""
    a, b = CROSSMESH[f"{case}_a"], CROSSMESH[f"{case}_b"]
    share = a.shape[1] // len(meshes)
    found = []
    for rank, mesh in enumerate(meshes):
        columns = slice(rank * share, (rank + 1) * share)
        sums = Product(a[:, columns], b[:, columns], 4, 4, 4, mesh=mesh)
        sums.load(card)
        Host(card, mesh).run(AT, words(*sums.tile(0, 0)))
        found.append(sums)
    return found


def codes(card, mesh):
    return card.mesh(mesh).units[AT].accumulator.codes().reshape(4, 4, 4, 4).transpose(0, 2, 1, 3).reshape(16, 16)


@pytest.mark.parametrize(("case", "meshes"), [("case0", (0, 1)), ("case0", (2, 3)), ("case1", (0, 1, 3, 2))])
def test_golden_chain_over_meshes(case, meshes):
    card = fresh()
    sums = partials(card, case, meshes)
    for rank, mesh in enumerate(meshes):
        assert np.array_equal(codes(card, mesh), CROSSMESH[f"{case}_partials_fp22"][rank])
    for here, there in pairwise(meshes):
        before = Host(card, there).count(AT)
        Host(card, here).round({AT: words(to_mesh(16, there))})
        assert Host(card, there).count(AT) == before + acknowledgements(16)
    assert np.array_equal(codes(card, meshes[-1]), CROSSMESH[f"{case}_chain_fp22"])
    Host(card, meshes[-1]).round({AT: words(sums[-1].drain(0, 0))})
    assert np.array_equal(sums[-1].result(card, 16, 16), CROSSMESH[f"{case}_chain_fp16"])


@pytest.mark.parametrize(("case", "meshes"), [("case0", (1, 0)), ("case1", (0, 1, 3, 2))])
def test_golden_star_is_forwarded_to_the_last_mesh(case, meshes):
    card = fresh()
    sums = partials(card, case, meshes)
    last = meshes[-1]
    for here in meshes[:-1]:
        before = Host(card, last).count(AT)
        Host(card, here).round({AT: words(to_mesh(16, last))})
        assert Host(card, last).count(AT) == before + acknowledgements(16)
    assert np.array_equal(codes(card, last), CROSSMESH[f"{case}_star_fp22"])
    Host(card, last).round({AT: words(sums[-1].drain(0, 0))})
    assert np.array_equal(sums[-1].result(card, 16, 16), CROSSMESH[f"{case}_star_fp16"])


def link(card, mesh, register):
    word = Host(card, mesh).read(reg.INTERLINK.start + 8 * register)
    return word >> 32, word & 0xFFFF_FFFF


def test_links_count_packets_beats_and_what_they_forward():
    card = fresh()
    partials(card, "case1", (0, 1, 3, 2))
    Host(card, 0).round({AT: words(to_mesh(16, 2))})
    Host(card, 2).count(AT)
    # Four bursts of eight granules, a descriptor each, over mesh 1 and mesh 3 to mesh 2.
    moved = (36, 4)
    assert link(card, 0, 6) == moved
    assert link(card, 1, 7) == moved
    assert link(card, 1, 8) == moved
    assert link(card, 1, 12) == (0, 4)
    assert link(card, 3, 12) == (0, 4)
    assert link(card, 2, 7) == moved
    assert link(card, 2, 12) == (0, 0)
    assert link(card, 0, 7) == (0, 0)


def test_a_drain_to_another_meshs_memory_is_written_there():
    card = fresh()
    (sums, _) = partials(card, "case0", (0, 1))
    address = CARD.global_addr(3, 0x8000)
    Host(card, 0).round({AT: words(Drain(addr=address, n=16))})
    found = drained(card.read_block(CARD.host_addr(3, 0x8000), 512), (1, 1), 4, 4)
    a, b = CROSSMESH["case0_a"][:, :256], CROSSMESH["case0_b"][:, :256]
    assert np.array_equal(found, product.matmul_fp16(a, b).view(np.uint16))
    assert link(card, 0, 6) == (18, 2)
    assert sums.mesh == 0


def test_a_write_to_another_mesh_may_be_assumed_not_to_cross():
    card = Card(CARD, capture=True, assumptions=Assumptions(remote_writes="refused"))
    partials(card, "case0", (0, 1))
    card.submit(0, AT, words(Drain(addr=CARD.global_addr(3, 0x8000), n=16)))
    card.run_until_idle()
    assert card.reports[0].kind is Kind.UNSUPPORTED
    assert "writes of units do not cross" in card.reports[0].problem


def test_doorbells_ring_at_their_mesh_behind_what_was_sent_before():
    card = fresh()
    partials(card, "case1", (0, 1, 3, 2))
    Host(card, 0).write(reg.INTERLINK_DOORBELL, 2 | 7 << 8)
    Host(card, 0).write(reg.INTERLINK_DOORBELL, 2 | 9 << 8)
    assert link(card, 2, 2) == (9, 2)
    assert link(card, 0, 14) == (0, 2)
    Host(card, 2).write(reg.INTERLINK_CONTROL, 3)
    # The count goes, the last tag stays.
    assert link(card, 2, 2) == (9, 0)


def test_an_interlink_says_what_it_is_and_can_be_switched_off():
    card = fresh(capture=True)
    partials(card, "case0", (0, 1))
    host = Host(card, 0)
    assert host.read(reg.INTERLINK.start) == 0x494C
    assert Host(card, 3).read(reg.INTERLINK.start) == 0x494C | 3 << 20
    host.write(reg.INTERLINK_CONTROL, 0)
    assert host.read(reg.INTERLINK.start) == 0
    card.submit(0, AT, words(to_mesh(16, 1)))
    card.run_until_idle()
    assert "switched off" in card.reports[0].problem
    assert host.read(reg.INTERLINK.start + 8) == 4
    host.write(reg.INTERLINK_CONTROL, 4)
    assert host.read(reg.INTERLINK.start + 8) == 0


@pytest.mark.parametrize("register", [10, 11, 13, 15])
def test_counters_of_time_are_not_made_up(register):
    card = fresh(capture=True)
    Host(card, 0).read(reg.INTERLINK.start + 8 * register)
    assert card.reports[0].kind is Kind.NOT_MODELLED


def test_a_machine_without_a_mesh_sends_nothing_past_the_gap():
    machine = CARD.without_mesh(3)
    card = Card(machine, capture=True)
    partials(card, "case0", (0, 1))
    card.submit(1, AT, words(to_mesh(16, 3)))
    card.run_until_idle()
    card.submit(0, (1, 2), words(to_mesh(16, 2)))
    assert [report.kind for report in card.reports] == [Kind.UNSUPPORTED]
    assert "has no such mesh" in card.reports[0].problem
    card = Card(machine, capture=True)
    partials(card, "case0", (0, 1))
    card.submit(0, AT, words(to_mesh(16, 2)))
    card.run_until_idle()
    assert "has no way for it" in card.reports[0].problem


def test_the_same_run_twice_gives_the_same_memory_and_signals():
    found = []
    for _ in range(2):
        card = fresh()
        sums = partials(card, "case1", (0, 1, 3, 2))
        for here, there in ((0, 1), (1, 3), (3, 2)):
            Host(card, here).round({AT: words(to_mesh(16, there))})
            Host(card, there).count(AT)
        Host(card, 2).round({AT: words(sums[-1].drain(0, 0))})
        statuses = [Host(card, mesh).read(reg.node_status(*AT)) for mesh in CARD.mesh_ids]
        found.append((sums[-1].result(card, 16, 16).tobytes(), statuses))
    assert found[0] == found[1]
