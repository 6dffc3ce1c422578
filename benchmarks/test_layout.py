"""How fast images are packed and unpacked: compiled, by numpy's transposes, and beside a plain copy.

`extra_info` has `gbytes`, 10^9 bytes of the matrix a second. Single numbers depend on the machine and its load; the
last test holds the compiled copies to a floor and to numpy's rate, measured in turns.
"""

import time

import numpy as np
import pytest

from meshwright.targets.ktpu import layout as layouts
from meshwright.targets.ktpu.layout import AccumulatorLayout, OperandLayout, QuantisedLayout, ResultLayout

SIZE = 2048
FLOOR = 1e9
SLOWER = 1.5  # than numpy, at most: where runs are long numpy copies as fast, and a loaded machine adds noise
RNG = np.random.default_rng(0)
HALF = RNG.integers(0, 1 << 16, (SIZE, SIZE), dtype=np.uint16)
CASES = {
    "operand": (OperandLayout(SIZE, SIZE, 16, 8), HALF),
    "operand, ragged": (OperandLayout(SIZE - 1, SIZE - 6, 16, 8), np.ascontiguousarray(HALF[:-1, :-6])),
    "result": (ResultLayout.over(SIZE, SIZE, (16, 32)), HALF),
    "quantised": (QuantisedLayout(512, 64, 16, 8), RNG.integers(0, 256, (512, 64, 4, 32), dtype=np.uint8)),
    "accumulator": (AccumulatorLayout(16, 32), RNG.integers(0, 1 << 22, (64, 128), dtype=np.uint32)),
}
BACKENDS = ("numpy", "scalar")

compiled = pytest.mark.skipif(layouts._module() is None, reason="the compiled layouts are not installed")
cases = pytest.mark.parametrize("case", CASES)


@compiled
@cases
@pytest.mark.parametrize("backend", BACKENDS)
def test_pack(benchmark, case, backend):
    layout, array = CASES[case]
    benchmark(layout.pack, array, backend=backend)
    benchmark.extra_info["gbytes"] = array.nbytes / 1e9 / benchmark.stats["median"]


@compiled
@cases
@pytest.mark.parametrize("backend", BACKENDS)
def test_unpack(benchmark, case, backend):
    layout, array = CASES[case]
    image = layout.pack(array)
    benchmark(layout.unpack, image, backend=backend)
    benchmark.extra_info["gbytes"] = array.nbytes / 1e9 / benchmark.stats["median"]


def test_copy(benchmark):
    benchmark(HALF.copy)
    benchmark.extra_info["gbytes"] = HALF.nbytes / 1e9 / benchmark.stats["median"]


def best_of_turns(*calls, turns=9):
    times = [[] for _ in calls]
    for _ in range(turns):
        for call, taken in zip(calls, times, strict=True):
            # Once before the clock starts: the first result after another call's lies in pages that are fresh.
            call()
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return [min(taken) for taken in times]


@compiled
@cases
def test_compiled_copies_reach_the_floor_and_numpys_rate(case):
    layout, array = CASES[case]
    image = layout.pack(array)
    ours_in, theirs_in, ours_out, theirs_out, copy = best_of_turns(
        lambda: layout.pack(array, backend="scalar"),
        lambda: layout.pack(array, backend="numpy"),
        lambda: layout.unpack(image, backend="scalar"),
        lambda: layout.unpack(image, backend="numpy"),
        array.copy,
    )
    for what, ours, theirs in (("pack", ours_in, theirs_in), ("unpack", ours_out, theirs_out)):
        rate = array.nbytes / ours
        print(f"{case}: {what} {rate / 1e9:.1f} GB/s, {theirs / ours:.1f} times numpy's, {copy / ours:.2f} of a copy's")
        assert rate > FLOOR
        assert ours < SLOWER * theirs
