"""Linearity classes: what they are for the expressions people write, and that they never promise too much."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ir.exact import EXACT_UNARY, exact_value
from meshwright.ir import library
from meshwright.ir.expression import (
    Binary,
    BinaryOp,
    Cast,
    Constant,
    Expr,
    MultiplyAdd,
    Operand,
    Select,
    Special,
    Unary,
    UnaryOp,
    show,
)
from meshwright.ir.formats import ElementType
from meshwright.ir.linearity import Linearity, classify, is_linear_in
from meshwright.ir.pool import Pool

X, Y, Z = Operand(0), Operand(1), Operand(2)
F, L, M, N = Linearity.INDEPENDENT, Linearity.LINEAR, Linearity.MULTILINEAR, Linearity.NONLINEAR
POSITIVE = Z > 0.0

CLASSES: list[tuple[Expr, tuple[Linearity, ...]]] = [
    (Constant(0.0), (F, F, F)),
    (Constant(1.0), (F, F, F)),
    (X, (L, F, F)),
    (X + Y, (L, L, F)),
    (X - Y, (L, L, F)),
    (-X, (L, F, F)),
    (X * 2.0 + Y * -3.0, (L, L, F)),
    (MultiplyAdd(X, Constant(2.0), Y), (L, L, F)),
    (X + 0.0, (L, F, F)),
    (X * 0.0, (F, F, F)),
    (X * -0.0 + Y, (F, L, F)),
    (Cast(X, ElementType.F16), (L, F, F)),
    (X * Y, (M, M, F)),
    (X * Y * Z, (M, M, M)),
    (X * Y + X * Z, (M, N, N)),
    (MultiplyAdd(X, Y, X * Z), (M, N, N)),
    ((X + Y) * Z, (N, N, M)),
    (X * library.exp(Y), (M, N, F)),
    (X * library.reciprocal(Y), (M, N, F)),
    (library.divide(X, Y), (M, N, F)),
    (Select(POSITIVE, X, Y), (N, N, N)),
    (Select(POSITIVE, X, X * 2.0), (M, F, N)),
    (Select(POSITIVE, X, Constant(0.0)), (M, F, N)),
    # Affine is not linear: what is added to every summand is added many times.
    (X + 1.0, (N, F, F)),
    (X * Y + 1.0, (N, N, F)),
    (X * Y + Z, (N, N, N)),
    (Select(POSITIVE, X, Constant(1.0)), (N, F, N)),
    (X + Unary(UnaryOp.EXP2, Constant(1.0)), (N, F, F)),
    # Products with itself, and everything that isn't a sum of products.
    (X * X, (N, F, F)),
    (X * Y * X, (N, M, F)),
    (X * library.exp(X), (N, F, F)),
    (library.absolute(X), (N, F, F)),
    (library.maximum(X, Y), (N, N, F)),
    (library.maximum(X, X), (N, F, F)),
    (X > 0.0, (N, F, F)),
    (Select(X > 0.0, X, -X), (N, F, F)),
    (Cast(X, ElementType.I32), (N, F, F)),
    (library.silu(X), (N, F, F)),
    (library.gelu(X) * Y, (N, M, F)),
    # Infinity times a sum is not the sum of infinities, and nothing is linear in a NaN.
    (X * float("inf"), (N, F, F)),
    (X * (Constant(Special.NEGATIVE_INFINITY) * 2.0), (N, F, F)),
    (MultiplyAdd(X, Constant(Special.NAN), Y), (N, N, F)),
    (Select(POSITIVE, X, Constant(Special.NEGATIVE_INFINITY)), (N, F, N)),
    # Too many terms to keep account of: not known, so nonlinear.
    (sum(map(Operand, range(3, 23)), X) * sum(map(Operand, range(23, 43)), Y), (N, N, F)),
]


@pytest.mark.parametrize(("expr", "classes"), CLASSES, ids=[show(expr)[:60] for expr, _ in CLASSES])
def test_classes(expr: Expr, classes: tuple[Linearity, ...]) -> None:
    assert classify(expr, 3) == classes


def test_jointly() -> None:
    assert is_linear_in(X + Y, frozenset({0, 1}))
    assert is_linear_in(Select(POSITIVE, X, Y), frozenset({0, 1}))
    assert is_linear_in((X + Y) * Z, frozenset({0, 1}))
    assert not is_linear_in((X + Y) * Z, frozenset({0}))
    assert not is_linear_in(X * Y, frozenset({0, 1}))
    assert not is_linear_in(X + Y, frozenset({0}))
    assert not is_linear_in(X * float("inf"), frozenset({0}))


@pytest.mark.parametrize("pool", Pool)
def test_the_sum_is_the_one_pool_that_is_linear(pool: Pool) -> None:
    together = frozenset(range(3 * pool.components))
    assert [is_linear_in(expr, together) for expr in pool.fold(3)] == [pool is Pool.SUM] * pool.components


# Soundness: whatever is called linear is, in exact arithmetic.

constants = st.sampled_from([0.0, 1.0, -2.0, 0.5]).map(Constant)
leaves = st.sampled_from([X, Y, Z]) | constants


def _larger(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    sums = st.sampled_from([BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.ADD, BinaryOp.MUL])
    compared = st.builds(Binary, st.sampled_from([BinaryOp.LT, BinaryOp.GT, BinaryOp.EQ]), inner, inner)
    joined = st.builds(Binary, st.sampled_from([BinaryOp.AND, BinaryOp.OR]), compared, compared)
    predicates = compared | joined | st.builds(Unary, st.just(UnaryOp.NOT), compared)
    return st.one_of(
        st.builds(Binary, sums, inner, inner),
        st.builds(Binary, sums, inner, inner),
        st.builds(MultiplyAdd, inner, inner, inner),
        st.builds(Unary, st.sampled_from(EXACT_UNARY), inner),
        st.builds(Binary, st.sampled_from([BinaryOp.MAX, BinaryOp.MIN]), inner, inner),
        st.builds(Select, predicates, inner, inner),
        st.builds(Cast, inner, st.sampled_from([ElementType.F16, ElementType.F32])),
    )


exprs = st.recursive(leaves, _larger, max_leaves=7)
values = st.fractions(min_value=-4, max_value=4, max_denominator=4)
points = st.lists(values, min_size=3, max_size=3)
many = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


def additive(expr: Expr, together: frozenset[int], a: Sequence[Fraction], b: Sequence[Fraction]) -> bool:
    """Whether f(a + b) = f(a) + f(b) and f(3 a) = 3 f(a) in the operands `together`, the others held at a's values."""
    moved = [y if i in together else x for i, (x, y) in enumerate(zip(a, b, strict=True))]
    both = [x + y if i in together else x for i, (x, y) in enumerate(zip(a, b, strict=True))]
    thrice = [3 * x if i in together else x for i, x in enumerate(a)]
    one = exact_value(expr, a)
    return exact_value(expr, both) == one + exact_value(expr, moved) and exact_value(expr, thrice) == 3 * one


