"""What the certificate says of the sample graphs: everything holds but what a scatter's positions decide."""

import msgspec
import pytest
from tests.kernels.block_flow import stuck
from tests.kernels.multicast_machines import line, one_chip, places, ring
from tests.kernels.multicast_samples import KERNELS, sample_graphs, sample_machines

from meshwright import targets
from meshwright.certify import CertificateError, Verdict, certify, recheck
from meshwright.ir.build import GraphBuilder
from meshwright.ir.expression import Operand
from meshwright.ir.formats import ElementType as E
from meshwright.ir.ids import ChipId
from meshwright.ir.operation import Generic
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.records import Site
from meshwright.kernels.alone import graph_alone
from meshwright.kernels.grid import Route, all_gather, all_reduce, multicast_matmul
from meshwright.kernels.matmul import MatrixProduct

GRAPHS, MACHINES = sample_graphs(), sample_machines()
ROUTED = {"ReadAfterWrite", "WrittenOnce"}


@pytest.mark.parametrize("name", GRAPHS)
def test_sample_graphs_are_certified(name):
    certificate = certify(GRAPHS[name], MACHINES[name])
    verdicts = {entry.obligation: entry.verdict for entry in certificate.entries}
    # Where results are scattered to is decided by scores; the evaluator asks when it runs.
    open_ = ROUTED if name == "experts-scatter" else set()
    assert {o for o, verdict in verdicts.items() if verdict is not Verdict.HELD} == open_
    assert all(verdicts[o] is Verdict.NOT_DECIDED for o in open_)
    if open_:
        with pytest.raises(CertificateError):
            recheck(certificate, GRAPHS[name], MACHINES[name])
    else:
        recheck(certificate, GRAPHS[name], MACHINES[name])


@pytest.mark.parametrize("name", ["matmul", "matmul-ragged", "matmul-shallow", "matmul-spill"])
def test_a_multicast_product_is_the_product(name):
    machine, _, operands = KERNELS[name]
    reference = graph_alone(MatrixProduct(), targets.placement(machine, 0), operands)
    certificate = certify(GRAPHS[name], machine, reference=reference)
    assert {e.verdict for e in certificate.entries} == {Verdict.HELD}


def test_an_epilogue_too_many_is_another_function():
    machine, _, operands = KERNELS["matmul-shallow"]
    place = targets.placement(machine, 0)
    other = graph_alone(multicast_matmul(epilogue=lambda x: x * 2.0), place, operands)
    reference = graph_alone(MatrixProduct(), place, operands)
    certificate = certify(other, machine, reference=reference)
    broken = [e.obligation for e in certificate.entries if e.verdict is Verdict.BROKEN]
    assert broken == ["SameFunction"]


def coupled(depth):
    """Two streams sent to two sites: one takes them in pairs, the other all of the first before any of the second.

    The second stream has to run ahead of the other site: of four blocks as many as the first one's FIFO can't hold.
    """
    builder = GraphBuilder()
    block = (2, 4)
    rows = Affine((0, 0), block, (Loop(4, (2, 0)),))
    here, there = Site(ChipId(0), 0, 0), Site(ChipId(0), 1, 0)
    group = [builder.group(here, (0, 0), (1, 0)) for _ in range(2)]
    pair = [builder.fifo(here, block, E.BF16, 1) for _ in range(2)]
    apart = [builder.fifo(there, block, E.BF16, deep) for deep in (1, depth)]
    stores = []
    for number, name in enumerate(("x", "y")):
        tensor = builder.tensor(name, (8, 4), E.BF16, [0])
        builder.multicast(tensor, rows, group[number], (pair[number], apart[number]))
        stores.append(builder.store(builder.tensor(f"copy of {name}", (8, 4), E.BF16, [0]), rows, apart[number]))
    builder.precede(*stores)
    total = builder.fifo(here, block, E.BF16, 1)
    builder.compute(Generic.elementwise(Operand(0) + Operand(1), 2, 2), pair, (total,))
    builder.store(builder.tensor("sum", (8, 4), E.BF16, [0]), rows, total)
    return builder.graph()


def deadlock(graph, machine):
    (verdict,) = (e.verdict for e in certify(graph, machine).entries if e.obligation == "NoDeadlock")
    return {Verdict.HELD: False, Verdict.BROKEN: True}[verdict]


@pytest.mark.parametrize(("depth", "stops"), [(1, True), (2, True), (3, False), (4, False)])
def test_a_fifo_one_block_too_shallow_under_a_coupled_multicast(depth, stops):
    graph = coupled(depth)
    assert deadlock(graph, one_chip(2, 1)) is stops
    assert bool(stuck(graph)) is stops


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("depth", [1, 3])
def test_other_depths_deadlock_where_running_block_by_block_does(name, depth):
    graph = GRAPHS[name]
    buffers = tuple(msgspec.structs.replace(b, depth=depth) for b in graph.buffers)
    other = msgspec.structs.replace(graph, buffers=buffers)
    assert deadlock(other, MACHINES[name]) is bool(stuck(other))


@pytest.mark.parametrize("build", [all_gather, all_reduce])
@pytest.mark.parametrize("make", [line, ring])
def test_collectives_of_sixteen_chips_are_certified(build, make):
    machine = make(16, 2, 1)
    certificate = certify(build(Route.along(machine), places(machine), (16, 3), E.F32), machine)
    assert {e.verdict for e in certificate.entries} == {Verdict.HELD}
