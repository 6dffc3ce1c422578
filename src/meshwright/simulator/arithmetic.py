"""The sweeps and fills of a cluster by the kernels of `numerics`.

`product.matmul` and `mxfp7.quantise` check and convert what users hand them, which takes as long as a small sweep. Here
shapes and types are known, so the same compiled kernels are called with nothing in between; without them the checked
functions run in numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from meshwright.numerics import fp22, mxfp7, product
from meshwright.numerics.backend import compiled, resolve, resolve_threads
from meshwright.simulator.operands import Operand, Segment

Codes = NDArray[np.uint32]
Names = NDArray[np.int32]

ROWS: Final = 4
BLOCK: Final = mxfp7.BLOCK
ENTRY_BYTES: Final = ROWS * BLOCK * 2
"""An L1 entry as fp16."""
_FIRST: Final = np.zeros(1, dtype=np.int64)


class Kernels:
    """The kernels of one card, chosen when it is made. threads: None takes all cores."""

    def __init__(self, threads: int | None = None) -> None:
        self._backend = resolve(None)
        self._threads = resolve_threads(threads)
        self._module = None if self._backend == "numpy" else compiled("_matrix")

    @property
    def compiled(self) -> bool:
        """Whether they are; without that every instruction is executed by itself, in numpy."""
        return self._module is not None

    def quantise_entries(self, data: NDArray[np.uint8]) -> tuple[NDArray[np.int8], NDArray[np.uint8]]:
        """Elements `[n, 4, 32]` and scales `[n, 4]` of n entries of fp16, 256 bytes each."""
        bits = data.view(np.uint16).reshape(-1, BLOCK)
        if self._module is None:
            blocks = mxfp7.quantise(bits, backend=self._backend)
            return blocks.q.reshape(-1, ROWS, BLOCK), blocks.scale.reshape(-1, ROWS)
        q = np.empty(bits.shape, dtype=np.int8)
        scale = np.empty((len(bits), 1), dtype=np.uint8)
        self._module.quantise(self._backend, bits, q, scale, self._threads)
        return q.reshape(-1, ROWS, BLOCK), scale.reshape(-1, ROWS)

    def sweep(self, a: Operand, b: Operand, start: Codes | None) -> Codes:
        """Accumulator codes `[M, N]` after `a` `[M, K]` times `b` `[N, K]`, continuing `start` `[M, N]` if given."""
        if self._module is None:
            left, right = (mxfp7.Blocks(operand.q, operand.scale) for operand in (a, b))
            return product.matmul(left, right, start=start, backend=self._backend)
        out = np.empty((1, len(a.q), len(b.q)), dtype=np.uint32)
        self._module.matmul(
            self._backend,
            a.q[None],
            a.scale[None],
            b.q[None],
            b.scale[None],
            _FIRST,
            _FIRST,
            None if start is None else start[None],
            out,
            self._threads,
        )
        return out[0]

    def tiles(
        self, segments: Sequence[Segment], a: Names, b: Names, pairs: tuple[NDArray[np.int64], NDArray[np.int64]]
    ) -> NDArray[np.uint16]:
        """Drained sub-tiles, fp16 bits `[T, gm * gn, 4, 4]`, of T products that open their tiles.

        a, b: entries by name, int32 `[A, gm, blocks]` and `[B, gn, blocks]`: the segment's place in `segments` times
        256, plus the entry's number in it. pairs: for each product, which of `a` and of `b`.
        """
        gm, gn = a.shape[1], b.shape[1]
        out = np.empty((len(pairs[0]), gm * gn, ROWS, ROWS), dtype=np.uint16)
        if self._module is None:
            for at, (left, right) in enumerate(zip(*pairs, strict=True)):
                codes = self.sweep(_side(segments, a[left]), _side(segments, b[right]), None)
                tiles = self.drained(codes).reshape(gm, ROWS, gn, ROWS).transpose(0, 2, 1, 3)
                out[at] = tiles.reshape(gm * gn, ROWS, ROWS)
            return out
        q, scale = [segment.q for segment in segments], [segment.scale for segment in segments]
        self._module.matmul_entries(self._backend, q, scale, a, b, *pairs, out, self._threads)
        return out

    def drained(self, codes: Codes) -> NDArray[np.uint16]:
        """fp16 bits of accumulator codes, saturating."""
        if self._module is None:
            return fp22.drain(codes, backend=self._backend).view(np.uint16)
        out = np.empty(codes.shape, dtype=np.uint16)
        self._module.drain(self._backend, codes.reshape(-1), out.reshape(-1), self._threads)
        return out


def _side(segments: Sequence[Segment], names: Names) -> Operand:
    """The rows that entries by name are: names int32 `[groups, blocks]`."""
    groups, blocks = names.shape
    entries = [(segments[name >> 8], name & 255) for name in names.reshape(-1).tolist()]
    q = np.stack([segment.q[at] for segment, at in entries]).reshape(groups, blocks, ROWS, BLOCK)
    scale = np.stack([segment.scale[at] for segment, at in entries]).reshape(groups, blocks, ROWS)
    return Operand(
        np.ascontiguousarray(q.transpose(0, 2, 1, 3)).reshape(groups * ROWS, blocks * BLOCK),
        np.ascontiguousarray(scale.transpose(0, 2, 1)).reshape(groups * ROWS, blocks),
    )


def anchored_sweep(a: Operand, b: Operand, start: Codes | None, anchor: int) -> Codes:
    """`Kernels.sweep` with another anchor than the standard one, block after block; the first opens the tile."""
    tile = start
    for block in range(a.scale.shape[1]):
        columns = slice(block * BLOCK, (block + 1) * BLOCK)
        # A sum of 32 products of 7-bit elements is exact in float32, whose product is by far the fastest.
        dot = (a.q[:, columns].astype(np.float32) @ b.q[:, columns].astype(np.float32).T).astype(np.int32)
        value = fp22.block_value(dot, a.scale[:, block, None], b.scale[None, :, block], anchor)
        tile = fp22.open_tile(value) if tile is None else fp22.add(tile, value)
    if tile is None:
        raise AssertionError("a sweep has at least one block")
    return tile
