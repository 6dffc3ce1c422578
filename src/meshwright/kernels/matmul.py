"""The matrix product `a @ b.T`, K last in both, on matrix units; alone, or summed over chips in their accumulators."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from meshwright.errors import KernelError
from meshwright.ir.build import GraphBuilder
from meshwright.ir.expression import Operand
from meshwright.ir.ids import BufferId, StageId, TensorId
from meshwright.ir.operation import Generic, Matmul, Unit, combine
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Site
from meshwright.kernels.kernel import Contraction, Piece, Shaped, UnitKind
from meshwright.kernels.nest import Nest
from meshwright.kernels.operands import require_floats, require_operands
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
        require_operands("matmul", operands)
        require_floats("matmul", operands)
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

    def contractions(self, operands: Sequence[Shaped]) -> tuple[Contraction, ...]:
        """K of both: a slice of it on each rank gives partial sums."""
        a, b = operands
        return (Contraction((len(a.shape) - 1, len(b.shape) - 1), Pool.SUM),)

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
    if stated is not None:
        placement.check_tile(stated)
        return stated
    m, n, k = a.shape[-2], b.shape[-2], a.shape[-1]
    # With leading axes there is work for every unit without making blocks narrow; but no block spans two matrices.
    together = placement.matmul_tile(math.prod(a.shape[:-1]), n, k)
    return together if together[0] <= m else placement.matmul_tile(m, n, k)


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


class ResidentShare(Struct, frozen=True):
    """The part of a product that one cluster keeps in its accumulator: its output blocks and the buffer."""

    nest: Nest
    buffer: BufferId


def emit_opened(
    builder: GraphBuilder,
    placement: Placement,
    operands: Sequence[Piece],
    shape: Sequence[int],
    tile: tuple[int, int, int],
    hands: int,
) -> tuple[ResidentShare, ...]:
    """A product (of `shape`) that stays in accumulators: every block is opened, summed over this chip's K, and waits.

    hands: over how many matrix units the blocks are dealt; the same on every chip whose sums are to meet.
    Raises `PlacementError` for a tile that the accumulator can't hold.
    """
    placement.check_tile(tile)
    shares: list[ResidentShare] = []
    for nest, site in zip(result_nest(shape, tile).dealt(hands), placement.matrix_sites(), strict=False):
        a, b, op = _operands(builder, placement, nest, site, tile, operands)
        accumulator = builder.accumulator(site, tile[:2])
        builder.compute(op, (a, b), (accumulator,))
        shares.append(ResidentShare(nest, accumulator))
    return tuple(shares)


def emit_added(
    builder: GraphBuilder, result: TensorId, into: Sequence[ResidentShare], arriving: Sequence[ResidentShare]
) -> None:
    """Every resident block of `arriving` is sent and added into the one of `into`, in that accumulator."""
    fold = combine(2, 2, Pool.SUM, Unit.ACCUMULATOR)
    for mine, theirs in zip(into, arriving, strict=True):
        kind = AllReduce(Pool.SUM, result, fold)
        builder.stage(kind, (mine.buffer, theirs.buffer), (mine.buffer,))


def emit_drained(
    builder: GraphBuilder, placement: Placement, resident: Sequence[ResidentShare], result: Piece
) -> tuple[StageId, ...]:
    """The sums leave their accumulators, are rounded to the machine's value format and stored."""
    stores: list[StageId] = []
    for share in resident:
        site, block = builder.place(share.buffer), builder.block(share.buffer)
        out = builder.fifo(site, block, placement.value_format)
        builder.compute(Generic.elementwise(Operand(0), 1, 2), (share.buffer,), (out,))
        pattern = share.nest.pattern(range(len(result.shape)), result.shape)
        stores.append(builder.store(result.tensor, pattern, out, result.rank))
    return tuple(stores)
