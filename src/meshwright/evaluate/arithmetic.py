"""`Arithmetic`: the number system an evaluation runs in, passed in by the caller.

The walk over a graph knows nothing of formats: it moves arrays whose element type it was told, and asks the
arithmetic for every value that is computed. A machine's arithmetic gives the bits of its silicon; `RealArithmetic`
gives float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.ir.expression import Expr
from meshwright.ir.formats import ElementType
from meshwright.ir.operation import Unit
from meshwright.ir.pool import Pool

Array = NDArray[Any]
"""Elements as an arithmetic holds them: for a machine the bits of the format, for real numbers float64."""


class Typed(Struct, frozen=True, eq=False):
    """An array with the element type that it holds."""

    array: Array
    format: ElementType


class Products(Struct, frozen=True, eq=False):
    """Many block products of one stage, asked for at once.

    a: [A, m, K] and b: [B, n, K], the operands that differ from each other. a_index, b_index: int64 [T], which of
    them each of the T products uses. start: [T, m, n] accumulator words that each product continues, or None.
    out: the element type that is asked for: an accumulator's own words, or what leaves it.
    """

    a: Typed
    b: Typed
    a_index: NDArray[np.int64]
    b_index: NDArray[np.int64]
    start: Array | None
    out: ElementType


class Arithmetic(Protocol):
    """What an evaluation asks of a number system. Methods raise `EvaluationError` for formats that it hasn't got."""

    @property
    def name(self) -> str:
        """For messages: "real", "ktpu", ..."""
        ...

    @property
    def accumulator(self) -> ElementType:
        """The element type of a sum that stays in an accumulator."""
        ...

    @property
    def drained(self) -> ElementType:
        """The element type in which a finished sum leaves the accumulator towards a bias or an epilogue."""
        ...

    def ingest(self, values: Array, format: ElementType) -> Array:
        """Elements from outside (the numpy type of `format`, or bits) as this arithmetic holds them."""
        ...

    def constant(self, value: float, format: ElementType) -> Array:
        """A 0-d array of one value, rounded into `format` (pads, identities)."""
        ...

    def numbers(self, array: Array, format: ElementType) -> NDArray[np.float64] | NDArray[np.int64]:
        """The elements as numbers: whole ones for integer formats."""
        ...

    def encode(self, numbers: Array, format: ElementType) -> Array:
        """Numbers rounded into `format`; the inverse of `numbers` on values that the format has."""
        ...

    def products(self, request: Products) -> Array:
        """The T block products [T, m, n] of a stage, contraction in ascending order."""
        ...

    def elementwise(
        self, exprs: Sequence[Expr], operands: Sequence[Typed], outs: Sequence[ElementType], unit: Unit
    ) -> list[Array]:
        """Each expression over operands that broadcast against each other, rounded into its output's format."""
        ...

    def fold(self, pool: Pool, values: Typed, outs: Sequence[ElementType]) -> list[Array]:
        """`values` [..., L] folded along the last axis, one array [...] a component of the pool."""
        ...
