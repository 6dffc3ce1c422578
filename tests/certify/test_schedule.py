"""Firing orders: greedy goes as far as anything can, deeper buffers are as shallow as they may be, and it is fast."""

from __future__ import annotations

import time
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from certify.broken_graphs import buffer
from certify.hand_made import F32, GRID, chain_sum, elementwise, multicast, pipeline, rows, site, two_branches
from evaluate.random_graphs import random_case
from meshwright.certify import Verdict, certify, recheck
from meshwright.certify.schedule import run, smallest_circle, sufficient_depths, waits
from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.flow import block_counts, stage_order
from meshwright.ir.graph import Graph
from meshwright.ir.ids import StageId
from meshwright.ir.operation import Matmul, Reduce
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import Precedence
from meshwright.ir.steps import Port, Reason, Walk, walk_of


def random_end(walk: Walk, random: Random) -> tuple[int, ...]:
    """Where single steps in a random order end."""
    done = [0] * len(walk.steps)
    while True:
        able = [
            s
            for s in range(len(done))
            if done[s] < walk.steps[s]
            and all(done[b] == walk.steps[b] for b in walk.waits[s])
            and all(r.mine.moved(done[s] + 1) <= r.theirs.moved(done[r.other]) + r.slack for r in walk.rules[s])
        ]
        if not able:
            return tuple(done)
        done[random.choice(able)] += 1


def narrowed(seed: int) -> Graph:
    """A random graph with its buffers one block deep, mostly, and orders that nobody asked for."""
    random = Random(seed)
    graph = random_case(seed, seed % 7, False).graph
    buffers = tuple(replace(b, depth=random.choice([1, 1, 1, 2])) for b in graph.buffers)
    order = stage_order(graph)
    pairs = [sorted(random.sample(range(len(order)), 2)) for _ in range(random.choice([0, 1, 2]))]
    stated = tuple(Precedence(order[a], order[b]) for a, b in pairs)
    return replace(graph, buffers=buffers, precedences=(*graph.precedences, *stated))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32))
def test_every_order_ends_where_greedy_ends(seed: int) -> None:
    graph = narrowed(seed)
    block_counts(graph)
    walk = walk_of(graph)
    assert random_end(walk, Random(seed)) == run(walk).done


def test_some_of_those_get_stuck() -> None:
    ends = [run(walk_of(narrowed(seed))).finished for seed in range(200)]
    assert 10 < ends.count(False) < 190


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32))
def test_depths_that_do_are_as_small_as_they_can_be_by_themselves(seed: int) -> None:
    walk = walk_of(narrowed(seed))
    outcome = run(walk)
    if outcome.finished:
        assert sufficient_depths(walk).deeper == {}
        return
    stuck = waits(walk, outcome.done)
    assert smallest_circle(stuck)
    depths = sufficient_depths(walk)
    if depths is None:
        # No buffer is in the way: then no depth helps.
        assert not run(walk, dict.fromkeys(map(int, outcome.peaks), 1 << 20)).finished
        return
    assert run(walk, depths.deeper).finished
    for b, more in depths.deeper.items():
        assert not run(walk, {**depths.deeper, b: more - 1}).finished


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 32))
def test_the_checker_follows_every_order(seed: int) -> None:
    graph = narrowed(seed)
    certificate = certify(graph, GRID)
    order = certificate.entry("NoDeadlock")
    if order.verdict is Verdict.HELD:
        entries = tuple(e if e.verdict is Verdict.HELD else None for e in certificate.entries)
        from meshwright.certify.checker import _Checker

        checker = _Checker(graph, GRID, order.evidence)
        assert all(checker.check(e) for e in entries if e is not None)


@given(st.integers(1, 9), st.integers(0, 8), st.integers(1, 9), st.integers(0, 200))
def test_most_steps_turns_moved_round(period: int, first: int, count: int, blocks: int) -> None:
    first = min(first, period - 1)
    port = Port(period, first, min(count, period - first))
    most = port.most_steps(blocks)
    assert port.moved(most) <= blocks < port.moved(most + 1)


# The case of public bug reports: one block too shallow, and quiet with one more.


@pytest.mark.parametrize("blocks", [2, 3, 7, 1000])
def test_a_fifo_one_block_too_shallow(blocks: int) -> None:
    assert certify(two_branches(blocks, blocks), GRID).verdict is Verdict.HELD
    entry = certify(two_branches(blocks, blocks - 1), GRID).entry("NoDeadlock")
    assert entry.verdict is Verdict.BROKEN
    assert entry.witness is not None
    assert entry.witness.change == f"make b0 {blocks} blocks deep instead of {blocks - 1}"


