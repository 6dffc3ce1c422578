"""How fast the matrix kernels run: the exact product beside numpy's float32 one, and its parts.

`extra_info` has `gmacs`, 10^9 multiply-adds a second, or `gelements`; the product's ratio to float32, with numpy's
kernel chosen fairly, is measured by `meshwright bench numerics`.
"""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from meshwright.numerics import fp22, mxfp7, product
from meshwright.numerics.backend import available

SIZES = (256, 1024)
ELEMENTS = 1 << 20

compiled = pytest.mark.parametrize("backend", [name for name in available() if name not in {"numpy", "scalar"}])


def operands(size):
    return np.random.default_rng(size).standard_normal((2, size, size), dtype=np.float32).astype(np.float16)


@compiled
@pytest.mark.parametrize("size", SIZES)
def test_fp16_product(benchmark, backend, size):
    a, b = operands(size)
    benchmark(product.matmul_fp16, a, b, backend=backend, threads=1)
    benchmark.extra_info["gmacs"] = size**3 / 1e9 / benchmark.stats["median"]


@compiled
@pytest.mark.parametrize("size", SIZES)
def test_product_of_blocks(benchmark, backend, size):
    a, b = (mxfp7.quantise(x) for x in operands(size))
    benchmark(product.matmul, a, b, backend=backend, threads=1)
    benchmark.extra_info["gmacs"] = size**3 / 1e9 / benchmark.stats["median"]


@pytest.mark.parametrize("size", SIZES)
def test_numpy_float32_product(benchmark, size):
    a, b = operands(size).astype(np.float32)
    with threadpool_limits(1):
        benchmark(np.matmul, a, b.T)
    benchmark.extra_info["gmacs"] = size**3 / 1e9 / benchmark.stats["median"]


@compiled
def test_quantise(benchmark, backend):
    x = operands(1024)[0]
    benchmark(mxfp7.quantise, x, backend=backend, threads=1)
    benchmark.extra_info["gelements"] = x.size / 1e9 / benchmark.stats["median"]


@compiled
def test_peer_add(benchmark, backend):
    tile, peer = np.random.default_rng(0).integers(0, 1 << 22, (2, ELEMENTS)).astype(np.uint32)
    benchmark(fp22.add, tile, peer, backend=backend, threads=1)
    benchmark.extra_info["gelements"] = ELEMENTS / 1e9 / benchmark.stats["median"]


@compiled
def test_drain(benchmark, backend):
    codes = np.random.default_rng(0).integers(0, 1 << 22, ELEMENTS).astype(np.uint32)
    benchmark(fp22.drain, codes, backend=backend, threads=1)
    benchmark.extra_info["gelements"] = ELEMENTS / 1e9 / benchmark.stats["median"]
