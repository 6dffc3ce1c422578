"""Memory: what may meet what, in the words that people read."""

from __future__ import annotations

import re

import numpy as np
import pytest

from evaluate.one_site import F32, I32, SITE, OneSite, blocks_of
from meshwright.errors import EvaluationError, GraphError
from meshwright.evaluate.memory import Memory
from meshwright.evaluate.real import RealArithmetic
from meshwright.evaluate.walk import _Walk, evaluate
from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.expression import Operand
from meshwright.ir.flow import stage_order
from meshwright.ir.ids import ChipId
from meshwright.ir.operation import Generic, Permute, Reduce
from meshwright.ir.pattern import Affine, Gather, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import Load, Site
from meshwright.ir.spec import COPIED, PARTIAL, Spec

REAL = RealArithmetic()
ONE_MORE = Generic.elementwise(Operand(0) + 1.0, 1, 1)


def run(builder, **inputs):
    return evaluate(builder.graph(), {name: [np.asarray(v)] for name, v in inputs.items()}, REAL)


def through(builder, source, pattern_in, target, pattern_out, block=(4,), op=None, after=()):
    """Loads `source`, computes maybe, stores to `target`; gives both stages."""
    fifo = builder.fifo(SITE, block, F32)
    load = builder.load(source, pattern_in, fifo, after=after)
    if op is not None:
        out = builder.fifo(SITE, block, F32)
        builder.compute(op, (fifo,), (out,))
        fifo = out
    return load, builder.store(target, pattern_out, fifo)


def three(builder):
    return [builder.tensor(name, (4,), F32, [0]) for name in ("x", "h", "y")]


def refused(builder, message, **inputs):
    with pytest.raises(EvaluationError, match="^" + re.escape(message) + "$"):
        run(builder, **inputs)


def test_a_load_of_what_a_store_writes_needs_the_precedence() -> None:
    builder = GraphBuilder()
    x, h, y = three(builder)
    through(builder, x, whole((4,)), h, whole((4,)))
    through(builder, h, whole((4,)), y, whole((4,)))
    refused(
        builder,
        "stage s2 of real evaluation: ReadAfterWrite: stage s2 loads what s1 stores to 'h', and nothing says that s1 "
        "comes first: add the precedence (s1, s2)",
        x=np.ones(4),
    )


def test_a_load_that_comes_first_reads_what_nobody_has_written() -> None:
    builder = GraphBuilder()
    x, h, y = three(builder)
    load, _ = through(builder, h, whole((4,)), y, whole((4,)))
    _, store = through(builder, x, whole((4,)), h, whole((4,)))
    builder.precede(load, store)
    refused(
        builder,
        "stage s0 of real evaluation: ReadAfterWrite: stage s0 loads elements of 'h' that nothing has written before "
        "it: store them first, and state the precedence of that store",
        x=np.ones(4),
    )


def test_with_the_precedence_the_value_goes_through_memory() -> None:
    builder = GraphBuilder()
    x, h, y = three(builder)
    _, store = through(builder, x, whole((4,)), h, whole((4,)), op=ONE_MORE)
    through(builder, h, whole((4,)), y, whole((4,)), op=ONE_MORE, after=[store])
    made = run(builder, x=np.arange(4.0))
    assert list(made) == ["y"]
    assert made["y"][0].tolist() == [2, 3, 4, 5]
    assert evaluate(builder.graph(), {"x": [np.arange(4.0)]}, REAL, keep=["h"])["h"][0].tolist() == [1, 2, 3, 4]


def test_the_part_that_is_read_is_what_has_to_be_written() -> None:
    builder = GraphBuilder()
    x, h, y = three(builder)
    half = Affine((0,), (2,))
    _, store = through(builder, x, half, h, half, (2,))
    through(builder, h, half, y, half, (2,), after=[store])
    through(builder, x, Affine((2,), (2,)), y, Affine((2,), (2,)), (2,))
    assert run(builder, x=np.arange(4.0))["y"][0].tolist() == [0, 1, 2, 3]


def test_two_stores_of_one_element_race() -> None:
    builder = GraphBuilder()
    x, _, y = three(builder)
    through(builder, x, Affine((0,), (3,)), y, Affine((0,), (3,)), (3,))
    through(builder, x, Affine((0,), (2,)), y, Affine((2,), (2,)), (2,))
    refused(
        builder,
        "stage s3 of real evaluation: WrittenOnce: stages s1 and s3 both store to elements of 'y', and nothing says "
        "which comes last: add a precedence between them",
        x=np.arange(4.0),
    )


