"""Rows of a chain that folds across vectors: an element of a fold is a vector of columns, and so is what it leaves."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId
from meshwright.ir.pool import Pool
from meshwright.targets.ktpu.emit_vector_code import Keeping, Row
from meshwright.targets.ktpu.emit_vector_stages import Chain
from meshwright.targets.ktpu.emit_vector_tree import folded
from meshwright.targets.ktpu.emit_vector_values import Counter, Place, Value


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
        return buffer in self._chain.spanning

    def _fold(self, pool: Pool, buffer: BufferId) -> Value:
        def node(left: Value, right: Value) -> Value:
            return self._node(pool, left, right, self._whole(0))

        result = folded(pool, self._pieces, lambda piece: self._get(buffer, piece), node)
        if self._keeping != "all":
            self._forget()
        return result
