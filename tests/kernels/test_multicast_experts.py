"""Expert routing: the top k by a scalar program, lists of tokens, the whole layer against numpy; spread embedding."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.block_flow import stuck
from tests.kernels.grid_bits import brains, same_bits
from tests.kernels.multicast_machines import one_chip

from meshwright import targets
from meshwright.errors import EvaluationError, KernelError
from meshwright.evaluate.real import RealArithmetic
from meshwright.evaluate.scalars import run_scalar
from meshwright.ir.flow import block_counts
from meshwright.ir.form import faults
from meshwright.ir.formats import ElementType as E
from meshwright.ir.pattern import Gather
from meshwright.ir.records import Load, Scalar, Store
from meshwright.kernels.alone import graph_alone, run_alone
from meshwright.kernels.grid import SpreadEmbedding, mixture_of_experts
from meshwright.kernels.grid.routing import chosen_places, chosen_rows, rows_of_choices, top_scores
from meshwright.kernels.kernel import Shaped
from meshwright.machine import load

GRID = load("grid-8x8")
PLACE = targets.placement(GRID, 0)
NUMBERS = targets.arithmetic(GRID)
REAL = RealArithmetic()


def top_of(scores, top):
    """The positions of the `top` largest of each row, ties by position, -1 where only nans are left."""
    found = np.full((len(scores), top), -1)
    for row, values in enumerate(scores):
        order = sorted((p for p, v in enumerate(values) if v == v), key=lambda p: (-values[p], p))
        found[row, : min(top, len(order))] = order[:top]
    return found


few = st.sampled_from([0.0, -1.0, 2.5, 2.5, -np.inf, np.inf, np.nan, 1e-30])


@given(st.data(), st.integers(1, 5), st.integers(1, 7), st.integers(0, 3))
def test_the_top_scores_are_those_of_a_sort(data, rows, count, more):
    top = data.draw(st.integers(1, count))
    width = count + more
    scores = np.array(data.draw(st.lists(few, min_size=rows * width, max_size=rows * width))).reshape(rows, width)
    body = top_scores(rows, width, count, top)
    outs = [(rows * top, True), (rows * top, False), (rows, False)]
    at, values, largest = run_scalar(body, [scores.reshape(1, -1)], outs, 1)
    expected = top_of(scores[:, :count], top)
    assert (at.reshape(rows, top) == expected).all()
    taken = np.where(expected < 0, 0.0, np.take_along_axis(scores, expected, 1))
    assert (values.reshape(rows, top) == taken).all()
    assert (largest[0] == taken[:, 0]).all()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(1, 3), st.integers(0, 3))
def test_the_rows_that_chose_an_expert(chosen, top, expert):
    chosen = np.array(chosen * top)
    weights = np.arange(len(chosen)) * 0.5 + 1.0
    places = np.flatnonzero(chosen == expert)
    capacity = max(1, len(places))
    outs = [(capacity, True), (capacity, True), (capacity, False)]
    ins = [chosen[None], weights[None]]
    rows, at, there = run_scalar(chosen_places(expert, len(chosen), top, capacity), ins, outs, 1)
    (same,) = run_scalar(chosen_rows(expert, len(chosen), top, capacity), ins[:1], outs[:1], 1)
    assert (same == rows).all()
    left = capacity - len(places)
    assert rows[0].tolist() == [p // top for p in places] + [0] * left
    assert at[0].tolist() == [*places] + [len(chosen)] * left
    assert there[0].tolist() == [*weights[places]] + [0.0] * left
    if len(places) > 1:
        short = [(capacity - 1, whole) for _, whole in outs]
        with pytest.raises(EvaluationError, match="a scalar program reaches position"):
            run_scalar(chosen_places(expert, len(chosen), top, capacity - 1), ins, short, 1)
        with pytest.raises(EvaluationError, match="a scalar program reaches position"):
            run_scalar(chosen_rows(expert, len(chosen), top, capacity - 1), ins[:1], short[:1], 1)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(1, 3))
def test_the_row_of_a_choice_is_where_the_expert_has_it(chosen, top):
    chosen = np.array(chosen * top)
    capacity = len(chosen)
    (made,) = run_scalar(rows_of_choices(len(chosen), 4, capacity), [chosen[None]], [(4 + len(chosen), True)], 1)
    assert made[0, :4].tolist() == [(chosen == expert).sum() for expert in range(4)]
    for expert in range(4):
        outs = [(capacity, True)] * 2 + [(capacity, False)]
        ins = [chosen[None], np.ones((1, len(chosen)))]
        _, places, _ = run_scalar(chosen_places(expert, len(chosen), top, capacity), ins, outs, 1)
        for row, place in enumerate(places[0]):
            if place < len(chosen):
                assert made[0, 4 + place] == expert * capacity + row


def layer(x, router, up, down, top):
    """The layer as it is defined, in float64; and how far a chosen score is from the first that isn't."""
    x, router, up, down = (v.astype(np.float64) for v in (x, router, up, down))
    scores = x @ router.T
    chosen = top_of(scores, top)
    result = np.zeros((len(x), down.shape[1]))
    for token, experts in enumerate(chosen):
        weights = np.exp(scores[token, experts] - scores[token, experts].max())
        for expert, weight in zip(experts, weights / weights.sum(), strict=True):
            hidden = up[expert] @ x[token]
            result[token] += weight * (down[expert] @ (hidden / (1 + np.exp(-hidden))))
    ordered = np.sort(scores, axis=1)[:, ::-1]
    gaps = np.abs(np.diff(ordered, axis=1))[:, :top]
    return result, gaps.min(initial=np.inf)


