"""The stages that one vector core runs, cut into chains: Load, Generic and Reduce, Store, joined by FIFOs.

A chain is what one program can keep inside the core. What a core hasn't got, or gets wrong, is refused here, with the
stage and the reason.
"""

from __future__ import annotations

from typing import Final

import msgspec
import rustworkx as rx
from msgspec import Struct

from meshwright.errors import PlacementError
from meshwright.ir.flow import stage_order
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, StageId
from meshwright.ir.operation import ComputeOp, Generic, Reduce, Unit
from meshwright.ir.pattern import Affine
from meshwright.ir.pool import Pool
from meshwright.ir.records import Compute, Load, Site, Stage, Store

FOLDS: Final = frozenset({Pool.SUM, Pool.MAX, Pool.MIN})


class Move(Struct, frozen=True):
    """A load or a store of a chain: stage, buffer in the core, and which boxes of which piece it touches.

    blocks: how many of its blocks one block of the chain takes; they follow each other along the first folded axis.
    """

    stage: StageId
    buffer: BufferId
    tensor: int
    rank: int
    pattern: Affine
    num_blocks: int
    blocks: int = 1


class Chain(Struct, frozen=True):
    """Stages joined by FIFOs, in an order in which they can fire; `size`: of a block along each axis."""

    stages: tuple[StageId, ...]
    loads: tuple[Move, ...]
    computes: tuple[StageId, ...]
    stores: tuple[Move, ...]
    size: tuple[int, ...]
    folded: frozenset[int]
    """Axes longer than one that are folded."""


def chains_at(graph: Graph, site: Site) -> tuple[Chain, ...]:
    """The chains at `site`, in an order in which they can run.

    Raises `PlacementError`, naming the stage, for what a vector core has no instructions for.
    """
    order = [s for s in stage_order(graph) if graph.site(graph.stages[s]) == site]
    joined: rx.PyGraph[StageId, None] = rx.PyGraph()
    nodes = {s: joined.add_node(s) for s in order}
    made = {b: s for s in order for b in graph.stages[s].outs}
    for stage in order:
        for buffer in graph.stages[stage].takes():
            if buffer in made:
                joined.add_edge(nodes[made[buffer]], nodes[stage], None)
    parts = [sorted((joined[node] for node in part), key=order.index) for part in rx.connected_components(joined)]
    return tuple(_chain(graph, tuple(part)) for part in sorted(parts, key=lambda part: order.index(part[-1])))


def _chain(graph: Graph, stages: tuple[StageId, ...]) -> Chain:
    loads: list[Move] = []
    computes: list[StageId] = []
    stores: list[Move] = []
    for stage_id in stages:
        stage = graph.stages[stage_id]
        match stage.kind:
            case Load(tensor=tensor, multicast=None, num_blocks=count, pattern=Affine() as pattern):
                _require_loadable(graph, stage_id, graph.buffers[stage.outs[0]].format)
                rank = graph.rank_of(stage)
                loads.append(Move(stage_id, stage.outs[0], tensor, rank, pattern, count))
            case Store(tensor=tensor, sub_blocks=None, pattern=Affine() as pattern):
                _require_storable(stage_id, graph.buffers[stage.ins[0]].format)
                rank = graph.rank_of(stage)
                stores.append(Move(stage_id, stage.ins[0], tensor, rank, pattern, pattern.num_blocks))
            case Compute(op):
                _require_computable(stage_id, stage, op)
                computes.append(stage_id)
            case _:
                what = f"a {type(stage.kind).__name__}"
                if isinstance(stage.kind, Load | Store):
                    what += " by looked-up positions, to several sites, or in sub-blocks"
                raise refusal(stage_id, f"{what} is not among what a vector core's program does")
    size = _size(graph, stages)
    if not stores:
        raise refusal(stages[0], "nothing of its chain is stored")
    folded = _folded(graph, computes, size)
    blocks = max((op.blocks for op in _reduces(graph, computes)), default=1)
    if blocks > 1:
        size = tuple(have * blocks if a == min(folded) else have for a, have in enumerate(size))
        loads = [_joined(graph, move, stores[0], blocks, folded) for move in loads]
    return Chain(stages, tuple(loads), tuple(computes), tuple(stores), size, folded)


