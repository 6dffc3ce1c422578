"""Partial sums: `UnreducedShard`, `EachSummandOnce`, `OpenedBeforeAdd`."""

from __future__ import annotations

from meshwright.certify.certificate import Entry, Openings, Sums, Witness
from meshwright.certify.findings import Case, broken, held, not_decided
from meshwright.errors import GraphError
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, ChipId, StageId
from meshwright.ir.partials import Contents, Finding
from meshwright.ir.records import Store
from meshwright.ir.steps import generations


def sums(case: Case, name: str) -> Entry:
    """`UnreducedShard`: no partial is used as if whole. `EachSummandOnce`: wholes have every summand once."""
    try:
        found = case.contents
    except GraphError as error:
        return not_decided(name, f"values can't be followed through the graph: {error}")
    mine = [f for f in found.findings if f.obligation == name]
    if mine:
        more = f" (and {len(mine) - 1} more)" if len(mine) > 1 else ""
        return broken(name, f"{case.stage(mine[0].stage)} {mine[0].message}{more}", _witness(case, mine[0]))
    if found.findings:
        other = found.findings[0]
        return not_decided(name, f"{other.obligation} is broken at s{other.stage}; what follows from it isn't known")
    if found.doubts:
        stage, doubt = found.doubts[0]
        return not_decided(name, f"{case.stage(stage)}: {doubt}")
    return held(name, evidence_of(found))


def evidence_of(found: Contents) -> Sums:
    """What every buffer and store lacks."""
    return Sums(found.buffers, found.stores)


def _witness(case: Case, finding: Finding) -> Witness:
    stage = case.graph.stages[finding.stage]
    chips: tuple[ChipId, ...] = case.chips((finding.stage,))
    tensor, elements = None, ()
    if isinstance(stage.kind, Store):
        record = case.graph.tensors[stage.kind.tensor]
        tensor, elements = record.name, tuple((0, size) for size in record.local)
    buffers = tuple(dict.fromkeys((*stage.ins, *stage.outs)))
    return Witness((finding.stage,), buffers, chips, tensor, elements, finding.change)


def openings(graph: Graph) -> Openings:
    """Who touches every accumulator, in order, cut where it is opened."""
    return Openings(
        tuple((b, tuple(tuple(touching) for touching in opened)) for b, opened in sorted(generations(graph).items()))
    )


def opened_before_add(case: Case) -> Entry:
    """An accumulator is opened before it is added to or read, and read before it is opened again."""
    name = "OpenedBeforeAdd"
    evidence = openings(case.graph)
    for buffer, opened in evidence.accumulators:
        first = opened[0][0]
        if buffer in case.graph.stages[first].ins:
            does = "adds to" if buffer in case.graph.stages[first].outs else "reads"
            return broken(
                name,
                f"{case.stage(first)} {does} accumulator b{buffer}, which no stage before it in the table opens",
                _accumulator(case, buffer, (first,), f"put a stage that only puts into b{buffer} before s{first}"),
            )
        for touching in opened:
            if buffer in case.graph.stages[touching[-1]].outs:
                then = "and no stage takes them out" if touching is opened[-1] else "and it is opened again over them"
                last = opened[opened.index(touching) + 1][0] if touching is not opened[-1] else touching[-1]
                return broken(
                    name,
                    f"{case.stage(touching[0])} leaves sums in accumulator b{buffer}, {then}",
                    _accumulator(case, buffer, tuple(dict.fromkeys((touching[0], last))), f"drain b{buffer} first"),
                )
    return held(name, evidence, "" if evidence.accumulators else "the graph has no accumulator")


def _accumulator(case: Case, buffer: BufferId, stages: tuple[StageId, ...], change: str) -> Witness:
    return Witness(stages, (buffer,), case.chips(stages), change=change)
