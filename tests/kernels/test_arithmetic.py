"""Products, convolutions, elementwise work, reductions and rotary embedding against float64."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.one_chip import HERE, both, f16, graph_of, halves, run

from meshwright import kernels
from meshwright.ir import library
from meshwright.ir.pool import Pool

erfc = np.vectorize(math.erfc, otypes=[float])


def exact_gelu(x):
    return 0.5 * x * erfc(-x / math.sqrt(2))


@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 100), st.lists(st.integers(1, 3), max_size=2))
def test_products_over_leading_axes(m, n, k, leading):
    a, b = halves(1, *leading, m, k), halves(2, *leading, n, k)
    both(kernels.MatrixProduct(), lambda a, b: a @ np.swapaxes(b, -1, -2), a, b, within=0.12, least=math.sqrt(k))


def test_a_product_with_weights_that_all_leading_positions_share():
    both(kernels.MatrixProduct(), lambda a, b: a @ b.T, halves(1, 2, 5, 70, 96), halves(2, 33, 96), within=0.06)


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 12), st.integers(1, 12), st.integers(1, 40)),
    st.tuples(st.integers(1, 20), st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(0, 2), st.integers(0, 3)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
def test_convolution(x_shape, weights, stride, padding, dilation):
    filters, rows, columns = weights
    for axis, size in ((0, rows), (1, columns)):
        if x_shape[1 + axis] + 2 * padding[axis] < dilation[axis] * (size - 1) + 1:
            return
    x, w = halves(1, *x_shape), halves(2, filters, rows, columns, x_shape[3])
    kernel = kernels.convolution(stride, padding, dilation)
    least = math.sqrt(w[0].size)
    both(kernel, lambda x, w: exact_convolution(x, w, stride, padding, dilation), x, w, within=0.12, least=least)


@pytest.mark.parametrize("shape", [(70, 2, 3, 4), (1, 80, 3, 64), (1, 1, 200, 300)])
def test_convolution_lays_rows_along_whichever_axis_is_long(shape):
    x, w = halves(1, *shape), halves(2, 5, 1, 3, shape[3])
    both(
        kernels.convolution(padding=(0, 1)),
        lambda x, w: exact_convolution(x, w, (1, 1), (0, 1), (1, 1)),
        x,
        w,
        within=0.12,
    )
    blocks = {b.block for b in graph_of(kernels.convolution(padding=(0, 1)), f16(*shape), f16(*w.shape)).buffers}
    # 64, or even parts where units would be idle otherwise; along another axis there would be 3 at most.
    assert max(rows for rows, _ in blocks) in (36, 64)


def exact_convolution(x, w, stride, padding, dilation):
    x = np.pad(x, ((0, 0), *((p, p) for p in padding), (0, 0)))
    size = [(x.shape[1 + a] - dilation[a] * (w.shape[1 + a] - 1) - 1) // stride[a] + 1 for a in (0, 1)]
    total = np.zeros((x.shape[0], *size, w.shape[0]))
    for i in range(w.shape[1]):
        for j in range(w.shape[2]):
            rows = slice(i * dilation[0], i * dilation[0] + stride[0] * (size[0] - 1) + 1, stride[0])
            columns = slice(j * dilation[1], j * dilation[1] + stride[1] * (size[1] - 1) + 1, stride[1])
            total += x[:, rows, columns] @ w[:, i, j].T
    return total


@given(
    st.sampled_from(["sum", "mean", "max", "min"]),
    st.lists(st.integers(1, 40), min_size=1, max_size=3),
    st.integers(-3, 2),
    st.booleans(),
    st.integers(0, 9),
)
def test_reduce(fold, shape, axis, keep, seed):
    axis = axis % len(shape)
    x = halves(seed, *shape)
    exact = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}[fold]
    # A sum near zero has the error of its summands.
    bound = 0.0 if fold in ("max", "min") else 1e-3 * max(1.0, np.abs(x).sum(axis, dtype=float).max())
    want = exact(x.astype(float), axis=axis, keepdims=keep)
    made = run(kernels.reduce(fold, axis, keep), x)
    assert made.shape == want.shape
    assert np.abs(made - want).max() <= bound
    both(kernels.reduce(fold, axis, keep), lambda x: exact(x, axis=axis, keepdims=keep), x, within=math.inf)


@pytest.mark.parametrize("length", [2560, 2561, 5003, 9000])
@pytest.mark.parametrize("fold", ["sum", "mean", "max", "min"])
def test_reduce_of_long_rows(fold, length):
    x = np.abs(halves(1, 3, length))
    both(kernels.reduce(fold, 1), lambda x: getattr(np, fold)(x, axis=1), x, within=2e-3)


def test_a_pool_names_its_fold():
    assert kernels.reduce(Pool.MAX, 0) == kernels.reduce("max", 0)


@given(
    st.lists(st.integers(1, 9), max_size=3),
    st.integers(1, 40),
    st.booleans(),
    st.booleans(),
)
def test_rotary(leading, half, interleaved, per_position):
    x = halves(1, *leading, 2 * half)
    angles_shape = (*x.shape[-2:-1], half) if per_position else (half,)
    angle = np.random.default_rng(2).uniform(-9, 9, angles_shape)
    cos, sin = np.cos(angle).astype(np.float16), np.sin(angle).astype(np.float16)

    def exact(x, cos, sin):
        a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else np.split(x, 2, -1)
        turned = a * cos - b * sin, b * cos + a * sin
        return np.stack(turned, -1).reshape(x.shape) if interleaved else np.concatenate(turned, -1)

    both(kernels.rotary(interleaved), exact, x, cos, sin, within=1e-3)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_of_an_axis_longer_than_a_block(interleaved):
    x = halves(3, 2, 2206)
    one, none = np.ones((1, 1103), np.float16), np.zeros((1, 1103), np.float16)
    assert np.array_equal(run(kernels.rotary(interleaved), x, one, none), x)


@given(st.lists(st.integers(1, 20), max_size=3), st.data())
def test_elementwise_broadcasts_as_numpy_does(shape, data):
    smaller = [size if data.draw(st.booleans()) else 1 for size in shape][data.draw(st.integers(0, len(shape))) :]
    a, b = halves(1, *shape), halves(2, *smaller)
    both(kernels.add, np.add, a, b, within=1e-3)
    both(kernels.multiply, np.multiply, b, a, within=1e-3)


@pytest.mark.parametrize(
    ("kernel", "exact"),
    [
        (kernels.exp, np.exp),
        (kernels.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
        (kernels.silu, lambda x: x / (1 + np.exp(-x))),
        (kernels.tanh, np.tanh),
        (kernels.negative, np.negative),
        (kernels.gelu_sigmoid, lambda x: x / (1 + np.exp(-1.702 * x))),
        (kernels.scale(0.3), lambda x: 0.3 * x),
    ],
)
def test_elementwise_functions(kernel, exact):
    both(kernel, exact, halves(1, 50, 70, scale=3), within=1e-3)


@pytest.mark.parametrize(
    ("kernel", "exact"), [(kernels.sqrt, np.sqrt), (kernels.log, np.log), (kernels.reciprocal, np.reciprocal)]
)
def test_elementwise_functions_of_positive_numbers(kernel, exact):
    both(kernel, exact, np.abs(halves(1, 50, 70)) + np.float16(0.1), within=1e-3)


def test_gelu_with_a_bias_is_one_kernel():
    bias_gelu = kernels.elementwise(lambda x, b: library.gelu(x + b), "bias_gelu")
    x, b = halves(1, 20, 1536), halves(2, 1536)
    want = exact_gelu(x.astype(float) + b)
    assert np.abs(run(bias_gelu, x, b) - want).max() < 3e-3
    graph = graph_of(bias_gelu, f16(20, 1536), f16(1536))
    # Blocks divide the rows: nothing is read beside the tensor.
    assert {b.elements for b in graph.buffers} == {768}
    assert len(HERE.vector_sites()) * 4 == len(graph.stages)
