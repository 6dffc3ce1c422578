"""Layer norm and RMS norm over the last axis, on vector units; a residual may be added on the way in."""

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
from meshwright.kernels.operands import axes_but, named, require_floats, require_operands
from meshwright.kernels.placement import Placement
from meshwright.kernels.rows import Pass, RowProgram, emit_rows


class LayerNorm(Struct, frozen=True):
    """`(h - mean) / sqrt(variance + eps) * gamma + beta`; operands x, gamma, beta, or x, residual, gamma, beta."""

    eps: float = 1e-5

    @property
    def name(self) -> str:
        """What messages call it."""
        return "layer_norm"

    @property
    def unit(self) -> UnitKind:
        """Vector units fold and take roots."""
        return "vector"

    def result(self, operands: Sequence[Shaped]) -> Shaped:
        """Of x's shape; `KernelError` where an operand's shape doesn't go with it."""
        require_operands(self.name, operands, {3: "x, gamma and beta", 4: "x, a residual, gamma and beta"})
        return _result(self.name, operands, 2)

    def axes(self, operands: Sequence[Shaped]) -> tuple[tuple[int | None, ...], ...]:
        """Elements along the last axis are mixed, all other axes go along."""
        return _axes(operands)

    def contractions(self, operands: Sequence[Shaped]) -> tuple[Contraction, ...]:
        """None."""
        return ()

    def linear_in(self, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
        """In gamma and beta taken together; not in x."""
        return together == frozenset((len(operands) - 2, len(operands) - 1))

    def emit(
        self, builder: GraphBuilder, placement: Placement, operands: Sequence[Piece], result: Piece
    ) -> tuple[StageId, ...]:
        """The mean, the mean square of the distances to it, its reciprocal root, and the result."""
        program = self._program(len(operands), result.shape[-1])
        return emit_rows(builder, placement, program, operands, result, len(result.shape) - 1)

    def _program(self, count: int, length: int) -> RowProgram:
        kept, statistic = Operand(count), Operand(count + 1)
        gamma, beta = Operand(count - 2), Operand(count - 1)
        h = _input(count - 2)
        mean = Operand(0) * (1.0 / length)
        centred = kept - statistic
        root = library.rsqrt(library.multiply_add(Operand(0), 1.0 / length, self.eps))
        passes = (Pass(Pool.SUM, h, (h,), mean), Pass(Pool.SUM, centred * centred, (centred,), root))
        return RowProgram(self.name, count, passes, library.multiply_add(kept * statistic, gamma, beta))


class RmsNorm(Struct, frozen=True):
    """`h / sqrt(mean(h * h) + eps) * gamma`; operands x, gamma, or x, residual, gamma."""

    eps: float = 1e-6

    @property
    def name(self) -> str:
        """What messages call it."""
        return "rms_norm"

    @property
    def unit(self) -> UnitKind:
        """Vector units fold and take roots."""
        return "vector"

    def result(self, operands: Sequence[Shaped]) -> Shaped:
        """Of x's shape; `KernelError` where an operand's shape doesn't go with it."""
        require_operands(self.name, operands, {2: "x and gamma", 3: "x, a residual and gamma"})
        return _result(self.name, operands, 1)

    def axes(self, operands: Sequence[Shaped]) -> tuple[tuple[int | None, ...], ...]:
        """Elements along the last axis are mixed, all other axes go along."""
        return _axes(operands)

    def contractions(self, operands: Sequence[Shaped]) -> tuple[Contraction, ...]:
        """None."""
        return ()

    def linear_in(self, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
        """In gamma alone."""
        return together == frozenset((len(operands) - 1,))

    def emit(
        self, builder: GraphBuilder, placement: Placement, operands: Sequence[Piece], result: Piece
    ) -> tuple[StageId, ...]:
        """The mean square, its reciprocal root, and the result."""
        program = self._program(len(operands), result.shape[-1])
        return emit_rows(builder, placement, program, operands, result, len(result.shape) - 1)

    def _program(self, count: int, length: int) -> RowProgram:
        kept, statistic = Operand(count), Operand(count + 1)
        h = _input(count - 1)
        root = library.rsqrt(library.multiply_add(Operand(0), 1.0 / length, self.eps))
        return RowProgram(self.name, count, (Pass(Pool.SUM, h * h, (h,), root),), kept * statistic * Operand(count - 1))


def _input(values: int) -> Expr:
    """What is normalised: x, or x with its residual."""
    return Operand(0) if values == 1 else Operand(0) + Operand(1)


def _axes(operands: Sequence[Shaped]) -> tuple[tuple[int | None, ...], ...]:
    rank = len(operands[0].shape)
    return tuple(axes_but(o.shape, rank, rank - 1) for o in operands)


def _result(name: str, operands: Sequence[Shaped], parameters: int) -> Shaped:
    require_floats(name, operands)
    x = operands[0]
    if not x.shape:
        raise KernelError(f"{name}: x is {x}; it normalises along the last axis, so it needs one")
    if len(operands) - parameters == 2 and operands[1].shape != x.shape:
        raise KernelError(f"{name}: x is {x} and the residual {operands[1]}; they have to have the same shape")
    for parameter in operands[-parameters:]:
        if parameter.shape != x.shape[-1:]:
            raise KernelError(
                f"{name}: x is {x}, and gamma and beta go along its last axis: [{x.shape[-1]}] is needed, found "
                f"{named(operands[-parameters:])}"
            )
    return x


def layer_norm(eps: float = 1e-5) -> LayerNorm:
    """Layer norm over the last axis: x, gamma, beta; or x, residual, gamma, beta, which normalises x + residual.

    Raises `KernelError` for an eps that isn't a positive number: without one a row of equal values has no root.
    """
    return LayerNorm(_positive("layer_norm", eps))


def rms_norm(eps: float = 1e-6) -> RmsNorm:
    """RMS norm over the last axis: x, gamma; or x, residual, gamma. Raises `KernelError` as `layer_norm` does."""
    return RmsNorm(_positive("rms_norm", eps))


def _positive(name: str, eps: float) -> float:
    if not 0.0 < eps < float("inf"):
        raise KernelError(f"{name}: eps is {eps:g}; it has to be positive and finite, for example 1e-5")
    return eps
