"""Bytes that a graph moves: out of and into DRAM, and from chip to chip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from meshwright.ir.flow import block_counts
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId
from meshwright.ir.moves import reduced
from meshwright.ir.records import AllReduce, Buffer, Load, Recv, Stage, Store

ChipBytes = dict[tuple[int, int], int]
"""Bytes by (from chip, to chip)."""


def block_bytes(buffer: Buffer) -> int:
    """Bytes of one block where elements take the bits of their type."""
    return -(-buffer.elements * buffer.format.bits // 8)


def loaded_bytes(graph: Graph) -> dict[int, int]:
    """Bytes of the blocks that each chip's stages load; pads count as read, a multicast once."""
    return _touched(graph, Load)


def stored_bytes(graph: Graph) -> dict[int, int]:
    """Bytes of the blocks that each chip's stages store."""
    return _touched(graph, Store)


def _touched(graph: Graph, kind: type[Load | Store]) -> dict[int, int]:
    found: Counter[int] = Counter()
    receivers = {s.kind.group: s.outs[0] for s in graph.stages if isinstance(s.kind, Recv) and s.outs}
    for stage in graph.stages:
        match stage.kind:
            case Load(num_blocks=blocks, multicast=multicast) if kind is Load:
                buffer = stage.outs[0] if stage.outs or multicast is None else receivers[multicast]
            case Store(pattern=pattern) if kind is Store:
                blocks, buffer = pattern.num_blocks, stage.ins[0]
            case _:
                continue
        found[graph.site(stage).chip] += blocks * block_bytes(graph.buffers[buffer])
    return dict(found)


def chip_bytes(graph: Graph) -> ChipBytes:
    """Bytes from chip to chip as the graph states them, whatever links there are.

    The blocks are those of `runtime.traffic.link_bytes`, which knows a machine's ways and what its links carry.
    Raises `GraphError` where the graph's blocks don't balance.
    """
    counts = block_counts(graph)
    moved: Counter[tuple[int, int]] = Counter()
    for stage in graph.stages:
        for source, target, buffer in _moves(graph, stage):
            if source != target:
                moved[source, target] += counts.get(buffer, 0) * block_bytes(graph.buffers[buffer])
    return dict(moved)


def _moves(graph: Graph, stage: Stage) -> Iterator[tuple[int, int, BufferId]]:
    here = graph.site(stage).chip
    match stage.kind:
        case Load(tensor=tensor):
            owner = graph.tensors[tensor].chips[graph.rank_of(stage)]
            yield from ((owner, here, buffer) for buffer in stage.outs)
        case Store(tensor=tensor):
            yield here, graph.tensors[tensor].chips[graph.rank_of(stage)], stage.ins[0]
        case AllReduce():
            yield from reduced(graph, stage)
        case _:
            return


def edges(moved: Mapping[tuple[int, int], int]) -> list[tuple[int, int]]:
    """The pairs of chips between which anything moves, each once, in either direction."""
    return sorted({(min(pair), max(pair)) for pair in moved})
