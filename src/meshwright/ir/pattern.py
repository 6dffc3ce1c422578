"""Access patterns: which box of a tensor block number `t` is. Data; what they mean is written in `boxes`."""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import force_setattr

from meshwright.errors import GraphError
from meshwright.ir.ids import BufferId


class Loop(Struct, frozen=True, forbid_unknown_fields=True):
    """One loop of a nest: how often it turns, and how far each tensor axis moves a turn (0 reads the same again)."""

    extent: int
    stride: tuple[int, ...]


class Affine(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="pattern", tag="affine"):
    """Block `t` is the box at `offset` plus each loop's index times its stride, loops outermost first.

    offset: the first box's corner, one number a tensor axis; negative ones reach before the tensor.
    box: how many elements along each tensor axis; without its size-1 axes it is the block's shape (or, where the
        block has as many axes, equal to it).
    loops: the nest; `t` counts the innermost loop fastest. No loops: one block.
    step: distance between neighbouring elements of the box along each axis; empty for 1 everywhere.
    pad: what a load reads outside the tensor (convolution halos, ragged edges), a finite number; None: nothing may be
        outside. A store cuts off what lies outside where `pad` is given.

    Raises `GraphError` for a pad that is no finite number: JSON has none for the others.
    """

    offset: tuple[int, ...]
    box: tuple[int, ...]
    loops: tuple[Loop, ...] = ()
    step: tuple[int, ...] = ()
    pad: float | None = None

    def __post_init__(self) -> None:
        if self.pad is None:
            return
        if not math.isfinite(self.pad):
            raise GraphError(
                f"Affine(pad={self.pad}): a pad is a finite number. For a maximum or minimum over a halo use one that "
                "no element passes."
            )
        # Adding zero makes the negative zero the positive one: they are equal, and equal patterns give equal bytes.
        force_setattr(self, "pad", float(self.pad) + 0.0)

    @property
    def num_blocks(self) -> int:
        """How many blocks the nest makes."""
        return math.prod(loop.extent for loop in self.loops)

    @property
    def steps(self) -> tuple[int, ...]:
        """The element step along each axis, written out."""
        return self.step or (1,) * len(self.box)

    def corner(self, t: int) -> tuple[int, ...]:
        """Where the box of block `t` begins, one number a tensor axis."""
        position = list(self.offset)
        for loop in reversed(self.loops):
            t, index = divmod(t, loop.extent)
            position = [p + index * s for p, s in zip(position, loop.stride, strict=True)]
        return tuple(position)


class Gather(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="pattern", tag="gather"):
    """An affine pattern whose positions along one axis are looked up: embeddings, paged caches, expert routing.

    base: the pattern for all other axes; along `axis` its box says how many indices a block takes and its corner and
        step are not used.
    axis: the tensor axis that is looked up.
    index: the buffer that holds the indices, one block of `base.box[axis]` whole numbers for each block.
    origin: what the index of the first row held here is: a rank that holds rows 8 to 15 of a table has origin 8.
        Rows that aren't held read `base.pad`, and without a pad are refused.
    """

    base: Affine
    axis: int
    index: BufferId
    origin: int = 0

    @property
    def num_blocks(self) -> int:
        """How many blocks the base nest makes."""
        return self.base.num_blocks


AccessPattern = Affine | Gather


def affine_of(pattern: AccessPattern) -> Affine:
    """The affine pattern itself, or the one under a gather."""
    return pattern if isinstance(pattern, Affine) else pattern.base


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without its size-1 axes."""
    return tuple(size for size in shape if size != 1)


def box_fits_block(box: tuple[int, ...], block: tuple[int, ...]) -> bool:
    """Whether a box holds a block's elements in the block's order: equal but for size-1 axes."""
    return squeezed(box) == squeezed(block)
