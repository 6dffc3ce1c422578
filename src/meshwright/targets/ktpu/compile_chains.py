"""Vector chains of a graph: in which byte orders each finds its rows, or that it has to go through memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Struct

from meshwright.errors import PlacementError
from meshwright.ir.graph import Graph
from meshwright.ir.ids import StageId, TensorId
from meshwright.ir.operation import Reduce
from meshwright.ir.records import Compute, Load, Site, Store
from meshwright.machine import MachineSpec
from meshwright.targets.ktpu.compiled import Piece
from meshwright.targets.ktpu.emit_vector import Placed, emit_vector
from meshwright.targets.ktpu.joining import joined
from meshwright.targets.ktpu.orders import Rows, rows
from meshwright.targets.ktpu.relocate import LEAST_ADDRESS, Relocatable, relocatable
from meshwright.targets.ktpu.staging import part_of, through_memory

_ALIGNMENT: Final = 256


class Emitted(Struct, frozen=True):
    """The program of a chain, and how it has each piece; its references number the pieces in this order."""

    code: Relocatable
    pieces: tuple[tuple[Piece, Rows], ...]


class Chain(Struct, frozen=True):
    """Stages of one vector core that are joined by FIFOs, and what they were emitted as.

    emitted: None where they have to go through memory first; refused: why.
    """

    site: Site
    stages: tuple[StageId, ...]
    emitted: Emitted | None = None
    refused: str = ""


def emitted_chains(
    graph: Graph, sites: Sequence[Site], machine: MachineSpec, shared: frozenset[Piece] = frozenset()
) -> tuple[Chain, ...]:
    """Every chain of the vector cores at `sites`, emitted where rows lie so that a core reaches them.

    shared: pieces that no core can store directly, since somebody else stores parts of them. Chains that store the
    same piece have it in the same order, or all go through memory.
    """
    chains = list(_chains(graph, sites))
    together = {number: _stored(graph, chain.stages) for number, chain in enumerate(chains)}
    for group in joined(together):
        if all(shared.isdisjoint(together[number]) for number in group):
            for number, chain in zip(group, _alike(graph, [chains[n] for n in group], machine), strict=True):
                chains[number] = chain
    return tuple(chains)


def emitted_cut(graph: Graph, chain: Chain, machine: MachineSpec) -> Chain:
    """A chain whose loads and stores go through memory; `PlacementError` says why it couldn't be emitted without."""
    for padded in (True, False):
        found = _attempt(graph, chain, machine, padded)
        if found.emitted is not None:
            return found
        chain = found
    raise PlacementError(chain.refused)


class Cut(Struct, frozen=True):
    """Loads and stores that are to go through memory; joined: loads that find so many blocks there as one row."""

    stages: frozenset[StageId] = frozenset()
    joined: tuple[tuple[StageId, int], ...] = ()

    def of(self, graph: Graph, machine: MachineSpec) -> Graph:
        """The graph with all of them cut."""
        return through_memory(graph, self.stages, machine, dict(self.joined))


def cut_stages(graph: Graph, chains: Sequence[Chain], machine: MachineSpec) -> Cut:
    """What of the chains that aren't emitted has to go through memory so that they can be."""
    cuts = [_cut_of(graph, chain, machine) for chain in chains if chain.emitted is None]
    nothing: frozenset[StageId] = frozenset()
    return Cut(nothing.union(*(cut.stages for cut in cuts)), tuple(pair for cut in cuts for pair in cut.joined))


def _cut_of(graph: Graph, chain: Chain, machine: MachineSpec) -> Cut:
    """Only the stores where that is enough; whole rows where a fold over their parts needs them."""
    kinds = {stage: graph.stages[stage].kind for stage in chain.stages}
    stores = frozenset(stage for stage, kind in kinds.items() if isinstance(kind, Store))
    loads = {stage: kind.num_blocks for stage, kind in kinds.items() if isinstance(kind, Load)}
    folds = (kind.op for kind in kinds.values() if isinstance(kind, Compute) and isinstance(kind.op, Reduce))
    parts = max((fold.blocks for fold in folds), default=1)
    joined = tuple((stage, parts) for stage, count in loads.items() if count % parts == 0)
    everything = Cut(stores.union(loads))
    for cut in (Cut(stores), everything, Cut(everything.stages, joined)):
        apart = cut.of(graph, machine)
        if any(_attempt(apart, chain, machine, padded).emitted is not None for padded in (True, False)):
            return cut
    return everything


