"""A kernel on one chip: its graph, and what that computes in an arithmetic."""

import numpy as np

from meshwright import targets
from meshwright.evaluate.real import RealArithmetic
from meshwright.evaluate.walk import evaluate
from meshwright.ir.build import GraphBuilder
from meshwright.ir.flow import block_counts
from meshwright.ir.formats import ElementType
from meshwright.kernels.kernel import Piece, Shaped
from meshwright.machine import load

MACHINE = load("ktpu-v13p")
REAL = RealArithmetic()
KTPU = targets.arithmetic(MACHINE)


def shaped(values):
    values = np.asarray(values)
    return Shaped(values.shape, ElementType.I32 if values.dtype.kind in "iu" else ElementType.F16)


def graph_of(kernel, *operands, chip=0, machine=MACHINE):
    """The well-formed graph of `kernel` over operands (`Shaped`) on one chip; results are called `result`."""
    builder = GraphBuilder()
    pieces = []
    for number, operand in enumerate(operands):
        tensor = builder.tensor(f"operand {number}", operand.shape, operand.format, (chip,))
        pieces.append(Piece(tensor, 0, operand.shape))
    result = kernel.result(operands)
    made = builder.tensor("result", result.shape, result.format, (chip,))
    stores = kernel.emit(builder, targets.placement(machine, chip), pieces, Piece(made, 0, result.shape))
    graph = builder.graph()
    block_counts(graph)
    assert set(stores) == {i for i, s in enumerate(graph.stages) if "Store" in type(s.kind).__name__
                           and s.kind.tensor == made}
    return graph


def run(kernel, *arrays, arithmetic=KTPU, chip=0, machine=MACHINE):
    """What the kernel gives on one chip; floats are rounded to f16 for the machine and taken as they are for reals."""
    held = [np.asarray(a) if np.asarray(a).dtype.kind in "iu" else np.asarray(a) for a in arrays]
    graph = graph_of(kernel, *map(shaped, held), chip=chip, machine=machine)
    if arithmetic is not REAL:
        held = [a.astype(np.int32) if a.dtype.kind in "iu" else a.astype(np.float16) for a in held]
    inputs = {f"operand {i}": [a] for i, a in enumerate(held)}
    return evaluate(graph, inputs, arithmetic)["result"][0]
