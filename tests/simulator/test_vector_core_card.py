"""Vector cores on a card: emitted programs dispatched by a host, bursts from clusters, faults and defects."""

from __future__ import annotations

import numpy as np
import pytest
from tests.simulator.programs import CARD, Host, Product, fresh, words
from tests.targets.ktpu.vector_rig import graph_of, halves, placed, tasks_of

from meshwright.evaluate.walk import evaluate
from meshwright.kernels.alone import operand_name
from meshwright.kernels.elementwise import gelu
from meshwright.kernels.norm import layer_norm
from meshwright.kernels.softmax import softmax
from meshwright.simulator import Card, Kind
from meshwright.simulator.unit import Signal
from meshwright.simulator.vector_core import Fault
from meshwright.targets.ktpu.arithmetic import KtpuArithmetic
from meshwright.targets.ktpu.isa import Desc, Drain, Run, load_code
from meshwright.targets.ktpu.isa import vector as isa

VECTOR, OTHER = CARD.coords(0, "VC")[:2]
MEMORY = 0x8000


def host_address(address: int) -> int:
    return CARD.host_addr(0, CARD.split_addr(address)[1])


@pytest.mark.parametrize(
    ("kernel", "shapes"),
    [(gelu, [(40, 384)]), (softmax(scale=0.125), [(48, 192)]), (layer_norm(), [(16, 384), (384,), (384,)])],
    ids=["gelu", "softmax", "layer_norm"],
)
def test_emitted_programs_dispatched_by_a_host(kernel, shapes):
    operands = [halves(*shape, seed=at) for at, shape in enumerate(shapes)]
    graph = graph_of(kernel, *operands)
    where = placed(graph, "rows")
    card = fresh()
    for at, operand in enumerate(operands):
        card.write_block(host_address(where[graph.tensor_id(operand_name(at)), 0].address), operand.tobytes())
    host = Host(card, 0)
    for task in tasks_of(graph, where):
        host.run((task.site.x, task.site.y), list(task.program.encode()))
    given = {operand_name(at): (operand,) for at, operand in enumerate(operands)}
    (wanted,) = evaluate(graph, given, KtpuArithmetic())["result"]
    found = card.read_block(host_address(where[graph.tensor_id("result"), 0].address), wanted.nbytes)
    assert found == wanted.tobytes()
    assert card.reports == []


def program(*code, descriptors=()):
    return words(*load_code((*code, isa.Halt())), *descriptors, Run())


def described(number, base, *dims):
    return (Desc.base(number, base), *(Desc.dim(number, at, stride=s, bound=b) for at, (s, b) in enumerate(dims)))


DRAIN = (isa.VectorDrain(ad=1, l1off=8),)
TWO_WORDS = described(1, CARD.global_addr(0, MEMORY), (32, 2))


def drain_to(at, buffer=0):
    """One sub-tile of a product to word 8 of a vector core's L1; the agent is told."""
    agent = CARD.mesh(0).agent
    place = {"dst_x": at[0], "dst_y": at[1], "dack_x": agent[0], "dack_y": agent[1]}
    return Drain(n=1, addr=8, dnode=1, dbuf=buffer, dflags=1, **place)


def product():
    a = np.random.default_rng(1).standard_normal((4, 32)).astype(np.float16).view(np.uint16)
    return Product(a, a, 1, 1, 1)


def test_a_burst_from_a_cluster_is_drained_by_the_vector_core():
    card, sums = fresh(), product()
    sums.load(card)
    host = Host(card, 0)
    host.round({(1, 1): words(*sums.tile(0, 0), drain_to(VECTOR), sums.drain(0, 0))}, extra={VECTOR: 1})
    one = described(1, CARD.global_addr(0, MEMORY), (32, 1))
    host.run(VECTOR, program(*DRAIN, descriptors=one))
    assert card.read_block(CARD.host_addr(0, MEMORY), 32) == sums.result(card, 4, 4).tobytes()
    assert card.reports == []


def test_a_burst_for_another_buffer_is_a_fault_of_the_next_instruction():
    card, sums = Card(CARD, capture=True), product()
    sums.load(card)
    card.submit(0, (1, 1), words(*sums.tile(0, 0), drain_to(VECTOR, buffer=1)))
    card.run_until_idle()
    assert ["buffer 1" in report.problem for report in card.reports] == [True]
    assert "is dropped without an acknowledgement" in card.reports[0].problem
    card.submit(0, VECTOR, words(Run()))
    card.run_until_idle()
    assert Host(card, 0).count(VECTOR) >= 1


def test_faults_complete_with_their_code():
    card = fresh()
    card.submit(0, VECTOR, program(isa.Load(ad=0, vd=0, dtype=5)))
    card.run_until_idle()
    status = Host(card, 0).read(0x1000 + 8 * (VECTOR[1] << 4 | VECTOR[0]))
    assert status >> 56 == Signal.FAULT
    assert status >> 24 & 0xFFFF_FFFF == Fault.DTYPE
    assert card.reports == []


@pytest.mark.parametrize(
    ("code", "kind", "problem"),
    [
        ((isa.Load(ad=0, vd=0), isa.Store(ad=0, vd=0), *DRAIN), Kind.UNDEFINED, "an element of L1 that nothing has"),
        ((isa.VectorFill(ad=1),), Kind.UNDEFINED, "is read and was never written"),
    ],
)
def test_defects_are_reported_with_their_word(code, kind, problem):
    card = Card(CARD, capture=True)
    card.submit(0, VECTOR, program(*code, descriptors=TWO_WORDS))
    card.run_until_idle()
    (report,) = card.reports
    assert (report.kind, report.at, report.unit) == (kind, VECTOR, report.unit)
    assert problem in report.problem


def test_code_without_an_end_waits_for_ever():
    card = Card(CARD, capture=True)
    card.submit(0, VECTOR, words(*load_code([isa.Barrier()] * CARD.vector_core.instructions), Run()))
    card.run_until_idle()
    assert [report.kind for report in card.reports] == [Kind.DEADLOCK]
    assert "the code has no VHALT" in card.waiting()[0]


def test_unset_elements_of_a_last_chunk_are_unset_in_memory():
    card = fresh()
    length = (isa.SetImmediate(vd_sreg=0, imm=20), isa.SetLength(va_sreg=0))
    moves = (isa.Alu(op="VMOV", sa=3, va=1, vd=0), isa.Store(ad=0, vd=0, offset=8), *DRAIN)
    descriptors = (*described(0, 0, (1, 8)), *TWO_WORDS)
    Host(card, 0).run(VECTOR, program(*length, *moves, descriptors=descriptors))
    where = CARD.host_addr(0, MEMORY)
    assert np.frombuffer(card.read_block(where, 40), np.float16).tolist() == [1.0] * 20
    with pytest.raises(Exception, match="never written"):
        card.read_block(where + 40, 8)
