"""Accesses to memory: which stages store to and load from which piece, what they touch, and what precedes what."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cached_property
from typing import Final

import numpy as np
import rustworkx as rx
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.ir.flow import order_graph
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, StageId, TensorId
from meshwright.ir.known import known_block
from meshwright.ir.pattern import Affine, Gather, affine_of
from meshwright.ir.records import Load, Store
from meshwright.ir.regions import LookedUp, Region, RegionError, region_of

MOST_ELEMENTS: Final = 1 << 22
"""An update in place is followed element by element in pieces and streams of up to this many elements."""
MOST_PAIRS: Final = 1 << 21
"""No more pairs of accesses to the same piece than this are held against each other; seconds."""
MOST_HELD: Final = 1 << 25
"""Regions of one graph hold no more positions than this; one takes eight bytes."""
MOST_LOOKED_UP: Final = 1 << 8
"""Index buffers of a graph whose content is worked out beforehand."""


class Piece(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The stages that store to, and load from, one rank's piece of a tensor, in table order."""

    tensor: TensorId
    rank: int
    stores: tuple[StageId, ...]
    loads: tuple[StageId, ...]


def touched(graph: Graph) -> tuple[Piece, ...]:
    """For every piece that is stored to, who stores to it and who loads from it, in table order."""
    stores: dict[tuple[TensorId, int], list[StageId]] = defaultdict(list)
    loads: dict[tuple[TensorId, int], list[StageId]] = defaultdict(list)
    for index, stage in enumerate(graph.stages):
        if isinstance(stage.kind, (Load, Store)):
            side = stores if isinstance(stage.kind, Store) else loads
            side[stage.kind.tensor, graph.rank_of(stage)].append(StageId(index))
    results = {(t, r) for t in graph.stored() for r in range(len(graph.tensors[t].chips))}
    return tuple(Piece(t, r, tuple(stores.get((t, r), ())), tuple(loads.get((t, r), ()))) for t, r in sorted(results))


class Accesses(Struct, frozen=True, eq=False, dict=True):
    """The accesses to memory of a graph, and which of them precede which."""

    graph: Graph

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Pieces that are stored to; `RegionError` where more accesses than `MOST_PAIRS` would meet each other."""
        found = touched(self.graph)
        if sum(len(p.stores) * (len(p.stores) + len(p.loads)) for p in found) > MOST_PAIRS:
            raise RegionError(f"over {MOST_PAIRS} pairs of accesses to the same pieces")
        return found

    @cached_property
    def _order(self) -> rx.PyDiGraph[StageId, None]:
        return order_graph(self.graph)

    @cached_property
    def _known(self) -> dict[StageId, set[int]]:
        return {}

    @cached_property
    def _held(self) -> list[int]:
        """How many positions are in regions."""
        return [0]

    @cached_property
    def _regions(self) -> dict[StageId, Region]:
        return {}

    @cached_property
    def _stated(self) -> dict[StageId, set[int]]:
        found: dict[StageId, set[int]] = defaultdict(set)
        for edge in self.graph.precedences:
            found[edge.after].add(edge.before)
        return found

    def before(self, stage: StageId) -> set[int]:
        """The stages that precede a stage."""
        if stage not in self._known:
            self._known[stage] = rx.ancestors(self._order, stage)
        return self._known[stage]

    def precedes(self, first: StageId, second: StageId) -> bool:
        """Whether `first` precedes `second`; a precedence stated between the two is the answer mostly."""
        return first in self._stated.get(second, ()) or first in self.before(second)

    def finished(self, stage: StageId) -> set[int]:
        """The stages that have finished when a stage begins: a FIFO alone doesn't say so, a precedence does."""
        waited = {b for s in (*self.before(stage), stage) for b in self._stated.get(StageId(s), ())}
        return waited.union(*(self.before(StageId(b)) for b in waited))

    def region(self, stage: StageId) -> Region:
        """What a load or store touches in its piece; all of an axis that is looked up. Raises `RegionError`."""
        if stage not in self._regions:
            kind = self.graph.stages[stage].kind
            assert isinstance(kind, (Load, Store))
            shape = self.graph.tensors[kind.tensor].local
            blocks = kind.num_blocks if isinstance(kind, Load) else None
            found = None
            if isinstance(kind.pattern, Gather):
                known = self._indices(kind.pattern)
                positions = None if known is None else tuple(i - kind.pattern.origin for i in known)
                found = LookedUp(kind.pattern.axis, positions)
            region = region_of(affine_of(kind.pattern), shape, blocks, found)
            self._held[0] += sum(len(at) for product in region.products for at in product.positions)
            if self._held[0] > MOST_HELD:
                raise RegionError(f"over {MOST_HELD} positions in all accesses together")
            self._regions[stage] = region
        return self._regions[stage]

    def looked_up(self, stage: StageId) -> bool:
        """Whether positions are looked up that aren't known: what is touched is then only known to be in `region`."""
        kind = self.graph.stages[stage].kind
        if not isinstance(kind, (Load, Store)) or not isinstance(kind.pattern, Gather):
            return False
        return self._indices(kind.pattern) is None

    def _indices(self, gather: Gather) -> tuple[int, ...] | None:
        """The indices of a gather of one block, where they are known beforehand."""
        if gather.index not in self._blocks:
            # Where there are several blocks, they don't come from a stage without inputs, which fires once.
            many = gather.num_blocks != 1 or len(self._blocks) >= MOST_LOOKED_UP
            self._blocks[gather.index] = None if many else known_block(self.graph, gather.index)
        return self._blocks[gather.index]

    @cached_property
    def _blocks(self) -> dict[BufferId, tuple[int, ...] | None]:
        return {}


