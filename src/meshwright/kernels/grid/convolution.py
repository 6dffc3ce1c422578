"""Two-dimensional convolution on a rectangle of sites: patches by pattern, halo and all, multicast along rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from meshwright.errors import KernelError
from meshwright.ir.build import GraphBuilder
from meshwright.ir.ids import StageId
from meshwright.ir.operation import Matmul
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.pool import Pool
from meshwright.kernels.grid.products import Products, emit_products
from meshwright.kernels.grid.rectangle import Deal, SiteRectangle
from meshwright.kernels.grid.spread import Source
from meshwright.kernels.grid.tiles import Tile, require_depth, tile_for
from meshwright.kernels.kernel import Contraction, Piece, Shaped, UnitKind
from meshwright.kernels.operands import require_floats, require_operands
from meshwright.kernels.placement import Placement

Pair = tuple[int, int]

_NAME: Final = "multicast convolution"
_GROUP: Final = 3
"""The axis of groups in x and in the result, where there are groups."""


class _Work(Struct, frozen=True):
    """How the blocks of a convolution lie.

    shape: the result's, with an axis of groups. box: outputs of a block along batch, height, width, group and filters.
    counts: blocks along these axes at each site. taps: loops of the contraction: kernel rows, columns, channel blocks.
    along: which of batch, height and width is dealt over rows of sites. grouped: whether tensors have a group axis.
    """

    shape: tuple[int, int, int, int, int]
    box: tuple[int, int, int, int, int]
    counts: tuple[int, int, int, int, int]
    taps: tuple[int, int, int]
    along: int
    grouped: bool

    def tensor_axes(self, values: Sequence[int], group: int = _GROUP) -> tuple[int, ...]:
        """One number a tensor axis; without groups the tensors have no axis `group`."""
        return tuple(values) if self.grouped else (*values[:group], *values[group + 1 :])


class MulticastConvolution(Struct, frozen=True):
    """x `[batch, height, width, channels]` with weights `[filters, rows, columns, channels]`.

    Gives `[batch, height, width, filters]`. With groups, x is `[batch, height, width, groups, channels]` and weights
    `[groups, filters, rows, columns, channels]`, channels and filters those of one group, and the result
    `[batch, height, width, groups, filters]`: the same bytes as a tensor whose groups stand side by side in its last
    axis. Groups are taken one after another by every site.

    padding: zeros on both sides of height and of width, which are never written down: a load reads them outside x. The
    contraction goes row by row of the kernel, column by column, and through the channels of each position, which are
    filled up with zeros to blocks. Blocks past an edge are read as zeros and cut where they are stored.

    tile, sites_down, sites_across, depth: as `tile`, `rows`, `columns` and `depth` of `MulticastProduct`; outputs are
    dealt over rows of sites, filters over columns. Errors as there, K being rows x columns x channels.
    """

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    tile: Tile | None = None
    sites_down: int | None = None
    sites_across: int | None = None
    depth: int = 2

    @property
    def name(self) -> str:
        """What messages call it."""
        return _NAME

    @property
    def unit(self) -> UnitKind:
        """Matrix units."""
        return "matrix"

    def result(self, operands: Sequence[Shaped]) -> Shaped:
        """Its shape; `KernelError` where channels or groups differ or the kernel is larger than the padded input."""
        require_operands(_NAME, operands, {2: "x and weights"})
        require_floats(_NAME, operands)
        x, weights = operands
        plain = len(x.shape) == len(weights.shape) == 4
        grouped = len(x.shape) == len(weights.shape) == 5 and x.shape[_GROUP] == weights.shape[0]
        if not (plain or grouped) or x.shape[-1] != weights.shape[-1]:
            raise KernelError(
                f"{_NAME}: x is {x} and the weights {weights}; x is [batch, height, width, channels] and weights are "
                "[filters, rows, columns, channels], of the same channels; or, of the same groups, x is [batch, height,"
                " width, groups, channels] and weights are [groups, filters, rows, columns, channels]"
            )
        sizes: list[int] = []
        for axis in (0, 1):
            covered = self.dilation[axis] * (weights.shape[axis - 3] - 1) + 1
            there = x.shape[1 + axis] + 2 * self.padding[axis]
            if there < covered:
                raise KernelError(
                    f"{_NAME}: the weights {weights} cover {covered} of {('rows', 'columns')[axis]}, and x {x} has "
                    f"{there} with its padding"
                )
            sizes.append((there - covered) // self.stride[axis] + 1)
        return Shaped((x.shape[0], *sizes, *x.shape[3:-1], weights.shape[-4]), x.format)

    def axes(self, operands: Sequence[Shaped]) -> tuple[tuple[int | None, ...], ...]:
        """Batch, groups and filters go along; neighbours in height and width meet, and channels are summed."""
        if len(operands[0].shape) == 4:
            return (0, None, None, None), (3, None, None, None)
        return (0, None, None, 3, None), (3, 4, None, None, None)

    def contractions(self, operands: Sequence[Shaped]) -> tuple[Contraction, ...]:
        """The channels of both."""
        last = len(operands[0].shape) - 1
        return (Contraction((last, last), Pool.SUM),)

    def linear_in(self, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
        """In each operand while the other is fixed."""
        return len(together) == 1

    def emit(
        self, builder: GraphBuilder, placement: Placement, operands: Sequence[Piece], result: Piece
    ) -> tuple[StageId, ...]:
        """A multicast a row and a column, one Matmul and one store a site."""
        x, weights = operands
        sites = SiteRectangle.of(placement, self.sites_down, self.sites_across, _NAME)
        work, tile, lines = self._work(placement, sites, result.shape, weights.shape)
        down, across = lines
        op = Matmul(tile, math.prod(work.taps), b_transposed=True)
        products = Products(
            over=sites.first(down.lines, across.lines),
            op=op,
            rows=[
                Source(x.tensor, self._patches(work, row * down.each, tile[2]), x.ready) for row in range(down.lines)
            ],
            columns=[
                Source(weights.tensor, _filters(work, column * across.each, tile[2]), weights.ready)
                for column in range(across.lines)
            ],
            stores=[
                [_outputs(work, row * down.each, column * across.each) for column in range(across.lines)]
                for row in range(down.lines)
            ],
            depth=self.depth,
        )
        return emit_products(builder, products, result)

    def _work(
        self, placement: Placement, sites: SiteRectangle, shape: Sequence[int], weights: Sequence[int]
    ) -> tuple[_Work, Tile, tuple[Deal, Deal]]:
        grouped = len(shape) == 5
        batch, height, width = shape[:3]
        groups, filters = shape[3:] if grouped else (1, shape[3])
        rows, columns, channels = weights[-3:]
        share = math.ceil(batch * height * width / sites.rows)
        filters_each = math.ceil(filters / sites.columns)
        # Rows of a block go along one axis: the one that needs the fewest blocks.
        side, tile = min(
            (
                (axis, tile_for(self.tile, placement, min(shape[axis], share), filters_each, channels))
                for axis in (2, 1, 0)
            ),
            key=lambda choice: _blocks(shape[:3], choice[0], choice[1][0]),
        )
        m, n, k = tile
        box = (*(m if axis == side else 1 for axis in range(3)), 1, n)
        full = (batch, height, width, groups, filters)
        counts = [math.ceil(size / block) for size, block in zip(full, box, strict=True)]
        # The largest share decides when all are done; the outermost axis wins a tie.
        along = min(range(3), key=lambda a: (math.ceil(counts[a] / sites.rows) / counts[a], a))
        down, across = Deal.over(counts[along], sites.rows), Deal.over(counts[4], sites.columns)
        counts[along], counts[4] = down.each, across.each
        taps = (rows, columns, math.ceil(channels / k))
        work = _Work(full, _five(box), _five(counts), taps, along, grouped)
        return work, tile, (down, across)

    def _patches(self, work: _Work, first: int, k: int) -> Affine:
        """For every output block and every position of the kernel, the inputs that meet there."""
        scale = (1, *self.stride, 1, 0)
        moves = [block * by for block, by in zip(work.box, scale, strict=True)]
        offset = [0, -self.padding[0], -self.padding[1], 0, 0]
        offset[work.along] += first * moves[work.along]
        taps = zip(work.taps, (1, 2, 4), (*self.dilation, k), strict=True)
        nest = [*_outer(work, moves), *(_moving(extent, axis, by) for extent, axis, by in taps)]
        spatial = zip(work.box[:3], scale[:3], strict=True)
        step = (*(by if size > 1 else 1 for size, by in spatial), 1, 1)
        return _affine(work, offset, (*work.box[:4], k), nest, step)


def _filters(work: _Work, first: int, k: int) -> Affine:
    """For every output block and every position of the kernel, the weights that meet there."""
    n = work.box[4]
    counts = work.counts
    # Axes of weights: group, filters, rows, columns, channels.
    nest = [_moving(counts[3], 0, 1), *(_moving(count, 0, 0) for count in counts[:3]), _moving(counts[4], 1, n)]
    nest += [_moving(extent, 2 + tap, by) for tap, (extent, by) in enumerate(zip(work.taps, (1, 1, k), strict=True))]
    return _affine(work, (0, first * n, 0, 0, 0), (1, n, 1, 1, k), nest, (1,) * 5, group=0)


def _outputs(work: _Work, first_down: int, first_across: int) -> Affine:
    """Where a site's output blocks go."""
    offset = [0] * 5
    offset[work.along] = first_down * work.box[work.along]
    offset[4] = first_across * work.box[4]
    return _affine(work, offset, work.box, _outer(work, work.box), (1,) * 5)


