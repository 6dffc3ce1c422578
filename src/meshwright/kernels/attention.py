"""Scaled dot-product attention, as the kernels that it is made of."""

from __future__ import annotations

import math

from meshwright.kernels.compose import Call, Composition
from meshwright.kernels.matmul import MatrixProduct
from meshwright.kernels.rearrange import merge_heads, split_heads, split_heads_transposed
from meshwright.kernels.softmax import softmax


def attention(size: int, scale: float | None = None, mask: bool = False) -> Composition:
    """Attention of heads of `size` elements over q, k, v `[batch, positions, heads * size]`, and a mask if asked for.

    scale: of the scores, `1 / sqrt(size)` by default. mask: adds to them, `[batch, 1, 1, keys]` or what else broadcasts
    to `[batch, heads, queries, keys]`. A split over heads (axis 2 of q, k and v) goes all the way through.
    """
    weights = softmax(scale=1.0 / math.sqrt(size) if scale is None else scale)
    calls = (
        Call("queries", split_heads(size), ("q",)),
        Call("keys", split_heads(size), ("k",)),
        Call("values", split_heads_transposed(size), ("v",)),
        Call("scores", MatrixProduct(), ("queries", "keys")),
        Call("weights", weights, ("scores", "mask") if mask else ("scores",)),
        Call("heads", MatrixProduct(), ("weights", "values")),
        Call("result", merge_heads(), ("heads",)),
    )
    return Composition("attention", ("q", "k", "v", "mask") if mask else ("q", "k", "v"), calls)
