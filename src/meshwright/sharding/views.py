"""A value seen with another shape: the same elements in the same order, every rank's piece where it is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from meshwright.errors import SplitError
from meshwright.ir.build import GraphBuilder
from meshwright.ir.ids import StageId
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.spec import Spec
from meshwright.kernels.blocks import dividing
from meshwright.kernels.kernel import Contraction, Piece, Shaped, UnitKind
from meshwright.kernels.move import BLOCK_ELEMENTS
from meshwright.kernels.placement import Placement
from meshwright.machine import MachineSpec
from meshwright.sharding.builder import PlanBuilder
from meshwright.sharding.plan import Plan
from meshwright.sharding.steps import Ref
from meshwright.sharding.value import Sharded


class Reshape(Struct, frozen=True):
    """One piece laid out in `shape`, elements in row-major order as before."""

    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """What plans call it."""
        return "reshape"

    @property
    def unit(self) -> UnitKind:
        """The mover."""
        return "mover"

    def result(self, operands: Sequence[Shaped]) -> Shaped:
        """The shape that is asked for."""
        return Shaped(self.shape, operands[0].format)

    def axes(self, operands: Sequence[Shaped]) -> tuple[tuple[int | None, ...], ...]:
        """None goes along by itself; `plan_reshape` says which split survives."""
        return ((None,) * len(operands[0].shape),)

    def contractions(self, operands: Sequence[Shaped]) -> tuple[Contraction, ...]:
        """None."""
        return ()

    def linear_in(self, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
        """Moving is linear."""
        return True

    def emit(
        self, builder: GraphBuilder, placement: Placement, operands: Sequence[Piece], result: Piece
    ) -> tuple[StageId, ...]:
        """Runs that lie in a row on both sides, one after another."""
        (source,) = operands
        common = math.gcd((1, *source.shape)[-1], (1, *result.shape)[-1])
        run = dividing(common, BLOCK_ELEMENTS)
        fifo = builder.fifo(placement.mover_site(), (run,), builder.element_type(source.tensor))
        builder.load(source.tensor, _runs(source.shape, run), fifo, source.rank, source.ready)
        return (builder.store(result.tensor, _runs(result.shape, run), fifo, result.rank),)


def _runs(shape: Sequence[int], run: int) -> Affine:
    """The elements of `shape` in row-major order, `run` at a time."""
    last = len(shape) - 1
    box = tuple(run if axis == last else 1 for axis in range(len(shape)))
    loops = [
        Loop(size // box[axis], tuple(box[axis] if a == axis else 0 for a in range(len(shape))))
        for axis, size in enumerate(shape)
    ]
    return Affine((0,) * len(shape), box, tuple(loops))


def plan_reshape(machine: MachineSpec, value: Sharded, shape: Sequence[int], hosts: Sequence[int]) -> Plan:
    """The value with another shape, nothing moved between meshes.

    A split survives if its axis begins where an axis of the new shape does, and that one divides by the ranks: then
    every rank's piece is a slice of it. Raises `SplitError` where it doesn't, or for another number of elements.
    """
    wanted = tuple(shape)
    asked = f"reshape: {value} seen as {list(wanted)}"
    if math.prod(wanted) != math.prod(value.shape) or any(size < 0 for size in wanted):
        raise SplitError(
            f"{asked}: it has {math.prod(value.shape)} elements, and that shape holds {math.prod(wanted)}; state one "
            "that holds as many"
        )
    specs: list[Spec] = []
    remaining = wanted
    outer: dict[int, int] = {}
    for spec, count in zip(value.specs, value.ranks.grid, strict=True):
        kept = spec if spec.axis is None or count == 1 else _surviving(asked, value, wanted, spec.axis, count, outer)
        specs.append(kept)
        if kept.axis is not None and count > 1:
            outer[kept.axis] = outer.get(kept.axis, 1) * count
        elif kept.axis is not None:
            specs[-1] = Spec()
        remaining = specs[-1].local(remaining, count)
    build = PlanBuilder(machine, hosts, (value,), ("value",))
    into = build.slot("reshaped", Shaped(wanted, value.format), specs, value.ranks)
    for rank in range(len(value.meshes)):
        build.step(rank, Reshape(remaining), [Ref(0, rank)], Ref(into, rank))
    return build.plan(value.ranks, into, "every rank's piece stays where it is")


def _surviving(
    asked: str, value: Sharded, wanted: tuple[int, ...], axis: int, count: int, outer: dict[int, int]
) -> Spec:
    before = math.prod(value.shape[:axis])
    starts = [math.prod(wanted[:a]) for a in range(len(wanted))]
    begins = [a for a, start in enumerate(starts) if start == before and wanted[a] > 1]
    if begins and wanted[begins[0]] % (count * outer.get(begins[0], 1)) == 0:
        return Spec.on(begins[0])
    if not begins:
        why = f"axis {axis} begins after every {before} elements' worth of outer axes, where no axis of that shape does"
    else:
        why = f"axis {begins[0]} of that shape, which begins where axis {axis} does, has {wanted[begins[0]]} elements"
        why += f" and isn't a multiple of {count * outer.get(begins[0], 1)}"
    raise SplitError(
        f"{asked}: the split on axis {axis} doesn't survive: {why}; slices of one would not be slices of the other. "
        "Bring the slices together first: group.reshape(group.reshard(value, COPIED), shape)"
    )
