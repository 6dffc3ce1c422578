"""Kernels that normalise along one axis: folds along it, and an expression over elements and what was folded.

A softmax is: the maximum, then the sum of exponentials, then a product. A layer norm is: the mean, then the mean
square, then a product and a sum. `RowProgram` says so once, as expressions; `emit_rows` makes stages of it, for rows
that a vector unit holds and for rows that it doesn't.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from meshwright.errors import KernelError
from meshwright.ir.build import GraphBuilder
from meshwright.ir.expression import Expr, Operand, operands, substitute
from meshwright.ir.ids import BufferId, StageId
from meshwright.ir.operation import Generic, Reduce
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import Site
from meshwright.kernels.blocks import at_most, dividing, filled
from meshwright.kernels.kernel import Piece
from meshwright.kernels.nest import Nest
from meshwright.kernels.operands import axes_from_the_last
from meshwright.kernels.placement import Placement

SPLIT: Final = 33.0
"""2^5 + 1: splits the 16 significant bits of the lane into 11 and 5."""


class Pass(Struct, frozen=True):
    """One fold along the rows.

    The expressions read, in this order: the kernel's operands, what the pass before kept, the statistic of the pass
    before. term: what is folded. keep: elements that the next pass reads. finish: over operand 0, the fold: the
    statistic that it makes.
    """

    pool: Pool
    term: Expr
    keep: tuple[Expr, ...]
    finish: Expr = Operand(0)


class RowProgram(Struct, frozen=True):
    """Passes over `count` operands, and the result in what they left, numbered as in a pass after the last one.

    Every value that is kept, and every statistic, is read by the very next pass (or the result).
    """

    name: str
    count: int
    passes: tuple[Pass, ...]
    output: Expr


def emit_rows(
    builder: GraphBuilder,
    placement: Placement,
    program: RowProgram,
    pieces: Sequence[Piece],
    result: Piece,
    axis: int,
) -> tuple[StageId, ...]:
    """The stages of `program` along `axis` of `result`, dealt over the vector units; gives the stores.

    Where a row fits, it is loaded once and goes from operation to operation in the lane's own format. Where it
    doesn't, every pass loads it again in parts, and statistics wait in DRAM meanwhile.
    """
    sites = placement.vector_sites()
    size = _size(placement, program, pieces, result, axis)
    length = result.shape[axis]
    rows = at_most(size.rows, math.prod(result.shape) // length, len(sites))
    nest = Nest.over(result.shape, filled(result.shape, rows, {axis: length}))
    stores: list[StageId] = []
    for share, site in zip(nest.dealt(len(sites)), sites, strict=False):
        work = _Rows(builder, placement, site, share, axis, size, tuple(pieces))
        whole = size.part == length
        stores.append(work.fused(program, result) if whole else work.in_parts(program, result))
    return tuple(stores)


class _Size(Struct, frozen=True):
    """Of a block: how many rows it has, how much of each (all of it where a row fits), and how deep its FIFOs are."""

    rows: int
    part: int
    depth: int


def _size(placement: Placement, program: RowProgram, pieces: Sequence[Piece], result: Piece, axis: int) -> _Size:
    length = result.shape[axis]
    # Blocks with every row of the block, the result's among them, and blocks of a single row that all rows share.
    spanning = 1 + sum(_has_rows(piece.shape, len(result.shape), axis) for piece in pieces)
    shared = len(pieces) + 1 - spanning
    room = placement.vector_elements(1)
    for depth in (2, 1):
        left = room * 2 // depth - shared * length
        if left >= spanning * length:
            return _Size(left // (spanning * length), length, depth)
    statistics = 2 * len(program.passes)
    part = dividing(length, room // (spanning + shared + statistics))
    return _Size(max(1, room // (part * (spanning + shared) + statistics)), part, 2)


def _has_rows(shape: Sequence[int], rank: int, axis: int) -> bool:
    lined_up = axes_from_the_last(shape, rank)
    return any(size != 1 and at != axis for size, at in zip(shape, lined_up, strict=True))


class _Rows(Struct, frozen=True):
    """The rows of one vector unit."""

    builder: GraphBuilder
    placement: Placement
    site: Site
    nest: Nest
    axis: int
    size: _Size
    pieces: tuple[Piece, ...]

    @property
    def parts(self) -> int:
        """Blocks of a row."""
        return self.nest.shape[self.axis] // self.size.part

    @property
    def block(self) -> tuple[int, ...]:
        """A block of elements."""
        return tuple(self.size.part if a == self.axis else size for a, size in enumerate(self.nest.box))

    @property
    def statistic(self) -> tuple[int, ...]:
        """A block of statistics: one a row."""
        return tuple(1 if a == self.axis else size for a, size in enumerate(self.nest.box))

    def fused(self, program: RowProgram, result: Piece) -> StageId:
        """Rows loaded once; everything between the operands and the result stays in the lane's format."""
        made: list[BufferId] = []
        for step in program.passes:
            targets = [self._lane(self.block) for _ in range(1 + len(step.keep))]
            self._generic(program, (step.term, *step.keep), made, targets)
            made = [*targets[1:], self._folded(step, targets[0])]
        out = self.builder.fifo(self.site, self.block, self.placement.value_format, self.size.depth)
        self._generic(program, (program.output,), made, [out])
        return self._store(result, out)

    def in_parts(self, program: RowProgram, result: Piece) -> StageId:
        """Every pass loads the operands again; a statistic is kept in DRAM as a value and what rounding it left."""
        # Over the operands, then a pair of value and remainder for each statistic made so far.
        values: list[Expr] = [Operand(i) for i in range(program.count)]
        known: list[Expr] = values.copy()
        pairs: list[Piece] = []
        for number, step in enumerate(program.passes):
            term, *kept = (_replaced(expr, known) for expr in (step.term, *step.keep))
            folding = self._lane(self.block)
            self._generic_in_parts(program, term, pairs, folding)
            pairs += self._kept(f"{program.name} {step.pool.value}", self._folded(step, folding))
            first = program.count + 2 * number
            known = [*values, *kept, Operand(first) + Operand(first + 1)]
        out = self.builder.fifo(self.site, self.block, self.placement.value_format, self.size.depth)
        self._generic_in_parts(program, _replaced(program.output, known), pairs, out)
        return self._store(result, out)

    def _lane(self, block: tuple[int, ...]) -> BufferId:
        return self.builder.fifo(self.site, block, self.placement.lane_format, self.size.depth)

    def _folded(self, step: Pass, terms: BufferId) -> BufferId:
        """The statistic of each row."""
        folded = self._lane(self.statistic)
        self.builder.compute(Reduce(step.pool, (self.axis,), self.parts), (terms,), (folded,))
        if step.finish == Operand(0):
            return folded
        finished = self._lane(self.statistic)
        self.builder.compute(Generic.elementwise(step.finish, 1, len(self.statistic)), (folded,), (finished,))
        return finished

    def _generic(
        self, program: RowProgram, exprs: Sequence[Expr], made: Sequence[BufferId], targets: Sequence[BufferId]
    ) -> None:
        """Loads the operands that the expressions read, and computes them; `made` are all read."""
        read = sorted(frozenset[int]().union(*map(operands, exprs)))
        unread = [number for number in range(len(made)) if program.count + number not in read]
        if unread:
            raise KernelError(f"{program.name}: a pass leaves value {unread[0]} for the next, which doesn't read it")
        ins = [self._load(self.pieces[i]) if i < program.count else made[i - program.count] for i in read]
        self._compute(exprs, read, ins, targets)

    def _generic_in_parts(self, program: RowProgram, expr: Expr, pairs: Sequence[Piece], target: BufferId) -> None:
        read = sorted(operands(expr))
        count = len(self.pieces)
        ins = [self._load(self.pieces[i]) if i < count else self._load(pairs[i - count], self.own) for i in read]
        self._compute((expr,), read, ins, (target,))

    def _compute(
        self, exprs: Sequence[Expr], read: Sequence[int], ins: Sequence[BufferId], targets: Sequence[BufferId]
    ) -> None:
        position = {number: Operand(at) for at, number in enumerate(read)}
        renumbered = tuple(substitute(expr, lambda o: position[o.index]) for expr in exprs)
        maps = (tuple(range(len(self.block))),) * len(ins)
        self.builder.compute(Generic(renumbered, maps), ins, targets)

    def _load(self, piece: Piece, nest: Nest | None = None) -> BufferId:
        pattern = self._pattern(piece, nest or self.nest)
        block = (1,) * (len(self.block) - len(pattern.box)) + pattern.box
        fifo = self.builder.fifo(self.site, block, self.placement.value_format, self.size.depth)
        self.builder.load(piece.tensor, pattern, fifo, piece.rank, piece.ready)
        return fifo

    def _store(self, result: Piece, out: BufferId) -> StageId:
        return self.builder.store(result.tensor, self._pattern(result, self.nest), out, result.rank)

    def _pattern(self, piece: Piece, nest: Nest) -> Affine:
        """The boxes of a tensor that lines up with the result from its last axis."""
        lined_up = axes_from_the_last(piece.shape, len(nest.shape))
        return in_parts(nest.pattern(lined_up, piece.shape), lined_up, piece.shape, self.axis, self.parts)

    @property
    def own(self) -> Nest:
        """This unit's rows alone, counted from zero."""
        limits = zip(self.nest.shape, self.nest.box, self.nest.first, self.nest.count, strict=True)
        shape = tuple(min(count * box, size - first * box) for size, box, first, count in limits)
        return Nest(shape, self.nest.box, (0,) * len(shape), self.nest.count)

    def _kept(self, name: str, statistic: BufferId) -> list[Piece]:
        """Stores a statistic as a value and what is left of it: together they have the lane's precision."""
        # Veltkamp's splitting: the high part has the 11 significant bits that f16 keeps, the low one the rest.
        scaled = Operand(0) * SPLIT
        high = scaled - (scaled - Operand(0))
        format = self.placement.value_format
        targets = [self.builder.fifo(self.site, self.statistic, format, self.size.depth) for _ in range(2)]
        maps = (tuple(range(len(self.statistic))),)
        self.builder.compute(Generic((high, Operand(0) - high), maps), (statistic,), targets)
        shape = tuple(1 if a == self.axis else size for a, size in enumerate(self.own.shape))
        pieces: list[Piece] = []
        for target in targets:
            tensor = self.builder.scratch(name, shape, format, self.placement.chip)
            pattern = self.own.pattern(range(len(shape)), shape)
            pieces.append(Piece(tensor, 0, shape, (self.builder.store(tensor, pattern, target),)))
        return pieces


def in_parts(rows: Affine, lined_up: Sequence[int], sizes: Sequence[int], axis: int, parts: int) -> Affine:
    """The boxes of `rows`, each as `parts` blocks along the axis that lines up with `axis`; repeated without one."""
    if parts == 1:
        return rows
    along = tuple(size // parts if a == axis and size != 1 else 0 for a, size in zip(lined_up, sizes, strict=True))
    box = tuple(step or size for step, size in zip(along, rows.box, strict=True))
    return msgspec.structs.replace(rows, box=box, loops=(*rows.loops, Loop(parts, along)))


def _replaced(expr: Expr, values: Sequence[Expr]) -> Expr:
    return substitute(expr, lambda operand: values[operand.index])
