"""Islands: stages that have to be at work together. All others can be run one island after another."""

from __future__ import annotations

from functools import cached_property

import rustworkx as rx
from msgspec import Struct

from meshwright.ir.flow import order_graph
from meshwright.ir.graph import Graph
from meshwright.ir.records import Load, Recv


class Islands(Struct, frozen=True, eq=False, dict=True):
    """Stages that buffers or multicasts join are one island; so are islands each of which waits for the other."""

    graph: Graph

    @cached_property
    def of(self) -> tuple[int, ...]:
        """The island of each stage. Run in the order of what precedes what, no two islands are at work together."""
        joined = self._joined()
        waits: rx.PyDiGraph[int, None] = rx.PyDiGraph(multigraph=False)
        waits.add_nodes_from(list(range(max(joined, default=-1) + 1)))
        order = order_graph(self.graph)
        waits.add_edges_from([(joined[a], joined[b], None) for a, b in order.edge_list() if joined[a] != joined[b]])
        island = {part: number for number, ring in enumerate(rx.strongly_connected_components(waits)) for part in ring}
        return tuple(island[part] for part in joined)

    def _joined(self) -> list[int]:
        joined: rx.PyGraph[int, None] = rx.PyGraph(multigraph=False)
        joined.add_nodes_from(list(range(len(self.graph.stages))))
        first: dict[tuple[str, int], int] = {}
        for index, stage in enumerate(self.graph.stages):
            names = [("b", int(b)) for b in (*stage.ins, *stage.outs, *stage.hidden())]
            if isinstance(stage.kind, Recv):
                names.append(("g", stage.kind.group))
            elif isinstance(stage.kind, Load) and stage.kind.multicast is not None:
                names.append(("g", stage.kind.multicast))
            for name in names:
                joined.add_edge(first.setdefault(name, index), index, None)
        found = [0] * len(self.graph.stages)
        for number, part in enumerate(rx.connected_components(joined)):
            for stage in part:
                found[stage] = number
        return found
