"""Islands: stages that buffers join, which may all be at work at once, and which islands never are together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property

import rustworkx as rx
from msgspec import Struct

from meshwright.ir.flow import order_graph
from meshwright.ir.graph import Graph
from meshwright.ir.ids import StageId
from meshwright.ir.records import Load, Recv


class Islands(Struct, frozen=True, eq=False, dict=True):
    """Stages that buffers join, and which of these islands are never at work together."""

    graph: Graph

    @cached_property
    def order(self) -> rx.PyDiGraph[StageId, None]:
        """What precedes what."""
        return order_graph(self.graph)

    @cached_property
    def of(self) -> tuple[int, ...]:
        """The island of each stage."""
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
        island = [0] * len(self.graph.stages)
        for number, part in enumerate(rx.connected_components(joined)):
            for stage in part:
                island[stage] = number
        return tuple(island)

    @cached_property
    def _members(self) -> dict[int, list[int]]:
        members: dict[int, list[int]] = defaultdict(list)
        for stage, island in enumerate(self.of):
            members[island].append(stage)
        return members

    @cached_property
    def _known(self) -> dict[int, set[int]]:
        return {}

    def _after(self, island: int) -> set[int]:
        """Stages that have finished before any stage of an island begins."""
        if island not in self._known:
            heads = [s for s in self._members[island] if not self._fed(s)]
            before = [rx.ancestors(self.order, s) for s in heads]
            self._known[island] = set[int].intersection(*before) if before else set()
        return self._known[island]

    def _fed(self, stage: int) -> bool:
        return any(self.of[p] == self.of[stage] for p in self.order.predecessor_indices(stage))

    def apart(self, a: int, b: int) -> bool:
        """Whether one of two islands has finished before the other begins."""
        return self._after(b).issuperset(self._members[a]) or self._after(a).issuperset(self._members[b])

    def most(self, weights: Mapping[int, int]) -> int:
        """A bound on how much is there at once, given how much each island has."""
        there = [i for i, w in weights.items() if w]
        return max((weights[i] + sum(weights[j] for j in there if j != i and not self.apart(i, j)) for i in there),
                   default=0)  # fmt: skip
