"""The matrix product `a @ b.T`, K last in both, on matrix units; alone, or summed over chips in their accumulators."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from meshwright.errors import KernelError
from meshwright.ir.build import GraphBuilder
from meshwright.ir.expression import Operand
from meshwright.ir.ids import BufferId, StageId
from meshwright.ir.operation import Generic, Matmul, Unit, combine
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Site
from meshwright.kernels.kernel import Piece, Shaped, UnitKind
from meshwright.kernels.nest import Nest
from meshwright.kernels.placement import Placement


class MatrixProduct(Struct, frozen=True):
    """`a @ b.T`: a [..., M, K] and b [N, K], or with the same leading axes b [..., N, K], give [..., M, N].

    tile: (m, n, k) of a block; None for the placement's own choice.
    """

    tile: tuple[int, int, int] | None = None

    @property
    def name(self) -> str:
        """What messages call it."""
        return "matmul"

    @property
    def unit(self) -> UnitKind:
        """Matrix units do products."""
        return "matrix"

    def result(self, operands: Sequence[Shaped]) -> Shaped:
        """The shape of the product; `KernelError` where K or the leading axes differ."""
        if len(operands) != 2:
            raise KernelError(f"matmul takes a and b, not {len(operands)} operands")
        a, b = operands
        if len(a.shape) < 2 or len(b.shape) < 2:
            raise KernelError(f"matmul: `a` is {a} and `b` is {b}; both need at least two axes, K last")
        if a.shape[-1] != b.shape[-1]:
            raise KernelError(
                f"matmul: `a` is {a} and `b` is {b}: the last axes, the contraction, have {a.shape[-1]} and "
                f"{b.shape[-1]} elements. The product is a @ b.T: `b` is stored [N][K]"
            )
        if len(b.shape) > 2 and a.shape[:-2] != b.shape[:-2]:
            raise KernelError(
                f"matmul: `a` is {a} and `b` is {b}: leading axes of both have to be equal, or b have none"
            )
        return Shaped((*a.shape[:-1], b.shape[-2]), a.format)

    def axes(self, operands: Sequence[Shaped]) -> tuple[tuple[int | None, ...], ...]:
        """K is mixed; rows of `a` are rows of the result, rows of `b` its columns, leading axes go along."""
        rank = len(operands[0].shape)
        leading = tuple(range(rank - 2))
        b_leading = leading if len(operands[1].shape) > 2 else ()
        return (*leading, rank - 2, None), (*b_leading, rank - 1, None)

    def linear_in(self, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
        """In each operand while the other is fixed."""
        return len(together) == 1

    def emit(
        self, builder: GraphBuilder, placement: Placement, operands: Sequence[Piece], result: Piece
    ) -> tuple[StageId, ...]:
        """Loads, one Matmul and a store at each matrix unit that has a share."""
        sites = placement.matrix_sites()
        tile = tile_of(self.tile, placement, operands)
        stores: list[StageId] = []
        for share, site in zip(result_nest(result.shape, tile).dealt(len(sites)), sites, strict=False):
            a, b, op = _operands(builder, placement, share, site, tile, operands)
            out = builder.fifo(site, tile[:2], placement.value_format)
            builder.compute(op, (a, b), (out,))
            pattern = share.pattern(range(len(result.shape)), result.shape)
            stores.append(builder.store(result.tensor, pattern, out, result.rank))
        return tuple(stores)


def tile_of(
    stated: tuple[int, int, int] | None, placement: Placement, operands: Sequence[Piece]
) -> tuple[int, int, int]:
    """The tile that is stated, checked, or the placement's own for these operands."""
    a, b = operands
    if stated is None:
        return placement.matmul_tile(a.shape[-2], b.shape[-2], a.shape[-1])
    placement.check_tile(stated)
    return stated


def result_nest(shape: Sequence[int], tile: tuple[int, int, int]) -> Nest:
    """The output blocks of a product of `shape`."""
    return Nest.over(shape, (*(1,) * (len(shape) - 2), *tile[:2]))


def _operands(
    builder: GraphBuilder,
    placement: Placement,
    share: Nest,
    site: Site,
    tile: tuple[int, int, int],
    operands: Sequence[Piece],
) -> tuple[BufferId, BufferId, Matmul]:
    """Buffers and loads of both operands at one site, and the Matmul that takes them."""
    a, b = operands
    kinds = [Shaped(p.shape, placement.value_format) for p in operands]
    axes_a, axes_b = MatrixProduct().axes(kinds)
    m, n, k = tile
    k_axis = len(a.shape) - 1
    fifo_a = builder.fifo(site, (m, k), placement.value_format)
    fifo_b = builder.fifo(site, (n, k), placement.value_format)
    builder.load(a.tensor, share.pattern(axes_a, a.shape, [(k_axis, k)]), fifo_a, a.rank, a.ready)
    pattern_b = share.pattern(axes_b, b.shape, [(len(b.shape) - 1, k)])
    builder.load(b.tensor, pattern_b, fifo_b, b.rank, b.ready)
    return fifo_a, fifo_b, Matmul((m, n, k), math.ceil(a.shape[-1] / k), b_transposed=True)


def emit_summed(
    builder: GraphBuilder,
    placements: Sequence[Placement],
    operands: Sequence[tuple[Piece, Piece]],
    additions: Sequence[tuple[int, int]],
    result: Piece,
    tile: tuple[int, int, int],
) -> tuple[StageId, ...]:
    """A product whose contraction is split over ranks, summed in their accumulators.

    placements, operands: one a rank, each with its slice of K. additions: pairs (from, to) of ranks, in the order in
    which the sum moves: the tile of `from` is added into the resident tile of `to`; the last `to` holds the sum and drains it
    into `result`. Raises `PlacementError` for a tile that the accumulator can't hold.
    """
    for placement in placements:
        placement.check_tile(tile)
    root = additions[-1][1] if additions else 0
    units = [p.matrix_sites() for p in placements]
    hands = min(map(len, units))
    stores: list[StageId] = []
    for number, share in enumerate(result_nest(result.shape, tile).dealt(hands)):
        resident: list[BufferId] = []
        for placement, sites, pieces in zip(placements, units, operands, strict=True):
            a, b, op = _operands(builder, placement, share, sites[number], tile, pieces)
            resident.append(builder.accumulator(sites[number], tile[:2]))
            builder.compute(op, (a, b), (resident[-1],))
        fold = combine(2, 2, Pool.SUM, Unit.ACCUMULATOR)
        for source, target in additions:
            kind = AllReduce(Pool.SUM, result.tensor, fold)
            builder.stage(kind, (resident[target], resident[source]), (resident[target],))
        out = builder.fifo(units[root][number], tile[:2], placements[root].value_format)
        builder.compute(Generic.elementwise(Operand(0), 1, 2), (resident[root],), (out,))
        pattern = share.pattern(range(len(result.shape)), result.shape)
        stores.append(builder.store(result.tensor, pattern, out, result.rank))
    return tuple(stores)
