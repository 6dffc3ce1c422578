"""What the stages of a graph need of a machine: which units can run them, and how much they take of which memory.

A cluster (unit type `MG`) has banks of operand entries, each 4 rows by 32 of K, and sub-tiles of 4 by 4 sums; a vector
core (`VC`) has words of 16 elements; a grid `site` has bytes. A product's results leave a cluster through its drain and
take no memory there; blocks in the vector lane's own format are in its registers; memory ports and agents pass blocks
on, and no machine states a memory for them. Source of the sizes: the machine's description.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec import Struct

from meshwright.ir.expression import Operand
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, StageId
from meshwright.ir.operation import Generic, Matmul, Permute, Unit
from meshwright.ir.records import AllReduce, Buffer, Compute, Load, Recv, Site, Stage, Store
from meshwright.machine import ClusterSpec, MachineSpec

_SUB_TILE = 4
_LANES_A_WORD = 16
_SUM_BYTES = 4
_MOVERS = ("port", "agent", "port+agent")

Occupants = dict[int, dict[tuple[int, int], str]]


class Use(Struct, frozen=True):
    """How much a stage takes of what at a site, and how much of that there is."""

    stage: StageId
    site: Site
    what: str
    used: int
    limit: int


def occupants(machine: MachineSpec) -> Occupants:
    """What stands where, by chip."""
    return {mesh.id: mesh.occupants() for mesh in machine.meshes}


def unit_at(there: Occupants, site: Site) -> str:
    """The unit at a site; empty where there is none, or no such chip."""
    return there.get(site.chip, {}).get((site.x, site.y), "")


def units_for(graph: Graph, stage: Stage, machine: MachineSpec) -> tuple[str, ...]:
    """Types of unit that can run a stage, any of them; "port" and "agent" are where movers are."""
    if machine.numerics == "grid":
        return ("site",)
    match stage.kind:
        case Compute(Matmul()) | Compute(Generic(unit=Unit.ACCUMULATOR)):
            return ("MG",)
        case Compute(Generic(exprs=(Operand(0),))) if [graph.buffers[b].resident for b in stage.ins] == [True]:
            # Sums taken out as they are: a cluster does that on their way to memory.
            return ("MG",)
        case AllReduce(combine=combine):
            return ("MG",) if combine.unit is Unit.ACCUMULATOR else ("VC",)
        case Compute(Permute()):
            return ("VC", *_MOVERS)
        case Compute():
            return ("VC",)
        case Load() | Store():
            return ("MG", "VC", *_MOVERS)
        case _:
            return ("MG", "VC")


def sites_of(graph: Graph, stage: Stage) -> tuple[Site, ...]:
    """Where a stage needs a unit: an `AllReduce` needs one at all its operands and results."""
    if isinstance(stage.kind, AllReduce):
        return tuple(dict.fromkeys(graph.buffers[b].site for b in (*stage.ins, *stage.outs)))
    return (graph.site(stage),)


def buffer_uses(graph: Graph, machine: MachineSpec) -> Iterator[Use]:
    """What FIFOs take, and on a grid the sums of a product at work, 4 bytes each."""
    there = occupants(machine)
    for index, stage in enumerate(graph.stages):
        number = StageId(index)
        product = stage.kind.op if isinstance(stage.kind, Compute) and isinstance(stage.kind.op, Matmul) else None
        for side, b in zip("AB", stage.ins if product is not None else (), strict=False):
            record = graph.buffers[b]
            if unit_at(there, record.site) == "MG":
                cluster = machine.cluster
                what, limit = f"L1 entries of side {side}", cluster.l1_entries * cluster.l1_banks
                yield Use(number, record.site, what, operand_entries(record, cluster), limit)
        for b in dict.fromkeys((*stage.outs, *stage.hidden())):
            record = graph.buffers[b]
            if record.resident or b in stage.takes():
                continue
            unit = unit_at(there, record.site)
            if unit == "VC" and record.format.in_memory:
                words = record.depth * math.ceil(record.elements / _LANES_A_WORD)
                yield Use(number, record.site, "L1 words", words, machine.vector_core.l1_safe_words)
            elif unit == "site":
                size = record.depth * math.ceil(record.elements * record.format.bits / 8)
                yield Use(number, record.site, "bytes", size, machine.site.memory_bytes)
        if product is not None and len(stage.ins) == 2 and unit_at(there, graph.site(stage)) == "site":
            sums = _SUM_BYTES * product.block[0] * product.block[1]
            yield Use(number, graph.site(stage), "bytes", sums, machine.site.memory_bytes)


def operand_entries(record: Buffer, cluster: ClusterSpec) -> int:
    """Entries that an operand's blocks take, with what is left of a bank that no other whole block fits into."""
    rows, k = (1, *record.block)[-2:]
    each = math.ceil(rows / cluster.sub_tile[0]) * math.ceil(k / cluster.k_block)
    if each > cluster.l1_entries:
        return each * record.depth * cluster.l1_banks  # A block is in one bank: no number of them is enough.
    if record.depth == 1:
        return each
    return math.ceil(record.depth / (cluster.l1_entries // each)) * cluster.l1_entries


def accumulator_uses(graph: Graph, machine: MachineSpec) -> Iterator[Use]:
    """Sub-tiles of sums that stay, each accumulator once, and of a product at work whose sums don't."""
    counted: set[BufferId] = set()
    tiles = machine.cluster.accumulator_tiles
    for index, stage in enumerate(graph.stages):
        product = isinstance(stage.kind, Compute) and isinstance(stage.kind.op, Matmul)
        for b in stage.outs:
            record = graph.buffers[b]
            if (record.resident and b not in counted) or (product and not record.resident):
                counted.add(b)
                used = sub_tiles(record.block) * (record.depth if record.resident else 1)
                yield Use(StageId(index), record.site, "sub-tiles", used, tiles)


def sub_tiles(block: Sequence[int]) -> int:
    """Sub-tiles that the sums of a block take."""
    rows, columns = (1, *block)[-2:]
    return math.ceil(rows / _SUB_TILE) * math.ceil(columns / _SUB_TILE)


def round_uses(graph: Graph, machine: MachineSpec) -> Iterator[Use]:
    """One instruction for each stage at its unit, and one command at its mesh: a step of everything at work.

    An `AllReduce` has one at each of its inputs; a receive stage has none.
    """
    dispatch = machine.dispatch
    commands = min(dispatch.commands, dispatch.staged_words)
    for index, stage in enumerate(graph.stages):
        if isinstance(stage.kind, Recv):
            continue
        reduces = isinstance(stage.kind, AllReduce)
        for site in dict.fromkeys([graph.buffers[b].site for b in stage.ins] if reduces else [graph.site(stage)]):
            yield Use(StageId(index), site, "instructions", 1, dispatch.instruction_fifo)
            yield Use(StageId(index), Site(site.chip, 0, 0), "commands of the mesh", 1, commands)
