"""Memory: `ReadAfterWrite`, `WrittenOnce`, `Covered`, `NoLiveOverwrite`, `SpansDisjoint`.

Decided on regions (`ir.regions`): exact, and without going through elements. Nothing but what a graph states orders two
accesses to memory.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

from meshwright.certify.certificate import Entry, Memory, Span, Spans, Witness
from meshwright.certify.findings import Case, broken, held, not_decided
from meshwright.errors import GraphError
from meshwright.ir.accesses import Accesses, Piece, overtaken
from meshwright.ir.ids import StageId
from meshwright.ir.pattern import affine_of
from meshwright.ir.records import Load, Store
from meshwright.ir.regions import Region, RegionError, everything, uncovered


class _UndecidedError(Exception):
    """An obligation can't be decided, and why."""


Answer = Iterator[tuple[str, Witness]]


def memory(case: Case, name: str) -> Entry:
    """One of the obligations that are asked of every piece."""
    ask = {
        "ReadAfterWrite": _read_after_write,
        "WrittenOnce": _written_once,
        "Covered": _covered,
        "NoLiveOverwrite": _no_live_overwrite,
    }[name]
    undecided = ""
    try:
        known = case.accesses
        pieces = known.pieces
        if name == "ReadAfterWrite":
            for message, witness in _outside(case, known):
                return broken(name, message, witness)
        for piece in pieces:
            try:
                for message, witness in ask(case, known, piece):
                    return broken(name, message, witness)
            except (_UndecidedError, RegionError) as reason:
                undecided = undecided or f"{_piece(case, piece)}: {reason}"
    except (GraphError, _UndecidedError) as error:
        return not_decided(name, str(error))
    if undecided:
        return not_decided(name, undecided)
    return held(name, Memory(pieces, tuple(sorted(case.given))))


def _piece(case: Case, piece: Piece) -> str:
    tensor = case.graph.tensors[piece.tensor]
    return f"rank {piece.rank}'s piece of {tensor.name!r}" if len(tensor.chips) > 1 else f"{tensor.name!r}"


def _witness(
    case: Case, piece: Piece, stages: Sequence[StageId], elements: Sequence[tuple[int, int]], change: str
) -> Witness:
    tensor = case.graph.tensors[piece.tensor]
    return Witness(tuple(stages), (), (tensor.chips[piece.rank],), tensor.name, tuple(elements), change)


def ranges(elements: Sequence[tuple[int, int]]) -> str:
    """`[0:4, 8:16]`: elements for a message."""
    return f"[{', '.join(f'{a}:{b}' for a, b in elements)}]"


def _outside(case: Case, known: Accesses) -> Answer:
    """A box that reaches outside its tensor where no pad says what is there."""
    for index, stage in enumerate(case.graph.stages):
        if not isinstance(stage.kind, (Load, Store)) or affine_of(stage.kind.pattern).pad is not None:
            continue
        try:
            region = known.region(StageId(index))
        except RegionError as reason:
            raise _UndecidedError(f"{case.stage(StageId(index))}: {reason}") from None
        if region.outside is not None:
            axis, low, high = region.outside
            tensor = case.graph.tensors[stage.kind.tensor]
            size = tensor.local[axis]
            yield (
                f"{case.stage(StageId(index))} reaches {low} to {high} along axis {axis} of {tensor.name!r}, which has "
                f"{size}",
                Witness(
                    (StageId(index),),
                    (*stage.ins, *stage.outs),
                    (tensor.chips[case.graph.rank_of(stage)],),
                    tensor.name,
                    tuple((low, high + 1) if a == axis else (0, s) for a, s in enumerate(tensor.local)),
                    "give the pattern a pad, or turn its loops less often",
                ),
            )


def _read_after_write(case: Case, known: Accesses, piece: Piece) -> Answer:
    given = piece.tensor in case.given
    for load in piece.loads:
        read = known.region(load)
        before: list[Region] = []
        for store in piece.stores:
            stored = known.region(store)
            if known.precedes(store, load):
                if not known.looked_up(store):
                    before.append(stored)
            elif not known.precedes(load, store) and (common := stored.meets(read)) is not None:
                yield (
                    f"{case.stage(load)} loads what s{store} stores to {ranges(common)} of {_piece(case, piece)}, and "
                    f"nothing says that s{store} comes first",
                    _witness(case, piece, (store, load), common, f"add the precedence (s{store}, s{load})"),
                )
        if given:
            continue
        gap = uncovered(read.products, [p for r in before for p in r.products])
        if gap is not None and any(known.looked_up(s) for s in (load, *piece.stores)):
            raise _UndecidedError(f"s{load} or a store before it looks its positions up; they aren't known here")
        if gap is not None:
            yield (
                f"{case.stage(load)} loads {ranges(gap)} of {_piece(case, piece)}, which nothing stores before it",
                _witness(case, piece, (load,), gap, "store them first, and state the precedence of that store"),
            )


