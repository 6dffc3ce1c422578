"""Code of a vector core before its registers are chosen: values, operations on them, and where rows are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from meshwright.ir.pool import Pool
from meshwright.numerics.lane_instructions import COMPARISONS, SLOTS

SCRATCH: Final = -1
"""Instead of a load or store: the L1 words through which a vector is rounded to f16."""


class Value(Struct, frozen=True):
    """An operand: vector register, scalar register, or constant code; `number` is virtual, or the code."""

    kind: Literal["vector", "scalar", "constant"]
    number: int


class Operation(Struct, frozen=True):
    """One step. `length`: the vector length that it needs.

    op: a lane opcode; or load, store (of word `offset` of what `move` has in L1), reduce (`pool`), spread (a scalar
    into a vector register), shuffle (each chunk rotated), pick (element 0 into a scalar register).
    predicate: a compare writes it, any other opcode is masked by it, `when` it is set or clear. partial: the
    destination keeps elements that it had.
    """

    op: str
    length: int
    dst: Value | None = None
    sources: tuple[Value, ...] = ()
    predicate: int | None = None
    when: bool = True
    partial: bool = False
    move: int = SCRATCH
    offset: int = 0
    wide: bool = False
    """A load of f32."""
    pool: Pool = Pool.SUM


class Place(Struct, frozen=True):
    """Where a piece of a row is among the words that a load or store has: its first word; of a single element also its
    position in the word.

    lane: None where a whole row is meant, or where the element has a word of its own.
    """

    word: int
    single: bool = False
    lane: int | None = None


class Counter:
    """Virtual registers and predicates, numbered."""

    def __init__(self) -> None:
        self.values = 0
        self.predicates = 0

    def vector(self) -> Value:
        """A new vector register."""
        self.values += 1
        return Value("vector", self.values)

    def scalar(self) -> Value:
        """A new scalar register."""
        self.values += 1
        return Value("scalar", self.values)

    def predicate(self) -> int:
        """A new predicate."""
        self.predicates += 1
        return self.predicates


def slots_of(operation: Operation) -> dict[str, Value]:
    """The operand of each slot that a lane opcode reads."""
    return dict(zip(SLOTS[operation.op], operation.sources, strict=True))


def without_the_unused(operations: Sequence[Operation]) -> list[Operation]:
    """The operations without those whose results nobody reads."""
    wanted: set[Value] = set()
    predicates: set[int] = set()
    kept: list[Operation] = []
    for operation in reversed(operations):
        compare = operation.op in COMPARISONS
        read = operation.predicate in predicates if compare else operation.dst in wanted
        if operation.op != "store" and not read:
            continue
        kept.append(operation)
        wanted.update(operation.sources)
        if operation.predicate is not None and not compare:
            predicates.add(operation.predicate)
    return kept[::-1]
