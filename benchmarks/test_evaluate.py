"""What the evaluator adds to the number formats: the same work through a stage graph and by a direct call.

`extra_info["over_direct"]` is the best time of the graph over the best time of the call, measured in turns; the bits of
both are compared first. With one thread the ratio is the evaluator's own; with all of them it also holds what it costs
that a product is dealt over the clusters and starts its threads once for each.
"""

import time

import numpy as np
import pytest

from meshwright import targets
from meshwright.evaluate.walk import evaluate
from meshwright.ir.build import GraphBuilder
from meshwright.ir.formats import ElementType
from meshwright.kernels.elementwise import gelu
from meshwright.kernels.kernel import Piece, Shaped
from meshwright.kernels.matmul import MatrixProduct
from meshwright.machine import load
from meshwright.numerics.backend import using
from meshwright.numerics.lane_program import execute
from meshwright.numerics.product import matmul_fp16
from meshwright.targets.ktpu.lane_code import compile_expressions

CARD = load("ktpu-v13p")
F16 = ElementType.F16
TURNS = 9


def halves(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float16)


def graph_of(kernel, operands):
    builder = GraphBuilder()
    pieces = [Piece(builder.tensor(f"x{i}", v.shape, F16, [0]), 0, v.shape) for i, v in enumerate(operands)]
    shape = kernel.result([Shaped(v.shape, F16) for v in operands]).shape
    result = builder.tensor("y", shape, F16, [0])
    kernel.emit(builder, targets.placement(CARD, 0), pieces, Piece(result, 0, shape))
    return builder.graph()


def product():
    a, b = halves(2048, 384), halves(1536, 384)
    return MatrixProduct(), (a, b), lambda: matmul_fp16(a, b)


def elementwise():
    x = halves(8192, 1536)
    program = compile_expressions((gelu.expr,), (F16,), (F16,))
    return gelu, (x,), lambda: execute(program, (x,))[0]


def timed(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@pytest.mark.parametrize("threads", [1, None])
@pytest.mark.parametrize("work", [product, elementwise])
def test_graph_over_direct_call(benchmark, work, threads):
    kernel, operands, direct = work()
    graph = graph_of(kernel, operands)
    arithmetic = targets.arithmetic(CARD)
    inputs = {f"x{i}": [v] for i, v in enumerate(operands)}

    def through_graph():
        return evaluate(graph, inputs, arithmetic)["y"][0]

    with using(threads=threads):
        np.testing.assert_array_equal(through_graph().view(np.uint16), direct().view(np.uint16))
        times = [(timed(through_graph), timed(direct)) for _ in range(TURNS)]
        benchmark.pedantic(through_graph, rounds=3)
    ours, theirs = (min(column) for column in zip(*times, strict=True))
    benchmark.extra_info["over_direct"] = ours / theirs
    benchmark.extra_info["direct_seconds"] = theirs
