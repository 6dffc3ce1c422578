"""One kernel on one chip and nothing else: its graph, and what it gives."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.evaluate.arithmetic import Arithmetic, Array
from meshwright.evaluate.walk import evaluate
from meshwright.ir.build import GraphBuilder
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.kernels.kernel import Kernel, Piece, Shaped
from meshwright.kernels.placement import Placement

RESULT = "result"


def operand_name(number: int) -> str:
    """The tensor name of an operand."""
    return f"operand {number}"


def graph_alone(kernel: Kernel, placement: Placement, operands: Sequence[Shaped]) -> Graph:
    """The stage graph of `kernel` on the placement's chip; raises what the kernel raises for operands or units."""
    builder = GraphBuilder()
    chips = (placement.chip,)
    pieces = [
        Piece(builder.tensor(operand_name(number), o.shape, o.format, chips), 0, o.shape)
        for number, o in enumerate(operands)
    ]
    result = kernel.result(operands)
    made = builder.tensor(RESULT, result.shape, result.format, chips)
    kernel.emit(builder, placement, pieces, Piece(made, 0, result.shape))
    return builder.graph()


def run_alone(kernel: Kernel, placement: Placement, arithmetic: Arithmetic, operands: Sequence[Array]) -> Array:
    """What `kernel` gives for arrays as `arithmetic` takes them: whole numbers are i32, others the machine's values."""
    shaped = [Shaped(a.shape, ElementType.I32 if a.dtype.kind in "iu" else placement.value_format) for a in operands]
    graph = graph_alone(kernel, placement, shaped)
    given = {operand_name(number): (array,) for number, array in enumerate(operands)}
    return evaluate(graph, given, arithmetic)[RESULT][0]
