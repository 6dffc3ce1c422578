"""Programs of vector cores out of the vector stages of a stage graph.

A chain of Load, Generic and Reduce, and Store stages becomes code that works on a group of rows: fills, a barrier,
the rows one after the other, drains. For the next group only descriptors change; the code stays where it is. What is
stored is, to the bit, what the graph means in `KtpuArithmetic`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from meshwright.errors import PlacementError
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import StageId, TensorId
from meshwright.ir.records import Site
from meshwright.machine import MachineSpec
from meshwright.targets.ktpu.emit_vector_code import Counter, Keeping, Operation, Place, Row, Value, without_the_unused
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
    runs,
)
from meshwright.targets.ktpu.emit_vector_registers import L1_WALKER, Assembly, OutOfRegistersError
from meshwright.targets.ktpu.emit_vector_stages import Chain, Move, chains_at, refusal
from meshwright.targets.ktpu.isa import vector as isa
from meshwright.targets.ktpu.isa.payload import Desc, Imem, Payload, Run
from meshwright.targets.ktpu.isa.program import Program
from meshwright.targets.ktpu.isa.vector import encode_code

__all__ = ["Placed", "VectorTask", "emit_vector", "padded_rows", "row_major"]

DIMENSIONS: Final = 4
VALUE_BYTES: Final = 2
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
        program = Program("VC", tuple(_Emission(graph, chain, machine, where).payloads()))
        after = tuple(sorted(e.before for e in graph.precedences if e.after in chain.stages))
        tasks.append(VectorTask(site, chain.stages, after, program))
    return tuple(tasks)


class _Rows(Struct, frozen=True):
    """How one load or store has its rows in L1.

    moving: along which row axes it has rows of its own. kind: whole rows; or one element a row, each in a word of its
    own or 16 in a word.
    """

    moving: tuple[bool, ...]
    kind: Literal["whole", "apart", "packed"]


class _Shape(Struct, frozen=True):
    """What the code of a run depends on: rows along each axis, elements of a row, and how each move has them."""

    rows: tuple[int, ...]
    length: int
    moves: tuple[_Rows, ...]

    def count(self, move: int) -> int:
        """Rows that a load or store has."""
        return math.prod(size for size, moves in zip(self.rows, self.moves[move].moving, strict=True) if moves)

    def of(self, rows: tuple[int, ...]) -> _Shape:
        """The same with other numbers of rows."""
        return _Shape(rows, self.length, self.moves)

    def row(self, move: int, at: Sequence[int]) -> int:
        """Which of its rows a load or store has at `at`."""
        number = 0
        for index, size, moves in zip(at, self.rows, self.moves[move].moving, strict=True):
            if moves:
                number = number * size + index
        return number


class _TooLargeError(Exception):
    """Too much for one run; the message says of what."""


class _Emission:
    """The payloads of one chain."""

    def __init__(
        self, graph: Graph, chain: Chain, machine: MachineSpec, where: Mapping[tuple[TensorId, int], Placed]
    ) -> None:
        self.graph = graph
        self.where = where
        self.chain = chain
        self.core = machine.vector_core
        self.moves = (*chain.loads, *chain.stores)
        self._codes: dict[_Shape, tuple[int, ...]] = {}
        self._groups: dict[tuple[_Shape, tuple[bool, ...]], tuple[int, ...]] = {}
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

    def payloads(self) -> Iterator[Payload]:
        """Code where it changes, descriptors where they change, and a RUN for each group of rows."""
        yield from self._describe(L1_WALKER, 0, [(1, 2 * VECTOR // LANES)])
        for region in regions(self.graph, self.chain, self.where):
            whole = self._shape_of(region)
            for part in region.parts(self._group(region, whole)):
                shape = whole.of(part.rows)
                yield from self._code_of(shape)
                for number, view in enumerate(_views(part)):
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

    def _shape_of(self, region: Region) -> _Shape:
        moves = tuple(
            _Rows(_moving(view, region.rows), self._kind(move, view, region.rows))
            for move, view in zip(self.moves, _views(region), strict=True)
        )
        return _Shape(region.rows, region.length, moves)

    def _kind(self, move: Move, view: View, rows: tuple[int, ...]) -> Literal["whole", "apart", "packed"]:
        if not view.single:
            return "whole"
        kind = _single(view, rows)
        if kind is None or (kind == "apart" and view.size != VALUE_BYTES):
            raise refusal(
                move.stage,
                f"it has one element a row, from byte {view.address:#x} on, {list(view.strides)} bytes apart; a core "
                "takes f16 that follow each other from the beginning of a word on, or have a word each (padded_rows)",
            )
        if move in self.chain.stores and not self._has_room(move, view, rows, kind):
            raise refusal(
                move.stage,
                "it has one element a row, and the store of the word that the last one is in would write over elements "
                "that are not its own",
            )
        return kind

    def _has_room(self, move: Move, view: View, rows: tuple[int, ...], kind: Literal["apart", "packed"]) -> bool:
        placed, shape = self.where[TensorId(move.tensor), move.rank], self.graph.tensors[move.tensor].local
        run, pitch = runs(shape, placed.strides)
        if kind == "apart":
            return run == 1 and (pitch is None or pitch >= LANES)
        count = math.prod(size for size, moves in zip(rows, _moving(view, rows), strict=True) if moves)
        at_end = view.address + count * view.size == placed.address + run * view.size
        return count % LANES == 0 or (pitch is None and at_end)

    def _group(self, region: Region, shape: _Shape) -> tuple[int, ...]:
        """Rows along each axis that one run works on: as many as fit."""
        # An axis that no descriptor can step along is walked by the host, a run for each row of it.
        long = tuple(
            any(abs(view.strides[axis]) >= 1 << _STRIDE_BITS - 1 for view in _views(region))
            for axis in range(len(region.rows))
        )
        key = shape, long
        if key not in self._groups:
            self._groups[key] = self._largest(region, shape, long)
        return self._groups[key]

    def _largest(self, region: Region, whole: _Shape, long: tuple[bool, ...]) -> tuple[int, ...]:
        packed = tuple(
            any(rows.moving[axis] for rows in whole.moves if rows.kind == "packed") for axis in range(len(region.rows))
        )
        least, most = 1, math.prod(region.rows)
        best = _split(region.rows, long, packed, 1)
        self._try(region, whole, best, final=True)
        while least < most:
            middle = min((least + most + 1) // 2, 2 * least)
            rows = _split(region.rows, long, packed, middle)
            if self._try(region, whole, rows):
                least, best = middle, rows
            else:
                most = middle - 1
        return best

    def _try(self, region: Region, whole: _Shape, rows: tuple[int, ...], final: bool = False) -> bool:
        """Whether a run can work on that many rows; `final`: there is no smaller one."""
        shape = whole.of(rows)
        try:
            for number, view in enumerate(_views(region)):
                self._walk(number, view, shape)
            self._words(shape)
        except _TooLargeError as error:
            if final:
                count = math.prod(rows)
                what = "a row" if count == 1 else f"a group of {count} rows, whose results share a word,"
                raise self._refusal(f"{what} of {region.length} elements is too much for one run: {error}") from None
            return False
        return True

    def _wide(self, move: int) -> bool:
        return self.graph.buffers[self.moves[move].buffer].format is ElementType.F32

    def _place(self, move: int, base: int, shape: _Shape, at: Sequence[int]) -> Place:
        """Where the row at `at` is in L1, for a load or store whose rows begin at word `base`."""
        row, wide = shape.row(move, at), 2 if self._wide(move) else 1
        match shape.moves[move].kind:
            case "whole":
                return Place(base + row * wide * -(-shape.length // LANES))
            case "apart":
                return Place(base + row, single=True)
            case "packed":
                return Place(base + row // LANES * wide, single=True, lane=row % LANES)

    def _l1_words(self, move: int, shape: _Shape) -> int:
        """Words that a load or store has in L1."""
        count, wide = shape.count(move), 2 if self._wide(move) else 1
        match shape.moves[move].kind:
            case "whole":
                return count * wide * -(-shape.length // LANES)
            case "apart":
                return count
            case "packed":
                return wide * -(-count // LANES)

    def _walk(self, number: int, view: View, shape: _Shape) -> list[tuple[int, int]]:
        """(stride, bound) of each dimension of the walk over a group's rows in memory."""
        words, kind = self._l1_words(number, shape), shape.moves[number].kind
        if words > self.core.walk_words:
            raise _TooLargeError(f"a fill or drain of {words} words; {self.core.walk_words} fit")
        if kind == "packed":
            return [(WORD, words)]
        dims = [(WORD, words // shape.count(number))]
        for size, stride, moves in zip(
            reversed(shape.rows), reversed(view.strides), reversed(shape.moves[number].moving), strict=True
        ):
            if not moves or size == 1:
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
            used += self._l1_words(move, shape)
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
        packing: dict[int, Value] = {}
        operations: list[Operation] = []
        indices = list(itertools.product(*map(range, shape.rows)))
        for at in reversed(indices) if any(rows.kind == "packed" for rows in shape.moves) else indices:

            def place(move: int, at: tuple[int, ...] = at) -> Place:
                return self._place(move, places[move], shape, at)

            row = Row(self.graph, self.chain, shape.length, place, scratch, keeping, counter, packing)
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


def _views(region: Region) -> tuple[View, ...]:
    return (*region.loads, *region.stores)


def _single(view: View, rows: tuple[int, ...]) -> Literal["apart", "packed"] | None:
    """How the one element a row lies in memory; None where no walk over words fits."""
    moving = [at for at, moves in enumerate(_moving(view, rows)) if moves]
    if view.address % WORD:
        return None
    if all(view.strides[at] % WORD == 0 for at in moving):
        return "apart"
    step = view.size
    for at in reversed(moving):
        if view.strides[at] != step:
            return None
        step *= rows[at]
    return "packed"


def _moving(view: View, rows: tuple[int, ...]) -> tuple[bool, ...]:
    return tuple(stride != 0 and size > 1 for stride, size in zip(view.strides, rows, strict=True))


def _split(rows: tuple[int, ...], long: tuple[bool, ...], packed: tuple[bool, ...], count: int) -> tuple[int, ...]:
    """About `count` rows: whole axes from the last on, an even part of the next, single rows of the others.

    long: axes that no walk can step along. packed: axes along which 16 rows share a word, which isn't divided.
    """
    shape = [1] * len(rows)
    inner = shared = 1
    whole = True
    for axis in reversed(range(len(rows))):
        unit = LANES // math.gcd(LANES, shared) if packed[axis] else 1
        most = min(rows[axis], max(count // inner, 1)) if whole and not long[axis] else 1
        even = math.ceil(rows[axis] / math.ceil(rows[axis] / most))
        shape[axis] = min(rows[axis], -(-even // unit) * unit)
        inner *= shape[axis]
        shared *= shape[axis] if packed[axis] else 1
        whole = whole and (shape[axis] == rows[axis] or long[axis])
    return tuple(shape)
