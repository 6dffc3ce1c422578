"""Attention as a composition, on one chip and through a group of meshes."""

import numpy as np
import pytest
from tests.kernels.one_chip import KTPU, REAL, halves, run

from meshwright import kernels
from meshwright.sharding import MeshGroup

BATCH, POSITIONS, HEADS, SIZE = 4, 12, 4, 32


def operands():
    shape = (BATCH, POSITIONS, HEADS * SIZE)
    mask = np.zeros((BATCH, 1, 1, POSITIONS), np.float16)
    mask[1:, ..., 9:] = -10000
    return halves(1, *shape), halves(2, *shape), halves(3, *shape), mask


def exact(q, k, v, mask):
    q, k, v = (x.astype(float).reshape(BATCH, POSITIONS, HEADS, SIZE).transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(SIZE) + mask
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    heads = raised / raised.sum(-1, keepdims=True) @ v
    return heads.transpose(0, 2, 1, 3).reshape(BATCH, POSITIONS, HEADS * SIZE)


@pytest.mark.parametrize(("arithmetic", "bound"), [(REAL, 1e-12), (KTPU, 0.08)])
def test_attention_with_a_mask(arithmetic, bound):
    made = kernels.attention(SIZE, mask=True).through(
        lambda kernel, *values: run(kernel, *values, arithmetic=arithmetic), *operands()
    )
    assert np.abs(made - exact(*operands())).max() < bound


@pytest.mark.parametrize("axis", [0, 2])
def test_attention_split_over_heads_or_batch_has_the_bits_of_one_mesh(axis):
    group, alone = MeshGroup.open("ktpu-v13p"), MeshGroup.open("ktpu-v13p", 1)
    values = operands()[:3]
    whole = kernels.attention(SIZE).through(alone.each, *map(alone.copy, values)).numpy()
    spread = kernels.attention(SIZE).through(group.each, *(group.split(x, axis) for x in values))
    assert str(spread.spec) == f"split {axis}"
    assert np.array_equal(spread.numpy().view(np.uint16), whole.view(np.uint16))


def test_a_composition_prints_as_its_steps():
    assert str(kernels.attention(SIZE, mask=True)) == (
        "attention(q, k, v, mask):\n"
        "  queries = split_heads(q)\n"
        "  keys = split_heads(k)\n"
        "  values = split_heads_transposed(v)\n"
        "  scores = matmul(queries, keys)\n"
        "  weights = softmax(scores, mask)\n"
        "  heads = matmul(weights, values)\n"
        "  result = merge_heads(heads)"
    )


def test_the_scale_of_the_scores():
    assert kernels.attention(64).calls[4].kernel == kernels.softmax(scale=0.125)
    assert kernels.attention(64, scale=0.3).calls[4].kernel == kernels.softmax(scale=0.3)
