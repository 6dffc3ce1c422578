"""What each kind of stage does to the streams it takes: all its blocks at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import EvaluationError
from meshwright.evaluate.arithmetic import Arithmetic, Array, Products, Typed
from meshwright.evaluate.scalars import run_scalar
from meshwright.evaluate.stream import Stream
from meshwright.ir.expression import Binary, BinaryOp, Expr, Operand, substitute
from meshwright.ir.formats import ElementType
from meshwright.ir.operation import ComputeOp, Generic, Matmul, Permute, Reduce, Unit
from meshwright.ir.records import Buffer
from meshwright.ir.scalar import ScalarBody


class Port:
    """A buffer with the stream that a stage takes from it, or is to put into it."""

    def __init__(self, buffer: Buffer, stream: Stream | None = None) -> None:
        self.buffer = buffer
        self._stream = stream

    @property
    def stream(self) -> Stream:
        """The blocks taken."""
        if self._stream is None:
            raise EvaluationError("a stage takes from a buffer before anything is put into it")
        return self._stream

    @property
    def format(self) -> ElementType:
        """The element type of the blocks."""
        return self.buffer.format

    def typed(self, array: Array) -> Typed:
        """An array of this port's elements."""
        return Typed(array, self.buffer.format)


def compute(
    op: ComputeOp, ins: Sequence[Port], outs: Sequence[Port], bias: Port | None, spill: Port | None, number: Arithmetic
) -> list[Stream]:
    """The output streams of a compute stage."""
    match op:
        case Matmul():
            return [Stream.of(matmul(op, ins, outs[0], bias, spill, number))]
        case Generic():
            return [Stream.of(blocks) for blocks in generic(op, ins, outs, number)]
        case Reduce():
            return [Stream.of(blocks) for blocks in reduce(op, ins[0], outs, number)]
        case Permute():
            return [Stream.of(permute(op, ins[0], outs[0]))]


def matmul(
    op: Matmul, ins: Sequence[Port], out: Port, bias: Port | None, spill: Port | None, number: Arithmetic
) -> Array:
    """Output blocks [T, m, n]."""
    start = ins[2].stream.all() if len(ins) == 3 else None
    finished = out.format
    if bias is not None or op.epilogue is not None:
        finished = number.drained
    if spill is None:
        joined = (_operand(op, ins[0], False, op.contraction_blocks), _operand(op, ins[1], True, op.contraction_blocks))
        blocks = _products(joined, ins, start, finished, number)
    else:
        blocks = _spilled(op, ins, start, finished, spill.format, number)
    if bias is not None or op.epilogue is not None:
        blocks = _epilogue(op.epilogue, blocks, bias, out.format, number)
    return blocks if op.sub_blocks is None else into_sub_blocks(blocks, op.sub_blocks)


def _operand(op: Matmul, port: Port, is_b: bool, count: int) -> Stream:
    """Blocks as (rows, contraction), `count` of them joined along the contraction."""
    stream = port.stream
    if is_b and not op.b_transposed:
        stream = Stream(np.ascontiguousarray(np.swapaxes(stream.unique, 1, 2)), stream.index)
    return stream.joined(count, axis=1)


def _products(
    operands: tuple[Stream, Stream], ins: Sequence[Port], start: Array | None, out: ElementType, number: Arithmetic
) -> Array:
    a, b = operands
    request = Products(ins[0].typed(a.unique), ins[1].typed(b.unique), a.index, b.index, start, out)
    return number.products(request)


def _spilled(
    op: Matmul, ins: Sequence[Port], start: Array | None, finished: ElementType, spill: ElementType, number: Arithmetic
) -> Array:
    """The sum pair by pair: after each pair but the last it passes through the spill buffer's format."""
    a, b = _operand(op, ins[0], False, 1), _operand(op, ins[1], True, 1)
    accumulator = start
    blocks = start
    for pair in range(op.contraction_blocks):
        last = pair == op.contraction_blocks - 1
        each = [Stream(s.unique, s.index[pair :: op.contraction_blocks]) for s in (a, b)]
        blocks = _products((each[0], each[1]), ins, accumulator, finished if last else number.accumulator, number)
        if not last:
            as_words = Typed(blocks, number.accumulator)
            (kept,) = number.elementwise([Operand(0)], [as_words], [spill], Unit.VECTOR)
            accumulator = number.encode(number.numbers(kept, spill), number.accumulator)
    assert blocks is not None
    return blocks


def _epilogue(epilogue: Expr | None, blocks: Array, bias: Port | None, out: ElementType, number: Arithmetic) -> Array:
    operands = [Typed(blocks, number.drained)]
    total: Expr = Operand(0)
    if bias is not None:
        operands.append(bias.typed(bias.stream.all()))
        total = Binary(BinaryOp.ADD, Operand(0), Operand(1))
    expr = total if epilogue is None else substitute(epilogue, lambda _: total)
    # An epilogue that ignores the sum has no axes of its own.
    return np.broadcast_to(number.elementwise([expr], operands, [out], Unit.VECTOR)[0], blocks.shape)


