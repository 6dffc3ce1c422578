"""What multicast saves: bytes loaded from DRAM by a product on 8 by 8 sites, against every site loading for itself.

Both graphs have the same blocks, the same rectangle and the same bits; `extra_info` has the bytes of each and their
ratio. `stages` says how large the graph is, and the time is that of evaluating it on one thread.
"""

import ml_dtypes
import numpy as np
import pytest

from meshwright import targets
from meshwright.evaluate.walk import evaluate
from meshwright.ir.build import GraphBuilder
from meshwright.ir.formats import ElementType
from meshwright.ir.records import Compute, Load, Recv, Store
from meshwright.kernels.alone import RESULT, graph_alone, operand_name
from meshwright.kernels.grid import multicast_matmul
from meshwright.kernels.kernel import Shaped
from meshwright.machine import load
from meshwright.numerics.backend import using
from meshwright.report.movement import loaded_bytes

SHAPES = {
    "1024 x 1024 x 512": (1024, 1024, 512),
    "256 x 2048 x 768": (256, 2048, 768),
    "300 x 500 x 200": (300, 500, 200),
}


def loading_alone(graph):
    """The graph with every multicast replaced by a load at each of its sites."""
    sent = {s.kind.multicast: s.kind for s in graph.stages if isinstance(s.kind, Load)}
    builder = GraphBuilder()
    for tensor in graph.tensors:
        builder.tensor(tensor.name, tensor.shape, tensor.format, tensor.chips)
    for buffer in graph.buffers:
        builder.fifo(buffer.site, buffer.block, buffer.format, buffer.depth)
    for stage in graph.stages:
        match stage.kind:
            case Load(tensor=tensor, pattern=pattern):
                builder.load(tensor, pattern, stage.outs[0])
            case Recv(group):
                builder.load(sent[group].tensor, sent[group].pattern, stage.outs[0])
            case Compute() | Store():
                builder.stage(stage.kind, stage.ins, stage.outs)
    return builder.graph()


@pytest.mark.parametrize("shape", SHAPES)
def test_multicast(benchmark, shape):
    m, n, k = SHAPES[shape]
    machine = load("grid-8x8")
    random = np.random.default_rng(0)
    operands = [random.standard_normal((rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n)]
    shaped = [Shaped(o.shape, ElementType.BF16) for o in operands]
    graph = graph_alone(multicast_matmul(), targets.placement(machine, 0), shaped)
    alone = loading_alone(graph)
    given = {operand_name(number): (operand,) for number, operand in enumerate(operands)}
    arithmetic = targets.arithmetic(machine)
    sent, loaded = loaded_bytes(graph)[0], loaded_bytes(alone)[0]
    benchmark.extra_info.update(multicast_bytes=sent, alone_bytes=loaded, ratio=loaded / sent, stages=len(graph.stages))

    def call():
        return evaluate(graph, given, arithmetic)[RESULT][0]

    with using(threads=1):
        made = benchmark.pedantic(call, rounds=1, warmup_rounds=0)
        expected = evaluate(alone, given, arithmetic)[RESULT][0]
    assert np.array_equal(made.view(np.uint16), expected.view(np.uint16))
    stores = [graph.site(s) for s in graph.stages if isinstance(s.kind, Store)]
    rows, columns = (len({axis(site) for site in stores}) for axis in (lambda s: s.y, lambda s: s.x))
    # Operand a is loaded once a row instead of by every column, b once a column instead of by every row.
    of_a, of_b = (
        sum(s.kind.num_blocks * graph.buffers[s.outs[0]].elements * 2 for s in graph.stages if is_load(graph, s, name))
        for name in (operand_name(0), operand_name(1))
    )
    assert (sent, loaded) == (of_a + of_b, of_a * columns + of_b * rows)


def is_load(graph, stage, name):
    return isinstance(stage.kind, Load) and graph.tensors[stage.kind.tensor].name == name
