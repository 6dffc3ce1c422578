"""The stages that one vector core runs, cut into chains: Load, Generic and Reduce, Store, joined by FIFOs.

A chain is what one program can keep inside the core. What a core hasn't got, or gets wrong, is refused here, with the
stage and the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import rustworkx as rx
from msgspec import Struct

from meshwright.ir.flow import stage_order
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, StageId
from meshwright.ir.operation import ComputeOp, Generic, Reduce, Unit
from meshwright.ir.pattern import Affine
from meshwright.ir.pool import Pool
from meshwright.ir.records import Compute, Load, Site, Store
from meshwright.targets.ktpu.emit_vector_moves import Move, goes_on, refusal, with_loop_along, without_loop

FOLDS: Final = frozenset({Pool.SUM, Pool.MAX, Pool.MIN})


class Chain(Struct, frozen=True):
    """Stages joined by FIFOs, in an order in which they can fire.

    size: elements of a block along each axis of the results. axes: for each buffer, along which of these its axes run.
    folded: axes longer than one that are folded. spanning: buffers with more than one element along these. across:
    whether a fold goes across vectors instead of within one: elements that are folded aren't the innermost.
    """

    stages: tuple[StageId, ...]
    loads: tuple[Move, ...]
    computes: tuple[StageId, ...]
    stores: tuple[Move, ...]
    size: tuple[int, ...]
    axes: Mapping[BufferId, tuple[int, ...]]
    folded: frozenset[int]
    spanning: frozenset[BufferId]
    across: bool


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
                _require_loadable(stage_id, graph.buffers[stage.outs[0]].format)
                rank = graph.rank_of(stage)
                loads.append(Move(stage_id, stage.outs[0], tensor, rank, pattern, count))
            case Store(tensor=tensor, sub_blocks=None, pattern=Affine() as pattern):
                _require_storable(stage_id, graph.buffers[stage.ins[0]].format)
                rank = graph.rank_of(stage)
                stores.append(Move(stage_id, stage.ins[0], tensor, rank, pattern, pattern.num_blocks))
            case Compute(op):
                _require_computable(stage_id, op)
                computes.append(stage_id)
            case _:
                what = f"a {type(stage.kind).__name__}"
                if isinstance(stage.kind, Load | Store):
                    what += " by looked-up positions, to several sites, or in sub-blocks"
                raise refusal(stage_id, f"{what} is not among what a vector core's program does")
    if not stores:
        raise refusal(stages[0], "nothing of its chain is stored")
    axes = _axes(graph, computes, stores)
    loads, stores = ([_lined_up(graph, move, axes) for move in moves] for moves in (loads, stores))
    size = _size(graph, stages, axes)
    folded = _folded(graph, computes, axes)
    blocks = max((op.blocks for op in _reduces(graph, computes)), default=1)
    if blocks > 1:
        axis = min(folded)
        size = tuple(have * blocks if a == axis else have for a, have in enumerate(size))
        loads = [_joined(graph, move, stores[0].num_blocks, blocks, (axes[move.buffer], axis)) for move in loads]
    across = bool(folded) and folded != frozenset(a for a in range(min(folded), len(size)) if size[a] > 1)
    spanning = _spanning(graph, loads, computes, axes, folded)
    return Chain(stages, tuple(loads), tuple(computes), tuple(stores), size, axes, folded, spanning, across)


def _reduces(graph: Graph, computes: list[StageId]) -> list[Reduce]:
    kinds = (graph.stages[s].kind for s in computes)
    return [kind.op for kind in kinds if isinstance(kind, Compute) and isinstance(kind.op, Reduce)]


def _lined_up(graph: Graph, move: Move, axes: Mapping[BufferId, tuple[int, ...]]) -> Move:
    block, own = graph.buffers[move.buffer].block, axes[move.buffer]
    if len(move.pattern.box) == len(block):
        return msgspec.structs.replace(move, along=own)
    # Then axes of one element don't count.
    left = iter([axis for axis, size in zip(own, block, strict=True) if size != 1])
    along = tuple(next(left) if size != 1 else None for size in move.pattern.box)
    return msgspec.structs.replace(move, along=along)


def _joined(graph: Graph, move: Move, stored: int, blocks: int, where: tuple[tuple[int, ...], int]) -> Move:
    """The load, `blocks` of its blocks taken as one where it is upstream of a fold that does so."""
    axes, axis = where
    spans = any(size > 1 and own == axis for size, own in zip(graph.buffers[move.buffer].block, axes, strict=True))
    each = move.num_blocks // stored
    if each == 1 and not spans:
        return move
    if each != blocks:
        raise refusal(move.stage, f"it loads {each} blocks of a row for each that is stored, and {blocks} are folded")
    left = blocks
    while left > 1:
        at = len(move.pattern.loops) - 1
        found = with_loop_along(move, at, axis) if at >= 0 else move
        if at < 0 or left % move.pattern.loops[at].extent or not goes_on(found, at, axis):
            raise refusal(move.stage, f"the {blocks} blocks of a row don't follow each other")
        left //= move.pattern.loops[at].extent
        move = without_loop(found, at, axis)
    return move


def _spanning(
    graph: Graph,
    loads: list[Move],
    computes: list[StageId],
    axes: Mapping[BufferId, tuple[int, ...]],
    folded: frozenset[int],
) -> frozenset[BufferId]:
    """Buffers with more than one element along a folded axis; of those in parts, all parts together."""
    found = {
        buffer
        for buffer, own in axes.items()
        if any(size > 1 and axis in folded for size, axis in zip(graph.buffers[buffer].block, own, strict=True))
    }
    for move in loads:
        if any(size > 1 and axis in folded for size, axis in zip(move.pattern.box, move.along, strict=True)):
            found.add(move.buffer)
    for stage_id in computes:
        stage = graph.stages[stage_id]
        assert isinstance(stage.kind, Compute)
        if isinstance(stage.kind.op, Generic) and any(taken in found for taken in stage.ins):
            found.update(stage.outs)
    return frozenset(found)


def _require_loadable(stage: StageId, format: ElementType) -> None:
    if format not in (ElementType.F16, ElementType.F32):
        what = "; it has no instructions for whole numbers" if format.is_integer else ""
        raise refusal(stage, f"it loads {format}; a core loads f16 and f32{what}")


def _require_storable(stage: StageId, format: ElementType) -> None:
    if format is ElementType.F32:
        raise refusal(stage, "it stores f32, and the core's f32 stores overwrite every second word; store f16")
    if format is not ElementType.F16:
        raise refusal(stage, f"it stores {format}; a core stores f16")


def _require_computable(stage_id: StageId, op: ComputeOp) -> None:
    match op:
        case Generic(unit=Unit.VECTOR):
            pass
        case Reduce(pool=pool):
            if pool not in FOLDS:
                raise refusal(stage_id, f"a core folds sum, max and min; it has no {pool.value}")
        case _:
            raise refusal(stage_id, f"{type(op).__name__} is not vector work")


def _axes(graph: Graph, computes: list[StageId], stores: list[Move]) -> dict[BufferId, tuple[int, ...]]:
    """For each buffer, along which axes of the results its axes run: as maps of Generics say, from the stores back."""
    ranks = sorted({len(graph.buffers[move.buffer].block) for move in stores})
    if len(ranks) != 1:
        raise refusal(
            stores[-1].stage, f"stores of its chain have {' and '.join(map(str, ranks))} axes; they need the same"
        )
    axes = {move.buffer: tuple(range(ranks[0])) for move in stores}
    for stage_id in reversed(computes):
        stage = graph.stages[stage_id]
        found = {axes[out] for out in stage.outs if out in axes}
        if len(found) != 1:
            what = " and ".join(str(list(each)) for each in sorted(found)) or "none that is stored"
            raise refusal(stage_id, f"its results lie along axes {what} of what its chain stores; one program has one")
        (own,) = found
        kind = stage.kind
        assert isinstance(kind, Compute)
        maps = kind.op.maps if isinstance(kind.op, Generic) else (tuple(range(len(own))),)
        for taken, along in zip(stage.ins, maps, strict=True):
            wanted = tuple(own[a] for a in along)
            if axes.setdefault(taken, wanted) != wanted:
                raise refusal(
                    stage_id, f"b{taken} lies along axes {list(axes[taken])} for it and {list(wanted)} as well"
                )
    return axes


def _size(graph: Graph, stages: tuple[StageId, ...], axes: Mapping[BufferId, tuple[int, ...]]) -> tuple[int, ...]:
    """Elements of a block along each axis of the results; buffers may have 1 instead, or lack the axis."""
    size = [1] * (1 + max((a for each in axes.values() for a in each), default=-1))
    for buffer, along in axes.items():
        for axis, have in zip(along, graph.buffers[buffer].block, strict=True):
            size[axis] = max(size[axis], have)
    for buffer, along in axes.items():
        block = graph.buffers[buffer].block
        if any(have not in (1, size[axis]) for axis, have in zip(along, block, strict=True)):
            raise refusal(stages[0], f"b{buffer} has blocks of {list(block)} in a chain of {size}")
    return tuple(size)


def _folded(graph: Graph, computes: list[StageId], axes: Mapping[BufferId, tuple[int, ...]]) -> frozenset[int]:
    found: frozenset[int] | None = None
    for stage_id in computes:
        kind = graph.stages[stage_id].kind
        if isinstance(kind, Compute) and isinstance(kind.op, Reduce):
            buffer = graph.stages[stage_id].ins[0]
            taken = graph.buffers[buffer].block
            along = [axes[buffer][a] for a in sorted(kind.op.axes) if taken[a] > 1]
            folded = frozenset(along)
            if not folded:
                if kind.op.blocks == 1:
                    continue
                if len(kind.op.axes) != 1:
                    raise refusal(
                        stage_id,
                        f"it folds {kind.op.blocks} blocks of {list(taken)} along axes {list(kind.op.axes)}; parts of "
                        "one element don't say along which of them they follow each other",
                    )
                folded = frozenset({axes[buffer][kind.op.axes[0]]})
            if along != sorted(along):
                raise refusal(
                    stage_id, f"it folds axes that are {along} of what is stored, and takes them in that order"
                )
            if found is not None and folded != found:
                raise refusal(stage_id, f"it folds axes {sorted(folded)}, and another one of its chain {sorted(found)}")
            found = folded
    return found or frozenset()
