"""Which elements a pattern touches, exactly: unions of boxes whose axes are independent, never element by element.

Where every loop of a nest moves along one axis, the elements touched are a product of one set of positions an axis.
A loop that moves along several axes at once is unrolled; the first blocks of a nest are cut into whole nests. So any
affine access is a union of products, and questions about it are asked axis by axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from meshwright.errors import GraphError
from meshwright.ir.pattern import Affine, Loop

MOST_PRODUCTS = 1 << 10
MOST_POSITIONS = 1 << 22
MOST_CELLS = 1 << 24


class RegionError(GraphError):
    """A question about regions that would take more time or memory than the bounds of this module."""


class Product(Struct, frozen=True, eq=False):
    """Along each axis the positions touched, ascending, inside the array. again: whether some block touches one twice.

    No positions along some axis: nothing is touched.
    """

    positions: tuple[NDArray[np.int64], ...]
    again: bool

    @property
    def size(self) -> int:
        """How many elements."""
        return math.prod(len(p) for p in self.positions)

    def meet(self, other: Product) -> bool:
        """Whether both touch some element."""
        return all(_overlap(a, b) for a, b in zip(self.positions, other.positions, strict=True))

    def first_common(self, other: Product) -> tuple[tuple[int, int], ...]:
        """The range along each axis in which both touch elements."""
        common = [np.intersect1d(a, b) for a, b in zip(self.positions, other.positions, strict=True)]
        return tuple((int(c[0]), int(c[-1]) + 1) for c in common)


def _overlap(a: NDArray[np.int64], b: NDArray[np.int64]) -> bool:
    if not (len(a) and len(b)) or a[0] > b[-1] or b[0] > a[-1]:
        return False
    if len(a) == a[-1] - a[0] + 1 and len(b) == b[-1] - b[0] + 1:
        return True
    return bool(np.isin(a, b, assume_unique=True).any())


class Region(Struct, frozen=True, eq=False):
    """The elements of an array of `shape` that an access touches: a union of products.

    again: whether it touches an element more than once, so that a later block overwrites an earlier one.
    outside: the axis and the positions where it reaches outside the array; None where it doesn't.
    """

    shape: tuple[int, ...]
    products: tuple[Product, ...]
    again: bool
    outside: tuple[int, int, int] | None = None

    @property
    def size(self) -> int:
        """How many elements, each counted once; exact where the products are apart."""
        return sum(p.size for p in self.products)

    def meets(self, other: Region) -> tuple[tuple[int, int], ...] | None:
        """Ranges in which both touch elements; None where they are apart."""
        return next((a.first_common(b) for a in self.products for b in other.products if a.meet(b)), None)


class LookedUp(Struct, frozen=True, eq=False):
    """An axis whose positions are looked up: which, in the one block there is; None: any."""

    axis: int
    positions: tuple[int, ...] | None = None


def region_of(
    pattern: Affine, shape: tuple[int, ...], blocks: int | None = None, looked_up: LookedUp | None = None
) -> Region:
    """The region of the first `blocks` blocks of a pattern in an array of `shape`; all of them by default.

    looked_up: an axis whose positions aren't the pattern's. Raises `RegionError`.
    """
    everywhere = pattern.num_blocks if blocks is None else blocks
    products: list[Product] = []
    outside: tuple[int, int, int] | None = None
    for nest in _whole_nests(pattern, everywhere):
        for part in _separable(nest):
            if len(products) == MOST_PRODUCTS:
                raise RegionError(f"a pattern that is over {MOST_PRODUCTS} boxes whose axes are independent")
            product, beyond = _product(part, shape, looked_up)
            products.append(product)
            outside = outside or beyond
    again = any(p.again and p.size for p in products) or any(a.meet(b) for a, b in combinations(products, 2))
    return Region(shape, tuple(p for p in products if p.size or not shape), again, outside)


def _whole_nests(pattern: Affine, blocks: int) -> Iterator[Affine]:
    """The first blocks of a nest as nests that turn whole."""
    if blocks >= pattern.num_blocks:
        if pattern.num_blocks:
            yield pattern
        return
    left, offset = blocks, pattern.offset
    for depth, loop in enumerate(pattern.loops):
        inner = pattern.loops[depth + 1 :]
        each = math.prod(x.extent for x in inner)
        turns, left = divmod(left, each)
        if turns:
            yield replace(pattern, offset=offset, loops=(Loop(turns, loop.stride), *inner))
        offset = tuple(o + turns * s for o, s in zip(offset, loop.stride, strict=True))


def _separable(pattern: Affine) -> Iterator[Affine]:
    """The pattern as patterns each of whose loops moves along one axis."""
    crooked = [x for x in pattern.loops if x.extent > 1 and sum(map(bool, x.stride)) > 1]
    if math.prod(x.extent for x in crooked) > MOST_PRODUCTS:
        raise RegionError(f"a pattern whose loops move along several axes at once over {MOST_PRODUCTS} times")
    straight = tuple(x for x in pattern.loops if x not in crooked)
    for turns in np.ndindex(*(x.extent for x in crooked)):
        moves = [tuple(t * s for s in x.stride) for t, x in zip(turns, crooked, strict=True)]
        offset = tuple(map(sum, zip(pattern.offset, *moves, strict=True)))
        yield replace(pattern, offset=offset, loops=straight)


def _product(
    pattern: Affine, shape: tuple[int, ...], looked_up: LookedUp | None
) -> tuple[Product, tuple[int, int, int] | None]:
    again = any(x.extent > 1 and not any(x.stride) for x in pattern.loops)
    positions: list[NDArray[np.int64]] = []
    outside: tuple[int, int, int] | None = None
    for axis, size in enumerate(shape):
        if looked_up is not None and axis == looked_up.axis:
            at, ways = _found(looked_up.positions, size)
        else:
            at, ways = _along(pattern, axis)
        inside = (at >= 0) & (at < size)
        if not inside.all() and outside is None:
            outside = (axis, int(at[0]), int(at[-1]))
        again = again or bool((ways[inside] > 1).any())
        positions.append(at[inside])
    return Product(tuple(positions), again), outside


def _found(positions: tuple[int, ...] | None, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions that are looked up, and in how many ways each; every one in several where they aren't known."""
    if positions is None:
        if size > MOST_POSITIONS:
            raise RegionError(f"an axis of {size} positions")
        return np.arange(size, dtype=np.int64), np.full(size, 2, dtype=np.int64)
    if max(map(abs, positions), default=0) >= 1 << 56:
        raise RegionError("positions past 2^56")
    return np.unique(np.array(positions, dtype=np.int64), return_counts=True)


