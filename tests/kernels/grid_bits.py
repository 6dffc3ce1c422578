"""Products of a grid as its documentation states them, element by element in numpy, and the error it may have."""

import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16


def brains(seed, *shape, scale=1.0):
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * scale).astype(BF16)


def same_bits(found, expected):
    """Whether two arrays of one element type are equal bit by bit."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    width = {2: np.uint16, 4: np.uint32}[found.dtype.itemsize]
    return np.array_equal(np.ascontiguousarray(found).view(width), np.ascontiguousarray(expected).view(width))


def sums(a, b, cuts=(), spill=np.float32):
    """`a @ b.T` in float32: blocks of 32 along K, ascending in each, added up block by block.

    cuts: where the sum goes out in `spill` and comes back.
    """
    a, b = a.astype(np.float32), b.astype(np.float32)
    total = None
    for start in range(0, a.shape[1], 32):
        block = None
        for k in range(start, min(start + 32, a.shape[1])):
            product = a[:, k, None] * b[None, :, k]
            block = product if block is None else block + product
        if total is not None and start in cuts:
            total = total.astype(spill).astype(np.float32)
        total = block if total is None else total + block
    return total


def magnitude(a, b):
    """The sum over K of |a b|."""
    return np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T


def allowed(exact, terms, k):
    """The error that `MulticastProduct` states: one rounding to bf16, and K + 1 additions in float32."""
    return 2.0**-8 * np.abs(exact) + (k + 1) * 2.0**-24 * terms
