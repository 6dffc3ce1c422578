"""Two-dimensional convolution as a matrix product whose operand is read by pattern: no patch is ever written down."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from meshwright.errors import KernelError
from meshwright.ir.build import GraphBuilder
from meshwright.ir.ids import BufferId, StageId
from meshwright.ir.operation import Matmul
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import Site
from meshwright.kernels.kernel import Contraction, Piece, Shaped, UnitKind
from meshwright.kernels.nest import Nest
from meshwright.kernels.operands import require_floats, require_operands
from meshwright.kernels.placement import Placement

Pair = tuple[int, int]


class Convolution(Struct, frozen=True):
    """x `[batch, height, width, channels]` with weights `[filters, rows, columns, channels]`.

    Gives `[batch, height, width, filters]`. padding: zeros on both sides of height and of width. The contraction goes
    row by row of the kernel, column by column, and through the channels of each position, which are filled up with
    zeros to the machine's blocks of the contraction.
    """

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)

    @property
    def name(self) -> str:
        """What messages call it."""
        return "convolution"

    @property
    def unit(self) -> UnitKind:
        """Matrix units."""
        return "matrix"

    def result(self, operands: Sequence[Shaped]) -> Shaped:
        """Its shape; `KernelError` where channels differ or the kernel is larger than the padded input."""
        require_operands(self.name, operands, {2: "x and weights"})
        require_floats(self.name, operands)
        x, weights = operands
        if len(x.shape) != 4 or len(weights.shape) != 4 or x.shape[3] != weights.shape[3]:
            raise KernelError(
                f"convolution: x is {x} and the weights {weights}; x is [batch, height, width, channels] and weights "
                "are [filters, rows, columns, channels], of the same channels"
            )
        sizes: list[int] = []
        for axis in (0, 1):
            covered = self.dilation[axis] * (weights.shape[1 + axis] - 1) + 1
            there = x.shape[1 + axis] + 2 * self.padding[axis]
            if there < covered:
                raise KernelError(
                    f"convolution: the weights {weights} cover {covered} of {('rows', 'columns')[axis]}, and x {x} "
                    f"has {there} with its padding"
                )
            sizes.append((there - covered) // self.stride[axis] + 1)
        return Shaped((x.shape[0], *sizes, weights.shape[0]), x.format)

    def axes(self, operands: Sequence[Shaped]) -> tuple[tuple[int | None, ...], ...]:
        """Batch and filters go along; neighbours in height and width meet, and channels are summed."""
        return (0, None, None, None), (3, None, None, None)

    def contractions(self, operands: Sequence[Shaped]) -> tuple[Contraction, ...]:
        """The channels of both."""
        return (Contraction((3, 3), Pool.SUM),)

    def linear_in(self, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
        """In each operand while the other is fixed."""
        return len(together) == 1

    def emit(
        self, builder: GraphBuilder, placement: Placement, operands: Sequence[Piece], result: Piece
    ) -> tuple[StageId, ...]:
        """Loads, one Matmul and a store at each matrix unit that has a share."""
        sites = placement.matrix_sites()
        channels = operands[0].shape[3]
        # Rows of a block go along one axis: the one that needs the fewest blocks.
        along, tile = min(
            ((axis, placement.matmul_tile(result.shape[axis], result.shape[3], channels)) for axis in (2, 1, 0)),
            key=lambda choice: self._blocks(result.shape, *choice),
        )
        box = (*(tile[0] if axis == along else 1 for axis in range(3)), tile[1])
        stores: list[StageId] = []
        for share, site in zip(Nest.over(result.shape, box).dealt(len(sites)), sites, strict=False):
            out = self._product(builder, placement, share, site, tile, operands)
            pattern = share.pattern(range(4), result.shape)
            stores.append(builder.store(result.tensor, pattern, out, result.rank))
        return tuple(stores)

    @staticmethod
    def _blocks(shape: Sequence[int], along: int, tile: tuple[int, int, int]) -> int:
        """How many output blocks there are with the rows of a block along that axis."""
        others = math.prod(size for axis, size in enumerate(shape[:3]) if axis != along)
        return others * math.ceil(shape[along] / tile[0]) * math.ceil(shape[3] / tile[1])

    def _product(
        self,
        builder: GraphBuilder,
        placement: Placement,
        share: Nest,
        site: Site,
        tile: tuple[int, int, int],
        operands: Sequence[Piece],
    ) -> BufferId:
        x, weights = operands
        m, n, k = tile
        _, rows, columns, channels = weights.shape
        taps = (rows, columns, math.ceil(channels / k))
        fifo_a = builder.fifo(site, (m, k), placement.value_format)
        fifo_b = builder.fifo(site, (n, k), placement.value_format)
        builder.load(x.tensor, self._patches(share, taps, k), fifo_a, x.rank, x.ready)
        builder.load(weights.tensor, self._filters(share, taps, k), fifo_b, weights.rank, weights.ready)
        out = builder.fifo(site, (m, n), placement.value_format)
        builder.compute(Matmul(tile, math.prod(taps), b_transposed=True), (fifo_a, fifo_b), (out,))
        return out

    def _patches(self, share: Nest, taps: tuple[int, int, int], k: int) -> Affine:
        """For every output block and every position of the kernel, the inputs that meet there."""
        scale = (1, *self.stride, 0)
        offset = [first * box * by for first, box, by in zip(share.first, share.box, scale, strict=True)]
        for axis in (1, 2):
            offset[axis] -= self.padding[axis - 1]
        outputs = _loops(share.count, [box * by for box, by in zip(share.box, scale, strict=True)])
        positions = tuple(
            Loop(extent, tuple(step if a == axis else 0 for a in range(4)))
            for extent, axis, step in zip(taps, (1, 2, 3), (*self.dilation, k), strict=True)
        )
        step = tuple(by if size > 1 else 1 for by, size in zip((1, *self.stride, 1), (*share.box[:3], 1), strict=True))
        return Affine(tuple(offset), (*share.box[:3], k), (*outputs, *positions), step, pad=0.0)

    def _filters(self, share: Nest, taps: tuple[int, int, int], k: int) -> Affine:
        """For every output block and every position of the kernel, the weights that meet there."""
        n = share.box[3]
        outputs = tuple(
            Loop(count, (n, 0, 0, 0) if axis == 3 else (0, 0, 0, 0)) for axis, count in enumerate(share.count)
        )
        positions = tuple(
            Loop(extent, tuple(step if a == axis else 0 for a in range(4)))
            for extent, axis, step in zip(taps, (1, 2, 3), (1, 1, k), strict=True)
        )
        return Affine((share.first[3] * n, 0, 0, 0), (n, 1, 1, k), (*outputs, *positions), pad=0.0)


def _loops(counts: Sequence[int], strides: Sequence[int]) -> tuple[Loop, ...]:
    """One loop an axis, each moving along its own; the last one moves nothing."""
    return tuple(
        Loop(count, tuple(stride if a == axis else 0 for a in range(len(counts))))
        for axis, (count, stride) in enumerate(zip(counts, strides, strict=True))
    )


def convolution(stride: int | Pair = 1, padding: int | Pair = 0, dilation: int | Pair = 1) -> Convolution:
    """A convolution with the same stride, padding and dilation in both directions, or (height, width) pairs.

    Raises `KernelError` for a stride or dilation below 1 or a negative padding.
    """
    pairs = [(value, value) if isinstance(value, int) else value for value in (stride, padding, dilation)]
    if min(*pairs[0], *pairs[2]) < 1 or min(pairs[1]) < 0:
        raise KernelError(
            f"convolution(stride={stride}, padding={padding}, dilation={dilation}): strides and dilations are at least "
            "1, paddings at least 0"
        )
    return Convolution(*pairs)
