"""What a `Compute` stage may do: the closed list of block operations."""

from __future__ import annotations

import math
from enum import StrEnum

from msgspec import Struct

from meshwright.ir.expression import Expr
from meshwright.ir.ids import BufferId
from meshwright.ir.pool import Pool


class Unit(StrEnum):
    """Whose arithmetic an elementwise operation uses."""

    VECTOR = "vector"
    """The vector lane: operands are read into its format, results rounded out of it."""
    ACCUMULATOR = "accumulator"
    """The matmul accumulator's own adder; all operands and results are accumulator words, and it can only add."""


class Operation(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="op"):
    """What all operations share (nothing but how they are written)."""


class Matmul(Operation, frozen=True, tag="matmul"):
    """A product of blocks, summed over the contraction in ascending order.

    block: (m, n, k): `a` blocks are (m, k), `b` blocks (k, n) or, with `b_transposed`, (n, k).
    contraction_blocks: how many pairs of blocks make one output block (m, n).
    b_transposed: `b` is stored `[N][K]`.
    bias: a buffer with one block an output block, (1, n) or (m, n), added after the sum.
    spill: a buffer that the partial sum is written to and read back from after every pair but the last, at that
        buffer's format: what a machine does whose accumulator can't hold the sum.
    epilogue: an expression over operand 0, the sum with its bias.
    sub_blocks: the block is produced sub-block after sub-block of this (rows, columns); None: row by row.

    Ports: ins `a`, `b` and, where a resident tile is continued, that accumulator, which then is the output as well.
    """

    block: tuple[int, int, int]
    contraction_blocks: int
    b_transposed: bool = False
    bias: BufferId | None = None
    spill: BufferId | None = None
    epilogue: Expr | None = None
    sub_blocks: tuple[int, int] | None = None


class Generic(Operation, frozen=True, tag="generic"):
    """Elementwise: one expression an output over N operands.

    maps: for each operand, the output axis that each of its block's axes runs along; output axes that an operand
        lacks, and size-1 axes, are broadcast.
    """

    exprs: tuple[Expr, ...]
    maps: tuple[tuple[int, ...], ...]
    unit: Unit = Unit.VECTOR

    @classmethod
    def elementwise(cls, expr: Expr, count: int, rank: int, unit: Unit = Unit.VECTOR) -> Generic:
        """One output, `count` operands, all with the output's `rank` axes."""
        return cls((expr,), (tuple(range(rank)),) * count, unit)


class Reduce(Operation, frozen=True, tag="reduce"):
    """Folds a block along some of its axes, which stay with size 1, and over consecutive blocks.

    blocks: how many consecutive input blocks make one output block.
    `Pool.ARGMAX` has two outputs, the value and its position along the one axis (counted through the blocks).
    """

    pool: Pool
    axes: tuple[int, ...]
    blocks: int = 1


class Permute(Operation, frozen=True, tag="permute"):
    """Moves elements without arithmetic: blocks are laid out on a grid, transposed, and cut into output blocks.

    grid: how many input blocks along each axis make up the array; they arrive in row-major order.
    axes: the transposition of that array: its axis `axes[i]` becomes axis `i`. Output blocks leave in row-major order.
    """

    axes: tuple[int, ...]
    grid: tuple[int, ...] = ()

    @property
    def blocks_in(self) -> int:
        """How many input blocks one firing takes."""
        return math.prod(self.grid)


ComputeOp = Matmul | Generic | Reduce | Permute


def combine(count: int, rank: int, pool: Pool, unit: Unit) -> Generic:
    """The combining operation of a reduction over `count` operands whose blocks have `rank` axes."""
    return Generic(pool.fold(count), (tuple(range(rank)),) * (count * pool.components), unit)
