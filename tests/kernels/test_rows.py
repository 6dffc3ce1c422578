"""Softmax and norms: rows that fit a vector core, rows that don't, masks, residuals, any axis."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.one_chip import HERE, KTPU, REAL, both, f16, graph_of, halves, run

from meshwright import kernels
from meshwright.errors import KernelError
from meshwright.ir.build import GraphBuilder
from meshwright.ir.expression import Operand
from meshwright.ir.operation import Reduce
from meshwright.ir.pool import Pool
from meshwright.ir.records import Compute, Load
from meshwright.kernels.kernel import Piece
from meshwright.kernels.rows import Pass, RowProgram, emit_rows

MOST_ROOM = 5120
"""f16 elements in the words of a vector core's L1 that may be used."""


def exact_softmax(axis=-1, scale=1.0):
    def exact(x, mask=0.0):
        x = x * scale + mask
        raised = np.exp(x - x.max(axis, keepdims=True))
        return raised / raised.sum(axis, keepdims=True)

    return exact


def exact_layer_norm(eps):
    def exact(x, *more):
        *residual, gamma, beta = more
        h = x + sum(residual)
        return (h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + eps) * gamma + beta

    return exact


def exact_rms_norm(eps):
    def exact(x, *more):
        *residual, gamma = more
        h = x + sum(residual)
        return h / np.sqrt((h * h).mean(-1, keepdims=True) + eps) * gamma

    return exact


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(-4, 3), st.integers(0, 99))
def test_softmax_along_any_axis(shape, axis, seed):
    axis = axis % len(shape)
    both(kernels.softmax(axis, 0.5), exact_softmax(axis, 0.5), halves(seed, *shape, scale=3), within=1e-3)


@pytest.mark.parametrize("length", [1536, 2500, 2560, 2561, 5000, 5003, 8192])
def test_softmax_of_long_rows(length):
    x = halves(1, 3, length, scale=2)
    both(kernels.softmax(), exact_softmax(), x, within=1e-3)
    loads = [s for s in graph_of(kernels.softmax(), f16(4, length)).stages if isinstance(s.kind, Load)]
    # One of the row where it fits; else one a pass, and those of what was folded (a value and its remainder each).
    assert len(loads) == 2 * (1 if length * 2 <= MOST_ROOM else 3 + 2 + 4)


def test_long_rows_along_an_inner_axis():
    both(kernels.softmax(1), exact_softmax(1), halves(2, 2, 6000, 3), within=1e-3)


@pytest.mark.parametrize("mask_shape", [(2, 1, 1, 50), (1, 50), (2, 3, 7, 50)])
def test_softmax_with_a_mask(mask_shape):
    mask = np.where(np.random.default_rng(3).random(mask_shape) < 0.4, -10000, 0).astype(np.float16)
    x = halves(3, 2, 3, 7, 50, scale=4)
    both(kernels.softmax(scale=0.17), exact_softmax(scale=0.17), x, mask, within=1e-3)


@pytest.mark.parametrize("bias_shape", [(2, 3, 1, 50), (1,), (2, 1, 7, 1)])
def test_softmax_with_a_bias(bias_shape):
    x, bias = halves(3, 2, 3, 7, 50, scale=4), halves(4, *bias_shape, scale=2)
    both(kernels.softmax(scale=0.17), exact_softmax(scale=0.17), x, bias, within=1e-3)


def test_softmax_with_a_mask_over_long_rows():
    mask = np.where(np.random.default_rng(4).random((1, 6000)) < 0.4, -10000, 0).astype(np.float16)
    both(kernels.softmax(), exact_softmax(), halves(4, 5, 6000), mask, within=1e-3)


def test_masked_keys_have_no_weight():
    x = np.zeros((1, 4), np.float16)
    mask = np.array([0, -np.inf, -10000, 0], np.float16)
    assert run(kernels.softmax(), x, mask).tolist() == [[0.5, 0, 0, 0.5]]


@pytest.mark.parametrize("peak", [60000.0, -60000.0])
def test_softmax_of_the_largest_values_neither_wraps_nor_overflows(peak):
    x = np.full((2, 33), -60000.0, np.float16)
    x[:, 5] = peak
    both(kernels.softmax(scale=3.0), exact_softmax(scale=3.0), x, within=1e-3)


