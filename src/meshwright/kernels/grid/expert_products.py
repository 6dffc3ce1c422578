"""The products of experts: tokens gathered by a list and multicast along a row of sites."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from meshwright.ir.build import GraphBuilder
from meshwright.ir.expression import Expr, Operand
from meshwright.ir.formats import ElementType
from meshwright.ir.ids import BufferId, StageId, TensorId
from meshwright.ir.operation import Generic, Matmul
from meshwright.ir.pattern import Affine, Gather, Loop
from meshwright.ir.records import Scalar, Site
from meshwright.kernels.grid.rectangle import Deal, SiteRectangle
from meshwright.kernels.grid.routing import chosen_places, chosen_rows
from meshwright.kernels.grid.spread import Source, spread
from meshwright.kernels.grid.tiles import Tile, tile_for
from meshwright.kernels.kernel import Piece
from meshwright.kernels.placement import Placement


class ExpertWork(Struct, frozen=True):
    """Sizes of a mixture of experts.

    width: of a token. hidden: between an expert's two products. columns: of the result.
    capacity: tokens of an expert, a multiple of `rows`, the tokens of a block. depth: blocks of a FIFO.
    scatter: whether results are stored where their choices are, and not where their experts are.
    """

    tokens: int
    width: int
    hidden: int
    columns: int
    experts: int
    top: int
    capacity: int
    rows: int
    depth: int
    scatter: bool

    @property
    def choices(self) -> int:
        """How many (token, expert) pairs there are."""
        return self.tokens * self.top

    @property
    def blocks(self) -> int:
        """Blocks of an expert's tokens."""
        return self.capacity // self.rows


class Routed(Struct, frozen=True):
    """The tensors that the router stores: experts chosen and their weights, both [tokens, top]."""

    choices: TensorId
    weights: TensorId
    ready: tuple[StageId, ...]


class _Lists(Struct, frozen=True):
    """For every expert its tokens and, to scatter by, their places among all choices and the weights there.

    Each is [experts, capacity].
    """

    tokens: TensorId
    scattered: tuple[TensorId, TensorId] | None


class _Part(Struct, frozen=True):
    """One of an expert's two products, [capacity, K] by [N, K], over a row of sites, each with its share of N."""

    expert: int
    row: SiteRectangle
    tile: Tile
    across: Deal
    steps: int
    ready: tuple[StageId, ...]

    @classmethod
    def of(
        cls,
        placement: Placement,
        work: ExpertWork,
        expert: int,
        row: SiteRectangle,
        sizes: tuple[int, int],
        ready: tuple[StageId, ...],
    ) -> _Part:
        """sizes: (N, K). ready: the stages that have stored the expert's lists."""
        n, k = sizes
        tile = tile_for(None, placement, work.rows, math.ceil(n / row.columns), k)
        across = Deal.over(math.ceil(n / tile[1]), row.columns)
        return cls(expert, row.first(1, across.lines), tile, across, math.ceil(k / tile[2]), ready)

    def column(self, place: int) -> int:
        """The first column of the result of the site at that place of the row."""
        return place * self.across.each * self.tile[1]


