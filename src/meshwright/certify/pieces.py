"""From a whole value to the pieces that the ranks of a tensor hold, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from meshwright.errors import EvaluationError
from meshwright.evaluate.arithmetic import Array
from meshwright.ir.pool import Pool
from meshwright.ir.records import Tensor

Place = tuple[slice, ...]
Fold = Callable[[Pool, Array], Array]
"""Folds [..., L] along the last axis."""


def places(tensor: Tensor) -> tuple[Place, ...]:
    """For each rank, row-major over the rank grid, the part of the whole value that its piece covers."""
    found: list[Place] = []
    for rank in range(len(tensor.chips)):
        place = [slice(0, size) for size in tensor.shape]
        shape = tensor.shape
        for spec, count, at in zip(tensor.specs, tensor.ranks, np.unravel_index(rank, tensor.ranks), strict=True):
            shape = spec.local(shape, count)
            if spec.axis is not None:
                start = place[spec.axis].start + int(at) * shape[spec.axis]
                place[spec.axis] = slice(start, start + shape[spec.axis])
        found.append(tuple(place))
    return tuple(found)


def pool_of(tensor: Tensor) -> Pool | None:
    """The pool in which contributions fold into the value; None where pieces are the value itself.

    Raises `EvaluationError` for contributions in two pools (which is folded first isn't said) and for pairs.
    """
    pools = {spec.partial for spec in tensor.specs if spec.partial is not None}
    if len(pools) > 1 or Pool.ARGMAX in pools:
        raise EvaluationError(
            f"{tensor.name!r} is {' x '.join(map(str, tensor.specs))}: contributions are compared in one pool of "
            "single values; reduce it along one of the axes first"
        )
    return next(iter(pools), None)


def contributions(tensor: Tensor) -> tuple[int, ...]:
    """For each rank, which of the contributions to its part it holds; zeros where nothing is partial."""
    axes = [axis for axis, spec in enumerate(tensor.specs) if spec.partial is not None]
    at = np.unravel_index(np.arange(len(tensor.chips)), tensor.ranks)
    number = np.zeros(len(tensor.chips), dtype=np.int64)
    for axis in axes:
        number = number * tensor.ranks[axis] + at[axis]
    return tuple(number.tolist())


def contribution_count(tensor: Tensor) -> int:
    """How many contributions fold into the value."""
    return math.prod(n for spec, n in zip(tensor.specs, tensor.ranks, strict=True) if spec.partial is not None)


def split_logical(tensor: Tensor, summands: Sequence[Array]) -> tuple[Array, ...]:
    """The piece of each rank, as views: equal pieces are the same array.

    summands: whole-shaped arrays, one a contribution; the value itself where the tensor isn't partial.
    """
    known: dict[tuple[int, tuple[tuple[int, int], ...]], Array] = {}
    pieces: list[Array] = []
    for place, number in zip(places(tensor), contributions(tensor), strict=True):
        key = number, tuple((s.start, s.stop) for s in place)
        pieces.append(known.setdefault(key, summands[number][place]))
    return tuple(pieces)


def join_logical(tensor: Tensor, pieces: Sequence[Array], fold: Fold) -> Array:
    """The whole value put together; of several pieces of the same part the last one, contributions folded."""
    count = contribution_count(tensor)
    stacked = np.empty((*tensor.shape, count), dtype=pieces[0].dtype)
    for place, number, piece in zip(places(tensor), contributions(tensor), pieces, strict=True):
        stacked[(*place, number)] = piece
    pool = pool_of(tensor)
    return stacked[..., 0] if pool is None else fold(pool, stacked)


def first_disagreement(tensor: Tensor, pieces: Sequence[Array]) -> tuple[int, int] | None:
    """Two ranks whose pieces of the same part (and contribution) differ, or None."""
    seen: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}
    for rank, (place, number) in enumerate(zip(places(tensor), contributions(tensor), strict=True)):
        other = seen.setdefault((number, tuple((s.start, s.stop) for s in place)), rank)
        if other != rank and not np.array_equal(pieces[rank], pieces[other]):
            return other, rank
    return None