def _reduces(graph: Graph, computes: list[StageId]) -> list[Reduce]:
    kinds = (graph.stages[s].kind for s in computes)
    return [kind.op for kind in kinds if isinstance(kind, Compute) and isinstance(kind.op, Reduce)]


def _joined(graph: Graph, move: Move, store: Move, blocks: int, folded: frozenset[int]) -> Move:
    """The load, `blocks` of its blocks taken as one where it is upstream of a fold that does so."""
    spans = any(graph.buffers[move.buffer].block[a] > 1 for a in folded)
    each = move.num_blocks // store.num_blocks
    if each == 1 and not spans:
        return move
    if each != blocks:
        raise refusal(move.stage, f"it loads {each} blocks of a row for each that is stored, and {blocks} are folded")
    return msgspec.structs.replace(move, blocks=blocks)


def refusal(stage: StageId, reason: str) -> PlacementError:
    """The error that says why stage `stage` can't become instructions."""
    return PlacementError(f"stage s{stage} can't be emitted for a vector core: {reason}")


def _require_loadable(graph: Graph, stage: StageId, format: ElementType) -> None:
    if format not in (ElementType.F16, ElementType.F32):
        raise refusal(stage, f"it loads {format}; a core loads f16 and f32")


def _require_storable(stage: StageId, format: ElementType) -> None:
    if format is ElementType.F32:
        raise refusal(stage, "it stores f32, and the core's f32 stores overwrite every second word; store f16")
    if format is not ElementType.F16:
        raise refusal(stage, f"it stores {format}; a core stores f16")


def _require_computable(stage_id: StageId, stage: Stage, op: ComputeOp) -> None:
    match op:
        case Generic(unit=Unit.VECTOR):
            if any(axes != tuple(range(len(axes))) for axes in op.maps):
                raise refusal(stage_id, f"its operands lie along axes {op.maps}; they have to lie as its result does")
        case Reduce(pool=pool):
            if pool not in FOLDS:
                raise refusal(stage_id, f"a core folds sum, max and min; it has no {pool.value}")
        case _:
            raise refusal(stage_id, f"{type(op).__name__} is not vector work")


def _size(graph: Graph, stages: tuple[StageId, ...]) -> tuple[int, ...]:
    """Elements of a block along each axis; buffers may have 1 instead."""
    blocks = {b: graph.buffers[b].block for s in stages for b in (*graph.stages[s].ins, *graph.stages[s].outs)}
    ranks = sorted({len(block) for block in blocks.values()})
    if len(ranks) != 1:
        raise refusal(stages[0], f"blocks of its chain have {' and '.join(map(str, ranks))} axes; they need the same")
    size = tuple(max(sizes) for sizes in zip(*blocks.values(), strict=True))
    for buffer, block in blocks.items():
        if any(have not in (1, want) for have, want in zip(block, size, strict=True)):
            raise refusal(stages[0], f"b{buffer} has blocks of {list(block)} in a chain of {list(size)}")
    return size


def _folded(graph: Graph, computes: list[StageId], size: tuple[int, ...]) -> frozenset[int]:
    found: frozenset[int] | None = None
    for stage_id in computes:
        kind = graph.stages[stage_id].kind
        if isinstance(kind, Compute) and isinstance(kind.op, Reduce):
            taken = graph.buffers[graph.stages[stage_id].ins[0]].block
            axes = frozenset(a for a in kind.op.axes if taken[a] > 1)
            if not axes:
                raise refusal(stage_id, f"it folds axes {list(kind.op.axes)} of {list(taken)}, one element each")
            if found is not None and axes != found:
                raise refusal(stage_id, f"it folds axes {sorted(axes)}, and another one of its chain {sorted(found)}")
            found = axes
    if not found:
        return frozenset()
    inner = frozenset(a for a in range(min(found), len(size)) if size[a] > 1)
    if inner != found:
        raise refusal(
            computes[0], f"it folds axes {sorted(found)} of blocks of {list(size)}; a core folds along the last ones"
        )
    return found
