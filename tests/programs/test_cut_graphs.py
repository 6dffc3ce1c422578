"""Graphs whose loads and stores have been cut in two anywhere are compiled like any other, and give the same bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import kernels
from meshwright.ir.ids import StageId
from meshwright.ir.records import Load, Store
from meshwright.targets.ktpu.staging import through_memory
from programs.cases import MORE, graph_and_inputs, halves, same
from programs.compare import MACHINE, Comparison

COMPARISON = Comparison()
CASES = {
    "product": (kernels.MatrixProduct(), (20, 96), (40, 96)),
    "convolution": (kernels.convolution(padding=1), (1, 6, 5, 8), (4, 3, 3, 8)),
    "softmax": (kernels.softmax(), (12, 40)),
    "sum": (kernels.reduce("sum"), (6, 33)),
    "largest": (kernels.reduce("max", 1), (4, 6000)),
    "added": (kernels.add, (3, 5, 18), (18,)),
}


@pytest.mark.parametrize("case", CASES)
@settings(deadline=None, max_examples=4 * MORE)
@given(seed=st.integers(0, 2**16))
def test_any_loads_and_stores_may_be_cut(case, seed):
    kernel, *shapes = CASES[case]
    graph, inputs = graph_and_inputs(kernel, [halves(number, *shape) for number, shape in enumerate(shapes)])
    moves = [StageId(n) for n, s in enumerate(graph.stages) if isinstance(s.kind, (Load, Store))]
    chosen = np.random.default_rng(seed).random(len(moves)) < 0.5
    cut = [stage for stage, one in zip(moves, chosen, strict=True) if one]
    same(COMPARISON, through_memory(graph, cut, MACHINE), inputs)