def generic(op: Generic, ins: Sequence[Port], outs: Sequence[Port], number: Arithmetic) -> list[Array]:
    """Output blocks [T, *block] of each expression; operands are laid along the output's axes and broadcast."""
    shape = outs[0].buffer.block
    operands = [p.typed(_laid_out(p.stream, axes, len(shape))) for p, axes in zip(ins, op.maps, strict=True)]
    firings = len(ins[0].stream) if ins else 1
    values = number.elementwise(op.exprs, operands, [p.format for p in outs], op.unit)
    return [np.broadcast_to(v, (firings, *shape)) for v in values]


def _laid_out(stream: Stream, axes: tuple[int, ...], rank: int) -> Array:
    # A block that is the same in every firing stays one block and broadcasts.
    same = len(stream.unique) == 1
    blocks = stream.unique if same else stream.all()
    order = sorted(range(len(axes)), key=lambda i: axes[i])
    moved = np.transpose(blocks, (0, *(1 + i for i in order)))
    sizes = {axes[i]: blocks.shape[1 + i] for i in order}
    return moved.reshape(len(blocks), *(sizes.get(axis, 1) for axis in range(rank)))


def reduce(op: Reduce, port: Port, outs: Sequence[Port], number: Arithmetic) -> list[Array]:
    """Output blocks [T, *block] of each component; a fold goes block by block, row-major in each."""
    blocks = port.stream.all()
    block = port.buffer.block
    grouped = blocks.reshape(-1, op.blocks, *block)
    kept = [axis for axis in range(len(block)) if axis not in op.axes]
    order = (0, *(2 + a for a in kept), 1, *(2 + a for a in sorted(op.axes)))
    rows = grouped.transpose(order).reshape(len(grouped), *(block[a] for a in kept), -1)
    values = number.fold(op.pool, port.typed(rows), [p.format for p in outs])
    shape = tuple(1 if axis in op.axes else size for axis, size in enumerate(block))
    return [v.reshape(len(grouped), *shape) for v in values]


def permute(op: Permute, port: Port, out: Port) -> Array:
    """Output blocks [T, *block]: the grid of input blocks laid out, transposed and cut."""
    block = port.buffer.block
    rank = len(block)
    grid = op.grid or (1,) * rank
    cut = out.buffer.block
    blocks = port.stream.all().reshape(-1, *grid, *block)
    interleaved = [axis for a in range(rank) for axis in (1 + a, 1 + rank + a)]
    array = blocks.transpose(0, *interleaved).reshape(len(blocks), *(g * b for g, b in zip(grid, block, strict=True)))
    moved = array.transpose(0, *(1 + a for a in op.axes))
    counts = [size // c for size, c in zip(moved.shape[1:], cut, strict=True)]
    split = moved.reshape(len(moved), *(n for pair in zip(counts, cut, strict=True) for n in pair))
    outer = [1 + 2 * a for a in range(rank)]
    inner = [2 + 2 * a for a in range(rank)]
    return split.transpose(0, *outer, *inner).reshape(-1, *cut)


def into_sub_blocks(blocks: Array, sub: tuple[int, int]) -> Array:
    """Blocks [T, R, C] whose data is rearranged into sub-block after sub-block, each and all row-major."""
    t, rows, columns = blocks.shape
    split = blocks.reshape(t, rows // sub[0], sub[0], columns // sub[1], sub[1])
    return np.ascontiguousarray(split.transpose(0, 1, 3, 2, 4)).reshape(t, rows, columns)


def out_of_sub_blocks(blocks: Array, sub: tuple[int, int]) -> Array:
    """The inverse of `into_sub_blocks`."""
    t, rows, columns = blocks.shape
    split = blocks.reshape(t, rows // sub[0], columns // sub[1], sub[0], sub[1])
    return np.ascontiguousarray(split.transpose(0, 1, 3, 2, 4)).reshape(t, rows, columns)


def scalar(body: ScalarBody, ins: Sequence[Port], outs: Sequence[Port], number: Arithmetic) -> list[Stream]:
    """The output streams of a scalar program."""
    firings = len(ins[0].stream) if ins else 1
    taken: list[NDArray[np.float64] | NDArray[np.int64]] = []
    for port in ins:
        blocks = port.stream.all()
        taken.append(number.numbers(blocks, port.format).reshape(len(blocks), -1))
    made = run_scalar(body, taken, [(p.buffer.elements, p.format.is_integer) for p in outs], firings)
    return [
        Stream.of(number.encode(blocks, p.format).reshape(firings, *p.buffer.block))
        for p, blocks in zip(outs, made, strict=True)
    ]


def positions(port: Port, origin: int, number: Arithmetic) -> NDArray[np.int64]:
    """Looked-up positions of a gather's blocks, relative to the piece, int64 [T, indices a block]."""
    blocks = port.stream.all()
    return number.numbers(blocks, port.format).reshape(len(blocks), -1).astype(np.int64) - origin
