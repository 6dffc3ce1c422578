"""The resident tiles of a cluster.

Tile memory has no reset: a sub-tile that nobody opened holds what was last there, on a card that nobody knows. So for
each sub-tile it is known whether it was ever opened, and whatever reads or adds into one that was not is reported.

Sweeps are put off until their result is looked at, so that sweeps that continue each other become one product: blocks
are added in ascending order, so the grouping of blocks into sweeps changes no bit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.numerics import fp22
from meshwright.numerics.fp22 import STANDARD_ANCHOR
from meshwright.simulator.arithmetic import Kernels, anchored_sweep
from meshwright.simulator.faults import undefined
from meshwright.simulator.operands import Operands, Part

SIDE: Final = 4
"""Rows and columns of a sub-tile."""
CODE_BITS: Final = 22
GRANULES: Final = 2
"""Granules of a sub-tile of accumulator codes."""
_ROW: Final = np.dtype(np.complex128)
"""Four codes as one number of 16 bytes, only ever moved: numpy moves it several times as fast as four."""
_MOST_BLOCKS: Final = 256
"""K blocks of sweeps that are put off; more would only hold operands in memory."""

Codes = NDArray[np.uint32]


class Sweeps(Struct):
    """Sweeps over one grid of sub-tiles that continue each other and are put off.

    opens: whether the first overwrites the tile. drained: somebody has looked at the sum since the last of them, so
    that a sweep that continues it begins with it.
    """

    grid: tuple[int, int]
    opens: bool
    a: list[Part]
    b: list[Part]
    blocks: int
    drained: bool = False

    @property
    def count(self) -> int:
        """Sub-tiles of the grid."""
        return self.grid[0] * self.grid[1]


class Accumulator:
    """`tiles` sub-tiles of 4 x 4 codes; none is opened at first."""

    def __init__(self, tiles: int, operands: Operands, kernels: Kernels) -> None:
        self._codes = np.zeros((tiles, SIDE, SIDE), dtype=np.uint32)
        # Sweeps start at sub-tile 0, so those that were ever opened are the first ones.
        self._opened = 0
        self._operands = operands
        self._kernels = kernels
        self.put_off: list[Sweeps] = []
        """In the order of execution; each covers fewer sub-tiles than the one before it."""

    def __len__(self) -> int:
        return len(self._codes)

    @property
    def opened(self) -> int:
        """Sub-tiles that were ever opened: the first ones."""
        return self._opened

    def put_off_instead(self, sweeps: list[Sweeps], opened: int) -> None:
        """What is put off after a run of instructions, and how many sub-tiles were ever opened by then."""
        self.put_off = sweeps
        self._opened = opened

    def _check(self, first: int, count: int, what: str) -> None:
        if first + count > len(self):
            raise undefined(f"sub-tiles {first} to {first + count - 1}: the accumulator has {len(self)}")
        if first + count > self._opened:
            raise undefined(
                f"{what} sub-tile {max(first, self._opened)}, which no GEMM opened: tile memory has no reset, so it "
                "holds whatever was last there"
            )

    def sweep(self, grid: tuple[int, int], a: Part, b: Part, *, opens: bool, anchor: int = STANDARD_ANCHOR) -> None:
        """A sweep over sub-tiles 0 to `gm * gn - 1`; trouble where it continues one that nobody opened."""
        count = grid[0] * grid[1]
        if not opens and anchor == STANDARD_ANCHOR and self._continue(grid, a, b):
            return
        if opens:
            if count > len(self):
                raise undefined(f"sub-tiles 0 to {count - 1}: the accumulator has {len(self)}")
            self._opened = max(self._opened, count)
        else:
            self._check(0, count, "a sweep continues")
        if anchor != STANDARD_ANCHOR:
            self._settle()
            start = None if opens else self._grid(grid)
            self._store(grid, anchored_sweep(self._operands.of([a]), self._operands.of([b]), start, anchor))
            return
        # What a sweep overwrites whole before anybody looked at it need not be computed.
        while opens and self.put_off and self.put_off[-1].count <= count:
            self.put_off.pop()
        self._settle()
        self.put_off = [Sweeps(grid, opens, [a], [b], a.blocks)]

    def _continue(self, grid: tuple[int, int], a: Part, b: Part) -> bool:
        """Put the sweep off behind those before it, where it continues their sum and nobody has looked at that."""
        last = self.put_off[-1] if self.put_off else None
        if last is None or last.grid != grid or last.drained or last.blocks >= _MOST_BLOCKS:
            return False
        last.a.append(a)
        last.b.append(b)
        last.blocks += a.blocks
        return True

    def add(self, first: int, granules: NDArray[np.uint8]) -> None:
        """Peer add: granules uint8 `[2 * n, 32]` into sub-tiles `first` on; trouble where nobody opened one."""
        codes = unpack(granules)
        self._check(first, len(codes), "codes of a peer are added into")
        self._settle()
        tiles = self._codes[first : first + len(codes)]
        tiles[...] = fp22.add(tiles, codes)

    def halves(self, count: int) -> NDArray[np.uint16]:
        """Sub-tiles 0 to `count - 1` as saturating fp16 bits `[count, 4, 4]`; trouble where nobody opened one."""
        self._check(0, count, "a drain reads")
        self._settle()
        return self._kernels.drained(self._codes[:count])

    def granules(self, count: int) -> NDArray[np.uint8]:
        """Sub-tiles 0 to `count - 1` as granules uint8 `[2 * count, 32]`; trouble where nobody opened one."""
        self._check(0, count, "a drain reads")
        self._settle()
        return pack(self._codes[:count])

    def codes(self) -> Codes:
        """A copy of the codes `[opened, 4, 4]` of the sub-tiles that were ever opened: for looking at."""
        self._settle()
        return self._codes[: self._opened].copy()

    def _settle(self) -> None:
        layers, self.put_off = self.put_off, []
        for sweeps in layers:
            start = None if sweeps.opens else self._grid(sweeps.grid)
            a, b = self._operands.of(sweeps.a), self._operands.of(sweeps.b)
            self._store(sweeps.grid, self._kernels.sweep(a, b, start))

    def _grid(self, grid: tuple[int, int]) -> Codes:
        """The codes of a grid's sub-tiles as one matrix."""
        gm, gn = grid
        rows = self._codes[: gm * gn].view(_ROW).reshape(gm, gn, SIDE)
        return np.ascontiguousarray(rows.transpose(0, 2, 1)).view(np.uint32).reshape(gm * SIDE, gn * SIDE)

    def _store(self, grid: tuple[int, int], codes: Codes) -> None:
        gm, gn = grid
        rows = self._codes[: gm * gn].view(_ROW).reshape(gm, gn, SIDE)
        rows[...] = codes.view(_ROW).reshape(gm, SIDE, gn).transpose(0, 2, 1)