@given(
    st.lists(st.integers(1, 12), max_size=2),
    st.integers(1, 300),
    st.sampled_from([1e-12, 1e-5]),
    st.booleans(),
    st.integers(0, 99),
)
def test_norms(leading, length, eps, with_residual, seed):
    x = [halves(seed + i, *leading, length) for i in range(1 + with_residual)]
    gamma, beta = halves(7, length), halves(8, length)
    # A row of two nearly equal values divides by their small distance: what is tested is the formula.
    bound = 4e-3 if length > 8 else 0.2
    both(kernels.rms_norm(eps), exact_rms_norm(eps), *x, gamma, within=4e-3)
    both(kernels.layer_norm(eps), exact_layer_norm(eps), *x, gamma, beta, within=bound)


@pytest.mark.parametrize("length", [384, 768, 1024, 1536, 4096, 5003])
def test_norms_of_long_rows(length):
    x, residual = halves(5, 3, length), halves(6, 3, length)
    gamma, beta = halves(7, length), halves(8, length)
    both(kernels.layer_norm(), exact_layer_norm(1e-5), x, residual, gamma, beta, within=2e-3)
    both(kernels.rms_norm(), exact_rms_norm(1e-6), x, residual, gamma, within=2e-3)


def test_a_row_of_equal_values_normalises_to_beta():
    x = np.full((2, 384), 3.0, np.float16)
    gamma, beta = halves(1, 384), halves(2, 384)
    assert np.array_equal(run(kernels.layer_norm(1e-12), x, gamma, beta), np.broadcast_to(beta, x.shape))


def test_parts_and_whole_rows_give_the_same_function():
    """The same values, laid out as one row that fits and, repeated in a longer one, as rows that don't."""
    short = halves(9, 2, 1250)
    long = np.concatenate([short] * 4, axis=1)
    whole, parts = (run(kernels.rms_norm(), x, np.ones(x.shape[1], np.float16), arithmetic=REAL) for x in (short, long))
    assert np.allclose(np.concatenate([whole] * 4, axis=1), parts, rtol=1e-12)


@pytest.mark.parametrize(
    ("kernel", "operands"),
    [
        (kernels.softmax(), (f16(64, 128),)),
        (kernels.softmax(), (f16(2, 3, 128, 128), f16(2, 1, 1, 128))),
        (kernels.softmax(), (f16(8, 1536),)),
        (kernels.softmax(), (f16(8, 9000),)),
        (kernels.layer_norm(), (f16(100, 384), f16(100, 384), f16(384), f16(384))),
        (kernels.layer_norm(), (f16(9, 1024), f16(1024), f16(1024))),
        (kernels.layer_norm(), (f16(9, 4096), f16(9, 4096), f16(4096), f16(4096))),
        (kernels.rms_norm(), (f16(9, 4096), f16(4096))),
    ],
)
def test_blocks_fit_a_vector_core(kernel, operands):
    graph = graph_of(kernel, *operands)
    room = dict.fromkeys(HERE.vector_sites(), 0)
    for buffer in graph.buffers:
        if buffer.format is HERE.value_format:
            room[buffer.site] += buffer.depth * buffer.elements
    # In parts, passes follow each other: each has the room to itself.
    passes = sum(isinstance(s.kind, Compute) and isinstance(s.kind.op, Reduce) for s in graph.stages) // 2 + 1
    single = all(t.name.startswith(("operand", "result")) for t in graph.tensors)
    assert all(0 < used <= MOST_ROOM * (1 if single else passes) for used in room.values())


def test_a_value_that_the_next_pass_leaves_is_refused():
    builder = GraphBuilder()
    x, y = (builder.tensor(name, (4, 8), HERE.value_format, (0,)) for name in "xy")
    program = RowProgram("odd", 1, (Pass(Pool.SUM, Operand(0), (Operand(0),)),), Operand(2))
    with pytest.raises(KernelError, match="odd: a pass leaves value 0 for the next, which doesn't read it"):
        emit_rows(builder, HERE, program, (Piece(x, 0, (4, 8)),), Piece(y, 0, (4, 8)), 1)


def test_the_lane_rounds_what_the_reals_do_not():
    x = halves(11, 4, 100)
    assert not np.array_equal(
        run(kernels.softmax(), x, arithmetic=KTPU).astype(np.float64), run(kernels.softmax(), x, arithmetic=REAL)
    )
