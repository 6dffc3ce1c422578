"""Faults of capacity, memory and fabric: too much of something, accesses in the wrong place or order, missing units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise
from typing import Final

from msgspec.structs import replace

from meshwright.certify.mutation.editing import (
    appended,
    changed,
    chips_of,
    fresh_tensor,
    moves_memory,
    relabelled,
    upstream,
    with_affine,
    with_buffer,
    with_kind,
    without,
)
from meshwright.certify.mutation.subject import Edit, Kind, Mutant, Subject, edits, places
from meshwright.ir.expression import Operand
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, ChipId
from meshwright.ir.moves import moves
from meshwright.ir.operation import Generic, Matmul
from meshwright.ir.pattern import Affine, Gather
from meshwright.ir.records import Compute, Load, Site, Stage, Store, Tensor
from meshwright.machine import MachineSpec, MeshSpec

_DEEP: Final = 1 << 24
"""Blocks that fit no memory."""
_MANY: Final = 300
"""More stages at a unit than any machine has commands for in a round."""
_ACCESS: Final = ("ReadAfterWrite", "WrittenOnce", "Covered")
_BETWEEN: Final[Mapping[tuple[type, type], str]] = {
    (Store, Load): "ReadAfterWrite",
    (Load, Store): "NoLiveOverwrite",
    (Store, Store): "WrittenOnce",
}


def _unit(machine: MachineSpec, site: Site) -> str:
    mesh = next((m for m in machine.meshes if m.id == site.chip), None)
    there = [] if mesh is None else [unit.type for unit in mesh.units if (site.x, site.y) in unit.at]
    return there[0] if there else ""


# Capacity


def _deep_fifo(subject: Subject) -> Iterator[Mutant]:
    graph, machine = subject.graph, subject.machine
    operands = {
        b for s in graph.stages if isinstance(s.kind, Compute) and isinstance(s.kind.op, Matmul) for b in s.ins[:2]
    }
    for index, record in enumerate(graph.buffers):
        unit = _unit(machine, record.site)
        # A value in a lane's own format passes from stage to stage in registers and takes no memory.
        stays = not record.resident and record.format.in_memory
        if stays and (unit in ("site", "VC") or (unit == "MG" and index in operands)):
            deep = with_buffer(graph, index, replace(record, depth=_DEEP))
            yield Mutant(f"b{index} on {unit}", ("BufferFits",), deep, machine)


def _deep_accumulator(subject: Subject) -> Iterator[Mutant]:
    cluster = subject.machine.maybe_cluster
    if cluster is None:
        return
    for index, record in enumerate(subject.graph.buffers):
        if record.resident:
            deep = replace(record, depth=record.depth + cluster.accumulator_tiles)
            yield Mutant(f"b{index}", ("AccumulatorFits",), with_buffer(subject.graph, index, deep), subject.machine)


def _large_tensor(subject: Subject) -> Iterator[Mutant]:
    for chip in chips_of(subject.graph):
        large = Tensor("large", (subject.machine.dram.usable_bytes // 4, 2), ElementType.F32, (chip,))
        yield Mutant(f"chip {chip}", ("ArenaFits",), appended(subject.graph, tensors=[large]), subject.machine)


def _long_round(subject: Subject) -> Iterator[Mutant]:
    """Stages that pass blocks on as they are, put between the producer of a FIFO and its consumer."""
    graph, machine = subject.graph, subject.machine
    if machine.maybe_dispatch is None:
        return
    for index, stage in enumerate(graph.stages):
        for buffer in stage.outs:
            record = graph.buffers[buffer]
            if record.resident or _unit(machine, record.site) != "VC":
                continue
            chain = [BufferId(len(graph.buffers) + i) for i in range(_MANY)]
            same = Compute(Generic.elementwise(Operand(0), 1, len(record.block)))
            way = [*chain, buffer]
            more = [Stage(same, (a,), (b,)) for a, b in pairwise(way)]
            first = replace(stage, outs=tuple(chain[0] if b == buffer else b for b in stage.outs))
            stages = (*graph.stages[:index], first, *graph.stages[index + 1 :])
            longer = appended(replace(graph, stages=stages), more, [record] * _MANY)
            yield Mutant(f"b{buffer} after s{index}", ("RoundFits",), longer, machine)


# Memory


def _no_precedence(subject: Subject) -> Iterator[Mutant]:
    graph = subject.graph
    for index, edge in enumerate(graph.precedences):
        ends = (type(graph.stages[edge.before].kind), type(graph.stages[edge.after].kind))
        belongs = (_BETWEEN[ends],) if ends in _BETWEEN else tuple(_BETWEEN.values())
        fewer = replace(graph, precedences=(*graph.precedences[:index], *graph.precedences[index + 1 :]))
        yield Mutant(f"s{edge.before} before s{edge.after}", belongs, fewer, subject.machine)


def _same_place(graph: Graph) -> Iterator[Edit]:
    for index, _, access, affine in moves_memory(graph, Store):
        for at, loop in enumerate(affine.loops):
            if loop.extent > 1 and any(loop.stride):
                stays = replace(loop, stride=(0,) * len(loop.stride))
                loops = (*affine.loops[:at], stays, *affine.loops[at + 1 :])
                yield f"s{index} loop {at}", with_kind(graph, index, with_affine(access, replace(affine, loops=loops)))


def _not_stored(subject: Subject) -> Iterator[Mutant]:
    """A store, and what works for it alone, taken away. Without any store a tensor is an input, or isn't made."""
    graph = subject.graph
    for index, stage, access, _ in moves_memory(graph, Store):
        above = upstream(graph, stage.ins[0])
        if above is None:
            continue
        fewer = without(graph, {index, *above})
        loaded = access.tensor in graph.loaded()
        owner = "SameFunction" if access.tensor not in fewer.stored() else "ReadAfterWrite" if loaded else "Covered"
        yield Mutant(f"s{index}", (owner,), fewer, subject.machine)