def operands(tokens, width, experts, hidden, columns=None):
    return (
        brains(0, tokens, width),
        brains(1, experts, width),
        brains(2, experts, hidden, width, scale=width**-0.5),
        brains(3, experts, columns or width, hidden, scale=hidden**-0.5),
    )


@given(st.data(), st.integers(1, 70), st.integers(1, 70), st.integers(1, 10), st.integers(1, 70), st.integers(1, 70))
def test_the_layer_is_its_definition(data, tokens, width, experts, hidden, out):
    top = data.draw(st.integers(1, min(experts, 4)))
    columns, rows = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    place = targets.placement(one_chip(columns, rows), 0)
    given_ = operands(tokens, width, experts, hidden, out)
    exact, gap = layer(*given_, top)
    made, other = mixture_of_experts(top), mixture_of_experts(top, scatter=True)
    assert stuck(graph_alone(other, place, [Shaped(v.shape, E.BF16) for v in given_])) == []
    graph = graph_alone(made, place, [Shaped(v.shape, E.BF16) for v in given_])
    assert faults(graph) == ()
    block_counts(graph)
    assert stuck(graph) == []
    found = run_alone(made, place, NUMBERS, given_)
    assert same_bits(found, run_alone(other, place, NUMBERS, given_))
    if gap < 1e-4:
        return  # Which experts are chosen is up to the rounding of the scores.
    real = run_alone(made, place, REAL, [v.astype(np.float64) for v in given_])
    np.testing.assert_allclose(real, exact, rtol=1e-9, atol=1e-9)
    # Hidden values and results are rounded to bf16.
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=2**-6, atol=2**-6 * np.abs(exact).max())


@pytest.mark.parametrize("scatter", [False, True])
def test_routing_is_by_gather_and_scalar_programs(scatter):
    given_ = operands(40, 32, 4, 64)
    made = mixture_of_experts(2, scatter=scatter)
    graph = graph_alone(made, PLACE, [Shaped(v.shape, E.BF16) for v in given_])
    looked_up = [s for s in graph.stages if isinstance(s.kind, Load) and isinstance(s.kind.pattern, Gather)]
    gathered = [s for s in looked_up if graph.tensors[s.kind.tensor].name == "operand 0"]
    scattered = [s for s in graph.stages if isinstance(s.kind, Store) and isinstance(s.kind.pattern, Gather)]
    scalars = [s for s in graph.stages if isinstance(s.kind, Scalar)]
    # One gather an expert, multicast along its row; one top k a block of tokens and one list an expert.
    assert [graph.site(s).y for s in gathered] == [0, 1, 2, 3]
    assert all(s.kind.multicast is not None for s in gathered)
    assert len(scattered) == (4 if scatter else 0)
    # Without a scatter one program says where every choice's result is, and both sites of the sum look them up.
    assert len(looked_up) == 4 + (0 if scatter else 2)
    assert len(scalars) == 2 + 4 + (0 if scatter else 1)


