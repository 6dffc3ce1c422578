"""Softmax along an axis, on vector units; scale and mask folded in."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from meshwright.errors import KernelError
from meshwright.ir import library
from meshwright.ir.build import GraphBuilder
from meshwright.ir.expression import Expr, Operand
from meshwright.ir.ids import StageId
from meshwright.ir.pool import Pool
from meshwright.kernels.kernel import Contraction, Piece, Shaped, UnitKind
from meshwright.kernels.operands import (
    axes_but,
    require_broadcasts_into,
    require_floats,
    require_operands,
    resolved_axis,
)
from meshwright.kernels.placement import Placement
from meshwright.kernels.rows import Pass, RowProgram, emit_rows


class Softmax(Struct, frozen=True):
    """`exp(scale * x + mask)` over its sum along `axis`; operands x and, if given, a mask that broadcasts to x."""

    axis: int = -1
    scale: float = 1.0

    @property
    def name(self) -> str:
        """What messages call it."""
        return "softmax"

    @property
    def unit(self) -> UnitKind:
        """Vector units fold and exponentiate."""
        return "vector"

    def result(self, operands: Sequence[Shaped]) -> Shaped:
        """Of x's shape; `KernelError` for an axis that isn't there or a mask that doesn't broadcast to x."""
        require_operands(self.name, operands, {1: "x", 2: "x and a mask"})
        require_floats(self.name, operands)
        resolved_axis(self.name, self.axis, operands[0])
        for mask in operands[1:]:
            require_broadcasts_into(self.name, "the mask", mask, operands[0])
        return operands[0]

    def axes(self, operands: Sequence[Shaped]) -> tuple[tuple[int | None, ...], ...]:
        """Elements along `axis` are mixed, all other axes go along."""
        rank = len(operands[0].shape)
        axis = resolved_axis(self.name, self.axis, operands[0])
        return tuple(axes_but(o.shape, rank, axis) for o in operands)

    def contractions(self, operands: Sequence[Shaped]) -> tuple[Contraction, ...]:
        """None: softmaxes of slices don't fold into that of the whole."""
        return ()

    def linear_in(self, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
        """In nothing."""
        return False

    def emit(
        self, builder: GraphBuilder, placement: Placement, operands: Sequence[Piece], result: Piece
    ) -> tuple[StageId, ...]:
        """Maximum, exponentials of the distance to it, their sum, and the product with its reciprocal."""
        axis = self.axis % len(result.shape)
        return emit_rows(builder, placement, self._program(len(operands)), operands, result, axis)

    def _program(self, count: int) -> RowProgram:
        kept, statistic = Operand(count), Operand(count + 1)
        # In units of x and not of the scaled exponent: x without a mask is then subtracted as it is, and only the
        # distance to the maximum is rounded by the scale.
        exponent: Expr = Operand(0) if count == 1 else self._masked()
        distance = (kept - statistic) * (self.scale * library.LOG2_E)
        passes = (
            Pass(Pool.MAX, exponent, (exponent,)),
            Pass(Pool.SUM, library.exp2(distance), (library.exp2(distance),), library.reciprocal(Operand(0))),
        )
        return RowProgram(self.name, count, passes, kept * statistic)

    def _masked(self) -> Expr:
        if self.scale == 1.0:
            return Operand(0) + Operand(1)
        return library.multiply_add(Operand(1), 1.0 / self.scale, Operand(0))


def softmax(axis: int = -1, scale: float = 1.0) -> Softmax:
    """Softmax of `scale * x` (plus a mask, the second operand) along `axis`.

    A mask adds to the scaled values and broadcasts to x: `[batch, 1, 1, keys]` over `[batch, heads, queries, keys]`,
    0 where a key counts and a large negative number (-10000, or -inf) where it doesn't. Raises `KernelError` unless
    `scale` is positive and finite.
    """
    if not 0.0 < scale < float("inf"):
        raise KernelError(f"softmax: a scale of {scale:g}; it has to be positive and finite. Negate x first: negative")
    return Softmax(axis, scale)
