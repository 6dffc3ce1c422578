"""`GridArithmetic`: what a grid of sites computes, every rounding and every order stated.

Products: operands in bf16, f16 or f32, multiplied and summed in float32. Along K, blocks of 32 one after another; in a
block, ascending, one product after another: each product is rounded to float32, then added with one rounding. The
block's sum is added to the sum of the blocks before it; the first block opens that sum. Elementwise work: float32, one
rounding an operation. Folds: from the first element of a row to the last, one rounding an operation. Results are
rounded to the nearest value of their element type, ties to even, too large ones to infinity; subnormal numbers are kept
and every nan is the quiet positive one. Nothing here calls a BLAS, whose sums come in an order of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import EvaluationError
from meshwright.evaluate.arithmetic import Array, Products, Typed
from meshwright.evaluate.expression import evaluate_trees
from meshwright.evaluate.storage import checked_storage, storage_dtype, to_i32
from meshwright.ir.expression import Binary, BinaryOp, Cast, Constant, Expr, MultiplyAdd, Select, Unary, UnaryOp
from meshwright.ir.formats import ElementType
from meshwright.ir.operation import Unit
from meshwright.ir.pool import Pool
from meshwright.targets.grid import functions

TILE: Final = 32
_AT_ONCE: Final = 1 << 14
_FLOATS: Final = (ElementType.BF16, ElementType.F16, ElementType.F32)
_UNARY: Final[dict[UnaryOp, Callable[[Array], Array]]] = {
    UnaryOp.NEG: np.negative,
    UnaryOp.ABS: np.abs,
    UnaryOp.EXP2: functions.exp2,
    UnaryOp.LOG2: functions.log2,
    UnaryOp.RECIPROCAL: lambda x: np.float32(1.0) / x,
    UnaryOp.RSQRT: functions.rsqrt,
    UnaryOp.NOT: np.logical_not,
}
_BINARY: Final[dict[BinaryOp, Callable[[Array, Array], Array]]] = {
    BinaryOp.ADD: np.add,
    BinaryOp.SUB: np.subtract,
    BinaryOp.MUL: np.multiply,
    BinaryOp.MAX: functions.maximum,
    BinaryOp.MIN: functions.minimum,
    BinaryOp.LT: np.less,
    BinaryOp.GT: np.greater,
    BinaryOp.EQ: np.equal,
    BinaryOp.AND: np.logical_and,
    BinaryOp.OR: np.logical_or,
}


class GridArithmetic:
    """The number system of a grid of sites: bf16, f16, f32 and i32 in memory, float32 in every engine."""

    @property
    def name(self) -> str:
        """The machine family."""
        return "grid"

    @property
    def accumulator(self) -> ElementType:
        """Sums stay in float32."""
        return ElementType.F32

    @property
    def drained(self) -> ElementType:
        """Sums leave the matrix engine as they are."""
        return ElementType.F32

    def ingest(self, values: Array, format: ElementType) -> Array:
        """Elements as they are; `EvaluationError` where the dtype isn't the element type's."""
        self._known(format)
        return checked_storage(values, format)

    def _known(self, format: ElementType) -> None:
        if not format.in_memory:
            raise EvaluationError(
                f"a grid has no {format}; its engines compute in float32: use f32 for sums and for values between "
                "operations"
            )

    def constant(self, value: float, format: ElementType) -> Array:
        """The value rounded into the element type."""
        return self.encode(np.asarray(value), format)

    def numbers(self, array: Array, format: ElementType) -> NDArray[np.float64] | NDArray[np.int64]:
        """The elements as numbers."""
        self._known(format)
        return array.astype(np.int64) if format.is_integer else array.astype(np.float64)

    def encode(self, numbers: Array, format: ElementType) -> Array:
        """Numbers rounded to float32 and then into the element type; whole ones toward zero."""
        self._known(format)
        if format.is_integer:
            return to_i32(numbers)
        with np.errstate(all="ignore"):
            return self._rounded(numbers.astype(np.float32), format)

    def products(self, request: Products) -> Array:
        """Sums of products [T, m, n] in float32, in the stated order, rounded into `request.out`."""
        for operand in (request.a, request.b):
            if operand.format not in _FLOATS:
                raise EvaluationError(f"a matrix engine multiplies bf16, f16 or f32 operands, not {operand.format}")
        self._known(request.out)
        a, b = (operand.array.astype(np.float32).transpose(2, 0, 1) for operand in (request.a, request.b))
        count, m, n = len(request.a_index), a.shape[2], b.shape[2]
        sums = np.empty((count, m, n), dtype=np.float32)
        # As many products at once as keep the running sums in a processor's innermost cache.
        step = max(1, _AT_ONCE // (m * n))
        with np.errstate(all="ignore"):
            for first in range(0, count, step):
                part = slice(first, first + step)
                left, right = a[:, request.a_index[part]], b[:, request.b_index[part]]
                _sum_of_products(left, right, None if request.start is None else request.start[part], sums[part])
            return self._rounded(sums, request.out)

    def elementwise(
        self, exprs: Sequence[Expr], operands: Sequence[Typed], outs: Sequence[ElementType], unit: Unit
    ) -> list[Array]:
        """Expressions in float32, one rounding an operation; whole numbers come in as the nearest float32."""
        if unit is Unit.ACCUMULATOR:
            raise EvaluationError("a grid has no adder in an accumulator that other chips reach: fold with Unit.VECTOR")
        for format in (*(o.format for o in operands), *outs):
            self._known(format)
        with np.errstate(all="ignore"):
            singles = [np.asarray(o.array.astype(np.float32)) for o in operands]
            values = evaluate_trees(exprs, singles, self._apply)
            return [self._rounded(np.asarray(v), out) for v, out in zip(values, outs, strict=True)]

    def _apply(self, node: Expr, values: Sequence[Array]) -> Array:
        match node:
            case Constant():
                return np.asarray(node.number, dtype=np.float32)
            case Unary(op, _):
                return np.asarray(_UNARY[op](values[0]))
            case Binary(op, _, _):
                return np.asarray(_BINARY[op](values[0], values[1]))
            case MultiplyAdd():
                return functions.multiply_add(*np.broadcast_arrays(*values))
            case Select():
                return np.where(values[0], values[1], values[2])
            case Cast(_, format):
                self._known(format)
                return self._rounded(values[0], format).astype(np.float32)
            case _:
                raise EvaluationError(f"{type(node).__name__} is not an operation")

    def fold(self, pool: Pool, values: Typed, outs: Sequence[ElementType]) -> list[Array]:
        """Rows [..., L] folded from their first element to their last, in float32.

        A largest element that several positions hold is at the lowest of them; in a row with a nan it is a nan and
        at 2^31 - 1, where the pool's pair fold puts what equals nothing.
        """
        for format in (values.format, *outs):
            self._known(format)
        rows = values.array.astype(np.float32)
        with np.errstate(all="ignore"):
            match pool:
                case Pool.SUM:
                    folded = np.add.accumulate(rows, axis=-1)[..., -1]
                case Pool.PROD:
                    folded = np.multiply.accumulate(rows, axis=-1)[..., -1]
                case Pool.MIN:
                    folded = functions.smallest(rows)
                case Pool.MAX | Pool.ARGMAX:
                    folded = functions.largest(rows)
            result = [self._rounded(np.asarray(folded), outs[0])]
            if pool is Pool.ARGMAX:
                position = np.where(np.isnan(folded), np.iinfo(np.int32).max, (rows == folded[..., None]).argmax(-1))
                result.append(self.encode(position, outs[1]))
            return result

    def _rounded(self, values: Array, format: ElementType) -> Array:
        if format.is_integer:
            return to_i32(values)
        return functions.canonical(values).astype(storage_dtype(format), copy=False)


def _sum_of_products(left: NDArray[Any], right: NDArray[Any], start: Array | None, total: NDArray[np.float32]) -> None:
    """Into `total` [t, m, n] the sums over K of left [K, t, m] by right [K, t, n], continuing `start`."""
    product, block = np.empty_like(total), np.empty_like(total)
    opened = start is not None
    total[...] = 0.0 if start is None else start
    for first in range(0, len(left), TILE):
        into = block if opened else total
        np.multiply(left[first][:, :, None], right[first][:, None, :], out=into)
        for k in range(first + 1, min(first + TILE, len(left))):
            np.multiply(left[k][:, :, None], right[k][:, None, :], out=product)
            np.add(into, product, out=into)
        if opened:
            np.add(total, block, out=total)
        opened = True
