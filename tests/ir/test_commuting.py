"""What may be done to contributions before they are folded: for expressions people write, and never too much."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ir.exact import exact_value
from ir.test_linearity import points
from meshwright.ir import library
from meshwright.ir.commuting import commutes
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
from meshwright.ir.pool import Pool

X, Y, Z = Operand(0), Operand(1), Operand(2)
ONE, BOTH = frozenset({0}), frozenset({0, 1})
SUM, MAX, MIN, PROD = Pool.SUM, Pool.MAX, Pool.MIN, Pool.PROD

# Expression, the operands that are contributions, and the pools in which it may be applied to them.
CASES: list[tuple[Expr, frozenset[int], set[Pool]]] = [
    (X, ONE, {SUM, MAX, MIN, PROD}),
    (X * 2.0, ONE, {SUM, MAX, MIN}),
    (X * -2.0, ONE, {SUM}),
    (-X, ONE, {SUM}),
    (X * 0.0, ONE, {SUM, MAX, MIN, PROD}),
    (X * Y, ONE, {SUM}),
    (X * Y, BOTH, {PROD}),
    (X + 1.0, ONE, {MAX, MIN}),
    (X + Y, ONE, {MAX, MIN}),
    (X - Y, ONE, {MAX, MIN}),
    (Y - X, ONE, set()),
    (X + Y, BOTH, {SUM}),
    (X - Y, BOTH, {SUM}),
    (X + X, ONE, {SUM, MAX, MIN}),
    (library.maximum(X, Y), ONE, {MAX, MIN}),
    (library.maximum(X, Y), BOTH, {MAX}),
    (library.minimum(X, Y), BOTH, {MIN}),
    (library.maximum(X, X * 3.0), ONE, {MAX, MIN}),
    (library.maximum(library.exp(X), Y * 2.0), BOTH, {MAX}),
    (-library.minimum(-X, -Y), BOTH, {MAX}),
    (-library.maximum(-X, -Y), BOTH, {MIN}),
    (library.exp(X), ONE, {MAX, MIN}),
    (library.exp(X) * 3.0 + Y, ONE, {MAX, MIN}),
    (X * library.exp(Y), ONE, {SUM, MAX, MIN}),
    (X * -library.exp(Y), ONE, {SUM}),
    (library.sigmoid(X), ONE, {MAX, MIN}),
    (library.tanh(X), ONE, {MAX, MIN}),
    (library.reciprocal(X), ONE, {PROD}),
    (library.reciprocal(library.exp(X) + 1.0), ONE, set()),
    (library.divide(X, Y), BOTH, {PROD}),
    (library.log(X), ONE, set()),
    (library.log(library.exp(X) + 1.0), ONE, {MAX, MIN}),
    (library.absolute(X), ONE, {PROD}),
    (library.absolute(library.exp(X)), ONE, {MAX, MIN}),
    (library.absolute(-library.exp(X)), ONE, {MAX, MIN}),
    (X * X, ONE, {PROD}),
    (library.exp(X) * library.exp(X), ONE, {MAX, MIN}),
    (library.silu(X), ONE, set()),
    (library.gelu(X), ONE, set()),
    (X > Y, ONE, set()),
    (Select(Z > 0.0, X, Y), ONE, {MAX, MIN}),
    (Select(Z > 0.0, X, Y), BOTH, {SUM, MAX, MIN, PROD}),
    (Select(X > 0.0, X, Y), BOTH, set()),
    (Cast(X, ElementType.F16), ONE, {SUM, MAX, MIN, PROD}),
    (Cast(X, ElementType.I32), ONE, {MAX, MIN}),
    (MultiplyAdd(X, Constant(2.0), Y), ONE, {MAX, MIN}),
    (MultiplyAdd(X, Y, Constant(0.0)), BOTH, set()),
    (X * float("inf"), ONE, set()),
    (X * Constant(Special.NAN), ONE, set()),
    (Y, ONE, {MAX, MIN}),
    (Constant(1.0), ONE, {MAX, MIN, PROD}),
    (Constant(2.0), ONE, {MAX, MIN}),
    (X * 1.0, ONE, {SUM, MAX, MIN, PROD}),
    (Binary(BinaryOp.MUL, Constant(0.0), Y), ONE, {SUM, MAX, MIN}),
]


@pytest.mark.parametrize(
    ("expr", "together", "pools"), CASES, ids=[f"{show(e)[:60]} in {sorted(t)}" for e, t, _ in CASES]
)
def test_cases(expr: Expr, together: frozenset[int], pools: set[Pool]) -> None:
    assert {pool for pool in Pool if commutes(expr, pool, together)} == pools


# Soundness: whatever is said to commute does, in exact arithmetic.

EXACT = [UnaryOp.NEG, UnaryOp.ABS]
constants = st.sampled_from([0.0, 1.0, -2.0, 0.5]).map(Constant)
leaves = st.sampled_from([X, Y, Z]) | constants


def _larger(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    ops = st.sampled_from([BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MAX, BinaryOp.MIN])
    compared = st.builds(Binary, st.sampled_from([BinaryOp.LT, BinaryOp.GT, BinaryOp.EQ]), inner, inner)
    return st.one_of(
        st.builds(Binary, ops, inner, inner),
        st.builds(Binary, ops, inner, inner),
        st.builds(MultiplyAdd, inner, inner, inner),
        st.builds(Unary, st.sampled_from(EXACT), inner),
        # Reciprocals of what is not zero, so that they have an exact value everywhere.
        st.builds(lambda a: Unary(UnaryOp.RECIPROCAL, library.absolute(a) + 1.0), inner),
        st.builds(lambda a: Unary(UnaryOp.RECIPROCAL, a * a * -1.0 + -1.0), inner),
        st.builds(Select, compared, inner, inner),
        st.builds(Cast, inner, st.sampled_from([ElementType.F16, ElementType.F32])),
    )


exprs = st.recursive(leaves, _larger, max_leaves=7)
many = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
FOLDS = {SUM: sum, MAX: max, MIN: min, PROD: math.prod}


def holds(expr: Expr, pool: Pool, together: frozenset[int], ranks: list[list[Fraction]]) -> bool:
    """Whether folding before and after `expr` is the same; operands not in `together` are those of rank 0."""
    fold = FOLDS[pool]
    contributions = [[x if i in together else ranks[0][i] for i, x in enumerate(rank)] for rank in ranks]
    folded = [fold([rank[i] for rank in contributions]) if i in together else ranks[0][i] for i in range(3)]
    return exact_value(expr, folded) == fold([exact_value(expr, rank) for rank in contributions])


@many
@given(exprs, st.lists(points, min_size=2, max_size=3))
def test_what_is_said_to_commute_does(expr: Expr, ranks: list[list[Fraction]]) -> None:
    for pool in FOLDS:
        for together in (ONE, BOTH, frozenset({1, 2}), frozenset({0, 1, 2})):
            if commutes(expr, pool, together):
                assert holds(expr, pool, together, ranks), (show(expr), pool, together)


def test_the_check_of_soundness_has_teeth() -> None:
    ranks = [[Fraction(1)] * 3, [Fraction(-2)] * 3]
    assert not holds(-X, MAX, ONE, ranks)
    zero, one = Fraction(0), Fraction(1)
    assert not holds(X + Y, MAX, BOTH, [[zero, one, zero], [one, zero, zero]])
    assert not holds(X * 2.0, PROD, ONE, ranks)
    assert not holds(X + 1.0, SUM, ONE, ranks)


def test_random_expressions_often_commute() -> None:
    """Otherwise the property above would hold for want of cases."""
    found: list[Pool] = []

    @settings(max_examples=300, deadline=None, database=None, derandomize=True)
    @given(exprs)
    def collect(expr: Expr) -> None:
        found.extend(pool for pool in FOLDS if commutes(expr, pool, ONE))

    collect()
    assert min(found.count(pool) for pool in FOLDS) > 20
