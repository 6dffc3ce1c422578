"""Things that belong together because they share something: stages that are joined by buffers, chains by pieces."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

import rustworkx as rx

T = TypeVar("T")


def joined(shared: Mapping[T, Iterable[Hashable]]) -> list[list[T]]:
    """Groups of the things that share a key with another of the group; both in the order in which they are given.

    shared: for each thing its keys.
    """
    things = list(shared)
    graph: rx.PyGraph[int, None] = rx.PyGraph(multigraph=False)
    graph.add_nodes_from(list(range(len(things))))
    first: dict[Hashable, int] = {}
    for number, thing in enumerate(things):
        graph.add_edges_from([(first.setdefault(key, number), number, None) for key in shared[thing]])
    parts = sorted(sorted(part) for part in rx.connected_components(graph))
    return [[things[number] for number in part] for part in parts]
