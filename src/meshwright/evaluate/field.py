"""`FieldArithmetic`: integers modulo the prime 2^61 - 1, for comparing functions rather than computing with them.

Sums, products and quotients are exact, so that any grouping and any split gives the same residue. What isn't algebra
(exp2, log2, rsqrt, rounding into whole numbers) is a function of which nothing is known: a keyed hash of its argument.
Maximum, minimum, magnitude and comparisons follow a random order of the residues. Formats round nothing: two programs
that differ only in where they round are the same function here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import EvaluationError
from meshwright.evaluate import field_numbers as field
from meshwright.evaluate import field_twin as twin
from meshwright.evaluate.arithmetic import Array, Products, Typed
from meshwright.evaluate.expression import evaluate_trees
from meshwright.evaluate.field_twin import PRIME, Keys, Residues
from meshwright.ir.expression import (
    Binary,
    BinaryOp,
    Cast,
    Constant,
    Expr,
    MultiplyAdd,
    Select,
    Unary,
    UnaryOp,
)
from meshwright.ir.formats import ElementType
from meshwright.ir.operation import Unit
from meshwright.ir.pool import Pool

Hashed = Callable[[str, Residues], None]
"""Called with a function's name and the arguments that it is asked for."""

_LOGIC: Final[dict[BinaryOp, Callable[[Array, Array], Array]]] = {
    BinaryOp.AND: np.logical_and,
    BinaryOp.OR: np.logical_or,
}
_COMPARE: Final[dict[BinaryOp, Callable[[Array, Array], Array]]] = {
    BinaryOp.LT: np.less,
    BinaryOp.GT: np.greater,
    BinaryOp.EQ: np.equal,
}
_WHOLE: Final[dict[BinaryOp, Callable[[Array, Array], Array]]] = {
    BinaryOp.ADD: np.add,
    BinaryOp.SUB: np.subtract,
    BinaryOp.MUL: np.multiply,
    BinaryOp.MAX: np.maximum,
    BinaryOp.MIN: np.minimum,
    **_COMPARE,
}
_WHOLE_FOLD: Final[dict[Pool, Callable[..., Array]]] = {
    Pool.SUM: np.sum,
    Pool.MAX: np.max,
    Pool.MIN: np.min,
    Pool.PROD: np.prod,
}
_POSITIVE_I32: Final = (1 << 31) - 1


