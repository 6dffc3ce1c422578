"""Faults of form, balance and progress: records, rectangles, numbers of blocks, depths, orders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from meshwright.certify.mutation.editing import (
    appended,
    changed,
    chips_of,
    computed,
    fresh_tensor,
    moves_memory,
    producer,
    relabelled,
    with_affine,
    with_buffer,
    with_group,
    with_kind,
    with_precedence,
    with_stage,
    without,
)
from meshwright.certify.mutation.subject import Edit, Kind, Mutant, Subject, edits
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, ChipId, GroupId, StageId
from meshwright.ir.moves import group_members
from meshwright.ir.operation import Matmul
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Compute, Load, Recv, Stage, Store

_RING: Final = 5
"""From so many chips on, stepping two at a time round a ring has one shortest way."""


# Form


def _no_buffer(graph: Graph) -> Iterator[Edit]:
    missing = BufferId(len(graph.buffers))
    for index, stage in enumerate(graph.stages):
        if stage.ins:
            yield f"s{index}", with_stage(graph, index, replace(stage, ins=(missing, *stage.ins[1:])))


def _longer_box(graph: Graph) -> Iterator[Edit]:
    for kind in (Load, Store):
        for index, _, access, affine in moves_memory(graph, kind):
            longer = replace(affine, box=changed(affine.box, len(affine.box) - 1, 1))
            yield f"s{index}", with_kind(graph, index, with_affine(access, longer))


def _other_format(graph: Graph) -> Iterator[Edit]:
    for index, stage in enumerate(graph.stages):
        if isinstance(stage.kind, (Load, Store)) and (ports := (*stage.ins, *stage.outs)):
            record = graph.buffers[ports[0]]
            other = ElementType.F16 if record.format is ElementType.F32 else ElementType.F32
            yield f"b{ports[0]} at s{index}", with_buffer(graph, ports[0], replace(record, format=other))


def _second_consumer(graph: Graph) -> Iterator[Edit]:
    for index, stage, access, _ in moves_memory(graph, Store):
        tensor, record = fresh_tensor(graph, access.tensor, "again")
        yield f"s{index}", appended(graph, [replace(stage, kind=replace(access, tensor=tensor))], tensors=[record])


def _elsewhere(graph: Graph) -> Iterator[Edit]:
    for index, stage, _ in computed(graph):
        if stage.ins and stage.outs and stage.ins[0] not in stage.outs:
            record = graph.buffers[stage.ins[0]]
            there = replace(record.site, x=record.site.x + 1)
            yield f"b{stage.ins[0]} of s{index}", with_buffer(graph, stage.ins[0], replace(record, site=there))


def _pool_alone(graph: Graph) -> Iterator[Edit]:
    for index, stage in enumerate(graph.stages):
        if isinstance(stage.kind, AllReduce):
            other = Pool.MAX if stage.kind.pool is Pool.SUM else Pool.SUM
            yield f"s{index}", with_kind(graph, index, replace(stage.kind, pool=other))


# Balance


def _short_store(graph: Graph) -> Iterator[Edit]:
    for index, _, access, affine in moves_memory(graph, Store):
        for at, loop in enumerate(affine.loops):
            if loop.extent > 1:
                loops = tuple(replace(x, extent=x.extent - 1) if i == at else x for i, x in enumerate(affine.loops))
                yield f"s{index} loop {at}", with_kind(graph, index, with_affine(access, replace(affine, loops=loops)))


def _short_load(graph: Graph) -> Iterator[Edit]:
    for index, stage in enumerate(graph.stages):
        if isinstance(stage.kind, Load):
            yield f"s{index}", with_kind(graph, index, replace(stage.kind, num_blocks=stage.kind.num_blocks - 1))


def _longer_contraction(graph: Graph) -> Iterator[Edit]:
    for index, _, kind in computed(graph):
        if isinstance(kind.op, Matmul):
            more = replace(kind.op, contraction_blocks=kind.op.contraction_blocks + 1)
            yield f"s{index}", with_kind(graph, index, Compute(more))


def _narrower(graph: Graph) -> Iterator[Edit]:
    for index, group in enumerate(graph.groups):
        for axis in (0, 1):
            if group.high[axis] > group.low[axis]:
                x, y = changed(group.high, axis, -1)
                yield f"g{index} axis {axis}", with_group(graph, index, replace(group, high=(x, y)))


def _wider(graph: Graph) -> Iterator[Edit]:
    for index, group in enumerate(graph.groups):
        for axis in (0, 1):
            x, y = changed(group.high, axis, 1)
            yield f"g{index} axis {axis}", with_group(graph, index, replace(group, high=(x, y)))


def _past_the_mesh(graph: Graph) -> Iterator[Edit]:
    for index, group in enumerate(graph.groups):
        yield f"g{index}", with_group(graph, index, replace(group, high=(group.high[0] + 100, group.high[1])))


def _corners(graph: Graph) -> Iterator[Edit]:
    for index, group in enumerate(graph.groups):
        if group.low != group.high:
            yield f"g{index}", with_group(graph, index, replace(group, low=group.high, high=group.low))


def _no_multicast(subject: Subject) -> Iterator[Mutant]:
    if subject.graph.groups:
        noc = replace(subject.machine.noc, multicast=False)
        yield Mutant("the network", ("GroupIsRectangle",), subject.graph, replace(subject.machine, noc=noc))


def _no_sender(graph: Graph) -> Iterator[Edit]:
    for index, stage in enumerate(graph.stages):
        if isinstance(stage.kind, Load) and stage.kind.multicast is not None:
            alone = with_kind(graph, index, replace(stage.kind, multicast=None))
            if _members(graph, stage.kind.multicast):
                yield f"s{index}", alone if stage.outs else without(graph, {index})


def _members(graph: Graph, group: GroupId) -> tuple[StageId, ...]:
    return group_members(graph)[1][group]


def _no_receiver(graph: Graph) -> Iterator[Edit]:
    senders, _ = group_members(graph)
    for index, stage in enumerate(graph.stages):
        if isinstance(stage.kind, Recv):
            sender = graph.stages[senders[stage.kind.group][0]].kind
            assert isinstance(sender, Load)
            yield f"s{index}", with_kind(graph, index, replace(sender, multicast=None))


def _two_senders(graph: Graph) -> Iterator[Edit]:
    for index, stage in enumerate(graph.stages):
        if not (isinstance(stage.kind, Load) and stage.kind.multicast is not None):
            continue
        if not stage.outs:
            yield f"s{index}", appended(graph, [stage])
            continue
        own = BufferId(len(graph.buffers))
        tensor, record = fresh_tensor(graph, stage.kind.tensor, "again")
        store = Stage(Store(tensor, stage.kind.pattern), (own,))
        more = [replace(stage, outs=(own,)), store]
        yield f"s{index}", appended(graph, more, [graph.buffers[stage.outs[0]]], [record])


# Progress


def _shallower(graph: Graph) -> Iterator[Edit]:
    for index, record in enumerate(graph.buffers):
        if record.depth > 1 and not record.resident:
            yield f"b{index}", with_buffer(graph, index, replace(record, depth=record.depth - 1))


def _against_the_flow(graph: Graph) -> Iterator[Edit]:
    for index, stage, *_ in moves_memory(graph, Store):
        before = producer(graph, stage.ins[0])
        if before is not None:
            yield f"s{index} before s{before}", with_precedence(graph, index, before)


def _round_a_ring(subject: Subject) -> Iterator[Mutant]:
    machine, chips = subject.machine, chips_of(subject.graph)
    count = len(chips)
    if machine.topology != "ring" or count < _RING or count % 2 == 0 or set(chips) != set(machine.mesh_ids):
        return
    around = machine.mesh_ids
    now = {chip: ChipId(around[2 * i % count]) for i, chip in enumerate(around)}
    graph = relabelled(subject.graph, lambda chip: now[chip])
    yield Mutant("every second chip", ("ChannelsAcyclic",), graph, replace(machine, forwards=True))


KINDS: Final = (
    edits("a buffer that isn't there", "Remapped", _no_buffer),
    edits("a box one element too long", "Shapes", _longer_box),
    edits("a buffer of another format", "Shapes", _other_format),
    edits("two consumers of a stream", "Ports", _second_consumer),
    edits("an operand at another site", "Ports", _elsewhere),
    edits("a rectangle one column or row short", "Ports", _narrower),
    edits("a pool without its combine", "CombineMatchesPool", _pool_alone),
    edits("a store cut short", "BlockBalance", _short_store),
    edits("a load cut short", "BlockBalance", _short_load),
    edits("a contraction one block too long", "BlockBalance", _longer_contraction),
    edits("a rectangle past the mesh", "GroupIsRectangle", _past_the_mesh),
    edits("a rectangle with its corners exchanged", "GroupIsRectangle", _corners),
    Kind("a network without multicast", ("GroupIsRectangle",), _no_multicast),
    edits("a second sender", "OneSender", _two_senders),
    edits("a rectangle one column or row too large", "NoOrphanRecv", _wider),
    edits("a receive without a sender", "NoOrphanRecv", _no_sender),
    edits("a site that doesn't receive", "NoOrphanRecv", _no_receiver),
    edits("a FIFO one block too shallow", "NoDeadlock", _shallower),
    edits("a precedence against the flow", "NoDeadlock", _against_the_flow),
    Kind("transfers that chase each other round a ring", ("ChannelsAcyclic",), _round_a_ring),
)