def pack(codes: Codes) -> NDArray[np.uint8]:
    """Codes `[n, 4, 4]` as granules uint8 `[2 * n, 32]`.

    A sub-tile is 352 bits, element (i, j) at bit 22 * (4 * i + j): the low 256 in one granule, the rest, zero-extended,
    in the next. Source: the card's specification of data between units.
    """
    bits = np.unpackbits(
        np.ascontiguousarray(codes).reshape(len(codes), SIDE * SIDE).astype("<u4").view(np.uint8).reshape(-1, 4),
        axis=1,
        bitorder="little",
    )[:, :CODE_BITS]
    packed = np.packbits(bits.reshape(len(codes), SIDE * SIDE * CODE_BITS), axis=1, bitorder="little")
    out = np.zeros((len(codes), 64), dtype=np.uint8)
    out[:, : packed.shape[1]] = packed
    return out.reshape(-1, 32)


def unpack(granules: NDArray[np.uint8]) -> Codes:
    """The codes `[n, 4, 4]` of granules uint8 `[2 * n, 32]`; bits past the 352 are not looked at."""
    count = len(granules) // GRANULES
    rows = np.ascontiguousarray(granules).reshape(count, 64)
    bits = np.unpackbits(rows, axis=1, bitorder="little", count=SIDE * SIDE * CODE_BITS)
    wide = np.zeros((count * SIDE * SIDE, 32), dtype=np.uint8)
    wide[:, :CODE_BITS] = bits.reshape(-1, CODE_BITS)
    return np.packbits(wide, axis=1, bitorder="little").view("<u4").astype(np.uint32).reshape(count, SIDE, SIDE)