def _along(pattern: Affine, axis: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions along one axis, ascending, and in how many ways each is reached."""
    steps = [(pattern.box[axis], pattern.steps[axis])]
    steps += [(x.extent, x.stride[axis]) for x in pattern.loops if x.stride[axis]]
    if max(abs(pattern.offset[axis]), *(n * abs(s) for n, s in steps)) >= 1 << 56:
        raise RegionError("positions past 2^56")
    at: NDArray[np.int64] = np.array([pattern.offset[axis]], dtype=np.int64)
    ways: NDArray[np.int64] = np.ones(1, dtype=np.int64)
    # Shortest strides first: sets then grow by runs that don't overlap, and stay small where they do.
    for extent, stride in sorted(steps, key=lambda s: abs(s[1])):
        if len(at) * extent > MOST_POSITIONS:
            raise RegionError(f"over {MOST_POSITIONS} positions along axis {axis}")
        reached = (at[:, None] + stride * np.arange(extent, dtype=np.int64)).reshape(-1)
        at, which = np.unique(reached, return_inverse=True)
        # Whether once or more often is all that is asked; so that numbers stay small.
        ways = np.minimum(np.bincount(which.reshape(-1), np.repeat(ways, extent)), 2).astype(np.int64)
    return at, ways


def uncovered(whole: Sequence[Product], cover: Sequence[Product]) -> list[tuple[int, int]] | None:
    """Ranges, one an axis, around some elements of `whole` that no product of `cover` touches; None if it touches all.

    Positions that the same products touch are taken together, so the work grows with how the products cut each other.
    Raises `RegionError`.
    """
    for product in whole:
        near = [c for c in cover if c.meet(product)]
        gap = _gap(product, near)
        if gap is not None:
            return gap
    return None


def _gap(product: Product, cover: Sequence[Product]) -> list[tuple[int, int]] | None:
    classes: list[NDArray[np.bool_]] = []
    members: list[list[tuple[int, int]]] = []
    for axis, at in enumerate(product.positions):
        if len(at) * max(len(cover), 1) > MOST_CELLS:
            raise RegionError(f"{len(cover)} accesses along an axis of {len(at)} positions")
        kinds, ranges = _told_apart(at, [c.positions[axis] for c in cover])
        classes.append(kinds)
        members.append(ranges)
    extents = [kinds.shape[1] for kinds in classes]
    if math.prod(extents) * max(len(cover), 1) > MOST_CELLS:
        raise RegionError(f"{len(cover)} accesses that cut each other into {math.prod(extents)} pieces")
    covered = np.zeros(extents, dtype=np.bool_)
    for number in range(len(cover)):
        cells: NDArray[np.bool_] = np.ones((), dtype=np.bool_)
        for kinds in classes:
            cells = cells[..., None] & kinds[number]
        covered |= cells
    if covered.all():
        return None
    cell = np.unravel_index(int(np.argmin(covered)), covered.shape)
    return [ranges[int(i)] for ranges, i in zip(members, cell, strict=True)]


def _told_apart(
    at: NDArray[np.int64], cover: Sequence[NDArray[np.int64]]
) -> tuple[NDArray[np.bool_], list[tuple[int, int]]]:
    """The kinds of positions there are, told apart by who touches them: [cover, kinds], and a range of each kind."""
    touched = np.zeros((len(cover), len(at)), dtype=np.bool_)
    for number, positions in enumerate(cover):
        touched[number] = _among(at, positions)
    starts = np.concatenate(([0], np.flatnonzero((touched[:, 1:] != touched[:, :-1]).any(axis=0)) + 1))
    kinds, first = np.unique(touched[:, starts], axis=1, return_index=True)
    stops = np.append(starts[1:], len(at))
    return kinds, [(int(at[starts[i]]), int(at[stops[i] - 1]) + 1) for i in first]


def _among(at: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.bool_]:
    if len(positions) and len(positions) == positions[-1] - positions[0] + 1:
        return (at >= positions[0]) & (at <= positions[-1])
    return np.isin(at, positions, assume_unique=True)


def everything(shape: tuple[int, ...]) -> Product:
    """All elements of an array; `RegionError` for one with an axis of too many positions."""
    if max(shape, default=0) > MOST_POSITIONS:
        raise RegionError(f"an axis of {max(shape)} positions")
    return Product(tuple(np.arange(size, dtype=np.int64) for size in shape), False)
