"""Tensor operations as graph builders: each says what it mixes, and adds its stages to a graph."""

from meshwright.kernels.attention import attention
from meshwright.kernels.elementwise import (
    add,
    elementwise,
    erf,
    exp,
    gelu,
    gelu_sigmoid,
    log,
    maximum,
    minimum,
    multiply,
    negative,
    reciprocal,
    scale,
    sigmoid,
    silu,
    sqrt,
    subtract,
    tanh,
)
from meshwright.kernels.matmul import MatrixProduct
from meshwright.kernels.norm import layer_norm, rms_norm
from meshwright.kernels.rearrange import merge_heads, split_heads, split_heads_transposed, transpose
from meshwright.kernels.softmax import softmax

__all__ = [
    "MatrixProduct",
    "add",
    "attention",
    "elementwise",
    "erf",
    "exp",
    "gelu",
    "gelu_sigmoid",
    "layer_norm",
    "log",
    "maximum",
    "merge_heads",
    "minimum",
    "multiply",
    "negative",
    "reciprocal",
    "rms_norm",
    "scale",
    "sigmoid",
    "silu",
    "softmax",
    "split_heads",
    "split_heads_transposed",
    "sqrt",
    "subtract",
    "tanh",
    "transpose",
]
