"""A mixture of experts on a rectangle of sites: every row of sites works for the experts dealt to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from meshwright.errors import KernelError
from meshwright.ir import library
from meshwright.ir.build import GraphBuilder
from meshwright.ir.expression import Expr
from meshwright.ir.ids import StageId
from meshwright.ir.pool import Pool
from meshwright.kernels.grid.expert_products import ExpertWork, emit_experts
from meshwright.kernels.grid.expert_sums import emit_sum
from meshwright.kernels.grid.rectangle import SiteRectangle
from meshwright.kernels.grid.router import emit_router
from meshwright.kernels.grid.tiles import require_depth, tile_for, up
from meshwright.kernels.grid.tracing import traced
from meshwright.kernels.kernel import Contraction, Piece, Shaped, UnitKind
from meshwright.kernels.operands import require_floats, require_operands
from meshwright.kernels.placement import Placement

_NAME: Final = "mixture of experts"


class MixtureOfExperts(Struct, frozen=True):
    """For every token the `top` experts of the highest score, their results weighted and added.

    Operands: x [T, D]; router [E, D]; up [E, H, D]; down [E, N, H]. Result [T, N]: with the scores `x @ router.T`, the
    sum over the chosen experts, the highest score first, of weight * (activation(x @ up[e].T) @ down[e].T). Weights are
    the softmax of the chosen scores. Of equal scores the expert with the lower number comes first.

    activation: an expression over operand 0. capacity: how many tokens an expert can take, rounded up to whole blocks;
    None for all. An expert that more tokens choose is refused when the graph runs, and no token is dropped. A token
    with fewer than `top` scores that are numbers is refused as well. The lists of an expert's tokens are made by a
    scalar program, whose bound on steps allows about 80,000 choices. depth: blocks of a FIFO.

    scatter: what an expert gives is weighted where it is made and stored to the places of its choices. Where that is
    only the scores decide, so a certificate can't: such a graph needs waivers of `ReadAfterWrite` and `WrittenOnce`,
    and the evaluator asks when it runs. Otherwise results stay in the order of the experts' lists and the sum looks
    them up; the bits are the same.

    Scores, sums and weighted results are float32 on a grid; what an expert has between its products is rounded to the
    element type of x, and so is the result.
    """

    top: int
    activation: Expr
    capacity: int | None = None
    depth: int = 2
    scatter: bool = False

    @property
    def name(self) -> str:
        """What messages call it."""
        return _NAME

    @property
    def unit(self) -> UnitKind:
        """Matrix units do nearly all of the work."""
        return "matrix"

    def result(self, operands: Sequence[Shaped]) -> Shaped:
        """A row of `down`'s for every token; `KernelError` where operands don't fit or `top` is too many."""
        require_operands(_NAME, operands, {4: "x, router, up and down"})
        require_floats(_NAME, operands)
        x, router, raised, lowered = operands
        fits = (len(x.shape), len(router.shape), len(raised.shape), len(lowered.shape)) == (2, 2, 3, 3)
        if fits:
            (experts, width), hidden = router.shape, raised.shape[1]
            fits = x.shape[1] == width and raised.shape[::2] == (experts, width)
            fits = fits and lowered.shape[::2] == (experts, hidden)
        if not fits:
            raise KernelError(
                f"{_NAME}: x is {x}, router {router}, up {raised} and down {lowered}; they are [tokens, width], "
                "[experts, width], [experts, hidden, width] and [experts, columns, hidden]"
            )
        if not 1 <= self.top <= router.shape[0]:
            raise KernelError(
                f"{_NAME}: the top {self.top} of {router.shape[0]} experts; 1 to {router.shape[0]} can be chosen"
            )
        return Shaped((x.shape[0], lowered.shape[1]), x.format)

    def axes(self, operands: Sequence[Shaped]) -> tuple[tuple[int | None, ...], ...]:
        """Tokens go along, and so do the rows of `down`; an expert can't be left out, as it may be chosen."""
        return (0, None), (None, None), (None, None, None), (None, 1, None)

    def contractions(self, operands: Sequence[Shaped]) -> tuple[Contraction, ...]:
        """The hidden axis of `up` and `down`: whichever slice, the router chooses the same experts."""
        return (Contraction((None, None, 1, 2), Pool.SUM),)

    def linear_in(self, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
        """In `down`."""
        return together == frozenset((3,))

    def emit(
        self, builder: GraphBuilder, placement: Placement, operands: Sequence[Piece], result: Piece
    ) -> tuple[StageId, ...]:
        """Router, lists of tokens, both products of every expert, and the weighted sum."""
        x, router, raised, lowered = operands
        (tokens, width), (experts, hidden) = x.shape, raised.shape[:2]
        sites = SiteRectangle.of(placement, what=_NAME)
        rows = tile_for(None, placement, min(self.capacity or tokens, tokens), 1, 1)[0]
        capacity = up(min(self.capacity or tokens, tokens), rows)
        work = ExpertWork(
            tokens, width, hidden, lowered.shape[1], experts, self.top, capacity, rows, self.depth, self.scatter
        )
        routed = emit_router(builder, placement, work, (x, router))
        results = emit_experts(builder, placement, sites, work, (x, raised, lowered), routed, self.activation)
        return emit_sum(builder, placement, sites, work, results, routed, result)


def mixture_of_experts(
    top: int,
    activation: Callable[[Expr], Expr | float] = library.silu,
    capacity: int | None = None,
    depth: int = 2,
    scatter: bool = False,
) -> MixtureOfExperts:
    """A `MixtureOfExperts` with a traced activation.

    Raises `KernelError` for a top, capacity or depth below 1, or an activation that can't be traced.
    """
    if top < 1 or (capacity is not None and capacity < 1):
        raise KernelError(f"mixture_of_experts(top={top}, capacity={capacity}): both are at least 1")
    require_depth("mixture_of_experts", depth)
    return MixtureOfExperts(top, traced("mixture_of_experts: the activation", activation), capacity, depth, scatter)
