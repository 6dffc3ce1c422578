"""Capacity: `BufferFits`, `AccumulatorFits`, `ArenaFits`, `RoundFits`.

What counts is what is there at once. Stages joined by buffers, an *island*, may all be at work at once; an island
whose first stages all wait for the end of another one is never at work with it. The most that is at work at once is
bounded by the islands that can be at work together with each one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from meshwright.certify.certificate import Entry, Room, Use, Witness
from meshwright.certify.findings import Case, broken, held, not_decided
from meshwright.errors import GraphError
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, ChipId, StageId
from meshwright.ir.islands import Islands
from meshwright.ir.operation import Matmul
from meshwright.ir.records import AllReduce, Compute, Recv, Site
from meshwright.machine import MachineSpec

_SUB_TILE = 4
_LANES = 16
_SUM_BYTES = 4


def at_once(islands: Islands, limits: Mapping[tuple[Site, str], int], parts: Iterable[tuple[StageId, Site, str, int]]
            ) -> dict[tuple[Site, str], int]:  # fmt: skip
    """The most in use at once of everything at every site. Where all of it together fits, that is the answer."""
    found: dict[tuple[Site, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for stage, site, what, size in parts:
        found[site, what][islands.of[stage]] += size
    used: dict[tuple[Site, str], int] = {}
    for key, weights in found.items():
        total = sum(weights.values())
        used[key] = total if total <= limits.get(key, 0) else islands.most(weights)
    return used


def _unit(machine: MachineSpec, site: Site) -> str:
    mesh = next((m for m in machine.meshes if m.id == site.chip), None)
    return "" if mesh is None else mesh.occupants().get((site.x, site.y), "")


def entries_of(machine: MachineSpec, block: Sequence[int]) -> int:
    """Entries of a cluster's L1 that an operand's block takes: an entry is 4 rows by 32 of K."""
    rows, depth = (1, *block)[-2:]
    return math.ceil(rows / machine.cluster.sub_tile[0]) * math.ceil(depth / machine.cluster.k_block)


def sub_tiles(block: Sequence[int]) -> int:
    """Sub-tiles of 4 by 4 that sums of a block take."""
    rows, columns = (1, *block)[-2:]
    return math.ceil(rows / _SUB_TILE) * math.ceil(columns / _SUB_TILE)


def buffer_parts(graph: Graph, machine: MachineSpec) -> list[tuple[StageId, Site, str, int]]:
    """What every FIFO takes of which memory: (a stage at it, site, memory, how much).

    Cluster: entries of L1, side A or B; a product's results leave through its drain and take none. Vector core: words
    of 16 elements; blocks in the lane's own format are in its registers. Grid: bytes, and 4 for every sum of a product
    that is at work. Memory ports and agents pass blocks on and state no memory.
    """
    found: list[tuple[StageId, Site, str, int]] = []
    unit = {site: _unit(machine, site) for site in {b.site for b in graph.buffers}}
    for index, stage in enumerate(graph.stages):
        stage_id = StageId(index)
        op = stage.kind.op if isinstance(stage.kind, Compute) else None
        for side, buffer in zip("AB", stage.ins[:2] if isinstance(op, Matmul) else (), strict=False):
            record = graph.buffers[buffer]
            if unit[record.site] == "MG":
                banks = _banks(machine, record.block, record.depth)
                found.append((stage_id, record.site, f"bank entries of side {side}", banks))
        for buffer in dict.fromkeys((*stage.outs, *stage.hidden())):
            record = graph.buffers[buffer]
            if record.resident or buffer in stage.takes():
                continue
            match unit[record.site]:
                case "VC" if record.format.in_memory:
                    words = record.depth * math.ceil(record.elements / _LANES)
                    found.append((stage_id, record.site, "L1 words", words))
                case "site":
                    size = record.depth * math.ceil(record.elements * record.format.bits / 8)
                    found.append((stage_id, record.site, "bytes", size))
                case _:
                    pass
        if isinstance(op, Matmul) and unit[(site := graph.site(stage))] == "site" and len(stage.ins) == 2:
            found.append((stage_id, site, "bytes", _SUM_BYTES * op.block[0] * op.block[1]))
    return found


def _banks(machine: MachineSpec, block: Sequence[int], depth: int) -> int:
    """Entries that a FIFO's blocks take, counting what is left of a bank that no other whole block fits into."""
    each, bank = entries_of(machine, block), machine.cluster.l1_entries
    if each > bank:
        return each * depth * machine.cluster.l1_banks  # More than any number of banks of that size hold.
    return math.ceil(depth / (bank // each)) * bank if depth > 1 else each


def buffer_limits(graph: Graph, machine: MachineSpec) -> dict[tuple[Site, str], int]:
    """What there is of the memories that `buffer_parts` counts."""
    limits: dict[tuple[Site, str], int] = {}
    for site in {b.site for b in graph.buffers}:
        match _unit(machine, site):
            case "MG":
                for side in "AB":
                    limits[site, f"bank entries of side {side}"] = machine.cluster.l1_entries * machine.cluster.l1_banks
            case "VC":
                limits[site, "L1 words"] = machine.vector_core.l1_safe_words
            case "site":
                limits[site, "bytes"] = machine.site.memory_bytes
            case _:
                pass
    return limits


def accumulator_parts(graph: Graph) -> list[tuple[StageId, Site, str, int]]:
    """Sub-tiles of an accumulator: those that stay, and those of a product at work whose sums don't."""
    found: list[tuple[StageId, Site, str, int]] = []
    counted: set[BufferId] = set()
    for index, stage in enumerate(graph.stages):
        for buffer in stage.outs:
            record = graph.buffers[buffer]
            if record.resident and buffer not in counted:
                counted.add(buffer)
                found.append((StageId(index), record.site, "sub-tiles", record.depth * sub_tiles(record.block)))
        if isinstance(stage.kind, Compute) and isinstance(stage.kind.op, Matmul):
            record = graph.buffers[stage.outs[0]]
            if not record.resident:
                found.append((StageId(index), record.site, "sub-tiles", sub_tiles(record.block)))
    return found


def _fits(case: Case, name: str, parts: list[tuple[StageId, Site, str, int]], limits: Mapping[tuple[Site, str], int],
          also: Callable[[str, int], bool] = lambda _what, _used: False) -> Entry:  # fmt: skip
    used = at_once(case.islands, limits, parts)
    for (site, what), size in sorted(used.items(), key=lambda x: (x[0][0].chip, x[0][0].x, x[0][0].y, x[0][1])):
        limit = limits.get((site, what))
        if limit is None or size <= limit or also(what, size):
            continue
        stages = sorted({s for s, at, kind, n in parts if (at, kind) == (site, what) and n})
        buffers = tuple(
            dict.fromkeys(
                b for s in stages for b in (*case.graph.stages[s].ins, *case.graph.stages[s].outs)
                if case.graph.buffers[b].site == site
            )
        )  # fmt: skip
        return broken(
            name,
            f"buffers at {site} take {size} {what}, and {case.machine.name} has {limit}: {size - limit} too many",
            Witness(tuple(stages), buffers, (site.chip,), change=f"make blocks smaller or FIFOs less deep at {site}"),
        )
    uses = tuple(Use(f"{site} {what}", size, limits[site, what]) for (site, what), size in used.items()
                 if (site, what) in limits)  # fmt: skip
    return held(name, Room("as named", uses), "" if uses else f"no memory that {case.machine.name} states is used")


def buffer_fits(case: Case) -> Entry:
    """The FIFOs at every site fit its memory."""
    parts = buffer_parts(case.graph, case.machine)
    limits = buffer_limits(case.graph, case.machine)
    core = case.machine.maybe_vector_core

    def safe(what: str, used: int) -> bool:
        return what == "L1 words" and core is not None and core.footprint_is_safe(used)

    return _fits(case, "BufferFits", parts, limits, safe)


def accumulator_fits(case: Case) -> Entry:
    """Sums that stay, and those of a product at work, fit the accumulator."""
    name = "AccumulatorFits"
    parts = accumulator_parts(case.graph)
    if not parts:
        return held(name, None, "the graph has no product and no accumulator")
    if case.machine.maybe_cluster is None:
        if any(b.resident for b in case.graph.buffers):
            return not_decided(name, f"{case.machine.name} states no accumulator, and the graph has sums that stay")
        return held(name, None, f"sums are in site memory on {case.machine.name}; BufferFits counts them")
    tiles = case.machine.cluster.accumulator_tiles
    return _fits(case, name, parts, {(site, what): tiles for _, site, what, _ in parts})


def arena_uses(graph: Graph, machine: MachineSpec) -> dict[ChipId, int]:
    """Bytes of every chip's DRAM that pieces take, each rounded up to whole bursts."""
    burst = machine.dram.burst_bytes
    used: dict[ChipId, int] = defaultdict(int)
    for tensor in graph.tensors:
        size = math.ceil(math.prod(tensor.local) * tensor.format.bits / 8)
        for chip in tensor.chips:
            used[chip] += math.ceil(size / burst) * burst
    return used


def arena_fits(case: Case) -> Entry:
    """All pieces on a chip fit what values may use of its DRAM."""
    name = "ArenaFits"
    limit = case.machine.dram.usable_bytes
    used = arena_uses(case.graph, case.machine)
    for chip, size in sorted(used.items()):
        if size > limit:
            there = [t for t in case.graph.tensors if chip in t.chips]
            largest = max(there, key=lambda t: math.prod(t.local) * t.format.bits)
            return broken(
                name,
                f"the {len(there)} pieces on chip {chip} take {size:,} bytes, and {case.machine.name} has {limit:,} "
                f"for values: {size - limit:,} too many",
                Witness(chips=(chip,), tensor=largest.name, change=f"split {largest.name!r}, the largest, further"),
            )
    uses = tuple(Use(f"chip {chip}", size, limit) for chip, size in sorted(used.items()))
    return held(name, Room("bytes of DRAM", uses))


def command_parts(graph: Graph) -> list[tuple[StageId, Site, str, int]]:
    """One instruction of a unit for each stage that it has, as one step of each takes; an `AllReduce` at all inputs."""
    found: list[tuple[StageId, Site, str, int]] = []
    for index, stage in enumerate(graph.stages):
        if isinstance(stage.kind, AllReduce):
            sites = dict.fromkeys(graph.buffers[b].site for b in stage.ins)
        elif isinstance(stage.kind, Recv):
            continue
        else:
            sites = dict.fromkeys([graph.site(stage)])
        for site in sites:
            found.append((StageId(index), site, "instructions", 1))
            found.append((StageId(index), Site(site.chip, 0, 0), "commands of the mesh", 1))
    return found


def round_fits(case: Case) -> Entry:
    """A step of every stage that may be at work at once fits a round of dispatch."""
    name = "RoundFits"
    dispatch = case.machine.maybe_dispatch
    if dispatch is None:
        return held(name, None, f"{case.machine.name} dispatches no rounds")
    parts = command_parts(case.graph)
    mesh = min(dispatch.commands, dispatch.staged_words)
    limits = {(s, w): dispatch.instruction_fifo if w == "instructions" else mesh for _, s, w, _ in parts}
    try:
        return _fits(case, name, parts, limits)
    except GraphError as error:
        return not_decided(name, str(error))
