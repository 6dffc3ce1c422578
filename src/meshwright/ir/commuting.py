"""Whether an expression may be applied to contributions before they are folded: `f(fold(x)) = fold(f(x))`.

For Sum that is linearity. For Max and Min it is monotonicity: an increasing function of one operand takes the largest
to the largest, and a maximum of such functions does so for several operands. For Prod it is being a product. Operands
that are not folded are the same on every rank. Anything unknown counts as not commuting, so that not knowing is safe.

As in `linearity` rounding is not what is being asked about, and operands are numbers: a NaN is in no order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum

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
    walk,
)
from meshwright.ir.linearity import is_linear_in
from meshwright.ir.pool import Pool


def commutes(expr: Expr, pool: Pool, together: frozenset[int]) -> bool:
    """Whether `expr` of folded operands is the fold of `expr` of the contributions.

    pool: the fold. together: the operands that are contributions to be folded, all in that pool; every other operand
    has one value for all of them. False where that isn't known.
    """
    match pool:
        case Pool.SUM:
            return is_linear_in(expr, together)
        case Pool.MAX | Pool.MIN:
            known: dict[Expr, _Trend] = {}
            for node in walk(expr):
                known[node] = _trend(node, known, pool, together)
            return known[expr].way in (_Way.FLAT, _Way.UP)
        case Pool.PROD:
            kinds: dict[Expr, _Factor] = {}
            for node in walk(expr):
                kinds[node] = _factor(node, kinds, together)
            return kinds[expr] in (_Factor.PRODUCT, _Factor.IDEMPOTENT)
        case Pool.ARGMAX:
            return False


class _Way(Enum):
    """What a node does with the fold of the operands it reads."""

    FLAT = 0
    """It reads none of them."""
    UP = 1
    """It takes the fold to the fold: increasing, if it reads one operand."""
    DOWN = -1
    """It takes the fold to the opposite one: decreasing, if it reads one operand."""
    UNKNOWN = 2

    @property
    def flipped(self) -> _Way:
        return {_Way.UP: _Way.DOWN, _Way.DOWN: _Way.UP}.get(self, self)


_ANY = frozenset({-1, 0, 1})
_POSITIVE = frozenset({1})
_NOT_NEGATIVE = frozenset({0, 1})
_NOT_POSITIVE = frozenset({-1, 0})


class _Trend(Struct, frozen=True):
    """A way, the operands read among those folded, and the signs that values may have."""

    way: _Way
    read: frozenset[int] = frozenset()
    signs: frozenset[int] = _ANY

    @property
    def flipped(self) -> _Trend:
        return _Trend(self.way.flipped, self.read, frozenset(-s for s in self.signs))


def _trend(node: Expr, known: dict[Expr, _Trend], pool: Pool, together: frozenset[int]) -> _Trend:
    match node:
        case Operand(index):
            return _Trend(_Way.UP, frozenset({index})) if index in together else _Trend(_Way.FLAT)
        case Constant():
            return _Trend(_Way.FLAT, signs=_signs_of(node.number))
        case Unary(op, a):
            return _unary(op, known[a])
        case Cast(a, _):
            # Rounding keeps the order, and may take what is small to zero.
            return _Trend(known[a].way, known[a].read, known[a].signs | {0})
        case Binary(BinaryOp.ADD, a, b):
            return _added(known[a], known[b])
        case Binary(BinaryOp.SUB, a, b):
            return _added(known[a], known[b].flipped)
        case Binary(BinaryOp.MUL, a, b):
            return _multiplied(known[a], known[b], square=a == b)
        case MultiplyAdd(a, b, c):
            return _added(_multiplied(known[a], known[b], square=a == b), known[c])
        case Binary(BinaryOp.MAX | BinaryOp.MIN as op, a, b):
            return _joined(op, known[a], known[b], pool)
        case Select(p, a, b):
            return _chosen(known[p], known[a], known[b])
        case Binary(_, a, b):
            return _predicate(known[a], known[b])


def _signs_of(number: float) -> frozenset[int]:
    # Infinity times zero is no number, so infinite factors are not known to keep an order.
    if not math.isfinite(number):
        return _ANY
    return frozenset({(number > 0) - (number < 0)})


def _unary(op: UnaryOp, a: _Trend) -> _Trend:
    match op:
        case UnaryOp.NEG:
            return a.flipped
        case UnaryOp.ABS if a.signs <= _NOT_NEGATIVE:
            return a
        case UnaryOp.ABS if a.signs <= _NOT_POSITIVE:
            return a.flipped
        case UnaryOp.EXP2:
            return _Trend(a.way, a.read, _NOT_NEGATIVE)
        case UnaryOp.LOG2 if a.signs <= _NOT_NEGATIVE:
            return _Trend(a.way, a.read)
        case UnaryOp.RECIPROCAL | UnaryOp.RSQRT if a.signs <= _POSITIVE:
            return _Trend(a.way.flipped, a.read, _NOT_NEGATIVE)
        case UnaryOp.NOT if a.way is _Way.FLAT:
            return a
        case _:
            signs = _NOT_NEGATIVE if op is UnaryOp.ABS else _ANY
            return _Trend(_Way.FLAT if a.way is _Way.FLAT else _Way.UNKNOWN, a.read, signs)


def _added(a: _Trend, b: _Trend) -> _Trend:
    signs = frozenset(s for x in a.signs for y in b.signs for s in ({x or y} if x * y >= 0 else _ANY))
    return _Trend(_same_way(a, b), a.read | b.read, signs)


def _same_way(a: _Trend, b: _Trend) -> _Way:
    """The way of what grows with both: known only if they read one operand between them."""
    ways = {a.way, b.way} - {_Way.FLAT}
    if not ways:
        return _Way.FLAT
    if len(ways) > 1 or len(a.read | b.read) > 1:
        return _Way.UNKNOWN
    return ways.pop()


def _multiplied(a: _Trend, b: _Trend, *, square: bool) -> _Trend:
    signs = _NOT_NEGATIVE if square else frozenset(x * y for x in a.signs for y in b.signs)
    read = a.read | b.read
    if a.way is b.way is _Way.FLAT:
        return _Trend(_Way.FLAT, read, signs)
    # A factor that isn't negative keeps the order of the other, one that isn't positive turns it round.
    turned = [_turned(one.way, other.signs) for one, other in ((a, b), (b, a))]
    way = _same_way(_Trend(turned[0], a.read), _Trend(turned[1], b.read))
    return _Trend(way, read, signs)


def _turned(way: _Way, by: frozenset[int]) -> _Way:
    if way is _Way.FLAT or by <= _NOT_NEGATIVE:
        return way
    return way.flipped if by <= _NOT_POSITIVE else _Way.UNKNOWN


def _joined(op: BinaryOp, a: _Trend, b: _Trend, pool: Pool) -> _Trend:
    choose = max if op is BinaryOp.MAX else min
    signs = frozenset(choose(x, y) for x in a.signs for y in b.signs)
    read = a.read | b.read
    ways = {a.way, b.way} - {_Way.FLAT}
    # The maximum of several maxima is the maximum of all; going down, minima take the place of maxima.
    same_fold = (op is BinaryOp.MAX) == (pool is Pool.MAX)
    if ways == {_Way.UP if same_fold else _Way.DOWN}:
        return _Trend(ways.pop(), read, signs)
    return _Trend(_same_way(a, b), read, signs)


def _chosen(predicate: _Trend, a: _Trend, b: _Trend) -> _Trend:
    read = predicate.read | a.read | b.read
    ways = {a.way, b.way} - {_Way.FLAT}
    if predicate.way is not _Way.FLAT:
        return _Trend(_Way.UNKNOWN, read, a.signs | b.signs)
    # The same branch is taken whatever the contributions are.
    way = _Way.FLAT if not ways else ways.pop() if len(ways) == 1 else _Way.UNKNOWN
    return _Trend(way, read, a.signs | b.signs)


def _predicate(a: _Trend, b: _Trend) -> _Trend:
    flat = a.way is b.way is _Way.FLAT
    return _Trend(_Way.FLAT if flat else _Way.UNKNOWN, a.read | b.read)


class _Factor(Enum):
    """What a node is for products of contributions."""

    PRODUCT = "product"
    """It takes products to products."""
    IDEMPOTENT = "idempotent"
    """It is 0 or 1, whose products with themselves they are."""
    FIXED = "fixed"
    """It reads no contribution, so that its product with itself is something else."""
    UNKNOWN = "unknown"


def _factor(node: Expr, known: dict[Expr, _Factor], together: frozenset[int]) -> _Factor:
    match node:
        case Operand(index):
            return _Factor.PRODUCT if index in together else _Factor.FIXED
        case Constant():
            return _Factor.IDEMPOTENT if node.number in (0.0, 1.0) else _Factor.FIXED
        case Unary(UnaryOp.ABS | UnaryOp.RECIPROCAL, a):
            return known[a] if known[a] is not _Factor.IDEMPOTENT else _Factor.FIXED
        case Cast(a, format_) if not format_.is_integer:
            return known[a]
        case Binary(BinaryOp.MUL, a, b):
            return _product([known[a], known[b]])
        case Select(p, a, b) if known[p] is _Factor.FIXED:
            return _product([known[a], known[b]])
        case Unary(_, a):
            return _opaque([known[a]])
        case Cast(a, _):
            return _opaque([known[a]])
        case Binary(_, a, b):
            return _opaque([known[a], known[b]])
        case MultiplyAdd(a, b, c) | Select(a, b, c):
            return _opaque([known[a], known[b], known[c]])


_KEEPS = frozenset({_Factor.PRODUCT, _Factor.IDEMPOTENT})
_READS_NOTHING = frozenset({_Factor.FIXED, _Factor.IDEMPOTENT})


def _product(factors: Iterable[_Factor]) -> _Factor:
    found = set(factors)
    if found == {_Factor.IDEMPOTENT}:
        return _Factor.IDEMPOTENT
    if found <= _KEEPS:
        return _Factor.PRODUCT
    return _Factor.FIXED if found <= _READS_NOTHING else _Factor.UNKNOWN


def _opaque(factors: Iterable[_Factor]) -> _Factor:
    return _Factor.FIXED if set(factors) <= _READS_NOTHING else _Factor.UNKNOWN
