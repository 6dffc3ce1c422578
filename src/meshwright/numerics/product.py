"""The machine's matrix product `a @ b.T`: operands in MXFP7 blocks, sums in FP22, K blocks ascending.

Source: RTL vectors in tests/golden/matmul.npz and tests/golden/matmul_machine.npz.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import NumericsError
from meshwright.numerics import fp22
from meshwright.numerics.backend import Backend, compiled, resolve, resolve_threads
from meshwright.numerics.mxfp7 import FP16, Blocks, described, fp16_array, padded, quantise
from meshwright.numerics.twin import product as twin

Operand = FP16 | Blocks
"""fp16 values, their bits, or blocks that are quantised already."""

_FP16_TYPES: Final = frozenset({np.dtype(np.float16), np.dtype(np.uint16)})
_ONLY_ENTRY: Final = np.zeros(1, dtype=np.int64)
_ONLY_ENTRY.flags.writeable = False


@dataclass(frozen=True)
class _Pairing:
    """Which entries of the two batches each product takes, and the shape of all products."""

    a_index: NDArray[np.int64]
    b_index: NDArray[np.int64]
    shape: tuple[int, ...]

    @property
    def flat_shape(self) -> tuple[int, int, int]:
        """`(T, M, N)`: the batch axes as one."""
        return len(self.a_index), self.shape[-2], self.shape[-1]


def _checked(operand: Operand, call: str, name: str) -> Operand:
    checked = operand if isinstance(operand, Blocks) else fp16_array(operand, call, name)
    if len(checked.shape) < 2:
        raise NumericsError(
            f"{call}: `{name}` is {_named(checked)}; needed are rows by K, batch axes in front: "
            f"{name}[None, :] is one row"
        )
    return checked


def _named(operand: Operand) -> str:
    return f"Blocks[{', '.join(map(str, operand.shape))}]" if isinstance(operand, Blocks) else described(operand)


Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]
"""For each of T products, which entry of `a` and which of `b` it takes."""


def _stated(call: str, a: Operand, b: Operand, pairs: Pairs) -> _Pairing:
    """The pairing that a caller states instead of broadcasting."""
    a_index, b_index = (np.ascontiguousarray(index, dtype=np.int64) for index in pairs)
    if len(a.shape) != 3 or len(b.shape) != 3 or a_index.ndim != 1 or a_index.shape != b_index.shape:
        raise NumericsError(
            f"{call}: `a` is {_named(a)}, `b` is {_named(b)}, `pairs` have shapes {a_index.shape} and {b_index.shape}; "
            "with pairs both operands are [entries, rows, K], and both index arrays are [T]"
        )
    for name, index, count in (("a", a_index, a.shape[0]), ("b", b_index, b.shape[0])):
        if index.size and not 0 <= int(index.min()) <= int(index.max()) < count:
            raise NumericsError(f"{call}: pairs name entry {index.max()} of `{name}`, which has {count}")
    return _Pairing(a_index, b_index, (len(a_index), a.shape[1], b.shape[1]))


def _pair(call: str, a: Operand, b: Operand, pairs: Pairs | None) -> _Pairing:
    """How the batches of `a` and `b` go together; `NumericsError` when K or the batch axes don't."""
    found = f"{call}: `a` is {_named(a)}, `b` is {_named(b)}"
    k_a, k_b = a.shape[-1], b.shape[-1]
    # Blocks no longer know how much of K is padding, so next to them only whole blocks can be compared.
    if (padded(k_a), padded(k_b)) != (k_a, k_b) and (isinstance(a, Blocks) or isinstance(b, Blocks)):
        k_a, k_b = padded(k_a), padded(k_b)
    if k_a != k_b:
        hint = ""
        if len(b.shape) == 2 and b.shape[0] == a.shape[-1]:
            hint = "; `b` is stored [N, K]: for the product a @ b of linear algebra hand in b.T"
        raise NumericsError(
            f"{found}: the last axes are the contraction and differ, {a.shape[-1]} and {b.shape[-1]}{hint}"
        )
    if pairs is not None:
        return _stated(call, a, b, pairs)
    batch_a, batch_b = a.shape[:-2], b.shape[:-2]
    try:
        batch = np.broadcast_shapes(batch_a, batch_b)
    except ValueError:
        raise NumericsError(
            f"{found}: the batch axes {list(batch_a)} and {list(batch_b)} don't broadcast; "
            "an axis must be equal on both sides, 1, or missing"
        ) from None
    index_a, index_b = (
        np.ascontiguousarray(np.broadcast_to(np.arange(math.prod(axes)).reshape(axes), batch)).reshape(-1)
        for axes in (batch_a, batch_b)
    )
    return _Pairing(index_a.astype(np.int64), index_b.astype(np.int64), (*batch, a.shape[-2], b.shape[-2]))


def _start(call: str, start: NDArray[Any] | None, pairing: _Pairing) -> NDArray[np.uint32] | None:
    if start is None:
        return None
    codes = fp22.checked_codes(start, call, "start")
    if codes.shape != pairing.shape:
        raise NumericsError(
            f"{call}: `start` is {described(codes)}, the product is [{', '.join(map(str, pairing.shape))}]: "
            "every output continues its own resident code"
        )
    return np.ascontiguousarray(codes).reshape(pairing.flat_shape)


