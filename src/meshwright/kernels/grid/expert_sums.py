"""The weighted sum of what a token's experts give, in the order in which they were chosen."""

from __future__ import annotations

from msgspec import Struct

from meshwright.ir.build import GraphBuilder
from meshwright.ir.expression import Operand
from meshwright.ir.formats import ElementType
from meshwright.ir.ids import BufferId, StageId, TensorId
from meshwright.ir.operation import Generic, Reduce
from meshwright.ir.pattern import Affine, Gather, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import Scalar, Site
from meshwright.kernels.grid.expert_products import ExpertWork, Routed, all_choices
from meshwright.kernels.grid.rectangle import SiteRectangle
from meshwright.kernels.grid.routing import rows_of_choices
from meshwright.kernels.grid.tiles import unit_tile
from meshwright.kernels.kernel import Piece
from meshwright.kernels.nest import Nest
from meshwright.kernels.placement import Placement


class _Rows(Struct, frozen=True):
    """Where results are: [experts + choices], of which the choices' rows come last, and the stage that stores it."""

    tensor: TensorId
    ready: tuple[StageId, ...]


class _Share(Struct, frozen=True):
    """One site's blocks of the result, each of (m, n)."""

    builder: GraphBuilder
    work: ExpertWork
    site: Site
    nest: Nest

    def loops(self, down: tuple[int, ...], across: tuple[int, ...], choice: tuple[int, ...]) -> tuple[Loop, ...]:
        """Blocks of tokens, blocks of columns, and choices; strides as given."""
        counts = (*self.nest.count, self.work.top)
        return tuple(Loop(count, stride) for count, stride in zip(counts, (down, across, choice), strict=True))

    @property
    def corner(self) -> tuple[int, int]:
        """The first token and the first column."""
        (first_down, first_across), (m, n) = self.nest.first, self.nest.box
        return first_down * m, first_across * n

    def scattered(self, results: Piece) -> BufferId:
        """The weighted results, which lie by token and choice."""
        (m, n), (token, column), top = self.nest.box, self.corner, self.work.top
        taken = self.builder.fifo(self.site, (1, m, n), ElementType.F32, self.work.depth)
        loops = self.loops((m * top, 0), (0, n), (1, 0))
        chosen = Affine((token * top, column), (m, n), loops, step=(top, 1), pad=0.0)
        self.builder.load(results.tensor, chosen, taken, results.rank, results.ready)
        return taken

    def gathered(self, results: Piece, rows: _Rows, routed: Routed) -> BufferId:
        """The results looked up by row, times the weights of their choices."""
        builder, depth = self.builder, self.work.depth
        (m, n), (token, column), top = self.nest.box, self.corner, self.work.top
        wanted = builder.fifo(self.site, (m,), ElementType.I32, depth)
        # Past the last token row 0 is looked up, and what comes of it cut.
        index = Affine(
            (self.work.experts + token * top,), (m,), self.loops((m * top,), (0,), (1,)), step=(top,), pad=0.0
        )
        builder.load(rows.tensor, index, wanted, after=rows.ready)
        found = builder.fifo(self.site, (1, m, n), ElementType.F32, depth)
        pad = None if self.work.columns % n == 0 else 0.0
        base = Affine((0, column), (m, n), self.loops((0, 0), (0, n), (0, 0)), pad=pad)
        builder.load(results.tensor, Gather(base, 0, wanted), found, results.rank, results.ready)
        weights = builder.fifo(self.site, (1, m, 1), ElementType.F32, depth)
        of_choice = Affine((token, 0), (m, 1), self.loops((m, 0), (0, 0), (0, 1)), pad=0.0)
        builder.load(routed.weights, of_choice, weights, after=routed.ready)
        weighted = builder.fifo(self.site, (1, m, n), ElementType.F32, depth)
        axes = (0, 1, 2)
        builder.compute(Generic((Operand(0) * Operand(1),), (axes, axes)), (found, weights), (weighted,))
        return weighted


def emit_sum(
    builder: GraphBuilder,
    placement: Placement,
    sites: SiteRectangle,
    work: ExpertWork,
    results: Piece,
    routed: Routed,
    result: Piece,
) -> tuple[StageId, ...]:
    """At every site a share of the tokens: what each of their choices gives, added up from the first to the last."""
    rows = None if work.scatter else _emit_rows(builder, work, sites.site(0, 0), routed, placement.chip)
    m, n, _ = unit_tile(placement)
    element = builder.element_type(result.tensor)
    stores: list[StageId] = []
    dealt = Nest.over(result.shape, (m, n)).dealt(len(sites.sites))
    for nest, site in zip(dealt, sites.sites, strict=False):
        share = _Share(builder, work, site, nest)
        taken = share.scattered(results) if rows is None else share.gathered(results, rows, routed)
        out = builder.fifo(site, (1, m, n), element, work.depth)
        builder.compute(Reduce(Pool.SUM, (0,), work.top), (taken,), (out,))
        stores.append(builder.store(result.tensor, nest.pattern((0, 1), result.shape), out, result.rank))
    return tuple(stores)


def _emit_rows(builder: GraphBuilder, work: ExpertWork, site: Site, routed: Routed, chip: int) -> _Rows:
    size = work.experts + work.choices
    rows = builder.scratch("rows of choices", (size,), ElementType.I32, chip)
    taken = all_choices(builder, work, site, routed.choices, routed)
    made = builder.fifo(site, (size,), ElementType.I32, 1)
    builder.stage(Scalar(rows_of_choices(work.choices, work.experts, work.capacity)), (taken,), (made,))
    return _Rows(rows, (builder.store(rows, Affine((0,), (size,)), made),))
