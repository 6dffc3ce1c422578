"""Arrays of integers modulo 2^61 - 1: compiled where a compiler was there, else the numpy twin, with the same words."""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from meshwright.evaluate import field_twin as twin
from meshwright.evaluate.field_twin import BITS, PRIME, Keys, Residues
from meshwright.numerics.backend import BACKENDS, resolve, resolve_threads

_OPS: Final = {"add": 0, "sub": 1, "mul": 2, "multiply_add": 3, "inverse": 4, "hash": 5}
_NO_KEYS: Final[Keys] = (0, 0, 0, 0)
_FRACTION: Final = 53


def keys_of(seed: int, *words: str | int) -> Keys:
    """Four 64-bit keys, the same ones for the same seed and words on every machine."""
    digest = hashlib.blake2b(repr((seed, *words)).encode(), digest_size=32).digest()
    first, second, third, fourth = (int.from_bytes(digest[i : i + 8], "little") for i in range(0, 32, 8))
    return first, second, third, fourth


@cache
def _module() -> ModuleType | None:
    try:
        return importlib.import_module("meshwright.evaluate._field")
    except ImportError:
        return None


def kernels(backend: str | None = None) -> str:
    """Which kernels a call with this `backend` argument uses, as `numerics.backend.resolve` chooses them.

    The fastest not above the backend: multiplying fast on AVX-512 takes IFMA, which not every such processor has.
    """
    asked = resolve(backend)
    module = _module()
    if module is None:
        return "numpy"
    known = [name for name in module.supported() if BACKENDS.index(name) <= BACKENDS.index(asked)]
    return known[-1] if known else "numpy"


def _compiled(backend: str | None) -> ModuleType | None:
    return None if kernels(backend) == "numpy" else _module()


def _apply(op: str, operands: Sequence[Residues], keys: Keys = _NO_KEYS, backend: str | None = None) -> Residues | None:
    """The operation by the compiled kernels, operands broadcast against each other; None where the twin is to run."""
    module = _compiled(backend)
    if module is None:
        return None
    shape = np.broadcast_shapes(*(o.shape for o in operands))
    flat = [o if o.size == 1 else np.broadcast_to(o, shape) for o in operands]
    held = [np.ascontiguousarray(o) for o in flat]
    out = np.empty(shape, dtype=np.uint64)
    places = [(o.ctypes.data, 0 if o.size == 1 else 1) for o in held]
    module.apply(_OPS[op], out.ctypes.data, places, out.size, keys, resolve_threads())
    return out


def add(a: Residues, b: Residues, backend: str | None = None) -> Residues:
    """The sum."""
    made = _apply("add", (a, b), backend=backend)
    return twin.add(a, b) if made is None else made


def sub(a: Residues, b: Residues, backend: str | None = None) -> Residues:
    """The difference."""
    made = _apply("sub", (a, b), backend=backend)
    return twin.sub(a, b) if made is None else made


def negate(a: Residues) -> Residues:
    """The opposite residue."""
    return sub(np.asarray(0, dtype=np.uint64), a)


def mul(a: Residues, b: Residues, backend: str | None = None) -> Residues:
    """The product."""
    made = _apply("mul", (a, b), backend=backend)
    return twin.mul(a, b) if made is None else made


def multiply_add(a: Residues, b: Residues, c: Residues, backend: str | None = None) -> Residues:
    """`a * b + c`."""
    made = _apply("multiply_add", (a, b, c), backend=backend)
    return twin.add(twin.mul(a, b), c) if made is None else made


def inverse(x: Residues, keys: Keys, backend: str | None = None) -> Residues:
    """The residue whose product with x is 1; for 0 a constant of the keys."""
    made = _apply("inverse", (x,), keys, backend)
    return twin.inverse(x, keys) if made is None else made


def hashed(x: Residues, keys: Keys, backend: str | None = None) -> Residues:
    """What the function of these keys, of which nothing is known, gives for x."""
    made = _apply("hash", (x,), keys, backend)
    return twin.hashed(x, keys) if made is None else made


def order_names(
    x: Residues, keys: Keys, residues: Residues, numbers: NDArray[np.float64], backend: str | None = None
) -> NDArray[np.float64]:
    """Float64 names that residues are ordered by, as `field_twin.order_names` describes them."""
    module = _compiled(backend)
    if module is None:
        return twin.order_names(x, keys, residues, numbers)
    held, known, named = np.ascontiguousarray(x), np.ascontiguousarray(residues), np.ascontiguousarray(numbers)
    out = np.empty(x.shape, dtype=np.float64)
    places = (out.ctypes.data, held.ctypes.data, held.size)
    module.order_names(*places, keys, known.ctypes.data, named.ctypes.data, len(known), resolve_threads())
    return out


