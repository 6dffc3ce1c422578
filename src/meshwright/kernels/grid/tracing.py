"""Python functions of one element as expressions: epilogues and activations."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.errors import KernelError
from meshwright.ir.expression import Expr, Operand, as_expr, is_predicate, operands, type_fault


def traced(what: str, function: Callable[[Expr], Expr | float]) -> Expr:
    """`function` of operand 0, called once; `KernelError`, beginning with `what`, where that is no such expression."""
    try:
        expr = as_expr(function(Operand(0)))
    except (TypeError, ValueError) as error:
        raise KernelError(
            f"{what} can't be traced into the compute algebra: {error}. Use + - * < > and the functions of "
            "meshwright.ir.library"
        ) from None
    fault = type_fault(expr)
    if fault is not None:
        raise KernelError(f"{what}: {fault}")
    if is_predicate(expr):
        raise KernelError(f"{what} is a predicate, and elements are numbers: select one of two by it")
    others = operands(expr) - {0}
    if others:
        raise KernelError(f"{what} reads operand {max(others)}, and there is operand 0 alone")
    return expr
