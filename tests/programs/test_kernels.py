"""Every kernel as programs of the units: the bits of the evaluator, in results, intermediates and DRAM."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.samples import SAMPLES

from meshwright import kernels
from meshwright.ir import library
from meshwright.ir.expression import Operand
from meshwright.kernels.elementwise import Elementwise
from meshwright.machine import load
from programs.cases import MORE, any_bits, halves, same_kernel
from programs.compare import MACHINE, Comparison

COMPARISON = Comparison()
FEW = settings(deadline=None, max_examples=12 * MORE)
WITH_CORES = [mesh for mesh in MACHINE.mesh_ids if MACHINE.has(mesh, "VC")]


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample(name):
    kernel, operands = SAMPLES[name]
    same_kernel(COMPARISON, kernel, *operands)


@pytest.mark.parametrize("chip", MACHINE.mesh_ids)
@pytest.mark.parametrize("kernel", ["matmul", "convolution", "transpose", "embedding", "gelu", "layer_norm, residual"])
def test_every_mesh(kernel, chip):
    made, operands = SAMPLES[kernel]
    if made.unit == "vector" and chip not in WITH_CORES:
        pytest.skip(f"mesh {chip} has no vector cores: the kernel itself refuses")
    same_kernel(COMPARISON, made, *operands, chip=chip)


@pytest.mark.parametrize("machine", ["ktpu-1", "ktpu-v13p-published"])
@pytest.mark.parametrize(
    "name", ["matmul, leading", "convolution", "bias gelu", "softmax, masked", "layer_norm", "max"]
)
def test_other_machines(machine, name):
    kernel, operands = SAMPLES[name]
    same_kernel(COMPARISON, kernel, *operands, machine=load(machine))


@pytest.mark.parametrize("mask", [False, True])
def test_attention(mask):
    shape = (2, 11, 96)
    masks = (np.where(np.random.default_rng(1).random((2, 1, 1, 11)) < 0.4, -10000, 0).astype(np.float16),) * mask
    same_kernel(COMPARISON, kernels.attention(32, mask=mask), *(halves(s, *shape) for s in range(3)), *masks)


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.exp,
        kernels.sigmoid,
        kernels.silu,
        kernels.tanh,
        kernels.erf,
        kernels.gelu_sigmoid,
        kernels.sqrt,
        kernels.log,
        kernels.reciprocal,
        kernels.subtract,
        kernels.minimum,
        kernels.maximum,
        kernels.scale(3.0),
    ],
    ids=lambda kernel: kernel.name,
)
def test_functions_at_every_kind_of_number(kernel):
    """Infinities, NaNs of several kinds, subnormals, both zeros, the largest, and what lies between."""
    hard = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF, 0x3C00]
    bits = np.concatenate([np.array(hard, np.uint16), np.arange(7, 1 << 16, 131, dtype=np.uint16)])
    x = bits.view(np.float16)
    arity = 2 if kernel.name in ("subtract", "minimum", "maximum") else 1
    same_kernel(COMPARISON, kernel, *[np.roll(x, 5 * i) for i in range(arity)])


@FEW
@given(
    st.sampled_from([kernels.softmax(), kernels.layer_norm(), *(kernels.reduce(f, 1) for f in ("sum", "max", "min"))]),
    st.tuples(st.integers(1, 6), st.integers(1, 200)),
    st.integers(0, 999),
)
def test_rows_with_every_kind_of_number(kernel, shape, seed):
    more = [any_bits(seed + i, shape[1]) for i in (1, 2)] if kernel.name == "layer_norm" else []
    same_kernel(COMPARISON, kernel, any_bits(seed, *shape), *more)


@FEW
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 100), st.integers(0, 999))
def test_products_of_every_kind_of_number(m, n, k, seed):
    same_kernel(COMPARISON, kernels.MatrixProduct(), any_bits(seed, m, k), any_bits(seed + 1, n, k))


# Shapes.


@FEW
@given(st.integers(1, 90), st.integers(1, 150), st.integers(1, 400), st.sampled_from(MACHINE.mesh_ids))
def test_products_of_any_shape(m, n, k, chip):
    same_kernel(COMPARISON, kernels.MatrixProduct(), halves(1, m, k), halves(2, n, k), chip=chip)


@FEW
@given(st.data())
def test_products_with_any_legal_tile(data):
    m, n, k = (data.draw(st.integers(1, size)) for size in (70, 70, 300))
    tile = tuple(step * data.draw(st.integers(1, 8)) for step in (4, 4, 32))
    same_kernel(COMPARISON, kernels.MatrixProduct(tile), halves(1, m, k), halves(2, n, k))


@FEW
@given(st.lists(st.integers(1, 3), min_size=1, max_size=2), st.integers(1, 20), st.integers(1, 40), st.booleans())
def test_products_with_leading_axes(leading, m, n, shared):
    b = halves(2, n, 70) if shared else halves(2, *leading, n, 70)
    same_kernel(COMPARISON, kernels.MatrixProduct(), halves(1, *leading, m, 70), b)


def test_special_values_go_through_a_product():
    a, b = halves(1, 9, 64), halves(2, 7, 64)
    a[0, 0], a[1, 3], b[2, 5], b[3, 1] = np.inf, np.nan, 65504, -np.inf
    same_kernel(COMPARISON, kernels.MatrixProduct(), a, b)


@FEW
@given(
    st.tuples(st.integers(1, 2), st.integers(1, 8), st.integers(1, 8), st.integers(1, 40)),
    st.tuples(st.integers(1, 12), st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(0, 2), st.integers(0, 3)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
def test_convolutions(x_shape, weights, stride, padding, dilation):
    filters, rows, columns = weights
    for axis, size in ((0, rows), (1, columns)):
        if x_shape[1 + axis] + 2 * padding[axis] < dilation[axis] * (size - 1) + 1:
            return
    kernel = kernels.convolution(stride, padding, dilation)
    same_kernel(COMPARISON, kernel, halves(1, *x_shape), halves(2, filters, rows, columns, x_shape[3]))


@FEW
@given(st.lists(st.integers(1, 12), min_size=0, max_size=2), st.integers(1, 1500), st.sampled_from(WITH_CORES))
def test_elementwise_work_of_any_shape(leading, last, chip):
    same_kernel(COMPARISON, kernels.gelu, halves(1, *leading, last), chip=chip)


@settings(deadline=None, max_examples=25 * MORE)
@given(st.data())
def test_operands_broadcast_by_numpys_rules(data):
    rank = data.draw(st.integers(1, 3))
    shape = [data.draw(st.integers(1, 20)) for _ in range(rank)]
    shapes = []
    for _ in range(3):
        kept = [size if data.draw(st.booleans()) else 1 for size in shape]
        shapes.append(tuple(kept[data.draw(st.integers(0, rank - 1)) :]))
    expr = library.multiply_add(Operand(0), Operand(1), Operand(2)) - Operand(1)
    same_kernel(COMPARISON, Elementwise("own", expr, 3), *(halves(i, *s) for i, s in enumerate(shapes)))


@FEW
@given(st.lists(st.integers(1, 20), min_size=1, max_size=3), st.integers(-3, 2), st.integers(0, 99))
def test_softmax_along_any_axis(shape, axis, seed):
    same_kernel(COMPARISON, kernels.softmax(axis % len(shape), 0.5), halves(seed, *shape, scale=3))


@FEW
@given(st.lists(st.integers(1, 6), max_size=2), st.integers(1, 500), st.booleans())
def test_norms(leading, length, with_residual):
    x = [halves(i, *leading, length) for i in range(1 + with_residual)]
    same_kernel(COMPARISON, kernels.layer_norm(), *x, halves(7, length), halves(8, length))
    same_kernel(COMPARISON, kernels.rms_norm(), *x, halves(7, length))


@settings(deadline=None, max_examples=25 * MORE)
@given(
    st.sampled_from(["sum", "mean", "max", "min"]),
    st.lists(st.integers(1, 20), min_size=1, max_size=3),
    st.integers(-3, 2),
    st.booleans(),
)
def test_folds(fold, shape, axis, keep):
    same_kernel(COMPARISON, kernels.reduce(fold, axis % len(shape), keep), halves(1, *shape))


@FEW
@given(st.lists(st.integers(1, 6), max_size=3), st.integers(1, 40), st.booleans())
def test_rotary(leading, half, interleaved):
    x = halves(1, *leading, 2 * half)
    same_kernel(COMPARISON, kernels.rotary(interleaved), x, *(halves(s, *x.shape[-2:-1], half) for s in (2, 3)))


@FEW
@given(st.permutations(range(3)), st.tuples(*(st.integers(1, 30) for _ in range(3))))
def test_transposes(order, shape):
    same_kernel(COMPARISON, kernels.transpose(*order), halves(1, *shape))


@FEW
@given(st.integers(1, 30), st.integers(1, 80), st.lists(st.integers(1, 7), min_size=1, max_size=2), st.integers(0, 9))
def test_embedding(rows, columns, shape, seed):
    indices = np.random.default_rng(seed).integers(0, rows, shape).astype(np.int32)
    same_kernel(COMPARISON, kernels.embedding, halves(1, rows, columns), indices)


@FEW
@given(st.integers(0, 2), st.lists(st.integers(1, 9), min_size=2, max_size=3), st.integers(1, 9))
def test_concat(axis, sizes, other):
    shapes = []
    for size in sizes:
        shape = [other, 3, 5]
        shape[axis] = size
        shapes.append(shape)
    same_kernel(COMPARISON, kernels.concat(axis), *(halves(i, *shape) for i, shape in enumerate(shapes)))


LONG_ROWS = [kernels.softmax(), kernels.reduce("max", 1), kernels.reduce("mean", 1)]


@pytest.mark.parametrize("kernel", LONG_ROWS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("length", [2560, 2561, 5003, 6000])
def test_rows_that_do_not_fit_a_core(kernel, length):
    """2561 is 13 x 197: parts that begin inside of words. 5003 is prime: parts of one element."""
    same_kernel(COMPARISON, kernel, halves(1, 3, length))


@pytest.mark.parametrize("length", [1024, 4096, 5003])
def test_norms_of_rows_that_do_not_fit_a_core(length):
    same_kernel(COMPARISON, kernels.layer_norm(), *(halves(i, 3, length) for i in (1, 2)), *(halves(7, length),) * 2)
