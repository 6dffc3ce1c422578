"""What accuracy is measured on: kernels, distributions of operands, and the exact formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.evaluate.arithmetic import Array
from meshwright.ir import library
from meshwright.ir.expression import Operand
from meshwright.kernels.attention import attention
from meshwright.kernels.compose import Composition
from meshwright.kernels.convolution import convolution
from meshwright.kernels.elementwise import (
    Elementwise,
    erf,
    exp,
    gelu,
    gelu_sigmoid,
    log,
    reciprocal,
    sigmoid,
    silu,
    sqrt,
    tanh,
)
from meshwright.kernels.kernel import Kernel
from meshwright.kernels.matmul import MatrixProduct
from meshwright.kernels.norm import layer_norm, rms_norm
from meshwright.kernels.reduce import reduce
from meshwright.kernels.rotary import rotary
from meshwright.kernels.softmax import softmax

Float64 = NDArray[np.float64]
Normal = Callable[..., Array]
"""f16 normal numbers of a shape; `scale` and `mean` as keywords."""


class Case(Struct, frozen=True, eq=False):
    """A kernel, a distribution of operands in words and as arrays, and the exact formula."""

    kernel: Kernel | Composition
    distribution: str
    operands: tuple[Array, ...]
    formula: Callable[..., Float64]


def cases(seed: int = 0) -> Iterator[Case]:
    """What is measured; the same operands for the same seed."""
    random = np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 1.0, mean: float = 0.0) -> Array:
        return (random.standard_normal(shape) * scale + mean).astype(np.float16)

    def uniform(low: float, high: float) -> Array:
        return random.uniform(low, high, (64, 256)).astype(np.float16)

    yield from _products(normal)
    yield from _elementwise(normal, uniform)
    yield from _rows(normal)
    turns = random.uniform(-math.pi, math.pi, (32, 16))
    angles = tuple(part.astype(np.float16) for part in (np.cos(turns), np.sin(turns)))
    yield Case(rotary(), "normal, any angle", (normal(4, 32, 32), *angles), _rotary)
    q, k, v = (normal(2, 64, 128) for _ in range(3))
    yield Case(attention(32), "normal, 64 keys, heads of 32", (q, k, v), _attention)


def _products(normal: Normal) -> Iterator[Case]:
    yield Case(MatrixProduct(), "normal, K = 384", (normal(64, 384), normal(128, 384)), _product)
    yield Case(MatrixProduct(), "normal, K = 1536", (normal(64, 1536), normal(128, 1536)), _product)
    yield Case(convolution(padding=1), "normal, 3 x 3 x 64", (normal(2, 14, 14, 64), normal(32, 3, 3, 64)), _same_3x3)


def _elementwise(normal: Normal, uniform: Callable[[float, float], Array]) -> Iterator[Case]:
    for kernel, formula in (
        (exp, np.exp),
        (sigmoid, _sigmoid),
        (tanh, np.tanh),
        (erf, _erf),
        (silu, _silu),
        (gelu, _gelu),
        (gelu_sigmoid, _gelu_sigmoid),
    ):
        yield Case(kernel, "uniform -8 to 8", (uniform(-8.0, 8.0),), formula)
    for kernel, formula in ((log, np.log), (sqrt, np.sqrt), (reciprocal, np.reciprocal)):
        yield Case(kernel, "uniform 0.01 to 100", (uniform(0.01, 100.0),), formula)
    bias_gelu = Elementwise("gelu(x + b)", library.gelu(Operand(0) + Operand(1)), 2)
    yield Case(bias_gelu, "normal", (normal(64, 256), normal(256)), _bias_gelu)


def _rows(normal: Normal) -> Iterator[Case]:
    yield Case(reduce("sum"), "normal, 384", (normal(64, 384),), _sum)
    yield Case(reduce("mean"), "mean 1, deviation 1, 384", (normal(64, 384, mean=1.0),), _mean)
    yield Case(softmax(), "normal, 128", (normal(64, 128),), _softmax)
    yield Case(softmax(), "deviation 8, 128", (normal(64, 128, scale=8.0),), _softmax)
    yield Case(softmax(), "normal, 8192 in parts", (normal(4, 8192),), _softmax)
    for words, x in (
        ("normal, 384", normal(64, 384)),
        ("mean 10, deviation 1, 384", normal(64, 384, mean=10.0)),
        ("normal, 4096 in parts", normal(4, 4096)),
    ):
        gamma, beta = (normal(x.shape[-1], scale=0.1, mean=mean) for mean in (1.0, 0.0))
        yield Case(layer_norm(), words, (x, gamma, beta), _layer_norm)
        yield Case(rms_norm(), words, (x, gamma), _rms_norm)


def _product(a: Float64, b: Float64) -> Float64:
    return a @ b.T


def _sum(x: Float64) -> Float64:
    return np.sum(x, axis=-1)


def _mean(x: Float64) -> Float64:
    return np.mean(x, axis=-1)


def _silu(x: Float64) -> Float64:
    return x * _sigmoid(x)


def _gelu_sigmoid(x: Float64) -> Float64:
    return x * _sigmoid(1.702 * x)


def _bias_gelu(x: Float64, b: Float64) -> Float64:
    return _gelu(x + b)


def _same_3x3(x: Float64, w: Float64) -> Float64:
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.einsum("bhwcij,oijc->bhwo", views, w)


def _sigmoid(x: Float64) -> Float64:
    return 1.0 / (1.0 + np.exp(-x))


def _erf(x: Float64) -> Float64:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _gelu(x: Float64) -> Float64:
    return 0.5 * x * np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2.0))


def _softmax(x: Float64) -> Float64:
    raised = np.exp(x - x.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def _layer_norm(x: Float64, gamma: Float64, beta: Float64) -> Float64:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5) * gamma + beta


def _rms_norm(x: Float64, gamma: Float64) -> Float64:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6) * gamma


def _rotary(x: Float64, cos: Float64, sin: Float64) -> Float64:
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)


def _attention(q: Float64, k: Float64, v: Float64) -> Float64:
    def heads(x: Float64) -> Float64:
        return x.reshape(*x.shape[:2], -1, 32).transpose(0, 2, 1, 3)

    weights = _softmax(heads(q) @ heads(k).swapaxes(-1, -2) / math.sqrt(32))
    return (weights @ heads(v)).transpose(0, 2, 1, 3).reshape(q.shape)
