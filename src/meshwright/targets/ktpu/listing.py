"""What a graph was compiled to, as text: who does what after what, and every word of the programs."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.targets.ktpu.compiled import Carry, Compiled, Fetch, Piece, Place, UnitWork
from meshwright.targets.ktpu.isa.disassembler import line_of
from meshwright.targets.ktpu.orders import Drained, Operand, Order

_UNITS = {"MG": "cluster", "VC": "vector core"}


def listing(compiled: Compiled, words: bool = False) -> str:
    """A line a work, in an order in which they can run; words: with the disassembly of every program under it.

    Addresses are those of the emission; behind each word that has one stands the image and the byte in it that the
    word will name in a run.
    """
    return "\n".join(_lines(compiled, words))


def _lines(compiled: Compiled, words: bool) -> Iterator[str]:
    programs = compiled.programs
    total = sum(len(work.code.program) for work in programs)
    sites = len({work.site for work in programs})
    yield f"{len(programs)} programs of {total:,} words for {sites} units; {len(compiled.works)} works in all"
    for number, work in enumerate(compiled.works):
        after = f"  after {', '.join(map(str, work.after))}" if work.after else ""
        match work:
            case UnitWork():
                unit = f"{_UNITS[work.code.program.unit]} ({work.site.x}, {work.site.y}) of mesh {work.site.chip}"
                awaited = "".join(f", {a.signals} signals at {a.site}" for a in work.arrivals)
                yield f"  {number}: {unit}: {work.what}: {_count(len(work.code.program))}{awaited}{after}"
                if words:
                    yield from _words(compiled, work)
            case Fetch(piece=piece):
                yield f"  {number}: host has {_named(compiled, piece)}{after}"
            case Place(image=image):
                found = compiled.images[image]
                yield (
                    f"  {number}: host writes {_named(compiled, found.piece)} as {_shown(found.order)}, "
                    f"{found.order.nbytes:,} bytes{after}"
                )
            case Carry(takes=takes, gives=gives):
                source, target = (", ".join(_named(compiled, p) for _, p in side) for side in (takes, gives))
                yield f"  {number}: host copies {source} -> {target}{after}"


def _count(words: int) -> str:
    return f"{words} word{'s' if words != 1 else ''}"


def _named(compiled: Compiled, piece: Piece) -> str:
    record = compiled.graph.tensors[piece[0]]
    return f"{record.name} of mesh {record.chips[piece[1]]}"


def _shown(order: Order) -> str:
    match order:
        case Operand(layout=layout):
            return f"L1 entries, {layout.groups} x {layout.blocks} a run"
        case Drained(layout=layout):
            return f"tiles of {layout.tile[0]} x {layout.tile[1]} sub-tiles"
        case _:
            return "rows" if order.multiple == 1 else f"rows that begin at multiples of {order.multiple}"


def _words(compiled: Compiled, work: UnitWork) -> Iterator[str]:
    images = {r.word: (compiled.images[r.image], r.offset) for r in work.code.references}
    for number, word in enumerate(work.code.program.words):
        where = ""
        if number in images:
            image, offset = images[number]
            where = f"  # {_named(compiled, image.piece)}, byte {offset:#x}"
        yield f"     {number:>4}  {line_of(word)}{where}"
