"""Address descriptors of a vector core as a program sets them, and what they walk."""

from __future__ import annotations

from itertools import islice, product
from math import prod
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from meshwright.targets.ktpu.isa.payload import Desc

DIMENSIONS: Final = 4


class Descriptor(Struct, frozen=True):
    """Base, and stride and bound of each dimension, the innermost first; as after reset unless stated."""

    base: int = 0
    strides: tuple[int, ...] = (0,) * DIMENSIONS
    bounds: tuple[int, ...] = (1,) * DIMENSIONS

    def changed(self, desc: Desc) -> Descriptor:
        """After `desc`; a bound of 0 means 1."""
        if desc.fld == 0:
            return replace(self, base=desc.value)
        dim = desc.fld - 1
        stride, bound = desc.stride_and_bound
        strides, bounds = list(self.strides), list(self.bounds)
        strides[dim], bounds[dim] = stride, bound or 1
        return replace(self, strides=tuple(strides), bounds=tuple(bounds))

    @property
    def count(self) -> int:
        """Steps of the whole walk."""
        return prod(self.bounds)

    def walk(self, steps: int) -> list[int]:
        """The first addresses, base included; there are `count` at most."""
        ranges = [range(bound) for bound in reversed(self.bounds)]
        strides = tuple(reversed(self.strides))
        return [
            self.base + sum(index * stride for index, stride in zip(indices, strides, strict=True))
            for indices in islice(product(*ranges), steps)
        ]
