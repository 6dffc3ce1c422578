"""Runs of a vector core out of code that has no limits: cut where L1, the code memory or the descriptors are full.

Registers, L1 and code stay from run to run. So code can be cut between any two operations; each run fills what its own
part loads and drains what it stores. Fills and drains that take more descriptors than there are have runs of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Struct

from meshwright.machine.figures import VectorCoreSpec
from meshwright.targets.ktpu.emit_vector_layout import LANES, VECTOR
from meshwright.targets.ktpu.emit_vector_registers import Assembly, Coded
from meshwright.targets.ktpu.emit_vector_values import SCRATCH, Operation
from meshwright.targets.ktpu.emit_vector_walks import Walk, walks_over
from meshwright.targets.ktpu.isa import vector as isa

SCRATCH_WORDS: Final = VECTOR // LANES
"""L1 words through which a vector is rounded to f16: the last of those that are safe."""

Address = Callable[[int, int], int]
"""Of a word of a load or store: how many bytes after the beginning of its first row it is in memory."""


class Step(Struct, frozen=True):
    """One run: its code, and what descriptor 1 and those after it walk."""

    words: tuple[int, ...]
    walks: tuple[Walk, ...]


class Memory(Struct, frozen=True):
    """What cutting goes by: the core, how many loads the chain has (stores come after them), where words are."""

    core: VectorCoreSpec
    loads: int
    address: Address

    @property
    def free(self) -> int:
        """Descriptors for fills and drains; one walks L1."""
        return self.core.descriptors - 1


class _Part:
    """Operations of one run, and the words that they use of each load and store."""

    def __init__(self, preamble: Sequence[isa.VectorInstruction]) -> None:
        self.preamble = list(preamble)
        self.size = _size(self.preamble)
        self.coded: list[Coded] = []
        self.used: dict[int, set[int]] = {}

    def words(self) -> int:
        return sum(map(len, self.used.values()))

    def adds(self, words: tuple[int, range]) -> int:
        """Words of L1 that it takes to use these as well."""
        move, span = words
        have = self.used.get(move, ())
        return sum(word not in have for word in span)

    def take(self, coded: Coded, size: int, words: tuple[int, range] | None) -> None:
        self.coded.append(coded)
        self.size += size
        if words is not None:
            self.used.setdefault(words[0], set()).update(words[1])


def _size(code: Sequence[isa.VectorInstruction]) -> int:
    """Words of instruction memory."""
    return sum(2 if isinstance(instruction, isa.SetImmediate) else 1 for instruction in code)


@lru_cache(maxsize=1 << 14)
def _encoded(instruction: isa.VectorInstruction) -> tuple[int, ...]:
    return instruction.words()


def _words_of(operation: Operation) -> tuple[int, range] | None:
    if operation.op not in ("load", "store") or operation.move == SCRATCH:
        return None
    count = -(-operation.length // LANES) * (2 if operation.wide else 1)
    return operation.move, range(operation.offset, operation.offset + count)


def steps(
    assembly: Assembly, memory: Memory, fresh: frozenset[int] = frozenset(), room: int | None = None
) -> tuple[Step, ...]:
    """The runs, in order.

    fresh: operations that begin another run even where there is room. room: how many words of L1 a run may use; all
    that are safe unless stated.
    """
    most = memory.core.l1_safe_words if room is None else room
    return tuple(step for part in _parts(assembly, memory, fresh, most) for step in _steps(part, memory))


def in_one_part(assembly: Assembly, memory: Memory) -> tuple[Step, ...] | None:
    """The runs where a single one works on rows; None where it takes several."""
    parts = _parts(assembly, memory, frozenset(), memory.core.l1_safe_words)
    first = next(parts)
    return None if next(parts, None) is not None else tuple(_steps(first, memory))


def _parts(assembly: Assembly, memory: Memory, fresh: frozenset[int], room: int) -> Iterator[_Part]:
    if any(c.operation.op == "load" and c.operation.move == SCRATCH for c in assembly.coded):
        room = min(room, memory.core.l1_safe_words - SCRATCH_WORDS)
    # Besides what works on rows: fills and drains, a barrier, and the halt.
    most = memory.core.instructions - memory.free - 2
    part = _Part(assembly.preamble)
    for at, coded in enumerate(assembly.coded):
        words = _words_of(coded.operation)
        size = _size(coded.code)
        full = part.size + size > most or (words is not None and part.words() + part.adds(words) > room)
        if part.coded and (full or at in fresh):
            yield part
            part = _Part(())
        part.take(coded, size, words)
    yield part


def _steps(part: _Part, memory: Memory) -> Iterator[Step]:
    fills: list[Walk] = []
    drains: list[Walk] = []
    places: dict[tuple[int, int], int] = {}
    base = 0
    for move in sorted(part.used):
        words = sorted(part.used[move])
        places |= {(move, word): base + at for at, word in enumerate(words)}
        addresses = [memory.address(move, word) for word in words]
        walks = walks_over(move, base, addresses, memory.core.walk_words)
        (fills if move < memory.loads else drains).extend(walks)
        base += len(words)
    while fills and len(fills) + len(drains) > memory.free:
        now, fills = fills[: memory.free], fills[memory.free :]
        yield _step((), now, ())
    room = memory.free - len(fills)
    yield _step(_placed(part, places, memory), fills, drains[:room])
    for start in range(room, len(drains), memory.free):
        yield _step((), (), drains[start : start + memory.free])


def _step(code: Sequence[isa.VectorInstruction], fills: Sequence[Walk], drains: Sequence[Walk]) -> Step:
    filled = [isa.VectorFill(ad=number, l1off=walk.l1) for number, walk in enumerate(fills, 1)]
    drained = [isa.VectorDrain(ad=number, l1off=walk.l1) for number, walk in enumerate(drains, 1 + len(fills))]
    words = itertools.chain.from_iterable(map(_encoded, (*filled, *code, *drained, isa.Halt())))
    return Step(tuple(words), (*fills, *drains))


def _placed(part: _Part, places: dict[tuple[int, int], int], memory: Memory) -> list[isa.VectorInstruction]:
    """The code of a part, its loads and stores where their words are in L1."""
    code: list[isa.VectorInstruction] = [*part.preamble, isa.Barrier()]
    for coded in part.coded:
        operation = coded.operation
        for instruction in coded.code:
            if not isinstance(instruction, isa.Load | isa.Store):
                code.append(instruction)
            elif operation.move == SCRATCH:
                code.append(msgspec.structs.replace(instruction, offset=memory.core.l1_safe_words - SCRATCH_WORDS))
            else:
                at = places[operation.move, operation.offset]
                code.append(msgspec.structs.replace(instruction, offset=at))
    return code
