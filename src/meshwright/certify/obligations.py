"""`certify`: every obligation asked in order, each of a graph in which those that it rests on hold."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from meshwright.certify.balance import block_balance, group_is_rectangle, no_orphan_recv, one_sender
from meshwright.certify.capacity import accumulator_fits, arena_fits, buffer_fits, round_fits
from meshwright.certify.certificate import (
    MEANING,
    OBLIGATIONS,
    VERSION,
    Certificate,
    CertificateError,
    Entry,
    Verdict,
    Waiver,
    graph_hash,
    sealed,
)
from meshwright.certify.fabric import neighbours_only, unit_present
from meshwright.certify.findings import Case, Obligation, not_decided
from meshwright.certify.form import form
from meshwright.certify.meaning import same_function_entry
from meshwright.certify.memory import memory, spans_disjoint
from meshwright.certify.progress import channels_acyclic, credits_bounded, no_deadlock
from meshwright.certify.sums import opened_before_add, sums
from meshwright.ir.graph import Graph
from meshwright.ir.ids import TensorId
from meshwright.machine import MachineSpec, canonical_hash

_FORM: Final = OBLIGATIONS[:4]


def certify(
    graph: Graph,
    machine: MachineSpec,
    waivers: Sequence[Waiver] = (),
    reference: Graph | None = None,
    *,
    names: Mapping[str, str] | None = None,
    spans: Mapping[tuple[TensorId, int], tuple[int, int]] | None = None,
    given: Collection[str] = (),
) -> Certificate:
    """What can be promised of `graph` on `machine`, with evidence that `recheck` can follow.

    waivers: obligations that need not hold, each with a reason and a name; written into the certificate. reference: a
    graph that has to compute the same function. names: what the graph calls tensors of the reference, where that
    differs. spans: bytes (start, stop) of pieces in DRAM, by tensor and rank.
    given: names of tensors that are stored to and have a first content. Raises `CertificateError` for a waiver of an
    obligation that isn't asked or without a reason or name, and for a tensor in `given` or `spans` that isn't there.
    """
    ids = {tensor.name: TensorId(i) for i, tensor in enumerate(graph.tensors)}
    _require_known(graph, ids, spans or {}, given)
    case = Case(graph, machine, spans, frozenset(ids[name] for name in given), reference, dict(names or {}))
    excused = _excused(waivers, reference is not None)
    found: dict[str, Entry] = {}
    for name in (*OBLIGATIONS, *([MEANING] if reference is not None else [])):
        reason = "" if any(f.obligation == name for f in case.faults) else _unfounded(name, found)
        found[name] = not_decided(name, reason) if reason else _asked(name, case, found)
    entries = tuple(_waived(entry, excused.get(entry.obligation)) for entry in found.values())
    return sealed(Certificate(VERSION, graph_hash(graph), canonical_hash(machine), entries))


def _asked(name: str, case: Case, found: Mapping[str, Entry]) -> Entry:
    if name in _FORM:
        return form(case, name)
    if name == "CreditsBounded":
        return credits_bounded(case, found["NoDeadlock"])
    return _ASK[name](case)


_ASK: Final[Mapping[str, Obligation]] = {
    "BlockBalance": block_balance,
    "GroupIsRectangle": group_is_rectangle,
    "OneSender": one_sender,
    "NoOrphanRecv": no_orphan_recv,
    "NoDeadlock": no_deadlock,
    "ChannelsAcyclic": channels_acyclic,
    "BufferFits": buffer_fits,
    "AccumulatorFits": accumulator_fits,
    "ArenaFits": arena_fits,
    "RoundFits": round_fits,
    **{n: partial(memory, name=n) for n in ("ReadAfterWrite", "WrittenOnce", "Covered", "NoLiveOverwrite")},
    "SpansDisjoint": spans_disjoint,
    **{n: partial(sums, name=n) for n in ("UnreducedShard", "EachSummandOnce")},
    "OpenedBeforeAdd": opened_before_add,
    "NeighboursOnly": neighbours_only,
    "UnitPresent": unit_present,
    MEANING: same_function_entry,
}

_RESTS_ON: Final[Mapping[str, tuple[str, ...]]] = {
    "NoOrphanRecv": ("GroupIsRectangle",),
    "NoDeadlock": ("OneSender", "NoOrphanRecv"),
    "UnreducedShard": ("BlockBalance",),
    "EachSummandOnce": ("BlockBalance",),
    MEANING: ("BlockBalance", "NoDeadlock", "ReadAfterWrite", "WrittenOnce", "Covered", "NoLiveOverwrite"),
}
"""Beside form: what an obligation has no meaning without."""


def _unfounded(name: str, found: Mapping[str, Entry]) -> str:
    if name in _FORM:
        return ""
    for needed in (*_FORM, *_RESTS_ON.get(name, ())):
        if found[needed].verdict is not Verdict.HELD:
            return f"{needed} is {found[needed].verdict.value}, and without it this has no meaning"
    return ""


def _require_known(
    graph: Graph,
    names: Mapping[str, TensorId],
    spans: Mapping[tuple[TensorId, int], tuple[int, int]],
    given: Collection[str],
) -> None:
    for name in given:
        if name not in names:
            raise CertificateError(
                f"given: there is no tensor {name!r}; the graph has {', '.join(sorted(names)) or 'none'}"
            )
    for (tensor, rank), (start, stop) in spans.items():
        if not 0 <= tensor < len(graph.tensors) or not 0 <= rank < len(graph.tensors[tensor].chips):
            raise CertificateError(f"spans: there is no rank {rank} of a tensor t{tensor}")
        if not 0 <= start <= stop:
            raise CertificateError(f"spans: {start} to {stop} of t{tensor} is no range of bytes")


def _excused(waivers: Sequence[Waiver], meaning: bool) -> dict[str, Waiver]:
    known = (*OBLIGATIONS, MEANING) if meaning else OBLIGATIONS
    for waiver in waivers:
        if waiver.obligation not in known:
            raise CertificateError(f"waiver of {waiver.obligation!r}: asked are {', '.join(known)}")
        if not waiver.reason.strip() or not waiver.who.strip():
            raise CertificateError(f"waiver of {waiver.obligation}: say why, and who says so")
    return {waiver.obligation: waiver for waiver in waivers}


def _waived(entry: Entry, waiver: Waiver | None) -> Entry:
    """A waiver of what holds anyway changes nothing."""
    if waiver is None or entry.verdict is Verdict.HELD:
        return entry
    return replace(entry, verdict=Verdict.WAIVED, waiver=waiver)
