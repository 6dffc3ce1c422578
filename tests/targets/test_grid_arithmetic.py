"""The grid's arithmetic against scalar float32 arithmetic in the stated order, and against exact rationals."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from meshwright.errors import EvaluationError
from meshwright.evaluate.arithmetic import Products, Typed
from meshwright.ir import library
from meshwright.ir.expression import Binary, BinaryOp, Cast, Operand, Unary, UnaryOp
from meshwright.ir.formats import ElementType as E
from meshwright.ir.operation import Unit
from meshwright.ir.pool import Pool
from meshwright.targets.grid import functions
from meshwright.targets.grid.arithmetic import GridArithmetic

GRID = GridArithmetic()
F32 = np.float32
BF16 = ml_dtypes.bfloat16
SPECIAL = np.asarray([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3.4e38, 1.0, -1.0], dtype=F32)
singles = st.integers(0, 2**32 - 1).map(lambda bits: np.uint32(bits).view(F32))


def bits(array):
    return np.asarray(array).view(f"u{np.asarray(array).dtype.itemsize}").tolist()


def one(expr, *operands, out=E.F32):
    typed = [Typed(np.asarray(o), _format(o)) for o in operands]
    (found,) = GRID.elementwise([expr], typed, [out], Unit.VECTOR)
    return found


def _format(array):
    return {"float32": E.F32, "float16": E.F16, "bfloat16": E.BF16, "int32": E.I32}[np.asarray(array).dtype.name]


def slow_product(a, b, start):
    """One element: the sum over K in blocks of 32, ascending, every step rounded to float32."""
    with np.errstate(all="ignore"):
        total = start
        for first in range(0, len(a), 32):
            block = None
            for x, y in zip(a[first : first + 32], b[first : first + 32], strict=True):
                product = F32(F32(x) * F32(y))
                block = product if block is None else F32(block + product)
            total = block if total is None else F32(total + block)
        return F32(0) if total is None else total


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_products_are_summed_in_the_stated_order(data) -> None:
    m, n, k = (data.draw(st.integers(1, size)) for size in (3, 3, 70))
    count, entries = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 3))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    dtype, format = data.draw(st.sampled_from([(BF16, E.BF16), (np.float16, E.F16), (F32, E.F32)]))
    a, b = (
        (random.standard_normal((entries, rows, k)) * 10.0 ** random.integers(-4, 4, (entries, rows, k))).astype(dtype)
        for rows in (m, n)
    )
    a_index, b_index = (random.integers(0, entries, count) for _ in range(2))
    start = random.standard_normal((count, m, n)).astype(F32) if data.draw(st.booleans()) else None
    out, out_type = data.draw(st.sampled_from([(E.F32, F32), (E.BF16, BF16), (E.F16, np.float16)]))
    found = GRID.products(Products(Typed(a, format), Typed(b, format), a_index, b_index, start, out))
    assert found.dtype == out_type
    assert found.shape == (count, m, n)
    for t in range(count):
        for i in range(m):
            for j in range(n):
                opened = None if start is None else start[t, i, j]
                expected = slow_product(a[a_index[t], i], b[b_index[t], j], opened)
                with np.errstate(over="ignore"):
                    assert bits(found[t, i, j]) == bits(np.asarray(expected).astype(out_type))


def test_the_order_is_not_that_of_a_plain_sum() -> None:
    # One after another over all of K, the small products vanish; in the second block they add up first.
    a = np.r_[np.zeros(31), 1.0, np.full(32, 2.0**-25)].astype(F32)[None, None]
    ones = np.ones((1, 1, 64), dtype=F32)
    index = np.zeros(1, dtype=np.int64)
    found = GRID.products(Products(Typed(a, E.F32), Typed(ones, E.F32), index, index, None, E.F32))
    assert found[0, 0, 0] == F32(1.0 + 2.0**-20)
    running = F32(0)
    for value in a[0, 0]:
        running = F32(running + value)
    assert running == 1.0


def test_a_product_over_nothing_is_its_start() -> None:
    nothing = Typed(np.zeros((1, 2, 0), BF16), E.BF16)
    index = np.zeros(1, dtype=np.int64)
    start = np.full((1, 2, 2), 3.0, F32)
    assert GRID.products(Products(nothing, nothing, index, index, start, E.F32)).tolist() == start.tolist()
    assert not GRID.products(Products(nothing, nothing, index, index, None, E.F32)).any()


def round_exactly(value: Fraction) -> np.float32:
    """The float32 nearest to a rational, ties to even."""
    if value == 0:
        return F32(0)
    magnitude = abs(value)
    exponent = max(math.floor(math.log2(magnitude)) if magnitude > Fraction(1, 2**1000) else -149, -126)
    while magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while exponent > -126 and magnitude < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (exponent - 23)
    whole = round(magnitude / unit)  # Python rounds rationals half to even.
    with np.errstate(over="ignore"):
        return F32(math.copysign(float(whole * unit), value))


@settings(deadline=None, max_examples=400)
@given(singles, singles, singles, st.integers(-30, 30))
def test_multiply_add_rounds_once(a, b, c, shift) -> None:
    if not (np.isfinite(a) and np.isfinite(b) and np.isfinite(c)):
        return
    with np.errstate(all="ignore"):
        near = F32(-(a * b) * (1 + 2.0**-24 * shift))
    for addend in (c, near):
        if not np.isfinite(addend):
            continue
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(addend))
        found = one(library.multiply_add(Operand(0), Operand(1), Operand(2)), a, b, addend)
        if exact == 0:
            assert found == 0
        else:
            assert bits(found) == bits(round_exactly(exact))


def test_multiply_add_where_rounding_twice_goes_wrong() -> None:
    # The exact sum is a little below the middle between two float32; float64 rounds it to the middle, whose even
    # neighbour is the one above.
    a, b, c = F32(1 + 2.0**-23), F32(2.0**-24 * (1 - 2.0**-23)), F32(1 + 2.0**-23)
    assert Fraction(float(a)) * Fraction(float(b)) < Fraction(1, 2**24)
    assert F32(float(a) * float(b) + float(c)) == 1 + 2.0**-22
    assert one(library.multiply_add(Operand(0), Operand(1), Operand(2)), a, b, c) == c


@settings(deadline=None, max_examples=300)
@given(singles, singles)
def test_largest_and_smallest_know_both_zeros_and_nan(a, b) -> None:
    for x, y in ((a, b), (F32(0.0), F32(-0.0)), (F32(-0.0), F32(0.0))):
        high, low = (
            one(library.maximum(Operand(0), Operand(1)), x, y),
            one(library.minimum(Operand(0), Operand(1)), x, y),
        )
        if np.isnan(x) or np.isnan(y):
            assert bits(high) == bits(low) == 0x7FC00000
        elif x == y:
            assert bits(high) == (bits(x) & bits(y))  # The sign bit only where both have it.
            assert bits(low) == (bits(x) | bits(y))
        else:
            assert (bits(high), bits(low)) == (bits(max(x, y)), bits(min(x, y)))


@settings(deadline=None, max_examples=300)
@given(st.floats(-150, 130, width=32))
def test_exp2_is_right_to_the_last_bit_or_next_to_a_tie(x) -> None:
    found = one(Unary(UnaryOp.EXP2, Operand(0)), F32(x))
    with np.errstate(over="ignore", under="ignore"):
        near = [F32(np.nextafter(math.pow(2.0, x), side)) for side in (0.0, np.inf)]
        assert bits(found) in [bits(F32(math.pow(2.0, x))), *map(bits, near)]


@settings(deadline=None, max_examples=300)
@given(st.floats(0, 2.0**127, width=32, exclude_min=True))
def test_log2_and_rsqrt_are_right_to_the_last_bit_or_next_to_a_tie(x) -> None:
    for op, expected in ((UnaryOp.LOG2, math.log2(x)), (UnaryOp.RSQRT, 1.0 / math.sqrt(x))):
        found = float(one(Unary(op, Operand(0)), F32(x)))
        near = [float(F32(expected + step * abs(expected) * 2.0**-51)) for step in (-1, 0, 1)]
        assert found in near, (op, x)


def test_functions_of_special_values() -> None:
    inf, nan = np.inf, np.nan
    table = {
        UnaryOp.EXP2: [1, 1, inf, 0, nan, 1, 1, inf, 2, 0.5],
        UnaryOp.LOG2: [-inf, -inf, inf, nan, nan, math.log2(F32(1e-40)), nan, math.log2(F32(3.4e38)), 0, nan],
        UnaryOp.RECIPROCAL: [inf, -inf, 0, -0.0, nan, inf, -inf, 1 / F32(3.4e38), 1, -1],
        UnaryOp.RSQRT: [inf, -inf, 0, nan, nan, 1e20, nan, 1 / math.sqrt(3.4e38), 1, nan],
        UnaryOp.NEG: [-0.0, 0.0, -inf, inf, nan, F32(-1e-40), F32(1e-40), F32(-3.4e38), -1, 1],
        UnaryOp.ABS: [0.0, 0.0, inf, inf, nan, F32(1e-40), F32(1e-40), F32(3.4e38), 1, 1],
    }
    for op, expected in table.items():
        found = one(Unary(op, Operand(0)), SPECIAL)
        np.testing.assert_allclose(found, np.asarray(expected, dtype=F32), rtol=1e-5)
        assert all(b == 0x7FC00000 for b, v in zip(bits(found), found, strict=True) if np.isnan(v))


def test_every_nan_is_the_same_one() -> None:
    odd = np.asarray([0xFFC00001, 0x7F800001], dtype=np.uint32).view(F32)
    assert bits(one(Operand(0), odd)) == [0x7FC00000] * 2
    infinities = np.asarray([np.inf, -np.inf], dtype=F32)
    assert bits(one(Operand(0) - Operand(0), infinities)) == [0x7FC00000] * 2
    assert bits(one(Operand(0), odd, out=E.BF16)) == [0x7FC0] * 2
    assert bits(one(Operand(0), odd, out=E.F16)) == [0x7E00] * 2


@settings(deadline=None, max_examples=100)
@given(arrays(np.uint32, (2, 8)))
def test_arithmetic_is_ieee_single(raw) -> None:
    x, y = raw.view(F32)
    with np.errstate(all="ignore"):
        table = {BinaryOp.ADD: x + y, BinaryOp.SUB: x - y, BinaryOp.MUL: x * y}
    for op, expected in table.items():
        found = one(Binary(op, Operand(0), Operand(1)), x, y)
        assert bits(found) == bits(np.where(np.isnan(expected), F32(np.nan), expected))


def test_casts_and_predicates() -> None:
    x = np.asarray([1 / 3, -2.7, 70000.0], dtype=F32)
    assert one(Cast(Operand(0), E.BF16), x).tolist() == x.astype(BF16).astype(F32).tolist()
    with np.errstate(over="ignore"):
        assert one(Cast(Operand(0), E.F16), x).tolist() == x.astype(np.float16).astype(F32).tolist()
    assert one(Cast(Operand(0), E.I32), x).tolist() == [0.0, -2.0, 70000.0]
    inside = Binary(BinaryOp.AND, Operand(0) > 0.0, Unary(UnaryOp.NOT, Operand(0) > 1.0))
    either = Binary(BinaryOp.OR, Operand(0) < 0.0, Binary(BinaryOp.EQ, Operand(0), library.as_expr(70000.0)))
    assert one(library.select(inside, 1.0, 0.0), x).tolist() == [1, 0, 0]
    assert one(library.select(either, 1.0, 0.0), x).tolist() == [0, 1, 1]


def test_whole_numbers_go_through_float32_and_back_toward_zero() -> None:
    whole = np.asarray([7, -7, 2**24 + 1], dtype=np.int32)
    assert one(Operand(0), whole, out=E.I32).tolist() == [7, -7, 2**24]
    assert one(Operand(0) * 0.5, whole, out=E.I32).tolist() == [3, -3, 2**23]
    with pytest.raises(EvaluationError, match=re.escape("doesn't fit i32, which ends at 2147483647")):
        one(Operand(0) * 1e9, whole, out=E.I32)
    with pytest.raises(EvaluationError, match="nan doesn't fit i32"):
        one(Operand(0) * math.nan, whole, out=E.I32)


@settings(deadline=None, max_examples=60)
@given(arrays(np.int8, st.tuples(st.integers(1, 3), st.integers(1, 9))))
def test_folds_go_from_first_to_last(raw) -> None:
    rows = (raw.astype(F32) / 3).astype(BF16)
    typed = Typed(rows, E.BF16)
    wide = rows.astype(F32)
    for pool, step in ((Pool.SUM, np.add), (Pool.PROD, np.multiply)):
        expected = wide[:, 0]
        for column in wide.T[1:]:
            expected = step(expected, column)
        assert bits(GRID.fold(pool, typed, [E.F32])[0]) == bits(expected)
    assert GRID.fold(Pool.MAX, typed, [E.F32])[0].tolist() == wide.max(1).tolist()
    assert GRID.fold(Pool.MIN, typed, [E.F32])[0].tolist() == wide.min(1).tolist()
    value, position = GRID.fold(Pool.ARGMAX, typed, [E.BF16, E.I32])
    assert value.tolist() == rows.max(1).tolist()
    assert position.tolist() == wide.argmax(1).tolist()
    assert position.dtype == np.int32


def test_argmax_of_zeros_and_of_nan() -> None:
    rows = np.asarray([[-0.0, 0.0, -1.0], [1.0, np.nan, 2.0], [-np.inf, -np.inf, -np.inf]], dtype=F32)
    value, position = GRID.fold(Pool.ARGMAX, Typed(rows, E.F32), [E.F32, E.I32])
    assert bits(value) == [0, 0x7FC00000, 0xFF800000]
    assert position.tolist() == [0, 2**31 - 1, 0]


def test_a_fold_agrees_with_the_pools_own_expression() -> None:
    rows = np.random.default_rng(0).standard_normal((50, 5)).astype(F32)
    for pool in (Pool.SUM, Pool.PROD, Pool.MAX, Pool.MIN):
        columns = [Typed(rows[:, i].copy(), E.F32) for i in range(5)]
        (expected,) = GRID.elementwise(pool.fold(5), columns, [E.F32], Unit.VECTOR)
        assert bits(GRID.fold(pool, Typed(rows, E.F32), [E.F32])[0]) == bits(expected)


@pytest.mark.parametrize("format", [E.FP22, E.E8M15])
def test_formats_of_another_machine_are_refused(format) -> None:
    message = re.escape(
        f"a grid has no {format}; its engines compute in float32: use f32 for sums and for values between operations"
    )
    words = Typed(np.zeros((1, 1, 1), np.uint32), format)
    ones = Typed(np.ones((1, 1, 1), BF16), E.BF16)
    index = np.zeros(1, np.int64)
    for call in (
        lambda: GRID.ingest(words.array, format),
        lambda: GRID.constant(0.0, format),
        lambda: GRID.numbers(words.array, format),
        lambda: GRID.products(Products(ones, ones, index, index, None, format)),
        lambda: GRID.elementwise([Operand(0)], [words], [E.F32], Unit.VECTOR),
        lambda: GRID.elementwise([Cast(Operand(0), format)], [ones], [E.F32], Unit.VECTOR),
        lambda: GRID.fold(Pool.SUM, words, [E.F32]),
    ):
        with pytest.raises(EvaluationError, match=message):
            call()


def test_what_else_is_refused() -> None:
    whole = Typed(np.ones((1, 1, 1), np.int32), E.I32)
    index = np.zeros(1, np.int64)
    with pytest.raises(EvaluationError, match="a matrix engine multiplies bf16, f16 or f32 operands, not i32"):
        GRID.products(Products(whole, whole, index, index, None, E.F32))
    with pytest.raises(EvaluationError, match="a grid has no adder in an accumulator that other chips reach"):
        GRID.elementwise([Operand(0) + Operand(0)], [whole], [E.F32], Unit.ACCUMULATOR)
    with pytest.raises(EvaluationError, match="bf16 elements come as bfloat16, found float32; round them first"):
        GRID.ingest(np.ones(2, F32), E.BF16)


def test_numbers_are_rounded_to_float32_and_then_to_their_element_type() -> None:
    twice = np.asarray(1 + 2.0**-8 + 2.0**-40)  # Just past a tie of bf16, which float32 can't tell from the tie.
    assert float(GRID.encode(twice, E.BF16)) == 1.0
    assert GRID.numbers(GRID.encode(np.asarray([3, -4]), E.I32), E.I32).tolist() == [3, -4]
    assert GRID.constant(1e6, E.F16) == np.inf


def test_keys_order_all_values() -> None:
    ordered = np.asarray([-np.inf, -3.4e38, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, 3.4e38, np.inf], dtype=F32)
    keys = functions.order_keys(ordered)
    assert (np.diff(keys.astype(np.int64)) > 0).all()
    assert bits(functions.from_keys(keys)) == bits(ordered)
