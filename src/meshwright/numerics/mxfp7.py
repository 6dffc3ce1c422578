"""MXFP7 blocks: 32 consecutive values of a row as 7-bit elements with one scale, as the machine makes them.

A scale field `(es + 20) << 3 | (m8 - 8)` stands for `2^es * m8 / 8`; an element is an integer in -64..63, of
which the quantiser uses -63..63. Source: RTL vectors in tests/golden/quantise.npz.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import NumericsError
from meshwright.numerics.backend import compiled, resolve, resolve_threads
from meshwright.numerics.twin import mxfp7 as twin

BLOCK = twin.BLOCK
"""Values that share a scale: 32."""

FP16 = NDArray[np.float16] | NDArray[np.uint16]
"""fp16 values, or their bit patterns as uint16."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """A quantised array: elements `q` int8 `[..., K]` in -64..63 and `scale` uint8 `[..., K // 32]`.

    K is a multiple of 32. Raises `NumericsError` when types, shapes or elements don't fit.
    """

    q: NDArray[np.int8]
    scale: NDArray[np.uint8]

    def __post_init__(self) -> None:
        found = f"q {described(self.q)} and scale {described(self.scale)}"
        if self.q.dtype != np.int8 or self.scale.dtype != np.uint8:
            raise NumericsError(f"Blocks: got {found}; needed are q int8 and scale uint8")
        if self.q.ndim == 0 or self.q.shape[-1] % BLOCK:
            raise NumericsError(
                f"Blocks: got {found}; the last axis of q must be whole blocks of {BLOCK}: "
                "mxfp7.quantise(x) pads with zeros"
            )
        if self.scale.shape != (*self.q.shape[:-1], self.q.shape[-1] // BLOCK):
            raise NumericsError(f"Blocks: got {found}; scale needs the shape of q with K // {BLOCK} as last axis")
        if self.q.size and (self.q.min() < -64 or self.q.max() > 63):
            raise NumericsError(f"Blocks: q has elements from {self.q.min()} to {self.q.max()}; 7 bits hold -64 to 63")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array that the blocks stand for, `[..., K]`, K with its padding."""
        return self.q.shape


def described(array: NDArray[Any]) -> str:
    """An array as error messages name it: dtype and shape."""
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def fp16_array(x: NDArray[Any], call: str, name: str) -> FP16:
    """Operand `name` of `call`, fp16 values or bits, contiguous.

    Raises `NumericsError` for another dtype or for an array without axes.
    """
    array: NDArray[Any] = np.asarray(x)
    if array.dtype not in (np.dtype(np.float16), np.dtype(np.uint16)):
        raise NumericsError(
            f"{call}: `{name}` is {described(array)}; needed are fp16 values (float16) or their "
            f"bits (uint16): {name}.astype(np.float16) rounds to fp16"
        )
    if array.ndim == 0:
        raise NumericsError(f"{call}: `{name}` is {described(array)}; it needs an axis to block: {name}[None]")
    return np.ascontiguousarray(array)


def padded(k: int) -> int:
    """`k` rounded up to whole blocks."""
    return -(-k // BLOCK) * BLOCK


def quantise(x: FP16, *, backend: str | None = None, threads: int | None = None) -> Blocks:
    """Quantise fp16 values or bits `[..., K]` to `Blocks`, K padded with zeros to a multiple of 32.

    inf and NaN are ordinary values with exponent field 31, as in the machine.
    Raises `NumericsError` for another dtype.
    """
    bits = fp16_array(x, "quantise", "x").view(np.uint16)
    which = resolve(backend)
    *outer, k = bits.shape
    if which == "numpy":
        wide = np.zeros((*outer, padded(k)), dtype=np.uint16)
        wide[..., :k] = bits
        return Blocks(*twin.quantise(wide))
    q = np.empty((*outer, padded(k)), dtype=np.int8)
    scale = np.empty((*outer, padded(k) // BLOCK), dtype=np.uint8)
    if q.size:
        rows = q.size // q.shape[-1]
        compiled("_matrix").quantise(
            which,
            bits.reshape(rows, k),
            q.reshape(rows, -1),
            scale.reshape(rows, -1),
            resolve_threads(threads),
        )
    return Blocks(q, scale)


def dequantise(blocks: Blocks) -> NDArray[np.float64]:
    """The real values `[..., K]` that `blocks` stand for, exactly; K with its padding."""
    return twin.dequantise(blocks.q, blocks.scale)


def pack_words(blocks: Blocks) -> NDArray[np.uint8]:
    """The 32-byte words of pre-quantised L1 entries: blocks of `[R, K]` to uint8 `[R // 4, K // 32, 4, 32]`.

    An entry is four rows by 32 of K. Source: `packed_words_a` in tests/golden/quantise.npz.
    Raises `NumericsError` unless there are two axes and R is a multiple of 4.
    """
    if blocks.q.ndim != 2 or blocks.q.shape[0] % 4:
        raise NumericsError(
            f"pack_words: blocks of shape {list(blocks.shape)}; an entry is four rows by {BLOCK}, so "
            "needed are two axes and rows in fours: pad the rows with zeros before quantise"
        )
    return twin.pack_words(blocks.q, blocks.scale)


def unpack_words(words: NDArray[np.uint8]) -> Blocks:
    """Blocks of `[R, K]` from the words uint8 `[R // 4, K // 32, 4, 32]` of `pack_words`.

    Raises `NumericsError` for another dtype or shape, or when the words of an entry disagree on its scales.
    """
    if words.dtype != np.uint8 or words.ndim != 4 or words.shape[2:] != (4, 32):
        raise NumericsError(f"unpack_words: got {described(words)}; needed is uint8[groups, blocks, 4, 32]")
    scales = words[..., :4]
    differ = (scales != scales[:, :, :1]).any(axis=(2, 3))
    if differ.any():
        group, block = (int(index) for index in np.argwhere(differ)[0])
        raise NumericsError(
            f"unpack_words: the words of group {group}, block {block} carry different scales "
            f"{scales[group, block].tolist()}; the four words of an entry repeat the scales of its four rows"
        )
    return Blocks(*twin.unpack_words(words))
