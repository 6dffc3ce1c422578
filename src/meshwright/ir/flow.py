"""What flows: how many blocks pass through each FIFO, and which stage has to come before which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import rustworkx as rx

from meshwright.errors import GraphError
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, GroupId, StageId
from meshwright.ir.operation import Matmul, Permute, Reduce
from meshwright.ir.pattern import Gather
from meshwright.ir.records import Compute, Load, Recv, Stage, Store


def dependencies(graph: Graph) -> tuple[tuple[StageId, StageId], ...]:
    """Pairs (before, after), each once: by FIFO, by multicast, by resident accumulator, by stated precedence."""
    return graph.derived(_dependencies)


def _dependencies(graph: Graph) -> tuple[tuple[StageId, StageId], ...]:
    edges: dict[tuple[StageId, StageId], None] = {}
    producers = {b: StageId(i) for i, s in enumerate(graph.stages) for b in s.outs}
    senders = {s.kind.multicast: StageId(i) for i, s in enumerate(graph.stages) if isinstance(s.kind, Load)}
    for index, stage in enumerate(graph.stages):
        after = StageId(index)
        for buffer in stage.takes():
            if not graph.buffers[buffer].resident:
                edges[producers[buffer], after] = None
        if isinstance(stage.kind, Recv) and stage.kind.group in senders:
            edges[senders[stage.kind.group], after] = None
    for touching in _touching_residents(graph).values():
        edges.update(dict.fromkeys(pairwise(touching)))
    edges.update(dict.fromkeys((e.before, e.after) for e in graph.precedences))
    return tuple(edges)


def _touching_residents(graph: Graph) -> dict[BufferId, list[StageId]]:
    """Stages that open, add to or take out of each accumulator: in table order, which is the order they act in."""
    touching = defaultdict[BufferId, list[StageId]](list)
    for index, stage in enumerate(graph.stages):
        for buffer in dict.fromkeys((*stage.ins, *stage.outs)):
            if graph.buffers[buffer].resident:
                touching[buffer].append(StageId(index))
    return touching


def order_graph(graph: Graph) -> rx.PyDiGraph[StageId, None]:
    """Stages and what must precede what, as a graph of rustworkx; node indices are stage ids."""
    digraph: rx.PyDiGraph[StageId, None] = rx.PyDiGraph()
    digraph.add_nodes_from([StageId(i) for i in range(len(graph.stages))])
    digraph.add_edges_from([(before, after, None) for before, after in dependencies(graph)])
    return digraph


def stage_order(graph: Graph) -> tuple[StageId, ...]:
    """One order in which the stages can run whole, each after all that precede it.

    Raises `GraphError` naming a cycle: no FIFO holds blocks at the start, so stages in a cycle wait for each other.
    """
    return graph.derived(_stage_order)


def _stage_order(graph: Graph) -> tuple[StageId, ...]:
    digraph = order_graph(graph)
    try:
        # Lowest ids first, so that the same graph always gives the same order.
        order = tuple(rx.lexicographical_topological_sort(digraph, key=lambda s: f"{s:012d}"))
    except rx.DAGHasCycle:
        order = ()
    if len(order) < len(graph.stages):
        # Some releases of rustworkx leave a cycle, and all that waits for it, out of the order without a word.
        cycle = " -> ".join(f"s{a}" for a, _ in rx.digraph_find_cycle(digraph))
        raise GraphError(f"NoDeadlock: the stages {cycle} wait for each other in a circle")
    return order


def block_counts(graph: Graph) -> dict[BufferId, int]:
    """How many blocks pass through each buffer; `GraphError` naming the stage where they don't balance.

    An accumulator counts the blocks of the stage that opened it last.
    """
    return dict(graph.derived(_block_counts))


def _block_counts(graph: Graph) -> dict[BufferId, int]:
    counts: dict[BufferId, int] = {}
    sent: dict[GroupId, int] = {}
    for stage_id in stage_order(graph):
        stage = graph.stages[stage_id]
        produced = _check(graph, stage_id, stage, counts, sent)
        for buffer in stage.outs:
            counts[buffer] = produced
        if isinstance(stage.kind, Load) and stage.kind.multicast is not None:
            sent[stage.kind.multicast] = produced
    taken = {b for s in graph.stages for b in s.takes()}
    for buffer, count in counts.items():
        if buffer not in taken and count and not graph.buffers[buffer].resident:
            raise GraphError(f"BlockBalance: {count} blocks are put into b{buffer}, and no stage takes them")
    return counts


def _check(graph: Graph, stage_id: StageId, stage: Stage, counts: dict[BufferId, int], sent: dict[GroupId, int]) -> int:
    """Blocks that the stage produces, after checking that its inputs come in the numbers it takes them in."""
    match stage.kind:
        case Recv(group):
            if group not in sent:
                raise GraphError(f"NoOrphanRecv: stage s{stage_id} receives from g{group}, and no load sends to it")
            return sent[group]
        case Load(num_blocks=blocks):
            firings = blocks
        case Store(pattern=pattern):
            firings = pattern.num_blocks
        case _:
            firings = _firings(stage_id, stage, counts)
    for buffer, each in rates(stage):
        if counts.get(buffer, 0) != each * firings:
            raise GraphError(
                f"BlockBalance: stage s{stage_id} takes {each * firings} blocks from b{buffer} "
                f"({firings} firings of {each}), and {counts.get(buffer, 0)} are put into it"
            )
    return firings * _produced_each(graph, stage)


def _firings(stage_id: StageId, stage: Stage, counts: dict[BufferId, int]) -> int:
    buffer, each = next(rates(stage), (None, 1))
    if buffer is None:
        return 1
    count = counts.get(buffer, 0)
    if count % each:
        raise GraphError(
            f"BlockBalance: stage s{stage_id} takes blocks from b{buffer} {each} at a time, and {count} are put into it"
        )
    return count // each


def rates(stage: Stage) -> Iterator[tuple[BufferId, int]]:
    """Every buffer the stage takes from, with how many blocks one firing takes."""
    match stage.kind:
        case Compute(Matmul(contraction_blocks=blocks, bias=bias)):
            yield stage.ins[0], blocks
            yield stage.ins[1], blocks
            yield from ((b, 1) for b in stage.ins[2:])
            if bias is not None:
                yield bias, 1
        case Compute(Reduce(blocks=blocks)):
            yield stage.ins[0], blocks
        case Compute(Permute() as op):
            yield stage.ins[0], op.blocks_in
        case Load(pattern=Gather(index=index)) | Store(pattern=Gather(index=index)):
            yield from ((b, 1) for b in stage.ins)
            yield index, 1
        case _:
            yield from ((b, 1) for b in stage.ins)


def _produced_each(graph: Graph, stage: Stage) -> int:
    if isinstance(stage.kind, Compute) and isinstance(stage.kind.op, Permute):
        taken = stage.kind.op.blocks_in * graph.buffers[stage.ins[0]].elements
        return taken // graph.buffers[stage.outs[0]].elements
    return 1
