"""How many blocks flow, what must precede what, and what is said where that doesn't work out."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace

from evaluate.random_graphs import Case, cases
from ir.malformed import Change, both, kind, more_buffers, more_stages, op, pattern
from ir.samples import F32, SAMPLES, site
from meshwright.errors import GraphError
from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.expression import Constant, Operand
from meshwright.ir.flow import block_counts, dependencies, rates, stage_order
from meshwright.ir.form import faults
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, StageId
from meshwright.ir.operation import Generic, Matmul
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.records import Buffer, Compute, Precedence, Recv, Stage


def test_block_counts_of_the_samples() -> None:
    counts = {name: list(block_counts(make()).items()) for name, make in SAMPLES.items()}
    assert sorted(counts["linear_layer"]) == [(0, 6), (1, 6), (2, 2), (3, 2)]
    assert sorted(counts["chained_reduce"]) == [(i, 1) for i in range(7)]
    assert dict(counts["multicast_rows"]) == {**dict.fromkeys(range(15), 2), 6: 1, 10: 1, 14: 1, 15: 1}
    assert dict(counts["embedding_argmax"]) == {**dict.fromkeys(range(12), 3), 10: 1}


def _edge(before: int, after: int) -> Change:
    return lambda graph: replace(graph, precedences=(*graph.precedences, Precedence(StageId(before), StageId(after))))


def _circle(graph: Graph) -> Graph:
    """Two stages that each take what the other one makes."""
    add = Compute(Generic.elementwise(Operand(0) + 1.0, 1, 1))
    ring = (Stage(add, (0,), (1,)), Stage(add, (1,), (0,)))
    return Graph((), tuple(Buffer(site(), (1,), F32, 1) for _ in range(2)), (), ring)


UNBALANCED: dict[str, tuple[str, Change, str]] = {
    "a load that stops early": (
        "linear_layer",
        kind(0, num_blocks=4),
        "BlockBalance: stage s3 takes blocks from b0 3 at a time, and 4 are put into it",
    ),
    "operands in different numbers": (
        "linear_layer",
        kind(1, num_blocks=3),
        "BlockBalance: stage s3 takes 6 blocks from b1 (2 firings of 3), and 3 are put into it",
    ),
    "a bias too few": (
        "linear_layer",
        kind(2, num_blocks=1),
        "BlockBalance: stage s3 takes 2 blocks from b2 (2 firings of 1), and 1 are put into it",
    ),
    "a store that stops early": (
        "linear_layer",
        pattern(4, loops=(Loop(1, (4, 0)),)),
        "BlockBalance: stage s4 takes 1 blocks from b3 (1 firings of 1), and 2 are put into it",
    ),
    "an index too few": (
        "embedding_argmax",
        kind(0, num_blocks=2),
        "BlockBalance: stage s1 takes 3 blocks from b0 (3 firings of 1), and 2 are put into it",
    ),
    "a contribution too few": (
        "embedding_argmax",
        both(kind(3, num_blocks=2), kind(4, num_blocks=2), pattern(4, loops=(Loop(2, (0, 0)),))),
        "BlockBalance: stage s6 takes 3 blocks from b6 (3 firings of 1), and 2 are put into it",
    ),
    "a reduction of more blocks": (
        "multicast_rows",
        op(7, blocks=3),
        "BlockBalance: stage s7 takes blocks from b5 3 at a time, and 2 are put into it",
    ),
    "blocks that nobody takes": (
        "linear_layer",
        both(
            more_buffers(Buffer(site(), (1,), F32, 1)),
            more_stages(Stage(Compute(Generic((Constant(0.0),), ())), outs=(5,))),
        ),
        "BlockBalance: 1 blocks are put into b5, and no stage takes them",
    ),
    "a continued sum of another number": (
        "chained_reduce",
        both(
            more_buffers(*(Buffer(site(), (4, 4), F32, 2), Buffer(site(), (2, 4), F32, 2))),
            more_stages(
                Stage(Compute(Generic((Constant(0.0),), ())), outs=(7,)),
                Stage(Compute(Generic((Constant(0.0),), ())), outs=(8,)),
                Stage(Compute(Matmul((4, 2, 4), 1, True)), (7, 8, 2), (2,)),
            ),
            kind(0, num_blocks=0),
            kind(1, num_blocks=0),
        ),
        "BlockBalance: stage s6 takes 0 blocks from b5 (0 firings of 1), and 1 are put into it",
    ),
    "nobody sends": (
        "multicast_rows",
        lambda graph: replace(
            graph,
            groups=(*graph.groups, graph.groups[0]),
            stages=(*graph.stages[:1], Stage(Recv(1), outs=(1,)), *graph.stages[2:]),
        ),
        "NoOrphanRecv: stage s1 receives from g1, and no load sends to it",
    ),
    "a circle": ("linear_layer", _circle, "NoDeadlock: the stages s0 -> s1 wait for each other in a circle"),
    "a circle through memory": (
        "linear_layer",
        _edge(4, 0),
        "NoDeadlock: the stages s0 -> s3 -> s4 wait for each other in a circle",
    ),
    "a stage before itself": (
        "linear_layer",
        _edge(3, 3),
        "NoDeadlock: the stages s3 wait for each other in a circle",
    ),
}


@pytest.mark.parametrize("name", UNBALANCED)
def test_what_does_not_balance_is_refused_with_the_stage(name: str) -> None:
    sample, change, message = UNBALANCED[name]
    graph = change(SAMPLES[sample]())
    assert not faults(graph)
    with pytest.raises(GraphError) as error:
        block_counts(graph)
    assert str(error.value) == message


def test_rates() -> None:
    graph = SAMPLES["linear_layer"]()
    assert list(rates(graph.stages[3])) == [(0, 3), (1, 3), (2, 1)]
    lookup = SAMPLES["embedding_argmax"]().stages
    assert list(rates(lookup[1])) == [(0, 1)]
    assert list(rates(lookup[7])) == [(8, 3)]


def test_accumulators_are_touched_in_table_order() -> None:
    """Opened, added to, read twice, opened anew: each after the one before, whatever the FIFOs would allow."""
    g = GraphBuilder()
    x = g.tensor("x", (2, 2), F32, [0])
    sums = g.accumulator(site(), (2, 2))

    def product(*more: BufferId) -> StageId:
        operands = [g.fifo(site(), (2, 2), F32) for _ in range(2)]
        for buffer in operands:
            g.load(x, whole((2, 2)), buffer)
        return g.compute(Matmul((2, 2, 2), 1), (*operands, *more), (sums,))

    def read(name: str) -> StageId:
        out = g.fifo(site(), (2, 2), F32)
        stage = g.compute(Generic.elementwise(Operand(0), 1, 2), (sums,), (out,))
        g.store(g.tensor(name, (2, 2), F32, [0]), whole((2, 2)), out)
        return stage

    touching = [product(), product(sums), read("first"), read("second"), product(), read("third")]
    graph = g.graph()
    found = set(dependencies(graph))
    assert set(pairwise(touching)) <= found
    order = stage_order(graph)
    assert [s for s in order if s in touching] == touching
    assert block_counts(graph)[sums] == 1


def test_order_takes_the_lowest_first() -> None:
    graph = SAMPLES["chained_reduce"]()
    assert stage_order(graph) == tuple(range(9))
    backwards = both(_edge(5, 0))(graph)
    assert stage_order(backwards) == (1, 3, 4, 5, 0, 2, 6, 7, 8)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases)
def test_orders_keep_every_dependency(case: Case) -> None:
    order = stage_order(case.graph)
    assert sorted(order) == list(range(len(case.graph.stages)))
    place = {stage: position for position, stage in enumerate(order)}
    edges = dependencies(case.graph)
    assert len(set(edges)) == len(edges)
    assert all(place[before] < place[after] for before, after in edges)


def test_a_pattern_without_loops_is_one_block() -> None:
    assert whole((2, 3)) == Affine((0, 0), (2, 3))
    assert whole((2, 3)).num_blocks == 1
