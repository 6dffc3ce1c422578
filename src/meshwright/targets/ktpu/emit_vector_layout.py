"""Where the elements of a chain lie: pieces in DRAM, rows in them, and groups of rows that one run works on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from meshwright.ir.graph import Graph
from meshwright.ir.ids import TensorId
from meshwright.targets.ktpu.emit_vector_moves import Move, refusal
from meshwright.targets.ktpu.emit_vector_stages import Chain

WORD: Final = 32
"""Bytes of a memory word and of an L1 word."""
LANES: Final = 16
VECTOR: Final = 128


class Placed(Struct, frozen=True):
    """A piece of a tensor in DRAM: global byte address of its first element, and strides in elements.

    Whole words are read and written: up to the end of the word in which a row ends, memory must be the piece's own.
    """

    address: int
    strides: tuple[int, ...]


def row_major(address: int, shape: Sequence[int]) -> Placed:
    """Rows one after the other."""
    return _placed(address, shape, 1)


def padded_rows(address: int, shape: Sequence[int], multiple: int = LANES) -> Placed:
    """Rows that begin at a word: the last axis takes a multiple of 16 elements of room."""
    return _placed(address, shape, multiple)


def _placed(address: int, shape: Sequence[int], multiple: int) -> Placed:
    strides: list[int] = []
    step = 1
    for at, size in enumerate(reversed(shape)):
        strides.append(step)
        step *= math.ceil(size / multiple) * multiple if at == 0 else size
    return Placed(address, tuple(reversed(strides)))


class View(Struct, frozen=True):
    """One operand or result of a region: byte address of its first row, and bytes between rows along each row axis.

    single: it has one element a row, of `size` bytes.
    """

    address: int
    strides: tuple[int, ...]
    size: int
    single: bool = False


class Region(Struct, frozen=True):
    """Rows of `length` elements: `rows` along each row axis, and where each load and store of the chain has them.

    folds: along how many row axes, the last ones, rows are folded element by element.
    """

    length: int
    rows: tuple[int, ...]
    loads: tuple[View, ...]
    stores: tuple[View, ...]
    folds: int = 0

    @property
    def views(self) -> tuple[View, ...]:
        """Of the loads, then of the stores."""
        return (*self.loads, *self.stores)

    def part(self, origin: Sequence[int], shape: tuple[int, ...]) -> Region:
        """The rows from `origin` on."""

        def moved(view: View) -> View:
            address = view.address + sum(o * s for o, s in zip(origin, view.strides, strict=True))
            return msgspec.structs.replace(view, address=address)

        return Region(self.length, shape, tuple(map(moved, self.loads)), tuple(map(moved, self.stores)), self.folds)

    def parts(self, shape: tuple[int, ...]) -> Iterator[Region]:
        """Regions of at most `shape` rows that cover it."""
        ranges = [range(0, size, step) for size, step in zip(self.rows, shape, strict=True)]
        for origin in itertools.product(*ranges):
            sizes = zip(origin, self.rows, shape, strict=True)
            yield self.part(origin, tuple(min(step, size - at) for at, size, step in sizes))


def joined(found: Sequence[Region]) -> list[Region]:
    """The same rows in fewer regions: those that are alike and evenly apart become one with another row axis."""
    alike: dict[Region, list[Region]] = {}
    for region in found:
        alike.setdefault(_at_zero(region), []).append(region)
    made = [region for group in alike.values() for region in _evenly_apart(group)]
    return made if len(made) == len(found) else joined(made)


def _at_zero(region: Region) -> Region:
    def moved(views: tuple[View, ...]) -> tuple[View, ...]:
        return tuple(msgspec.structs.replace(view, address=0) for view in views)

    return Region(region.length, region.rows, moved(region.loads), moved(region.stores), region.folds)


def _evenly_apart(group: Sequence[Region]) -> Iterator[Region]:
    start = 0
    while start < len(group):
        first, stop = group[start], start + 1
        steps = _steps(first, group[stop]) if stop < len(group) else ()
        while stop < len(group) and _steps(group[stop - 1], group[stop]) == steps:
            stop += 1
        yield _with_axis(first, stop - start, steps) if stop > start + 1 else first
        start = stop


def _steps(before: Region, after: Region) -> tuple[int, ...]:
    return tuple(b.address - a.address for a, b in zip(before.views, after.views, strict=True))


def _with_axis(region: Region, count: int, steps: tuple[int, ...]) -> Region:
    """`count` of the region, `steps` bytes apart."""
    views = region.views
    rows = region.rows
    on = len(rows) > region.folds and all(
        step == view.strides[0] * rows[0] for step, view in zip(steps, views, strict=True)
    )
    made = [
        view if on else msgspec.structs.replace(view, strides=(step, *view.strides))
        for step, view in zip(steps, views, strict=True)
    ]
    shape = (rows[0] * count, *rows[1:]) if on else (count, *rows)
    loads, stores = tuple(made[: len(region.loads)]), tuple(made[len(region.loads) :])
    return Region(region.length, shape, loads, stores, region.folds)


def oriented(graph: Graph, chain: Chain, where: Mapping[tuple[TensorId, int], Placed]) -> Chain:
    """The same chain, folding across vectors where folded elements don't follow each other in memory."""
    if not chain.folded or chain.across:
        return chain
    block = _Block(graph, chain, where, 0)
    axes = [_Axis(chain.size[a], tuple(block.stride(move, a) for move in block.moves)) for a in sorted(chain.folded)]
    if all(_reachable(axes, number) for number in range(len(block.moves))):
        return chain
    return msgspec.structs.replace(chain, across=True)


