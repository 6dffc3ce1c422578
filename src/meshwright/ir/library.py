"""Functions that people name, written in the primitives that a vector lane has.

Every one builds an `Expr`. Those that use exp2 clamp its argument: the card's exp2 wraps for |x| >= 128.
"""

from __future__ import annotations

import math

from meshwright.ir.expression import Binary, BinaryOp, Expr, MultiplyAdd, Select, Unary, UnaryOp, as_expr

LOG2_E = math.log2(math.e)
_EXPONENT_LIMIT = 126.0

# Abramowitz and Stegun, Handbook of Mathematical Functions, formula 7.1.26: erfc(x) is close to
# t (a1 + t (a2 + ...)) exp(-x^2) with t = 1 / (1 + p x), for x >= 0; absolute error at most 1.5e-7.
_ERFC_P = 0.3275911
_ERFC_A = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def maximum(a: Expr | float, b: Expr | float) -> Expr:
    """The larger."""
    return Binary(BinaryOp.MAX, as_expr(a), as_expr(b))


def minimum(a: Expr | float, b: Expr | float) -> Expr:
    """The smaller."""
    return Binary(BinaryOp.MIN, as_expr(a), as_expr(b))


def absolute(a: Expr) -> Expr:
    """The magnitude."""
    return Unary(UnaryOp.ABS, a)


def reciprocal(a: Expr) -> Expr:
    """1 / a."""
    return Unary(UnaryOp.RECIPROCAL, a)


def rsqrt(a: Expr) -> Expr:
    """1 / sqrt(a)."""
    return Unary(UnaryOp.RSQRT, a)


def sqrt(a: Expr) -> Expr:
    """The square root, as the reciprocal of `rsqrt`: the lane has no other."""
    return reciprocal(rsqrt(a))


def divide(a: Expr | float, b: Expr) -> Expr:
    """A / b, as a product with the reciprocal."""
    return as_expr(a) * reciprocal(b)


def multiply_add(a: Expr | float, b: Expr | float, c: Expr | float) -> Expr:
    """A * b + c with one rounding."""
    return MultiplyAdd(as_expr(a), as_expr(b), as_expr(c))


def select(predicate: Expr, a: Expr | float, b: Expr | float) -> Expr:
    """`a` where the predicate holds, else `b`."""
    return Select(predicate, as_expr(a), as_expr(b))


def exp2(a: Expr) -> Expr:
    """2^a, the argument clamped to where the card's exp2 does not wrap."""
    return Unary(UnaryOp.EXP2, minimum(maximum(a, -_EXPONENT_LIMIT), _EXPONENT_LIMIT))


def exp(a: Expr) -> Expr:
    """e^a."""
    return exp2(a * LOG2_E)


def log(a: Expr) -> Expr:
    """The natural logarithm."""
    return Unary(UnaryOp.LOG2, a) * math.log(2.0)


def sigmoid(a: Expr) -> Expr:
    """1 / (1 + e^-a)."""
    return reciprocal(exp(-a) + 1.0)


def silu(a: Expr) -> Expr:
    """a * sigmoid(a)."""
    return a * sigmoid(a)


def tanh(a: Expr) -> Expr:
    """2 sigmoid(2a) - 1."""
    return multiply_add(2.0, sigmoid(a * 2.0), -1.0)


def erfc_of_magnitude(a: Expr) -> Expr:
    """The complementary error function of |a|."""
    magnitude = absolute(a)
    t = reciprocal(multiply_add(magnitude, _ERFC_P, 1.0))
    polynomial = as_expr(_ERFC_A[-1])
    for coefficient in reversed(_ERFC_A[:-1]):
        polynomial = multiply_add(polynomial, t, coefficient)
    return polynomial * t * exp2(magnitude * magnitude * -LOG2_E)


def erf(a: Expr) -> Expr:
    """The error function."""
    value = 1.0 - erfc_of_magnitude(a)
    return select(a < 0.0, -value, value)


def gelu(a: Expr) -> Expr:
    """a times the normal distribution function, through erfc of the magnitude.

    The tail on the negative side is erfc itself and not one minus something close to one, so that a lane with 16
    significant bits keeps its relative accuracy there.
    """
    tail = erfc_of_magnitude(a * math.sqrt(0.5)) * 0.5
    return a * select(a < 0.0, tail, 1.0 - tail)


def gelu_sigmoid(a: Expr) -> Expr:
    """a * sigmoid(1.702 a), the cheap form."""
    return a * sigmoid(a * 1.702)
