"""Capacity: `BufferFits`, `AccumulatorFits`, `ArenaFits`, `RoundFits`.

What counts is what has to be there at once: the buffers of one *island* (`ir.islands`), stages that buffers join.
Islands can be run one after another, as the firing order of `NoDeadlock` does; whether some overlap where there is room
is the schedule's choice.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable

from meshwright.certify.certificate import Entry, Room, Use, Witness
from meshwright.certify.findings import Case, broken, held, not_decided
from meshwright.ir.graph import Graph
from meshwright.ir.ids import ChipId
from meshwright.ir.records import Site
from meshwright.ir.room import Use as Using
from meshwright.ir.room import accumulator_uses, buffer_uses, round_uses
from meshwright.machine import MachineSpec


def _fits(case: Case, name: str, uses: Iterable[Using], safe: Callable[[Using], bool] = lambda _: False) -> Entry:
    """Whether the most that an island uses at once, of everything everywhere, is there."""
    by_island: dict[tuple[Site, str], dict[int, list[Using]]] = defaultdict(lambda: defaultdict(list))
    for use in uses:
        by_island[use.site, use.what][case.islands.of[use.stage]].append(use)
    most: list[Use] = []
    for (site, what), islands in by_island.items():
        worst = max(islands.values(), key=lambda there: sum(use.used for use in there))
        used, limit = sum(use.used for use in worst), worst[0].limit
        if used > limit and not safe(Using(worst[0].stage, site, what, used, limit)):
            message = f"buffers and stages at {site} take {used} {what}, and {case.machine.name} has {limit}: "
            return broken(name, f"{message}{used - limit} too many", _too_full(case, worst))
        most.append(Use(f"{site} {what}", used, limit))
    said = "" if most else f"no memory that {case.machine.name} states is used"
    return held(name, Room("as named", tuple(most)), said)


def _too_full(case: Case, uses: list[Using]) -> Witness:
    stages = tuple(sorted({use.stage for use in uses}))
    site = uses[0].site
    ports = (b for s in stages for b in (*case.graph.stages[s].ins, *case.graph.stages[s].outs))
    buffers = tuple(dict.fromkeys(b for b in ports if case.graph.buffers[b].site == site))
    largest = max(uses, key=lambda use: use.used)
    change = f"smaller blocks or less deep FIFOs at {site}; s{largest.stage} has the largest part, {largest.used}"
    return Witness(stages, buffers, (site.chip,), change=change)


def buffer_fits(case: Case) -> Entry:
    """The FIFOs at every site fit its memory."""
    core = case.machine.maybe_vector_core

    def safe(use: Using) -> bool:
        return use.what == "L1 words" and core is not None and core.footprint_is_safe(use.used)

    return _fits(case, "BufferFits", buffer_uses(case.graph, case.machine), safe)


def accumulator_fits(case: Case) -> Entry:
    """Sums that stay, and those of a product at work, fit the accumulator."""
    name = "AccumulatorFits"
    if case.machine.maybe_cluster is not None:
        return _fits(case, name, accumulator_uses(case.graph, case.machine))
    resident = [s for s in case.graph.stages if any(case.graph.buffers[b].resident for b in s.outs)]
    if resident:
        return not_decided(name, f"{case.machine.name} states no accumulator, and the graph has sums that stay in one")
    return held(name, None, f"{case.machine.name} has no accumulator apart; BufferFits counts sums")


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
            message = f"the {len(there)} pieces on chip {chip} take {size:,} bytes, and {case.machine.name} has "
            return broken(
                name,
                f"{message}{limit:,} for values: {size - limit:,} too many",
                Witness(chips=(chip,), tensor=largest.name, change=f"split {largest.name!r}, the largest, further"),
            )
    return held(name, Room("bytes", tuple(Use(f"chip {c}", size, limit) for c, size in sorted(used.items()))))


def round_fits(case: Case) -> Entry:
    """A step of every stage of an island fits a round of dispatch."""
    name = "RoundFits"
    if case.machine.maybe_dispatch is None:
        return held(name, None, f"{case.machine.name} dispatches no rounds")
    return _fits(case, name, round_uses(case.graph, case.machine))
