"""From a stage graph to programs of the card's units, and what the host does between them.

Clusters and vector cores run what `emit_matrix` and `emit_vector` make of their stages. What stands at the memory
agent (copies, rearrangements, look-ups of rows) the host carries: it reads, does what the stages say, and writes,
because how the agent's mover is set up is not known (docs/ktpu/backend.md). The host also brings pieces from one byte
order into another. Neither computes anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from meshwright.errors import PlacementError
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import StageId
from meshwright.ir.operation import Permute
from meshwright.ir.pattern import Affine
from meshwright.ir.records import Compute, Load, Site, Stage, Store
from meshwright.machine import MachineSpec
from meshwright.targets.ktpu.compile_chains import cut_stages, emitted_chains, emitted_cut
from meshwright.targets.ktpu.compile_works import works_of
from meshwright.targets.ktpu.compiled import Compiled, Piece
from meshwright.targets.ktpu.emit_matrix_stages import boxes_problem
from meshwright.targets.ktpu.staging import epilogues_apart, through_memory


class Sites(Struct, frozen=True):
    """Where a graph's stages stand: at clusters, at vector cores, or elsewhere: at memory agents."""

    clusters: tuple[Site, ...]
    cores: tuple[Site, ...]

    @classmethod
    def of(cls, graph: Graph, machine: MachineSpec) -> Sites:
        """The sites of `graph` that `machine` has units at."""
        found = sorted({b.site for b in graph.buffers}, key=lambda s: (s.chip, s.x, s.y))

        def at(unit: str) -> tuple[Site, ...]:
            places = {c: machine.coords(c, unit) if machine.has(c, unit) else () for c in {s.chip for s in found}}
            return tuple(site for site in found if (site.x, site.y) in places[site.chip])

        return cls(at("MG"), at("VC"))


def compile_graph(graph: Graph, machine: MachineSpec, given: frozenset[str] = frozenset()) -> Compiled:
    """The programs of `graph` on `machine`, to be relocated to where the images are.

    given: names of stored tensors that have a content before. Raises `PlacementError`, with the stage and the reason,
    for what the machine's units and the host's copies don't do.
    """
    whole = epilogues_apart(graph, machine)
    sites = Sites.of(whole, machine)
    _require_copies(whole, sites)
    clusters, shared = _cut_of_clusters(whole, sites, given)
    near = through_memory(whole, clusters | _far_of_cores(whole, sites), machine)
    chains = emitted_chains(near, sites.cores, machine, shared)
    cut = cut_stages(near, chains, machine).of(near, machine)
    known = tuple(emitted_cut(cut, chain, machine) if chain.emitted is None else chain for chain in chains)
    return works_of(cut, machine, sites.clusters, known)


def _require_copies(graph: Graph, sites: Sites) -> None:
    units = {*sites.clusters, *sites.cores}
    for number, stage in enumerate(graph.stages):
        if graph.site(stage) in units:
            continue
        match stage.kind:
            case Load() | Store() | Compute(Permute()):
                continue
            case Compute(op):
                what = type(op).__name__
            case kind:
                what = type(kind).__name__
        raise PlacementError(
            f"stage s{number}, a {what}, stands at {graph.site(stage)}, where no unit is that computes: a memory agent "
            "loads, permutes and stores"
        )


def _cut_of_clusters(graph: Graph, sites: Sites, given: frozenset[str]) -> tuple[set[StageId], frozenset[Piece]]:
    """Loads and stores of clusters that go through memory, and the pieces that no unit stores directly.

    A piece lies in one order, so whatever is stored in several, or partly by copies, or over what was there before, is
    put together by the host.
    """
    cut = {
        StageId(number)
        for number, stage in enumerate(graph.stages)
        if isinstance(stage.kind, Load) and graph.site(stage) in sites.clusters and not _as_image(graph, stage)
    }
    storing: dict[Piece, list[StageId]] = {}
    for number, stage in enumerate(graph.stages):
        if isinstance(stage.kind, Store):
            storing.setdefault((stage.kind.tensor, graph.rank_of(stage)), []).append(StageId(number))
    shared: set[Piece] = set()
    for piece, stages in storing.items():
        records = [graph.stages[s] for s in stages]
        at = {_kind_of(sites, graph.site(record)) for record in records}
        fits = all(_as_image(graph, record) for record in records) and len(set(_boxes(records))) == 1
        if len(at) > 1 or graph.tensors[piece[0]].name in given or (at == {"MG"} and not fits):
            shared.add(piece)
            cut |= {s for s, r in zip(stages, records, strict=True) if _kind_of(sites, graph.site(r)) == "MG"}
    return cut, frozenset(shared)


def _far_of_cores(graph: Graph, sites: Sites) -> set[StageId]:
    """Loads and stores of vector cores of pieces on another mesh: only what the mover writes gets there for certain."""
    return {
        StageId(number)
        for number, stage in enumerate(graph.stages)
        if isinstance(stage.kind, (Load, Store))
        and graph.site(stage) in sites.cores
        and graph.tensors[stage.kind.tensor].chips[graph.rank_of(stage)] != graph.site(stage).chip
    }


def _kind_of(sites: Sites, site: Site) -> str:
    return "MG" if site in sites.clusters else "VC" if site in sites.cores else "agent"


def _boxes(stages: list[Stage]) -> Iterator[tuple[int, ...]]:
    for stage in stages:
        if isinstance(stage.kind, Store) and isinstance(stage.kind.pattern, Affine):
            yield stage.kind.pattern.box


def _as_image(graph: Graph, stage: Stage) -> bool:
    """Whether a cluster's load or store finds its blocks as runs in an image of the piece."""
    kind = stage.kind
    assert isinstance(kind, (Load, Store))
    record, rank = graph.tensors[kind.tensor], graph.rank_of(stage)
    if record.chips[rank] != graph.site(stage).chip or record.format is not ElementType.F16:
        return False
    if not isinstance(kind.pattern, Affine) or (isinstance(kind, Load) and (kind.pattern.pad or kind.multicast)):
        return False
    if isinstance(kind, Store) and kind.sub_blocks is not None:
        return False
    (buffer,) = (*stage.ins, *stage.outs)
    return boxes_problem(kind.pattern, graph.buffers[buffer].block, record.local) is None