def test_several_blocks_of_tokens_and_of_columns_at_a_site():
    place = targets.placement(one_chip(2, 2), 0)
    x, router, up, down = operands(300, 40, 3, 300, 290)
    x, router[0] = np.abs(x), 1  # Everybody's first choice.
    exact, _ = layer(x, router, up, down, 2)
    for scatter in (False, True):
        made = mixture_of_experts(2, scatter=scatter)
        assert stuck(graph_alone(made, place, [Shaped(v.shape, E.BF16) for v in (x, router, up, down)])) == []
        real = run_alone(made, place, REAL, [v.astype(np.float64) for v in (x, router, up, down)])
        np.testing.assert_allclose(real, exact, rtol=1e-9, atol=1e-9)


def test_experts_that_nobody_chooses_do_nothing():
    x, router, up, down = operands(33, 32, 4, 32)
    router[1:] = 0
    x = np.abs(x)
    router[0] = 1
    up[2] = np.nan  # Tokens that aren't there are zeros; what is made of them is stored nowhere.
    found = run_alone(mixture_of_experts(1), PLACE, NUMBERS, [x, router, up, down])
    exact, _ = layer(x, router, np.nan_to_num(up.astype(np.float64)), down, 1)
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=2**-6, atol=2**-6 * np.abs(exact).max())


def test_a_full_expert_is_refused_and_drops_nobody():
    x, router, up, down = operands(70, 32, 4, 32)
    x, router = np.abs(x), np.zeros_like(router)
    router[0] = 1
    fits = run_alone(mixture_of_experts(1, capacity=70), PLACE, NUMBERS, [x, router, up, down])
    assert same_bits(fits, run_alone(mixture_of_experts(1), PLACE, NUMBERS, [x, router, up, down]))
    for scatter in (False, True):
        small = mixture_of_experts(1, capacity=64, scatter=scatter)
        with pytest.raises(EvaluationError, match="a scalar program reaches position 64 to 64 of a block of 64"):
            run_alone(small, PLACE, NUMBERS, [x, router, up, down])


def test_a_token_without_scores_is_refused():
    x, router, up, down = operands(5, 32, 4, 32)
    x[3] = np.nan
    with pytest.raises(EvaluationError, match="a scalar program reaches position -1"):
        run_alone(mixture_of_experts(1), PLACE, NUMBERS, [x, router, up, down])
    with pytest.raises(EvaluationError, match=r"ReadAfterWrite: stage s[0-9]+ loads elements of 'results of experts"):
        run_alone(mixture_of_experts(1, scatter=True), PLACE, NUMBERS, [x, router, up, down])


def test_slices_of_tokens_and_of_hidden():
    given_ = [v.astype(np.float64) for v in operands(40, 32, 4, 64)]
    made = mixture_of_experts(2)
    whole = run_alone(made, PLACE, REAL, given_)
    shapes = [Shaped(v.shape, E.BF16) for v in given_]
    assert made.axes(shapes) == ((0, None), (None, None), (None, None, None), (None, 1, None))
    x, router, up, down = given_
    tokens = [run_alone(made, PLACE, REAL, [part, router, up, down]) for part in np.split(x, 2)]
    np.testing.assert_allclose(np.concatenate(tokens), whole, rtol=1e-12, atol=1e-12)
    columns = [run_alone(made, PLACE, REAL, [x, router, up, part]) for part in np.split(down, 2, 1)]
    np.testing.assert_allclose(np.concatenate(columns, 1), whole, rtol=1e-12, atol=1e-12)
    (contraction,) = made.contractions(shapes)
    assert contraction.axes == (None, None, 1, 2)
    parts = [
        run_alone(made, PLACE, REAL, [x, router, a, b])
        for a, b in zip(np.split(up, 2, 1), np.split(down, 2, 2), strict=True)
    ]
    np.testing.assert_allclose(parts[0] + parts[1], whole, rtol=1e-9, atol=1e-9)
    assert made.linear_in(frozenset({3}), shapes)
    assert not made.linear_in(frozenset({2}), shapes)


