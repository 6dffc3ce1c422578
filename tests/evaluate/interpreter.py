"""A slow, obviously right interpreter of stage graphs in float64, one element at a time.

It shares nothing with the evaluator but the records of the graph: scalar Python loops, lists as blocks (row-major),
deques as FIFOs. Whatever it can't do by the letter of the records' docstrings it refuses with an assertion.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from meshwright.ir.expression import (
    Binary,
    BinaryOp,
    Cast,
    Constant,
    Expr,
    MultiplyAdd,
    Operand,
    Select,
    Unary,
    UnaryOp,
)
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, GroupId
from meshwright.ir.operation import Generic, Matmul, Permute, Reduce
from meshwright.ir.pattern import Affine, Gather
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Compute, Load, Recv, Scalar, Stage, Store
from meshwright.ir.scalar import (
    Arithmetic,
    Choose,
    Number,
    ReadElement,
    Register,
    Repeat,
    ScalarBody,
    ScalarExpr,
    ScalarOp,
    SetRegister,
    Statement,
    WriteElement,
)

Value = float | int | bool
Block = list[Value]
"""The elements of a block, row-major."""
Index = tuple[int, ...]


def interpret(graph: Graph, inputs: Mapping[str, Sequence[np.ndarray]]) -> dict[str, tuple[np.ndarray, ...]]:
    """Pieces of every output tensor, float64 (int64 for whole numbers)."""
    machine = _Interpreter(graph, inputs)
    waiting = list(range(len(graph.stages)))
    while waiting:
        ready = [s for s in waiting if not any(before in waiting for before in machine.must_precede(s))]
        assert ready, f"the stages {waiting} wait for each other"
        machine.run(graph.stages[ready[0]])
        waiting.remove(ready[0])
    assert not any(machine.fifos.values()), "blocks are left over in a FIFO"
    return {graph.tensors[t].name: machine.pieces(t) for t in graph.outputs()}


def indices(shape: Sequence[int]) -> list[Index]:
    """Every index of an array of `shape`, row-major."""
    return list(product(*(range(size) for size in shape)))


def row_major(index: Sequence[int], shape: Sequence[int]) -> int:
    """The position of `index` in the row-major elements of an array of `shape`."""
    position = 0
    for i, size in zip(index, shape, strict=True):
        assert 0 <= i < size
        position = position * size + i
    return position


class _Interpreter:
    def __init__(self, graph: Graph, inputs: Mapping[str, Sequence[np.ndarray]]) -> None:
        self.graph = graph
        self.fifos: dict[BufferId, deque[Block]] = {
            BufferId(i): deque() for i, b in enumerate(graph.buffers) if not b.resident
        }
        self.residents: dict[BufferId, list[Block]] = {}
        self.memory: dict[tuple[int, int], dict[Index, Value]] = {}
        for t, tensor in enumerate(graph.tensors):
            for rank in range(len(tensor.chips)):
                self.memory[t, rank] = {}
            for rank, piece in enumerate(inputs.get(tensor.name, ())):
                assert piece.shape == tensor.local
                self.memory[t, rank] = {index: piece[index].item() for index in indices(piece.shape)}

    def pieces(self, tensor: int) -> tuple[np.ndarray, ...]:
        record = self.graph.tensors[tensor]
        made = []
        for rank in range(len(record.chips)):
            piece = np.zeros(record.local, dtype=np.int64 if record.format.is_integer else np.float64)
            for index in indices(record.local):
                piece[index] = self.memory[tensor, rank][index]  # KeyError: never stored.
            made.append(piece)
        return tuple(made)

    def must_precede(self, after: int) -> set[int]:
        """The stages that have to be finished before stage `after` begins."""
        graph, stage = self.graph, self.graph.stages[after]
        before = {int(e.before) for e in graph.precedences if e.after == after}
        for number, other in enumerate(graph.stages):
            fills = {b for b in other.outs if not graph.buffers[b].resident} & set(stage.takes())
            multicasts = (
                isinstance(stage.kind, Recv)
                and isinstance(other.kind, Load)
                and other.kind.multicast == stage.kind.group
            )
            shared = {b for b in (*other.ins, *other.outs) if graph.buffers[b].resident} & {*stage.ins, *stage.outs}
            if number != after and (fills or multicasts or (shared and number < after)):
                before.add(number)
        return before

    # Taking and putting blocks.

    def take(self, buffer: BufferId, firing: int) -> Block:
        """The next block of a FIFO; block number `firing` of a resident accumulator, which stays there."""
        if self.graph.buffers[buffer].resident:
            return list(self.residents[buffer][firing])
        return self.fifos[buffer].popleft()

    def put(self, stage: Stage, buffer: BufferId, firing: int, block: Block) -> None:
        record = self.graph.buffers[buffer]
        assert len(block) == record.elements
        if record.format.is_integer:
            block = [math.trunc(v) for v in block]
        if not record.resident:
            self.fifos[buffer].append(block)
        elif buffer in stage.ins:
            self.residents[buffer][firing] = block
        else:
            if firing == 0:
                self.residents[buffer] = []
            self.residents[buffer].append(block)

    def available(self, stage: Stage, each: int = 1) -> int:
        """How many firings the first input has blocks for."""
        if not stage.ins:
            return 1
        first = stage.ins[0]
        blocks = self.residents[first] if self.graph.buffers[first].resident else self.fifos[first]
        assert len(blocks) % each == 0
        return len(blocks) // each

    # Stages.

    def run(self, stage: Stage) -> None:
        match stage.kind:
            case Load():
                for t in range(stage.kind.num_blocks):
                    self.load(stage, stage.kind, t)
            case Recv():
                pass  # The load put the blocks there.
            case Store():
                for t in range(stage.kind.pattern.num_blocks):
                    self.store(stage, stage.kind, t)
            case AllReduce(combine=combine):
                for t in range(self.available(stage)):
                    taken = [self.take(b, t) for b in stage.ins]
                    for first in range(0, len(stage.outs), len(combine.exprs)):
                        self.generic(stage, combine, taken, stage.outs[first : first + len(combine.exprs)], t)
            case Compute(Matmul() as op):
                for t in range(self.available(stage, op.contraction_blocks)):
                    self.matmul(stage, op, t)
            case Compute(Generic() as op):
                for t in range(self.available(stage)):
                    self.generic(stage, op, [self.take(b, t) for b in stage.ins], stage.outs, t)
            case Compute(Reduce() as op):
                for t in range(self.available(stage, op.blocks)):
                    self.reduce(stage, op, t)
            case Compute(Permute() as op):
                grid = op.grid or (1,) * len(op.axes)
                firings = self.available(stage, math.prod(grid))
                made = 0
                for t in range(firings):
                    made = self.permute(stage, op, grid, t, made)
            case Scalar(body):
                for t in range(self.available(stage)):
                    self.scalar(stage, body, t)

    def box(self, pattern: Affine | Gather, t: int) -> list[Index]:
        """The tensor positions of block `t`'s elements, in the block's order; some may be outside the tensor."""
        affine = pattern.base if isinstance(pattern, Gather) else pattern
        corner = affine.corner(t)
        steps = affine.step or (1,) * len(affine.box)
        looked_up: Block = self.take(pattern.index, t) if isinstance(pattern, Gather) else []
        positions = []
        for inside in indices(affine.box):
            position = [corner[axis] + inside[axis] * steps[axis] for axis in range(len(inside))]
            if isinstance(pattern, Gather):
                position[pattern.axis] = int(looked_up[inside[pattern.axis]]) - pattern.origin
            positions.append(tuple(position))
        return positions

    def load(self, stage: Stage, kind: Load, t: int) -> None:
        piece = self.memory[kind.tensor, self.graph.rank_of(stage)]
        shape = self.graph.tensors[kind.tensor].local
        pad = kind.pattern.base.pad if isinstance(kind.pattern, Gather) else kind.pattern.pad
        block: Block = []
        for position in self.box(kind.pattern, t):
            if all(0 <= p < size for p, size in zip(position, shape, strict=True)):
                block.append(piece[position])  # KeyError: never stored.
            else:
                assert pad is not None, f"{position} is outside {shape}, and there is no pad"
                block.append(pad)
        for buffer in (*stage.outs, *self.receivers(kind.multicast)):
            self.put(stage, buffer, t, list(block))

    def receivers(self, group: GroupId | None) -> list[BufferId]:
        return [s.outs[0] for s in self.graph.stages if isinstance(s.kind, Recv) and s.kind.group == group]

    def store(self, stage: Stage, kind: Store, t: int) -> None:
        piece = self.memory[kind.tensor, self.graph.rank_of(stage)]
        shape = self.graph.tensors[kind.tensor].local
        pad = kind.pattern.base.pad if isinstance(kind.pattern, Gather) else kind.pattern.pad
        block = self.take(stage.ins[0], t)
        if kind.sub_blocks is not None:
            block_shape = self.graph.buffers[stage.ins[0]].block
            order = sub_block_order(block_shape, kind.sub_blocks)
            block = [block[order.index(index)] for index in indices(block_shape)]
        for position, value in zip(self.box(kind.pattern, t), block, strict=True):
            if all(0 <= p < size for p, size in zip(position, shape, strict=True)):
                piece[position] = value
            else:
                assert pad is not None, f"{position} is outside {shape}, and there is no pad"

    def matmul(self, stage: Stage, op: Matmul, t: int) -> None:
        m, n, k = op.block
        pairs = [(self.take(stage.ins[0], t), self.take(stage.ins[1], t)) for _ in range(op.contraction_blocks)]
        total: Block = [0.0] * (m * n) if len(stage.ins) == 2 else self.take(stage.ins[2], t)
        for a, b in pairs:
            for i, j, c in indices((m, n, k)):
                total[i * n + j] += a[i * k + c] * (b[j * k + c] if op.b_transposed else b[c * n + j])
        if op.bias is not None:
            bias = self.take(op.bias, t)
            for i, j in indices((m, n)):
                total[i * n + j] += bias[i * n + j] if len(bias) == m * n else bias[j]
        if op.epilogue is not None:
            total = [value_of(op.epilogue, [v]) for v in total]
        if op.sub_blocks is not None:
            total = [total[i * n + j] for i, j in sub_block_order((m, n), op.sub_blocks)]
        self.put(stage, stage.outs[0], t, total)

    def generic(self, stage: Stage, op: Generic, taken: list[Block], outs: Sequence[BufferId], t: int) -> None:
        shape = self.graph.buffers[outs[0]].block
        shapes = [self.graph.buffers[b].block for b in stage.ins]
        for expr, out in zip(op.exprs, outs, strict=True):
            made: Block = []
            for index in indices(shape):
                operands = []
                for block, block_shape, axes in zip(taken, shapes, op.maps, strict=True):
                    own = [0 if size == 1 else index[axis] for size, axis in zip(block_shape, axes, strict=True)]
                    operands.append(block[row_major(own, block_shape)])
                made.append(value_of(expr, operands))
            self.put(stage, out, t, made)

    def reduce(self, stage: Stage, op: Reduce, t: int) -> None:
        shape = self.graph.buffers[stage.ins[0]].block
        blocks = [self.take(stage.ins[0], t * op.blocks + i) for i in range(op.blocks)]
        out_shape = [1 if axis in op.axes else size for axis, size in enumerate(shape)]
        components: list[Block] = [[] for _ in stage.outs]
        for kept in indices(out_shape):
            values: Block = []
            positions: list[int] = []
            for number, block in enumerate(blocks):
                for index in indices(shape):
                    if all(axis in op.axes or index[axis] == kept[axis] for axis in range(len(shape))):
                        values.append(block[row_major(index, shape)])
                        positions.append(number * shape[op.axes[0]] + index[op.axes[0]])
            for component, value in zip(components, fold(op.pool, values, positions), strict=True):
                component.append(value)
        for out, component in zip(stage.outs, components, strict=True):
            self.put(stage, out, t, component)

    def permute(self, stage: Stage, op: Permute, grid: Sequence[int], t: int, made: int) -> int:
        block = self.graph.buffers[stage.ins[0]].block
        out = self.graph.buffers[stage.outs[0]].block
        source: dict[Index, Value] = {}
        for at in indices(grid):
            values = self.take(stage.ins[0], t)
            for inside in indices(block):
                whole = tuple(at[axis] * block[axis] + inside[axis] for axis in range(len(block)))
                source[whole] = values[row_major(inside, block)]
        # Axis i of the result is axis axes[i] of the source.
        result = {tuple(index[axis] for axis in op.axes): value for index, value in source.items()}
        sizes = [grid[axis] * block[axis] for axis in op.axes]
        for at in indices([size // cut for size, cut in zip(sizes, out, strict=True)]):
            cut: Block = []
            for inside in indices(out):
                cut.append(result[tuple(at[axis] * out[axis] + inside[axis] for axis in range(len(out)))])
            self.put(stage, stage.outs[0], made, cut)
            made += 1
        return made

    def scalar(self, stage: Stage, body: ScalarBody, t: int) -> None:
        ins = [self.take(b, t) for b in stage.ins]
        outs: list[Block] = [[0] * self.graph.buffers[b].elements for b in stage.outs]
        registers: list[Value] = [0] * body.registers
        _statements(body.statements, registers, ins, outs)
        for buffer, block in zip(stage.outs, outs, strict=True):
            self.put(stage, buffer, t, block)


def sub_block_order(block: Sequence[int], sub: tuple[int, int]) -> list[Index]:
    """The (row, column) of each element in the order in which a block is produced sub-block after sub-block."""
    rows, columns = block
    return [
        (top + i, left + j)
        for top in range(0, rows, sub[0])
        for left in range(0, columns, sub[1])
        for i in range(sub[0])
        for j in range(sub[1])
    ]


def fold(pool: Pool, values: Sequence[Value], positions: Sequence[int]) -> list[Value]:
    """The fold of `values`, one value a component."""
    result = values[0]
    if pool is Pool.ARGMAX:
        at = positions[0]
        for value, position in zip(values[1:], positions[1:], strict=True):
            if value > result or (value == result and position < at):
                result, at = value, position
        return [result, at]
    for value in values[1:]:
        match pool:
            case Pool.SUM:
                result = result + value
            case Pool.PROD:
                result = result * value
            case Pool.MAX:
                result = value if value > result else result
            case Pool.MIN:
                result = value if value < result else result
    return [result]


def value_of(expr: Expr, operands: Sequence[Value]) -> Value:
    """The value of a tree at one element."""
    match expr:
        case Operand(index):
            return operands[index]
        case Constant():
            return expr.number
        case Unary(op, a):
            return _unary(op, value_of(a, operands))
        case Binary(op, a, b):
            return _binary(op, value_of(a, operands), value_of(b, operands))
        case MultiplyAdd(a, b, c):
            return value_of(a, operands) * value_of(b, operands) + value_of(c, operands)
        case Select(predicate, a, b):
            return value_of(a, operands) if value_of(predicate, operands) else value_of(b, operands)
        case Cast(a, format_):
            value = value_of(a, operands)
            return float(math.trunc(value)) if format_.is_integer else value


def _unary(op: UnaryOp, x: Value) -> Value:
    match op:
        case UnaryOp.NEG:
            return -x
        case UnaryOp.ABS:
            return -x if x < 0 else x
        case UnaryOp.EXP2:
            return 2.0**x
        case UnaryOp.LOG2:
            return math.log2(x)
        case UnaryOp.RECIPROCAL:
            return 1.0 / x
        case UnaryOp.RSQRT:
            return 1.0 / math.sqrt(x)
        case UnaryOp.NOT:
            return not x


def _binary(op: BinaryOp, x: Value, y: Value) -> Value:
    match op:
        case BinaryOp.ADD:
            return x + y
        case BinaryOp.SUB:
            return x - y
        case BinaryOp.MUL:
            return x * y
        case BinaryOp.MAX:
            return y if y > x else x
        case BinaryOp.MIN:
            return y if y < x else x
        case BinaryOp.LT:
            return x < y
        case BinaryOp.GT:
            return x > y
        case BinaryOp.EQ:
            return x == y
        case BinaryOp.AND:
            return bool(x) and bool(y)
        case BinaryOp.OR:
            return bool(x) or bool(y)


def _statements(statements: Sequence[Statement], registers: Block, ins: list[Block], outs: list[Block]) -> None:
    for statement in statements:
        match statement:
            case SetRegister(register, value):
                registers[register] = _scalar_value(value, registers)
            case ReadElement(register, port, position, output):
                registers[register] = _element(outs[port] if output else ins[port], _scalar_value(position, registers))
            case WriteElement(port, position, value):
                at = _scalar_value(position, registers)
                _element(outs[port], at)
                outs[port][int(at)] = _scalar_value(value, registers)
            case Repeat(register, count, body):
                for turn in range(count):
                    registers[register] = turn
                    _statements(body, registers, ins, outs)


def _element(block: Block, position: Value) -> Value:
    assert isinstance(position, int) and 0 <= position < len(block), f"{position} is outside a block of {len(block)}"
    return block[position]


def _scalar_value(expr: ScalarExpr, registers: Sequence[Value]) -> Value:
    match expr:
        case Number(value):
            return value
        case Register(index):
            return registers[index]
        case Choose(condition, a, b):
            chosen, other = (a, b) if _scalar_value(condition, registers) != 0 else (b, a)
            _scalar_value(other, registers)
            return _scalar_value(chosen, registers)
        case Arithmetic(op, a, b):
            return _scalar_arithmetic(op, _scalar_value(a, registers), _scalar_value(b, registers))


def _scalar_arithmetic(op: ScalarOp, x: Value, y: Value) -> Value:
    match op:
        case ScalarOp.ADD:
            return x + y
        case ScalarOp.SUB:
            return x - y
        case ScalarOp.MUL:
            return x * y
        case ScalarOp.FLOOR_DIVIDE:
            return x // y
        case ScalarOp.MODULO:
            return x % y
        case ScalarOp.MIN:
            return y if y < x else x
        case ScalarOp.MAX:
            return y if y > x else x
        case ScalarOp.LESS:
            return int(x < y)
        case ScalarOp.LESS_EQUAL:
            return int(x <= y)
        case ScalarOp.EQUAL:
            return int(x == y)
        case ScalarOp.AND:
            return int(x != 0 and y != 0)
        case ScalarOp.OR:
            return int(x != 0 or y != 0)
