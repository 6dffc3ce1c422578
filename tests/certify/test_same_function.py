"""`same_function`: what is the same, what isn't, and what it says of either."""

import numpy as np
import pytest

from meshwright.certify.same_function import same_function
from meshwright.errors import EvaluationError, GraphError
from meshwright.evaluate import field_numbers as field
from meshwright.ir import library
from meshwright.ir.expression import Operand
from meshwright.ir.pool import Pool
from meshwright.ir.spec import COPIED, PARTIAL, Spec

from .split_graphs import (
    copied_over,
    elementwise,
    embedding,
    exp2,
    largest,
    over_a_grid,
    product,
    softmax,
    transposed,
    updated,
)

A, B = Operand(0), Operand(1)
PARTIAL_MAX, PARTIAL_PROD = Spec(partial=Pool.MAX), Spec(partial=Pool.PROD)

HELD = {
    "a product and itself": (product(), product()),
    "rows": (product("rows", 2), product()),
    "columns": (product("columns", 3), product()),
    "contraction, in accumulators": (product("contraction", 4), product()),
    "contraction, on vector units": (product("contraction", 4, "vector"), product()),
    "contraction, not added but said so": (product("contraction", 4, None, result=PARTIAL), product()),
    "bias once": (product("contraction", 2, bias="once"), product(bias="once")),
    "bias with columns": (product("columns", 2, bias="once"), product(bias="every")),
    "one split for another": (product("contraction", 2), product("columns", 2)),
    "softmax over rows": (softmax(2), softmax()),
    "softmax over other rows": (softmax(4), softmax(2)),
    "rows looked up": (embedding(), embedding()),
    "rows looked up over ranks": (embedding(4), embedding()),
    "regrouped sums": (elementwise((A + B) * (A - B)), elementwise(A * A - B * B)),
    "a common factor": (elementwise(library.exp(A * B + A)), elementwise(library.exp((B + 1.0) * A))),
    "a quotient": (elementwise(library.divide(A, B)), elementwise(library.reciprocal(library.divide(B, A)))),
    "a grid": (over_a_grid((Spec.on(0), Spec.on(1)), (2, 3), (Spec.on(0), Spec.on(1))), over_a_grid()),
    "a grid of copies": (over_a_grid((COPIED, Spec.on(1)), (2, 3), (COPIED, Spec.on(1))), over_a_grid()),
    "a grid of one axis": (over_a_grid((Spec.on(0), Spec.on(0)), (2, 2), (Spec.on(0), Spec.on(0))), over_a_grid()),
    "a grid of summands": (over_a_grid((PARTIAL, Spec.on(0)), (3, 2), (PARTIAL, Spec.on(0))), over_a_grid()),
    "summands on both axes": (over_a_grid((PARTIAL, PARTIAL), (2, 2), (PARTIAL, PARTIAL)), over_a_grid()),
}


@pytest.mark.parametrize("case", HELD)
def test_held(case):
    found = same_function(*HELD[case])
    assert found.held, str(found)
    assert found.witness is None
    assert found.rounds == 2
    assert 0 < found.error < 1e-20