@many
@given(exprs, st.lists(points, min_size=4, max_size=4))
@example(Select(X > 0.0, X, X), [[Fraction(1)] * 3] * 4)
def test_what_is_called_linear_is(expr: Expr, at: list[list[Fraction]]) -> None:
    classes = classify(expr, 3)
    linear = frozenset(i for i, c in enumerate(classes) if c is L)
    for a, b in pairwise(at):
        if linear:
            # LINEAR says: in all operands taken together, of which the others aren't read.
            assert additive(expr, frozenset(range(3)), a, b)
        for index, found in enumerate(classes):
            if found is M or (found is L and len(linear) == 1):
                assert additive(expr, frozenset({index}), a, b)
            if found is F:
                other = [b[i] if i == index else x for i, x in enumerate(a)]
                assert exact_value(expr, other) == exact_value(expr, a)
        for together in (frozenset({0, 1}), frozenset({1, 2}), frozenset({0, 1, 2})):
            if is_linear_in(expr, together):
                assert additive(expr, together, a, b)


def test_the_check_of_soundness_has_teeth() -> None:
    a, b = [Fraction(1)] * 3, [Fraction(-2)] * 3
    assert not additive(library.absolute(X), frozenset({0}), a, b)
    assert not additive(X + 1.0, frozenset({0}), a, b)
    assert not additive(X * Y, frozenset({0, 1}), a, b)


def test_random_expressions_are_often_linear() -> None:
    """Otherwise the property above would hold for want of cases."""
    found: list[Linearity] = []

    @settings(max_examples=200, deadline=None, database=None, derandomize=True)
    @given(exprs)
    def collect(expr: Expr) -> None:
        found.extend(classify(expr, 3))

    collect()
    assert found.count(L) > 20 and found.count(M) > 5
