"""Residues: the compiled kernels and the numpy twin against Python's whole numbers."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.evaluate import field_numbers as field
from meshwright.evaluate import field_twin as twin
from meshwright.evaluate.field_numbers import PRIME
from meshwright.numerics.backend import available, using

BACKENDS = available()
KEYS = field.keys_of(7, "a test")
EDGES = [0, 1, 2, PRIME - 1, PRIME - 2, PRIME // 2, PRIME // 2 + 1, 1 << 31, (1 << 31) - 1, 1 << 60]
NOTHING = np.empty(0, np.uint64), np.empty(0, np.float64)

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def residues(seed, *shape):
    made = np.random.default_rng(seed).integers(0, PRIME, shape, dtype=np.uint64)
    made.reshape(-1)[: len(EDGES)] = EDGES[: made.size]
    return made


def wholes(x):
    return [int(v) for v in x.reshape(-1)]


@pytest.fixture
def some():
    # Every edge meets every other one.
    a = np.repeat(residues(1, 40), 40)
    return a, np.tile(residues(2, 40), 40), residues(3, 1600)


def test_every_kernel_is_compiled_where_the_module_is(backend):
    module = field._module()
    assert field.kernels(backend) == ("numpy" if module is None else backend)


def test_sums_and_products(backend, some):
    a, b, c = some
    pairs = list(zip(wholes(a), wholes(b), wholes(c), strict=True))
    assert wholes(field.add(a, b, backend)) == [(x + y) % PRIME for x, y, _ in pairs]
    assert wholes(field.sub(a, b, backend)) == [(x - y) % PRIME for x, y, _ in pairs]
    assert wholes(field.mul(a, b, backend)) == [x * y % PRIME for x, y, _ in pairs]
    assert wholes(field.multiply_add(a, b, c, backend)) == [(x * y + z) % PRIME for x, y, z in pairs]
    assert wholes(field.negate(a)) == [-x % PRIME for x, _, _ in pairs]


def test_inverses(backend, some):
    a = some[0][::40]
    made = field.inverse(a, KEYS, backend)
    assert wholes(made) == [pow(x, -1, PRIME) if x else KEYS[0] % PRIME for x in wholes(a)]
    assert np.array_equal(field.inverse(made, KEYS, backend)[1:], a[1:])


def test_operands_broadcast(backend):
    a, b = residues(1, 3, 1), residues(2, 4)
    assert field.mul(a, b, backend).shape == (3, 4)
    assert wholes(field.mul(a, b, backend)) == [x * y % PRIME for x in wholes(a) for y in wholes(b)]
    assert field.add(a, b[:1][0], backend).shape == (3, 1)
    assert field.add(a[:0], b, backend).shape == (0, 4)


def test_hashes_are_those_of_the_twin_and_depend_on_the_keys(backend):
    x = residues(4, 5000)
    made = field.hashed(x, KEYS, backend)
    assert np.array_equal(made, twin.hashed(x, KEYS))
    assert made.max() < PRIME
    assert len(np.unique(made)) == len(np.unique(x))
    assert not (made == field.hashed(x, field.keys_of(8, "a test"), backend)).any()


def test_generated_residues_are_those_of_the_twin_and_spread_evenly(backend):
    made = field.generate((500, 37), KEYS, backend=backend)
    assert np.array_equal(made.reshape(-1), twin.generate(0, 500 * 37, KEYS))
    counts = np.bincount((made.reshape(-1) >> np.uint64(57)).astype(np.int64), minlength=16)
    assert counts.min() > 0.85 * made.size / 16
    assert counts.max() < 1.15 * made.size / 16


def test_generating_again_may_reuse_the_memory(backend):
    first = field.generate((6, 5), KEYS, backend=backend)
    other = field.generate((6, 5), field.keys_of(9), first, backend)
    assert np.array_equal(other, field.generate((6, 5), field.keys_of(9), backend=backend))
    assert field.generate((5, 6), KEYS, first, backend).shape == (5, 6)


@pytest.mark.parametrize("length", [0, 1, 3, 1000])
def test_rows_fold(backend, length):
    x = residues(5, 4, 3, length)
    with using(backend=backend):
        total, product = field.sum_rows(x), field.multiply_rows(x)
    for row, one, other in zip(x.reshape(12, length), wholes(total), wholes(product), strict=True):
        expected = 1
        for value in wholes(row):
            expected = expected * value % PRIME
        assert one == sum(wholes(row)) % PRIME
        assert other == expected


def test_the_order_is_one_to_one_and_odd(backend):
    x = np.unique(residues(6, 20000))
    names = field.order_names(x, KEYS, *NOTHING, backend)
    assert np.array_equal(names, twin.order_names(x, KEYS, *NOTHING))
    assert np.isfinite(names).all()
    assert len(np.unique(names)) == len(x)
    assert np.array_equal(field.order_names(field.negate(x), KEYS, *NOTHING, backend), -names)
    assert names[0] == 0.0
    assert np.array_equal(twin.residues_named(names, KEYS), x)
    assert 0.4 < np.mean(names > 0) < 0.6
    assert 0.3 < np.mean(np.abs(names) > 126.0) < 0.6


def test_constants_keep_their_place_in_the_order(backend):
    numbers = np.array([-126.0, 0.25, 126.0])
    places = field.of_floats(numbers)
    ascending = np.argsort(places)
    x = np.concatenate([places, residues(7, 100)])
    names = field.order_names(x, KEYS, places[ascending], numbers[ascending], backend)
    assert names[:3].tolist() == numbers.tolist()
    assert np.array_equal(names[3:], twin.order_names(x[3:], KEYS, *NOTHING))


SHAPES = [(1, 1, 1, 1, 1), (2, 5, 3, 7, 300), (1, 33, 2, 130, 515), (3, 4, 1, 4, 256), (2, 3, 2, 4, 0), (1, 2, 1, 2, 9)]


def exact(a, b, pairs, start):
    made = []
    for t, (i, j) in enumerate(pairs):
        first, second = ([wholes(row) for row in x] for x in (a[i], b[j]))
        for r, row in enumerate(first):
            for c, column in enumerate(second):
                total = sum(x * y for x, y in zip(row, column, strict=True))
                made.append((total + (0 if start is None else int(start[t, r, c]))) % PRIME)
    return made


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threads", [1, 3])
def test_products(backend, shape, threads):
    blocks_a, m, blocks_b, n, k = shape
    a, b = residues(8, blocks_a, m, k), residues(9, blocks_b, n, k)
    random = np.random.default_rng(0)
    i, j = random.integers(0, blocks_a, 3), random.integers(0, blocks_b, 3)
    start = residues(10, 3, m, n)
    with using(threads=threads):
        for added in (None, start):
            made = field.product(a, b, i, j, added, backend)
            assert wholes(made) == exact(a, b, list(zip(i, j, strict=True)), added)


def test_products_of_the_largest_residues_over_a_long_contraction(backend):
    length = 70_000 if backend != "numpy" else 3_000
    x = np.full((1, 1, length), PRIME - 1, dtype=np.uint64)
    y = np.full((1, 2, length), PRIME - 2, dtype=np.uint64)
    zero = np.zeros(1, dtype=np.int64)
    assert wholes(field.product(x, y, zero, zero, None, backend)) == [2 * length % PRIME] * 2
    # The largest values at the point of the largest ones: all limbs full but the top one.
    full = np.full((1, 4, length), (1 << 60) - 1, dtype=np.uint64)
    expected = length * ((1 << 60) - 1) ** 2 % PRIME
    assert set(wholes(field.product(full, full, zero, zero, None, backend))) == {expected}


def test_products_of_pieces_that_lie_apart(backend):
    whole = residues(11, 1, 6, 20)
    pieces = whole[:, 1:5, 3:17], whole[:, ::2, 3:17], whole.transpose(0, 2, 1)
    zero = np.zeros(1, dtype=np.int64)
    for a, b in ((pieces[0], pieces[1]), (pieces[2], pieces[2])):
        assert wholes(field.product(a, b, zero, zero, None, backend)) == exact(a, b, [(0, 0)], None)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
def test_floats_are_exact_fractions(backend, values):
    made = wholes(field.of_floats(np.array(values)))
    for value, residue in zip(values, made, strict=True):
        exact_value = Fraction(value)
        assert residue == exact_value.numerator * pow(exact_value.denominator, -1, PRIME) % PRIME


def test_small_whole_numbers_are_recognised(backend):
    numbers = np.array([0, 1, -1, (1 << 31) - 1, -(1 << 31), 1 << 31, -(1 << 31) - 1], dtype=np.int64)
    signed, small = field.small_integers(field.of_integers(numbers))
    assert signed.tolist() == numbers.tolist()
    assert small.tolist() == [True] * 5 + [False] * 2


def test_words_that_are_no_residues_are_noticed(backend):
    x = residues(12, 5, 9)
    assert field.all_reduced(x, backend)
    x[3, 4] = PRIME
    assert not field.all_reduced(x, backend)
    assert not field.all_reduced(x[:, 4:], backend)
    assert field.all_reduced(x[:, 5:], backend)