class FieldArithmetic:
    """One number system for each seed: another seed gives other hashes and another order.

    seed: any whole number. constants: numbers that keep their own place in the order (those that the graphs under
    comparison name), so that a clamp to them is one; all others are placed at random. hashed: called with the
    arguments of every function that isn't interpreted.

    Values are uint64 residues below the prime; whole-number formats stay int64, since they are positions.
    """

    def __init__(self, seed: int, constants: Iterable[float] = (), hashed: Hashed | None = None) -> None:
        self._seed = seed
        self._hashed = hashed
        self._order = field.keys_of(seed, "order")
        self._of_zero = field.keys_of(seed, "inverse of zero")
        infinity = int(self._hash_keys("infinity")[0]) % PRIME
        self._special = {
            "inf": np.uint64(infinity),
            "-inf": np.uint64(PRIME - infinity),
            "nan": np.uint64(int(self._hash_keys("nan")[0]) % PRIME),
        }
        numbers = {n for c in (*constants, 0.0, math.inf) if not math.isnan(c) for n in (float(c), -float(c))}
        placed = {int(self._residue(n)): n for n in numbers}
        self._placed = np.array(sorted(placed), dtype=np.uint64)
        # Adding zero: a negative zero has the residue of the other one.
        self._placed_numbers = np.array([placed[r] + 0.0 for r in sorted(placed)], dtype=np.float64)

    @property
    def name(self) -> str:
        """For messages."""
        return "field"

    @property
    def accumulator(self) -> ElementType:
        """Nothing is rounded in a sum; accumulators are written as those of a cluster."""
        return ElementType.FP22

    @property
    def drained(self) -> ElementType:
        """Nothing is rounded on the way out of a sum."""
        return ElementType.F32

    def ingest(self, values: Array, format: ElementType) -> Array:
        """Residues (uint64 below the prime) as they are, floats as exact residues; whole numbers as int64.

        Raises `EvaluationError` for words that are no residues, and for floats where whole numbers belong.
        """
        if format.is_integer:
            if values.dtype.kind not in "iu":
                raise EvaluationError(f"whole numbers ({format}) were expected, found dtype {values.dtype}")
            return values.astype(np.int64)
        if values.dtype == np.uint64:
            if not field.all_reduced(values):
                raise EvaluationError(f"residues are below 2^61 - 1, found {int(values.max())}; take them modulo that")
            return values
        if values.dtype.kind in "iu":
            return field.of_integers(values.astype(np.int64))
        return self._residues_of(values.astype(np.float64))

    def constant(self, value: float, format: ElementType) -> Array:
        """The value exactly: whole number times power of two; infinities and NaN are residues of their own."""
        return np.asarray(int(value)) if format.is_integer else np.asarray(self._residue(value))

    def numbers(self, array: Array, format: ElementType) -> NDArray[np.float64] | NDArray[np.int64]:
        """Whole numbers as they are; for residues the float64 names by which they are ordered, one to one.

        A program that compares, chooses and moves numbers does the same to the names.
        """
        return array if format.is_integer else self._names(array)

    def encode(self, numbers: Array, format: ElementType) -> Array:
        """The inverse of `numbers`; into whole numbers those that are and a hash of the others, as `elementwise`."""
        if numbers.dtype == np.uint64:
            return self._stored(numbers, format)
        if format.is_integer:
            return np.trunc(numbers).astype(np.int64)
        names = numbers.astype(np.float64)
        ascending = np.argsort(self._placed_numbers)
        at = ascending[np.searchsorted(self._placed_numbers[ascending], names).clip(0, len(ascending) - 1)]
        ordinary = twin.residues_named(names, self._order)
        return np.where(self._placed_numbers[at] == names, self._placed[at], ordinary)

    def products(self, request: Products) -> Array:
        """Exact products, whatever format is asked for."""
        a, b = self._residues(request.a.array), self._residues(request.b.array)
        return field.product(a, b, request.a_index, request.b_index, request.start)

    def elementwise(
        self, exprs: Sequence[Expr], operands: Sequence[Typed], outs: Sequence[ElementType], unit: Unit
    ) -> list[Array]:
        """The expressions, each node as the class describes; whole numbers meet residues as residues."""
        values = evaluate_trees(exprs, [o.array for o in operands], self._apply)
        return [self._stored(np.asarray(v), out) for v, out in zip(values, outs, strict=True)]

    def fold(self, pool: Pool, values: Typed, outs: Sequence[ElementType]) -> list[Array]:
        """The fold, the same for any grouping; positions count from 0, the lowest on a tie."""
        x = values.array
        whole = x.dtype == np.int64
        if pool is Pool.ARGMAX or (pool in (Pool.MAX, Pool.MIN) and not whole):
            names = x if whole else self._names(x)
            at = np.argmin(names, axis=-1) if pool is Pool.MIN else np.argmax(names, axis=-1)
            best = np.take_along_axis(x, at[..., None], axis=-1)[..., 0]
            return [best, at.astype(np.int64)][: pool.components]
        if whole:
            return [self._stored(np.asarray(_WHOLE_FOLD[pool](x, axis=-1)), outs[0])]
        return [field.sum_rows(x) if pool is Pool.SUM else field.multiply_rows(x)]

    def _hash_keys(self, function: str) -> Keys:
        return field.keys_of(self._seed, "function", function)

    def _hash(self, function: str, x: Residues) -> Residues:
        if self._hashed is not None:
            self._hashed(function, x)
        return field.hashed(x, self._hash_keys(function))

    def _residue(self, value: float) -> np.uint64:
        found = self._special.get(str(float(value)))
        return np.uint64(field.of_floats(np.asarray(float(value)))) if found is None else found

    def _residues_of(self, numbers: NDArray[np.float64]) -> Residues:
        made = field.of_floats(numbers)
        if np.isfinite(numbers).all():
            return made
        made = np.where(np.isnan(numbers), self._special["nan"], made)
        made = np.where(numbers == np.inf, self._special["inf"], made)
        return np.where(numbers == -np.inf, self._special["-inf"], made)

    def _residues(self, x: Array) -> Residues:
        return field.of_integers(x) if x.dtype == np.int64 else x

    def _names(self, x: Residues) -> NDArray[np.float64]:
        return field.order_names(x, self._order, self._placed, self._placed_numbers)

    def _stored(self, x: Array, format: ElementType) -> Array:
        """A value into its element type: the identity but for residues that become whole numbers."""
        if not format.is_integer:
            return self._residues(x)
        if x.dtype == np.int64:
            return x
        signed, small = field.small_integers(x)
        if small.all():
            return signed
        hashes = self._hash("into whole numbers", x) & np.uint64(_POSITIVE_I32)
        return np.where(small, signed, hashes.astype(np.int64))

    def _apply(self, node: Expr, values: Sequence[Array]) -> Array:
        match node:
            case Constant():
                return np.asarray(self._residue(node.number))
            case Unary(op, _):
                return self._unary(op, values[0])
            case Binary(op, a, b):
                return self._binary(op, *_as_whole((a, b), values))
            case MultiplyAdd(a, b, c):
                x, y, z = _as_whole((a, b, c), values)
                if x.dtype == y.dtype == z.dtype == np.int64:
                    return x * y + z
                return field.multiply_add(self._residues(x), self._residues(y), self._residues(z))
            case Select(p, a, b):
                _, x, y = _as_whole((p, a, b), values)
                if x.dtype != y.dtype:
                    x, y = self._residues(x), self._residues(y)
                return np.where(values[0], x, y)
            case Cast(_, format_):
                return self._stored(values[0], format_)
            case _:
                raise EvaluationError(f"{type(node).__name__} is not an operation")

    def _unary(self, op: UnaryOp, x: Array) -> Array:
        if op is UnaryOp.NOT:
            return np.logical_not(x)
        if x.dtype == np.int64 and op in (UnaryOp.NEG, UnaryOp.ABS):
            return -x if op is UnaryOp.NEG else np.abs(x)
        residues = self._residues(x)
        if op is UnaryOp.NEG:
            return field.negate(residues)
        if op is UnaryOp.ABS:
            return np.where(np.signbit(self._names(residues)), field.negate(residues), residues)
        if op is UnaryOp.RECIPROCAL:
            return field.inverse(residues, self._of_zero)
        return self._hash(op.value, residues)

    def _binary(self, op: BinaryOp, a: Array, b: Array) -> Array:
        if op in _LOGIC:
            return _LOGIC[op](a, b)
        if a.dtype == b.dtype == np.int64:
            return _WHOLE[op](a, b)
        x, y = self._residues(a), self._residues(b)
        match op:
            case BinaryOp.ADD:
                return field.add(x, y)
            case BinaryOp.SUB:
                return field.sub(x, y)
            case BinaryOp.MUL:
                return field.mul(x, y)
            case BinaryOp.EQ:
                return x == y
            case _:
                return self._ordered(op, x, y)

    def _ordered(self, op: BinaryOp, x: Residues, y: Residues) -> Array:
        first, second = self._names(x), self._names(y)
        if op in _COMPARE:
            return _COMPARE[op](first, second)
        takes_first = first >= second if op is BinaryOp.MAX else first <= second
        return np.where(takes_first, x, y)


def _as_whole(nodes: Sequence[Expr], values: Sequence[Array]) -> list[Array]:
    """The values, whole constants beside whole numbers as whole numbers too."""
    if not any(v.dtype == np.int64 for v in values):
        return list(values)
    made: list[Array] = []
    for node, value in zip(nodes, values, strict=True):
        whole = isinstance(node, Constant) and node.number.is_integer() and abs(node.number) < 2**31
        made.append(np.asarray(int(cast("Constant", node).number)) if whole else value)
    return made
