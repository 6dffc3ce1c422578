"""`Spec`: how the pieces of a tensor on several ranks relate to the whole. Data only; `sharding` computes with it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from meshwright.errors import SplitError
from meshwright.ir.pool import Pool


class Spec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How pieces relate along one axis of the rank grid: copied, split on a tensor axis, or partial in a pool.

    `axis`: the tensor axis that is cut into equal consecutive slices, one a rank. `partial`: every rank holds a
    whole-shaped contribution and the value is the fold of all of them in that pool. Neither: every rank holds the
    whole value. Raises `SplitError` for both at once or a negative axis (use `Spec.on` to resolve one).
    """

    axis: int | None = None
    partial: Pool | None = None

    def __post_init__(self) -> None:
        if self.axis is not None and self.partial is not None:
            raise SplitError(
                f"Spec(axis={self.axis}, partial={self.partial.value}): a value is split or partial, not both. "
                "Use Spec.on(axis) for pieces of a value, or Spec(partial=pool) for contributions to one."
            )
        if self.axis is not None and self.axis < 0:
            raise SplitError(
                f"Spec(axis={self.axis}): an axis is counted from the front here, since the rank isn't known. "
                "Use Spec.on(axis, rank=...) to count from the back."
            )

    @classmethod
    def on(cls, axis: int, rank: int | None = None) -> Spec:
        """Split on `axis`; a negative one counts from the back of a tensor with `rank` axes, as numpy does."""
        if axis < 0 and rank is not None:
            if axis < -rank:
                raise SplitError(f"Spec.on({axis}, rank={rank}): there are only {rank} axes.")
            axis += rank
        return cls(axis=axis)

    @property
    def is_copied(self) -> bool:
        """Whether every rank holds the whole value."""
        return self.axis is None and self.partial is None

    def local(self, shape: Sequence[int], count: int) -> tuple[int, ...]:
        """The shape of one piece of a value of `shape` over `count` ranks; `SplitError` if it doesn't divide."""
        if self.axis is None:
            return tuple(shape)
        if self.axis >= len(shape):
            raise SplitError(
                f"split on axis {self.axis} of a value of shape {tuple(shape)}: it has axes 0 to {len(shape) - 1} only."
            )
        size = shape[self.axis]
        if size % count:
            padded = -(-size // count) * count
            raise SplitError(
                f"split of {tuple(shape)} on axis {self.axis} over {count} ranks: {size} is not a multiple of {count}, "
                f"and pieces must be equal. Pad axis {self.axis} to {padded} first, or copy the value."
            )
        return (*shape[: self.axis], size // count, *shape[self.axis + 1 :])

    def slices(self, shape: Sequence[int], count: int) -> tuple[tuple[slice, ...], ...]:
        """For each of `count` ranks, the part of a value of `shape` that it holds."""
        local = self.local(shape, count)
        whole = [slice(0, size) for size in shape]
        if self.axis is None:
            return (tuple(whole),) * count
        step = local[self.axis]
        return tuple(
            tuple(slice(r * step, (r + 1) * step) if i == self.axis else s for i, s in enumerate(whole))
            for r in range(count)
        )

    def __str__(self) -> str:
        if self.partial is not None:
            return f"partial {self.partial.value}"
        return "copied" if self.axis is None else f"split {self.axis}"


COPIED = Spec()
PARTIAL = Spec(partial=Pool.SUM)
