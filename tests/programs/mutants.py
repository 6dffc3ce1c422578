"""Programs with one thing wrong, for tests that the comparison sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from meshwright.ir.graph import Graph
from meshwright.machine import MachineSpec
from meshwright.targets.ktpu.compiled import Compiled, Place, UnitWork
from meshwright.targets.ktpu.isa.program import Program
from meshwright.targets.ktpu.orders import Order
from meshwright.targets.ktpu.relocate import Reference, Relocatable
from programs.compare import SimulatedCard

Change = Callable[[Compiled], Compiled]


def mutating(change: Change) -> Callable[[MachineSpec], SimulatedCard]:
    """Makes cards that run `change(compiled)` in place of what graphs are compiled to."""

    def opened(machine: MachineSpec) -> SimulatedCard:
        card = SimulatedCard(machine)
        backend = card.card.backend
        compiled = backend.compiled
        backend.compiled = lambda graph, given=frozenset(): change(compiled(graph, given))
        return card

    return opened


def positions(compiled: Compiled) -> Iterator[tuple[int, int, object]]:
    """(work, word, instruction) of every instruction."""
    for number, work in enumerate(compiled.works):
        if isinstance(work, UnitWork):
            for at, word in enumerate(work.code.program.words):
                yield number, at, word


def with_work(compiled: Compiled, number: int, work: object) -> Compiled:
    """The same with another work at a position."""
    return msgspec.structs.replace(
        compiled, works=tuple(work if at == number else w for at, w in enumerate(compiled.works))
    )


def with_word(compiled: Compiled, number: int, at: int, **fields: int) -> Compiled:
    """The same with fields of one instruction changed."""
    work = compiled.works[number]
    assert isinstance(work, UnitWork)
    words = list(work.code.program.words)
    words[at] = msgspec.structs.replace(words[at], **fields)
    code = Relocatable(Program(work.code.program.unit, tuple(words)), work.code.references)
    return with_work(compiled, number, msgspec.structs.replace(work, code=code))


def with_offset(compiled: Compiled, number: int, at: int, by: int) -> Compiled:
    """The same with the address of one instruction `by` bytes further into its image."""
    work = compiled.works[number]
    assert isinstance(work, UnitWork)
    references = tuple(Reference(r.word, r.image, r.offset + by) if r.word == at else r for r in work.code.references)
    assert references != work.code.references
    code = Relocatable(work.code.program, references)
    return with_work(compiled, number, msgspec.structs.replace(work, code=code))


def with_order(compiled: Compiled, image: int, order: Order) -> Compiled:
    """The same with an image in another byte order: what programs read is then written otherwise."""
    images = tuple(
        msgspec.structs.replace(one, order=order) if at == image else one for at, one in enumerate(compiled.images)
    )
    return msgspec.structs.replace(compiled, images=images)


def without_place(compiled: Compiled, image: int) -> Compiled:
    """The same without the relayout that writes an image; what waited for it waits for what that waited for."""
    gone = next(at for at, work in enumerate(compiled.works) if isinstance(work, Place) and work.image == image)
    before = compiled.works[gone].after
    works = []
    for at, work in enumerate(compiled.works):
        if at != gone:
            after = {b for a in work.after for b in (before if a == gone else (a,))}
            works.append(msgspec.structs.replace(work, after=tuple(sorted(a - (a > gone) for a in after))))
    return msgspec.structs.replace(compiled, works=tuple(works))


def compiled_of(graph: Graph, machine: MachineSpec) -> Compiled:
    """What the graph is compiled to."""
    return SimulatedCard(machine).compiled(graph)
