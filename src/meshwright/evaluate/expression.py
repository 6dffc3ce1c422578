"""Evaluating expression trees over whole arrays, each distinct node once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from meshwright.ir.expression import Expr, Operand, children, walk

T = TypeVar("T")


def evaluate_trees(exprs: Sequence[Expr], operands: Sequence[T], apply: Callable[[Expr, Sequence[T]], T]) -> list[T]:
    """The value of each tree: operands as given, every other node by `apply(node, values of its children)`."""
    known: dict[Expr, T] = {}
    for expr in exprs:
        for node in walk(expr):
            if node not in known:
                is_operand = isinstance(node, Operand)
                known[node] = operands[node.index] if is_operand else apply(node, [known[c] for c in children(node)])
    return [known[expr] for expr in exprs]
