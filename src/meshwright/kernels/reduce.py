"""Sums, means, maxima and minima along an axis, on vector units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from meshwright.errors import KernelError
from meshwright.ir.build import GraphBuilder
from meshwright.ir.expression import Operand
from meshwright.ir.ids import StageId
from meshwright.ir.operation import Generic, Reduce
from meshwright.ir.pool import Pool
from meshwright.ir.records import Site
from meshwright.kernels.blocks import at_most, dividing, filled
from meshwright.kernels.kernel import Contraction, Piece, Shaped, UnitKind
from meshwright.kernels.nest import Nest
from meshwright.kernels.operands import require_floats, require_operands, resolved_axis
from meshwright.kernels.placement import Placement
from meshwright.kernels.rows import in_parts

Fold = Literal["sum", "mean", "max", "min"]

_POOLS: Final[dict[Fold, Pool]] = {"sum": Pool.SUM, "mean": Pool.SUM, "max": Pool.MAX, "min": Pool.MIN}


class Reduction(Struct, frozen=True):
    """`fold` along `axis`, which stays with size 1 if it is kept and goes otherwise."""

    fold: Fold
    axis: int = -1
    keep: bool = False

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"reduce {self.fold}"

    @property
    def unit(self) -> UnitKind:
        """Vector units fold."""
        return "vector"

    def result(self, operands: Sequence[Shaped]) -> Shaped:
        """The operand's shape without the axis; `KernelError` for one that isn't there or has no elements."""
        require_operands(self.name, operands, {1: "one operand"})
        require_floats(self.name, operands)
        (x,) = operands
        axis = resolved_axis(self.name, self.axis, x)
        return Shaped((*x.shape[:axis], *((1,) if self.keep else ()), *x.shape[axis + 1 :]), x.format)

    def axes(self, operands: Sequence[Shaped]) -> tuple[tuple[int | None, ...], ...]:
        """The folded axis is mixed; those after it move up unless it is kept."""
        axis = resolved_axis(self.name, self.axis, operands[0])
        rank = len(operands[0].shape)
        return (tuple(None if a == axis else a - (a > axis and not self.keep) for a in range(rank)),)

    def contractions(self, operands: Sequence[Shaped]) -> tuple[Contraction, ...]:
        """The folded axis, unless the fold is a mean: the means of slices don't add up to the mean."""
        if self.fold == "mean":
            return ()
        return (Contraction((resolved_axis(self.name, self.axis, operands[0]),), _POOLS[self.fold]),)

    def linear_in(self, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
        """Sums and means are."""
        return self.fold in ("sum", "mean")

    def emit(
        self, builder: GraphBuilder, placement: Placement, operands: Sequence[Piece], result: Piece
    ) -> tuple[StageId, ...]:
        """Loads, a Reduce and a store at each vector unit that has a share; long rows are folded part by part."""
        sites = placement.vector_sites()
        (x,) = operands
        axis = self.axis % len(x.shape)
        room = placement.vector_elements(2)
        part = dividing(x.shape[axis], room)
        rows = at_most(room // part, math.prod(x.shape) // x.shape[axis], len(sites))
        nest = Nest.over(x.shape, filled(x.shape, rows, {axis: x.shape[axis]}))
        shares = zip(nest.dealt(len(sites)), sites, strict=False)
        return tuple(self._emit_share(builder, placement, (x, result), (share, axis, part), at) for share, at in shares)

    def _emit_share(
        self,
        builder: GraphBuilder,
        placement: Placement,
        pieces: tuple[Piece, Piece],
        cut: tuple[Nest, int, int],
        site: Site,
    ) -> StageId:
        (x, result), (nest, axis, part) = pieces, cut
        parts = x.shape[axis] // part
        lined_up = range(len(x.shape))
        pattern = in_parts(nest.pattern(lined_up, x.shape), lined_up, x.shape, axis, parts)
        taken = builder.fifo(site, pattern.box, placement.value_format)
        builder.load(x.tensor, pattern, taken, x.rank, x.ready)
        block = tuple(1 if a == axis else size for a, size in enumerate(nest.box))
        out = builder.fifo(site, block, placement.value_format)
        folded = builder.fifo(site, block, placement.lane_format) if self.fold == "mean" else out
        builder.compute(Reduce(_POOLS[self.fold], (axis,), parts), (taken,), (folded,))
        if self.fold == "mean":
            share = Operand(0) * (1.0 / x.shape[axis])
            builder.compute(Generic.elementwise(share, 1, len(block)), (folded,), (out,))
        left = [a for a in lined_up if a != axis or self.keep]
        return builder.store(result.tensor, nest.pattern(left, result.shape), out, result.rank)


def reduce(pool: Fold | Pool, axis: int = -1, keep: bool = False) -> Reduction:
    """Folds one axis: "sum", "mean", "max" or "min" (or the pool). keep: whether the axis stays, with size 1.

    Raises `KernelError` for another fold.
    """
    if pool not in _POOLS:
        raise KernelError(f"reduce: there is no fold {str(pool)!r}; there are {', '.join(_POOLS)}")
    fold: Fold = pool.value if isinstance(pool, Pool) else pool  # pyright: ignore[reportAssignmentType]
    return Reduction(fold, axis, keep)
