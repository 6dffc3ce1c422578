"""`recheck`: whether a certificate's evidence shows what it claims. Believes nothing but the evidence.

Short, to be read in one sitting, and written apart from what finds the evidence: beside the certificate's own records
it uses only what graphs (`ir`) and machines (`machine`) are. Every claim is checked again from graph, machine and
evidence; the messages, and how the evidence was found, play no part.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import combinations, pairwise
from typing import TypeVar

from msgspec import Struct

from meshwright.certify import certificate as c
from meshwright.errors import MeshwrightError
from meshwright.ir.accesses import Accesses, overtaken
from meshwright.ir.flow import block_counts
from meshwright.ir.form import faults
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, ChipId, StageId
from meshwright.ir.islands import Islands
from meshwright.ir.moves import Move, group_members, moves
from meshwright.ir.partials import contents
from meshwright.ir.pattern import affine_of
from meshwright.ir.records import Load, Store
from meshwright.ir.regions import Region, everything, uncovered
from meshwright.ir.room import (
    Occupants,
    Use,
    accumulator_uses,
    buffer_uses,
    occupants,
    round_uses,
    sites_of,
    unit_at,
    units_for,
)
from meshwright.ir.steps import Reason, generations, walk_of
from meshwright.machine import MachineSpec, canonical_hash

Agreement = Callable[[Graph, c.FieldAgreement], bool]
"""Evaluates graph and reference again, as the evidence says; for `SameFunction`, which no short file can check."""
_E = TypeVar("_E")


def recheck(
    certificate: c.Certificate,
    graph: Graph,
    machine: MachineSpec,
    allow_waivers: bool = True,
    same_function: Agreement | None = None,
) -> None:
    """Returns where the certificate is of this graph and machine, promises everything, and its evidence shows it.

    Raises `CertificateError`, naming the obligation, where it doesn't. same_function: has to be given for a certificate
    that promises `SameFunction`.
    """
    if certificate.version != c.VERSION or c.digest_of(certificate) != certificate.digest:
        raise c.CertificateError("this certificate was changed after it was written, or is of another version")
    if certificate.graph != c.graph_hash(graph):
        raise c.CertificateError(
            f"this certificate is of another graph: {certificate.graph}, not {c.graph_hash(graph)}"
        )
    if certificate.machine != canonical_hash(machine):
        raise c.CertificateError(f"this certificate is of another machine than {machine.name}")
    names = tuple(entry.obligation for entry in certificate.entries)
    if names not in (c.OBLIGATIONS, (*c.OBLIGATIONS, c.MEANING)):
        raise c.CertificateError("this certificate leaves obligations out, or has them in another order")
    checker = _Checker(graph, machine, certificate.entry("NoDeadlock").evidence)
    for entry in certificate.entries:
        if entry.verdict is c.Verdict.WAIVED and allow_waivers and entry.waiver is not None:
            continue
        if entry.verdict is not c.Verdict.HELD:
            raise c.CertificateError(f"{entry.obligation} is not promised: it is {entry.verdict.value}")
        if entry.obligation == c.MEANING:
            _agree(graph, entry, same_function)
            continue
        try:
            shown = checker.check(entry)
        except (MeshwrightError, LookupError, ValueError) as error:
            raise c.CertificateError(f"{entry.obligation}: its evidence can't be followed: {error}") from error
        if not shown:
            raise c.CertificateError(f"{entry.obligation}: its evidence doesn't show that it is held")


def _agree(graph: Graph, entry: c.Entry, same_function: Agreement | None) -> None:
    if not isinstance(entry.evidence, c.FieldAgreement) or same_function is None:
        raise c.CertificateError(f"{c.MEANING} can't be rechecked without the reference that it was decided by")
    if not same_function(graph, entry.evidence):
        raise c.CertificateError(f"{c.MEANING}: graph and reference don't agree as the evidence says")


def _of(kind: type[_E], evidence: object) -> _E:
    if not isinstance(evidence, kind):
        raise c.CertificateError(f"{kind.__name__} is needed, and there is {type(evidence).__name__}")
    return evidence


class _Checker(Struct, frozen=True, eq=False, dict=True):
    graph: Graph
    machine: MachineSpec
    order: c.Evidence | None

    def check(self, entry: c.Entry) -> bool:
        """Whether the evidence of one obligation shows that it is held."""
        e = entry.evidence
        match entry.obligation:
            case "Shapes" | "Ports" | "Remapped" | "CombineMatchesPool":
                sizes = _of(c.WellFormed, e)
                g = self.graph
                tables = (len(g.tensors), len(g.buffers), len(g.groups), len(g.stages))
                return not faults(g) and (sizes.tensors, sizes.buffers, sizes.groups, sizes.stages) == tables
            case "BlockBalance":
                return _of(c.BlockCounts, e).counts == tuple(self.counts.get(b, 0) for b in self._buffer_ids)
            case "GroupIsRectangle" | "OneSender" | "NoOrphanRecv":
                return self._groups(_of(c.Members, e))
            case "NoDeadlock":
                return self._replay(_of(c.FiringOrder, e)) is not None
            case "CreditsBounded":
                return self._credits(_of(c.Peaks, e))
            case "ChannelsAcyclic":
                return self._channels(_of(c.ChannelOrder, e).channels)
            case "BufferFits":
                return self._fits(buffer_uses(self.graph, self.machine), e)
            case "AccumulatorFits":
                clusters = self.machine.maybe_cluster is not None
                return self._fits(accumulator_uses(self.graph, self.machine) if clusters else (), e) and (
                    clusters or not any(b.resident for b in self.graph.buffers)
                )
            case "RoundFits":
                rounds = self.machine.maybe_dispatch is not None
                return self._fits(round_uses(self.graph, self.machine) if rounds else (), e)
            case "ArenaFits":
                return self._arena(_of(c.Room, e))
            case "ReadAfterWrite" | "WrittenOnce" | "Covered" | "NoLiveOverwrite":
                return self._memory(entry.obligation, _of(c.Memory, e))
            case "SpansDisjoint":
                return e is None or self._spans(_of(c.Spans, e))
            case "UnreducedShard" | "EachSummandOnce":
                found = contents(self.graph)
                there = _of(c.Sums, e)
                same = (there.buffers, there.stores) == (found.buffers, found.stores)
                return same and not found.findings and not found.doubts
            case "OpenedBeforeAdd":
                return self._opened(_of(c.Openings, e))
            case "NeighboursOnly":
                return _of(c.Transfers, e).moves == tuple(self.moves) and all(self._may_move(*m) for m in self.moves)
            case "UnitPresent":
                return self._units(_of(c.Units, e).units)
            case _:
                return False

    @property
    def _buffer_ids(self) -> Iterator[BufferId]:
        return map(BufferId, range(len(self.graph.buffers)))

    @cached_property
    def counts(self) -> dict[BufferId, int]:
        return block_counts(self.graph)

    def _groups(self, e: c.Members) -> bool:
        if (e.senders, e.receivers) != (known := group_members(self.graph)):
            return False
        for group, senders, receivers in zip(self.graph.groups, *known, strict=True):
            (x0, y0), (x1, y1) = group.low, group.high
            if (x1 - x0 + 1) * (y1 - y0 + 1) > len(self._occupants.get(group.sender.chip, {})):
                return False
            sites = [self.graph.site(self.graph.stages[r]) for r in receivers]
            sites += [group.sender] if group.holds(group.sender) and senders else []
            there = self.machine.noc.multicast and all(unit_at(self._occupants, s) for s in group.sites)
            everywhere = sorted(map(str, sites)) == sorted(map(str, group.sites)) if senders else not sites
            if not there or not everywhere or len(senders) > 1:
                return False
        return True

    # The firing order, gone through again

    def _replay(self, e: c.FiringOrder) -> dict[BufferId, int] | None:
        """The most that each buffer holds on the way; None where a step isn't possible or something is left to do."""
        walk = walk_of(self.graph)
        done = [0] * len(walk.steps)
        peaks = defaultdict[BufferId, int](int)
        for part in e.parts:
            before = tuple(done)
            for run in part.runs:
                stage = run.stage
                if not 0 <= stage < len(done) or any(done[b] < walk.steps[b] for b in walk.waits[stage]):
                    return None
                done[stage] += run.steps
                for rule in walk.rules[stage]:
                    ahead = rule.mine.moved(done[stage]) - rule.theirs.moved(done[rule.other])
                    if ahead > rule.slack:
                        return None
                    if rule.reason is Reason.ROOM:
                        peaks[rule.buffer] = max(peaks[rule.buffer], ahead)
            if part.times > 1:
                # What left every firing and every difference as it was can be done again and again.
                for s in {run.stage for run in part.runs}:
                    same = (done[s] - before[s]) % walk.periods[s] == 0
                    for rule in walk.rules[s]:
                        o = rule.other
                        mine = rule.mine.moved(done[s]) - rule.mine.moved(before[s])
                        same = same and mine == rule.theirs.moved(done[o]) - rule.theirs.moved(before[o])
                    if not same:
                        return None
                done = [b + part.times * (d - b) for b, d in zip(before, done, strict=True)]
            if any(d > n for d, n in zip(done, walk.steps, strict=True)):
                return None
        return peaks if tuple(done) == walk.steps else None

    def _credits(self, e: c.Peaks) -> bool:
        deep = all(p <= b.depth for p, b in zip(e.peaks, self.graph.buffers, strict=True))
        peaks = self._replay(_of(c.FiringOrder, self.order))
        return deep and peaks is not None and e.peaks == tuple(peaks.get(b, 0) for b in self._buffer_ids)

    # Chips and units

    @cached_property
    def _occupants(self) -> Occupants:
        return occupants(self.machine)

    @cached_property
    def moves(self) -> list[Move]:
        return moves(self.graph)

    def _may_move(self, stage: StageId, source: ChipId, target: ChipId) -> bool:
        match self.graph.stages[stage].kind:
            case Load():
                return self.machine.reaches(source, target, "read")
            case Store():
                return self.machine.reaches(source, target, "write")
            case _:
                return self.machine.reaches(source, target, "unit_data")

    def _channels(self, order: Sequence[tuple[ChipId, ChipId]]) -> bool:
        place = {channel: i for i, channel in enumerate(order)}
        ways = [[place[ChipId(a), ChipId(b)] for a, b in pairwise(self.machine.path(s, t))] for _, s, t in self.moves]
        return all(a < b for way in ways for a, b in pairwise(way))

    def _units(self, units: Sequence[str]) -> bool:
        for unit, stage in zip(units, self.graph.stages, strict=True):
            there = {unit_at(self._occupants, site) for site in sites_of(self.graph, stage)}
            if unit not in there or not there <= set(units_for(self.graph, stage, self.machine)):
                return False
        return True

    # Room

    def _fits(self, uses: Iterable[Use], evidence: c.Evidence | None) -> bool:
        """The most that an island uses is what the evidence says, and there is room for it."""
        used: dict[tuple[str, int], dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for use in uses:
            used[f"{use.site} {use.what}", use.limit][self._islands.of[use.stage]] += use.used
        if evidence is None:
            return not used
        wanted = {c.Use(where, max(weights.values()), limit) for (where, limit), weights in used.items()}
        core = self.machine.maybe_vector_core
        # A vector core's whole memory is safe to use, and nothing between that and its limit.
        whole = 0 if core is None else core.l1_words
        room = all(u.used <= u.limit or (u.where.endswith("L1 words") and u.used == whole) for u in wanted)
        return room and set(_of(c.Room, evidence).uses) == wanted

    @cached_property
    def _islands(self) -> Islands:
        return Islands(self.graph)

    def _arena(self, e: c.Room) -> bool:
        dram, used = self.machine.dram, defaultdict[int, int](int)
        for tensor in self.graph.tensors:
            bursts = math.ceil(math.ceil(math.prod(tensor.local) * tensor.format.bits / 8) / dram.burst_bytes)
            for chip in tensor.chips:
                used[chip] += bursts * dram.burst_bytes
        wanted = tuple(c.Use(f"chip {chip}", size, dram.usable_bytes) for chip, size in sorted(used.items()))
        return e.uses == wanted and all(use.used <= use.limit for use in wanted)

    # Memory

    @cached_property
    def _accesses(self) -> Accesses:
        return Accesses(self.graph)

    def _memory(self, name: str, e: c.Memory) -> bool:
        known = self._accesses
        results = {t for t in self.graph.stored() - self.graph.loaded() if t not in e.given}
        if e.pieces != known.pieces:
            return False
        if name == "ReadAfterWrite" and not all(map(self._stays_inside, range(len(self.graph.stages)))):
            return False
        for piece in e.pieces:
            stores = {s: known.region(s) for s in piece.stores}
            certain = [s for s in piece.stores if not known.looked_up(s)]
            match name:
                case "Covered":
                    shape = self.graph.tensors[piece.tensor].local
                    there = [p for s in certain for p in stores[s].products]
                    good = piece.tensor not in results or uncovered([everything(shape)], there) is None
                case "WrittenOnce":
                    apart = (
                        known.precedes(a, b) or known.precedes(b, a) or not stores[a].meets(stores[b])
                        for a, b in combinations(piece.stores, 2)
                    )
                    good = len(certain) == len(stores) and not any(r.again for r in stores.values()) and all(apart)
                case "ReadAfterWrite":
                    good = all(self._reads(load, stores, certain, piece.tensor in e.given) for load in piece.loads)
                case _:
                    good = all(self._spares(s, load) for s in piece.stores for load in piece.loads)
            if not good:
                return False
        return True

    def _stays_inside(self, index: int) -> bool:
        kind = self.graph.stages[index].kind
        padded = not isinstance(kind, (Load, Store)) or affine_of(kind.pattern).pad is not None
        return padded or self._accesses.region(StageId(index)).outside is None

    def _reads(self, load: StageId, stores: dict[StageId, Region], certain: list[StageId], given: bool) -> bool:
        known, read = self._accesses, self._accesses.region(load)
        before = {s for s in stores if known.precedes(s, load)}
        if any(s not in before and not known.precedes(load, s) and r.meets(read) for s, r in stores.items()):
            return False
        there = [p for s in certain if s in before for p in stores[s].products]
        return given or uncovered(read.products, there) is None

    def _spares(self, store: StageId, load: StageId) -> bool:
        known = self._accesses
        if known.precedes(store, load) or not known.region(store).meets(known.region(load)):
            return True
        if not known.precedes(load, store) or known.looked_up(store) or known.looked_up(load):
            return False
        return load in known.finished(store) or not overtaken(self.graph, load, store)

    def _spans(self, e: c.Spans) -> bool:
        by_chip: dict[int, list[c.Span]] = defaultdict(list)
        for span in e.spans:
            tensor = self.graph.tensors[span.tensor]
            if (span.stop - span.start) * 8 < math.prod(tensor.local) * tensor.format.bits:
                return False
            by_chip[tensor.chips[span.rank]].append(span)
        taken = [sorted((s.start, s.stop) for s in there if s.stop > s.start) for there in by_chip.values()]
        return all(a[1] <= b[0] for there in taken for a, b in pairwise(there))

    def _opened(self, e: c.Openings) -> bool:
        found = sorted(generations(self.graph).items())
        if e.accumulators != tuple((b, tuple(map(tuple, opened))) for b, opened in found):
            return False
        stages = self.graph.stages
        return all(
            b not in stages[touching[0]].ins and b not in stages[touching[-1]].outs
            for b, opened in found
            for touching in opened
        )
