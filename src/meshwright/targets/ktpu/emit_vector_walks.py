"""Walks of a vector core's descriptors over words of memory that are to be read or written in a given order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from meshwright.targets.ktpu.isa.descriptors import DIMENSIONS

STRIDES: Final = range(-(1 << 17), 1 << 17)
"""Steps that a dimension can make, in bytes: 18 bits, signed."""


class Walk(Struct, frozen=True):
    """`count` words of a load or store from L1 word `l1` on; in memory from `first` bytes after its first row on.

    dims: (stride, bound) of each dimension, the innermost first.
    """

    move: int
    l1: int
    first: int
    count: int
    dims: tuple[tuple[int, int], ...]


def walks_over(move: int, l1: int, addresses: Sequence[int], most: int) -> list[Walk]:
    """Walks of at most `most` words, one after the other, over all the addresses in their order."""
    found: list[Walk] = []
    at = 0
    while at < len(addresses):
        dims, count = _longest(addresses[at : at + most])
        found.append(Walk(move, l1 + at, addresses[at], count, dims))
        at += count
    return found


def _longest(addresses: Sequence[int]) -> tuple[tuple[tuple[int, int], ...], int]:
    """The dimensions of a walk from the first address on, each as long as it can be, and how many words it covers."""
    dims: list[tuple[int, int]] = []
    count = 1
    while len(dims) < DIMENSIONS and 2 * count <= len(addresses):
        stride = addresses[count] - addresses[0]
        bound = 1
        while (bound + 1) * count <= len(addresses) and all(
            addresses[bound * count + i] == addresses[i] + bound * stride for i in range(count)
        ):
            bound += 1
        if bound == 1 or stride not in STRIDES:
            break
        dims.append((stride, bound))
        count *= bound
    return tuple(dims), count
