"""Sums over meshes through DRAINs into another mesh's cluster: the bits of the RTL, and what crossed the links."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from meshwright.runtime.programs import Programs
from meshwright.sharding import MeshGroup
from meshwright.simulator import registers as reg
from meshwright.targets.ktpu.isa import Drain
from programs.compare import SimulatedCard
from sharding.samples import CARD, RUNS, STAR

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "crossmesh.npz")
CASES = [name.removesuffix("_ranks") for name in GOLDEN.files if name.endswith("_ranks")]
STARS = {2: [(CARD, (0, 1)), (CARD, (2, 3)), (STAR, (0, 3))], 4: [(STAR, (0, 1, 2, 3)), (STAR, (2, 0, 1, 3))]}


def spread(group, case):
    return [group.split(GOLDEN[f"{case}_{side}"].view(np.float16), axis=1) for side in "ab"]


def remote_drains(card, plan):
    """DRAINs of the plan's programs that leave their mesh, by (mesh, mesh of the destination)."""
    backend = card.card.backend
    assert isinstance(backend, Programs)
    found = {}
    for work in backend.compiled(plan.graph()).programs:
        for word in work.code.program.words:
            if isinstance(word, Drain) and word.dfin:
                assert word.dnode == 1
                assert word.dbuf == 2, "added into resident tiles"
                assert (word.dfin & 15, word.dfin >> 4) in card.machine.coords(word.dmesh, "MG")
                found.setdefault((int(work.site.chip), word.dmesh), []).append(word)
    return found


def packets_of(words):
    """Packets and beats of DRAINs: two granules of 32 bytes a sub-tile, eight a packet, and a beat that says what."""
    packets = sum(-(-2 * word.n // 8) for word in words)
    return packets, packets + sum(2 * word.n for word in words)


def counted(card, mesh, link, *, received):
    """Packets and beats that a mesh's interlink has counted on its link-th link."""
    register = reg.INTERLINK.start + 8 * (6 + 2 * link + received)
    word = card.transport.read64(card.transport.agents.register(mesh, register))
    return word & 0xFFFFFFFF, word >> 32


def check_links(card, drains, hops):
    """What was sent is neighbour to neighbour, and each end of each link counted exactly that."""
    assert set(drains) == hops
    sent, received = Counter(), Counter()
    for (mesh, other), words in drains.items():
        assert other in card.machine.neighbours(mesh)
        sent[mesh, other], received[other, mesh] = (packets_of(words),) * 2
    for mesh in card.machine.mesh_ids:
        # Interlinks have counters of two links.
        for link, other in enumerate(card.machine.neighbours(mesh)[:2]):
            assert counted(card, mesh, link, received=False) == (sent[mesh, other] or (0, 0))
            assert counted(card, mesh, link, received=True) == (received[mesh, other] or (0, 0))


def bits(value):
    return np.asarray(value).view(np.uint16)


@pytest.mark.parametrize("case", CASES)
def test_chains_are_remote_drains_and_give_the_bits_of_the_rtl(case):
    ranks = int(GOLDEN[f"{case}_ranks"])
    for meshes in [run for run in RUNS if len(run) == ranks]:
        card = SimulatedCard(CARD)
        card.close_devices()
        group = MeshGroup.open(card.card, meshes)
        plan = group.plan_chain_reduce(*spread(group, case))
        drains = remote_drains(card, plan)
        value = group.run(plan)
        assert value.meshes == meshes[-1:]
        assert np.array_equal(bits(value), GOLDEN[f"{case}_chain_fp16"])
        check_links(card, drains, set(pairwise(meshes)))


@pytest.mark.parametrize("case", CASES)
def test_stars_are_remote_drains_and_give_the_bits_of_the_rtl(case):
    ranks = int(GOLDEN[f"{case}_ranks"])
    for machine, meshes in STARS[ranks]:
        card = SimulatedCard(machine)
        card.close_devices()
        group = MeshGroup.open(card.card, meshes)
        plan = group.plan_reduce(*spread(group, case), root=ranks - 1)
        drains = remote_drains(card, plan)
        value = group.run(plan)
        assert value.meshes == meshes[-1:]
        assert np.array_equal(bits(value), GOLDEN[f"{case}_star_fp16"])
        check_links(card, drains, {(mesh, meshes[-1]) for mesh in meshes[:-1]})


@pytest.mark.parametrize("case", CASES)
def test_one_mesh_gives_the_bits_of_the_rtl_and_sends_nothing(case):
    card = SimulatedCard(CARD)
    card.close_devices()
    group = MeshGroup.open(card.card, 1)
    a, b = (group.copy(GOLDEN[f"{case}_{side}"].view(np.float16)) for side in "ab")
    plan = group.plan_matmul(a, b)
    assert np.array_equal(bits(group.run(plan)), GOLDEN[f"{case}_onemesh_fp16"])
    check_links(card, remote_drains(card, plan), set())


@pytest.mark.parametrize("case", CASES)
def test_the_calls_alone(case):
    """As a user writes it."""
    group = MeshGroup.open("ktpu-v13p", int(GOLDEN[f"{case}_ranks"]), backend="simulator")
    assert np.array_equal(bits(group.matmul_chain_reduce(*spread(group, case))), GOLDEN[f"{case}_chain_fp16"])


def test_counters_tell_one_packet_from_none():
    card = SimulatedCard(CARD)
    card.close_devices()
    group = MeshGroup.open(card.card, 2)
    case = next(case for case in CASES if GOLDEN[f"{case}_ranks"] == 2)
    plan = group.plan_chain_reduce(*spread(group, case))
    drains = remote_drains(card, plan)
    with pytest.raises(AssertionError):
        check_links(card, drains, {(0, 1)})
    group.run(plan)
    check_links(card, drains, {(0, 1)})
    group.run(plan)
    with pytest.raises(AssertionError):
        check_links(card, drains, {(0, 1)})
