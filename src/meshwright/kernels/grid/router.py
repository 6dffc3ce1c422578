"""The router of a mixture of experts: scores, the experts that each token chooses, and their weights."""

from __future__ import annotations

import math

from msgspec import Struct

from meshwright.ir import library
from meshwright.ir.build import GraphBuilder
from meshwright.ir.expression import Operand
from meshwright.ir.formats import ElementType
from meshwright.ir.ids import BufferId, StageId
from meshwright.ir.operation import Generic, Matmul, Reduce
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import Scalar, Site
from meshwright.kernels.grid.expert_products import ExpertWork, Routed
from meshwright.kernels.grid.routing import top_scores
from meshwright.kernels.grid.tiles import Tile, tile_for, unit_tile
from meshwright.kernels.kernel import Piece
from meshwright.kernels.nest import Nest
from meshwright.kernels.placement import Placement


class _Chosen(Struct, frozen=True):
    """Buffers of one site: the experts chosen, their weights."""

    experts: BufferId
    weights: BufferId


def emit_router(builder: GraphBuilder, placement: Placement, work: ExpertWork, operands: tuple[Piece, Piece]) -> Routed:
    """At every site a share of the tokens: scores of all experts, the top of them, and the softmax of those."""
    chip = placement.chip
    choices = builder.scratch("chosen experts", (work.tokens, work.top), ElementType.I32, chip)
    weights = builder.scratch("weights of experts", (work.tokens, work.top), ElementType.F32, chip)
    rows = unit_tile(placement)[0]
    tile = tile_for(None, placement, rows, work.experts, work.width)
    # All scores of a token in one block: they are compared with each other.
    tile = (rows, math.ceil(work.experts / tile[1]) * tile[1], tile[2])
    placement.check_tile(tile)
    sites = placement.matrix_sites()
    nest = Nest.over((work.tokens, work.top), (rows, work.top))
    stores: list[StageId] = []
    for share, site in zip(nest.dealt(len(sites)), sites, strict=False):
        scores = _scores(builder, work, site, share, tile, operands)
        chosen = _choose(builder, work, site, tile, scores)
        pattern = share.pattern((0, 1), (work.tokens, work.top))
        stores.append(builder.store(choices, pattern, chosen.experts))
        stores.append(builder.store(weights, pattern, chosen.weights))
    return Routed(choices, weights, tuple(stores))


def _scores(
    builder: GraphBuilder, work: ExpertWork, site: Site, share: Nest, tile: Tile, operands: tuple[Piece, Piece]
) -> BufferId:
    x, router = operands
    m, n, k = tile
    steps = math.ceil(work.width / k)
    a = builder.fifo(site, (m, k), builder.element_type(x.tensor), work.depth)
    b = builder.fifo(site, (n, k), builder.element_type(router.tensor), work.depth)
    rows = Affine((share.first[0] * m, 0), (m, k), (Loop(share.count[0], (m, 0)), Loop(steps, (0, k))), pad=0.0)
    builder.load(x.tensor, rows, a, x.rank, x.ready)
    all_experts = Affine((0, 0), (n, k), (Loop(share.count[0], (0, 0)), Loop(steps, (0, k))), pad=0.0)
    builder.load(router.tensor, all_experts, b, router.rank, router.ready)
    scores = builder.fifo(site, (m, n), ElementType.F32, work.depth)
    builder.compute(Matmul(tile, steps, b_transposed=True), (a, b), (scores,))
    return scores


def _choose(builder: GraphBuilder, work: ExpertWork, site: Site, tile: Tile, scores: BufferId) -> _Chosen:
    m, n, _ = tile

    def floats(columns: int) -> BufferId:
        return builder.fifo(site, (m, columns), ElementType.F32, work.depth)

    experts = builder.fifo(site, (m, work.top), ElementType.I32, work.depth)
    best, largest = floats(work.top), floats(1)
    builder.stage(Scalar(top_scores(m, n, work.experts, work.top)), (scores,), (experts, best, largest))
    power = library.exp(Operand(0) - Operand(1))
    powers, again, total, weights = floats(work.top), floats(work.top), floats(1), floats(work.top)
    builder.compute(Generic((power, power), ((0, 1), (0, 1))), (best, largest), (powers, again))
    builder.compute(Reduce(Pool.SUM, (1,)), (again,), (total,))
    share = library.divide(Operand(0), Operand(1))
    builder.compute(Generic((share,), ((0, 1), (0, 1))), (powers, total), (weights,))
    return _Chosen(experts, weights)
