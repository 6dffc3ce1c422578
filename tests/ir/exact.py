"""Expressions in exact arithmetic: the nodes that have one, on fractions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

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

EXACT_UNARY = [UnaryOp.NEG, UnaryOp.ABS, UnaryOp.RECIPROCAL]
"""Unary primitives that fractions are closed under; a reciprocal of 0 is taken to be 0, as good a number as any."""


def exact_value(expr: Expr, operands: Sequence[Any]) -> Any:
    """The value of a tree; casts between float formats round nothing. `ValueError` for what has no exact value."""
    match expr:
        case Operand(index):
            return operands[index]
        case Constant():
            return Fraction(expr.number)
        case Cast(a, _):
            return exact_value(a, operands)
        case MultiplyAdd(a, b, c):
            return exact_value(a, operands) * exact_value(b, operands) + exact_value(c, operands)
        case Select(p, a, b):
            return exact_value(a if exact_value(p, operands) else b, operands)
        case Unary(op, a):
            return _unary(op, exact_value(a, operands))
        case Binary(op, a, b):
            return _binary(op, exact_value(a, operands), exact_value(b, operands))


def _unary(op: UnaryOp, x: Any) -> Any:
    match op:
        case UnaryOp.NEG:
            return -x
        case UnaryOp.ABS:
            return abs(x)
        case UnaryOp.RECIPROCAL:
            return 1 / x if x else Fraction(0)
        case UnaryOp.NOT:
            return not x
        case _:
            raise ValueError(f"{op.value} of a fraction is no fraction")


def _binary(op: BinaryOp, x: Any, y: Any) -> Any:
    match op:
        case BinaryOp.ADD:
            return x + y
        case BinaryOp.SUB:
            return x - y
        case BinaryOp.MUL:
            return x * y
        case BinaryOp.MAX:
            return max(x, y)
        case BinaryOp.MIN:
            return min(x, y)
        case BinaryOp.LT:
            return x < y
        case BinaryOp.GT:
            return x > y
        case BinaryOp.EQ:
            return x == y
        case BinaryOp.AND:
            return x and y
        case BinaryOp.OR:
            return x or y
