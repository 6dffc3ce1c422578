"""Progress: `NoDeadlock`, `CreditsBounded`, `ChannelsAcyclic`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import rustworkx as rx

from meshwright.certify.certificate import ChannelOrder, Entry, FiringOrder, Peaks, Verdict, Witness
from meshwright.certify.fabric import route
from meshwright.certify.findings import Case, broken, held, not_decided
from meshwright.certify.schedule import MOST_BATCHES, SearchError, Wait, run, smallest_circle, sufficient_depths, waits
from meshwright.errors import GraphError, MachineError
from meshwright.ir.flow import order_graph
from meshwright.ir.ids import BufferId, ChipId, StageId
from meshwright.ir.moves import moves
from meshwright.ir.steps import Reason


def no_deadlock(case: Case) -> Entry:
    """All stages come to their end within the stated depths."""
    name = "NoDeadlock"
    digraph = order_graph(case.graph)
    circle = _order_circle(digraph)
    if circle:
        ring = " -> ".join(f"s{s}" for s in (*circle, circle[0]))
        return broken(
            name,
            f"the stages {ring} each have to precede the next: no block is there at the start, so none of them begins",
            Witness(circle, chips=case.chips(circle), change=f"take one of these orders away: {_edges(case, circle)}"),
        )
    try:
        walk = case.walk
    except GraphError as error:
        return not_decided(name, f"blocks don't balance: {error}")
    try:
        outcome = run(walk)
        if outcome.finished:
            return held(name, outcome.order)
        stuck = waits(walk, outcome.done)
        return _stuck(case, smallest_circle(stuck) or stuck[:1], outcome.done)
    except SearchError:
        return not_decided(name, f"stages step in batches, and no end was reached in {MOST_BATCHES} of them")


def _order_circle(digraph: rx.PyDiGraph[StageId, None]) -> tuple[StageId, ...]:
    """The fewest stages that precede each other in a circle."""
    rings = [ring for ring in rx.strongly_connected_components(digraph) if len(ring) > 1]
    loops = [n for n in digraph.node_indices() if digraph.has_edge(n, n)]
    if loops:
        return (StageId(loops[0]),)
    if not rings:
        return ()
    ring = min(rings, key=len)
    part = digraph.subgraph(list(ring))
    found = [Wait(StageId(part[a]), StageId(part[b]), None, None) for a, b in part.edge_list()]
    return tuple(w.stage for w in smallest_circle(found))


def _edges(case: Case, circle: Sequence[StageId]) -> str:
    stated = {(e.before, e.after) for e in case.graph.precedences}
    pairs = list(pairwise((*circle, circle[0])))
    chosen = [p for p in pairs if p in stated] or pairs
    return ", ".join(f"(s{a}, s{b})" for a, b in chosen)


def _stuck(case: Case, circle: Sequence[Wait], done: tuple[int, ...]) -> Entry:
    stages = tuple(w.stage for w in circle)
    buffers = tuple(dict.fromkeys(w.buffer for w in circle if w.buffer is not None))
    drawn = "".join(f"\n    {_line(case, wait, done)}" for wait in circle)
    change = "break the circle: no depth of the buffers lets these stages go on"
    try:
        depths = sufficient_depths(case.walk)
    except SearchError:
        depths, change = None, "deeper buffers may help; how deep took too long to find"
    if depths is not None:
        change = "; ".join(_deeper(case, b, n) for b, n in sorted(depths.deeper.items()))
        change += " (none of these can be lower by itself)" if len(depths.deeper) > 1 else ""
    return broken(
        "NoDeadlock",
        f"{len(stages)} stages wait for each other:{drawn}",
        Witness(stages, buffers, case.chips(stages), change=change),
    )


def _deeper(case: Case, buffer: BufferId, more: int) -> str:
    depth = case.graph.buffers[buffer].depth
    return f"make b{buffer} {depth + more} blocks deep instead of {depth}"


def _line(case: Case, wait: Wait, done: tuple[int, ...]) -> str:
    here, there = case.stage(wait.stage), f"s{wait.other}"
    firing = done[wait.stage] // case.walk.periods[wait.stage]
    if wait.reason is None:
        return f"{here} waits, before it begins, for {there} to finish"
    buffer = f"b{wait.buffer}"
    match wait.reason:
        case Reason.BLOCKS:
            return f"{here}, in firing {firing}, waits for {wait.reason.value} {buffer}, which {there} puts"
        case Reason.ROOM:
            assert wait.buffer is not None
            depth = case.graph.buffers[wait.buffer].depth
            site = case.graph.buffers[wait.buffer].site
            return (
                f"{here}, in firing {firing}, waits for {wait.reason.value} {buffer} at {site} ({depth} of {depth} "
                f"taken), which {there} empties"
            )
        case Reason.TURN:
            return f"{here}, in firing {firing}, waits for {wait.reason.value} {buffer} after {there}"


def credits_bounded(case: Case, order: Entry) -> Entry:
    """In the firing order of `NoDeadlock` no buffer ever holds more blocks than its depth."""
    name = "CreditsBounded"
    if order.verdict is not Verdict.HELD or not isinstance(order.evidence, FiringOrder):
        return not_decided(name, "there is no firing order to look at: NoDeadlock doesn't hold")
    peaks = run(case.walk).peaks
    return held(name, Peaks(tuple(peaks.get(BufferId(i), 0) for i in range(len(case.graph.buffers)))))


def channels_acyclic(case: Case) -> Entry:
    """No transfers can block each other on the links in a circle, each with one it holds and one that it needs."""
    name = "ChannelsAcyclic"
    digraph: rx.PyDiGraph[tuple[ChipId, ChipId], StageId] = rx.PyDiGraph(multigraph=False)
    index: dict[tuple[ChipId, ChipId], int] = {}
    try:
        for stage, source, target in moves(case.graph):
            links = route(case.machine, source, target)
            for link in links:
                if link not in index:
                    index[link] = digraph.add_node(link)
            for held_link, needed in pairwise(links):
                digraph.add_edge(index[held_link], index[needed], stage)
    except MachineError as error:
        return not_decided(name, f"a transfer has no route: {error}")
    if not index:
        return held(name, ChannelOrder(()), "nothing crosses a link")
    if rx.is_directed_acyclic_graph(digraph):
        return held(name, ChannelOrder(tuple(digraph[i] for i in rx.topological_sort(digraph))))
    ring = rx.digraph_find_cycle(digraph)
    stages = tuple(dict.fromkeys(digraph.get_edge_data(a, b) for a, b in ring))
    drawn = ", ".join(f"{digraph[a][0]} to {digraph[a][1]}" for a, _ in ring)
    return broken(
        name,
        f"the links {drawn} wait for each other in a circle: a transfer that holds one needs the next",
        Witness(stages, chips=tuple(digraph[a][0] for a, _ in ring), change=f"move the blocks of s{stages[0]} hop by "
                "hop, through memory of the chips on the way"),
    )  # fmt: skip
