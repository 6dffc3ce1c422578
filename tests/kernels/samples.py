"""Every kernel with operands: small, but more than one block of each kind, and even along every axis that is split."""

import numpy as np
from tests.kernels.one_chip import halves

from meshwright import kernels
from meshwright.ir import library

_INDICES = np.random.default_rng(5).integers(0, 12, (4, 6)).astype(np.int32)
_MASK = np.where(np.random.default_rng(3).random((2, 1, 1, 20)) < 0.4, -10000, 0).astype(np.float16)

SAMPLES = {
    "add": (kernels.add, (halves(1, 6, 70), halves(2, 70))),
    "multiply": (kernels.multiply, (halves(1, 6, 70), halves(2, 6, 1))),
    "negative": (kernels.negative, (halves(1, 6, 70),)),
    "gelu": (kernels.gelu, (halves(1, 6, 70),)),
    "bias gelu": (kernels.elementwise(lambda x, b: library.gelu(x + b)), (halves(1, 6, 2000), halves(2, 2000))),
    "scale": (kernels.scale(0.3), (halves(1, 6, 70),)),
    "matmul": (kernels.MatrixProduct(), (halves(1, 6, 64), halves(2, 200, 64))),
    "matmul, leading": (kernels.MatrixProduct(), (halves(1, 2, 4, 6, 64), halves(2, 2, 4, 8, 64))),
    "matmul, shared b": (kernels.MatrixProduct(), (halves(1, 2, 4, 6, 64), halves(2, 8, 64))),
    "convolution": (kernels.convolution(padding=1), (halves(1, 2, 6, 6, 64), halves(2, 8, 3, 3, 64))),
    "softmax": (kernels.softmax(), (halves(1, 4, 6, 20),)),
    "softmax, masked": (kernels.softmax(scale=0.2), (halves(1, 2, 4, 6, 20), _MASK)),
    "softmax, axis 0": (kernels.softmax(0), (halves(1, 4, 6, 20),)),
    "softmax, in parts": (kernels.softmax(), (halves(1, 2, 6000),)),
    "layer_norm": (kernels.layer_norm(), (halves(1, 4, 6, 384), halves(2, 384), halves(3, 384))),
    "layer_norm, residual": (
        kernels.layer_norm(),
        (halves(1, 4, 384), halves(4, 4, 384), halves(2, 384), halves(3, 384)),
    ),
    "layer_norm, in parts": (kernels.layer_norm(), (halves(1, 2, 4000), halves(2, 4000), halves(3, 4000))),
    "rms_norm": (kernels.rms_norm(), (halves(1, 4, 384), halves(2, 384))),
    "rms_norm, residual": (kernels.rms_norm(), (halves(1, 4, 384), halves(3, 4, 384), halves(2, 384))),
    "sum": (kernels.reduce("sum"), (halves(1, 4, 6, 20),)),
    "sum, kept": (kernels.reduce("sum", 1, keep=True), (halves(1, 4, 6, 20),)),
    "mean": (kernels.reduce("mean", 0), (halves(1, 4, 6, 20),)),
    "max": (kernels.reduce("max", 1), (halves(1, 4, 6000),)),
    "min": (kernels.reduce("min", 0), (halves(1, 4, 6),)),
    "rotary": (kernels.rotary(), (halves(1, 2, 4, 6, 32), halves(2, 6, 16), halves(3, 6, 16))),
    "rotary, interleaved": (kernels.rotary(True), (halves(1, 4, 6, 32), halves(2, 1, 16), halves(3, 1, 16))),
    "transpose": (kernels.transpose(), (halves(1, 70, 66),)),
    "transpose of three": (kernels.transpose(2, 0, 1), (halves(1, 4, 6, 8),)),
    "split_heads": (kernels.split_heads(8), (halves(1, 2, 6, 32),)),
    "split_heads_transposed": (kernels.split_heads_transposed(8), (halves(1, 2, 6, 32),)),
    "merge_heads": (kernels.merge_heads(), (halves(1, 2, 4, 6, 8),)),
    "concat": (kernels.concat(1), (halves(1, 4, 6, 2), halves(2, 4, 10, 2), halves(3, 4, 2, 2))),
    "slice": (kernels.slice(1, 3, 9), (halves(1, 4, 10, 2),)),
    "embedding": (kernels.embedding, (halves(1, 12, 50), _INDICES)),
}
