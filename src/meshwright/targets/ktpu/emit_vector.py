"""Programs of vector cores out of the vector stages of a stage graph.

A chain of Load, Generic and Reduce, and Store stages becomes code that works on a group of rows: fills, a barrier,
the rows one after the other, drains. For the next group only descriptors change; the code stays where it is. What is
stored is, to the bit, what the graph means in `KtpuArithmetic`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from meshwright.errors import PlacementError
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import StageId, TensorId
from meshwright.ir.records import Site
from meshwright.machine import MachineSpec
from meshwright.targets.ktpu.emit_vector_code import Counter, Keeping, Operation, Row, without_the_unused
from meshwright.targets.ktpu.emit_vector_layout import (
    LANES,
    VECTOR,
    WORD,
    Placed,
    Region,
    View,
    padded_rows,
    regions,
    row_major,
)
from meshwright.targets.ktpu.emit_vector_registers import L1_WALKER, Assembly, OutOfRegistersError
from meshwright.targets.ktpu.emit_vector_stages import Chain, chains_at
from meshwright.targets.ktpu.isa import vector as isa
from meshwright.targets.ktpu.isa.payload import Desc, Imem, Payload, Run
from meshwright.targets.ktpu.isa.program import Program
from meshwright.targets.ktpu.isa.vector import encode_code

__all__ = ["Placed", "VectorTask", "emit_vector", "padded_rows", "row_major"]

DIMENSIONS: Final = 4
_STRIDE_BITS: Final = 18
_SCRATCH: Final = VECTOR // LANES
"""L1 words through which a vector is rounded to f16."""
_KEEPINGS: Final[tuple[Keeping, ...]] = ("all", "folds", "nothing")


class VectorTask(Struct, frozen=True):
    """What one vector core is sent for one chain of stages.

    stages: of the graph. after: stages, run by other units or in other tasks, whose stores it loads; they must have
    been seen complete. program: its payloads; each answers once.
    """

    site: Site
    stages: tuple[StageId, ...]
    after: tuple[StageId, ...]
    program: Program


def emit_vector(
    graph: Graph, site: Site, machine: MachineSpec, where: Mapping[tuple[TensorId, int], Placed]
) -> tuple[VectorTask, ...]:
    """The tasks of the vector core at `site`, in an order in which they can run.

    where: for each piece (tensor, rank) that the core touches, its place in the DRAM of the core's own mesh.

    Raises `PlacementError`, with the stage and the reason, for what a core can't do, for rows that don't begin at
    words, and for chains that need more registers, instruction words, L1 or descriptors than there are.
    """
    tasks: list[VectorTask] = []
    for chain in chains_at(graph, site):
        emission = _Emission(graph, chain, machine)
        program = Program("VC", tuple(emission.payloads(where)))
        after = tuple(sorted(e.before for e in graph.precedences if e.after in chain.stages))
        tasks.append(VectorTask(site, chain.stages, after, program))
    return tuple(tasks)


class _Shape(Struct, frozen=True):
    """What the code of a run depends on: rows along each axis, elements of a row, and what is broadcast along which."""

    rows: tuple[int, ...]
    length: int
    moving: tuple[tuple[bool, ...], ...]
    """For each load, and then each store: along which row axes it has rows of its own."""

    def count(self, move: int) -> int:
        """Rows that a load or store has."""
        return math.prod(size for size, moves in zip(self.rows, self.moving[move], strict=True) if moves)

    def row(self, move: int, at: Sequence[int]) -> int:
        """Which of its rows a load or store has at `at`."""
        number = 0
        for index, size, moves in zip(at, self.rows, self.moving[move], strict=True):
            if moves:
                number = number * size + index
        return number


class _TooLargeError(Exception):
    """Too much for one run; the message says of what."""


class _Emission:
    """The payloads of one chain."""

    def __init__(self, graph: Graph, chain: Chain, machine: MachineSpec) -> None:
        self.graph = graph
        self.chain = chain
        self.core = machine.vector_core
        self.moves = (*chain.loads, *chain.stores)
        self._codes: dict[_Shape, tuple[int, ...]] = {}
        self._groups: dict[tuple[tuple[int, ...], int, tuple[tuple[bool, ...], ...], tuple[bool, ...]], tuple[int, ...]]
        self._groups = {}
        self._loaded: dict[_Shape, int] = {}
        self._free = 0
        self._descriptors: dict[tuple[int, int], int] = {}
        if len(self.moves) + 1 > self.core.descriptors:
            raise self._refusal(
                f"it has {len(self.moves)} loads and stores; each takes one of {self.core.descriptors} descriptors, "
                "and one more walks L1"
            )

    def _refusal(self, reason: str) -> PlacementError:
        stages = ", ".join(f"s{s}" for s in self.chain.stages)
        return PlacementError(f"stages {stages} can't be emitted for a vector core: {reason}")

    def payloads(self, where: Mapping[tuple[TensorId, int], Placed]) -> Iterator[Payload]:
        """Code where it changes, descriptors where they change, and a RUN for each group of rows."""
        yield from self._describe(L1_WALKER, 0, [(1, 2 * VECTOR // LANES)])
        for region in regions(self.graph, self.chain, where):
            for part in region.parts(self._group(region)):
                shape = _shape_of(part)
                yield from self._code_of(shape)
                for number, view in enumerate((*part.loads, *part.stores)):
                    yield from self._describe(1 + number, view.address, self._walk(number, view, shape))
                yield Run(pc=self._loaded[shape])

    def _code_of(self, shape: _Shape) -> Iterator[Payload]:
        """Loads the code for `shape` where it isn't loaded; what was loaded goes when there is no room beside it."""
        if shape in self._loaded:
            return
        words = self._words(shape)
        if self._free + len(words) > self.core.instructions:
            self._loaded.clear()
            self._free = 0
        for at, word in enumerate(words, self._free):
            yield Imem(addr=at, word=word)
        self._loaded[shape] = self._free
        self._free += len(words)

    def _describe(self, number: int, base: int, dims: Sequence[tuple[int, int]]) -> Iterator[Payload]:
        """Sets what of a descriptor isn't so already; dims: (stride, bound) of each dimension, innermost first."""
        wanted = [Desc.base(number, base)]
        for at in range(DIMENSIONS):
            stride, bound = dims[at] if at < len(dims) else (0, 1)
            wanted.append(Desc.dim(number, at, stride=stride, bound=bound))
        for payload in wanted:
            key = payload.ad, payload.fld
            if self._descriptors.get(key) != payload.value:
                self._descriptors[key] = payload.value
                yield payload

    # Groups of rows.

    def _group(self, region: Region) -> tuple[int, ...]:
        """Rows along each axis that one run works on: as many as fit."""
        shape = _shape_of(region)
        # An axis that no descriptor can step along is walked by the host, a run for each row of it.
        long = tuple(
            any(abs(view.strides[axis]) >= 1 << _STRIDE_BITS - 1 for view in (*region.loads, *region.stores))
            for axis in range(len(region.rows))
        )
        key = region.rows, region.length, shape.moving, long
        if key not in self._groups:
            self._groups[key] = self._largest(region, long)
        return self._groups[key]

    def _largest(self, region: Region, long: tuple[bool, ...]) -> tuple[int, ...]:
        total = math.prod(region.rows)
        least, most = 1, total
        best = _split(region.rows, long, 1)
        self._try(region, best, final=True)
        # Rows cost much the same, so that what one and two take says how many fit; the bounds close in around that.
        while least < most:
            middle = min((least + most + 1) // 2, 2 * least)
            shape = _split(region.rows, long, middle)
            if self._try(region, shape):
                least, best = middle, shape
            else:
                most = middle - 1
        return best

    def _try(self, region: Region, rows: tuple[int, ...], final: bool = False) -> bool:
        part = region.part((0,) * len(rows), rows)
        shape = _shape_of(part)
        try:
            for number, view in enumerate((*part.loads, *part.stores)):
                self._walk(number, view, shape)
            self._words(shape)
        except _TooLargeError as error:
            if final:
                raise self._refusal(f"a single row of {region.length} elements is too much: {error}") from None
            return False
        return True

    def _words_a_row(self, move: int, length: int) -> int:
        buffer = self.graph.buffers[self.moves[move].buffer]
        wide = buffer.format is ElementType.F32
        return -(-length // LANES) * (2 if wide else 1)

    def _walk(self, number: int, view: View, shape: _Shape) -> list[tuple[int, int]]:
        """(stride, bound) of each dimension of the walk over a group's rows in memory."""
        words = self._words_a_row(number, shape.length)
        if words * shape.count(number) > self.core.walk_words:
            raise _TooLargeError(f"a fill or drain of {words * shape.count(number)} words; {self.core.walk_words} fit")
        dims = [(WORD, words)]
        for size, stride, moves in zip(
            reversed(shape.rows), reversed(view.strides), reversed(shape.moving[number]), strict=True
        ):
            if not moves:
                continue
            before = dims[-1]
            if stride == before[0] * before[1]:
                dims[-1] = before[0], before[1] * size
            else:
                dims.append((stride, size))
        if len(dims) > DIMENSIONS:
            raise _TooLargeError(f"rows along {len(dims) - 1} axes; a walk has {DIMENSIONS - 1} for them")
        return dims

    # Code.

    def _words(self, shape: _Shape) -> tuple[int, ...]:
        if shape not in self._codes:
            self._codes[shape] = self._made(shape)
        return self._codes[shape]

    def _made(self, shape: _Shape) -> tuple[int, ...]:
        places: list[int] = []
        used = 0
        for move in range(len(self.moves)):
            places.append(used)
            used += self._words_a_row(move, shape.length) * shape.count(move)
        reason: Exception | None = None
        for keeping in _KEEPINGS:
            try:
                assembly, rounds = self._assembled(shape, places, used, keeping)
            except OutOfRegistersError as error:
                reason = error
                continue
            total = used + (_SCRATCH if rounds else 0)
            if total > self.core.l1_safe_words:
                raise _TooLargeError(f"{total} words of L1; {self.core.l1_safe_words} are safe")
            words = encode_code(self._framed(assembly, places))
            if len(words) > self.core.instructions:
                raise _TooLargeError(f"{len(words)} instruction words; {self.core.instructions} fit")
            return words
        raise self._refusal(f"a row of {shape.length} elements: {reason}, and registers can't be saved to L1 exactly")

    def _assembled(self, shape: _Shape, places: Sequence[int], scratch: int, keeping: Keeping) -> tuple[Assembly, bool]:
        counter = Counter()
        operations: list[Operation] = []
        # A register more or less shows in a single row; the assembly of all of them is then no surprise.
        for at in _indices(shape.rows):

            def place(move: int, at: tuple[int, ...] = at) -> int:
                return places[move] + self._words_a_row(move, shape.length) * shape.row(move, at)

            row = Row(self.graph, self.chain, shape.length, place, scratch, keeping, counter)
            row.emit()
            operations += row.operations
        kept = without_the_unused(operations)
        rounds = any(operation.op in ("load", "store") and operation.offset == scratch for operation in kept)
        return Assembly(kept), rounds

    def _framed(self, assembly: Assembly, places: Sequence[int]) -> list[isa.VectorInstruction]:
        loads = len(self.chain.loads)
        fills = [isa.VectorFill(ad=1 + number, l1off=places[number]) for number in range(loads)]
        drains = [isa.VectorDrain(ad=1 + number, l1off=places[number]) for number in range(loads, len(self.moves))]
        return [*fills, *assembly.preamble, isa.Barrier(), *assembly.body, *drains, isa.Halt()]


def _shape_of(region: Region) -> _Shape:
    views = (*region.loads, *region.stores)
    moving = tuple(
        tuple(stride != 0 and size > 1 for stride, size in zip(view.strides, region.rows, strict=True))
        for view in views
    )
    return _Shape(region.rows, region.length, moving)


def _split(rows: tuple[int, ...], long: tuple[bool, ...], count: int) -> tuple[int, ...]:
    """At most `count` rows: whole axes from the last on, an even part of the next, single rows of the others."""
    shape = [1] * len(rows)
    for axis in reversed(range(len(rows))):
        if long[axis]:
            continue
        most = min(rows[axis], count)
        shape[axis] = math.ceil(rows[axis] / math.ceil(rows[axis] / most))
        count //= rows[axis]
        if shape[axis] < rows[axis] or not count:
            break
    return tuple(shape)


def _indices(rows: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if not rows:
        yield ()
        return
    for first in range(rows[0]):
        for rest in _indices(rows[1:]):
            yield (first, *rest)
