"""Blocks of a result dealt over sites, and the boxes of the operands that go with them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from meshwright.ir.pattern import Affine, Loop


class Nest(Struct, frozen=True):
    """A box of blocks of a result, walked in row-major order.

    shape: of the result. box: elements a block has along each axis. first, count: along each axis the first block and
    how many; blocks past the edge are read padded and stored cut.
    """

    shape: tuple[int, ...]
    box: tuple[int, ...]
    first: tuple[int, ...]
    count: tuple[int, ...]

    @classmethod
    def over(cls, shape: Sequence[int], box: Sequence[int]) -> Nest:
        """All blocks of a result of `shape`."""
        count = tuple(math.ceil(size / b) for size, b in zip(shape, box, strict=True))
        return cls(tuple(shape), tuple(box), (0,) * len(count), count)

    def dealt(self, hands: int) -> Iterator[Nest]:
        """The nest cut into at most `hands` boxes of blocks, along one axis or two: see `cuts`.

        Parts come in row-major order. The first is as large as any.
        """
        shares = cuts(self.count, hands)
        starts = itertools.product(*(range(0, size, share) for size, share in zip(self.count, shares, strict=True)))
        for start in starts:
            first = tuple(f + s for f, s in zip(self.first, start, strict=True))
            count = tuple(min(p, c - s) for p, c, s in zip(shares, self.count, start, strict=True))
            yield Nest(self.shape, self.box, first, count)

    def pattern(
        self, axes: Sequence[int | None], sizes: Sequence[int], inner: Sequence[tuple[int, int]] = ()
    ) -> Affine:
        """The boxes of an operand of shape `sizes` that go with this nest's blocks.

        axes: for each operand axis the result axis it runs along; None for one that the result hasn't got (then the
        whole axis is in the box, unless `inner` says otherwise). An axis of size 1 is broadcast. inner: (operand axis,
        elements a block) pairs of a further innermost loop along an axis of the operand: a contraction.
        """
        blocked = dict(inner)
        offset, box = self._corner(axes, sizes, blocked)
        loops = [
            Loop(count, tuple(self._stride(axis, a, size) for a, size in zip(axes, sizes, strict=True)))
            for axis, count in enumerate(self.count)
        ]
        for operand_axis, elements in inner:
            stride = tuple(elements if a == operand_axis else 0 for a in range(len(sizes)))
            loops.append(Loop(math.ceil(sizes[operand_axis] / elements), stride))
        return Affine(tuple(offset), tuple(box), tuple(loops), pad=0.0 if self._ragged(axes, sizes, blocked) else None)

    def _corner(
        self, axes: Sequence[int | None], sizes: Sequence[int], blocked: dict[int, int]
    ) -> tuple[list[int], list[int]]:
        offset: list[int] = []
        box: list[int] = []
        for position, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
            runs = axis is not None and not (size == 1 and self.shape[axis] != 1)
            offset.append(self.first[axis] * self.box[axis] if axis is not None and runs else 0)
            box.append(self.box[axis] if axis is not None and runs else blocked.get(position, size))
        return offset, box

    def _stride(self, loop_axis: int, axis: int | None, size: int) -> int:
        broadcast = size == 1 and self.shape[loop_axis] != 1
        return self.box[loop_axis] if axis == loop_axis and not broadcast else 0

    def _ragged(self, axes: Sequence[int | None], sizes: Sequence[int], blocked: dict[int, int]) -> bool:
        for position, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
            if axis is None:
                ragged = size % blocked.get(position, size or 1) != 0
            else:
                broadcast = size == 1 and self.shape[axis] != 1
                ragged = not broadcast and (self.first[axis] + self.count[axis]) * self.box[axis] > size
            if ragged:
                return True
        return False


def cuts(count: Sequence[int], hands: int) -> tuple[int, ...]:
    """How many of `count` blocks along each axis go to one of at most `hands` parts, so that the largest is smallest.

    The largest part decides when all are done. Cuts are along one axis, the outermost of those that deal equally well,
    which keeps parts contiguous in memory; along two only where that makes the largest part smaller.
    """
    return _cuts(tuple(count), hands) if count else ()


@lru_cache(maxsize=4096)
def _cuts(count: tuple[int, ...], hands: int) -> tuple[int, ...]:
    axes = range(len(count))
    one = min(axes, key=lambda axis: (math.ceil(count[axis] / hands) / count[axis], axis))
    best = _cut(count, {one: hands})
    for outer, inner in itertools.combinations(axes, 2):
        for along in range(2, min(hands // 2, count[outer]) + 1):
            tried = _cut(count, {outer: along, inner: hands // along})
            if math.prod(tried) < math.prod(best):
                best = tried
    return best


def _cut(count: Sequence[int], parts: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(math.ceil(size / parts.get(axis, 1)) for axis, size in enumerate(count))
