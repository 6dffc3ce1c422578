"""Joining values along an axis, and taking part of one: copies by the mover."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from meshwright.errors import KernelError
from meshwright.ir.build import GraphBuilder
from meshwright.ir.ids import StageId
from meshwright.kernels.kernel import Contraction, Piece, Shaped, UnitKind
from meshwright.kernels.move import CopyBoxes, emit_copy
from meshwright.kernels.operands import axes_but, named, require_operands, resolved_axis
from meshwright.kernels.placement import Placement


class Concat(Struct, frozen=True):
    """Operands one after another along `axis`."""

    axis: int

    @property
    def name(self) -> str:
        """What messages call it."""
        return "concat"

    @property
    def unit(self) -> UnitKind:
        """The mover."""
        return "mover"

    def result(self, operands: Sequence[Shaped]) -> Shaped:
        """The sizes along the axis added up; `KernelError` where other axes or element types differ."""
        if not operands:
            raise KernelError("concat takes at least one operand; none is given")
        require_operands(self.name, operands)
        first = operands[0]
        axis = resolved_axis(self.name, self.axis, first)
        for other in operands[1:]:
            others = (*other.shape[:axis], *first.shape[axis : axis + 1], *other.shape[axis + 1 :])
            if len(other.shape) != len(first.shape) or others != first.shape or other.format is not first.format:
                raise KernelError(
                    f"concat along axis {axis}: {named(operands)} don't go together; all other axes and the element "
                    "type have to be equal"
                )
        total = sum(o.shape[axis] for o in operands)
        return Shaped((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.format)

    def axes(self, operands: Sequence[Shaped]) -> tuple[tuple[int | None, ...], ...]:
        """The joined axis can't be sliced: a slice of the result isn't made of slices of the operands."""
        axis = resolved_axis(self.name, self.axis, operands[0])
        return tuple(axes_but(o.shape, len(o.shape), axis) for o in operands)

    def contractions(self, operands: Sequence[Shaped]) -> tuple[Contraction, ...]:
        """None."""
        return ()

    def linear_in(self, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
        """In all operands taken together: with one held fixed it is affine."""
        return together == frozenset(range(len(operands)))

    def emit(
        self, builder: GraphBuilder, placement: Placement, operands: Sequence[Piece], result: Piece
    ) -> tuple[StageId, ...]:
        """A copy an operand."""
        axis = self.axis % len(result.shape)
        stores: list[StageId] = []
        start = 0
        for piece in operands:
            to = tuple(start if a == axis else 0 for a in range(len(result.shape)))
            stores += emit_copy(builder, placement, piece, result, CopyBoxes(target=to))
            start += piece.shape[axis]
        return tuple(stores)


class Slice(Struct, frozen=True):
    """Elements `start` to `stop` (not included) along `axis`."""

    axis: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """What messages call it."""
        return "slice"

    @property
    def unit(self) -> UnitKind:
        """The mover."""
        return "mover"

    def result(self, operands: Sequence[Shaped]) -> Shaped:
        """The part's shape; `KernelError` for one that isn't inside."""
        require_operands(self.name, operands, {1: "one operand"})
        (x,) = operands
        axis = resolved_axis(self.name, self.axis, x)
        if not 0 <= self.start < self.stop <= x.shape[axis]:
            raise KernelError(
                f"slice: elements {self.start} to {self.stop} along axis {axis} of {x}; it has 0 to {x.shape[axis]}, "
                "and a slice has at least one element"
            )
        return Shaped((*x.shape[:axis], self.stop - self.start, *x.shape[axis + 1 :]), x.format)

    def axes(self, operands: Sequence[Shaped]) -> tuple[tuple[int | None, ...], ...]:
        """All but the sliced axis go along."""
        (x,) = operands
        return (axes_but(x.shape, len(x.shape), resolved_axis(self.name, self.axis, x)),)

    def contractions(self, operands: Sequence[Shaped]) -> tuple[Contraction, ...]:
        """None."""
        return ()

    def linear_in(self, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
        """Copying is linear."""
        return True

    def emit(
        self, builder: GraphBuilder, placement: Placement, operands: Sequence[Piece], result: Piece
    ) -> tuple[StageId, ...]:
        """One copy."""
        axis = self.axis % len(result.shape)
        start = tuple(self.start if a == axis else 0 for a in range(len(result.shape)))
        return emit_copy(builder, placement, operands[0], result, CopyBoxes(source=start, shape=result.shape))


def concat(axis: int) -> Concat:
    """Joins any number of values along `axis`."""
    return Concat(axis)


def slice(axis: int, start: int, stop: int) -> Slice:
    """Elements `start` to `stop` along `axis`, both counted from the front."""
    return Slice(axis, start, stop)
