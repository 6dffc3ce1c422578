"""Integers modulo 2^61 - 1 in numpy: the oracle of the compiled kernels, and what runs where they are missing.

Residues are uint64 below the prime. The same words come out of `native/field`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Residues = NDArray[np.uint64]
Keys = tuple[int, int, int, int]

BITS: Final = 61
PRIME: Final = (1 << BITS) - 1
LIMB: Final = 21
_MULTIPLIERS: Final = (0x9E3779B97F4A7C15, 0x6A09E667F3BCC909, 0xBB67AE8584CAA73B)
_SIXTY: Final = np.uint64((1 << 60) - 1)
_P: Final = np.uint64(PRIME)
_DEPTH: Final = 512
_COLUMNS: Final = 1024


# Words wrap on purpose; numpy warns of it where an operand has no axes.
_wrapping = np.errstate(over="ignore")


def _u(value: int) -> np.uint64:
    return np.uint64(value)


@_wrapping
def reduce(x: Residues) -> Residues:
    """Any 64-bit words modulo the prime: the upper bits count again, since 2^61 is 1."""
    folded = (x & _P) + (x >> _u(BITS))
    return np.where(folded >= _P, folded - _P, folded)


def add(a: Residues, b: Residues) -> Residues:
    """The sum."""
    return reduce(a + b)


@_wrapping
def sub(a: Residues, b: Residues) -> Residues:
    """The difference."""
    return reduce(a + (_P - b))


def mul(a: Residues, b: Residues) -> Residues:
    """The product, from halves of 31 and 30 bits whose sums stay under 2^64."""
    low, middle_bits = _u((1 << 31) - 1), _u((1 << 30) - 1)
    a0, a1, b0, b1 = a & low, a >> _u(31), b & low, b >> _u(31)
    middle = a1 * b0 + a0 * b1
    high = _u(2) * (a1 * b1) + (middle >> _u(30))
    return reduce(high + ((middle & middle_bits) << _u(31)) + a0 * b0)


def rotated(x: Residues, power: int) -> Residues:
    """The product with 2^power, any whole power: a rotation of the 61 bits."""
    turn = power % BITS
    return reduce(((x << _u(turn)) & _P) | (x >> _u(BITS - turn)))


def _squared(x: Residues, times: int) -> Residues:
    for _ in range(times):
        x = mul(x, x)
    return x


def inverse(x: Residues, keys: Keys) -> Residues:
    """x^(p - 2): 59 ones, a zero and a one in binary. The inverse of 0 is a constant of the key."""
    ones = x  # x to the power of 1, 3, 7, 14, ... ones in binary
    for count, one_more in ((1, True), (3, True), (7, False), (14, True), (29, True)):
        ones = mul(_squared(ones, count), ones)
        if one_more:
            ones = mul(_squared(ones, 1), x)
    of_zero = reduce(np.asarray(keys[0], dtype=np.uint64))
    return np.where(x == 0, of_zero, mul(_squared(ones, 2), x))


@_wrapping
def mix(x: Residues, keys: Keys) -> Residues:
    """A keyed mix of 64-bit words: two rounds of multiply and xor-shift, a key before each."""
    m0, m1, m2 = map(_u, _MULTIPLIERS)
    x = x ^ _u(keys[0])
    x = (x ^ (x >> _u(32))) * m0
    x = (x ^ (x >> _u(29))) * m1
    x = x ^ _u(keys[1])
    x = (x ^ (x >> _u(32))) * m2
    return x ^ (x >> _u(29))


def hashed(x: Residues, keys: Keys) -> Residues:
    """What a function that is not interpreted gives."""
    return reduce(mix(x, keys))


def generate(first: int, count: int, keys: Keys) -> Residues:
    """Residues number `first` to `first + count` of the sequence of `keys`."""
    return hashed(np.arange(first, first + count, dtype=np.uint64), keys)


@_wrapping
def _permuted(x: Residues, keys: Keys) -> Residues:
    """A keyed permutation of the 60-bit words."""
    m0, m1 = map(_u, _MULTIPLIERS[:2])
    x = x ^ (_u(keys[0]) & _SIXTY)
    x = (x ^ (x >> _u(31))) * m0 & _SIXTY
    x = x ^ (x >> _u(30)) ^ (_u(keys[1]) & _SIXTY)
    x = (x ^ (x >> _u(31))) * m1 & _SIXTY
    return x ^ (x >> _u(30))


@_wrapping
def _permuted_back(x: Residues, keys: Keys) -> Residues:
    # A xor-shift by half the width or more undoes itself; an odd multiplier has an inverse.
    m0, m1 = (_u(pow(m, -1, 1 << 60)) for m in _MULTIPLIERS[:2])
    x = (x ^ (x >> _u(30))) * m1 & _SIXTY
    x = x ^ (x >> _u(31)) ^ (_u(keys[1]) & _SIXTY)
    x = (x ^ (x >> _u(30))) * m0 & _SIXTY
    return x ^ (x >> _u(31)) ^ (_u(keys[0]) & _SIXTY)


def order_names(x: Residues, keys: Keys, residues: Residues, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """A float64 for each residue, by which residues are ordered; `residues` (ascending) are named by `numbers`.

    One to one; opposite residues have opposite names. Bit patterns of floats are ordered as the floats are.
    """
    opposite = reduce(_P - x)
    smaller = np.minimum(x, opposite)
    sign = (mix(smaller, (keys[2], keys[3], 0, 0)) & _u(1)) ^ (x > opposite)
    bits = (sign << _u(63)) | (_u(1) + _u(7) * _permuted(smaller, keys))
    names = np.where(x == 0, 0.0, bits.view(np.float64))
    if len(residues) == 0:
        return names
    at = np.minimum(np.searchsorted(residues, x), len(residues) - 1)
    return np.where(residues[at] == x, numbers[at], names)


def residues_named(names: NDArray[np.float64], keys: Keys) -> Residues:
    """The residues that have these names in the order, none of them a constant's."""
    bits = names.view(np.uint64)
    smaller = _permuted_back((bits & _u((1 << 63) - 1)) // _u(7), keys)
    sign = (mix(smaller, (keys[2], keys[3], 0, 0)) & _u(1)) ^ (bits >> _u(63))
    return np.where(names == 0.0, _u(0), np.where(sign == 0, smaller, reduce(_P - smaller)))


def sum_rows(x: Residues) -> Residues:
    """Sums [...] along the last axis of [..., L]."""
    low = (x & _u((1 << 31) - 1)).sum(axis=-1, dtype=np.uint64)
    high = (x >> _u(31)).sum(axis=-1, dtype=np.uint64)
    return add(reduce(low), rotated(reduce(high), 31))


def _limbs(x: Residues) -> NDArray[np.float64]:
    limb = _u((1 << LIMB) - 1)
    return np.stack([x & limb, (x >> _u(LIMB)) & limb, x >> _u(2 * LIMB)]).astype(np.float64)


def product(
    a: Residues,
    b: Residues,
    a_index: NDArray[np.int64],
    b_index: NDArray[np.int64],
    start: Residues | None,
) -> Residues:
    """Products [T, m, n] of a [A, m, K] and b [B, n, K], through exact float64 products of 21-bit limbs."""
    out = np.zeros((len(a_index), a.shape[1], b.shape[1]), dtype=np.uint64)
    for t, (i, j) in enumerate(zip(a_index, b_index, strict=True)):
        for n in range(0, b.shape[1], _COLUMNS):
            columns = slice(n, n + _COLUMNS)
            for k in range(0, a.shape[2], _DEPTH):
                depth = slice(k, k + _DEPTH)
                part = _limb_product(_limbs(a[i, :, depth]), _limbs(b[j, columns, depth]))
                out[t, :, columns] = add(out[t, :, columns], part)
    return out if start is None else add(out, start)


def _limb_product(a: NDArray[np.float64], b: NDArray[np.float64]) -> Residues:
    # Three products of 42 bits over 512 elements: below 2^53, so exact in any order of summing.
    total: Residues = np.zeros((a.shape[1], b.shape[1]), dtype=np.uint64)
    for power in range(5):
        pairs = [(i, power - i) for i in range(3) if 0 <= power - i < 3]
        exact = sum((a[i] @ b[j].T for i, j in pairs), start=np.zeros(total.shape))
        total = add(total, rotated(exact.astype(np.uint64), LIMB * power))
    return total