class _Axis(Struct, frozen=True):
    """An axis of a block: elements inside the tensors, and the stride in elements of each load and store."""

    size: int
    strides: tuple[int, ...]


def regions(graph: Graph, chain: Chain, where: Mapping[tuple[TensorId, int], Placed]) -> list[Region]:
    """Regions that cover every block of the chain; rows don't depend on each other, so those of several blocks join.

    Raises `PlacementError` for elements that no walk over whole words reaches.
    """
    found: list[Region] = []
    for block in range(chain.stores[0].num_blocks):
        found += _block(_Block(graph, chain, where, block))
    return joined(found)


class _Block(Struct, frozen=True):
    """Block number `number` of a chain."""

    graph: Graph
    chain: Chain
    where: Mapping[tuple[TensorId, int], Placed]
    number: int

    @property
    def moves(self) -> tuple[Move, ...]:
        """Loads, then stores."""
        return (*self.chain.loads, *self.chain.stores)

    def bytes_of(self, move: Move) -> int:
        """Bytes of an element in memory."""
        return self.graph.tensors[move.tensor].format.bits // 8

    def placed(self, move: Move) -> Placed:
        """Where the move's piece is."""
        return self.where[TensorId(move.tensor), move.rank]

    def axes_of(self, move: Move) -> dict[int, int]:
        """For each axis of the chain along which the move has more than one element, the tensor axis."""
        axes = enumerate(zip(move.along, move.pattern.box, strict=True))
        return {along: axis for axis, (along, size) in axes if along is not None and size != 1}

    def corner(self, move: Move) -> tuple[int, ...]:
        """Where the block begins in the move's tensor."""
        return move.pattern.corner(self.number)

    def first(self, move: Move) -> int:
        """Byte address of the block's first element."""
        placed = self.placed(move)
        corner = self.corner(move)
        return placed.address + self.bytes_of(move) * sum(c * s for c, s in zip(corner, placed.strides, strict=True))

    def stride(self, move: Move, axis: int) -> int:
        """Elements from one to the next along a block axis; 0 where it is broadcast."""
        tensor_axis = self.axes_of(move).get(axis)
        if tensor_axis is None:
            return 0
        return self.placed(move).strides[tensor_axis] * move.pattern.steps[tensor_axis]

    def inside(self, move: Move, axis: int) -> int | None:
        """How many elements along a block axis, from its first, lie in the tensor; None where it has none."""
        tensor_axis = self.axes_of(move).get(axis)
        if tensor_axis is None:
            return None
        shape = self.graph.tensors[move.tensor].local
        corner, step = self.corner(move)[tensor_axis], move.pattern.steps[tensor_axis]
        if corner < 0:
            raise refusal(
                move.stage, f"block {self.number} begins at {corner} of axis {tensor_axis}, outside its tensor"
            )
        return max(0, math.ceil((shape[tensor_axis] - corner) / step))


def _block(block: _Block) -> Iterator[Region]:
    chain = block.chain
    axes: list[_Axis] = []
    folded: list[_Axis] = []
    for axis, size in enumerate(chain.size):
        ends = [end for move in chain.stores if (end := block.inside(move, axis)) is not None]
        kept = min([size, *ends])
        for move in chain.loads:
            end = block.inside(move, axis)
            if end is not None and end < kept:
                raise refusal(move.stage, f"block {block.number} reads {kept - end} elements past its tensor: a pad")
        if axis in chain.folded and kept < size:
            raise refusal(chain.stores[0].stage, f"block {block.number} folds {size} elements, {kept} of them stored")
        if not kept:
            return
        if kept > 1:
            apart = chain.across and axis in chain.folded
            (folded if apart else axes).append(_Axis(kept, tuple(block.stride(move, axis) for move in block.moves)))
    inner = _inner(block, axes)
    length = math.prod(axis.size for axis in axes[inner:])
    outer = _merged(axes[:inner])
    single = tuple(_still(axes[inner:], number) for number in range(len(block.moves)))
    for number, move in enumerate(block.moves):
        _require_flat(move, number, axes[inner:])
    if (chain.folded and not chain.across) or length <= VECTOR:
        yield _region(block, (outer, folded), single, length, 0)
        return
    whole = length // VECTOR
    along = _Axis(whole, tuple(0 if one else VECTOR for one in single))
    yield _region(block, (_merged([*outer, along]), folded), single, VECTOR, 0)
    if rest := length % VECTOR:
        yield _region(block, (outer, folded), single, rest, whole * VECTOR)


