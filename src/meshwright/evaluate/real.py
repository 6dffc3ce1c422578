"""`RealArithmetic`: float64, for accuracy figures. Formats other than integers round nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import EvaluationError
from meshwright.evaluate.arithmetic import Array, Products, Typed
from meshwright.evaluate.expression import evaluate_trees
from meshwright.ir.expression import Binary, BinaryOp, Cast, Constant, Expr, MultiplyAdd, Select, Unary, UnaryOp
from meshwright.ir.formats import ElementType
from meshwright.ir.operation import Unit
from meshwright.ir.pool import Pool

_UNARY: Final[dict[UnaryOp, Callable[[Array], Array]]] = {
    UnaryOp.NEG: np.negative,
    UnaryOp.ABS: np.abs,
    UnaryOp.EXP2: np.exp2,
    UnaryOp.LOG2: np.log2,
    UnaryOp.RECIPROCAL: lambda x: 1.0 / x,
    UnaryOp.RSQRT: lambda x: 1.0 / np.sqrt(x),
    UnaryOp.NOT: np.logical_not,
}
_BINARY: Final[dict[BinaryOp, Callable[[Array, Array], Array]]] = {
    BinaryOp.ADD: np.add,
    BinaryOp.SUB: np.subtract,
    BinaryOp.MUL: np.multiply,
    BinaryOp.MAX: np.maximum,
    BinaryOp.MIN: np.minimum,
    BinaryOp.LT: np.less,
    BinaryOp.GT: np.greater,
    BinaryOp.EQ: np.equal,
    BinaryOp.AND: np.logical_and,
    BinaryOp.OR: np.logical_or,
}
_FOLD: Final[dict[Pool, Callable[..., Array]]] = {
    Pool.SUM: np.sum,
    Pool.MAX: np.max,
    Pool.MIN: np.min,
    Pool.PROD: np.prod,
}


class RealArithmetic:
    """float64 throughout; whole numbers are int64."""

    @property
    def name(self) -> str:
        """For messages."""
        return "real"

    @property
    def drained(self) -> ElementType:
        """Nothing is rounded on the way out of a sum."""
        return ElementType.F32

    @property
    def accumulator(self) -> ElementType:
        """Nothing is rounded in a sum; accumulators are written as those of a cluster."""
        return ElementType.FP22

    def ingest(self, values: Array, format: ElementType) -> Array:
        """As float64 (int64 for whole numbers); any real dtype is taken, so unrounded values can be given as well."""
        if not format.in_memory:
            raise EvaluationError(f"{format} words can't be given to an evaluation; give numbers in f16, bf16 or f32")
        if format.is_integer and values.dtype.kind not in "iu":
            raise EvaluationError(f"whole numbers ({format}) were expected, found dtype {values.dtype}")
        return values.astype(np.int64 if format.is_integer else np.float64)

    def constant(self, value: float, format: ElementType) -> Array:
        """The value as it is."""
        return np.asarray(int(value) if format.is_integer else float(value))

    def numbers(self, array: Array, format: ElementType) -> NDArray[np.float64] | NDArray[np.int64]:
        """The elements themselves."""
        return array

    def encode(self, numbers: Array, format: ElementType) -> Array:
        """The numbers themselves; toward zero into whole ones."""
        return np.trunc(numbers).astype(np.int64) if format.is_integer else numbers.astype(np.float64)

    def products(self, request: Products) -> Array:
        """Products in float64; numpy sums the contraction in its own order."""
        a, b = request.a.array, request.b.array
        out = np.empty((len(request.a_index), a.shape[1], b.shape[1]))
        for t, (i, j) in enumerate(zip(request.a_index, request.b_index, strict=True)):
            np.matmul(a[i], b[j].T, out=out[t])
        return out if request.start is None else out + request.start

    def elementwise(
        self, exprs: Sequence[Expr], operands: Sequence[Typed], outs: Sequence[ElementType], unit: Unit
    ) -> list[Array]:
        """The expressions in float64; what is not a number (a logarithm of a negative) is nan."""
        with np.errstate(all="ignore"):
            values = evaluate_trees(exprs, [o.array for o in operands], _apply)
        return [self.encode(np.asarray(v), out) for v, out in zip(values, outs, strict=True)]

    def fold(self, pool: Pool, values: Typed, outs: Sequence[ElementType]) -> list[Array]:
        """The fold in float64; positions count from 0, the lowest on a tie."""
        x = values.array
        if pool is Pool.ARGMAX:
            return [np.max(x, axis=-1), np.argmax(x, axis=-1).astype(np.int64)]
        return [np.asarray(_FOLD[pool](x, axis=-1))]


def _apply(node: Expr, values: Sequence[Array]) -> Array:
    match node:
        case Constant():
            return np.asarray(node.number)
        case Unary(op, _):
            return _UNARY[op](values[0])
        case Binary(op, _, _):
            return _BINARY[op](values[0], values[1])
        case MultiplyAdd():
            return values[0] * values[1] + values[2]
        case Select():
            return np.where(values[0], values[1], values[2])
        case Cast(_, format_):
            return np.trunc(values[0]) if format_.is_integer else values[0]
        case _:
            raise EvaluationError(f"{type(node).__name__} is not an operation")
