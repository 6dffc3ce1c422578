"""Kernels that move elements: bits arrive as they were, wherever they go."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.one_chip import REAL, f16, graph_of, halves, run

from meshwright import kernels
from meshwright.errors import EvaluationError
from meshwright.kernels.rearrange import REST, Rearrange


def bits(seed, shape):
    values = np.random.default_rng([seed, *shape]).integers(0, 1 << 16, shape, dtype=np.uint16)
    return values.view(np.float16)


def same(made, want):
    assert made.shape == want.shape
    assert np.array_equal(made.view(np.uint16), np.ascontiguousarray(want).view(np.uint16))


@st.composite
def rearrangements(draw):
    """A `Rearrange` with the sizes of its factors: any cut, order and merge."""
    sizes = draw(st.lists(st.integers(1, 7), min_size=1, max_size=5))
    cut = _grouped(draw, list(range(len(sizes))))
    order = draw(st.permutations(range(len(sizes))))
    merged = _grouped(draw, list(order))
    stated = tuple(tuple(REST if f == axis[0] else sizes[f] for f in axis) for axis in cut)
    return Rearrange("rearranged", stated, tuple(map(tuple, merged))), cut, sizes


def _grouped(draw, items):
    groups = [[items[0]]]
    for item in items[1:]:
        if draw(st.booleans()):
            groups.append([item])
        else:
            groups[-1].append(item)
    return groups


@given(rearrangements(), st.integers(0, 9))
def test_any_rearrangement(case, seed):
    kernel, cut, sizes = case
    x = bits(seed, tuple(math.prod(sizes[f] for f in axis) for axis in cut))
    order = [f for axis in kernel.merged for f in axis]
    shape = tuple(math.prod(sizes[f] for f in axis) for axis in kernel.merged)
    same(run(kernel, x), x.reshape(sizes).transpose(order).reshape(shape))


@pytest.mark.parametrize("shape", [(37, 129), (1, 5000), (5000, 1), (211, 211), (1, 1)])
def test_transpose(shape):
    x = bits(1, shape)
    same(run(kernels.transpose(), x), x.T)


def test_transpose_of_many_axes():
    x = bits(2, (3, 50, 1, 70))
    same(run(kernels.transpose(3, 2, 0, 1), x), x.transpose(3, 2, 0, 1))


def test_transpose_of_whole_numbers():
    x = np.arange(35, dtype=np.int32).reshape(5, 7)
    assert np.array_equal(run(kernels.transpose(), x), x.T)


@pytest.mark.parametrize("shape", [(2, 5, 24), (1, 130, 8), (3, 1, 16)])
def test_heads(shape):
    x = bits(3, shape)
    heads = x.reshape(*shape[:2], -1, 8)
    same(run(kernels.split_heads(8), x), heads.transpose(0, 2, 1, 3))
    same(run(kernels.split_heads_transposed(8), x), heads.transpose(0, 2, 3, 1))
    same(run(kernels.merge_heads(), run(kernels.split_heads(8), x)), x)


def test_blocks_are_transposed_only_where_runs_differ():
    def permutes(kernel, shape):
        return sum(" permute " in line for line in str(graph_of(kernel, f16(*shape))).splitlines())

    assert permutes(kernels.split_heads(32), (4, 128, 384)) == 0
    assert permutes(kernels.merge_heads(), (4, 12, 128, 32)) == 0
    assert permutes(kernels.transpose(1, 0, 2), (12, 128, 32)) == 0
    assert permutes(kernels.split_heads_transposed(32), (4, 128, 384)) == 1
    assert permutes(kernels.transpose(), (64, 64)) == 1


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(0, 2), st.integers(0, 9))
def test_concat(sizes, axis, seed):
    parts = [bits(seed, tuple(size if a == axis else 5 for a in range(3))) for size in sizes]
    same(run(kernels.concat(axis), *parts), np.concatenate(parts, axis))


@given(st.integers(1, 60), st.data())
def test_slice(size, data):
    start = data.draw(st.integers(0, size - 1))
    stop = data.draw(st.integers(start + 1, size))
    x = bits(1, (3, size, 2))
    same(run(kernels.slice(1, start, stop), x), x[:, start:stop])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(1, 50), st.integers(1, 70))
def test_embedding(shape, rows, columns):
    table = bits(4, (rows, columns))
    indices = np.random.default_rng(5).integers(0, rows, shape)
    same(run(kernels.embedding, table, indices.astype(np.int32)), table[indices])


@pytest.mark.parametrize(("count", "columns"), [(3, 4099), (2049, 3), (300, 384)])
def test_embedding_of_many(count, columns):
    table = bits(6, (20, columns))
    indices = np.random.default_rng(7).integers(0, 20, (2, count)).astype(np.int32)
    same(run(kernels.embedding, table, indices), table[indices])


@pytest.mark.parametrize("index", [-1, 20, 10**6])
def test_an_index_outside_the_table_is_refused(index):
    indices = np.array([0, index, 3], np.int32)
    with pytest.raises(EvaluationError, match=r"load of 'operand 0': reaches .* along axis 0, which has 20"):
        run(kernels.embedding, halves(1, 20, 8), indices)


def test_moving_does_no_arithmetic_in_reals_either():
    x = halves(8, 6, 8)
    assert np.array_equal(run(kernels.transpose(), x, arithmetic=REAL), x.T.astype(np.float64))
