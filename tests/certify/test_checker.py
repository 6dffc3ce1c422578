"""The checker believes nothing: an edited certificate, other evidence, another graph or machine is refused."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from certify.broken_graphs import BROKEN
from certify.hand_made import CARD, GRID, chain_sum, multicast, pipeline, two_branches
from meshwright.certify import (
    Certificate,
    CertificateError,
    Verdict,
    Waiver,
    certify,
    checker,
    from_json,
    recheck,
    to_json,
)
from meshwright.certify.certificate import (
    BlockCounts,
    ChannelOrder,
    Entry,
    Evidence,
    FieldAgreement,
    FiringOrder,
    Members,
    Memory,
    Openings,
    Part,
    Peaks,
    Room,
    Run,
    Spans,
    Sums,
    Transfers,
    Units,
    WellFormed,
    sealed,
)
from meshwright.ir.accesses import Piece
from meshwright.ir.contributions import Content
from meshwright.ir.graph import Graph
from meshwright.ir.ids import ChipId, StageId, TensorId

SPANS = {(TensorId(0), 0): (0, 64), (TensorId(1), 0): (64, 128)}


def test_one_short_file_of_little() -> None:
    """Under 400 lines, and of this package only `ir`, `machine`, `errors` and the certificate's records."""
    source = Path(checker.__file__).read_text()
    assert source.count("\n") < 400
    imported = {
        node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("meshwright")
    }
    rooms = {".".join(name.split(".")[:2]) for name in imported if name}
    assert rooms == {"meshwright.certify", "meshwright.errors", "meshwright.ir", "meshwright.machine"}
    names = [
        alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module == "meshwright.certify"
        for alias in node.names
    ]
    assert names == ["certificate"]


def with_evidence(certificate: Certificate, obligation: str, evidence: Evidence | None) -> Certificate:
    """The certificate with other evidence, and a digest that says nothing is wrong."""
    entries = tuple(
        replace(entry, evidence=evidence) if entry.obligation == obligation else entry for entry in certificate.entries
    )
    return sealed(replace(certificate, entries=entries))


def first_run(order: Any, **fields: Any) -> FiringOrder:
    part = order.parts[0]
    return FiringOrder((Part(part.times, (Run(**{"stage": part.runs[0].stage, "steps": part.runs[0].steps, **fields}),
                                          *part.runs[1:])), *order.parts[1:]))  # fmt: skip


