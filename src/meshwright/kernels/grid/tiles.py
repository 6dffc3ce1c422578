"""Blocks of products on a rectangle of sites, and what is asked of stated ones."""

from __future__ import annotations

import math
from typing import Final

from meshwright.errors import KernelError
from meshwright.kernels.placement import Placement

Tile = tuple[int, int, int]

_SIDE: Final = 128
"""Rows and columns of an output block by default, at most."""
_DEEP: Final = 256
"""K of a block by default, at most: short steps, so that loading and multiplying overlap."""


def unit_tile(placement: Placement) -> Tile:
    """The smallest block (m, n, k) that the engine works on."""
    return placement.matmul_tile(1, 1, 1)


def up(value: int, multiple: int) -> int:
    """`value` rounded up to a multiple."""
    return math.ceil(value / multiple) * multiple


def tile_for(stated: Tile | None, placement: Placement, m: int, n: int, k: int) -> Tile:
    """The stated block, checked; or one for a site's share of m x n outputs over K in even parts."""
    if stated is not None:
        placement.check_tile(stated)
        return stated
    units = unit_tile(placement)
    rows, columns = (min(up(_SIDE, unit), up(size, unit)) for size, unit in ((m, units[0]), (n, units[1])))
    blocks = math.ceil(k / units[2])
    deep = units[2] * math.ceil(blocks / math.ceil(blocks / max(1, _DEEP // units[2])))
    placement.check_tile((rows, columns, deep))
    return rows, columns, deep


def require_depth(name: str, depth: int) -> None:
    """Raises `KernelError` for a FIFO without blocks."""
    if depth < 1:
        raise KernelError(f"{name}(depth={depth}): a FIFO holds at least one block; two let filling and taking overlap")
