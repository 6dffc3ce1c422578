"""Convolutions on rows and columns of sites: halo, stride, dilation, groups, ragged edges."""

import re

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.kernels.block_flow import stuck
from tests.kernels.grid_bits import allowed, brains, same_bits

from meshwright import targets
from meshwright.errors import KernelError
from meshwright.evaluate.real import RealArithmetic
from meshwright.ir.flow import block_counts
from meshwright.ir.form import faults
from meshwright.ir.formats import ElementType as E
from meshwright.ir.records import Load, Recv
from meshwright.kernels.alone import graph_alone, run_alone
from meshwright.kernels.convolution import convolution
from meshwright.kernels.grid import multicast_convolution
from meshwright.kernels.kernel import Shaped
from meshwright.machine import load

GRID = load("grid-8x8")
PLACE = targets.placement(GRID, 0)
NUMBERS = targets.arithmetic(GRID)


def bf16(*shape):
    return Shaped(shape, E.BF16)


def direct(x, weights, stride, padding, dilation):
    """The sum over kernel rows, columns and channels, and that of the magnitudes, in float64."""
    x, weights = x.astype(np.float64), weights.astype(np.float64)
    _, rows, columns, _ = weights.shape
    x = np.pad(x, ((0, 0), (padding[0],) * 2, (padding[1],) * 2, (0, 0)))
    high = (x.shape[1] - dilation[0] * (rows - 1) - 1) // stride[0] + 1
    wide = (x.shape[2] - dilation[1] * (columns - 1) - 1) // stride[1] + 1
    total = np.zeros((x.shape[0], high, wide, len(weights)))
    terms = np.zeros_like(total)
    for r in range(rows):
        for c in range(columns):
            down, across = r * dilation[0], c * dilation[1]
            part = x[:, down:, across:][:, : (high - 1) * stride[0] + 1 : stride[0]]
            part = part[:, :, : (wide - 1) * stride[1] + 1 : stride[1]]
            total += part @ weights[:, r, c].T
            terms += np.abs(part) @ np.abs(weights[:, r, c]).T
    return total, terms


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
lines = st.integers(1, 8)
shapes = st.tuples(st.integers(1, 3), st.integers(1, 12), st.integers(1, 40), st.integers(1, 40))


