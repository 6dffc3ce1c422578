"""Works of a graph whose stages are settled: what is sent, fetched, placed and carried, and in which order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator
from typing import Final

import msgspec
import rustworkx as rx
from msgspec import Struct

from meshwright.errors import PlacementError
from meshwright.ir.graph import Graph
from meshwright.ir.ids import StageId
from meshwright.ir.records import Load, Site, Store
from meshwright.machine import MachineSpec
from meshwright.targets.ktpu.compile_chains import Chain
from meshwright.targets.ktpu.compiled import Carry, Compiled, Fetch, Image, Piece, Place, UnitWork, Work
from meshwright.targets.ktpu.emit_matrix import Firing, MatrixImage, emit_matrix, images_at
from meshwright.targets.ktpu.joining import joined
from meshwright.targets.ktpu.orders import Drained, order_of
from meshwright.targets.ktpu.relocate import LEAST_ADDRESS, relocatable
from meshwright.targets.ktpu.staging import part_of

_ALIGNMENT: Final = 256


def works_of(graph: Graph, machine: MachineSpec, clusters: tuple[Site, ...], chains: tuple[Chain, ...]) -> Compiled:
    """Everything that has to be done for `graph`, whose vector work is in `chains`, emitted.

    Raises `PlacementError` for what a cluster can't do, and where works wait for each other in a circle.
    """
    draft = _Works(graph, machine)
    for chain in chains:
        draft.add_chain(chain)
    draft.add_clusters(clusters)
    draft.add_copies({*clusters, *(chain.site for chain in chains)})
    draft.add_placed()
    draft.join()
    return draft.compiled()


class _Node(Struct):
    """A work under construction. does: what of the graph, for what waits for it; reads: images that it loads."""

    work: Work
    does: tuple[Firing, ...] = ()
    after: tuple[Firing, ...] = ()
    reads: tuple[int, ...] = ()


class _Works:
    def __init__(self, graph: Graph, machine: MachineSpec) -> None:
        self.graph = graph
        self.machine = machine
        self.images: list[Image] = []
        self.numbers: dict[Image, int] = {}
        self.storing: defaultdict[Piece, list[int]] = defaultdict(list)
        self.stored: dict[Piece, int] = {}
        self.nodes: list[_Node] = []
        self.edges: set[tuple[int, int]] = set()
        self.carried: dict[Piece, int] = {}
        self.fetched: dict[Piece, int] = {}
        self.placed: dict[int, int] = {}

    def _image(self, image: Image) -> int:
        if image not in self.numbers:
            self.numbers[image] = len(self.images)
            self.images.append(image)
        return self.numbers[image]

    def _add(self, node: _Node) -> int:
        number = len(self.nodes)
        self.nodes.append(node)
        for stage in {firing.stage for firing in node.does}:
            if isinstance(self.graph.stages[stage].kind, Store):
                self.storing[self._piece(stage)].append(number)
        return number

    def _what(self, stages: list[StageId]) -> str:
        """A work for messages: which tensors it stores, and its stages."""
        kinds = [self.graph.stages[s].kind for s in stages]
        stored = dict.fromkeys(self.graph.tensors[k.tensor].name for k in kinds if isinstance(k, Store))
        named = f"{', '.join(stored)} of " if stored else ""
        return f"{named}stage{'s' if stages[1:] else ''} {', '.join(f's{s}' for s in stages)}"

    def _piece(self, stage: StageId) -> Piece:
        kind = self.graph.stages[stage].kind
        assert isinstance(kind, (Load, Store))
        return kind.tensor, self.graph.rank_of(self.graph.stages[stage])

    # Units.

    def add_chain(self, chain: Chain) -> None:
        """A chain of a vector core."""
        assert chain.emitted is not None
        numbers = {piece: self._image(Image(piece, order)) for piece, order in chain.emitted.pieces}
        code = chain.emitted.code.renumbered([numbers[piece] for piece, _ in chain.emitted.pieces])
        reads = [numbers[self._piece(s)] for s in chain.stages if isinstance(self.graph.stages[s].kind, Load)]
        for stage in chain.stages:
            if isinstance(self.graph.stages[stage].kind, Store):
                self.stored[self._piece(stage)] = numbers[self._piece(stage)]
        inside = set(chain.stages)
        before = sorted({e.before for e in self.graph.precedences if e.after in inside} - inside)
        self._add(
            _Node(
                UnitWork(chain.site, code, self._what(list(chain.stages)), ()),
                tuple(map(Firing, chain.stages)),
                tuple(map(Firing, before)),
                tuple(dict.fromkeys(reads)),
            )
        )

    def add_clusters(self, sites: tuple[Site, ...]) -> None:
        """The tasks of every cluster: what one cluster is sent, it is sent in order."""
        where: dict[MatrixImage, int] = {}
        starts: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
        free: Counter[int] = Counter()
        images = {site: images_at(self.graph, site, self.machine) for site in sites}
        for site, found in images.items():
            for image in found:
                if image in where:
                    continue
                number = self._image(Image((image.tensor, image.rank), order_of(image)))
                local = LEAST_ADDRESS + free[site.chip]
                where[image] = self.machine.global_addr(site.chip, local)
                starts[site.chip].append((where[image], image.nbytes, number))
                free[site.chip] += -(-image.nbytes // _ALIGNMENT) * _ALIGNMENT
        for site in sites:
            self._add_cluster(site, where, starts[site.chip])

    def _add_cluster(self, site: Site, where: dict[MatrixImage, int], starts: list[tuple[int, int, int]]) -> None:
        before: int | None = None
        for task in emit_matrix(self.graph, site, self.machine, where):
            stages = list(dict.fromkeys(firing.stage for firing in task.does))
            code = relocatable(task.program, starts)
            used = dict.fromkeys(reference.image for reference in code.references)
            reads: list[int] = []
            for number in used:
                image = self.images[number]
                if isinstance(image.order, Drained):
                    self.stored[image.piece] = number
                else:
                    reads.append(number)
            work = UnitWork(site, code, self._what(stages), (), task.arrivals)
            number = self._add(_Node(work, task.does, task.after, tuple(reads)))
            if before is not None:
                self.edges.add((before, number))
            before = number

    # The host.

    def add_copies(self, units: set[Site]) -> None:
        """What stands at memory agents: stages that are joined by FIFOs or store the same piece are one work."""
        mine = [StageId(n) for n, s in enumerate(self.graph.stages) if self.graph.site(s) not in units]
        for stages in joined({number: self._shared(number) for number in mine}):
            self._add_copy(stages)

    def _shared(self, number: StageId) -> Iterator[Hashable]:
        stage = self.graph.stages[number]
        yield from (("buffer", buffer) for buffer in (*stage.takes(), *stage.outs))
        if isinstance(stage.kind, Store):
            yield "piece", self._piece(number)

    def _add_copy(self, stages: list[StageId]) -> None:
        part = part_of(self.graph, stages)
        work = Carry(part.graph, part.reads, part.writes, ())
        inside = set(stages)
        before = sorted({e.before for e in self.graph.precedences if e.after in inside} - inside)
        number = self._add(_Node(work, tuple(map(Firing, stages)), tuple(map(Firing, before))))
        self.carried.update(dict.fromkeys((piece for _, piece in part.writes), number))

    def add_placed(self) -> None:
        """Pieces that the host has to have, and images that it has to write."""
        for number, node in enumerate(list(self.nodes)):
            if isinstance(node.work, Carry):
                for _, piece in node.work.takes:
                    self.edges.add((self._held(piece), number))
            for image in node.reads:
                piece = self.images[image].piece
                if self.stored.get(piece) == image:
                    continue
                if image not in self.placed:
                    source = self._held(piece)
                    self.placed[image] = self._add(_Node(Place(image, ())))
                    self.edges.add((source, self.placed[image]))
                self.edges.add((self.placed[image], number))

    def _held(self, piece: Piece) -> int:
        """The work after which the host has a piece."""
        if piece in self.carried:
            return self.carried[piece]
        if piece not in self.fetched:
            self.fetched[piece] = self._add(_Node(Fetch(piece)))
            self.edges.update((number, self.fetched[piece]) for number in self.storing[piece])
        return self.fetched[piece]

    # The order.

    def join(self) -> None:
        """What the graph says must come before what."""
        doing: defaultdict[StageId, list[tuple[int | None, int]]] = defaultdict(list)
        for number, node in enumerate(self.nodes):
            for firing in node.does:
                doing[firing.stage].append((firing.block, number))
        for number, node in enumerate(self.nodes):
            for firing in node.after:
                for block, before in doing[firing.stage]:
                    if before != number and (firing.block is None or block is None or block == firing.block):
                        self.edges.add((before, number))

    def compiled(self) -> Compiled:
        """Works in an order in which they can run."""
        order = self._order()
        position = {number: at for at, number in enumerate(order)}
        after: defaultdict[int, list[int]] = defaultdict(list)
        for before, number in self.edges:
            after[number].append(position[before])
        works = tuple(
            msgspec.structs.replace(self.nodes[number].work, after=tuple(sorted(after[number]))) for number in order
        )
        return Compiled(self.graph, tuple(self.images), works, tuple(self.stored.items()))

    def _order(self) -> list[int]:
        waits: rx.PyDiGraph[int, None] = rx.PyDiGraph()
        waits.add_nodes_from(list(range(len(self.nodes))))
        waits.add_edges_from([(a, b, None) for a, b in sorted(self.edges)])
        try:
            found = list(rx.lexicographical_topological_sort(waits, key=lambda number: f"{number:012d}"))
        except rx.DAGHasCycle:
            found = []
        if len(found) < len(self.nodes):
            circle = " -> ".join(self._named(a) for a, _ in rx.digraph_find_cycle(waits))
            raise PlacementError(
                f"these wait for each other in a circle: {circle}. A piece is brought into another byte order whole, "
                "so it has to be stored whole before anything that is computed from it is stored into it"
            )
        return found

    def _named(self, number: int) -> str:
        work = self.nodes[number].work
        match work:
            case UnitWork(what=what):
                return what
            case Fetch(piece=piece):
                return f"a readout of {self.graph.tensors[piece[0]].name}"
            case Place(image=image):
                return f"a relayout of {self.graph.tensors[self.images[image].piece[0]].name}"
            case Carry():
                return "copies of " + ", ".join(self.graph.tensors[piece[0]].name for _, piece in work.takes)
