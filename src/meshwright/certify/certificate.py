"""The certificate: an entry an obligation, with evidence or a witness, for one graph and one machine. Data only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from meshwright.errors import MeshwrightError
from meshwright.ir.accesses import Piece
from meshwright.ir.contributions import Content
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, ChipId, StageId, TensorId
from meshwright.ir.serialise import to_msgpack

VERSION: Final = 1
OBLIGATIONS: Final = (
    "Shapes",
    "Ports",
    "Remapped",
    "CombineMatchesPool",
    "BlockBalance",
    "GroupIsRectangle",
    "OneSender",
    "NoOrphanRecv",
    "NoDeadlock",
    "CreditsBounded",
    "ChannelsAcyclic",
    "BufferFits",
    "AccumulatorFits",
    "ArenaFits",
    "RoundFits",
    "ReadAfterWrite",
    "WrittenOnce",
    "Covered",
    "NoLiveOverwrite",
    "SpansDisjoint",
    "UnreducedShard",
    "EachSummandOnce",
    "OpenedBeforeAdd",
    "NeighboursOnly",
    "UnitPresent",
)
"""All obligations, in the order they are asked; with a reference `SameFunction` comes last."""
MEANING: Final = "SameFunction"
Natural = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class CertificateError(MeshwrightError, ValueError):
    """A certificate that can't be read, is not this graph's or machine's, or whose evidence doesn't hold."""


class Verdict(StrEnum):
    """What came of one obligation."""

    HELD = "held"
    BROKEN = "broken"
    NOT_DECIDED = "not decided"
    WAIVED = "waived"


class _Data(Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _Evidence(Struct, frozen=True, forbid_unknown_fields=True, tag_field="evidence"):
    pass


class WellFormed(_Evidence, frozen=True, tag="well_formed"):
    """How many records were looked at, every one by itself."""

    tensors: Natural
    buffers: Natural
    groups: Natural
    stages: Natural


class BlockCounts(_Evidence, frozen=True, tag="block_counts"):
    """Blocks put into, and taken from, every buffer."""

    counts: tuple[Natural, ...]


class Members(_Evidence, frozen=True, tag="members"):
    """For every group its senders, and the stages that receive from it."""

    senders: tuple[tuple[StageId, ...], ...]
    receivers: tuple[tuple[StageId, ...], ...]


class Run(_Data, frozen=True, array_like=True):
    """So many steps of one stage, one after another."""

    stage: StageId
    steps: Annotated[int, Meta(ge=1, le=(1 << 62))]


class Part(_Data, frozen=True, array_like=True):
    """Runs, one after another, and all of that several times."""

    times: Annotated[int, Meta(ge=1, le=(1 << 62))]
    runs: tuple[Run, ...]


class FiringOrder(_Evidence, frozen=True, tag="firing_order"):
    """An order in which all stages come to their end with no buffer ever holding more than its depth."""

    parts: tuple[Part, ...]


class Peaks(_Evidence, frozen=True, tag="peaks"):
    """The most blocks that each buffer holds in the firing order; its depth is at least that."""

    peaks: tuple[Natural, ...]


class ChannelOrder(_Evidence, frozen=True, tag="channel_order"):
    """The links in use, each in one direction, in an order in which every transfer crosses them."""

    channels: tuple[tuple[ChipId, ChipId], ...]


class Use(_Data, frozen=True, array_like=True):
    """How much of something is in use at once, and how much there is."""

    where: str
    used: Natural
    limit: Natural


class Room(_Evidence, frozen=True, tag="room"):
    """Every memory that the graph uses; unit: what is counted."""

    unit: str
    uses: tuple[Use, ...]


class Memory(_Evidence, frozen=True, tag="memory"):
    """Every piece that was decided; given: tensors that are stored and have a first content."""

    pieces: tuple[Piece, ...]
    given: tuple[TensorId, ...] = ()


class Span(_Data, frozen=True, array_like=True):
    """The bytes of one rank's piece of a tensor."""

    tensor: TensorId
    rank: Natural
    start: Natural
    stop: Natural


class Spans(_Evidence, frozen=True, tag="spans"):
    """Where pieces lie."""

    spans: tuple[Span, ...]


class Sums(_Evidence, frozen=True, tag="sums"):
    """What every buffer held last, and every store put, lacks."""

    buffers: tuple[Content, ...]
    stores: tuple[tuple[StageId, Content], ...]


class Openings(_Evidence, frozen=True, tag="openings"):
    """For every accumulator the stages that touch it, in order; the first of each list opens it."""

    accumulators: tuple[tuple[BufferId, tuple[tuple[StageId, ...], ...]], ...]


class Transfers(_Evidence, frozen=True, tag="transfers"):
    """What moves between chips: (stage, from, to)."""

    moves: tuple[tuple[StageId, ChipId, ChipId], ...]


class Units(_Evidence, frozen=True, tag="units"):
    """The type of unit that runs each stage."""

    units: tuple[str, ...]


