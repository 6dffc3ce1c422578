"""That a plan's folds hold every rank's contribution: once each, where once more would count twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from msgspec import Struct

from meshwright.errors import PlanError
from meshwright.ir.pool import Pool
from meshwright.kernels.elementwise import Elementwise
from meshwright.sharding.steps import AddTiles, Copy, DrainTiles, OpenTiles, Ref, Slot, StepKernel, Steps


def fold_of(pool: Pool, count: int) -> Elementwise:
    """The elementwise fold of `count` pieces in a pool."""
    return Elementwise(f"{pool.value} of {count}", pool.fold(count)[0], count)


class _Held(Struct, frozen=True):
    """Which contributions a piece is the fold of: how often each rank of a slot is in it."""

    slot: int
    pool: Pool
    counts: tuple[tuple[int, int], ...]


def check_summands(plan: Steps, order: Sequence[int]) -> None:
    """Raises `PlanError` naming the rank whose contribution to a fold is missing, or in it twice, or the wrong pool.

    What is followed from partial slots: copies, additions into tiles, drains and folds. Other kernels make new values,
    which `rules` judges.
    """
    held: dict[Ref, _Held | None] = {}
    for index in order:
        step = plan.steps[index]
        taken = [_held_by(plan, held, ref) for ref in step.args]
        made = _made(plan, index, step.kernel, step.result, taken, held.get(step.result))
        held[step.result] = made
        if made is not None and step.result.slot == plan.into:
            _require_whole(plan, index, step.result, made)


def _held_by(plan: Steps, held: dict[Ref, _Held | None], ref: Ref) -> _Held | None:
    slot = plan.slots[ref.slot]
    if ref.slot < plan.given and (pool := _pool(slot)) is not None:
        return _Held(ref.slot, pool, ((ref.rank, 1),))
    return held.get(ref)


def _pool(slot: Slot) -> Pool | None:
    return next((spec.partial for spec in slot.specs if spec.partial is not None), None)


def _made(
    plan: Steps, index: int, kernel: StepKernel, result: Ref, taken: list[_Held | None], there: _Held | None
) -> _Held | None:
    match kernel:
        case OpenTiles():
            pool = _pool(plan.slots[result.slot])
            return None if pool is None else _Held(result.slot, pool, ((result.rank, 1),))
        case AddTiles():
            return _together(plan, index, Pool.SUM, [there, *taken])
        case Copy() | DrainTiles():
            return taken[0]
        case Elementwise(expr=expr, count=count):
            pool = next((p for p in Pool if p is not Pool.ARGMAX and p.fold(count)[0] == expr), None)
            if pool is None or count < 2 or not any(taken):
                return None
            return _together(plan, index, pool, taken)
        case _:
            return None


def _together(plan: Steps, index: int, pool: Pool, taken: Sequence[_Held | None]) -> _Held | None:
    known = [one for one in taken if one is not None]
    if len(known) < len(taken) or len({one.slot for one in known}) > 1:
        return None
    if wrong := next((one for one in known if one.pool is not pool), None):
        raise PlanError(
            f"step {index} ({plan.steps[index].kernel.name}) folds a partial {wrong.pool.value} by {pool.value}: "
            f"that is another value. Fold it by {wrong.pool.value}"
        )
    counts: Counter[int] = Counter()
    for one in known:
        counts.update(dict(one.counts))
    return _Held(known[0].slot, pool, tuple(sorted(counts.items())))


def _require_whole(plan: Steps, index: int, result: Ref, made: _Held) -> None:
    slot, into = plan.slots[made.slot], plan.slots[result.slot]
    partial = [axis for axis, spec in enumerate(slot.specs) if spec.partial is not None]
    folded = len(partial) - sum(spec.partial is not None for spec in into.specs)
    if not folded:  # Contributions to another value, such as the double of this one.
        return
    counts = dict(made.counts)
    wanted = list(_lines(slot, partial, folded, min(counts)))
    best = min(wanted, key=lambda ranks: len(ranks ^ counts.keys()))
    where = f"step {index} makes {plan.named(result)} of a partial {made.pool.value}, and"
    for rank in sorted(best - counts.keys()):
        raise PlanError(
            f"{where} the contribution of rank {rank} (mesh {slot.meshes[rank]}) is missing from it: fold that in as "
            "well, once"
        )
    for rank in sorted(counts.keys() - best):
        raise PlanError(
            f"{where} the contribution of rank {rank} (mesh {slot.meshes[rank]}) is no part of it: leave it out"
        )
    for rank, count in counts.items():
        if count > 1 and not made.pool.exact_under_regrouping:
            raise PlanError(
                f"{where} the contribution of rank {rank} (mesh {slot.meshes[rank]}) is in it {count} times: fold it "
                "in once"
            )


def _lines(slot: Slot, partial: Sequence[int], folded: int, member: int) -> Iterator[set[int]]:
    """The sets of ranks that may belong together: those that differ from `member` along `folded` partial axes only."""
    ranks = np.arange(len(slot.meshes)).reshape(slot.grid)
    at = np.unravel_index(member, slot.grid)
    for axes in combinations(partial, folded):
        which = tuple(slice(None) if axis in axes else int(i) for axis, i in enumerate(at))
        yield {int(rank) for rank in ranks[which].reshape(-1)}
