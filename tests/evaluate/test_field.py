"""`FieldArithmetic`: which laws hold, and which must not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import EvaluationError
from meshwright.evaluate import field_numbers as field
from meshwright.evaluate.arithmetic import Products, Typed
from meshwright.evaluate.field import FieldArithmetic
from meshwright.evaluate.field_numbers import PRIME
from meshwright.ir import library
from meshwright.ir.expression import Binary, BinaryOp, Cast, Constant, Operand, Special, Unary, UnaryOp
from meshwright.ir.formats import ElementType
from meshwright.ir.operation import Unit
from meshwright.ir.pool import Pool

F32, I32 = ElementType.F32, ElementType.I32
A, B, C = Operand(0), Operand(1), Operand(2)
FIELD = FieldArithmetic(3, constants=(126.0, 1.0))


def drawn(seed, *shape):
    return field.generate(shape, field.keys_of(seed, "drawn"))


X = [drawn(i, 500) for i in range(3)]


def value(expr, operands=X, format=F32, out=F32, arithmetic=FIELD):
    return arithmetic.elementwise([expr], [Typed(o, format) for o in operands], [out], Unit.VECTOR)[0]


def same(first, second):
    return np.array_equal(value(first), value(second))


LAWS = {
    "sums regroup": (A + (B + C), (A + B) + C),
    "products distribute": (A * (B + C), A * B + A * C),
    "a difference is a sum": (A - B, A + -B),
    "multiply_add": (library.multiply_add(A, B, C), A * B + C),
    "an inverse undoes a product": (A * B * library.reciprocal(B), A),
    "the inverse of the inverse": (library.reciprocal(library.reciprocal(A)), A),
    "the inverse of a product": (library.reciprocal(A * B), library.reciprocal(A) * library.reciprocal(B)),
    "halves": (A * 0.5 + A * 0.5, A),
    "a maximum regroups": (library.maximum(A, library.maximum(B, C)), library.maximum(library.maximum(C, A), B)),
    "a maximum of itself": (library.maximum(A, A), A),
    "a maximum absorbs": (library.maximum(A, library.minimum(A, B)), A),
    "a minimum is a maximum": (library.minimum(A, B), -library.maximum(-A, -B)),
    "a maximum by comparing": (library.select(A < B, B, A), library.maximum(A, B)),
    "less is greater": (library.select(A < B, A, B), library.select(B > A, A, B)),
    "a magnitude": (library.absolute(A), library.maximum(A, -A)),
    "a magnitude by comparing": (library.select(A < 0.0, -A, A), library.absolute(A)),
    "a magnitude squared": (library.absolute(A) * library.absolute(A), A * A),
    "a cast": (Cast(A, ElementType.F16), A),
    "the same argument": (library.exp(A + B - B), library.exp(A)),
    "the lowest of all": (library.maximum(A, Constant(Special.NEGATIVE_INFINITY)), A),
    "the highest of all": (library.minimum(A, Constant(Special.INFINITY)), A),
}
DIFFERENT = {
    "a clamp": (library.exp(A), Unary(UnaryOp.EXP2, A * library.LOG2_E)),
    "another function": (Unary(UnaryOp.EXP2, A), Unary(UnaryOp.LOG2, A)),
    "a power of a sum": (Unary(UnaryOp.EXP2, A + B), Unary(UnaryOp.EXP2, A) * Unary(UnaryOp.EXP2, B)),
    "a root": (library.rsqrt(A) * library.rsqrt(A), library.reciprocal(A)),
    "a threshold": (library.maximum(A, 0.0), A),
    "a magnitude": (library.absolute(A), A),
    "an order": (library.maximum(A, B), library.minimum(A, B)),
    "a constant": (A * 0.1, A * np.float32(0.1).item()),
}


@pytest.mark.parametrize("law", LAWS)
def test_what_is_equal_by_algebra_is_equal(law):
    assert same(*LAWS[law])


@pytest.mark.parametrize("law", DIFFERENT)
def test_what_is_not_equal_by_algebra_differs(law):
    assert not same(*DIFFERENT[law])


def test_a_clamp_lets_some_pass_and_stops_some_at_either_end():
    made = value(library.minimum(library.maximum(A, -126.0), 126.0))
    low, high = (int(FIELD.constant(c, F32)) for c in (-126.0, 126.0))
    for some in (made == low, made == high, made == X[0]):
        assert 50 < some.sum() < 400
    assert ((made == low) | (made == high) | (made == X[0])).all()


def test_another_seed_has_other_functions_and_another_order():
    other = FieldArithmetic(4)
    for expr in (Unary(UnaryOp.EXP2, A), library.maximum(A, B), Constant(Special.INFINITY) + A):
        assert not np.array_equal(value(expr), value(expr, arithmetic=other))
    assert np.array_equal(value(A * B), value(A * B, arithmetic=other))


def test_predicates():
    less = Binary(BinaryOp.LT, A, B)
    greater_or_equal = Unary(UnaryOp.NOT, less)
    equal = Binary(BinaryOp.EQ, A, B)
    greater = Binary(BinaryOp.AND, greater_or_equal, Unary(UnaryOp.NOT, equal))
    assert same(library.select(greater, A, C), library.select(A > B, A, C))
    either = Binary(BinaryOp.OR, less, A > B)
    assert np.array_equal(value(library.select(either, A, C)), X[0])


def test_whole_numbers_stay_whole_and_meet_residues_as_residues():
    whole = np.arange(-3, 4, dtype=np.int64)
    assert value(A * 2.0 + 1.0, [whole], I32, I32).tolist() == (whole * 2 + 1).tolist()
    assert value(library.absolute(-A), [whole], I32, I32).tolist() == abs(whole).tolist()
    assert value(library.select(A < 0.0, A, 0.0), [whole], I32, I32).tolist() == np.minimum(whole, 0).tolist()
    assert value(library.multiply_add(A, A, 1.0), [whole], I32, I32).tolist() == (whole * whole + 1).tolist()
    assert value(A, [whole], I32, F32).tolist() == [int(w) % PRIME for w in whole]
    assert value(A * 0.5 * 2.0, [whole], I32, I32).tolist() == whole.tolist()


def test_a_residue_that_is_not_whole_becomes_some_position():
    made = value(Cast(A, I32), X, out=I32)
    assert made.dtype == np.int64
    assert ((made >= 0) & (made < 1 << 31)).all()
    assert len(np.unique(made)) > 490


@pytest.mark.parametrize("pool", [Pool.SUM, Pool.MAX, Pool.MIN, Pool.PROD])
def test_folds_regroup(pool):
    x = drawn(5, 6, 30)
    whole = FIELD.fold(pool, Typed(x, F32), [F32])[0]
    halves = [FIELD.fold(pool, Typed(part, F32), [F32])[0] for part in (x[:, 7:], x[:, :7])]
    again = FIELD.fold(pool, Typed(np.stack(halves, axis=-1), F32), [F32])[0]
    assert np.array_equal(whole, again)
    assert np.array_equal(whole, value(pool.fold(30)[0], list(x.T)))


def test_argmax_agrees_with_its_fold_and_takes_the_lowest_position():
    x = drawn(6, 40, 5)
    x[:, 3] = x[:, 1]
    best, at = FIELD.fold(Pool.ARGMAX, Typed(x, F32), [F32, I32])
    assert np.array_equal(np.take_along_axis(x, at[:, None], axis=1)[:, 0], best)
    assert np.array_equal(best, FIELD.fold(Pool.MAX, Typed(x, F32), [F32])[0])
    assert 3 not in at
    operands = []
    for i in range(5):
        operands += [Typed(x[:, i], F32), Typed(np.full(40, i, dtype=np.int64), I32)]
    first, second = FIELD.elementwise(Pool.ARGMAX.fold(5), operands, [F32, I32], Unit.VECTOR)
    assert np.array_equal(first, best)
    assert np.array_equal(second, at)


def test_folds_of_whole_numbers():
    x = np.array([[3, -1, 2], [0, 5, 5]], dtype=np.int64)
    found = {p: FIELD.fold(p, Typed(x, I32), [I32])[0].tolist() for p in (Pool.SUM, Pool.MAX, Pool.MIN, Pool.PROD)}
    assert found == {Pool.SUM: [4, 10], Pool.MAX: [3, 5], Pool.MIN: [-1, 0], Pool.PROD: [-6, 0]}
    assert [v.tolist() for v in FIELD.fold(Pool.ARGMAX, Typed(x, I32), [I32, I32])] == [[3, 5], [0, 1]]


def test_products_continue_and_ignore_formats():
    a, b, start = drawn(7, 1, 2, 8), drawn(8, 1, 3, 8), drawn(9, 1, 2, 3)
    zero = np.zeros(1, np.int64)
    request = Products(Typed(a, ElementType.F16), Typed(b, F32), zero, zero, start, ElementType.FP22)
    expected = [(sum(int(x) * int(y) for x, y in zip(r, c, strict=True))) for r in a[0] for c in b[0]]
    expected = [(e + int(s)) % PRIME for e, s in zip(expected, start.reshape(-1), strict=True)]
    assert [int(v) for v in FIELD.products(request).reshape(-1)] == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0, 1, 5, PRIME - 1, PRIME - 126, 126, 1 << 40, 12345678901234567]), min_size=1))
def test_names_come_back_as_residues(values):
    x = np.array(values, dtype=np.uint64)
    assert np.array_equal(FIELD.encode(FIELD.numbers(x, F32), F32), x)


def test_names_are_ordered_as_maxima_are():
    names = [FIELD.numbers(x, F32) for x in X]
    assert np.array_equal(value(library.maximum(A, B)), np.where(names[0] > names[1], X[0], X[1]))
    assert FIELD.numbers(np.asarray(FIELD.constant(-126.0, F32)), F32) == -126.0
    assert FIELD.encode(np.array([126.0, 0.0]), F32).tolist() == [126, 0]


def test_constants_and_given_numbers_are_exact():
    assert int(FIELD.constant(0.5, F32)) * 2 % PRIME == 1
    assert int(FIELD.constant(-3.0, F32)) == PRIME - 3
    assert FIELD.constant(7.0, I32) == 7
    assert int(FIELD.constant(float("inf"), F32)) == PRIME - int(FIELD.constant(float("-inf"), F32))
    given_floats = FIELD.ingest(np.array([1.0, -2.0, np.inf, np.nan], np.float32), F32)
    assert given_floats[:2].tolist() == [1, PRIME - 2]
    assert given_floats[2] == FIELD.constant(float("inf"), F32)
    assert given_floats[3] == FIELD.constant(float("nan"), F32)
    assert FIELD.ingest(np.array([-1], np.int32), F32).tolist() == [PRIME - 1]


def test_what_is_no_residue_is_refused():
    with pytest.raises(EvaluationError, match=rf"residues are below 2\^61 - 1, found {PRIME}; take them modulo that"):
        FIELD.ingest(np.array([0, PRIME], dtype=np.uint64), F32)
    with pytest.raises(EvaluationError, match=r"whole numbers \(i32\) were expected, found dtype float64"):
        FIELD.ingest(np.zeros(2), I32)


def test_what_functions_are_asked_is_told():
    asked = []
    recording = FieldArithmetic(3, hashed=lambda function, x: asked.append((function, x)))
    value(library.rsqrt(A + B), arithmetic=recording)
    ((function, x),) = asked
    assert function == "rsqrt"
    assert np.array_equal(x, value(A + B))
