"""What a kernel is: a tensor operation that says what it mixes, and builds its part of a stage graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from meshwright.ir.build import GraphBuilder
from meshwright.ir.formats import ElementType
from meshwright.ir.ids import StageId, TensorId
from meshwright.ir.pool import Pool
from meshwright.kernels.placement import Placement

UnitKind = Literal["matrix", "vector", "mover"]


class Shaped(Struct, frozen=True):
    """Shape and element type of a value or a piece, printed as `f16[32, 384]`."""

    shape: tuple[int, ...]
    format: ElementType

    def __str__(self) -> str:
        return f"{self.format}[{', '.join(map(str, self.shape))}]"


class Piece(Struct, frozen=True):
    """One rank's piece of a tensor of a graph under construction, with its local shape.

    ready: the stages that have to have stored it.
    """

    tensor: TensorId
    rank: int
    shape: tuple[int, ...]
    ready: tuple[StageId, ...] = ()


class Contraction(Struct, frozen=True):
    """One axis of every operand that is folded away together: slices of it give partial results in `pool`.

    axes: for each operand its axis, None for an operand that hasn't got it.
    """

    axes: tuple[int | None, ...]
    pool: Pool


class Kernel(Protocol):
    """A tensor operation. Implementations are frozen data.

    `axes` and `linear_in` are what a split is judged by. A kernel that doesn't know says None and False: it then
    counts as mixing everything and as nonlinear.
    """

    @property
    def name(self) -> str:
        """What messages and plans call it."""
        ...

    @property
    def unit(self) -> UnitKind:
        """The kind of unit that runs it."""
        ...

    def result(self, operands: Sequence[Shaped]) -> Shaped:
        """Shape and element type of the result; `ValueError` (in the `MeshwrightError` tree) where they don't fit."""
        ...

    def axes(self, operands: Sequence[Shaped]) -> tuple[tuple[int | None, ...], ...]:
        """For each operand, the result axis that each of its axes runs along, element for element.

        None: elements along that axis are mixed, so that a slice of it can't be worked on alone. Axes of size 1 that
        are broadcast may name their result axis.
        """
        ...

    def contractions(self, operands: Sequence[Shaped]) -> tuple[Contraction, ...]:
        """Axes whose slices may be worked on alone, if the results are folded afterwards."""
        ...

    def linear_in(self, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
        """Whether the result is linear in the operands `together` as one tuple, the others held fixed."""
        ...

    def emit(
        self, builder: GraphBuilder, placement: Placement, operands: Sequence[Piece], result: Piece
    ) -> tuple[StageId, ...]:
        """Adds the stages that compute `result` on one chip; gives the stages that store it."""
        ...
