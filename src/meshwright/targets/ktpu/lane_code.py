"""Expressions as vector-lane programs."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, TypeVar

import numpy as np

from meshwright.errors import EvaluationError
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
    walk,
)
from meshwright.ir.formats import ElementType
from meshwright.numerics import lane
from meshwright.numerics.lane_program import Constant as Code
from meshwright.numerics.lane_program import (
    Input,
    InputFormat,
    Instruction,
    Output,
    OutputFormat,
    Program,
    Register,
    Source,
)

T = TypeVar("T")

INPUTS: Final[dict[ElementType, InputFormat]] = {
    ElementType.F16: "fp16",
    ElementType.F32: "fp32",
    ElementType.E8M15: "e8",
}
OUTPUTS: Final[dict[ElementType, OutputFormat]] = {
    ElementType.F16: "fp16",
    ElementType.F32: "fp32",
    ElementType.E8M15: "e8",
}
_UNARY: Final = {
    UnaryOp.NEG: "neg",
    UnaryOp.ABS: "abs",
    UnaryOp.EXP2: "exp2",
    UnaryOp.LOG2: "log2",
    UnaryOp.RECIPROCAL: "inv",
    UnaryOp.RSQRT: "rsqrt",
}
_BINARY: Final = {
    BinaryOp.ADD: "add",
    BinaryOp.SUB: "sub",
    BinaryOp.MUL: "mul",
    BinaryOp.MAX: "max",
    BinaryOp.MIN: "min",
}
_COMPARE: Final = {BinaryOp.LT: "lt", BinaryOp.GT: "gt", BinaryOp.EQ: "eq"}
_CASTS: Final = {ElementType.F16: "round_fp16", ElementType.F32: "round_fp32", ElementType.E8M15: "mov"}


def code_of(value: float) -> int:
    """The lane word nearest to a constant. An immediate is a raw word of 24 bits, so the nearest one can be had."""
    return int(lane.from_fp32(np.float32(value), backend="numpy")[()])


@lru_cache(maxsize=1024)
def compile_expressions(
    exprs: tuple[Expr, ...], inputs: tuple[ElementType, ...], outputs: tuple[ElementType, ...]
) -> Program:
    """The program that computes each expression once over the inputs; equal subtrees are computed once.

    Raises `EvaluationError` for element types that the lane can't load or store, and for casts that it has not got.
    """
    code = _Code()
    for expr in exprs:
        for node in walk(expr):
            code.add(node)
    results = tuple(
        Output(code.number(expr), _format(OUTPUTS, out, "store")) for expr, out in zip(exprs, outputs, strict=True)
    )
    return Program(tuple(_format(INPUTS, f, "load") for f in inputs), tuple(code.instructions), results)


def _format(table: dict[ElementType, T], element: ElementType, what: str) -> T:
    if element not in table:
        raise EvaluationError(f"the vector lane can't {what} {element}; it has {', '.join(str(f) for f in table)}")
    return table[element]


class _Code:
    """Instructions for the nodes added so far, and where each node's value is."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self._values: dict[Expr, Source] = {}
        self._predicates: dict[Expr, int] = {}

    def number(self, node: Expr) -> Source:
        """Where a numeric node's value is."""
        return self._values[node]

    def add(self, node: Expr) -> None:
        """Emits what computes `node`, once."""
        if node in self._values or node in self._predicates:
            return
        match node:
            case Operand(index):
                self._values[node] = Input(index)
            case Constant():
                self._values[node] = Code(code_of(node.number))
            case Unary(UnaryOp.NOT, a):
                self._logic(node, (self._predicates[a], None, None))
            case Binary(BinaryOp.AND, a, b):
                self._logic(node, (self._predicates[a], self._predicates[b], False))
            case Binary(BinaryOp.OR, a, b):
                self._logic(node, (self._predicates[a], self._predicates[b], True))
            case Binary(op, a, b) if op in _COMPARE:
                self._predicates[node] = len(self._predicates)
                target = self._predicates[node]
                self.instructions.append(Instruction(_COMPARE[op], target, self.number(a), self.number(b)))
            case _:
                self._arithmetic(node)

    def _arithmetic(self, node: Expr) -> None:
        match node:
            case Unary(op, a):
                self._emit(node, _UNARY[op], self.number(a))
            case Binary(BinaryOp.ADD | BinaryOp.SUB as op, a, b):
                self._emit(node, _BINARY[op], self.number(a), c=self.number(b))
            case Binary(op, a, b):
                self._emit(node, _BINARY[op], self.number(a), self.number(b))
            case MultiplyAdd(a, b, c):
                self._emit(node, "fma", self.number(a), self.number(b), self.number(c))
            case Cast(a, format_):
                if format_ not in _CASTS:
                    raise EvaluationError(f"the vector lane can't round to {format_}")
                self._emit(node, _CASTS[format_], self.number(a))
            case Select(p, a, b):
                target = self._emit(node, "mov", self.number(b))
                mask = self._predicates[p]
                self.instructions.append(Instruction("mov", target, self.number(a), predicate=mask))
            case _:
                raise EvaluationError(f"the vector lane has no {type(node).__name__}")

    def _emit(self, node: Expr, op: str, a: Source, b: Source | None = None, c: Source | None = None) -> int:
        target = len(self._values)
        self._values[node] = Register(target)
        self.instructions.append(Instruction(op, target, a, b, c))
        return target

    def _logic(self, node: Expr, how: tuple[int, int | None, bool | None]) -> None:
        """A predicate out of predicates, through a value of 1 or 0: only comparisons write predicates.

        `how`: the first predicate, the second, and the value of the first that decides alone; without a second the
        first is negated.
        """
        first, second, decides = how
        one, zero = Code(code_of(1.0)), Code(code_of(0.0))
        target = 1 << 16 | len(self._predicates)
        start, other = (one, zero) if second is None else (zero, one)
        self.instructions.append(Instruction("mov", target, start))
        self.instructions.append(Instruction("mov", target, other, predicate=first))
        if second is not None:
            # AND: where the first holds, what the second says. OR: 1 where the second holds as well.
            settled = zero if decides is False else one
            when = decides is True
            self.instructions.append(Instruction("mov", target, settled, predicate=second, when=when))
        self._predicates[node] = len(self._predicates)
        self.instructions.append(Instruction("gt", self._predicates[node], Register(target), zero))