def _written_once(case: Case, known: Accesses, piece: Piece) -> Answer:
    for store in piece.stores:
        if known.looked_up(store):
            raise _UndecidedError(f"s{store} looks its positions up; they aren't known here")
        region = known.region(store)
        if region.again:
            around = [(int(min(p.positions[a][0] for p in region.products)),
                       int(max(p.positions[a][-1] for p in region.products)) + 1)
                      for a in range(len(region.shape))]  # fmt: skip
            yield (
                f"{case.stage(store)} writes some elements within {ranges(around)} of {_piece(case, piece)} more than "
                "once",
                _witness(case, piece, (store,), around, "let its loops move at least a box at a time"),
            )
    for first, second in combinations(piece.stores, 2):
        common = known.region(first).meets(known.region(second))
        if common is not None and not (known.precedes(first, second) or known.precedes(second, first)):
            yield (
                f"s{first} and s{second} both store to {ranges(common)} of {_piece(case, piece)}, and nothing says "
                "which comes last",
                _witness(case, piece, (first, second), common, f"add a precedence between s{first} and s{second}"),
            )


def _covered(case: Case, known: Accesses, piece: Piece) -> Answer:
    tensor = case.graph.tensors[piece.tensor]
    if piece.tensor in case.graph.loaded() or piece.tensor in case.given or not math.prod(tensor.local):
        return
    stored = [p for s in piece.stores if not known.looked_up(s) for p in known.region(s).products]
    gap = uncovered([everything(tensor.local)], stored)
    if gap is not None and any(known.looked_up(s) for s in piece.stores):
        raise _UndecidedError("a store looks its positions up; they aren't known here")
    if gap is not None:
        yield (
            f"nothing stores {ranges(gap)} of {_piece(case, piece)}, which is a result",
            _witness(case, piece, piece.stores[:1], gap, f"store {ranges(gap)} as well"),
        )


def _no_live_overwrite(case: Case, known: Accesses, piece: Piece) -> Answer:
    for store in piece.stores:
        stored = known.region(store)
        for load in piece.loads:
            common = stored.meets(known.region(load))
            if common is None or known.precedes(store, load):
                continue
            if known.looked_up(store) or known.looked_up(load):
                raise _UndecidedError(f"s{store} or s{load} looks its positions up; they aren't known here")
            if not known.precedes(load, store):
                yield (
                    f"{case.stage(store)} overwrites {ranges(common)} of {_piece(case, piece)}, which s{load} loads, "
                    "and nothing says which comes first",
                    _witness(case, piece, (load, store), common, f"add the precedence (s{load}, s{store})"),
                )
            elif load not in known.finished(store) and (late := overtaken(case.graph, load, store)) is not None:
                yield (
                    f"{case.stage(store)} overwrites {ranges(late)} of {_piece(case, piece)}, which s{load}, which "
                    "feeds it, may load only later",
                    _witness(case, piece, (load, store), late, "store to another tensor"),
                )


def spans_disjoint(case: Case) -> Entry:
    """Pieces that are given a place in DRAM don't share a byte, and each has as many bytes as it takes."""
    name = "SpansDisjoint"
    if case.spans is None:
        return held(name, None, "no spans are stated")
    spans = [Span(t, r, a, b) for (t, r), (a, b) in sorted(case.spans.items())]
    for span in spans:
        tensor = case.graph.tensors[span.tensor]
        needed = math.ceil(math.prod(tensor.local) * tensor.format.bits / 8)
        if span.stop - span.start < needed:
            text = f"rank {span.rank}'s piece of {tensor.name!r} takes {needed} bytes, and its span {span.start} to "
            change = f"let it end at {span.start + needed}"
            witness = Witness(chips=(tensor.chips[span.rank],), tensor=tensor.name, change=change)
            return broken(name, f"{text}{span.stop} has {span.stop - span.start}", witness)
    by_chip: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        by_chip[case.graph.tensors[span.tensor].chips[span.rank]].append(span)
    for chip, there in by_chip.items():
        taken = sorted((s for s in there if s.stop > s.start), key=lambda s: (s.start, s.stop))
        for a, b in pairwise(taken):
            if b.start < a.stop:
                first, second = (case.graph.tensors[s.tensor].name for s in (a, b))
                return broken(
                    name,
                    f"on chip {chip} {first!r} at {a.start} to {a.stop} and {second!r} at {b.start} to {b.stop} share "
                    f"bytes {b.start} to {min(a.stop, b.stop)}",
                    Witness(
                        chips=(case.graph.tensors[b.tensor].chips[b.rank],),
                        tensor=second,
                        change=f"start {second!r} at {a.stop}",
                    ),
                )
    return held(name, Spans(tuple(spans)))