def test_two_stores_in_a_stated_order_leave_the_last_value() -> None:
    builder = GraphBuilder()
    x, _, y = three(builder)
    _, first = through(builder, x, whole((4,)), y, whole((4,)))
    _, second = through(builder, x, Affine((0,), (2,)), y, Affine((1,), (2,)), (2,))
    builder.precede(first, second)
    assert run(builder, x=np.arange(4.0))["y"][0].tolist() == [0, 0, 1, 3]


def test_interleaved_stores_that_never_meet_are_no_race() -> None:
    builder = GraphBuilder()
    x, _, y = three(builder)
    for offset in (0, 1):
        comb = Affine((offset,), (2,), step=(2,))
        through(builder, x, comb, y, comb, (2,))
    assert run(builder, x=np.arange(4.0))["y"][0].tolist() == [0, 1, 2, 3]


def test_one_store_that_writes_an_element_twice() -> None:
    builder = GraphBuilder()
    x, _, y = three(builder)
    twice = Affine((0,), (2,), (Loop(3, (1,)),))
    through(builder, x, twice, y, twice, (2,))
    refused(
        builder,
        "stage s1 of real evaluation: WrittenOnce: stage s1 writes elements of 'y' more than once",
        x=np.arange(4.0),
    )


def test_what_is_loaded_may_not_be_overwritten_in_no_stated_order() -> None:
    builder = GraphBuilder()
    x, h, y = three(builder)
    _, store = through(builder, x, whole((4,)), h, whole((4,)))
    through(builder, h, whole((4,)), y, whole((4,)), after=[store])
    load, _ = through(builder, x, Affine((1,), (1,)), h, Affine((1,), (1,)), (1,))
    builder.precede(store, load)
    refused(
        builder,
        "stage s5 of real evaluation: NoLiveOverwrite: stage s5 overwrites what s2 loads from 'h', and nothing says "
        "which comes first: add the precedence (s2, s5)",
        x=np.arange(4.0),
    )


def test_an_update_in_place_is_allowed_after_its_load() -> None:
    builder = GraphBuilder()
    h = builder.tensor("h", (4,), F32, [0])
    pattern = Affine((0,), (2,), (Loop(2, (2,)),))
    through(builder, h, pattern, h, pattern, (2,), ONE_MORE)
    given = np.arange(4.0, dtype=np.float32)
    found = evaluate(builder.graph(), {"h": [given]}, REAL, keep=["h"])["h"][0]
    assert found.tolist() == [1, 2, 3, 4]
    assert given.tolist() == [0, 1, 2, 3]


def test_blocks_in_a_buffer_stay_what_they_were_when_they_were_loaded() -> None:
    builder = GraphBuilder()
    x, h, y = three(builder)
    waiting, out = (builder.fifo(SITE, (4,), F32) for _ in range(2))
    load = builder.load(h, whole((4,)), waiting)
    _, overwrite = through(builder, x, whole((4,)), h, whole((4,)))
    builder.precede(load, overwrite)
    builder.compute(ONE_MORE, (waiting,), (out,))
    builder.store(y, whole((4,)), out)
    made = evaluate(builder.graph(), {"x": [np.full(4, 9.0)], "h": [np.arange(4.0)]}, REAL, keep=["h"])
    assert made["y"][0].tolist() == [1, 2, 3, 4]
    assert made["h"][0].tolist() == [9] * 4


def halo(builder, h):
    """Loads h in overlapping boxes and stores it back, block by block."""
    boxes = Affine((-1,), (4,), (Loop(2, (2,)),), pad=0.0)
    wide = builder.fifo(SITE, (4,), F32)
    load = builder.load(h, boxes, wide)
    narrow = builder.fifo(SITE, (1,), F32)
    builder.compute(Reduce(Pool.SUM, (0,)), (wide,), (narrow,))
    return load, builder.store(h, Affine((2,), (1,), (Loop(2, (-2,)),)), narrow)


def test_an_update_in_place_may_not_overtake_the_load_that_feeds_it() -> None:
    builder = GraphBuilder()
    halo(builder, builder.tensor("h", (4,), F32, [0]))
    with pytest.raises(
        EvaluationError,
        match=re.escape(
            "NoLiveOverwrite: stage s2 overwrites elements of 'h' in its block 0 that s0, which feeds it, may load "
            "only later, in block 1: store to another tensor"
        ),
    ):
        evaluate(builder.graph(), {"h": [np.arange(4.0)]}, REAL, keep=["h"])


