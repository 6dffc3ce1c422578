"""Programs of clusters on a clock: word after word by the measured figures, each port one FILL or burst at a time.

Much simpler than the card: no network, and memory takes bursts in the order in which DRAINs begin. It stands between
the figures that were measured (tests/golden/timing_ktpu.json) and the estimate of a tiling, which sees no words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.kernels.alone import graph_alone
from meshwright.kernels.kernel import Shaped
from meshwright.kernels.matmul import MatrixProduct
from meshwright.machine import MachineSpec
from meshwright.targets.ktpu.emit_matrix import emit_matrix, images_at
from meshwright.targets.ktpu.isa import Drain, Fill, Gemm
from meshwright.targets.ktpu.placement import KtpuPlacement
from meshwright.targets.ktpu.tiling import PACED, Cost, Setting, Tiling, drain_cycles

Site = tuple[int, int]


def programs(tiling: Tiling, machine: MachineSpec, mesh: int = 0) -> dict[Site, list]:
    """What `emit_matrix` makes of a tiling, by cluster."""
    b = (tiling.n, tiling.k) if tiling.b_shared else (*tiling.batch, tiling.n, tiling.k)
    shapes = ((*tiling.batch, tiling.m, tiling.k), b)
    operands = [Shaped(shape, ElementType.F16) for shape in shapes]
    graph = graph_alone(MatrixProduct(tiling.tile), KtpuPlacement(machine, mesh), operands)
    return words_of(graph, machine, mesh)


def words_of(graph: Graph, machine: MachineSpec, mesh: int) -> dict[Site, list]:
    free, where, found = 0, {}, {}
    sites = {graph.site(s) for s in graph.stages}
    for site in sorted(sites, key=str):
        if (site.x, site.y) in machine.coords(mesh, "MG"):
            for image in images_at(graph, site, machine):
                if image not in where:
                    where[image] = machine.global_addr(mesh, free)
                    free += image.nbytes
            tasks = emit_matrix(graph, site, machine, where)
            found[site.x, site.y] = [word for task in tasks for word in task.program.words]
    return found


def filled(words: Sequence) -> int:
    return sum(word.n for word in words if isinstance(word, Fill))


def clocked(work: Mapping[Site, Sequence], machine: MachineSpec, mesh: int = 0) -> float:
    """Cycles from the first word to the last one's completion, of all clusters."""
    port_of = {site: machine.nearest_port(mesh, site) for site in work}
    cost = Cost.of(Setting.of(machine))
    assert cost is not None
    burst = cost.port.write_burst_cycles + cost.port.latency_cycles
    free: defaultdict[Site, float] = defaultdict(float)
    now, idle, next_start = (dict.fromkeys(work, 0.0) for _ in range(3))
    queues = {site: list(words) for site, words in work.items()}
    while any(queues.values()):
        # The cluster that is furthest behind goes next, so that a port serves in the order of asking.
        site = min((site for site, words in queues.items() if words), key=lambda site: (now[site], site))
        word = queues[site].pop(0)
        if isinstance(word, Fill):
            begin = max(now[site], free[port_of[site]])
            free[port_of[site]] = begin + cost.fill_cycles(word.n)
            now[site] = free[port_of[site]] + 1
        elif isinstance(word, Gemm):
            start = max(now[site] + 2, next_start[site])
            tiles, issues = word.gm * word.gn, word.gm * word.gn * word.nk
            span = (issues - 1) * (PACED.get(tiles, 1) if word.nk > 1 else 1) + 1
            next_start[site] = start + (span + 33 if tiles < 5 else issues + 22)
            idle[site], now[site] = start + span + 32, start + 4
        else:
            assert isinstance(word, Drain)
            begin = max(now[site], idle[site] - 1)
            now[site] = begin + drain_cycles(word.n) + 1
            port = port_of[site]
            free[port] = max(free[port], begin + 26) + burst * -(-word.n // 8)
    return max(now.values()) - 1
