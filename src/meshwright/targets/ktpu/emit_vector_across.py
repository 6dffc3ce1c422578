"""Rows of a chain that folds across vectors: every element of a fold is a vector of columns, and so is what it leaves.

A core's own reduction goes along a vector. Its nodes have a fixed order, each rounds, and each is an operation that the
lane has; so the same nodes are computed here for all columns of a vector at once: running totals of 128 where more
elements are folded, a tree over each 16 of them, and a tree over the 16 accumulators that these go to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId
from meshwright.ir.pool import Pool
from meshwright.targets.ktpu.emit_vector_code import JOINS, Counter, Keeping, Operation, Place, Row, Value
from meshwright.targets.ktpu.emit_vector_layout import LANES, VECTOR
from meshwright.targets.ktpu.emit_vector_stages import Chain
from meshwright.targets.ktpu.lane_code import code_of

_ACCUMULATORS: Final = 16
T = TypeVar("T")


class AcrossRow(Row):
    """The code of one vector of columns. Its pieces are the elements of the folded axes, counted row by row."""

    def __init__(
        self,
        graph: Graph,
        chain: Chain,
        columns: int,
        places: Callable[[int, int], Place],
        keeping: Keeping,
        counter: Counter,
        elements: int,
    ) -> None:
        super().__init__(graph, chain, columns, places, keeping, counter, {})
        self._pieces = elements

    def _stored(self, buffer: BufferId) -> range:
        return range(self._pieces if self._is_vector(buffer) else 1)

    def _size(self, piece: int) -> int:
        return self._length

    def _is_vector(self, buffer: BufferId) -> bool:
        """Whether a buffer has a vector for each element of the fold; otherwise it has one for all."""
        return self._chain.spans_folded(self._graph, buffer)

    def _fold(self, pool: Pool, buffer: BufferId) -> Value:
        (number,) = pool.identity
        identity = Value("constant", code_of(float(number)))
        width = -(-min(self._pieces, VECTOR) // LANES)
        accumulators = [*range(width), *[None] * (_ACCUMULATORS - width)]

        def total(at: int | None) -> Value:
            if at is None:
                return identity
            leaves = range(at * LANES, (at + 1) * LANES)
            return self._node(pool, identity, self._tree(pool, leaves, lambda leaf: self._leaf(pool, buffer, leaf)))

        result = self._tree(pool, accumulators, total)
        if self._keeping != "all":
            self._forget()
        return result

    def _tree(self, pool: Pool, leaves: Sequence[T], value: Callable[[T], Value]) -> Value:
        """Neighbours joined, and what that gives joined again; depth first, so that few values are alive at once."""
        if len(leaves) == 1:
            return value(leaves[0])
        half = len(leaves) // 2
        return self._node(pool, self._tree(pool, leaves[:half], value), self._tree(pool, leaves[half:], value))

    def _node(self, pool: Pool, left: Value, right: Value) -> Value:
        """One node of a tree; where both sides are the identity so is it."""
        if left.kind == right.kind == "constant":
            return left
        made = self._counter.vector()
        self._add(Operation(JOINS[pool], self._whole(0), made, (left, right)))
        return made

    def _leaf(self, pool: Pool, buffer: BufferId, leaf: int) -> Value:
        """The running total of every 128th element; the identity past the last one."""
        if leaf >= self._pieces:
            (number,) = pool.identity
            return Value("constant", code_of(float(number)))
        total = self._get(buffer, leaf)
        for piece in range(leaf + VECTOR, self._pieces, VECTOR):
            part = self._get(buffer, piece)
            made = self._counter.vector()
            self._add(Operation(JOINS[pool], self._whole(0), made, (total, part)))
            total = made
        return total
