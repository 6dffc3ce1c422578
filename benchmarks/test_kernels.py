"""How fast whole kernels are evaluated: 64 sentences of 128 tokens, 384 wide, 12 heads, on one thread.

The graph is built before the clock starts. `extra_info` has the elements of the result per second and the number of
stages; `build_seconds` is what building the graph took.
"""

import time

import numpy as np
import pytest

from meshwright import kernels, targets
from meshwright.evaluate.walk import evaluate
from meshwright.ir import library
from meshwright.ir.formats import ElementType
from meshwright.kernels.alone import RESULT, graph_alone, operand_name
from meshwright.kernels.kernel import Shaped
from meshwright.machine import load
from meshwright.numerics.backend import using

BATCH, TOKENS, WIDTH, HEADS, HIDDEN = 64, 128, 384, 12, 1536
SIZE = WIDTH // HEADS
ROWS = (BATCH, TOKENS, WIDTH)
SCORES = (BATCH, HEADS, TOKENS, TOKENS)
BIAS_GELU = kernels.elementwise(lambda x, b: library.gelu(x + b), "bias_gelu")
WORK = {
    "softmax": (kernels.softmax(scale=SIZE**-0.5), SCORES, (BATCH, 1, 1, TOKENS)),
    "layer_norm": (kernels.layer_norm(), ROWS, ROWS, (WIDTH,), (WIDTH,)),
    "bias_gelu": (BIAS_GELU, (BATCH, TOKENS, HIDDEN), (HIDDEN,)),
    "add": (kernels.add, ROWS, ROWS),
    "sum": (kernels.reduce("sum"), ROWS),
    "split_heads": (kernels.split_heads(SIZE), ROWS),
    "split_heads_transposed": (kernels.split_heads_transposed(SIZE), ROWS),
    "merge_heads": (kernels.merge_heads(), (BATCH, HEADS, TOKENS, SIZE)),
    "scores": (kernels.MatrixProduct(), (BATCH, HEADS, TOKENS, SIZE), (BATCH, HEADS, TOKENS, SIZE)),
    "heads": (kernels.MatrixProduct(), SCORES, (BATCH, HEADS, SIZE, TOKENS)),
    "projection": (kernels.MatrixProduct(), ROWS, (WIDTH, WIDTH)),
    "feed forward": (kernels.MatrixProduct(), ROWS, (HIDDEN, WIDTH)),
    "convolution": (kernels.convolution(padding=1), (4, 28, 28, 64), (64, 3, 3, 64)),
}


@pytest.mark.parametrize("name", WORK)
def test_kernel(benchmark, name):
    kernel, *shapes = WORK[name]
    random = np.random.default_rng(0)
    operands = [random.standard_normal(shape).astype(np.float16) for shape in shapes]
    machine = load("ktpu-v13p")
    arithmetic = targets.arithmetic(machine)
    start = time.perf_counter()
    shaped = [Shaped(o.shape, ElementType.F16) for o in operands]
    graph = graph_alone(kernel, targets.placement(machine, 0), shaped)
    benchmark.extra_info["build_seconds"] = time.perf_counter() - start
    benchmark.extra_info["stages"] = len(graph.stages)
    given = {operand_name(number): (operand,) for number, operand in enumerate(operands)}

    def call():
        return evaluate(graph, given, arithmetic)[RESULT][0]

    with using(threads=1):
        made = benchmark.pedantic(call, rounds=3, warmup_rounds=1)
    benchmark.extra_info["elements_per_second"] = made.size / benchmark.stats.stats.min
    assert np.isfinite(made).all()
