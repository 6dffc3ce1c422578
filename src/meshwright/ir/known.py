"""Blocks whose content is known before anything runs: constants, and what scalar programs without inputs write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from meshwright.ir.expression import Cast, Constant, Expr
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId
from meshwright.ir.operation import Generic
from meshwright.ir.records import Compute, Scalar
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

MOST_STEPS: Final = 1 << 14
"""A longer program isn't run."""
_MOST_CONSTANT: Final = 1 << 16
"""Whole numbers up to this are the same in every format that units compute in."""


class _UnknownError(Exception):
    """A program that can't be followed with whole numbers of 64 bits."""


def known_block(graph: Graph, buffer: BufferId) -> tuple[int, ...] | None:
    """The elements of the one block that passes through a buffer of whole numbers, row-major; None if not known."""
    record = graph.buffers[buffer]
    maker = next((s for s in graph.stages if buffer in s.outs), None)
    if maker is None or maker.ins or not record.format.is_integer or record.resident:
        return None
    port = maker.outs.index(buffer)
    match maker.kind:
        case Compute(Generic(exprs=exprs)):
            value = _constant(exprs[port])
            return None if value is None else (value,) * record.elements
        case Scalar(body) if body.steps() <= MOST_STEPS:
            outs = [graph.buffers[b] for b in maker.outs]
            if not all(out.format.is_integer for out in outs):
                return None
            try:
                return tuple(_Run(body, [out.elements for out in outs]).outs[port])
            except _UnknownError:
                return None
        case _:
            return None


def _constant(expr: Expr) -> int | None:
    while isinstance(expr, Cast):
        expr = expr.a
    if not isinstance(expr, Constant) or not expr.number.is_integer() or abs(expr.number) > _MOST_CONSTANT:
        return None
    return int(expr.number)


class _Run:
    """One firing of a program without inputs."""

    def __init__(self, body: ScalarBody, outs: Sequence[int]) -> None:
        self.registers = [0] * body.registers
        self.outs = [[0] * size for size in outs]
        self._run(body.statements)

    def _run(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            match statement:
                case SetRegister(register, value):
                    self.registers[register] = self._value(value)
                case ReadElement(register, port, position, True):
                    self.registers[register] = self.outs[port][self._position(position, port)]
                case WriteElement(port, position, value):
                    self.outs[port][self._position(position, port)] = self._value(value)
                case Repeat(register, count, inner):
                    for turn in range(count):
                        self.registers[register] = turn
                        self._run(inner)
                case ReadElement():
                    raise _UnknownError

    def _position(self, expr: ScalarExpr, port: int) -> int:
        position = self._value(expr)
        if not 0 <= position < len(self.outs[port]):
            raise _UnknownError
        return position

    def _value(self, expr: ScalarExpr) -> int:
        match expr:
            case Number(value):
                return value
            case Register(index):
                return self.registers[index]
            case Choose(condition, a, b):
                # Both are worked out, as an evaluation does it: one that can't be is refused even if it isn't chosen.
                chosen, other = self._value(a), self._value(b)
                return chosen if self._value(condition) else other
            case Arithmetic(op, a, b):
                value = _arithmetic(op, self._value(a), self._value(b))
                if not -(1 << 63) <= value < 1 << 63:
                    raise _UnknownError
                return value


def _arithmetic(op: ScalarOp, a: int, b: int) -> int:
    match op:
        case ScalarOp.ADD:
            return a + b
        case ScalarOp.SUB:
            return a - b
        case ScalarOp.MUL:
            return a * b
        case ScalarOp.FLOOR_DIVIDE | ScalarOp.MODULO if b == 0:
            raise _UnknownError
        case ScalarOp.FLOOR_DIVIDE:
            return a // b
        case ScalarOp.MODULO:
            return a % b
        case ScalarOp.MIN:
            return min(a, b)
        case ScalarOp.MAX:
            return max(a, b)
        case ScalarOp.LESS:
            return int(a < b)
        case ScalarOp.LESS_EQUAL:
            return int(a <= b)
        case ScalarOp.EQUAL:
            return int(a == b)
        case ScalarOp.AND:
            return int(bool(a) and bool(b))
        case ScalarOp.OR:
            return int(bool(a) or bool(b))