def _moved_store(graph: Graph) -> Iterator[Edit]:
    for index, _, access, affine in moves_memory(graph, Store):
        for axis in range(len(affine.box)):
            if isinstance(access.pattern, Gather) and axis == access.pattern.axis:
                continue
            there = replace(affine, offset=changed(affine.offset, axis, 1))
            yield f"s{index} axis {axis}", with_kind(graph, index, with_affine(access, there))


def _store_stride(graph: Graph) -> Iterator[Edit]:
    for index, _, access, affine in moves_memory(graph, Store):
        for place, other in strides_off(affine):
            yield f"s{index} {place}", with_kind(graph, index, with_affine(access, other))


def strides_off(affine: Affine) -> Iterator[tuple[str, Affine]]:
    """The pattern with one stride of a loop that turns more than once one less, or one more."""
    for at, loop in enumerate(affine.loops):
        for axis, stride in enumerate(loop.stride):
            for by in (-1, 1) if stride and loop.extent > 1 else ():
                off = replace(loop, stride=changed(loop.stride, axis, by))
                loops = (*affine.loops[:at], off, *affine.loops[at + 1 :])
                yield f"loop {at} axis {axis} by {by}", replace(affine, loops=loops)


def _overwritten(graph: Graph) -> Iterator[Edit]:
    """Something else is stored where a load reads, and nothing says when."""
    for index, stage, access, affine in moves_memory(graph, Load):
        if stage.outs and not isinstance(access.pattern, Gather) and affine.pad is None:
            tensor, record = fresh_tensor(graph, access.tensor, "other")
            fifo = BufferId(len(graph.buffers))
            first = replace(affine, loops=())
            load = Stage(replace(access, tensor=tensor, pattern=first, num_blocks=1, multicast=None), (), (fifo,))
            store = Stage(Store(access.tensor, first, rank=access.rank), (fifo,))
            yield f"s{index}", appended(graph, [load, store], [graph.buffers[stage.outs[0]]], [record])


def _overlapping(subject: Subject) -> Iterator[Mutant]:
    graph, machine = subject.graph, subject.machine
    burst = machine.dram.burst_bytes
    known = places(graph, machine)
    for (tensor, rank), (start, stop) in known.items():
        if start >= burst and stop > start:
            spans = {**known, (tensor, rank): (start - burst, stop - burst)}
            yield Mutant(f"rank {rank} of t{tensor}", ("SpansDisjoint",), graph, machine, spans)


