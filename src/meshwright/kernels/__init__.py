"""Tensor operations as graph builders: each says what it mixes, and adds its stages to a graph."""

from meshwright.kernels.attention import attention
from meshwright.kernels.compose import Call, Composition
from meshwright.kernels.convolution import convolution
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
from meshwright.kernels.embedding import embedding
from meshwright.kernels.join import concat, slice
from meshwright.kernels.kernel import Contraction, Kernel, Piece, Shaped
from meshwright.kernels.matmul import MatrixProduct
from meshwright.kernels.norm import layer_norm, rms_norm
from meshwright.kernels.rearrange import Rearrange, merge_heads, split_heads, split_heads_transposed, transpose
from meshwright.kernels.reduce import reduce
from meshwright.kernels.rotary import rotary
from meshwright.kernels.softmax import softmax

__all__ = [
    "Call",
    "Composition",
    "Contraction",
    "Kernel",
    "MatrixProduct",
    "Piece",
    "Rearrange",
    "Shaped",
    "add",
    "attention",
    "concat",
    "convolution",
    "elementwise",
    "embedding",
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
    "reduce",
    "rms_norm",
    "rotary",
    "scale",
    "sigmoid",
    "silu",
    "slice",
    "softmax",
    "split_heads",
    "split_heads_transposed",
    "sqrt",
    "subtract",
    "tanh",
    "transpose",
]
