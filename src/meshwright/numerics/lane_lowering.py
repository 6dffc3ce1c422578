"""Lane programs in the form that the compiled interpreter takes: numbered slots and strides."""

from __future__ import annotations

from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt

from meshwright.numerics.lane_instructions import (
    COMPARISONS,
    FORMATS,
    OPERATIONS,
    SLOTS,
    Constant,
    Input,
    Predicate,
    Program,
    Register,
    Source,
)


class Lowered(msgspec.Struct, frozen=True):
    """A program in terms of slots: constants, then inputs, then registers and predicates, then one for scratch."""

    steps: npt.NDArray[np.int32]
    constants: list[int]
    outputs: list[tuple[int, int]]
    slots: int


@lru_cache(maxsize=256)
def lower(program: Program) -> Lowered:
    """The program in slots; cached, since the same few programs run over and over."""
    constants: dict[int, int] = {}
    for source in _all_sources(program):
        if isinstance(source, Constant):
            constants.setdefault(source.code, len(constants))
    allocation = _allocate(program, len(constants) + len(program.inputs))

    def slot(source: Source | Predicate, step: int) -> int:
        if isinstance(source, Constant):
            return constants[source.code]
        if isinstance(source, Input):
            return len(constants) + source.index
        return allocation.at[step][("register" if isinstance(source, Register) else "predicate", source.index)]

    steps: list[list[int]] = []
    for number, step in enumerate(program.instructions):
        sources = dict(zip(SLOTS[step.op], step.sources(), strict=True))
        read = {name: slot(source, number) for name, source in sources.items()}
        kind = "predicate" if step.op in COMPARISONS else "register"
        target = allocation.at[number + 1][(kind, step.dst)]
        mask = -1 if step.predicate is None else allocation.at[number][("predicate", step.predicate)]
        a = read["a"]
        row = [OPERATIONS.index(step.op), target, a, read.get("b", a), read.get("c", a), mask, int(step.when)]
        steps.append(row)
    end = len(program.instructions)
    outputs = [(FORMATS.index(output.format), slot(output.source, end)) for output in program.outputs]
    rows = np.array(steps, np.int32).reshape(-1, 7)
    return Lowered(rows, [code << 8 for code in constants], outputs, allocation.slots + 1)


def _all_sources(program: Program) -> list[Source | Predicate]:
    read: list[Source | Predicate] = [source for step in program.instructions for source in step.sources()]
    return read + [output.source for output in program.outputs]


class _Allocation(msgspec.Struct, frozen=True):
    at: list[dict[tuple[str, int], int]]
    """Before each instruction, and after the last: the slot of every live register and predicate."""

    slots: int


def _allocate(program: Program, first: int) -> _Allocation:
    """Gives slots to registers and predicates, reusing one once its value has been read for the last time."""
    live: list[set[tuple[str, int]]] = [set() for _ in range(len(program.instructions) + 1)]
    for output in program.outputs:
        if isinstance(output.source, Register | Predicate):
            kind = "register" if isinstance(output.source, Register) else "predicate"
            live[-1].add((kind, output.source.index))
    for number, step in reversed(list(enumerate(program.instructions))):
        written = ("predicate" if step.op in COMPARISONS else "register", step.dst)
        live[number] = live[number + 1] - (set() if step.predicate is not None else {written})
        live[number] |= {("register", s.index) for s in step.sources() if isinstance(s, Register)}
        if step.predicate is not None:
            live[number] |= {("predicate", step.predicate), written}
    at: list[dict[tuple[str, int], int]] = [{}]
    free: list[int] = []
    slots = first
    for number, step in enumerate(program.instructions):
        written = ("predicate" if step.op in COMPARISONS else "register", step.dst)
        kept = {name: place for name, place in at[-1].items() if name in live[number + 1]}
        free += [place for name, place in at[-1].items() if name not in kept]
        if written not in kept:
            if not free:
                free.append(slots)
                slots += 1
            kept[written] = free.pop()
        at.append(kept)
    return _Allocation(at, slots)


def collapse(shape: tuple[int, ...], strides: list[tuple[int, ...]]) -> tuple[list[int], list[list[int]]]:
    """Merges axes that every operand steps over evenly; at least one axis is left."""
    extents: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    for axis, extent in enumerate(shape):
        if extent == 1:
            continue
        if extents and all(steps[-1] == own[axis] * extent for steps, own in zip(merged, strides, strict=True)):
            extents[-1] *= extent
            for steps, own in zip(merged, strides, strict=True):
                steps[-1] = own[axis]
            continue
        extents.append(extent)
        for steps, own in zip(merged, strides, strict=True):
            steps.append(own[axis])
    if not extents:
        return [1], [[0] for _ in strides]
    return extents, merged