def test_an_update_that_stays_behind_its_load_is_allowed() -> None:
    builder = GraphBuilder()
    h = builder.tensor("h", (4,), F32, [0])
    pairs = builder.fifo(SITE, (2,), F32)
    builder.load(h, Affine((0,), (2,), (Loop(2, (2,)),)), pairs)
    sums = builder.fifo(SITE, (1,), F32)
    builder.compute(Reduce(Pool.SUM, (0,)), (pairs,), (sums,))
    builder.store(h, Affine((0,), (1,), (Loop(2, (1,)),)), sums)
    assert evaluate(builder.graph(), {"h": [np.arange(4.0)]}, REAL, keep=["h"])["h"][0].tolist() == [1, 5, 2, 3]


def test_one_loaded_block_that_becomes_many_does_not_count_for_later_ones() -> None:
    builder = GraphBuilder()
    h = builder.tensor("h", (8,), F32, [0])
    fours, ones = builder.fifo(SITE, (4,), F32), builder.fifo(SITE, (1,), F32)
    builder.load(h, Affine((0,), (4,), (Loop(2, (4,)),)), fours)
    builder.compute(Permute((0,), (1,)), (fours,), (ones,))
    builder.store(h, Affine((2,), (1,), (Loop(8, (1,)),), pad=0.0), ones)
    with pytest.raises(
        EvaluationError, match="in its block 2 that s0, which feeds it, may load only later, in block 1"
    ):
        evaluate(builder.graph(), {"h": [np.arange(8.0)]}, REAL, keep=["h"])


def test_a_tensor_with_a_first_content_may_be_stored_in_part() -> None:
    builder = GraphBuilder()
    x, _, y = three(builder)
    through(builder, x, Affine((0,), (1,)), y, Affine((3,), (1,)), (1,))
    refused(
        builder,
        "Covered: 3 of 4 elements of rank 0's piece of 'y' were never stored: store them, or give the tensor a first "
        "content",
        x=np.arange(4.0),
    )
    assert run(builder, x=np.full(4, 9.0), y=np.arange(4.0))["y"][0].tolist() == [0, 1, 2, 9]


def test_a_rank_that_nobody_stores_to_is_named() -> None:
    builder = GraphBuilder()
    x = builder.tensor("x", (4,), F32, [0])
    y = builder.tensor("y", (4,), F32, [0, 1])
    through(builder, x, whole((4,)), y, whole((4,)))
    refused(
        builder,
        "Covered: 4 of 4 elements of rank 1's piece of 'y' were never stored: store them, or give the tensor a first "
        "content",
        x=np.arange(4.0),
    )
    made = evaluate(builder.graph(), {"x": [np.arange(4.0)], "y": [np.zeros(4), np.ones(4)]}, REAL)["y"]
    assert [piece.tolist() for piece in made] == [[0, 1, 2, 3], [1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input 'x' (f32[4]) is missing"),
        ({"x": [np.ones(4)], "z": [np.ones(4)]}, "there is no tensor 'z' in this graph; it has x, y"),
        ({"x": [np.ones(4), np.ones(4)]}, "'x' is on 1 chips, and 2 pieces are given"),
        (
            {"x": [np.ones((4, 1))]},
            "a piece of 'x' has shape (4, 1); (4,) (copied) over 1 chips has pieces of (4,)",
        ),
        (
            {
                "x": [
                    np.ones(4),
                ]
            }
            | {"y": [np.ones(3)]},
            "a piece of 'y' has shape (3,)",
        ),
    ],
)
def test_inputs_that_do_not_fit(inputs, message) -> None:
    builder = GraphBuilder()
    x, y = (builder.tensor(name, (4,), F32, [0]) for name in ("x", "y"))
    through(builder, x, whole((4,)), y, whole((4,)))
    with pytest.raises(EvaluationError, match=re.escape(message)):
        evaluate(builder.graph(), inputs, REAL)


def test_only_what_is_stored_can_be_kept() -> None:
    builder = GraphBuilder()
    x, y = (builder.tensor(name, (4,), F32, [0]) for name in ("x", "y"))
    through(builder, x, whole((4,)), y, whole((4,)))
    with pytest.raises(GraphError, match="there is no tensor 'z' to keep"):
        evaluate(builder.graph(), {"x": [np.ones(4)]}, REAL, keep=["z"])
    with pytest.raises(GraphError, match="tensor 'x' is an input; only what is stored can be kept"):
        evaluate(builder.graph(), {"x": [np.ones(4)]}, REAL, keep=["x"])


