"""Graphs at one site: whole tensors loaded block by block, something done, results stored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.evaluate.arithmetic import Arithmetic
from meshwright.evaluate.real import RealArithmetic
from meshwright.evaluate.walk import evaluate
from meshwright.ir.build import GraphBuilder
from meshwright.ir.formats import ElementType
from meshwright.ir.ids import BufferId, ChipId
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.records import Site

SITE = Site(ChipId(0), 1, 1)
F32, F16, I32, FP22 = ElementType.F32, ElementType.F16, ElementType.I32, ElementType.FP22


def blocks_of(shape: Sequence[int], block: Sequence[int]) -> Affine:
    """All blocks of a tensor, row-major."""
    rank = len(shape)
    loops = tuple(
        Loop(shape[a] // block[a], tuple(block[a] if i == a else 0 for i in range(rank))) for a in range(rank)
    )
    return Affine((0,) * rank, tuple(block), loops)


class OneSite:
    """A builder with shorthands; tensors are called x0, x1, ... and y0, y1, ..."""

    def __init__(self, site: Site = SITE) -> None:
        self.builder = GraphBuilder()
        self.site = site
        self.inputs: dict[str, list[np.ndarray]] = {}
        self.outputs = 0

    def load(
        self, values: np.ndarray, block: Sequence[int], format: ElementType = F32, pattern: Affine | None = None
    ) -> BufferId:
        """A FIFO that the blocks of an input come through."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = [values]
        tensor = self.builder.tensor(name, values.shape, format, [self.site.chip])
        buffer = self.builder.fifo(self.site, block, format)
        self.builder.load(tensor, pattern or blocks_of(values.shape, block), buffer)
        return buffer

    def fifo(self, block: Sequence[int], format: ElementType = F32) -> BufferId:
        """A FIFO."""
        return self.builder.fifo(self.site, block, format)

    def store(self, buffer: BufferId, shape: Sequence[int], format: ElementType = F32, **how: object) -> str:
        """Stores a buffer's blocks as a tensor of `shape`; gives its name."""
        name = f"y{self.outputs}"
        self.outputs += 1
        tensor = self.builder.tensor(name, shape, format, [self.site.chip])
        self.builder.store(tensor, blocks_of(shape, self.builder.block(buffer)), buffer, **how)  # type: ignore[arg-type]
        return name

    def run(self, arithmetic: Arithmetic | None = None) -> dict[str, np.ndarray]:
        """The stored tensors."""
        made = evaluate(self.builder.graph(), self.inputs, arithmetic or RealArithmetic())
        return {name: pieces[0] for name, pieces in made.items()}


def apply(
    op: object,
    operands: Sequence[tuple[np.ndarray, Sequence[int]]],
    block: Sequence[int],
    shape: Sequence[int],
    arithmetic: Arithmetic | None = None,
    format: ElementType = F32,
) -> np.ndarray:
    """The result of one compute stage over whole operands in blocks."""
    site = OneSite()
    ins = [site.load(values, cut, format) for values, cut in operands]
    out = site.fifo(block, format)
    site.builder.compute(op, ins, (out,))  # type: ignore[arg-type]
    name = site.store(out, shape, format)
    return site.run(arithmetic)[name]