Edit = tuple[str, Graph, Any, Callable[[Any], Evidence | None]]
LONG, CHAIN, CAST = pipeline(40), chain_sum(), multicast(3, 2)
EDITS: dict[str, Edit] = {
    "another count of stages": ("Shapes", LONG, GRID, lambda e: replace(e, stages=4)),
    "evidence of another kind": ("Ports", LONG, GRID, lambda e: BlockCounts(())),
    "no evidence": ("BlockBalance", LONG, GRID, lambda e: None),
    "a block more": ("BlockBalance", LONG, GRID, lambda e: BlockCounts((e.counts[0] + 1, *e.counts[1:]))),
    "a count left out": ("BlockBalance", LONG, GRID, lambda e: BlockCounts(e.counts[1:])),
    "a receiver left out": ("NoOrphanRecv", CAST, GRID, lambda e: Members(e.senders, (e.receivers[0][1:],))),
    "another sender": ("OneSender", CAST, GRID, lambda e: Members(((StageId(1),),), e.receivers)),
    "no groups": ("GroupIsRectangle", CAST, GRID, lambda e: Members((), ())),
    "a step more than there is room for": ("NoDeadlock", LONG, GRID, lambda e: first_run(e, steps=3)),
    "a step left out": ("NoDeadlock", LONG, GRID, lambda e: first_run(e, steps=1)),
    "another stage": ("NoDeadlock", LONG, GRID, lambda e: first_run(e, stage=StageId(2))),
    "a stage that isn't there": ("NoDeadlock", LONG, GRID, lambda e: first_run(e, stage=StageId(9))),
    "a repeat that changes what is there": (
        "NoDeadlock", LONG, GRID, lambda e: FiringOrder((Part(20, (Run(StageId(0), 2),)), *e.parts))
    ),
    "an order that stops early": ("NoDeadlock", LONG, GRID, lambda e: FiringOrder(e.parts[:-1])),
    "an order that goes on": ("NoDeadlock", LONG, GRID, lambda e: FiringOrder((*e.parts, e.parts[-1]))),
    "a precedence passed over": (
        "NoDeadlock", two_branches(4, 4), GRID,
        lambda e: FiringOrder((Part(1, (Run(StageId(4), 1),)), *e.parts)),
    ),
    "a lower peak": ("CreditsBounded", LONG, GRID, lambda e: Peaks((1, *e.peaks[1:]))),
    "links the other way round": ("ChannelsAcyclic", chain_sum((2, 3, 1, 0)), CARD,
                                  lambda e: ChannelOrder(tuple((b, a) for a, b in e.channels))),
    "a link left out": ("ChannelsAcyclic", CHAIN, CARD, lambda e: ChannelOrder(e.channels[1:])),
    "less in use": ("BufferFits", CHAIN, CARD, lambda e: Room(e.unit, (replace(e.uses[0], used=0), *e.uses[1:]))),
    "more room": ("AccumulatorFits", CHAIN, CARD,
                  lambda e: Room(e.unit, (replace(e.uses[0], limit=9999), *e.uses[1:]))),
    "a chip left out": ("ArenaFits", CHAIN, CARD, lambda e: Room(e.unit, e.uses[1:])),
    "a site left out": ("RoundFits", CHAIN, CARD, lambda e: Room(e.unit, e.uses[1:])),
    "no room at all": ("BufferFits", CHAIN, CARD, lambda e: None),
    "a store left out": ("ReadAfterWrite", two_branches(4, 4), GRID, lambda e: Memory(e.pieces[1:])),
    "another store": ("WrittenOnce", LONG, GRID,
                      lambda e: Memory((Piece(TensorId(1), 0, (StageId(1),), ()),))),
    "a piece of another tensor": ("Covered", LONG, GRID,
                                  lambda e: Memory((Piece(TensorId(0), 0, (StageId(2),), ()),))),
    "a load more": ("NoLiveOverwrite", LONG, GRID,
                    lambda e: Memory((Piece(TensorId(1), 0, (StageId(2),), (StageId(0),)),))),
    "a span on another": ("SpansDisjoint", LONG, GRID, lambda e: Spans((e.spans[0], replace(e.spans[1], start=0)))),
    "a span too short": ("SpansDisjoint", LONG, GRID, lambda e: Spans((replace(e.spans[0], stop=8), e.spans[1]))),
    "a partial said to be whole": ("UnreducedShard", CHAIN, CARD,
                                   lambda e: Sums((*e.buffers[:2], Content(), *e.buffers[3:]), e.stores)),
    "a store said to be another": ("EachSummandOnce", CHAIN, CARD,
                                   lambda e: Sums(e.buffers, ((StageId(0), Content()),))),
    "an opening left out": ("OpenedBeforeAdd", CHAIN, CARD, lambda e: Openings(e.accumulators[1:])),
    "a transfer left out": ("NeighboursOnly", CHAIN, CARD, lambda e: Transfers(e.moves[1:])),
    "a transfer elsewhere": ("NeighboursOnly", CHAIN, CARD,
                             lambda e: Transfers(((e.moves[0][0], ChipId(0), ChipId(2)), *e.moves[1:]))),
    "another unit": ("UnitPresent", CHAIN, CARD, lambda e: Units(("VC", *e.units[1:]))),
    "a unit left out": ("UnitPresent", CHAIN, CARD, lambda e: Units(e.units[1:])),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_edited_evidence_is_refused(name: str) -> None:
    obligation, graph, machine, edit = EDITS[name]
    spans = {key: (a * 10, b * 10) for key, (a, b) in SPANS.items()} if obligation == "SpansDisjoint" else None
    certificate = certify(graph, machine, spans=spans)
    assert certificate.verdict is Verdict.HELD
    recheck(certificate, graph, machine)
    edited = with_evidence(certificate, obligation, edit(certificate.entry(obligation).evidence))
    assert edited != certificate
    with pytest.raises(CertificateError, match=f"^{obligation}: its evidence "):
        recheck(edited, graph, machine)


def test_every_kind_of_evidence_is_edited() -> None:
    kinds = {type(certify(graph, machine).entry(name).evidence) for name, graph, machine, _ in EDITS.values()}
    assert kinds >= {WellFormed, BlockCounts, Members, FiringOrder, Peaks, ChannelOrder, Room, Memory, Sums, Openings}
    assert kinds >= {Transfers, Units}


@pytest.mark.parametrize("name", [name for name, case in BROKEN.items() if case.spans is None])
def test_a_broken_obligation_is_not_made_held_by_evidence(name: str) -> None:
    """The evidence of a sound graph doesn't carry over to a broken one. Spans are evidence only: without, no claim."""
    case = BROKEN[name]
    certificate = certify(case.graph, case.machine, spans=case.spans)
    sound = certify(CHAIN if case.machine is CARD else LONG, case.machine, spans=None)
    lie = tuple(
        Entry(e.obligation, Verdict.HELD, "", sound.entry(e.obligation).evidence)
        if e.verdict is not Verdict.HELD
        else e
        for e in certificate.entries
    )
    with pytest.raises(CertificateError):
        recheck(sealed(replace(certificate, entries=lie)), case.graph, case.machine)


def test_one_byte_changed_is_noticed() -> None:
    data = to_json(certify(pipeline(), GRID))
    refused = 0
    for position in range(0, len(data), 7):
        for flip in (1, 16):
            changed = bytearray(data)
            changed[position] ^= flip
            with pytest.raises(CertificateError):
                from_json(bytes(changed))
            refused += 1
    assert refused > 400


def test_another_graph_or_machine() -> None:
    certificate = certify(pipeline(), GRID)
    with pytest.raises(CertificateError, match=r"^this certificate is of another graph: sha256:"):
        recheck(certificate, pipeline(5), GRID)
    with pytest.raises(CertificateError, match=r"^this certificate is of another machine than ktpu-v13p$"):
        recheck(certificate, pipeline(), CARD)


def test_what_is_not_promised() -> None:
    graph = two_branches(4, 3)
    with pytest.raises(CertificateError, match=r"^NoDeadlock is not promised: it is broken$"):
        recheck(certify(graph, GRID), graph, GRID)


def test_waivers() -> None:
    graph = two_branches(4, 3)
    waivers = [Waiver(name, "it is a test", "A. Person") for name in ("NoDeadlock", "CreditsBounded")]
    certificate = certify(graph, GRID, waivers)
    recheck(certificate, graph, GRID)
    with pytest.raises(CertificateError, match=r"^NoDeadlock is not promised: it is waived$"):
        recheck(certificate, graph, GRID, allow_waivers=False)


def test_obligations_can_t_be_left_out() -> None:
    certificate = certify(pipeline(), GRID)
    fewer = sealed(replace(certificate, entries=certificate.entries[1:]))
    with pytest.raises(CertificateError, match=r"^this certificate leaves obligations out"):
        recheck(fewer, pipeline(), GRID)


def test_a_digest_that_is_another() -> None:
    certificate = replace(certify(pipeline(), GRID), digest="sha256:0")
    with pytest.raises(CertificateError, match=r"^this certificate was changed after it was written"):
        recheck(certificate, pipeline(), GRID)


def test_meaning_takes_the_reference() -> None:
    graph = pipeline()
    certificate = certify(graph, GRID, reference=graph)
    assert certificate.entry("SameFunction").verdict is Verdict.HELD
    with pytest.raises(CertificateError, match=r"^SameFunction can't be rechecked without the reference"):
        recheck(certificate, graph, GRID)
    asked: list[FieldAgreement] = []

    def agrees(_: Graph, evidence: FieldAgreement) -> bool:
        asked.append(evidence)
        return True

    recheck(certificate, graph, GRID, same_function=agrees)
    assert [e.rounds for e in asked] == [2]
    with pytest.raises(CertificateError, match=r"^SameFunction: graph and reference don't agree as the evidence says$"):
        recheck(certificate, graph, GRID, same_function=lambda *_: False)