BROKEN = {
    "a summand left out": (
        product("contraction", 4, left_out=(2,)),
        product(),
        "ranks 0, 1 and 3: what it is when rank 2's part of 'b' is not in it",
    ),
    "a summand twice": (
        product("contraction", 4, "vector", doubled=(1,)),
        product(),
        "what it is when rank 1's part of 'b' counts twice",
    ),
    "summands that nobody adds": (
        product("contraction", 2, None),
        product(),
        "contributions that nobody has added: the sum over the 2 ranks is it",
    ),
    "a bias on every rank": (
        product("contraction", 3 + 1, "vector", bias="every"),
        product(bias="once"),
        "it and 'bias': 'bias' is added 3 times more than it should be, once on each of 4 ranks",
    ),
    "no bias": (
        product("rows", 2),
        product(bias="once"),
        None,
    ),
    "a bias left out": (
        elementwise(A * 2.0 + B * 0.0),
        elementwise(A * 2.0 + B),
        "it and 'b': 'b' is added 1 times less than it should be",
    ),
    "everything on every rank": (
        over_a_grid((COPIED, COPIED), (2, 2), (PARTIAL, PARTIAL)),
        over_a_grid(),
        "4 times it: as if each of the 4 ranks had counted all of it",
    ),
    "a scale": (product("rows", 2, scaled=-0.75), product(), "-3/4 times it"),
    "nothing at all": (elementwise(A * 0.0), elementwise(A * 3.0), "zero times it"),
    "another piece of an operand": (
        product("columns", 2, swapped=True),
        product(),
        "pieces of it on other ranks: rank 0 holds that of rank 1, rank 1 holds that of rank 0",
    ),
    "pieces one rank on": (
        copied_over(4, 1),
        copied_over(4, 0),
        "pieces of it on other ranks: rank 0 holds that of rank 1, rank 1 holds that of rank 2, "
        "rank 2 holds that of rank 3, rank 3 holds that of rank 0",
    ),
    "one piece of many": (
        over_a_grid((Spec.on(0), Spec.on(1)), (2, 2), (Spec.on(0), Spec.on(1)), twice=True),
        over_a_grid(),
        "equal to it on ranks 1, 2 and 3 only; rank 0 holds something else",
    ),
    "a transposed result": (transposed(True), transposed(False), "equal to it with its axes in the order 1, 0"),
    "operands exchanged": (elementwise(A - B), elementwise(B - A), "-1 times it"),
    "operands of a quotient exchanged": (elementwise(library.divide(A, B)), elementwise(library.divide(B, A)), None),
    "the wrong axis": (softmax(axis=0), softmax(), None),
    "softmax of a part of the row": (softmax(2, local=True), softmax(), None),
    "a sum that forgets a column": (softmax(2, forgotten=1), softmax(), None),
    "rows of the wrong rank": (embedding(2, origin=False), embedding(), None),
    "rows that nobody adds": (
        embedding(2, all_of_it=False),
        embedding(),
        "contributions that nobody has added: the sum over the 2 ranks is it",
    ),
    "a function for another": (elementwise(library.sigmoid(A) * B), elementwise(library.tanh(A) * B), None),
    "a summand twice on a grid": (
        over_a_grid((PARTIAL, COPIED), (2, 1), (PARTIAL, COPIED), twice=True),
        over_a_grid(),
        None,
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken(case):
    graph, reference, relation = BROKEN[case]
    found = same_function(graph, reference)
    assert found.verdict == "broken", str(found)
    assert found.witness is not None
    assert found.witness.real is not None
    if relation is None:
        assert "\n  no relation to the reference was found" in str(found), str(found)
    else:
        assert relation in (found.relation or ""), str(found)
    again = same_function(graph, reference, rounds=1, seed=found.witness.seed)
    assert again.witness == found.witness


def test_a_witness_is_the_first_element_that_differs():
    found = same_function(product("contraction", 2, left_out=(0,)), product(), seed=5)
    assert found.witness is not None
    a, b = (field.generate((n, 8), field.keys_of(5, "input", name)) for name, n in (("a", 4), ("b", 6)))
    whole, part = (sum(int(a[0, k]) * int(b[0, k]) for k in ks) % field.PRIME for ks in (range(8), range(4)))
    assert (found.witness.output, found.witness.rank, found.witness.index) == ("y", 0, (0, 0))
    assert (found.witness.found, found.witness.expected) == (part, whole)
    real = found.witness.real
    assert real is not None
    assert real.found != pytest.approx(real.expected)
    assert str(found.witness).startswith(f"rank 0's piece of 'y' at [0, 0] is {part}, not {whole} (seed 5); in real")


NOT_DECIDED = {
    "a quotient of powers": (exp2(A - B), exp2(A) * library.reciprocal(exp2(B))),
    "a power of a constant": (exp2(A + 1.0), exp2(A) * 2.0),
    "a root": (A * library.rsqrt(B * B) * library.rsqrt(B * B), A * library.reciprocal(B * B)),
    "a constant to a few digits": (A * 0.1, A * 0.10000000000001),
}


@pytest.mark.parametrize("case", NOT_DECIDED)
def test_not_decided(case):
    first, second = NOT_DECIDED[case]
    found = same_function(elementwise(first), elementwise(second))
    assert found.verdict == "not decided", str(found)
    assert "agree in real arithmetic on 3 random inputs" in found.reason
    assert "tolerance 1e-09" in found.reason
    assert not found.held


def test_where_they_part_by_function():
    found = same_function(elementwise(exp2(A - B)), elementwise(exp2(A) * library.reciprocal(exp2(B))))
    assert str(found.parting) == "they part at stage s2 of the graph: it asks exp2 for what the reference never does"


def test_where_they_part_in_the_reference():
    found = same_function(elementwise(A * B), elementwise(A * B + library.rsqrt(A)))
    assert str(found.parting) == "they part at stage s2 of the reference: it asks rsqrt for what the graph never does"


def test_where_they_part_by_name():
    right = elementwise(exp2(A), kept=A + B)
    assert same_function(elementwise(exp2(A), kept=B + A), right).held
    found = same_function(elementwise(exp2(A), kept=A - B), right)
    assert str(found.parting) == "they part at 'middle', which both store and which differs"
    later = same_function(elementwise(A + 1.0, kept=A + B), right)
    assert str(later.parting) == "they part at stage s5 of the reference: it asks exp2 for what the graph never does"


def test_a_maximum_is_told_as_a_choice():
    plain = same_function(elementwise(A * B), elementwise(B * A))
    assert plain.choices == 1
    assert str(plain) == f"held: equal in 2 rounds, error at most {plain.error:.2g}"
    rows = same_function(softmax(2), softmax())
    assert rows.choices == 8
    assert str(rows).endswith("; each maximum or select shows one of up to 8 operands")


def test_more_rounds_leave_less_error():
    one, three = (same_function(softmax(2), softmax(), rounds=n).error for n in (1, 3))
    assert three == pytest.approx(one**3)


def test_names_may_differ():
    mine = elementwise(A * B, names=("left", "right"), result="out.3")
    names = {"a": "left", "b": "right", "y": "out.3"}
    assert same_function(mine, elementwise(B * A), names=names).held
    crossed = same_function(
        elementwise(A - B, names=("left", "right")), elementwise(A - B), names={"a": "right", "b": "left"}
    )
    assert crossed.relation == "-1 times it"


def test_an_input_that_the_graph_doesn_t_read_is_no_error():
    assert same_function(elementwise(A + 0.0, names=("a",)), elementwise(A + B - B)).held


REFUSED = {
    "an unknown input": (
        elementwise(A * B, names=("a", "c")),
        {},
        GraphError,
        "the graph reads 'c', which the reference doesn't (it reads 'a', 'b'); where only names differ, say "
        "names={name in the reference: name in the graph}",
    ),
    "another output": (
        elementwise(A * B, result="z"),
        {},
        GraphError,
        "the reference makes 'y', which the graph doesn't (it stores 'z'); where only names differ, say "
        "names={name in the reference: name in the graph}",
    ),
    "another shape": (
        elementwise(A * B, shape=(3, 4)),
        {},
        GraphError,
        "'a' is f32[3, 4] in the graph and f32[3, 5] in the reference: the same function has the same shapes",
    ),
    "a name that isn't there": (
        elementwise(A * B),
        {"names": {"a": "x"}},
        GraphError,
        "names={'a': 'x'}: the graph has no tensor 'x'",
    ),
    "no rounds": (
        elementwise(A * B),
        {"rounds": 0},
        EvaluationError,
        "rounds=0: nothing is compared; at least 1 is needed",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    graph, options, error, message = REFUSED[case]
    with pytest.raises(error) as caught:
        same_function(graph, elementwise(A * B), **options)
    assert str(caught.value) == message


def test_a_reference_that_contradicts_itself_is_refused():
    with pytest.raises(EvaluationError) as caught:
        same_function(product(), product("contraction", 2, None))
    assert str(caught.value) == (
        "the reference can't be compared with: its output 'y' is copied, and ranks 0 and 1 hold different values of "
        "the same part"
    )


def test_positions_are_drawn_from_the_gathered_axis_or_as_stated():
    assert same_function(embedding(2), embedding(), indices={"ids": (2, 5)}).held
    wrong = embedding(2, origin=False)
    assert not same_function(wrong, embedding()).held
    with pytest.raises(EvaluationError, match=r"indices=\{'ids': \(3, 3\)\}: there is no whole number in it"):
        same_function(wrong, embedding(), indices={"ids": (3, 3)})


def test_what_is_updated_in_place_is_input_and_output():
    graph, wrong = updated(row=2), updated(row=1)
    assert same_function(graph, graph, updated=["cache"]).held
    found = same_function(wrong, graph, updated=["cache"])
    assert found.witness is not None
    assert (found.verdict, found.witness.output) == ("broken", "cache")
    with pytest.raises(GraphError, match="updated='x': the reference doesn't store that; it stores 'cache', 'y'"):
        same_function(graph, graph, updated=["x"])


def test_a_scalar_program_that_finds_the_largest_is_an_argmax():
    assert same_function(largest(by_program=True), largest(by_program=False)).held
    found = same_function(largest(by_program=True, start=1), largest(by_program=False))
    assert found.verdict == "broken"


def test_partial_inputs_in_other_pools_fold_into_the_value():
    for spec in (PARTIAL_MAX, PARTIAL_PROD):
        graph = over_a_grid((spec, COPIED), (3, 1), (spec, COPIED))
        found = same_function(graph, over_a_grid())
        # Three times a factor is 27 times the product. A maximum doesn't commute with a scale in a random order.
        assert found.verdict != "held"
        if spec is PARTIAL_PROD:
            assert found.relation == "9 times it"


def test_two_pools_at_once_are_refused():
    graph = over_a_grid((PARTIAL, PARTIAL_MAX), (2, 2), (PARTIAL, PARTIAL_MAX))
    with pytest.raises(EvaluationError, match=r"'x' is partial sum x partial max: contributions are compared in one"):
        same_function(graph, over_a_grid())


def test_the_same_answer_by_every_backend():
    from meshwright.numerics.backend import available, using

    answers = set()
    for backend in available():
        with using(backend=backend):
            answers.add(str(same_function(product("contraction", 4, left_out=(2,)), product())))
    assert len(answers) == 1


def test_inputs_are_left_as_they_are():
    x = field.generate((3,), field.keys_of(0, "input", "a"))
    same_function(elementwise(A * 2.0, names=("a",)), elementwise(A + A, names=("a",)))
    assert np.array_equal(x, field.generate((3,), field.keys_of(0, "input", "a")))
