"""The graph of meshes and links: neighbours, paths, and the order of a chain. No figures, no coordinates of units."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import rustworkx as rx

from meshwright.errors import MachineError
from meshwright.machine.mesh import listed


class Fabric:
    """Meshes joined by links. Built from the links alone; `ids` gives the order that ties are decided by."""

    def __init__(self, name: str, ids: Sequence[int], links: Iterable[tuple[int, int]]) -> None:
        self._name = name
        self._ids = tuple(ids)
        self._index = {mesh: index for index, mesh in enumerate(self._ids)}
        self._graph: rx.PyGraph[int, None] = rx.PyGraph(multigraph=False)
        self._graph.add_nodes_from(list(self._ids))
        self._graph.add_edges_from([(self._index[a], self._index[b], None) for a, b in links])
        self._paths: dict[tuple[int, int], tuple[int, ...]] = {}

    def neighbours(self, mesh: int) -> tuple[int, ...]:
        """Meshes that a link joins to `mesh`, in the order of `ids`."""
        return tuple(self._ids[i] for i in sorted(self._graph.neighbors(self._known(mesh))))

    def hops(self, a: int, b: int) -> int:
        """Links on a shortest way from `a` to `b`; MachineError where no way leads there."""
        return len(self.path(a, b)) - 1

    def path(self, a: int, b: int) -> tuple[int, ...]:
        """Meshes of a shortest way, both ends included; at a tie the mesh that comes first in `ids`."""
        # Asked for every packet that crosses a link.
        if (a, b) not in self._paths:
            self._paths[a, b] = self._path(a, b)
        return self._paths[a, b]

    def _path(self, a: int, b: int) -> tuple[int, ...]:
        start, end = self._known(a), self._known(b)
        far = {end: 0.0, **rx.dijkstra_shortest_path_lengths(self._graph, end, lambda _: 1.0)}
        if start not in far:
            raise MachineError(f"{self._name}: no links lead from mesh {a} to mesh {b}")
        way = [start]
        while way[-1] != end:
            closer = (i for i in self._graph.neighbors(way[-1]) if far[i] == far[way[-1]] - 1)
            way.append(min(closer))
        return tuple(self._ids[i] for i in way)

    def joined(self, a: int, b: int) -> bool:
        """Whether links lead from `a` to `b`, over any number of meshes."""
        return rx.has_path(self._graph, self._known(a), self._known(b))

    def in_order(self) -> tuple[int, ...]:
        """All meshes: every piece that is a line, end to end, from the end that comes first in `ids`."""
        order: dict[int, None] = {}
        for start in sorted(self._graph.node_indices(), key=lambda i: (self._graph.degree(i) > 1, i)):
            if start not in order:
                far = rx.dijkstra_shortest_path_lengths(self._graph, start, lambda _: 1.0)
                order.update(dict.fromkeys([start, *sorted(far, key=lambda i: (far[i], i))]))
        return tuple(self._ids[i] for i in order)

    def chain_order(self, meshes: Sequence[int]) -> tuple[int, ...]:
        """The given meshes along the links between them, from the end that comes first in `ids`.

        A sequence whose meshes branch or close a ring has no such order; it is taken as written if every two
        neighbours in it are joined. MachineError names the missing link, or the mesh where the chain forks.
        """
        chosen = self._chosen(meshes)
        part = self._graph.subgraph(chosen)
        ids = tuple(part.nodes())
        inner = Fabric(self._name, ids, [(ids[a], ids[b]) for a, b in part.edge_list()])
        if not rx.is_connected(part):
            raise MachineError(self._gap(meshes, inner))
        if part.num_edges() == len(ids) - 1 and all(part.degree(i) <= 2 for i in part.node_indices()):
            return inner.in_order()
        if all(part.has_edge(ids.index(a), ids.index(b)) for a, b in pairwise(meshes)):
            return tuple(meshes)
        raise MachineError(self._no_line(meshes, inner))

    def _known(self, mesh: int) -> int:
        if mesh not in self._index:
            raise MachineError(f"{self._name} has no mesh {mesh}; its meshes are {listed(self._ids)}")
        return self._index[mesh]

    def _chosen(self, meshes: Sequence[int]) -> list[int]:
        if not meshes:
            raise MachineError("chain_order: no meshes given; name one at least")
        for position, mesh in enumerate(meshes):
            if mesh in meshes[:position]:
                raise MachineError(f"chain_order: mesh {mesh} is named twice in {listed(meshes)}")
        return sorted(self._known(mesh) for mesh in meshes)

    def _gap(self, meshes: Sequence[int], inner: "Fabric") -> str:
        pieces = sorted((sorted(piece) for piece in rx.connected_components(inner._graph)), key=min)
        first, second = ([inner._ids[i] for i in piece] for piece in pieces[:2])
        asked = f"chain_order: meshes {listed(meshes)} of {self._name} are not joined in a line"
        joined = set(rx.node_connected_component(self._graph, self._index[first[0]]))
        if self._index[second[0]] not in joined:  # no way between the pieces even through other meshes
            return f"{asked}: no links lead from mesh {first[0]} to mesh {second[0]}. Leave one of them out"
        way = min((self.path(a, b) for a in first for b in second), key=len)
        between = [mesh for mesh in way if mesh not in meshes]
        return (
            f"{asked}: no link joins {way[0]} and {way[-1]}. With {listed(between)} as well the way is "
            f"{listed(way)}; or leave out {listed(first if len(first) < len(second) else second)}"
        )

    def _no_line(self, meshes: Sequence[int], inner: "Fabric") -> str:
        asked = f"chain_order: meshes {listed(meshes)} of {self._name} are not a line"
        apart = next((a, b) for a, b in pairwise(meshes) if b not in inner.neighbours(a))
        broken = f"and as written no link joins {apart[0]} and {apart[1]}"
        fork = next((mesh for mesh in inner._ids if len(inner.neighbours(mesh)) > 2), None)
        if fork is None:
            ring = (inner._ids[0], *inner.path_around(inner._ids[0]))
            return f"{asked} but a ring, {broken}. Say where it is cut: {listed(ring)}"
        return (
            f"{asked}: {fork} forks to {listed(inner.neighbours(fork))}, {broken}. Name meshes in an order in "
            f"which each is joined to the next"
        )

    def path_around(self, start: int) -> tuple[int, ...]:
        """The other meshes of a ring, in order, from `start` towards its first neighbour."""
        walked = [start, self.neighbours(start)[0]]
        while len(walked) < len(self._ids):
            walked.append(next(mesh for mesh in self.neighbours(walked[-1]) if mesh not in walked))
        return tuple(walked[1:])