def _short_span(subject: Subject) -> Iterator[Mutant]:
    graph, machine = subject.graph, subject.machine
    known = places(graph, machine)
    for (tensor, rank), (start, stop) in known.items():
        if stop > start:
            shorter = max(start, stop - machine.dram.burst_bytes)
            spans = {**known, (tensor, rank): (start, shorter)}
            yield Mutant(f"rank {rank} of t{tensor}", ("SpansDisjoint",), graph, machine, spans)


# Fabric


def _two_links(subject: Subject) -> Iterator[Mutant]:
    """Two chips called by each other's names, on a machine that forwards nothing; where all goes to neighbours now."""
    graph, machine = subject.graph, replace(subject.machine, forwards=False)
    moved = moves(graph)
    if not moved or any(target not in machine.neighbours(source) for _, source, target in moved):
        return
    for a, b in combinations(chips_of(graph), 2):
        other = {a: b, b: a}
        swapped = relabelled(graph, lambda chip, other=other: other.get(chip, chip))
        alike = machine.mesh(a).units == machine.mesh(b).units
        belongs = ("NeighboursOnly",) if alike else ("NeighboursOnly", "UnitPresent")
        yield Mutant(f"chips {a} and {b}", belongs, swapped, machine)


def _no_chip(subject: Subject) -> Iterator[Mutant]:
    nowhere = ChipId(max(subject.machine.mesh_ids) + 1)
    for chip in chips_of(subject.graph):
        gone = relabelled(subject.graph, lambda c, chip=chip: nowhere if c == chip else c)
        yield Mutant(f"chip {chip}", ("UnitPresent",), gone, subject.machine)


def _no_unit(subject: Subject) -> Iterator[Mutant]:
    """A machine of which one mesh lacks a unit that a stage runs on; of a grid, one site."""
    graph, machine = subject.graph, subject.machine
    sites = dict.fromkeys(
        graph.buffers[b].site
        for s in graph.stages
        if isinstance(s.kind, Compute) or len(chips_of(graph)) > 1
        for b in (*s.ins, *s.outs)
    )
    for site in sites:
        kind = _unit(machine, site)
        if kind:
            meshes = tuple(_lacking(m, kind, site) if m.id == site.chip else m for m in machine.meshes)
            yield Mutant(f"{kind} at {site}", ("UnitPresent",), graph, replace(machine, meshes=meshes))


def _lacking(mesh: MeshSpec, kind: str, site: Site) -> MeshSpec:
    units = [
        replace(u, at=tuple(at for at in u.at if kind == "site" and at != (site.x, site.y))) if u.type == kind else u
        for u in mesh.units
    ]
    return replace(mesh, units=tuple(u for u in units if u.at))


KINDS: Final = (
    Kind("a FIFO deeper than its memory", ("BufferFits",), _deep_fifo),
    Kind("a tile over the accumulator's depth", ("AccumulatorFits",), _deep_accumulator),
    Kind("a value larger than DRAM", ("ArenaFits",), _large_tensor),
    Kind("more stages than a round has commands", ("RoundFits",), _long_round),
    Kind("a precedence dropped", tuple(_BETWEEN.values()), _no_precedence),
    edits("a store to the same place again", "WrittenOnce", _same_place),
    Kind("a part that nobody stores", ("ReadAfterWrite", "Covered", "SameFunction"), _not_stored),
    edits("a store one element off", _ACCESS, _moved_store),
    edits("a store's stride off by one", _ACCESS, _store_stride),
    edits("an overwrite while it is read", "NoLiveOverwrite", _overwritten),
    Kind("spans that overlap by one burst", ("SpansDisjoint",), _overlapping),
    Kind("a span one burst short", ("SpansDisjoint",), _short_span),
    Kind("a hop over two links", ("NeighboursOnly", "UnitPresent"), _two_links),
    Kind("a chip that isn't there", ("UnitPresent",), _no_chip),
    Kind("a unit type that the mesh lacks", ("UnitPresent",), _no_unit),
)
