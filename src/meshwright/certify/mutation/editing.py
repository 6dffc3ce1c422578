"""Graphs with one record changed, added or taken away."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from msgspec.structs import replace

from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, ChipId, StageId, TensorId
from meshwright.ir.pattern import Affine, Gather, affine_of
from meshwright.ir.records import (
    Buffer,
    Compute,
    Group,
    Load,
    Precedence,
    Recv,
    Site,
    Stage,
    StageKind,
    Store,
    Tensor,
)


def with_stage(graph: Graph, index: int, stage: Stage) -> Graph:
    """One stage in place of another."""
    return replace(graph, stages=(*graph.stages[:index], stage, *graph.stages[index + 1 :]))


def with_kind(graph: Graph, index: int, kind: StageKind) -> Graph:
    """One stage with another kind."""
    return with_stage(graph, index, replace(graph.stages[index], kind=kind))


def with_buffer(graph: Graph, index: int, buffer: Buffer) -> Graph:
    """One buffer in place of another."""
    return replace(graph, buffers=(*graph.buffers[:index], buffer, *graph.buffers[index + 1 :]))


def with_tensor(graph: Graph, index: int, tensor: Tensor) -> Graph:
    """One tensor in place of another."""
    return replace(graph, tensors=(*graph.tensors[:index], tensor, *graph.tensors[index + 1 :]))


def with_group(graph: Graph, index: int, group: Group) -> Graph:
    """One multicast rectangle in place of another."""
    return replace(graph, groups=(*graph.groups[:index], group, *graph.groups[index + 1 :]))


def with_precedence(graph: Graph, before: int, after: int) -> Graph:
    """One more precedence."""
    return replace(graph, precedences=(*graph.precedences, Precedence(StageId(before), StageId(after))))


def appended(
    graph: Graph, stages: Sequence[Stage] = (), buffers: Sequence[Buffer] = (), tensors: Sequence[Tensor] = ()
) -> Graph:
    """More records at the end of the tables; ids there before stay."""
    return replace(
        graph,
        stages=(*graph.stages, *stages),
        buffers=(*graph.buffers, *buffers),
        tensors=(*graph.tensors, *tensors),
    )


def reordered(graph: Graph, order: Sequence[int]) -> Graph:
    """The stages named, in that order; precedences follow them, and go with a stage that is left out."""
    now = {old: StageId(new) for new, old in enumerate(order)}
    kept = (e for e in graph.precedences if e.before in now and e.after in now)
    return replace(
        graph,
        stages=tuple(graph.stages[i] for i in order),
        precedences=tuple(Precedence(now[e.before], now[e.after]) for e in kept),
    )


def without(graph: Graph, gone: Collection[int]) -> Graph:
    """Some stages taken away."""
    return reordered(graph, [i for i in range(len(graph.stages)) if i not in gone])


def producer(graph: Graph, buffer: BufferId) -> StageId | None:
    """The stage that fills a FIFO."""
    return next((StageId(i) for i, s in enumerate(graph.stages) if buffer in s.outs), None)


def upstream(graph: Graph, buffer: BufferId) -> set[int] | None:
    """The stages that work for one FIFO alone; None where one of them works for others as well, or an accumulator."""
    found: set[int] = set()
    wanted = [buffer]
    while wanted:
        here = wanted.pop()
        stage = producer(graph, here)
        if stage is None or graph.buffers[here].resident:
            return None
        record = graph.stages[stage]
        alone = not isinstance(record.kind, Recv) and len(record.outs) == 1
        if not alone or (isinstance(record.kind, Load) and record.kind.multicast is not None):
            return None
        found.add(stage)
        wanted += [b for b in record.takes() if b not in record.outs]
    return found


def moves_memory(graph: Graph, kind: type[Load] | type[Store]) -> Iterator[tuple[int, Stage, Load | Store, Affine]]:
    """Every load, or every store, with its stage and its pattern (the one under a gather)."""
    for index, stage in enumerate(graph.stages):
        if isinstance(stage.kind, kind):
            yield index, stage, stage.kind, affine_of(stage.kind.pattern)


def with_affine(kind: Load | Store, affine: Affine) -> Load | Store:
    """The same access by another affine pattern, for all of its blocks."""
    pattern = replace(kind.pattern, base=affine) if isinstance(kind.pattern, Gather) else affine
    if isinstance(kind, Load):
        return replace(kind, pattern=pattern, num_blocks=affine.num_blocks)
    return replace(kind, pattern=pattern)


def computed(graph: Graph) -> Iterator[tuple[int, Stage, Compute]]:
    """Every compute stage."""
    for index, stage in enumerate(graph.stages):
        if isinstance(stage.kind, Compute):
            yield index, stage, stage.kind


def relabelled(graph: Graph, chip: Callable[[ChipId], ChipId]) -> Graph:
    """Every chip called something else."""

    def site(there: Site) -> Site:
        return replace(there, chip=chip(there.chip))

    return replace(
        graph,
        tensors=tuple(replace(t, chips=tuple(map(chip, t.chips))) for t in graph.tensors),
        buffers=tuple(replace(b, site=site(b.site)) for b in graph.buffers),
        groups=tuple(replace(g, sender=site(g.sender)) for g in graph.groups),
    )


def chips_of(graph: Graph) -> tuple[ChipId, ...]:
    """The chips that stages run on."""
    return tuple(dict.fromkeys(b.site.chip for b in graph.buffers))


def changed(items: Sequence[int], at: int, by: int) -> tuple[int, ...]:
    """A tuple with one number more or less."""
    return tuple(n + by if i == at else n for i, n in enumerate(items))


def fresh_tensor(graph: Graph, like: TensorId, name: str) -> tuple[TensorId, Tensor]:
    """Another tensor of the same kind, for `appended`."""
    return TensorId(len(graph.tensors)), replace(graph.tensors[like], name=name)