def overtaken(graph: Graph, load: StageId, store: StageId) -> list[tuple[int, int]] | None:
    """An element that a store, fed by a load, may write before that load has read it for the last time."""
    reading, writing = graph.stages[load].kind, graph.stages[store].kind
    assert isinstance(reading, Load) and isinstance(writing, Store)
    first, second = affine_of(reading.pattern), affine_of(writing.pattern)
    blocks = (reading.num_blocks, second.num_blocks)
    if first == second and blocks[0] == blocks[1]:
        return None  # A pattern that touches nothing twice writes each element in the block that read it.
    shape = graph.tensors[reading.tensor].local
    sizes = [math.prod(p.box) * n for p, n in zip((first, second), blocks, strict=True)]
    if max(*sizes, math.prod(shape)) > MOST_ELEMENTS:
        raise RegionError(f"s{store} updates in place what s{load} loads, over {MOST_ELEMENTS} elements")
    read, written = _last(first, blocks[0], shape), _last(second, blocks[1], shape)
    # When store block t is put, this many blocks at least have been loaded: stages take and give in fixed numbers.
    loaded = -(-(written + 1) * blocks[0] // max(blocks[1], 1))
    late = np.flatnonzero((written >= 0) & (read >= loaded))
    if not late.size:
        return None
    return [(int(i), int(i) + 1) for i in np.unravel_index(int(late[0]), shape)]


def _last(pattern: Affine, blocks: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """For every element the last block that touches it, -1 for none."""
    last = np.full(math.prod(shape), -1, dtype=np.int64)
    for block in range(blocks):
        flat: NDArray[np.int64] = np.zeros((), dtype=np.int64)
        inside: NDArray[np.bool_] = np.ones((), dtype=np.bool_)
        for corner, size, step, extent in zip(pattern.corner(block), pattern.box, pattern.steps, shape, strict=True):
            at = corner + step * np.arange(size, dtype=np.int64)
            flat = flat[..., None] * extent + at
            inside = inside[..., None] & (at >= 0) & (at < extent)
        last[flat[inside]] = block
    return last