class _Expert(Struct, frozen=True):
    """What the stages of one expert are built with."""

    builder: GraphBuilder
    work: ExpertWork
    lists: _Lists
    part: _Part

    def loops(self, down: Sequence[int], across: Sequence[int], deep: Sequence[int] | None = None) -> tuple[Loop, ...]:
        """Blocks of tokens, a site's blocks of columns, and (unless left out) steps through K; strides as given."""
        outer = (Loop(self.work.blocks, tuple(down)), Loop(self.part.across.each, tuple(across)))
        return outer if deep is None else (*outer, Loop(self.part.steps, tuple(deep)))

    def list_buffer(self, site: Site, listed: TensorId, block: Sequence[int], steps: bool) -> BufferId:
        """A buffer with the list's entries of each block of tokens, again for all that is done with that block."""
        rows = self.work.rows
        loops = self.loops((0, rows), (0, 0), (0, 0) if steps else None)
        pattern = Affine((self.part.expert, 0), (1, rows), loops)
        buffer = self.builder.fifo(site, block, self.builder.element_type(listed), self.work.depth)
        self.builder.load(listed, pattern, buffer, after=self.part.ready)
        return buffer

    def sums(self, a: Source, b: Piece, out: ElementType, epilogue: Expr | None = None) -> dict[Site, BufferId]:
        """At each site the product of the tokens `a`, sent along the row, with its own columns of `b`[expert]."""
        builder, part = self.builder, self.part
        m, n, k = part.tile
        sent = spread(builder, a, part.row, (m, k), self.work.depth)
        made: dict[Site, BufferId] = {}
        for place, site in enumerate(part.row.sites):
            taken = builder.fifo(site, (n, k), builder.element_type(b.tensor), self.work.depth)
            loops = self.loops((0, 0, 0), (0, n, 0), (0, 0, k))
            columns = Affine((part.expert, part.column(place), 0), (1, n, k), loops, pad=0.0)
            builder.load(b.tensor, columns, taken, b.rank, b.ready)
            made[site] = builder.fifo(site, (m, n), out, self.work.depth)
            op = Matmul(part.tile, part.steps, b_transposed=True, epilogue=epilogue)
            builder.compute(op, (sent[site], taken), (made[site],))
        return made

    def emit_up(self, x: Piece, raised: Piece, hidden: TensorId, activation: Expr) -> tuple[StageId, ...]:
        """`activation(x[tokens] @ up.T)`, stored to `hidden`[expert]."""
        builder, part = self.builder, self.part
        m, n, k = part.tile
        wanted = self.list_buffer(part.row.site(0, 0), self.lists.tokens, (m,), steps=True)
        # A pad would also stand for rows that a slice of the tokens hasn't got; every row listed is there.
        pad = None if self.work.width % k == 0 else 0.0
        tokens = Gather(Affine((0, 0), (m, k), self.loops((0, 0), (0, 0), (0, k)), pad=pad), 0, wanted)
        made = self.sums(Source(x.tensor, tokens, x.ready), raised, builder.element_type(hidden), activation)
        return tuple(
            builder.store(
                hidden,
                Affine((part.expert, 0, part.column(place)), (1, m, n), self.loops((0, m, 0), (0, 0, n)), pad=0.0),
                made[site],
            )
            for place, site in enumerate(part.row.sites)
        )

    def emit_down(
        self, hidden: TensorId, stored: tuple[StageId, ...], lowered: Piece, results: TensorId
    ) -> tuple[StageId, ...]:
        """`hidden[expert] @ down.T`, stored to the expert's rows of the results, or weighted and scattered."""
        builder, part = self.builder, self.part
        m, n, k = part.tile
        tokens = Affine((part.expert, 0, 0), (1, m, k), self.loops((0, m, 0), (0, 0, 0), (0, 0, k)), pad=0.0)
        made = self.sums(Source(hidden, tokens, stored), lowered, ElementType.F32)
        if self.lists.scattered is not None:
            return self._scatter(made, results, *self.lists.scattered)
        first, loops = part.expert * self.work.capacity, self.loops((m, 0), (0, n))
        return tuple(
            builder.store(results, Affine((first, part.column(place)), (m, n), loops, pad=0.0), made[site])
            for place, site in enumerate(part.row.sites)
        )

    def _scatter(
        self, made: dict[Site, BufferId], results: TensorId, places_list: TensorId, weights_list: TensorId
    ) -> tuple[StageId, ...]:
        """Each row times its weight to its place; what has no place is cut."""
        builder, part = self.builder, self.part
        m, n, _ = part.tile
        stores: list[StageId] = []
        for place, site in enumerate(part.row.sites):
            weights = self.list_buffer(site, weights_list, (m, 1), steps=False)
            out = builder.fifo(site, (m, n), ElementType.F32, self.work.depth)
            builder.compute(Generic((Operand(0) * Operand(1),), ((0, 1), (0, 1))), (made[site], weights), (out,))
            places = self.list_buffer(site, places_list, (m,), steps=False)
            base = Affine((0, part.column(place)), (m, n), self.loops((0, 0), (0, n)), pad=0.0)
            stores.append(builder.store(results, Gather(base, 0, places), out))
        return tuple(stores)


def emit_experts(
    builder: GraphBuilder,
    placement: Placement,
    sites: SiteRectangle,
    work: ExpertWork,
    operands: tuple[Piece, Piece, Piece],
    routed: Routed,
    activation: Expr,
) -> Piece:
    """The results in float32: [experts * capacity, columns], or weighted and scattered, [tokens * top, columns].

    operands: x, up and down. Expert e works on row e of the sites, counted round and round.
    """
    x, raised, lowered = operands
    chip = placement.chip
    listed = (work.experts, work.capacity)
    tokens = builder.scratch("tokens of experts", listed, ElementType.I32, chip)
    scattered = None
    if work.scatter:
        places = builder.scratch("places of experts", listed, ElementType.I32, chip)
        scattered = places, builder.scratch("weights of places", listed, ElementType.F32, chip)
    lists = _Lists(tokens, scattered)
    hidden = builder.scratch("hidden", (*listed, work.hidden), builder.element_type(x.tensor), chip)
    shape = (work.choices if work.scatter else work.experts * work.capacity, work.columns)
    results = builder.scratch("results of experts", shape, ElementType.F32, chip)
    stores: list[StageId] = []
    for number in range(work.experts):
        row = sites.row(number % sites.rows)
        ready = _emit_lists(builder, work, number, row.site(0, 0), routed, lists)
        up = _Part.of(placement, work, number, row, (work.hidden, work.width), ready)
        stored = _Expert(builder, work, lists, up).emit_up(x, raised, hidden, activation)
        down = _Part.of(placement, work, number, row, (work.columns, work.hidden), ready)
        stores += _Expert(builder, work, lists, down).emit_down(hidden, stored, lowered, results)
    return Piece(results, 0, shape, tuple(stores))


def all_choices(builder: GraphBuilder, work: ExpertWork, site: Site, tensor: TensorId, routed: Routed) -> BufferId:
    """One of the router's tensors, whole, in a block at `site`."""
    everything = Affine((0, 0), (work.tokens, work.top))
    taken = builder.fifo(site, everything.box, builder.element_type(tensor), 1)
    builder.load(tensor, everything, taken, after=routed.ready)
    return taken


def _emit_lists(
    builder: GraphBuilder, work: ExpertWork, expert: int, site: Site, routed: Routed, lists: _Lists
) -> tuple[StageId, ...]:
    """Reads all choices at once and stores the expert's lists."""
    scatter = lists.scattered is not None
    body = (chosen_places if scatter else chosen_rows)(expert, work.choices, work.top, work.capacity)
    read = (routed.choices, routed.weights) if scatter else (routed.choices,)
    taken = [all_choices(builder, work, site, tensor, routed) for tensor in read]
    stores: list[StageId] = []
    made: list[BufferId] = []
    for tensor in (lists.tokens, *(lists.scattered or ())):
        made.append(builder.fifo(site, (work.capacity,), builder.element_type(tensor), 1))
        stores.append(builder.store(tensor, Affine((expert, 0), (1, work.capacity)), made[-1]))
    builder.stage(Scalar(body), taken, made)
    return tuple(stores)