def _chains(graph: Graph, sites: Sequence[Site]) -> Iterator[Chain]:
    """Stages at each core that are joined by FIFOs, those with the lowest ids first."""
    buffers = {StageId(number): (*s.takes(), *s.outs) for number, s in enumerate(graph.stages)}
    for stages in joined(buffers):
        site = graph.site(graph.stages[stages[0]])
        if site in sites:
            yield Chain(site, tuple(stages))


def _stored(graph: Graph, stages: Sequence[StageId]) -> set[Piece]:
    kinds = ((graph.stages[s], graph.stages[s].kind) for s in stages)
    return {(kind.tensor, graph.rank_of(stage)) for stage, kind in kinds if isinstance(kind, Store)}


def _alike(graph: Graph, chains: Sequence[Chain], machine: MachineSpec) -> Sequence[Chain]:
    """The chains with what they store in one order, or all of them to go through memory."""
    for padded in (True, False):
        found = [_attempt(graph, chain, machine, padded) for chain in chains]
        if all(chain.emitted for chain in found):
            return found
        chains = [msgspec.structs.replace(chain, emitted=None) for chain in found]
    return chains


def _attempt(graph: Graph, chain: Chain, machine: MachineSpec, padded: bool) -> Chain:
    """The chain, emitted for stored rows that are padded or aren't if it can be; loads rather likewise."""
    # As if it were at the first core of the machine: chains that are alike are emitted once.
    part = part_of(graph, chain.stages, _first_core(machine))
    refused = chain.refused
    for loads in (padded, not padded):
        orders = _orders(part.graph, loads, padded)
        found = _emitted(part.graph, machine, orders)
        if isinstance(found, Relocatable):
            emitted = Emitted(found, tuple(zip(part.pieces, orders, strict=True)))
            return msgspec.structs.replace(chain, emitted=emitted)
        refused = refused or _renumbered(found, chain.stages)
    return msgspec.structs.replace(chain, emitted=None, refused=refused)


def _first_core(machine: MachineSpec) -> Site:
    chip = next(mesh.id for mesh in machine.meshes if machine.has(mesh.id, "VC"))
    return Site(chip, *machine.coords(chip, "VC")[0])  # pyright: ignore[reportArgumentType]


def _orders(part: Graph, loads: bool, stores: bool) -> tuple[Rows, ...]:
    """How the chain has each tensor of its part."""
    written = part.stored()
    return tuple(
        rows(record.local, record.format, stores if TensorId(number) in written else loads)
        for number, record in enumerate(part.tensors)
    )


@lru_cache(maxsize=512)
def _emitted(part: Graph, machine: MachineSpec, orders: tuple[Rows, ...]) -> Relocatable | str:
    """The program of a graph that is one chain at the first core, with its tensors in given orders; or why not."""
    core = _first_core(machine)
    where: dict[tuple[TensorId, int], Placed] = {}
    starts: list[tuple[int, int, int]] = []
    free = LEAST_ADDRESS
    for number, order in enumerate(orders):
        address = machine.global_addr(core.chip, free)
        where[TensorId(number), 0] = order.placed(address)
        starts.append((address, order.nbytes, number))
        free += -(-order.nbytes // _ALIGNMENT) * _ALIGNMENT
    try:
        (task,) = emit_vector(part, core, machine, where)
        return relocatable(task.program, starts)
    except PlacementError as error:
        return str(error)


def _renumbered(message: str, stages: Sequence[StageId]) -> str:
    """A message about stages of a part, in the ids of the whole graph."""
    return re.sub(r"\bs(\d+)\b", lambda found: f"s{stages[int(found[1])]}", message)
