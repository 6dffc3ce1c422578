"""Transposing, splitting and merging axes: elements change places and nothing is computed.

`Rearrange` cuts operand axes into factors, puts the factors in another order, and merges them into result axes.
Access patterns do most of it; a block is transposed on the way only where both sides want runs along different factors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

from msgspec import Struct

from meshwright.errors import KernelError
from meshwright.ir.build import GraphBuilder
from meshwright.ir.ids import StageId
from meshwright.ir.operation import Permute
from meshwright.ir.pattern import Affine, Loop
from meshwright.kernels.blocks import Segment, even, segments
from meshwright.kernels.kernel import Contraction, Piece, Shaped, UnitKind
from meshwright.kernels.move import BLOCK_ELEMENTS
from meshwright.kernels.operands import require_operands
from meshwright.kernels.placement import Placement

REST = -1
"""The size of a factor that follows from the operand's shape: one in each axis at most."""


class Rearrange(Struct, frozen=True):
    """Operand axes cut into factors, the factors in another order, merged into result axes.

    cut: for each operand axis the sizes of its factors, outermost first; `REST` for one that follows from the shape.
    merged: for each result axis the factors that it is made of, outermost first, numbered through `cut`.
    """

    name: str
    cut: tuple[tuple[int, ...], ...]
    merged: tuple[tuple[int, ...], ...]

    @property
    def unit(self) -> UnitKind:
        """The mover."""
        return "mover"

    def result(self, operands: Sequence[Shaped]) -> Shaped:
        """The merged axes; `KernelError` for another number of axes, or one that its factors don't divide."""
        require_operands(self.name, operands, {1: "one operand"})
        sizes = self.sizes(operands[0])
        return Shaped(tuple(math.prod(sizes[f] for f in factors) for factors in self.merged), operands[0].format)

    def sizes(self, operand: Shaped) -> tuple[int, ...]:
        """The size of every factor for this operand; `KernelError` where they don't fit its shape."""
        if len(operand.shape) != len(self.cut):
            raise KernelError(f"{self.name} is for {len(self.cut)} axes, and the operand is {operand}")
        sizes: list[int] = []
        for axis, (size, factors) in enumerate(zip(operand.shape, self.cut, strict=True)):
            stated = math.prod(f for f in factors if f != REST)
            if size % stated or (REST not in factors and size != stated):
                what = "a multiple of " if REST in factors else ""
                raise KernelError(
                    f"{self.name}: axis {axis} of {operand} has {size} elements, and {what}{stated} is needed: it is "
                    f"cut into factors {' x '.join('any' if f == REST else str(f) for f in factors)}"
                )
            sizes.extend(size // stated if f == REST else f for f in factors)
        return tuple(sizes)

    def axes(self, operands: Sequence[Shaped]) -> tuple[tuple[int | None, ...], ...]:
        """The result axis whose outermost factor is that of the operand axis; slices are then whole inner factors.

        A factor whose size is stated can't be sliced: every slice would have to have all of it.
        """
        sizes = self.sizes(operands[0])
        stated = [size for factors in self.cut for size in factors]
        outermost = {_outermost(factors, sizes): axis for axis, factors in enumerate(self.merged)}
        sliced = [_outermost(factors, sizes) for factors in _numbered(self.cut)]
        return (tuple(outermost.get(f) if stated[f] == REST else None for f in sliced),)

    def contractions(self, operands: Sequence[Shaped]) -> tuple[Contraction, ...]:
        """None."""
        return ()

    def linear_in(self, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
        """Moving is linear."""
        return True

    def emit(
        self, builder: GraphBuilder, placement: Placement, operands: Sequence[Piece], result: Piece
    ) -> tuple[StageId, ...]:
        """Loads and stores at the mover, without ragged blocks; a Permute between them where runs differ."""
        (source,) = operands
        shaped = Shaped(source.shape, placement.value_format)
        if self.result((shaped,)).shape != result.shape:
            raise KernelError(
                f"{self.name}: a piece {shaped} gives {self.result((shaped,))}, and the piece of the result is "
                f"{Shaped(result.shape, placement.value_format)}: a slice cuts through a factor. Split so that every "
                "rank has whole ones"
            )
        sides = _Sides(self.sizes(shaped), _numbered(self.cut), self.merged)
        return tuple(_move(builder, placement, source, result, sides, cut) for cut in sides.blocks())


def _outermost(factors: Sequence[int], sizes: Sequence[int]) -> int:
    """The first factor of an axis that has more than one element, or its last one."""
    return next((f for f in factors if sizes[f] != 1), factors[-1])


def _numbered(cut: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The factor numbers of each operand axis."""
    starts = [sum(map(len, cut[:axis])) for axis in range(len(cut))]
    return tuple(tuple(range(start, start + len(factors))) for start, factors in zip(starts, cut, strict=True))


class _Sides(Struct, frozen=True):
    """Factor sizes, and which factors the axes of the operand and of the result are made of."""

    sizes: tuple[int, ...]
    source: tuple[tuple[int, ...], ...]
    target: tuple[tuple[int, ...], ...]

    def runs(self) -> tuple[int, ...]:
        """The factors that a block extends along: at most one an axis on either side, so that a box holds it.

        The innermost factor of the result, then that of the operand, then whatever else leaves room.
        """
        inner = [f for axis in reversed(self.target) for f in reversed(axis) if self.sizes[f] > 1]
        from_source = [f for axis in reversed(self.source) for f in reversed(axis) if self.sizes[f] > 1]
        chosen: list[int] = []
        for factor in dict.fromkeys((*inner[:1], *from_source[:1], *inner)):
            if len(chosen) < 2 and not any(self._share(factor, other) for other in chosen):
                chosen.append(factor)
        return tuple(chosen)

    def _share(self, a: int, b: int) -> bool:
        return any(a in axis and b in axis for axis in (*self.source, *self.target))

    def blocks(self) -> Iterator[dict[int, Segment]]:
        """For each load and store, the segment of every factor; where a block doesn't extend, it has one element."""
        runs = self.runs()
        chunks = dict.fromkeys(range(len(self.sizes)), 1)
        left = BLOCK_ELEMENTS
        if len(runs) == 2 and self._crossed(runs):
            # A transposition wants runs of equal length on both sides.
            left = math.isqrt(BLOCK_ELEMENTS)
            chunks.update((f, even(self.sizes[f], left)) for f in runs)
        else:
            for factor in runs:
                chunks[factor] = even(self.sizes[factor], left)
                left //= chunks[factor]
        for parts in product(*(segments(size, chunks[f]) for f, size in enumerate(self.sizes))):
            yield dict(enumerate(parts))

    def _crossed(self, factors: Sequence[int]) -> bool:
        """Whether the operand has these factors in another order than the result."""
        return _in_order(self.source, factors) != _in_order(self.target, factors)


def _in_order(axes: Sequence[Sequence[int]], factors: Sequence[int]) -> list[int]:
    return [f for axis in axes for f in axis if f in factors]


def _move(
    builder: GraphBuilder, placement: Placement, source: Piece, result: Piece, sides: _Sides, cut: dict[int, Segment]
) -> StageId:
    """One load and one store, and a transposition between them if the block has its factors in another order there."""
    site, element = placement.mover_site(), builder.element_type(source.tensor)
    order = _in_order(sides.target, list(cut))
    load = _pattern(sides.source, sides.sizes, cut, order)
    store = _pattern(sides.target, sides.sizes, cut, order)
    extended = [f for f in order if cut[f].block > 1]
    there = _in_order(sides.source, extended)
    taken = builder.fifo(site, _block(there, cut), element)
    builder.load(source.tensor, load, taken, source.rank, source.ready)
    if there != extended:
        moved = builder.fifo(site, _block(extended, cut), element)
        builder.compute(Permute(tuple(there.index(f) for f in extended)), (taken,), (moved,))
        taken = moved
    return builder.store(result.tensor, store, taken, result.rank)


def _block(factors: Sequence[int], cut: dict[int, Segment]) -> tuple[int, ...]:
    return tuple(cut[f].block for f in factors) or (1,)


def _pattern(
    axes: Sequence[Sequence[int]], sizes: Sequence[int], cut: dict[int, Segment], order: Sequence[int]
) -> Affine:
    """The boxes of one side; loops turn in the same order on both."""
    place = {
        f: (axis, math.prod(sizes[g] for g in factors[at + 1 :]))
        for axis, factors in enumerate(axes)
        for at, f in enumerate(factors)
    }
    offset, box, step = [0] * len(axes), [1] * len(axes), [1] * len(axes)
    loops: list[Loop] = []
    for factor in order:
        axis, stride = place[factor]
        part = cut[factor]
        offset[axis] += part.start * stride
        if part.block > 1:
            box[axis], step[axis] = part.block, stride
        if part.count > 1:
            loops.append(Loop(part.count, tuple(part.block * stride if a == axis else 0 for a in range(len(axes)))))
    steps = tuple(step) if set(step) != {1} else ()
    return Affine(tuple(offset), tuple(box), tuple(loops), steps)


def transpose(*axes: int) -> Rearrange:
    """Axis `axes[i]` of the operand becomes axis `i`, as `numpy.transpose` has it; without axes the last two change
    places in an operand of two. Raises `KernelError` unless every axis is named once."""
    order = axes or (1, 0)
    if sorted(order) != list(range(len(order))):
        raise KernelError(f"transpose{order}: every axis from 0 to {len(order) - 1} has to be named once")
    return Rearrange("transpose", ((REST,),) * len(order), tuple((a,) for a in order))


def split_heads(size: int) -> Rearrange:
    """`[batch, positions, heads * size]` to `[batch, heads, positions, size]`.

    The size of a head is stated and the number of heads follows, so that a slice of whole heads is worked on alone.
    """
    return Rearrange("split_heads", ((REST,), (REST,), (REST, _head(size))), ((0,), (2,), (1,), (3,)))


def split_heads_transposed(size: int) -> Rearrange:
    """`[batch, positions, heads * size]` to `[batch, heads, size, positions]`: values, as `b` of the second product."""
    return Rearrange("split_heads_transposed", ((REST,), (REST,), (REST, _head(size))), ((0,), (2,), (3,), (1,)))


def merge_heads() -> Rearrange:
    """`[batch, heads, positions, size]` to `[batch, positions, heads * size]`."""
    return Rearrange("merge_heads", ((REST,),) * 4, ((0,), (2,), (1, 3)))


def _head(size: int) -> int:
    if size < 1:
        raise KernelError(f"a head of {size} elements; it has to have at least one")
    return size
