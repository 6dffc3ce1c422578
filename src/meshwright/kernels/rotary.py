"""Rotary position embedding: pairs of elements of the last axis turned by an angle, on vector units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from meshwright.errors import KernelError
from meshwright.ir import library
from meshwright.ir.build import GraphBuilder
from meshwright.ir.expression import Operand
from meshwright.ir.ids import BufferId, StageId
from meshwright.ir.operation import Generic
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.records import Site
from meshwright.kernels.blocks import at_most, dividing, filled
from meshwright.kernels.kernel import Contraction, Piece, Shaped, UnitKind
from meshwright.kernels.nest import Nest
from meshwright.kernels.operands import (
    axes_but,
    axes_from_the_last,
    named,
    require_broadcasts_into,
    require_floats,
    require_operands,
)
from meshwright.kernels.placement import Placement


class Rotary(Struct, frozen=True):
    """`(a cos - b sin, b cos + a sin)` for every pair (a, b) of x; operands x, cos and sin.

    A pair is an element of the first half of the last axis and the one half the axis further, or, interleaved, two
    neighbours. cos and sin have half of x's last axis and broadcast to x otherwise: `[positions, size / 2]`.
    """

    interleaved: bool = False

    @property
    def name(self) -> str:
        """What messages call it."""
        return "rotary"

    @property
    def unit(self) -> UnitKind:
        """Vector units multiply and add."""
        return "vector"

    def result(self, operands: Sequence[Shaped]) -> Shaped:
        """Of x's shape; `KernelError` for an odd last axis or angles that don't go with it."""
        require_operands(self.name, operands, {3: "x, cos and sin"})
        require_floats(self.name, operands)
        x, cos, sin = operands
        if not x.shape or x.shape[-1] % 2:
            raise KernelError(f"rotary: x is {x}; its last axis is turned in pairs, so it needs an even size")
        half = Shaped((*x.shape[:-1], x.shape[-1] // 2), x.format)
        for what, angle in (("cos", cos), ("sin", sin)):
            if not angle.shape or angle.shape[-1] != half.shape[-1]:
                raise KernelError(
                    f"rotary: x is {x} and {what} {angle}; one angle a pair is needed, {half.shape[-1]} on the last "
                    f"axis. Found {named((cos, sin))}"
                )
            require_broadcasts_into(self.name, what, angle, half)
        return x

    def axes(self, operands: Sequence[Shaped]) -> tuple[tuple[int | None, ...], ...]:
        """Pairs are mixed, so the last axis is; all others go along."""
        rank = len(operands[0].shape)
        return tuple(axes_but(o.shape, rank, rank - 1) for o in operands)

    def contractions(self, operands: Sequence[Shaped]) -> tuple[Contraction, ...]:
        """None."""
        return ()

    def linear_in(self, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
        """In x, and in cos and sin taken together."""
        return together in (frozenset((0,)), frozenset((1, 2)))

    def emit(
        self, builder: GraphBuilder, placement: Placement, operands: Sequence[Piece], result: Piece
    ) -> tuple[StageId, ...]:
        """Both halves of the pairs, the angles, one Generic that makes both results, and two stores."""
        sites = placement.vector_sites()
        half = (*result.shape[:-1], result.shape[-1] // 2)
        room = placement.vector_elements(6)
        # No block may reach from one half into the other.
        across = dividing(half[-1], room)
        last = len(half) - 1
        rows = at_most(room // across, math.prod(half[:-1]), len(sites))
        nest = Nest.over(half, filled(half, rows, {last: across}))
        stores: list[StageId] = []
        for share, site in zip(nest.dealt(len(sites)), sites, strict=False):
            pairs = self._pairs(share)
            sources = [(operands[0], pattern) for pattern in pairs]
            sources += [(p, share.pattern(axes_from_the_last(p.shape, len(half)), p.shape)) for p in operands[1:]]
            ins = [_loaded(builder, placement, site, len(half), piece, pattern) for piece, pattern in sources]
            outs = [builder.fifo(site, share.box, placement.value_format) for _ in pairs]
            builder.compute(Generic(_TURNED, (tuple(range(len(half))),) * 4), ins, outs)
            stores += [builder.store(result.tensor, at, out, result.rank) for at, out in zip(pairs, outs, strict=True)]
        return tuple(stores)

    def _pairs(self, share: Nest) -> tuple[Affine, Affine]:
        """The boxes of x for the first and for the second element of every pair."""
        half = share.pattern(range(len(share.shape)), share.shape)
        if not self.interleaved:
            offset = (*half.offset[:-1], half.offset[-1] + share.shape[-1])
            return half, msgspec.structs.replace(half, offset=offset)
        spread = msgspec.structs.replace(
            half,
            offset=(*half.offset[:-1], 2 * half.offset[-1]),
            loops=tuple(Loop(loop.extent, (*loop.stride[:-1], 2 * loop.stride[-1])) for loop in half.loops),
            step=(*(1,) * (len(half.box) - 1), 2),
        )
        return spread, msgspec.structs.replace(spread, offset=(*spread.offset[:-1], spread.offset[-1] + 1))


def _loaded(
    builder: GraphBuilder, placement: Placement, site: Site, rank: int, piece: Piece, pattern: Affine
) -> BufferId:
    fifo = builder.fifo(site, (1,) * (rank - len(pattern.box)) + pattern.box, placement.value_format)
    builder.load(piece.tensor, pattern, fifo, piece.rank, piece.ready)
    return fifo


_A, _B, _COS, _SIN = (Operand(i) for i in range(4))
_TURNED: Final = (
    library.multiply_add(_A, _COS, -(_B * _SIN)),
    library.multiply_add(_B, _COS, _A * _SIN),
)


def rotary(interleaved: bool = False) -> Rotary:
    """Rotary embedding of x by cos and sin; pairs are halves of the last axis apart, or neighbours."""
    return Rotary(interleaved)
