"""Tiles of a dozen products on the six clusters of a mesh: the best of the list and the default, beside the plain one.

What is timed is making and ordering the list. `extra_info` has for each tile the operand words (L1 entries that the
cluster with the largest part fills), padding, clusters at work and estimated cycles; the last test prints them as a
table. None of that depends on the machine that runs this.
"""

import pytest

from meshwright.machine import load
from meshwright.targets.ktpu.placement import KtpuPlacement
from meshwright.targets.ktpu.tiling import Setting, Tiling, candidates, ranked

MACHINE = load("ktpu-v13p")
PLACE = KtpuPlacement(MACHINE, 0)
CLUSTERS = MACHINE.count("MG", 0)
PRODUCTS = (
    (256, 256, 256),
    (384, 384, 384),
    (512, 512, 512),
    (768, 768, 768),
    (1024, 1024, 1024),
    (16, 4096, 4096),
    (1, 1000, 768),
    (39, 384, 384),
    (39, 1536, 384),
    (64, 128, 384),
    (196, 768, 768),
    (128, 256, 256),
    (300, 520, 64),
    (2048, 1536, 384),
)
"""m, n, k: a is m x k, b is n x k."""
SLOWEST_S = 2.0
"""For a list and its order, on a loaded machine: what somebody who waits for a plan hardly notices."""


def of(product, tile):
    m, n, k = product
    return Tiling(m, n, k, tile[0] // 4, tile[1] // 4, tile[2] // 32, Setting.of(MACHINE, CLUSTERS))


def tilings(product):
    return {
        "plain": of(product, PLACE._plain_tile(*product)),
        "default": of(product, PLACE.matmul_tile(*product)),
        "first": ranked(candidates(*product, MACHINE, CLUSTERS))[0],
    }


def figures(tiling):
    return {
        "tile": "x".join(map(str, tiling.tile)),
        "words": tiling.operand_words,
        "padding": tiling.padding,
        "at_work": tiling.at_work,
        "cycles": tiling.cycles,
    }


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda product: "x".join(map(str, product)))
def test_candidates_in_order(benchmark, product):
    first, *_ = benchmark(lambda: ranked(candidates(*product, MACHINE, CLUSTERS)))
    found = tilings(product)
    benchmark.extra_info["tiles"] = {name: figures(tiling) for name, tiling in found.items()}
    assert first == found["first"]
    assert first.cycles <= found["default"].cycles <= found["plain"].cycles
    assert found["default"].at_work >= found["plain"].at_work
    assert benchmark.stats["min"] < SLOWEST_S


def test_table():
    """Run with -s to see it."""
    print(f"\n{'product':>15}  {'':>8} {'m x n x k':>13} {'words':>7} {'padding':>8} {'at work':>8} {'cycles':>9}")
    saved = []
    for product in PRODUCTS:
        found = tilings(product)
        for name, tiling in found.items():
            row = figures(tiling)
            print(
                f"{'x'.join(map(str, product)) if name == 'plain' else '':>15}  {name:>8} {row['tile']:>13} "
                f"{row['words']:>7,} {row['padding']:>8.1%} {row['at_work']:>8} {row['cycles']:>9,.0f}"
            )
        saved.append(found["default"].cycles / found["plain"].cycles)
    print(f"default over plain: {min(saved):.2f} to {max(saved):.2f}, mean {sum(saved) / len(saved):.2f}")
    assert min(saved) < 0.7
    assert max(saved) <= 1