def test_a_gather_reads_rows_by_index_and_pads_those_of_other_ranks() -> None:
    site = OneSite()
    table = site.builder.tensor("table", (4, 3), F32, [0, 1], Spec.on(0))
    site.inputs["table"] = list(np.arange(12.0).reshape(2, 2, 3))
    result = site.builder.tensor("y", (2, 3), F32, [0, 1], PARTIAL)
    for chip in (0, 1):
        here = Site(ChipId(chip), 1, 1)
        index = site.builder.fifo(here, (2,), I32)
        if chip == 0:
            indices = site.builder.tensor("index", (2,), I32, [0, 1], COPIED)
            site.inputs["index"] = [np.asarray([3, 0])] * 2
        site.builder.load(indices, whole((2,)), index)
        rows = site.builder.fifo(here, (2, 3), F32)
        gather = Gather(Affine((0, 0), (2, 3), pad=0.0), 0, index, origin=2 * chip)
        site.builder.load(table, gather, rows)
        site.builder.store(result, whole((2, 3)), rows)
    made = evaluate(site.builder.graph(), site.inputs, REAL)["y"]
    assert made[0].tolist() == [[0, 0, 0], [0, 1, 2]]
    assert made[1].tolist() == [[9, 10, 11], [0, 0, 0]]


def test_a_scatter_stores_rows_by_index() -> None:
    site = OneSite()
    values = site.load(np.arange(6.0).reshape(2, 3), (1, 3))
    index = site.load(np.asarray([3, 1]), (1,), I32)
    target = site.builder.tensor("y", (4, 3), F32, [0])
    site.inputs["y"] = [np.full((4, 3), -1.0)]
    base = Affine((0, 0), (1, 3), (Loop(2, (0, 0)),))
    site.builder.store(target, Gather(base, 0, index), values)
    found = site.run()["y"]
    assert found.tolist() == [[-1] * 3, [3, 4, 5], [-1] * 3, [0, 1, 2]]


def test_a_scatter_that_names_a_row_twice_is_refused() -> None:
    site = OneSite()
    values = site.load(np.arange(6.0).reshape(2, 3), (1, 3))
    index = site.load(np.asarray([1, 1]), (1,), I32)
    target = site.builder.tensor("y", (4, 3), F32, [0])
    site.builder.store(target, Gather(Affine((0, 0), (1, 3), (Loop(2, (0, 0)),)), 0, index), values)
    with pytest.raises(EvaluationError, match="WrittenOnce: stage s2 writes elements of 'y' more than once"):
        site.run()


def test_a_load_of_the_front_of_a_nest_touches_no_more() -> None:
    site = OneSite()
    x = site.builder.tensor("x", (4,), F32, [0])
    site.inputs["x"] = [np.arange(4.0)]
    fifo = site.fifo((2,))
    endless = Affine((0,), (2,), (Loop(1000, (2,)),))

    site.builder.stage(Load(x, endless, 2), outs=(fifo,))
    name = site.store(fifo, (4,))
    assert site.run()[name].tolist() == [0, 1, 2, 3]


def test_a_tensor_without_axes() -> None:
    site = OneSite()
    fifo = site.load(np.asarray(5.0), (1,), pattern=Affine((), ()))
    out = site.fifo((1,))
    site.builder.compute(ONE_MORE, (fifo,), (out,))
    target = site.builder.tensor("y", (), F32, [0])
    site.builder.store(target, Affine((), ()), out)
    assert site.run()["y"] == 6.0


def test_no_blocks_are_no_blocks() -> None:
    site = OneSite()
    nothing = Affine((100,), (2,), (Loop(0, (1,)),))
    fifo = site.load(np.arange(4.0), (2,), pattern=nothing)
    out = site.fifo((2,))
    site.builder.compute(ONE_MORE, (fifo,), (out,))
    target = site.builder.tensor("y", (0,), F32, [0])
    site.builder.store(target, nothing, out)
    assert site.run()["y"].shape == (0,)


def test_loads_of_the_same_blocks_share_them_until_the_last_has_run() -> None:
    builder = GraphBuilder()
    x = builder.tensor("x", (4,), F32, [0])
    loads, stores = [], []
    for i in range(3):
        y = builder.tensor(f"y{i}", (4,), F32, [0])
        load, store = through(builder, x, blocks_of((4,), (2,)), y, blocks_of((4,), (2,)), (2,))
        loads.append(load)
        stores.append(store)
    graph = builder.graph()
    memory = Memory(graph, {"x": [np.arange(4.0)]}, REAL)
    walk = _Walk(graph, memory, REAL)
    held = []
    for stage in stage_order(graph):
        walk.run(stage)
        held.append(len(memory._shared))
    assert held == [1, 1, 1, 1, 0, 0]
    assert not walk.streams
    for i in range(3):
        assert memory.result(graph.tensor_id(f"y{i}"))[0].tolist() == [0, 1, 2, 3]