def _inner(block: _Block, axes: Sequence[_Axis]) -> int:
    """The first of the axes that make up a row: those that are folded, or as many as lie flat everywhere."""
    if block.chain.folded and not block.chain.across:
        return len(axes) - len(block.chain.folded)
    first = len(axes)
    while first and all(_reachable(axes[first - 1 :], number) for number in range(len(block.moves))):
        first -= 1
    if first < len(axes) or not axes:
        return first
    # Elements with a word each are rows of one.
    last = zip(axes[-1].strides, block.moves, strict=True)
    alone = all(stride * block.bytes_of(move) % WORD == 0 for stride, move in last)
    return len(axes) if alone else len(axes) - 1


def _reachable(axes: Sequence[_Axis], number: int) -> bool:
    return _flat(axes, number) or _still(axes, number)


def _still(axes: Sequence[_Axis], number: int) -> bool:
    """Whether it is the same element along all of these axes."""
    return bool(axes) and all(axis.strides[number] == 0 for axis in axes)


def _flat(axes: Sequence[_Axis], number: int) -> bool:
    """Whether the elements along these axes follow each other in memory."""
    step = 1
    for axis in reversed(axes):
        if axis.strides[number] != step:
            return False
        step *= axis.size
    return True


def _require_flat(move: Move, number: int, inner: Sequence[_Axis]) -> None:
    if _reachable(inner, number):
        return
    raise refusal(
        move.stage,
        f"elements of a row are {inner[-1].strides[number]} apart in memory, or with gaps; a core moves words of 16",
    )


def _merged(axes: Sequence[_Axis]) -> list[_Axis]:
    """Axes that every load and store steps over evenly are one."""
    merged: list[_Axis] = []
    for axis in axes:
        last = merged[-1] if merged else None
        if last is not None and all(a == b * axis.size for a, b in zip(last.strides, axis.strides, strict=True)):
            merged[-1] = _Axis(last.size * axis.size, axis.strides)
        else:
            merged.append(axis)
    return merged


def _region(
    block: _Block, axes: tuple[Sequence[_Axis], Sequence[_Axis]], single: tuple[bool, ...], length: int, start: int
) -> Region:
    """The region of these row axes, those that are folded second."""
    rows, folded = (*axes[0], *axes[1]), axes[1]
    views: list[View] = []
    for number, move in enumerate(block.moves):
        size = block.bytes_of(move)
        address = block.first(move) + (0 if single[number] else start * size)
        strides = tuple(axis.strides[number] * size for axis in rows)
        views.append(View(address, strides, size, single[number]))
        if single[number]:
            continue
        for what, value in (("begins at byte", address), *(("steps by bytes", stride) for stride in strides)):
            if value % WORD:
                raise refusal(
                    move.stage,
                    f"a row of block {block.number} {what} {value:#x}, no multiple of a word's {WORD}; padded_rows "
                    "places rows so that each begins at a word",
                )
    for number, move in enumerate(block.chain.stores, len(block.chain.loads)):
        if not single[number]:
            _require_room(block, move, length, start, tuple(a.strides[number] for a in rows if a.strides[number]))
    loads = len(block.chain.loads)
    return Region(length, tuple(a.size for a in rows), tuple(views[:loads]), tuple(views[loads:]), len(folded))


def _require_room(block: _Block, move: Move, length: int, start: int, strides: tuple[int, ...]) -> None:
    """What is stored of the word in which a row ends must be nobody's elements."""
    beyond = -length % LANES
    if not beyond:
        return
    placed = block.placed(move)
    run, pitch = runs(block.graph.tensors[move.tensor].local, placed.strides)
    first = (block.first(move) - placed.address) // block.bytes_of(move) + start
    if pitch is None:
        free = not strides and first + length == run
    else:
        free = first % pitch + length == run and pitch - run >= beyond and all(s % pitch == 0 for s in strides)
    if not free:
        raise refusal(
            move.stage,
            f"a row of {length} elements ends inside a word, and the store of the whole word would write over the "
            f"{beyond} elements after it; padded_rows leaves room for them",
        )


def runs(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int | None]:
    """How many elements of a piece follow each other, and how far apart such runs begin; None for a single run."""
    run = 1
    for size, stride in sorted(zip(shape, strides, strict=True), key=lambda pair: pair[1]):
        if size == 1:
            continue
        if stride != run:
            return run, stride
        run *= size
    return run, None
