"""How an expression depends on each of its operands: what may be done to a partial sum before it is reduced.

Anything unknown counts as nonlinear, so that not knowing is safe. Casts between float formats count as the
identity: rounding is not what is being asked about. Constants other than zero make an expression affine, and affine
counts as nonlinear: adding one to every summand adds it many times.
"""

from __future__ import annotations

import math
from enum import StrEnum

from msgspec import Struct

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
    operands,
    walk,
)

_MOST_MONOMIALS = 256


class Linearity(StrEnum):
    """The class of an expression in one operand."""

    INDEPENDENT = "independent"
    """The operand isn't read."""
    LINEAR = "linear"
    """Linear in all operands taken together: `f(x + y) = f(x) + f(y)` for whole operand tuples."""
    MULTILINEAR = "multilinear"
    """Linear in this operand while the others are held fixed."""
    NONLINEAR = "nonlinear"


class _Polynomial(Struct, frozen=True):
    """A sum of products of operands (each at most once a product), and the operands read in any other way."""

    monomials: frozenset[frozenset[int]]
    nonlinear: frozenset[int] = frozenset()
    finite: bool = True
    """False with an infinite or NaN constant in it: infinity times a sum isn't the sum of infinities."""


_ZERO = _Polynomial(frozenset())
_ONE = frozenset[int]()


def classify(expr: Expr, count: int) -> tuple[Linearity, ...]:
    """The class of `expr` in each of its `count` operands."""
    known: dict[Expr, _Polynomial] = {}
    for node in walk(expr):
        known[node] = _polynomial(node, known)
    whole = known[expr]
    return tuple(_class_in(whole, index) for index in range(count))


def is_linear_in(expr: Expr, together: frozenset[int]) -> bool:
    """Whether `expr` is linear in the operands `together` taken as one tuple, the others held fixed."""
    known: dict[Expr, _Polynomial] = {}
    for node in walk(expr):
        known[node] = _polynomial(node, known)
    whole = known[expr]
    return not whole.nonlinear & together and all(len(m & together) == 1 for m in whole.monomials)


def _class_in(p: _Polynomial, index: int) -> Linearity:
    if index in p.nonlinear:
        return Linearity.NONLINEAR
    if not any(index in m for m in p.monomials):
        return Linearity.INDEPENDENT
    if p.nonlinear or not all(index in m for m in p.monomials):
        # Terms without this operand: fine if every term is a single operand (jointly linear), else affine in it.
        jointly = not p.nonlinear and all(len(m) == 1 for m in p.monomials)
        return Linearity.LINEAR if jointly else _affine_or_multilinear(p, index)
    return Linearity.LINEAR if all(len(m) == 1 for m in p.monomials) else Linearity.MULTILINEAR


def _affine_or_multilinear(p: _Polynomial, index: int) -> Linearity:
    # Operands read nonlinearly may only scale: every monomial then still has to hold this operand.
    return Linearity.MULTILINEAR if all(index in m for m in p.monomials) else Linearity.NONLINEAR


def _polynomial(node: Expr, known: dict[Expr, _Polynomial]) -> _Polynomial:
    match node:
        case Operand(index):
            return _Polynomial(frozenset({frozenset({index})}))
        case Constant():
            return _constant(node.number)
        case Unary(UnaryOp.NEG, a):
            return known[a]
        case Cast(a, format_) if not format_.is_integer:
            return known[a]
        case Binary(BinaryOp.ADD | BinaryOp.SUB, a, b):
            return _sum(known[a], known[b])
        case Binary(BinaryOp.MUL, a, b):
            return _product(known[a], known[b])
        case MultiplyAdd(a, b, c):
            return _sum(_product(known[a], known[b]), known[c])
        case Select(p, a, b):
            # The predicate only chooses: a factor of 0 or 1 on each branch, nonlinear in what the predicate reads.
            return _scaled_by_nonlinear(_sum(known[a], known[b]), operands(p))
        case _:
            return _opaque(operands(node))


def _constant(number: float) -> _Polynomial:
    if number == 0:
        return _ZERO
    return _Polynomial(frozenset({_ONE}), finite=math.isfinite(number))


def _opaque(read: frozenset[int]) -> _Polynomial:
    # The value itself is one unknown term: a constant term, so that adding it to anything is affine.
    return _Polynomial(frozenset({_ONE}), read)


def _sum(a: _Polynomial, b: _Polynomial) -> _Polynomial:
    return _bounded(_Polynomial(a.monomials | b.monomials, a.nonlinear | b.nonlinear, a.finite and b.finite))


def _product(a: _Polynomial, b: _Polynomial) -> _Polynomial:
    squared = frozenset[int]().union(*(m & n for m in a.monomials for n in b.monomials))
    monomials = frozenset(m | n for m in a.monomials for n in b.monomials)
    finite = a.finite and b.finite
    scaled = frozenset[int]() if finite else frozenset[int]().union(*a.monomials, *b.monomials)
    return _bounded(_Polynomial(monomials, a.nonlinear | b.nonlinear | squared | scaled, finite))


def _scaled_by_nonlinear(p: _Polynomial, read: frozenset[int]) -> _Polynomial:
    return _bounded(_Polynomial(p.monomials, p.nonlinear | read, p.finite))


def _bounded(p: _Polynomial) -> _Polynomial:
    if len(p.monomials) <= _MOST_MONOMIALS:
        return p
    return _Polynomial(frozenset({_ONE}), p.nonlinear.union(*p.monomials), p.finite)