def test_a_contraction_longer_than_its_fifos_are_deep() -> None:
    """A product takes its pairs one by one: FIFOs of one block do, however many pairs there are."""
    g = GraphBuilder()
    x, w, y = g.tensor("x", (4, 640), F32, [0]), g.tensor("w", (4, 640), F32, [0]), g.tensor("y", (4, 4), F32, [0])
    a, b, out = g.fifo(site(), (4, 32), F32, 1), g.fifo(site(), (4, 32), F32, 1), g.fifo(site(), (4, 4), F32, 1)
    along = Affine((0, 0), (4, 32), (Loop(20, (0, 32)),))
    g.load(x, along, a)
    g.load(w, along, b)
    g.compute(Matmul((4, 4, 32), 20, True), (a, b), (out,))
    g.store(y, whole((4, 4)), out)
    assert certify(g.graph(), GRID).verdict is Verdict.HELD


def test_tiles_follow_each_other_through_an_accumulator() -> None:
    """Of one block: it is opened again when its sums have been taken out; a second read of it holds that up."""
    graph = chain_sum()
    assert all(b.depth == 1 for b in graph.buffers if b.resident)
    assert certify(graph, GRID).entry("NoDeadlock").verdict is Verdict.HELD


def test_no_depth_helps_against_a_circle_of_orders() -> None:
    """A store has to wait for a stage that takes what only comes through it."""
    graph = two_branches(4, 4)
    graph = replace(graph, precedences=(*graph.precedences, Precedence(StageId(6), StageId(3))))
    entry = certify(graph, GRID).entry("NoDeadlock")
    assert entry.verdict is Verdict.BROKEN
    assert entry.message.startswith("the stages s")


def test_which_depths_would_do_for_two_buffers() -> None:
    graph = buffer(two_branches(6, 3), 2, depth=1)
    walk = walk_of(graph)
    depths = sufficient_depths(walk)
    assert depths is not None
    assert depths.deeper == {0: 3}


# Speed


def long_chain(operations: int, blocks: int) -> Graph:
    g = GraphBuilder()
    x, y = g.tensor("x", (blocks, 4), F32, [0]), g.tensor("y", (blocks, 4), F32, [0])
    last = g.fifo(site(), (1, 4), F32)
    g.load(x, rows(blocks), last)
    for _ in range(operations):
        following = g.fifo(site(), (1, 4), F32)
        g.compute(elementwise(), (last,), (following,))
        last = following
    g.store(y, rows(blocks), last)
    return g.graph()


@pytest.mark.parametrize(("operations", "blocks"), [(10_000, 10), (1, 100_000), (1, 1 << 30)])
def test_large_graphs_take_seconds(operations: int, blocks: int) -> None:
    graph = long_chain(operations, blocks)
    started = time.process_time()
    assert run(walk_of(graph)).finished
    assert time.process_time() - started < 20


def test_loops_of_different_lengths_are_repeated_too() -> None:
    """Where one block comes out for three that go in, and another stage takes seven: rounds repeat after a while."""
    g = GraphBuilder()
    blocks = 21 * 4000
    x, y = g.tensor("x", (blocks, 4), F32, [0]), g.tensor("y", (blocks // 21, 4), F32, [0])
    a, b, c = (g.fifo(site(), (1, 4), F32) for _ in range(3))
    g.load(x, rows(blocks), a)
    g.compute(Reduce(Pool.SUM, (0,), 3), (a,), (b,))
    g.compute(Reduce(Pool.MAX, (0,), 7), (b,), (c,))
    g.store(y, rows(blocks // 21), c)
    graph = g.graph()
    certificate = certify(graph, GRID)
    assert certificate.verdict is Verdict.HELD
    recheck(certificate, graph, GRID)
    order = certificate.entry("NoDeadlock").evidence
    assert len(order.parts) < 20


def test_pipelines_of_any_depth_hold() -> None:
    for depth in (1, 2, 3, 100):
        assert certify(pipeline(50, depth), GRID).verdict is Verdict.HELD


def test_a_sender_waits_until_every_receiver_is_ready() -> None:
    """With one block of room a site, the next block is not sent before the slowest receiver has given back its room."""
    graph = multicast(4, 4)
    graph = replace(graph, buffers=tuple(replace(b, depth=1) for b in graph.buffers))
    certificate = certify(graph, GRID)
    assert certificate.verdict is Verdict.HELD
    assert certificate.entry("CreditsBounded").evidence.peaks == (1,) * 16
    walk = walk_of(graph)
    rules = [rule for rule in walk.rules[0] if rule.reason is Reason.ROOM]
    assert len(rules) == 16
    assert {rule.other for rule in rules} == set(range(16, 32))
