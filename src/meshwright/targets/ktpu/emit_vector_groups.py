"""How many rows of a chain a vector core works on at a time, and the runs that do it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from meshwright.errors import PlacementError
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import TensorId
from meshwright.machine.figures import VectorCoreSpec
from meshwright.targets.ktpu.emit_vector_across import AcrossRow
from meshwright.targets.ktpu.emit_vector_code import Keeping, Row
from meshwright.targets.ktpu.emit_vector_layout import LANES, VECTOR, WORD, Placed, Region, View, runs
from meshwright.targets.ktpu.emit_vector_moves import Move, refusal
from meshwright.targets.ktpu.emit_vector_registers import Assembly, OutOfRegistersError
from meshwright.targets.ktpu.emit_vector_runs import Memory, Step, in_one_part, steps
from meshwright.targets.ktpu.emit_vector_stages import Chain
from meshwright.targets.ktpu.emit_vector_values import Counter, Operation, Place, Value, without_the_unused

VALUE_BYTES: Final = 2
RUN_COST: Final = 8
"""Instruction words whose sending takes about as long as starting a run and waiting for its first fill does."""
_KEEPINGS: Final[tuple[Keeping, ...]] = ("all", "folds", "nothing")


class _Rows(Struct, frozen=True):
    """How one load or store has its rows.

    strides: bytes between them along each row axis. moving: along which axes it has rows of its own. kind: whole rows;
    or one element a row, each in a word of its own or 16 in a word.
    """

    strides: tuple[int, ...]
    moving: tuple[bool, ...]
    kind: Literal["whole", "apart", "packed"]


class _Shape(Struct, frozen=True):
    """What the code of a group depends on: rows along each axis, elements of a row, and how each move has them."""

    rows: tuple[int, ...]
    length: int
    moves: tuple[_Rows, ...]
    folds: int

    def of(self, rows: tuple[int, ...]) -> _Shape:
        """The same with other numbers of rows."""
        return _Shape(rows, self.length, self.moves, self.folds)

    @property
    def outer(self) -> tuple[int, ...]:
        """Rows along the axes that aren't folded."""
        return self.rows[: len(self.rows) - self.folds]

    @property
    def folded(self) -> tuple[int, ...]:
        """Rows along the axes that are."""
        return self.rows[len(self.rows) - self.folds :]

    def row(self, move: int, at: Sequence[int]) -> int:
        """Which of its rows a load or store has at `at`."""
        number = 0
        for index, size, moves in zip(at, self.rows, self.moves[move].moving, strict=True):
            if moves:
                number = number * size + index
        return number

    def offset(self, move: int, row: int) -> int:
        """Bytes from the first row of a load or store to another one."""
        offset = 0
        rows = self.moves[move]
        for size, stride, moves in zip(reversed(self.rows), reversed(rows.strides), reversed(rows.moving), strict=True):
            if moves:
                row, index = divmod(row, size)
                offset += index * stride
        return offset