class FieldAgreement(_Evidence, frozen=True, tag="field_agreement"):
    """The graph and a reference gave the same elements of a finite field on random inputs.

    reference: the hash of the reference graph. rounds, seed: what the inputs were drawn by.
    """

    reference: str
    rounds: Natural
    seed: Natural
    error: float
    names: tuple[tuple[str, str], ...] = ()


Evidence = (
    WellFormed
    | BlockCounts
    | Members
    | FiringOrder
    | Peaks
    | ChannelOrder
    | Room
    | Memory
    | Spans
    | Sums
    | Openings
    | Transfers
    | Units
    | FieldAgreement
)


class Witness(_Data, frozen=True, omit_defaults=True):
    """Where an obligation is broken: as few stages and buffers, and as small a range, as show it.

    elements: the range along each axis of the tensor's piece. change: the smallest change that would help.
    """

    stages: tuple[StageId, ...] = ()
    buffers: tuple[BufferId, ...] = ()
    chips: tuple[ChipId, ...] = ()
    tensor: str | None = None
    elements: tuple[tuple[int, int], ...] = ()
    change: str = ""


class Waiver(_Data, frozen=True):
    """Who says that an obligation need not hold, and why."""

    obligation: str
    reason: str
    who: str


class Entry(_Data, frozen=True, omit_defaults=True):
    """What came of one obligation.

    message: what is wrong, why it isn't decided, or why there was nothing to ask. evidence: of one that is held, unless
    there was nothing to ask. witness: of one that is broken, also if that is waived.
    """

    obligation: str
    verdict: Verdict
    message: str = ""
    evidence: Evidence | None = None
    witness: Witness | None = None
    waiver: Waiver | None = None


class Certificate(_Data, frozen=True):
    """Entries in the order of the obligations, and what they are about. digest: over all the rest."""

    version: int
    graph: str
    machine: str
    entries: tuple[Entry, ...]
    digest: str = ""

    @property
    def verdict(self) -> Verdict:
        """Broken if an obligation is, else not decided if one isn't, else held (waivers count as held)."""
        found = {entry.verdict for entry in self.entries}
        for verdict in (Verdict.BROKEN, Verdict.NOT_DECIDED):
            if verdict in found:
                return verdict
        return Verdict.HELD

    def entry(self, obligation: str) -> Entry:
        """The entry of one obligation; `KeyError` where it wasn't asked."""
        for entry in self.entries:
            if entry.obligation == obligation:
                return entry
        raise KeyError(obligation)

    def __str__(self) -> str:
        width = max((len(e.obligation) for e in self.entries), default=0)
        lines = [f"{self.verdict.value}: graph {self.graph[:19]} on machine {self.machine[:19]}"]
        for entry in self.entries:
            said = f"  {entry.message}" if entry.message else ""
            by = f"  (waived by {entry.waiver.who}: {entry.waiver.reason})" if entry.waiver else ""
            lines.append(f"{entry.obligation.ljust(width)}  {entry.verdict.value.ljust(11)}{said}{by}".rstrip())
            if entry.witness is not None and entry.witness.change:
                lines.append(f"{' ' * width}  {' ' * 11}  to change: {entry.witness.change}")
        return "\n".join(lines)


def graph_hash(graph: Graph) -> str:
    """`sha256:` and the digest of the graph's MessagePack: equal graphs have equal hashes.

    Raises `CertificateError` for a graph with a number that doesn't fit 64 bits, which MessagePack has not got.
    """
    try:
        return f"sha256:{hashlib.sha256(to_msgpack(graph)).hexdigest()}"
    except OverflowError:
        raise CertificateError("this graph has a number that doesn't fit 64 bits") from None


def digest_of(certificate: Certificate) -> str:
    """`sha256:` and the digest of everything in a certificate but its own digest."""
    bare = msgspec.structs.replace(certificate, digest="")
    return f"sha256:{hashlib.sha256(msgspec.json.encode(bare)).hexdigest()}"


def sealed(certificate: Certificate) -> Certificate:
    """The certificate with its digest."""
    return msgspec.structs.replace(certificate, digest=digest_of(certificate))


def to_json(certificate: Certificate) -> bytes:
    """The certificate as JSON; equal certificates give equal bytes."""
    return msgspec.json.encode(certificate)


_decoder: Final[Callable[[bytes | str], Certificate]] = msgspec.json.Decoder(Certificate).decode


def from_json(data: bytes | str) -> Certificate:
    """The certificate that `to_json` wrote; `CertificateError` for anything else, and for one that was changed since.

    That it fits its graph and machine, and that the evidence holds, is asked by `recheck`.
    """
    try:
        certificate = _decoder(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CertificateError(f"not a certificate: {str(error) or 'nested too deeply'}") from None
    # Byte for byte: a file that says the same in other words was not written by `to_json`.
    if digest_of(certificate) != certificate.digest or to_json(certificate) != (
        data.encode() if isinstance(data, str) else data
    ):
        raise CertificateError(
            "this certificate was changed after it was written: its digest is another one. Certify the graph again"
        )
    return certificate
