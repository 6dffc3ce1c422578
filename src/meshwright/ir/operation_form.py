"""Form rules of the compute operations: which buffers each one fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.ir.expression import Binary, BinaryOp, Expr, Operand, is_predicate, operands, show, type_fault, walk
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.operation import Generic, Matmul, Permute, Reduce, Unit
from meshwright.ir.pool import Pool
from meshwright.ir.records import Buffer, Stage

Text = Iterator[tuple[str, str]]


def matmul_faults(graph: Graph, op: Matmul, stage: Stage, ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Text:
    """Ports, block shapes, accumulator, bias, spill and epilogue of a `Matmul`."""
    if len(ins) not in (2, 3) or len(outs) != 1:
        yield (
            "Ports",
            f"a Matmul has inputs a, b and maybe its accumulator, and one output; not {len(ins)} and {len(outs)}",
        )
        return
    m, n, k = op.block
    if min(op.block) < 1 or op.contraction_blocks < 1:
        yield "Shapes", f"block {op.block} and contraction_blocks {op.contraction_blocks} must be at least 1"
    b_shape = (n, k) if op.b_transposed else (k, n)
    wanted = [("a", ins[0], (m, k)), ("b", ins[1], b_shape), ("the output", outs[0], (m, n))]
    for what, buffer, shape in wanted:
        if buffer.block != shape:
            yield "Shapes", f"{what} has blocks of {buffer.block}; block {op.block} needs {shape}"
        if buffer.format.is_integer:
            yield "Shapes", f"{what} holds {buffer.format}; a Matmul multiplies floats"
    if ins[0].resident or ins[1].resident:
        yield "Ports", "a and b come from FIFOs, not from a resident accumulator"
    if len(ins) == 3 and (stage.ins[2] != stage.outs[0] or not ins[2].resident):
        yield (
            "Ports",
            "its third input is the resident accumulator that it continues, which has to be its output too",
        )
    if outs[0].resident and (op.epilogue is not None or op.bias is not None):
        yield (
            "Ports",
            "a resident accumulator holds bare sums: bias and epilogue belong to the stage that takes them out",
        )
    if op.bias is not None:
        yield from _bias_faults(graph.buffers[op.bias], (m, n), ins[0])
    if op.spill is not None:
        spill = graph.buffers[op.spill]
        if spill.block != (m, n) or spill.resident or spill.site != ins[0].site or spill.format.is_integer:
            yield (
                "Shapes",
                f"spill buffer b{op.spill} must be a FIFO of {(m, n)} float blocks at the stage's site",
            )
    if op.epilogue is not None:
        yield from _expr_faults(op.epilogue, 1)


def _bias_faults(bias: Buffer, block: tuple[int, int], a: Buffer) -> Text:
    if bias.block not in (block, (1, block[1])):
        yield "Shapes", f"bias blocks are {bias.block}; {(1, block[1])} or {block} can be added"
    if bias.site != a.site:
        yield "Ports", f"the bias is at {bias.site}, the stage at {a.site}"


def _expr_faults(expr: Expr, count: int) -> Text:
    outside = sorted(i for i in operands(expr) if not 0 <= i < count)
    if outside:
        yield "Ports", f"an expression reads operand {outside[0]}, and there are {count}"
    fault = type_fault(expr)
    if fault is not None:
        yield "Shapes", fault
    elif is_predicate(expr):
        yield "Shapes", f"{show(expr)} is a predicate, and elements are numbers: select one of two by it"


def generic_faults(op: Generic, ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Text:
    """Ports, broadcast maps and expressions of a `Generic`."""
    if len(op.maps) != len(ins) or len(op.exprs) != len(outs) or not outs:
        yield (
            "Ports",
            (
                f"{len(op.exprs)} expressions over {len(op.maps)} operands don't go with "
                f"{len(ins)} inputs and {len(outs)} outputs"
            ),
        )
        return
    shape = outs[0].block
    if any(b.block != shape for b in outs):
        yield "Shapes", f"outputs have different blocks: {[b.block for b in outs]}"
    for number, (buffer, axes) in enumerate(zip(ins, op.maps, strict=True)):
        yield from _map_faults(number, buffer.block, axes, shape)
    for expr in op.exprs:
        yield from _expr_faults(expr, len(ins))
        if op.unit is Unit.ACCUMULATOR and not _only_adds(expr):
            yield "Shapes", "an accumulator can only add; other arithmetic needs Unit.VECTOR"
    if op.unit is Unit.ACCUMULATOR and any(b.format is not ElementType.FP22 for b in (*ins, *outs)):
        yield "Shapes", "an accumulator adds accumulator words (fp22) only"


def _map_faults(number: int, block: tuple[int, ...], axes: tuple[int, ...], shape: tuple[int, ...]) -> Text:
    if len(axes) != len(block) or len(set(axes)) != len(axes) or any(not 0 <= a < len(shape) for a in axes):
        yield (
            "Shapes",
            f"operand {number}: map {axes} can't place a block of {block} in an output block of {shape}",
        )
    elif any(size not in (1, shape[axis]) for size, axis in zip(block, axes, strict=True)):
        yield "Shapes", f"operand {number}: a block of {block} along axes {axes} doesn't broadcast to {shape}"


def _only_adds(expr: Expr) -> bool:
    return all(isinstance(n, Operand) or (isinstance(n, Binary) and n.op is BinaryOp.ADD) for n in walk(expr))


def reduce_faults(op: Reduce, ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Text:
    """Ports, axes and shapes of a `Reduce`."""
    if len(ins) != 1 or len(outs) != op.pool.components:
        yield (
            "Ports",
            f"a {op.pool.value} Reduce has one input and {op.pool.components} outputs, not {len(ins)}, {len(outs)}",
        )
        return
    block = ins[0].block
    if not op.axes or len(set(op.axes)) != len(op.axes) or any(not 0 <= a < len(block) for a in op.axes):
        yield "Shapes", f"axes {op.axes} of a block of {block}"
        return
    if op.blocks < 1:
        yield "Shapes", f"blocks={op.blocks} must be at least 1"
    shape = tuple(1 if axis in op.axes else size for axis, size in enumerate(block))
    if any(b.block != shape for b in outs):
        yield (
            "Shapes",
            f"outputs have blocks of {[b.block for b in outs]}; reducing axes {op.axes} of {block} gives {shape}",
        )
    if op.pool is Pool.ARGMAX:
        if len(op.axes) != 1:
            yield "Shapes", f"an argmax runs along one axis, not {op.axes}"
        if not outs[1].format.is_integer:
            yield "Shapes", f"the second output of an argmax holds positions (i32), not {outs[1].format}"


def permute_faults(op: Permute, ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Text:
    """Ports, grid and shapes of a `Permute`."""
    if len(ins) != 1 or len(outs) != 1:
        yield "Ports", f"a Permute has one input and one output, not {len(ins)} and {len(outs)}"
        return
    block, out = ins[0].block, outs[0].block
    grid = op.grid or (1,) * len(block)
    if len(grid) != len(block) or min(grid) < 1 or sorted(op.axes) != list(range(len(block))):
        yield "Shapes", f"grid {op.grid} and axes {op.axes} don't go with blocks of {block}"
        return
    whole = tuple(grid[a] * block[a] for a in op.axes)
    if len(out) != len(whole) or any(w % o for w, o in zip(whole, out, strict=True)):
        yield "Shapes", f"an array of {whole} is not cut evenly by output blocks of {out}"
    if ins[0].format is not outs[0].format:
        yield "Shapes", f"moves {ins[0].format} into {outs[0].format}; a Permute does no arithmetic"
