"""Reduce pools: identities, folds, and which grouping of operands changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ir.exact import exact_value
from meshwright.ir.expression import Special, operands, show
from meshwright.ir.pool import Pool

SIMPLE = [Pool.SUM, Pool.MAX, Pool.MIN, Pool.PROD]
fractions = st.fractions(max_denominator=16, min_value=-8, max_value=8)


def folded(pool: Pool, values: Sequence[Sequence[Fraction]]) -> tuple[Fraction, ...]:
    """The fold by the pool's own expressions, exactly."""
    flat = [component for value in values for component in value]
    return tuple(exact_value(expr, flat) for expr in pool.fold(len(values)))


def by_hand(pool: Pool, values: Sequence[Fraction]) -> Fraction:
    match pool:
        case Pool.MAX:
            return max(values)
        case Pool.MIN:
            return min(values)
        case Pool.PROD:
            result = Fraction(1)
            for value in values:
                result *= value
            return result
        case _:
            return sum(values, Fraction(0))


@pytest.mark.parametrize("pool", SIMPLE)
@given(values=st.lists(fractions, min_size=1, max_size=6))
def test_folds_are_what_they_are_called(pool: Pool, values: list[Fraction]) -> None:
    assert folded(pool, [(v,) for v in values]) == (by_hand(pool, values),)


@given(st.lists(st.tuples(st.integers(-2, 2).map(Fraction), st.integers(0, 9).map(Fraction)), min_size=1, max_size=6))
def test_argmax_keeps_the_lowest_index_of_the_largest_value(pairs: list[tuple[Fraction, Fraction]]) -> None:
    largest = max(value for value, _ in pairs)
    assert folded(Pool.ARGMAX, pairs) == (largest, min(index for value, index in pairs if value == largest))


@pytest.mark.parametrize("pool", Pool)
@given(data=st.data())
def test_any_grouping_and_order_gives_the_same_in_exact_arithmetic(pool: Pool, data: st.DataObject) -> None:
    one = st.tuples(*[fractions if c == 0 else st.integers(0, 99).map(Fraction) for c in range(pool.components)])
    values = data.draw(st.lists(one, min_size=1, max_size=6))
    cut = data.draw(st.integers(0, len(values) - 1))
    grouped = [folded(pool, values[:cut]), *values[cut:]] if cut else values
    shuffled = data.draw(st.permutations(grouped))
    assert folded(pool, shuffled) == folded(pool, values)


@pytest.mark.parametrize("pool", Pool)
@given(value=st.floats(-100, 100), index=st.integers(0, 1 << 20))
def test_identities_change_nothing(pool: Pool, value: float, index: int) -> None:
    identity = tuple(float(c.value) if isinstance(c, Special) else c for c in pool.identity)
    assert len(identity) == pool.components
    own = (value, float(index))[: pool.components]
    for pair in ((own, identity), (identity, own)):
        flat = [component for operand in pair for component in operand]
        assert tuple(exact_value(expr, flat) for expr in pool.fold(2)) == own


@pytest.mark.parametrize("pool", Pool)
def test_folds_read_every_operand_in_port_order(pool: Pool) -> None:
    for count in (1, 2, 5):
        exprs = pool.fold(count)
        assert len(exprs) == pool.components
        assert frozenset().union(*map(operands, exprs)) == frozenset(range(count * pool.components))


def test_folds_as_text() -> None:
    assert [show(pool.fold(3)[0]) for pool in SIMPLE] == [
        "(($0 + $1) + $2)",
        "max(max($0, $1), $2)",
        "min(min($0, $1), $2)",
        "(($0 * $1) * $2)",
    ]
    assert [show(expr) for expr in Pool.ARGMAX.fold(2)] == [
        "max($0, $2)",
        "min(select(($0 == max($0, $2)), $1, 2.14748365e+09), select(($2 == max($0, $2)), $3, 2.14748365e+09))",
    ]


def test_only_sums_and_products_round() -> None:
    assert [pool for pool in Pool if not pool.exact_under_regrouping] == [Pool.SUM, Pool.PROD]


@pytest.mark.parametrize("pool", Pool)
def test_a_fold_of_nothing_is_refused(pool: Pool) -> None:
    with pytest.raises(ValueError) as error:
        pool.fold(0)
    assert str(error.value) == f"Pool.{pool.name}.fold(0): a fold needs at least one operand"
