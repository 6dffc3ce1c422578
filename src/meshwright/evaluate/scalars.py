"""Running a `ScalarBody` for all blocks at once: trip counts are constant, so every block takes the same path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import EvaluationError
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

Values = NDArray[Any]

_COMPARE: Final[dict[ScalarOp, Callable[[Values, Values], Values]]] = {
    ScalarOp.LESS: np.less,
    ScalarOp.LESS_EQUAL: np.less_equal,
    ScalarOp.EQUAL: np.equal,
}
_CHOOSE: Final[dict[ScalarOp, Callable[[Values, Values], Values]]] = {
    ScalarOp.MIN: np.minimum,
    ScalarOp.MAX: np.maximum,
}
_WHOLE: Final[dict[ScalarOp, Callable[[Values, Values], Values]]] = {
    ScalarOp.ADD: np.add,
    ScalarOp.SUB: np.subtract,
    ScalarOp.MUL: np.multiply,
    ScalarOp.FLOOR_DIVIDE: np.floor_divide,
    ScalarOp.MODULO: np.mod,
}


def run_scalar(body: ScalarBody, ins: Sequence[Values], outs: Sequence[tuple[int, bool]], firings: int) -> list[Values]:
    """The output blocks, each [T, elements].

    ins: each input's blocks flattened, [T, elements]. outs: for each output the number of elements and whether they are
    whole numbers. Raises `EvaluationError` for a position outside a block, a division by zero, or arithmetic
    on a value that isn't a whole number.
    """
    run = _Run(body.registers, ins, outs, firings)
    run.statements(body.statements)
    return run.outs


class _Run:
    def __init__(self, registers: int, ins: Sequence[Values], outs: Sequence[tuple[int, bool]], firings: int) -> None:
        self.firings = firings
        self.registers: list[Values] = [np.zeros(firings, dtype=np.int64) for _ in range(registers)]
        self.ins = ins
        self.outs: list[Values] = [
            np.zeros((firings, size), dtype=np.int64 if whole else np.float64) for size, whole in outs
        ]

    def statements(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, statement: Statement) -> None:
        match statement:
            case SetRegister(register, value):
                self.registers[register] = self._value(value)
            case ReadElement(register, port, position, output):
                block = self.outs[port] if output else self.ins[port]
                self.registers[register] = block[np.arange(self.firings), self._position(position, block)]
            case WriteElement(port, position, value):
                block = self.outs[port]
                written = self._value(value)
                if block.dtype == np.int64 and written.dtype != np.int64:
                    raise EvaluationError("a scalar program writes a value that isn't whole to an output of indices")
                block[np.arange(self.firings), self._position(position, block)] = written
            case Repeat(register, count, inner):
                for turn in range(count):
                    self.registers[register] = np.full(self.firings, turn, dtype=np.int64)
                    self.statements(inner)

    def _position(self, expr: ScalarExpr, block: Values) -> Values:
        position = self._whole(expr)
        if position.size and (position.min() < 0 or position.max() >= block.shape[1]):
            raise EvaluationError(
                f"a scalar program reaches position {position.min()} to {position.max()} of a block of {block.shape[1]}"
            )
        return position

    def _whole(self, expr: ScalarExpr) -> Values:
        value = self._value(expr)
        if value.dtype != np.int64:
            raise EvaluationError("a scalar program computes with a value that isn't a whole number")
        return value

    def _value(self, expr: ScalarExpr) -> Values:
        match expr:
            case Number(value):
                return np.full(self.firings, value, dtype=np.int64)
            case Register(index):
                return self.registers[index]
            case Choose(condition, a, b):
                return np.where(self._value(condition) != 0, self._value(a), self._value(b))
            case Arithmetic(op, a, b):
                return self._arithmetic(op, a, b)

    def _arithmetic(self, op: ScalarOp, a: ScalarExpr, b: ScalarExpr) -> Values:
        if op in _COMPARE:
            return _COMPARE[op](self._value(a), self._value(b)).astype(np.int64)
        if op in _CHOOSE:
            return _CHOOSE[op](self._value(a), self._value(b))
        if op in (ScalarOp.AND, ScalarOp.OR):
            left, right = self._value(a) != 0, self._value(b) != 0
            return (left & right if op is ScalarOp.AND else left | right).astype(np.int64)
        divisor = self._whole(b)
        if op in (ScalarOp.FLOOR_DIVIDE, ScalarOp.MODULO) and (divisor == 0).any():
            raise EvaluationError("a scalar program divides by zero")
        return _WHOLE[op](self._whole(a), divisor)