def _outer(work: _Work, moves: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
    """Loops over output blocks: group by group, then batch, height, width and filters."""
    return [_moving(work.counts[axis], axis, moves[axis]) for axis in (3, 0, 1, 2, 4)]


def _moving(extent: int, axis: int, by: int) -> tuple[int, tuple[int, ...]]:
    """A loop of `extent` turns that moves `by` along one of five axes."""
    return extent, tuple(by if a == axis else 0 for a in range(5))


def _affine(
    work: _Work,
    offset: Sequence[int],
    box: Sequence[int],
    nest: Sequence[tuple[int, tuple[int, ...]]],
    step: Sequence[int],
    group: int = _GROUP,
) -> Affine:
    at, size, steps = (work.tensor_axes(values, group) for values in (offset, box, step))
    loops = tuple(Loop(extent, work.tensor_axes(stride, group)) for extent, stride in nest)
    return Affine(at, size, loops, () if set(steps) == {1} else steps, pad=0.0)


def _blocks(shape: Sequence[int], axis: int, m: int) -> int:
    """How many blocks of rows there are with the rows of a block along that axis."""
    return math.ceil(shape[axis] / m) * math.prod(size for a, size in enumerate(shape) if a != axis)


def _five(values: Sequence[int]) -> tuple[int, int, int, int, int]:
    a, b, c, d, e = values
    return a, b, c, d, e


def multicast_convolution(
    stride: int | Pair = 1,
    padding: int | Pair = 0,
    dilation: int | Pair = 1,
    tile: Tile | None = None,
    sites_down: int | None = None,
    sites_across: int | None = None,
    depth: int = 2,
) -> MulticastConvolution:
    """A convolution with the same stride, padding and dilation in both directions, or (height, width) pairs.

    Raises `KernelError` for a stride or dilation below 1, a negative padding, or a depth below 1.
    """
    pairs = [(value, value) if isinstance(value, int) else value for value in (stride, padding, dilation)]
    if min(*pairs[0], *pairs[2]) < 1 or min(pairs[1]) < 0:
        raise KernelError(
            f"multicast_convolution(stride={stride}, padding={padding}, dilation={dilation}): strides and dilations "
            "are at least 1, paddings at least 0"
        )
    require_depth("multicast_convolution", depth)
    by, around, apart = pairs
    return MulticastConvolution(by, around, apart, tile, sites_down, sites_across, depth)