FORM = "[tokens, width], [experts, width], [experts, hidden, width] and [experts, columns, hidden]"
REFUSED = {
    "mixture of experts: x is bf16[5, 8], router bf16[3, 8], up bf16[3, 6, 8] and down bf16[3, 6, 8]; they are "
    f"{FORM}": (
        2,
        ((5, 8), (3, 8), (3, 6, 8), (3, 6, 8)),
    ),
    "mixture of experts: the top 4 of 3 experts; 1 to 3 can be chosen": (4, ((5, 8), (3, 8), (3, 6, 8), (3, 8, 6))),
    "mixture of experts takes x, router, up and down; 1 operands are given: bf16[5, 8]": (2, ((5, 8),)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_operands_that_do_not_fit(message):
    top, shapes = REFUSED[message]
    with pytest.raises(KernelError, match=f"^{re.escape(message)}$"):
        graph_alone(mixture_of_experts(top), PLACE, [Shaped(shape, E.BF16) for shape in shapes])


def test_layers_that_can_not_be_made():
    with pytest.raises(KernelError, match=re.escape("mixture_of_experts(top=0, capacity=None): both are at least 1")):
        mixture_of_experts(0)
    with pytest.raises(KernelError, match=re.escape("mixture_of_experts(depth=0): a FIFO holds")):
        mixture_of_experts(1, depth=0)
    with pytest.raises(KernelError, match="mixture_of_experts: the activation can't be traced"):
        mixture_of_experts(1, activation=lambda _: None)


@given(st.integers(1, 60), st.integers(1, 90), st.integers(1, 200), st.sampled_from([None, 1, 7, 64]))
def test_spread_embedding_is_indexing(rows, columns, count, block):
    table = brains(0, rows, columns)
    indices = np.random.default_rng(1).integers(0, rows, count).astype(np.int32)
    made = SpreadEmbedding(block)
    graph = graph_alone(made, PLACE, [Shaped(table.shape, E.BF16), Shaped(indices.shape, E.I32)])
    block_counts(graph)
    assert stuck(graph) == []
    assert same_bits(run_alone(made, PLACE, NUMBERS, [table, indices]), table[indices])
    if block is None:
        assert len({graph.site(s) for s in graph.stages}) == min(64, -(-count // min(-(-count // 64), 32)))


@pytest.mark.parametrize("wrong", [-1, 10])
def test_an_index_that_is_not_there_is_refused(wrong):
    indices = np.array([1, 2, wrong], dtype=np.int32)
    with pytest.raises(EvaluationError, match="a pattern without a pad has to stay inside"):
        run_alone(SpreadEmbedding(), PLACE, NUMBERS, [brains(0, 10, 7), indices])


def test_embeddings_that_can_not_be_made():
    wrong = (
        "spread embedding: the table is bf16[5, 6] and the indices are bf16[4]; a table is [rows, columns], and "
        "indices are whole numbers (i32) with one axis"
    )
    with pytest.raises(KernelError, match=f"^{re.escape(wrong)}$"):
        SpreadEmbedding().result([Shaped((5, 6), E.BF16), Shaped((4,), E.BF16)])
    with pytest.raises(KernelError, match=re.escape("spread embedding(block=0, depth=2): both are at least 1")):
        SpreadEmbedding(0).result([Shaped((5, 6), E.BF16), Shaped((4,), E.I32)])
    table, indices = Shaped((5, 6), E.BF16), Shaped((4,), E.I32)
    assert SpreadEmbedding().axes([table, indices]) == ((None, 1), (0,))
    assert SpreadEmbedding().linear_in(frozenset({0}), [table, indices])
    assert SpreadEmbedding().contractions([table, indices]) == ()