def _three_axes(array: NDArray[Any]) -> NDArray[Any]:
    """The batch axes as one: `[B, rows, K]`, contiguous."""
    rows, k = array.shape[-2:]
    return np.ascontiguousarray(array).reshape(math.prod(array.shape[:-2]), rows, k)


@dataclass(frozen=True)
class _Options:
    start: NDArray[Any] | None
    pairs: Pairs | None
    pumped: bool
    backend: Backend
    threads: int | None


def _codes(call: str, a: Operand, b: Operand, options: _Options) -> NDArray[np.uint32]:
    left, right = _checked(a, call, "a"), _checked(b, call, "b")
    pairing = _pair(call, left, right, options.pairs)
    resident = _start(call, options.start, pairing)
    blocks_a, blocks_b = (
        operand if isinstance(operand, Blocks) else quantise(operand, backend=options.backend, threads=options.threads)
        for operand in (left, right)
    )
    entries_a = _three_axes(blocks_a.q), _three_axes(blocks_a.scale)
    entries_b = _three_axes(blocks_b.q), _three_axes(blocks_b.scale)
    indices = pairing.a_index, pairing.b_index
    if options.backend == "numpy":
        return twin.matmul(entries_a, entries_b, indices, resident, pumped=options.pumped).reshape(pairing.shape)
    out = np.empty(pairing.flat_shape, dtype=np.uint32)
    if out.size == 0:
        return out.reshape(pairing.shape)
    module = compiled("_matrix")
    kernel = module.matmul_pumped if options.pumped else module.matmul
    kernel(options.backend, *entries_a, *entries_b, *indices, resident, out, resolve_threads(options.threads))
    return out.reshape(pairing.shape)


def matmul(
    a: Operand,
    b: Operand,
    *,
    start: NDArray[np.uint32] | None = None,
    pairs: Pairs | None = None,
    pumped: bool = False,
    backend: str | None = None,
    threads: int | None = None,
) -> NDArray[np.uint32]:
    """FP22 codes `[..., M, N]` of `a @ b.T` for `a` `[..., M, K]` and `b` `[..., N, K]`.

    Operands are fp16 values, fp16 bits or `Blocks`; batch axes broadcast; K is padded with zeros to blocks
    of 32. `start` `[..., M, N]` is the resident tile that is continued (a chained product); without it the
    first block opens the tile. With K = 0 nothing is added: the result is `start`, or +0 everywhere. M, N or
    a batch axis of 0 gives an empty result. `pairs` states which entries of `a` `[A, M, K]` and `b` `[B, N, K]`
    each of T products `[T, M, N]` takes, instead of broadcasting: each entry is quantised once. `pumped` merges
    blocks 2j and 2j + 1 before rounding, as that variant of the machine does.

    Raises `NumericsError` for other dtypes, fewer than two axes, different K, batch axes that don't
    broadcast, or a `start` of another shape.
    """
    return _codes("product.matmul", a, b, _Options(start, pairs, pumped, resolve(backend), threads))


def _plain(operand: Operand) -> NDArray[np.uint16] | None:
    """The bits `[1, rows, K]` of a contiguous fp16 matrix; None for everything that needs a closer look."""
    if type(operand) is not np.ndarray or operand.ndim != 2 or operand.dtype not in _FP16_TYPES:
        return None
    return operand.view(np.uint16)[None] if operand.flags.c_contiguous else None


def _matrix_product(a: Operand, b: Operand, backend: Backend, threads: int | None) -> NDArray[np.float16] | None:
    """Two contiguous matrices that fit, without the checks and the index arrays of batches, which cost a small
    product a tenth of its time; None for everything else.
    """
    left, right = _plain(a), _plain(b)
    if left is None or right is None or left.shape[2] != right.shape[2]:
        return None
    out = np.empty((1, left.shape[1], right.shape[1]), dtype=np.uint16)
    if out.size:
        compiled("_matrix").matmul_fp16(backend, left, right, _ONLY_ENTRY, _ONLY_ENTRY, out, resolve_threads(threads))
    return out[0].view(np.float16)


def matmul_fp16(
    a: Operand,
    b: Operand,
    *,
    start: NDArray[np.uint32] | None = None,
    pairs: Pairs | None = None,
    pumped: bool = False,
    backend: str | None = None,
    threads: int | None = None,
) -> NDArray[np.float16]:
    """`matmul`, drained to fp16 `[..., M, N]`: the same operands, rules and errors.

    Two fp16 operands without `start` and `pumped` take one compiled pass that never stores blocks or codes.
    """
    call = "product.matmul_fp16"
    which = resolve(backend)
    separate = start is not None or pumped or which == "numpy"
    if not separate and pairs is None:
        product = _matrix_product(a, b, which, threads)
        if product is not None:
            return product
    left, right = _checked(a, call, "a"), _checked(b, call, "b")
    if separate or isinstance(left, Blocks) or isinstance(right, Blocks):
        codes = _codes(call, left, right, _Options(start, pairs, pumped, which, threads))
        return fp22.drain(codes, backend=which, threads=threads)
    pairing = _pair(call, left, right, pairs)
    out = np.empty(pairing.flat_shape, dtype=np.uint16)
    if out.size == 0:
        return out.reshape(pairing.shape).view(np.float16)
    compiled("_matrix").matmul_fp16(
        which,
        _three_axes(left.view(np.uint16)),
        _three_axes(right.view(np.uint16)),
        pairing.a_index,
        pairing.b_index,
        out,
        resolve_threads(threads),
    )
    return out.reshape(pairing.shape).view(np.float16)
