"""Multicast kernels over several chips: split and run as any other kernel, with the bits of one chip."""

import numpy as np
import pytest
from tests.kernels.grid_bits import brains, same_bits

import meshwright as mw
from meshwright.kernels.grid import SpreadEmbedding, mixture_of_experts, multicast_convolution, multicast_matmul

CASES = {
    "matmul": (multicast_matmul((32, 32, 32)), (brains(0, 64, 40), brains(1, 96, 40), brains(2, 96)), {0: 0}),
    "matmul by columns": (multicast_matmul(), (brains(0, 70, 40), brains(1, 96, 40)), {1: 0}),
    "convolution": (multicast_convolution(padding=1), (brains(0, 2, 5, 6, 7), brains(1, 9, 3, 3, 7)), {0: 0}),
    "convolution by groups": (
        multicast_convolution(),
        (brains(0, 1, 5, 6, 2, 7), brains(1, 2, 9, 3, 3, 7)),
        {0: 3, 1: 0},
    ),
    "experts": (
        mixture_of_experts(2),
        (brains(0, 64, 32), brains(1, 4, 32), brains(2, 4, 64, 32), brains(3, 4, 32, 64)),
        {0: 0},
    ),
    "embedding": (SpreadEmbedding(), (brains(0, 9, 8), np.arange(14, dtype=np.int32) % 9), {1: 0}),
}


@pytest.mark.parametrize("name", CASES)
def test_split_over_two_chips(name):
    kernel, arrays, cut = CASES[name]
    group = mw.MeshGroup.open("grid-2x4x4")
    values = [group.split(a, axis=cut[i]) if i in cut else group.copy(a) for i, a in enumerate(arrays)]
    whole = group.each(kernel, *map(group.copy, arrays))
    assert same_bits(np.asarray(group.each(kernel, *values)), np.asarray(whole))


def test_slices_of_the_contraction_are_contributions():
    a, b = brains(0, 40, 64), brains(1, 33, 64)
    group = mw.MeshGroup.open("grid-2x4x4")
    partial = group.each(multicast_matmul(), group.split(a, axis=1), group.split(b, axis=1))
    assert partial.spec.partial is not None
    halves = [np.asarray(part.numpy()).astype(np.float64) for part in partial.parts]
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(halves[0] + halves[1], exact, atol=0.1)
