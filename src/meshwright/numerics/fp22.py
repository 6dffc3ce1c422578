"""The FP22 accumulator format `{sign, E7 bias 63, M14}`, codes in the low 22 bits of uint32.

E = 0 is zero; there is no inf, NaN or subnormal; E = 127 is an ordinary exponent. Additions follow the
machine, not IEEE: subtracting with dropped bits and an exact tie rounds up, large sums
saturate and small ones become +0.
Source: RTL vectors in tests/golden/crossmesh.npz and tests/golden/accumulator.npz.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.errors import NumericsError
from meshwright.numerics.backend import compiled, resolve, resolve_threads
from meshwright.numerics.mxfp7 import described
from meshwright.numerics.twin import fp22 as twin

STANDARD_ANCHOR = twin.STANDARD_ANCHOR
"""The anchor field of ordinary programs: 40."""

Codes = NDArray[np.uint32]


def checked_codes(codes: NDArray[Any], call: str, name: str) -> Codes:
    """Operand `name` of `call`; `NumericsError` unless it is codes: uint32 and below 2^22."""
    array: NDArray[Any] = np.asarray(codes)
    if array.dtype != np.uint32:
        raise NumericsError(
            f"{call}: `{name}` is {described(array)}; needed are FP22 codes as uint32: "
            f"fp22.encode({name}) makes codes of real values"
        )
    if array.size and array.max() >> 22:
        raise NumericsError(f"{call}: `{name}` holds {int(array.max()):#x}; an FP22 code has 22 bits")
    return array


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array).reshape(-1)


def _broadcast(call: str, **operands: NDArray[Any]) -> tuple[list[NDArray[Any]], tuple[int, ...]]:
    """The operands at one shape, flat and contiguous, and that shape."""
    try:
        shape = np.broadcast_shapes(*(array.shape for array in operands.values()))
    except ValueError:
        found = ", ".join(f"`{name}` {described(array)}" for name, array in operands.items())
        raise NumericsError(f"{call}: {found}: these shapes don't broadcast to one") from None
    return [_flat(np.broadcast_to(array, shape)) for array in operands.values()], shape


def add(tile: Codes, peer: Codes, *, backend: str | None = None, threads: int | None = None) -> Codes:
    """The machine's sum of `tile` and `peer`, which broadcast; a peer add leaves it in the resident tile.

    Raises `NumericsError` for other dtypes, codes of more than 22 bits, or shapes that don't broadcast.
    """
    (left, right), shape = _broadcast(
        "fp22.add", tile=checked_codes(tile, "fp22.add", "tile"), peer=checked_codes(peer, "fp22.add", "peer")
    )
    which = resolve(backend)
    if which == "numpy":
        return twin.add(left, right).reshape(shape)
    out = np.empty(left.shape, dtype=np.uint32)
    compiled("_matrix").add(which, left, right, out, resolve_threads(threads))
    return out.reshape(shape)


def drain(codes: Codes, *, backend: str | None = None, threads: int | None = None) -> NDArray[np.float16]:
    """fp16 of each code: nearest even, saturating at 65504, signed zero where fp16 would be subnormal.

    Raises `NumericsError` for another dtype or codes of more than 22 bits.
    """
    array = checked_codes(codes, "fp22.drain", "codes")
    which = resolve(backend)
    if which == "numpy":
        return twin.drain(_flat(array)).view(np.float16).reshape(array.shape)
    out = np.empty(array.size, dtype=np.uint16)
    compiled("_matrix").drain(which, _flat(array), out, resolve_threads(threads))
    return out.view(np.float16).reshape(array.shape)


def decode(codes: Codes) -> NDArray[np.float64]:
    """The real value of each code, exactly. Raises `NumericsError` for another dtype or more than 22 bits."""
    array = checked_codes(codes, "fp22.decode", "codes")
    return twin.decode(_flat(array)).reshape(array.shape)


def encode(values: ArrayLike) -> Codes:
    """The nearest code of each real value (float64), ties to even.

    What rounds below 2^-62 becomes +0, what lies beyond the largest code becomes that one.
    Raises `NumericsError` for NaN.
    """
    array = np.asarray(values, dtype=np.float64)
    if np.isnan(array).any():
        raise NumericsError(f"fp22.encode: `values` {described(array)} has NaN; FP22 has no NaN")
    return twin.encode(_flat(array)).reshape(array.shape)


def block_value(
    dot: NDArray[np.int32],
    scale_a: NDArray[np.uint8],
    scale_b: NDArray[np.uint8],
    anchor: int = STANDARD_ANCHOR,
) -> Codes:
    """The code that a block's exact dot product becomes before it is added; the three arrays broadcast.

    `anchor` (0..255) is the instruction's anchor field. The exponent is cut to 7 bits, so with another anchor
    it may wrap; a code whose exponent wrapped to 0 counts as +0 (see `open_tile`). Raises `NumericsError` for
    other dtypes, shapes that don't broadcast, or an anchor outside 0..255.
    """
    operands = {"dot": np.asarray(dot), "scale_a": np.asarray(scale_a), "scale_b": np.asarray(scale_b)}
    if [array.dtype for array in operands.values()] != [np.int32, np.uint8, np.uint8]:
        found = ", ".join(f"`{name}` {described(array)}" for name, array in operands.items())
        raise NumericsError(f"fp22.block_value: {found}; needed are int32, uint8 and uint8")
    if not 0 <= anchor <= 255:
        raise NumericsError(f"fp22.block_value: anchor={anchor}; the field has 8 bits: 0 to 255")
    (dots, scales_a, scales_b), shape = _broadcast("fp22.block_value", **operands)
    return twin.block_value(dots, scales_a, scales_b, anchor).reshape(shape)


def open_tile(codes: Codes) -> Codes:
    """What a tile opened with `codes` holds: `add(+0, codes)`, so every code with E = 0 becomes +0."""
    array = checked_codes(codes, "fp22.open_tile", "codes")
    return twin.open_tile(_flat(array)).reshape(array.shape)
