"""What a graph moves between sites and chips: derived from where its stages, buffers and pieces are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, ChipId, StageId
from meshwright.ir.records import AllReduce, Load, Recv, Stage, Store

Move = tuple[StageId, ChipId, ChipId]


def moves(graph: Graph) -> list[Move]:
    """Everything that goes from one chip to another: (stage, from, to).

    A load moves blocks from the chip that holds the piece, a store to it. An `AllReduce` moves the running fold from
    each operand's chip to the next one's and from the last to every output; with two operands and one output it moves
    the operand that isn't there to where the output is.
    """
    found: list[Move] = []
    for index, stage in enumerate(graph.stages):
        here = graph.site(stage).chip
        match stage.kind:
            case Load(tensor=tensor):
                ends = [(graph.tensors[tensor].chips[graph.rank_of(stage)], here)]
            case Store(tensor=tensor):
                ends = [(here, graph.tensors[tensor].chips[graph.rank_of(stage)])]
            case AllReduce():
                ends = list(dict.fromkeys((a, b) for a, b, _ in reduced(graph, stage)))
            case _:
                ends = [(here, graph.buffers[b].site.chip) for b in stage.outs]
        found += [(StageId(index), a, b) for a, b in ends if a != b]
    return found


def reduced(graph: Graph, stage: Stage) -> Iterator[tuple[ChipId, ChipId, BufferId]]:
    """(from chip, to chip, buffer whose blocks go) of an `AllReduce`; each component of a pair fold goes.

    Ends on the same chip are given as well. Raises `TypeError` for a stage of another kind.
    """
    if not isinstance(stage.kind, AllReduce):
        raise TypeError(f"a {type(stage.kind).__name__} folds nothing")
    parts = stage.kind.pool.components
    chips = [graph.buffers[b].site.chip for b in stage.ins[::parts]]
    ends = [graph.buffers[b].site.chip for b in stage.outs[::parts]]
    for part in range(parts):
        ins, outs = stage.ins[part::parts], stage.outs[part::parts]
        if len(chips) == 2 and ends == chips[:1]:
            yield chips[1], chips[0], ins[1]
            continue
        for (source, target), buffer in zip(pairwise(chips), ins, strict=False):
            yield source, target, buffer
        for end, buffer in zip(ends, outs, strict=True):
            yield chips[-1], end, buffer


def group_members(graph: Graph) -> tuple[tuple[tuple[StageId, ...], ...], tuple[tuple[StageId, ...], ...]]:
    """For every multicast group the loads that send to it, and the stages that receive from it."""
    senders: list[list[StageId]] = [[] for _ in graph.groups]
    receivers: list[list[StageId]] = [[] for _ in graph.groups]
    for index, stage in enumerate(graph.stages):
        if isinstance(stage.kind, Load) and stage.kind.multicast is not None:
            senders[stage.kind.multicast].append(StageId(index))
        if isinstance(stage.kind, Recv):
            receivers[stage.kind.group].append(StageId(index))
    return tuple(map(tuple, senders)), tuple(map(tuple, receivers))