@given(
    shapes, st.integers(1, 70), pairs, pairs, st.tuples(st.integers(0, 2), st.integers(0, 2)), pairs, lines, lines,
    st.sampled_from([1, 2]),
)  # fmt: skip
def test_any_shape_on_any_rectangle(shape, filters, kernel, stride, padding, dilation, rows, columns, depth):
    batch, high, wide, channels = shape
    for size, taps, around, apart in zip((high, wide), kernel, padding, dilation, strict=True):
        assume(size + 2 * around >= apart * (taps - 1) + 1)
    x, weights = brains(0, batch, high, wide, channels), brains(1, filters, *kernel, channels)
    made = multicast_convolution(stride, padding, dilation, None, rows, columns, depth)
    graph = graph_alone(made, PLACE, [bf16(*x.shape), bf16(*weights.shape)])
    assert faults(graph) == ()
    block_counts(graph)
    assert stuck(graph) == []
    found = run_alone(made, PLACE, NUMBERS, [x, weights])
    assert same_bits(found, run_alone(convolution(stride, padding, dilation), PLACE, NUMBERS, [x, weights]))
    one = multicast_convolution(stride, padding, dilation, None, 1, 1)
    assert same_bits(found, run_alone(one, PLACE, NUMBERS, [x, weights]))
    exact, terms = direct(x, weights, stride, padding, dilation)
    assert found.shape == exact.shape
    # Every position's channels are filled up to a block of 32, whose zeros are added as well.
    k = kernel[0] * kernel[1] * -(-channels // 32) * 32
    assert (np.abs(found.astype(np.float64) - exact) <= allowed(exact, terms, k)).all()


@given(st.integers(1, 4), st.integers(1, 40), st.integers(1, 40), lines, lines, st.integers(1, 2))
def test_groups_are_convolutions_side_by_side(groups, channels, filters, rows, columns, stride):
    x, weights = brains(0, 2, 7, 9, groups, channels), brains(1, groups, filters, 3, 2, channels)
    # What must not leak: another group's infinities, and its filters.
    x[:, :, :, 0] *= 100
    made = multicast_convolution(stride, 1, 1, None, rows, columns)
    assert stuck(graph_alone(made, PLACE, [bf16(*x.shape), bf16(*weights.shape)])) == []
    found = run_alone(made, PLACE, NUMBERS, [x, weights])
    for group in range(groups):
        alone = [np.ascontiguousarray(x[:, :, :, group]), np.ascontiguousarray(weights[group])]
        expected = run_alone(convolution(stride, 1), PLACE, NUMBERS, alone)
        assert same_bits(np.ascontiguousarray(found[:, :, :, group]), expected)


def test_an_infinity_stays_in_its_group():
    x, weights = brains(0, 1, 4, 4, 2, 5), brains(1, 2, 5, 1, 1, 5)
    x[0, 1, 1, 0, 0] = np.inf
    found = run_alone(multicast_convolution(), PLACE, NUMBERS, [x, weights])
    assert np.isinf(found[0, 1, 1, 0].astype(np.float32)).all()
    assert np.isfinite(found[:, :, :, 1].astype(np.float32)).all()


def test_as_real_numbers():
    random = np.random.default_rng(0)
    x, weights = random.standard_normal((2, 9, 11, 7)), random.standard_normal((5, 3, 3, 7))
    found = run_alone(multicast_convolution(2, 1, (1, 2)), PLACE, RealArithmetic(), [x, weights])
    np.testing.assert_allclose(found, direct(x, weights, (2, 2), (1, 1), (1, 2))[0], rtol=1e-12, atol=1e-12)


def test_patches_are_sent_along_rows_and_filters_along_columns():
    graph = graph_alone(multicast_convolution(padding=1), PLACE, [bf16(1, 64, 32, 32), bf16(256, 3, 3, 32)])
    loads = [s for s in graph.stages if isinstance(s.kind, Load)]
    assert len(loads) == 8 + 8
    assert sum(isinstance(s.kind, Recv) for s in graph.stages) == 2 * 8 * 7
    for stage in loads:
        group, site = graph.groups[stage.kind.multicast], graph.site(stage)
        along_row = graph.tensors[stage.kind.tensor].name == "operand 0"
        assert (group.low, group.high) == (((0, site.y), (7, site.y)) if along_row else ((site.x, 0), (site.x, 7)))


def test_what_it_says_of_itself():
    made = multicast_convolution()
    plain, grouped = (bf16(1, 5, 5, 3), bf16(7, 3, 3, 3)), (bf16(1, 5, 5, 2, 3), bf16(2, 7, 3, 3, 3))
    assert made.result(plain) == bf16(1, 3, 3, 7)
    assert made.result(grouped) == bf16(1, 3, 3, 2, 7)
    assert made.axes(plain) == ((0, None, None, None), (3, None, None, None))
    assert made.axes(grouped) == ((0, None, None, 3, None), (3, 4, None, None, None))
    assert (made.contractions(plain)[0].axes, made.contractions(grouped)[0].axes) == ((3, 3), (4, 4))
    assert [made.linear_in(frozenset(t), plain) for t in ({0}, {1}, {0, 1})] == [True, True, False]
    assert (made.name, made.unit) == ("multicast convolution", "matrix")


FORM = (
    "x is [batch, height, width, channels] and weights are [filters, rows, columns, channels], of the same channels; "
    "or, of the same groups, x is [batch, height, width, groups, channels] and weights are [groups, filters, rows, "
    "columns, channels]"
)
REFUSED = {
    f"multicast convolution: x is bf16[1, 5, 5, 3] and the weights bf16[7, 3, 3, 4]; {FORM}": (
        (1, 5, 5, 3),
        (7, 3, 3, 4),
    ),
    f"multicast convolution: x is bf16[1, 5, 5, 2, 3] and the weights bf16[3, 7, 3, 3, 3]; {FORM}": (
        (1, 5, 5, 2, 3),
        (3, 7, 3, 3, 3),
    ),
    "multicast convolution: the weights bf16[7, 3, 6, 3] cover 6 of columns, and x bf16[1, 5, 5, 3] has 5 with its "
    "padding": ((1, 5, 5, 3), (7, 3, 6, 3)),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_operands_that_do_not_fit(message):
    with pytest.raises(KernelError, match=f"^{re.escape(message)}$"):
        graph_alone(multicast_convolution(), PLACE, [bf16(*shape) for shape in REFUSED[message]])


def test_convolutions_that_can_not_be_made():
    message = (
        "multicast_convolution(stride=0, padding=-1, dilation=(1, 1)): strides and dilations are at least 1, paddings "
        "at least 0"
    )
    with pytest.raises(KernelError, match=f"^{re.escape(message)}$"):
        multicast_convolution(0, -1, (1, 1))
    with pytest.raises(KernelError, match=re.escape("multicast_convolution(depth=0): a FIFO holds")):
        multicast_convolution(depth=0)
