"""The numbers of a walk: a quantised block, a sub-tile's codes after each K block, and the errors at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.errors import MeshwrightError
from meshwright.numerics import fp22, mxfp7
from meshwright.numerics.twin.mxfp7 import scale_value
from meshwright.report.walk_cluster import Drained, Filled, Swept
from meshwright.targets.ktpu.isa.cluster import SIDES
from meshwright.targets.ktpu.layout import K_BLOCK, SUB_TILE

Seen: TypeAlias = Filled | Swept | Drained


class QuantisedEntry(Struct, frozen=True):
    """An entry of L1 and where it came from. Row 0 of it: 32 fp16 bits in, elements and scale field out.

    side: A or B. address: of its first byte in memory. words: the whole entry as L1 packs it, 4 words of 32 bytes, each
    with the scale fields of rows 3 to 0 in front.
    """

    side: str
    address: int
    halves: tuple[int, ...]
    elements: tuple[int, ...]
    scale: int
    scales: tuple[int, ...]
    words: tuple[bytes, ...]

    @property
    def scale_value(self) -> float:
        """What an element counts: 2^es m8 / 8."""
        return float(scale_value(np.array(self.scale, np.uint8)))

    @property
    def values(self) -> tuple[float, ...]:
        """The fp16 values that came in."""
        return tuple(np.array(self.halves, np.uint16).view(np.float16).astype(float).tolist())


def quantised(seen: Filled, memory: bytes) -> QuantisedEntry:
    """An entry that a FILL brought in, beside the 256 bytes that it was made of.

    Raises `MeshwrightError` where L1 holds something else than the format says: one of the two is wrong.
    """
    halves = np.frombuffer(memory, np.uint16).reshape(SUB_TILE, K_BLOCK)
    blocks = mxfp7.quantise(halves)
    if not (np.array_equal(blocks.q, seen.q) and np.array_equal(blocks.scale[:, 0], seen.scale)):
        raise _disagree(f"the entry filled from {seen.word.addr:#x}", "L1", "mxfp7.quantise")
    words = mxfp7.pack_words(blocks)[0, 0]
    return QuantisedEntry(
        SIDES[seen.word.sel],
        seen.word.addr,
        tuple(map(int, halves[0])),
        tuple(map(int, seen.q[0])),
        int(seen.scale[0]),
        tuple(map(int, seen.scale)),
        tuple(word.tobytes() for word in words),
    )


class Step(Struct, frozen=True):
    """Sub-tile 0 after one more K block, element by element in rows of 4; and what came to it for element (0, 0).

    sweep: the GEMM that it is part of. dot: the exact sum of 32 products of elements. scale_a, scale_b: fields.
    value: the code that is added.
    """

    block: int
    sweep: int
    dot: int
    scale_a: int
    scale_b: int
    value: int
    codes: tuple[int, ...]


class SubTile(Struct, frozen=True):
    """A sub-tile from its first K block to its drain; halves: the fp16 bits that were written, in rows of 4."""

    steps: tuple[Step, ...]
    halves: tuple[int, ...]


def sub_tile(seen: Sequence[Seen]) -> SubTile:
    """Sub-tile 0 of the first tile, out of what the cluster read from L1.

    The codes between the first and the last K block of a sweep are nowhere to be seen, so they are added up here, in
    the order of the machine. Raises `MeshwrightError` where that isn't what the accumulator held after each sweep, or
    what was drained.
    """
    sweeps = [one for one in seen if isinstance(one, Swept)]
    steps: list[Step] = []
    codes = np.zeros((SUB_TILE, SUB_TILE), np.uint32)
    for sweep, one in enumerate(sweeps):
        made, codes = _blocks(one, sweep, len(steps), codes)
        steps += made
        if not np.array_equal(codes, one.codes):
            raise _disagree(f"sub-tile 0 after GEMM {sweep} of {len(sweeps)}", "the accumulator", "fp22.add")
    halves = next(one.halves for one in seen if isinstance(one, Drained))
    if not np.array_equal(fp22.drain(codes).view(np.uint16), halves):
        raise _disagree("sub-tile 0 as it was drained", "the cluster", "fp22.drain")
    return SubTile(tuple(steps), tuple(map(int, halves.reshape(-1))))


def _blocks(swept: Swept, sweep: int, first: int, codes: NDArray[np.uint32]) -> tuple[list[Step], NDArray[np.uint32]]:
    """Each K block of a sweep, and the codes after the last; codes: those before the sweep."""
    a, b = swept.a, swept.b
    steps: list[Step] = []
    for block in range(swept.word.nk):
        columns = slice(block * K_BLOCK, (block + 1) * K_BLOCK)
        dots = a.q[:, columns].astype(np.int32) @ b.q[:, columns].astype(np.int32).T
        scale_a, scale_b = a.scale[:, block], b.scale[:, block]
        values = fp22.block_value(dots, scale_a[:, None], scale_b[None, :], swept.word.anchor)
        opens = block == 0 and not swept.word.acc
        codes = fp22.open_tile(values) if opens else fp22.add(codes, values)
        found = int(dots[0, 0]), int(scale_a[0]), int(scale_b[0]), int(values[0, 0])
        steps.append(Step(first + block, sweep, *found, tuple(map(int, codes.reshape(-1)))))
    return steps, codes


def _disagree(what: str, one: str, other: str) -> MeshwrightError:
    return MeshwrightError(
        f"{what}: {one} of the simulated card and {other} don't agree. One of them computes what the card doesn't; "
        "please report it with this command line"
    )


class Comparison(Struct, frozen=True):
    """The result that was read back, held against the evaluator's bits and against float64.

    different: elements whose bits differ from the evaluator's. median, tenth: relative errors that half, and nine
    tenths, of the elements don't exceed; elements whose float64 is 0 are left out. share, largest: the difference, its
    rms and the largest, as a share of float64's rms. elements: row, column, fp16 bits and float64 of the first ones.
    """

    count: int
    different: int
    median: float
    tenth: float
    share: float
    largest: float
    elements: tuple[tuple[int, int, int, float], ...]


def compared(
    found: NDArray[np.float16], evaluated: NDArray[np.float16], a: NDArray[np.float16], b: NDArray[np.float16]
) -> Comparison:
    """found, evaluated: `[m, n]`; a `[m, k]` and b `[n, k]`, whose product in float64 is the reference."""
    wide = a.astype(np.float64) @ b.astype(np.float64).T
    off = np.abs(found.astype(np.float64) - wide)
    relative = (off[wide != 0] / np.abs(wide[wide != 0])) if wide.any() else np.zeros(1)
    scale = float(np.sqrt(np.mean(wide**2)))
    first = [(0, column) for column in range(min(4, wide.shape[1]))]
    return Comparison(
        count=found.size,
        different=int((found.view(np.uint16) != evaluated.view(np.uint16)).sum()),
        median=float(np.quantile(relative, 0.5)),
        tenth=float(np.quantile(relative, 0.9)),
        share=float(np.sqrt(np.mean(off**2))) / scale if scale else 0.0,
        largest=float(off.max()) / scale if scale else 0.0,
        elements=tuple(
            (row, column, int(found.view(np.uint16)[row, column]), float(wide[row, column])) for row, column in first
        ),
    )
