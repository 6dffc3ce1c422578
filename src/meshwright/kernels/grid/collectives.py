"""All-reduce, all-gather and reduce-scatter along a line or around a ring of chips, one hop a step.

A value is cut into as many chunks as there are chips; chunk c belongs to the chip at place c. Around a ring chunks move
forward only, so every link carries N - 1 of them for a reduce-scatter or an all-gather, 2 (N - 1) for an all-reduce,
and so many steps it takes. Along a line they come from both ends and go to both.

Order of a fold. Ring: chunk c begins at place c + 1 and is folded with each next place's own, place c last:
((x[c+1] . x[c+2]) . ... ) . x[c], counted around. Line: from the start up to the place before c, then c's own, then
with what the places after c have folded from the end: ((x[0] . ... . x[c-1]) . x[c]) . (x[N-1] . ... . x[c+1]).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from meshwright.errors import KernelError
from meshwright.ir.build import GraphBuilder
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, StageId, TensorId
from meshwright.ir.operation import Unit, combine
from meshwright.ir.pattern import Affine
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Site
from meshwright.ir.spec import COPIED, Spec
from meshwright.kernels.grid.regions import chunks, shifted, streams
from meshwright.kernels.grid.route import Route
from meshwright.kernels.move import BLOCK_ELEMENTS
from meshwright.kernels.placement import Placement

VALUE: Final = "value"
"""The tensor that a collective's graph reads."""
RESULT: Final = "result"
"""The tensor that it stores."""

Places = Callable[[int], Placement]
"""A chip of the machine as kernels see it, by its id: `lambda chip: targets.placement(machine, chip)`."""


def all_reduce(
    route: Route,
    places: Places,
    shape: Sequence[int],
    format: ElementType,
    pool: Pool = Pool.SUM,
    carried: ElementType | None = None,
    axis: int | None = None,
) -> Graph:
    """The graph that folds `value`, a contribution in `pool` on every chip of `route`, to `result` on all of them.

    Rank r of both tensors is at place r. carried: the element type in which partial results go from chip to chip (a
    contribution alone goes as it is); None for that of the value. axis: the one that is cut into chunks, by default the
    longest, of any size.
    Raises `KernelError` for a pool of pairs, a value without axes or elements, or an axis that isn't there.
    """
    work = _Work.of("all_reduce", route, places, shape, format, axis)
    _require_pool("all_reduce", pool)
    value = work.builder.tensor(VALUE, shape, format, route.chips, Spec(partial=pool))
    result = work.builder.tensor(RESULT, shape, format, route.chips, COPIED)
    relay = work.relay(RESULT, format)
    for chunk, (low, size) in enumerate(work.boxes()):
        for pattern in streams(low, size, BLOCK_ELEMENTS):
            folded = work.fold(chunk, value, pattern, pool, carried or format)
            stored = work.builder.store(relay, pattern, folded)
            work.pass_on(chunk, _Waiting(relay, pattern, (stored,)), result, relay)
    return work.builder.graph()


def reduce_scatter(
    route: Route,
    places: Places,
    shape: Sequence[int],
    format: ElementType,
    pool: Pool = Pool.SUM,
    axis: int = 0,
    carried: ElementType | None = None,
) -> Graph:
    """The graph that folds `value`, a contribution in `pool` on every chip, to `result`, split on `axis`.

    Place r keeps slice r. Raises what `all_reduce` does, and `SplitError` where the axis is no multiple of the chips.
    """
    work = _Work.of("reduce_scatter", route, places, shape, format, axis)
    _require_pool("reduce_scatter", pool)
    Spec.on(work.axis).local(shape, len(route))
    value = work.builder.tensor(VALUE, shape, format, route.chips, Spec(partial=pool))
    result = work.builder.tensor(RESULT, shape, format, route.chips, Spec.on(work.axis))
    for chunk, (low, size) in enumerate(work.boxes()):
        for pattern in streams(low, size, BLOCK_ELEMENTS):
            folded = work.fold(chunk, value, pattern, pool, carried or format)
            work.builder.store(result, shifted(pattern, [-start for start in low]), folded)
    return work.builder.graph()


def all_gather(route: Route, places: Places, shape: Sequence[int], format: ElementType, axis: int = 0) -> Graph:
    """The graph that puts `value`, split on `axis`, slice r at place r, together as `result` on every chip.

    shape: of the whole. Raises as `reduce_scatter` does.
    """
    work = _Work.of("all_gather", route, places, shape, format, axis)
    Spec.on(work.axis).local(shape, len(route))
    value = work.builder.tensor(VALUE, shape, format, route.chips, Spec.on(work.axis))
    result = work.builder.tensor(RESULT, shape, format, route.chips, COPIED)
    relay = work.relay(RESULT, format) if len(route) > 2 else None
    for chunk, (low, size) in enumerate(work.boxes()):
        for pattern in streams(low, size, BLOCK_ELEMENTS):
            own = shifted(pattern, [-start for start in low])
            work.pass_on(chunk, _Waiting(value, own, at=pattern), result, relay)
    return work.builder.graph()


def _require_pool(name: str, pool: Pool) -> None:
    if pool.components > 1:
        single = ", ".join(p.value for p in Pool if p.components == 1)
        raise KernelError(
            f"{name}: {pool.value} folds pairs of a value and its position, and a chunk is one value. "
            f"Pools of one value are {single}"
        )


