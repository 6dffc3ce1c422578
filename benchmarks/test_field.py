"""How fast integers modulo 2^61 - 1 are, and how long comparing a whole decoder layer takes.

`extra_info` has the rates, and each is printed by `python -m pytest benchmarks/test_field.py`. A multiply-add is a
product of two residues added to a sum.
"""

import time

import numpy as np
import pytest

from decoder_layer import LLAMA_2_7B, Sizes, decoder_layer
from meshwright.certify.same_function import same_function
from meshwright.evaluate import field_numbers as field
from meshwright.numerics.backend import available, resolve_threads, using

KEYS = field.keys_of(1, "benchmark")
ZERO = np.zeros(1, dtype=np.int64)
ROWS, COLUMNS, DEPTH = 16, 1024, 4096
COUNT = 1 << 20
OF_64_HEADS = Sizes(tokens=16, heads=64, head=64, feed_forward=11008)


@pytest.fixture
def report(benchmark, capsys):
    def told(what, rate, unit):
        benchmark.extra_info[unit] = rate
        with capsys.disabled():
            print(f"\n{what}: {rate:.3g} {unit}")

    return told


def rate_of(benchmark, call, work):
    benchmark.pedantic(call, rounds=5, warmup_rounds=1)
    return work / benchmark.stats.stats.min


@pytest.mark.parametrize("threads", sorted({1, resolve_threads()}))
@pytest.mark.parametrize("backend", available())
def test_products(benchmark, report, backend, threads):
    """16 tokens times a slice of a weight matrix, as long as a hidden vector of 4096."""
    a, b = field.generate((1, ROWS, DEPTH), KEYS), field.generate((1, COLUMNS, DEPTH), KEYS)

    def call():
        with using(threads=threads):
            field.product(a, b, ZERO, ZERO, None, backend)

    rate = rate_of(benchmark, call, ROWS * COLUMNS * DEPTH)
    report(f"products, {backend}, {threads} threads", rate, "modular multiply-adds a second")
    assert rate > 1e6


@pytest.mark.parametrize("op", ["add", "mul", "hashed", "inverse", "generate", "order_names"])
def test_elementwise(benchmark, report, op):
    """A million residues, on all cores."""
    x, y = field.generate((COUNT,), KEYS), field.generate((COUNT,), field.keys_of(2))
    nothing = np.empty(0, np.uint64), np.empty(0, np.float64)
    calls = {
        "add": lambda: field.add(x, y),
        "mul": lambda: field.mul(x, y),
        "hashed": lambda: field.hashed(x, KEYS),
        "inverse": lambda: field.inverse(x, KEYS),
        "generate": lambda: field.generate((COUNT,), KEYS, x),
        "order_names": lambda: field.order_names(x, KEYS, *nothing),
    }
    report(op, rate_of(benchmark, calls[op], COUNT), "residues a second")


LAYERS = {"4 meshes": (LLAMA_2_7B, 4), "64 meshes, 64 heads": (OF_64_HEADS, 64)}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_decoder_layer_against_its_reference(benchmark, report, layer):
    """Hidden 4096, feed-forward 11008, 16 tokens: about 3.2 billion multiply-adds a side and a round."""
    sizes, meshes = LAYERS[layer]
    split, whole = decoder_layer(sizes, meshes), decoder_layer(sizes)
    same_function(split, whole, rounds=1)  # The first to touch 1.6 GB waits for the operating system to find it.

    begin = time.process_time()
    found = benchmark.pedantic(same_function, (split, whole), rounds=1)
    assert found.held, str(found)
    seconds = benchmark.stats.stats.min
    rate = 2 * found.rounds * sizes.multiply_adds / seconds
    report(f"{layer}, {found.rounds} rounds in {seconds:.2f} s", rate, "modular multiply-adds a second, all included")
    report(f"{layer}, {found}", time.process_time() - begin, "seconds of processor time")


def test_a_layer_with_a_summand_missing_is_found(benchmark, report):
    """The same layer, the feed-forward of one mesh left out of the sum; with the search for what it is instead."""
    sizes = Sizes(tokens=8, heads=8, head=64, feed_forward=1376)
    split, whole = decoder_layer(sizes, 4, drop=2), decoder_layer(sizes)
    found = benchmark.pedantic(same_function, (split, whole), rounds=1)
    assert found.relation == "ranks 0, 1 and 3: what it is when rank 2's part of 'w_down' is not in it"
    report("a summand missing in a layer of hidden 512", benchmark.stats.stats.min, "seconds")