class Groups:
    """Groups of rows of a chain, and the runs for each; alike groups have the same ones."""

    def __init__(
        self, graph: Graph, chain: Chain, core: VectorCoreSpec, where: Mapping[tuple[TensorId, int], Placed]
    ) -> None:
        self._graph = graph
        self._chain = chain
        self._core = core
        self._where = where
        self._moves = (*chain.loads, *chain.stores)
        self._single: dict[_Shape, tuple[Step, ...] | None] = {}
        self._several: dict[_Shape, tuple[Step, ...]] = {}
        self._chosen: dict[_Shape, tuple[int, ...]] = {}
        self._shapes: dict[Region, _Shape] = {}

    def rows(self, region: Region) -> tuple[int, ...]:
        """Rows along each axis of the groups that a region is worked on in."""
        shape = self._shape(region)
        if shape not in self._chosen:
            self._chosen[shape] = self._cheapest(shape)
        return self._chosen[shape]

    def steps(self, region: Region, rows: tuple[int, ...]) -> tuple[Step, ...]:
        """The runs for so many rows of a region; walks begin at the first row of each load and store."""
        return self._made(self._shape(region).of(rows))

    # What rows are like.

    def _shape(self, region: Region) -> _Shape:
        if region not in self._shapes:
            moves = tuple(
                _Rows(view.strides, moving(view, region.rows), self._kind(move, view, region.rows))
                for move, view in zip(self._moves, region.views, strict=True)
            )
            self._shapes[region] = _Shape(region.rows, region.length, moves, region.folds)
        return self._shapes[region]

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
        if move in self._chain.stores and not self._has_room(move, view, rows, kind):
            raise refusal(
                move.stage,
                "it has one element a row, and the store of the word that the last one is in would write over elements "
                "that are not its own",
            )
        return kind

    def _has_room(self, move: Move, view: View, rows: tuple[int, ...], kind: Literal["apart", "packed"]) -> bool:
        placed, shape = self._where[TensorId(move.tensor), move.rank], self._graph.tensors[move.tensor].local
        run, pitch = runs(shape, placed.strides)
        if kind == "apart":
            return run == 1 and (pitch is None or pitch >= LANES)
        count = math.prod(size for size, moves in zip(rows, moving(view, rows), strict=True) if moves)
        at_end = view.address + count * view.size == placed.address + run * view.size
        return count % LANES == 0 or (pitch is None and at_end)

    # How many rows at a time.

    def _cheapest(self, whole: _Shape) -> tuple[int, ...]:
        """Of the groups that one run does, the one with the fewest payloads; the least group where none does."""
        most = math.prod(whole.outer)
        least = whole.of(_split(whole, 1))
        alone = self._alone(least)
        if alone is None:
            return least.rows
        low, high = 1, most
        while low < high:
            middle = min((low + high + 1) // 2, 2 * low)
            made = self._alone(whole.of(_split(whole, middle)))
            if made is not None and len(made) <= len(alone):
                low = middle
            else:
                high = middle - 1
        counts = {low >> at for at in range(low.bit_length())} | set(_divisors(most, low))
        splits = {_split(whole, count) for count in counts if count <= low}
        return min(sorted(splits), key=lambda rows: (self._cost(whole, rows), -math.prod(rows)))

    def _cost(self, whole: _Shape, rows: tuple[int, ...]) -> int:
        """Payloads for all of the rows in groups of `rows`, with what starting a run costs."""
        kinds = [
            [(n, count) for n, count in ((step, size // step), (size % step, 1)) if n and count]
            for size, step in zip(whole.rows, rows, strict=True)
        ]
        words: set[tuple[int, ...]] = set()
        sent = 0
        for combination in itertools.product(*kinds):
            made = self._made(whole.of(tuple(n for n, _ in combination)))
            words |= {step.words for step in made}
            sent += math.prod(count for _, count in combination) * _sent(made)
        return sent + sum(map(len, words))

    # The runs.

    def _made(self, shape: _Shape) -> tuple[Step, ...]:
        alone = self._alone(shape)
        if alone is not None:
            return alone
        if shape not in self._several:
            self._several[shape] = self._in_several(shape)
        return self._several[shape]

    def _alone(self, shape: _Shape) -> tuple[Step, ...] | None:
        """The runs of a group that one of them works on; None where it takes several."""
        if shape not in self._single:
            assembly, _ = self._assembled(shape)
            self._single[shape] = in_one_part(assembly, self._memory(shape))
        return self._single[shape]

    def _memory(self, shape: _Shape) -> Memory:
        return Memory(self._core, len(self._chain.loads), lambda move, word: self._address(shape, move, word))

    def _assembled(self, shape: _Shape) -> tuple[Assembly, frozenset[int]]:
        """The code of a group, and which of its operations are the first of a row."""
        reason: Exception | None = None
        for keeping in _KEEPINGS:
            try:
                operations, starts = self._operations(shape, keeping)
                return Assembly(operations), starts
            except OutOfRegistersError as error:
                reason = error
        stages = ", ".join(f"s{s}" for s in self._chain.stages)
        raise PlacementError(
            f"stages {stages} can't be emitted for a vector core: a row of {shape.length} elements: {reason}, and "
            "registers can't be saved to L1 exactly"
        )

    def _in_several(self, shape: _Shape) -> tuple[Step, ...]:
        """Cuts that leave alike parts need their code once: every row, and what follows a fold, may begin anew."""
        assembly, starts = self._assembled(shape)
        memory = self._memory(shape)
        folds = frozenset(at for at, coded in enumerate(assembly.coded) if coded.operation.op == "reduce")
        cuts = (frozenset[int](), starts, starts | folds)
        found = [steps(assembly, memory, fresh, room) for fresh in cuts for room in _rooms(self._core.l1_safe_words)]
        return min(found, key=lambda made: (_sent(made) + _code_size(made, self._core.instructions), len(made)))

    def _operations(self, shape: _Shape, keeping: Keeping) -> tuple[list[Operation], frozenset[int]]:
        """What a group does, and which operations are the first of a row."""
        counter = Counter()
        packing: dict[tuple[int, int], Value] = {}
        row_of: dict[int, int] = {}
        operations: list[Operation] = []
        indices = list(itertools.product(*map(range, shape.outer)))
        backwards = any(rows.kind == "packed" for rows in shape.moves)
        for number, at in enumerate(reversed(indices) if backwards else indices):
            row = self._row(shape, at, keeping, counter, packing)
            row.emit()
            row_of |= {id(operation): number for operation in row.operations}
            operations += row.operations
        kept = without_the_unused(operations)
        rows = [row_of[id(operation)] for operation in kept]
        starts = (at for at, (before, after) in enumerate(itertools.pairwise(rows), 1) if before != after)
        return kept, frozenset(starts)

    def _row(
        self,
        shape: _Shape,
        at: tuple[int, ...],
        keeping: Keeping,
        counter: Counter,
        packing: dict[tuple[int, int], Value],
    ) -> Row:
        if not self._chain.across:
            return Row(
                self._graph,
                self._chain,
                shape.length,
                lambda move, piece: self._place(shape, move, at, piece),
                keeping,
                counter,
                packing,
            )
        elements = list(itertools.product(*map(range, shape.folded)))
        return AcrossRow(
            self._graph,
            self._chain,
            shape.length,
            lambda move, piece: self._place(shape, move, (*at, *elements[piece]), 0),
            keeping,
            counter,
            len(elements),
        )

    # Words of loads and stores.

    def _wide(self, move: int) -> int:
        """Words for 16 elements."""
        return 2 if self._graph.buffers[self._moves[move].buffer].format is ElementType.F32 else 1

    def _pitch(self, shape: _Shape, move: int) -> int:
        """Words of a row."""
        return self._wide(move) * -(-shape.length // LANES)

    def _place(self, shape: _Shape, move: int, at: Sequence[int], piece: int) -> Place:
        row, wide = shape.row(move, at), self._wide(move)
        match shape.moves[move].kind:
            case "whole":
                return Place(row * self._pitch(shape, move) + piece * wide * VECTOR // LANES)
            case "apart":
                return Place(row, single=True)
            case "packed":
                return Place(row // LANES * wide, single=True, lane=row % LANES)

    def _address(self, shape: _Shape, move: int, word: int) -> int:
        match shape.moves[move].kind:
            case "whole":
                row, inside = divmod(word, self._pitch(shape, move))
                return shape.offset(move, row) + inside * WORD
            case "apart":
                return shape.offset(move, word)
            case "packed":
                return word * WORD


def moving(view: View, rows: tuple[int, ...]) -> tuple[bool, ...]:
    """Along which row axes a load or store has rows of its own."""
    return tuple(stride != 0 and size > 1 for stride, size in zip(view.strides, rows, strict=True))


def _single(view: View, rows: tuple[int, ...]) -> Literal["apart", "packed"] | None:
    """How the one element a row lies in memory; None where no walk over words fits."""
    axes = [at for at, moves in enumerate(moving(view, rows)) if moves]
    if view.address % WORD:
        return None
    if all(view.strides[at] % WORD == 0 for at in axes):
        return "apart"
    step = view.size
    for at in reversed(axes):
        if view.strides[at] != step:
            return None
        step *= rows[at]
    return "packed"


def _split(whole: _Shape, count: int) -> tuple[int, ...]:
    """About `count` rows: whole axes from the last on, an even part of the next, single rows of the others.

    Axes that are folded stay whole, and so do 16 rows that share a word.
    """
    shape = list(whole.rows)
    packed = [rows.moving for rows in whole.moves if rows.kind == "packed"]
    inner = shared = 1
    full = True
    for axis in reversed(range(len(shape))):
        packs = any(moves[axis] for moves in packed)
        size = whole.rows[axis]
        if axis < len(whole.outer):
            unit = LANES // math.gcd(LANES, shared) if packs else 1
            most = min(size, max(count // inner, 1)) if full else 1
            even = math.ceil(size / math.ceil(size / most))
            shape[axis] = min(size, -(-even // unit) * unit)
            inner *= shape[axis]
            full = full and shape[axis] == size
        shared *= shape[axis] if packs else 1
    return tuple(shape)


def _divisors(size: int, most: int) -> list[int]:
    """Some divisors of `size` up to `most`: groups of so many rows leave none over."""
    return [count for count in range(1, min(most, size) + 1) if size % count == 0][-4:]


def _rooms(safe: int) -> tuple[int, ...]:
    """L1 words that a part of a long row may use: all of them, or so few that most parts are alike."""
    return safe, safe // 2, safe // 4


def _sent(made: Sequence[Step]) -> int:
    """Payloads of a group besides code, and what its runs cost."""
    several = len(made) > 1
    walks = sum(1 + (len(walk.dims) if several else 0) for step in made for walk in step.walks)
    return walks + len(made) * (1 + RUN_COST)


def _code_size(made: Sequence[Step], room: int) -> int:
    """Words of code that a group needs; all of them each time where they don't fit beside each other."""
    words = sum(map(len, {step.words for step in made}))
    return words if words <= room else 16 * words