class _Waiting(Struct, frozen=True):
    """Blocks in DRAM: where they are, and after which stages. at: where they belong, if that isn't the same boxes."""

    tensor: TensorId
    pattern: Affine
    ready: tuple[StageId, ...] = ()
    at: Affine | None = None

    @property
    def target(self) -> Affine:
        """The boxes where they belong."""
        return self.pattern if self.at is None else self.at


class _Work(Struct, frozen=True):
    """What every collective is built with: `builder` and `sites` by place, `axis` is cut into chunks."""

    builder: GraphBuilder
    sites: tuple[tuple[Site, ...], ...]
    closed: bool
    shape: tuple[int, ...]
    axis: int

    @classmethod
    def of(
        cls, name: str, route: Route, places: Places, shape: Sequence[int], format: ElementType, axis: int | None
    ) -> _Work:
        """Refuses, as `name`, what no collective can do."""
        value = f"{format}[{', '.join(map(str, shape))}]"
        if not shape or 0 in shape:
            raise KernelError(f"{name} of {value}: it has no {'elements' if shape else 'axes'}; nothing can be cut")
        cut = max(range(len(shape)), key=lambda a: (shape[a], -a)) if axis is None else axis
        if not -len(shape) <= cut < len(shape):
            raise KernelError(f"{name} of {value} along axis {cut}: it has {len(shape)} axes")
        sites = tuple(places(chip).vector_sites() for chip in route.chips)
        return cls(GraphBuilder(), sites, route.closed, tuple(shape), cut % len(shape))

    def boxes(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Where each chunk begins, and its shape."""
        return [
            (
                tuple(start if a == self.axis else 0 for a in range(len(self.shape))),
                tuple(size if a == self.axis else whole for a, whole in enumerate(self.shape)),
            )
            for start, size in chunks(self.shape[self.axis], len(self.sites))
        ]

    def site(self, place: int, chunk: int) -> Site:
        """Which site of a chip works on a chunk: they take turns."""
        return self.sites[place][chunk % len(self.sites[place])]

    def load(
        self, place: int, chunk: int, tensor: TensorId, pattern: Affine, after: Sequence[StageId] = ()
    ) -> BufferId:
        """The blocks of the piece at `place`, in a buffer there."""
        taken = self.builder.fifo(self.site(place, chunk), pattern.box, self.builder.element_type(tensor))
        self.builder.load(tensor, pattern, taken, after=after)
        return taken

    def fold(self, chunk: int, value: TensorId, pattern: Affine, pool: Pool, carried: ElementType) -> BufferId:
        """The folded blocks, in a buffer at the chunk's own place and of the value's element type."""
        count = len(self.sites)
        if self.closed:
            before, after = [(chunk + 1 + step) % count for step in range(count - 1)], []
        else:
            before, after = list(range(chunk)), list(range(count - 1, chunk, -1))
        arriving = [self._fold_along(chunk, way, value, pattern, pool, carried) for way in (before, after) if way]
        folded = self.load(chunk, chunk, value, pattern)
        for number, other in enumerate(arriving, start=1):
            out = self.builder.element_type(value) if number == len(arriving) else carried
            folded = self._pair(chunk, chunk, (folded, other), (value, pool, out))
        return folded

    def _fold_along(
        self, chunk: int, way: Sequence[int], value: TensorId, pattern: Affine, pool: Pool, carried: ElementType
    ) -> BufferId:
        """The fold of the contributions at the places of `way`, in a buffer at the last of them."""
        folded = self.load(way[0], chunk, value, pattern)
        for place in way[1:]:
            own = self.load(place, chunk, value, pattern)
            folded = self._pair(place, chunk, (own, folded), (value, pool, carried))
        return folded

    def _pair(
        self, place: int, chunk: int, ins: tuple[BufferId, BufferId], of: tuple[TensorId, Pool, ElementType]
    ) -> BufferId:
        """What is at `place` and what arrives there, folded; the second input moves."""
        value, pool, format = of
        block = self.builder.block(ins[0])
        out = self.builder.fifo(self.site(place, chunk), block, format)
        fold = AllReduce(pool, value, combine(2, len(block), pool, Unit.VECTOR))
        self.builder.stage(fold, ins, (out,))
        return out

    def relay(self, value: str, format: ElementType) -> TensorId:
        """Where chunks wait on their way; nobody reads the result, so that it is one."""
        chips = [at[0].chip for at in self.sites]
        return self.builder.tensor(f"{value} on its way", self.shape, format, chips, COPIED)

    def copy(self, place: int, chunk: int, source: _Waiting, target: TensorId, to: int) -> StageId:
        """What waits at `place`, stored to the piece of `target` at place `to`."""
        taken = self.load(place, chunk, source.tensor, source.pattern, source.ready)
        return self.builder.store(target, source.target, taken, rank=to)

    def pass_on(self, chunk: int, source: _Waiting, result: TensorId, relay: TensorId | None) -> None:
        """What waits at the chunk's own place goes to the result there and everywhere, neighbour by neighbour.

        relay: where it waits at the places on the way; None where there are none.
        """
        count = len(self.sites)
        if self.closed:
            ways = [[(chunk + step) % count for step in range(count)]]
        else:
            ways = [list(range(chunk, count)), list(range(chunk, -1, -1))]
        self.copy(chunk, chunk, source, result, chunk)
        for way in ways:
            waiting = source
            for place, following in pairwise(way):
                if following == way[-1] or relay is None:
                    self.copy(place, chunk, waiting, result, following)
                    continue
                stored = self.copy(place, chunk, waiting, relay, following)
                waiting = _Waiting(relay, source.target, (stored,))
                self.copy(following, chunk, waiting, result, following)