def generate(shape: Sequence[int], keys: Keys, reuse: Residues | None = None, backend: str | None = None) -> Residues:
    """Random residues of a shape: element number i, row-major, is number i of the sequence of the keys.

    reuse: an array that is overwritten and given back where it has the shape; new memory is slow to come by.
    """
    module = _compiled(backend)
    if module is None:
        return twin.generate(0, math.prod(shape), keys).reshape(tuple(shape))
    fits = reuse is not None and reuse.shape == tuple(shape) and reuse.dtype == np.uint64 and reuse.flags.c_contiguous
    out = reuse if reuse is not None and fits else np.empty(tuple(shape), dtype=np.uint64)
    module.generate(out.ctypes.data, 0, out.size, keys, resolve_threads())
    return out


def sum_rows(x: Residues, backend: str | None = None) -> Residues:
    """Sums [...] along the last axis of [..., L]."""
    module = _compiled(backend)
    if module is None:
        return twin.sum_rows(x)
    held = np.ascontiguousarray(x)
    out = np.empty(x.shape[:-1], dtype=np.uint64)
    module.sum_rows(out.ctypes.data, held.ctypes.data, out.size, x.shape[-1], resolve_threads())
    return out


def multiply_rows(x: Residues, backend: str | None = None) -> Residues:
    """Products [...] along the last axis of [..., L]."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        rest = x[..., 2 * half :]
        x = np.concatenate([mul(x[..., :half], x[..., half : 2 * half], backend), rest], axis=-1)
    return x[..., 0] if x.shape[-1] else np.ones(x.shape[:-1], dtype=np.uint64)


def _rows(x: Residues) -> Residues:
    """With the elements of a row next to each other; rows and blocks may be apart."""
    return x if x.shape[-1] < 2 or x.strides[-1] == x.itemsize else np.ascontiguousarray(x)


def product(
    a: Residues,
    b: Residues,
    a_index: NDArray[np.int64],
    b_index: NDArray[np.int64],
    start: Residues | None = None,
    backend: str | None = None,
) -> Residues:
    """Products [T, m, n] of blocks a [A, m, K] and b [B, n, K], `a[a_index[t]] @ b[b_index[t]].T`, plus `start`."""
    chosen, module = kernels(backend), _compiled(backend)
    if module is None:
        return twin.product(a, b, a_index, b_index, start)
    a, b = _rows(a), _rows(b)
    first, second = np.ascontiguousarray(a_index), np.ascontiguousarray(b_index)
    added = None if start is None else np.ascontiguousarray(start)
    out = np.empty((len(first), a.shape[1], b.shape[1]), dtype=np.uint64)
    pitches = [(x.strides[0] // x.itemsize, x.strides[1] // x.itemsize) for x in (a, b)]
    module.product(
        chosen,
        a.ctypes.data,
        pitches[0],
        b.ctypes.data,
        pitches[1],
        first.ctypes.data,
        second.ctypes.data,
        0 if added is None else added.ctypes.data,
        out.ctypes.data,
        (len(first), a.shape[1], b.shape[1], a.shape[2]),
        resolve_threads(),
    )
    return out


def all_reduced(x: Residues, backend: str | None = None) -> bool:
    """Whether every word is below the prime."""
    module = _compiled(backend)
    if module is None or not x.flags.c_contiguous:
        return x.size == 0 or int(x.max()) < PRIME
    return module.all_reduced(x.ctypes.data, x.size, resolve_threads())


def of_integers(x: NDArray[np.int64]) -> Residues:
    """Whole numbers modulo the prime."""
    return np.mod(x, PRIME).astype(np.uint64)


def of_floats(x: NDArray[np.float64]) -> Residues:
    """Finite floats exactly: whole number times power of two, and 2 has an inverse. What isn't finite gives 0."""
    finite = np.where(np.isfinite(x), x, 0.0)
    fraction, exponent = np.frexp(finite)
    whole = of_integers(np.ldexp(fraction, _FRACTION).astype(np.int64))
    turn = np.mod(exponent.astype(np.int64) - _FRACTION, BITS).astype(np.uint64)
    low = (whole << turn) & np.uint64(PRIME)
    return twin.reduce(low | (whole >> (np.uint64(BITS) - turn)))


def small_integers(x: Residues) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Residues as whole numbers of 32 bits with a sign, and where they are such."""
    signed = np.where(x > PRIME // 2, x.astype(np.int64) - PRIME, x.astype(np.int64))
    return signed, (signed >= -(1 << 31)) & (signed < 1 << 31)
