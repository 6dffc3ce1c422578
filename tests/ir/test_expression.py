"""Expression trees: reading, walking, replacing and printing them, whatever their size."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluate.interpreter import value_of
from ir.exact import exact_value
from ir.random_records import exprs
from meshwright.errors import GraphError
from meshwright.ir import library
from meshwright.ir.expression import (
    Binary,
    BinaryOp,
    Cast,
    Constant,
    Expr,
    MultiplyAdd,
    Node,
    Operand,
    Select,
    Special,
    Unary,
    UnaryOp,
    as_expr,
    children,
    operands,
    show,
    substitute,
    type_fault,
    walk,
)
from meshwright.ir.formats import ElementType
from meshwright.ir.linearity import classify
from meshwright.ir.nesting import MOST_DEPTH, MOST_NODES

X, Y = Operand(0), Operand(1)
quick = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


def test_trees_read_like_formulas() -> None:
    made = (X + 1.0) * 2.0 - Y
    assert show(made) == "((($0 + 1) * 2) - $1)"
    assert show(1.0 + X) == "(1 + $0)" and show(1.0 - X) == "(1 - $0)" and show(2.0 * -X) == "(2 * neg($0))"
    assert show(X < 0.0) == "($0 < 0)" and show(X > Y) == "($0 > $1)"
    assert show(Select(X > Y, MultiplyAdd(X, Y, X), Cast(X, ElementType.BF16))) == (
        "select(($0 > $1), multiply_add($0, $1, $0), bf16($0))"
    )
    assert show(Constant(Special.NAN)) == "nan" and show(Constant(-0.0)) == "-0"


def test_numbers_become_constants() -> None:
    assert as_expr(3) == Constant(3.0)
    assert as_expr(float("inf")) == Constant(Special.INFINITY)
    assert as_expr(X) is X
    with pytest.raises(TypeError) as error:
        as_expr(Node())
    assert str(error.value) == "Node is not an expression node"


@quick
@given(exprs)
def test_a_walk_gives_each_distinct_node_once_and_after_those_below(expr: Expr) -> None:
    nodes = list(walk(expr))
    assert len(set(nodes)) == len(nodes)
    assert nodes[-1] == expr
    place = {node: i for i, node in enumerate(nodes)}
    assert all(place[below] < place[node] for node in nodes for below in children(node))
    assert operands(expr) == {node.index for node in nodes if isinstance(node, Operand)}


@quick
@given(exprs)
def test_replacing_operands_by_themselves_changes_nothing(expr: Expr) -> None:
    assert substitute(expr, lambda operand: operand) == expr
    moved = substitute(expr, lambda operand: Operand(operand.index + 1))
    assert operands(moved) == {index + 1 for index in operands(expr)}


@given(st.fractions(max_denominator=9), st.fractions(max_denominator=9))
def test_replacing_is_composing(a: Fraction, b: Fraction) -> None:
    outer, inner = MultiplyAdd(X, X, Y), X * Y - 1.0
    composed = substitute(outer, lambda operand: inner if operand.index == 0 else operand)
    assert exact_value(composed, [a, b]) == exact_value(outer, [exact_value(inner, [a, b]), b])


def test_mixing_predicates_with_numbers_is_told() -> None:
    less = X < Y
    assert type_fault(Select(less, X, Y)) is None
    assert type_fault(Select(Unary(UnaryOp.NOT, Binary(BinaryOp.OR, less, less)), X, Y)) is None
    assert type_fault(less + 1.0) == "(($0 < $1) + 1) takes a number where it is given a predicate: ($0 < $1)"
    assert (
        type_fault(Binary(BinaryOp.AND, X, less))
        == "and($0, ($0 < $1)) takes a predicate where it is given a number: $0"
    )
    assert type_fault(Select(less, less, Y)) == (
        "select(($0 < $1), ($0 < $1), $1) takes a number where it is given a predicate: ($0 < $1)"
    )


def chain(depth: int) -> Expr:
    expr: Expr = X
    for _ in range(depth):
        expr = Unary(UnaryOp.NEG, expr)
    return expr


def doubled(times: int) -> Expr:
    expr: Expr = X
    for _ in range(times):
        expr = expr + expr
    return expr


@pytest.mark.parametrize("depth", [MOST_DEPTH, 10_000, 100_000])
def test_trees_that_are_too_deep_are_refused_before_anything_recurses(depth: int) -> None:
    expr = chain(depth)
    for read in (operands, lambda e: list(walk(e)), lambda e: classify(e, 1), lambda e: substitute(e, lambda o: o)):
        with pytest.raises(GraphError) as error:
            read(expr)
        assert str(error.value) == f"an expression is nested more than {MOST_DEPTH} deep"
    assert show(expr) == "neg(" * MOST_DEPTH + "..." + ")" * MOST_DEPTH


def test_trees_that_multiply_by_sharing_are_refused() -> None:
    assert 2**15 < MOST_NODES < 2**16 + 1
    assert len(list(walk(doubled(15)))) == 16
    for times in (16, 200):
        with pytest.raises(GraphError) as error:
            operands(doubled(times))
        assert str(error.value) == (
            f"an expression has more than {MOST_NODES} nodes, counting a shared one wherever it stands"
        )


FUNCTIONS = [
    (library.exp, math.exp, 1e-12),
    (library.exp2, lambda v: 2.0**v, 1e-12),
    (library.sigmoid, lambda v: 1 / (1 + math.exp(-v)), 1e-12),
    (library.silu, lambda v: v / (1 + math.exp(-v)), 1e-12),
    (library.tanh, math.tanh, 1e-12),
    (library.erf, math.erf, 3e-7),
    (library.gelu, lambda v: v * 0.5 * math.erfc(-v / math.sqrt(2)), 2e-6),
    (library.absolute, abs, 0.0),
]


@pytest.mark.parametrize(("make", "truth", "error"), FUNCTIONS, ids=[make.__name__ for make, _, _ in FUNCTIONS])
@given(v=st.floats(-8, 8))
def test_library_functions(make, truth, error, v: float) -> None:
    assert abs(value_of(make(X), [v]) - truth(v)) <= error * max(1.0, abs(truth(v)))


@given(v=st.floats(1e-3, 1e3), w=st.floats(-1e3, 1e3))
def test_library_functions_of_positive_numbers(v: float, w: float) -> None:
    for made, truth in [
        (library.log(X), math.log(v)),
        (library.sqrt(X), math.sqrt(v)),
        (library.rsqrt(X), 1 / math.sqrt(v)),
        (library.divide(Y, X), w / v),
        (library.maximum(X, Y), max(v, w)),
        (library.minimum(X, Y), min(v, w)),
        (library.select(X < Y, X, Y), min(v, w)),
    ]:
        assert math.isclose(value_of(made, [v, w]), truth, rel_tol=1e-12, abs_tol=1e-12)


@pytest.mark.parametrize("make", [library.exp, library.exp2, library.sigmoid, library.tanh, library.gelu])
@pytest.mark.parametrize("v", [-1e30, -1000.0, 1000.0, 1e30])
def test_library_functions_stay_finite_far_out(make, v: float) -> None:
    assert math.isfinite(value_of(make(X), [v]))
