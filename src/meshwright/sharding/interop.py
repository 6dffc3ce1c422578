"""Specs to and from JAX's `PartitionSpec` and PyTorch's placements. Neither library is imported before it is asked for.

A tuple of specs, one for each axis of the rank grid, is what PyTorch calls placements, one for each mesh dimension. JAX
says it the other way round: for each axis of the array the mesh axes that cut it. Both cut by the first mesh axis first
where several cut one axis, as we do.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from meshwright.errors import SplitError, UsageError
from meshwright.ir.pool import Pool
from meshwright.ir.spec import COPIED, PARTIAL, Spec

if TYPE_CHECKING:
    from types import ModuleType

_TORCH_OPS = {Pool.SUM: "sum", Pool.MAX: "max", Pool.MIN: "min", Pool.PROD: "product"}


def _library(module: str, package: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError:
        raise UsageError(f"{module} can't be imported: install it, pip install {package}") from None


def to_partition_spec(specs: Sequence[Spec], names: Sequence[str], rank: int) -> Any:
    """A `jax.sharding.PartitionSpec` of a value with `rank` axes.

    specs: one for each axis of the rank grid; names: what JAX's mesh calls these axes, in the same order. A partial sum
    is an unreduced mesh axis. Raises `SplitError` for partials in other pools, which JAX has no word for, or a spec on
    an axis that the value hasn't got; `UsageError` without jax.
    """
    _require_names(specs, names)
    cut: list[list[str]] = [[] for _ in range(rank)]
    unreduced: set[str] = set()
    for spec, name in zip(specs, names, strict=True):
        if spec.partial is Pool.SUM:
            unreduced.add(name)
        elif spec.partial is not None:
            raise SplitError(
                f"a {spec} has no PartitionSpec: JAX's unreduced axes are sums. Fold it first: group.all_reduce(value)"
            )
        elif spec.axis is not None:
            if spec.axis >= rank:
                raise SplitError(f"a {spec} of a value with {rank} axes: name one of 0 to {rank - 1}")
            cut[spec.axis].append(name)
    entries = [None if not axes else axes[0] if len(axes) == 1 else tuple(axes) for axes in cut]
    made = _library("jax.sharding", "jax").PartitionSpec
    return made(*entries, unreduced=unreduced) if unreduced else made(*entries)


def from_partition_spec(spec: Any, names: Sequence[str]) -> tuple[Spec, ...]:
    """The specs of a `PartitionSpec`, one for each mesh axis in the order of `names`.

    Raises `SplitError` for an axis that `names` hasn't got, one that is named twice, mesh axes that cut one array axis
    in another order than theirs, axes left unconstrained, and reduced axes, which are about gradients.
    """
    found: dict[str, Spec] = {}
    # Iterating over one with unreduced axes is refused by JAX, for fear that they are forgotten; they are read below.
    for axis, entry in enumerate(getattr(spec, "partitions", spec)):
        cutting = _cutting(spec, entry)
        for name in cutting:
            _note(spec, found, names, name, Spec.on(axis))
        if [name for name in names if name in cutting] != list(cutting):
            raise SplitError(
                f"{spec}: axis {axis} is cut by {', '.join(cutting)} in that order, and ranks are numbered by "
                f"{', '.join(names)}: the first one is cut first. Name the mesh axes in that order"
            )
    if getattr(spec, "reduced", None):
        raise SplitError(f"{spec}: reduced axes say something about gradients, and there are none here")
    for name in sorted(getattr(spec, "unreduced", None) or ()):
        _note(spec, found, names, name, PARTIAL)
    return tuple(found.get(name, COPIED) for name in names)


def _cutting(spec: Any, entry: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    if isinstance(entry, str):
        return (entry,)
    if isinstance(entry, tuple):
        return tuple(map(str, entry))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    raise SplitError(f"{spec}: {entry} leaves an axis to be chosen by somebody else, and splits are stated here")


def _note(spec: Any, found: dict[str, Spec], names: Sequence[str], name: str, meaning: Spec) -> None:
    if name not in names:
        raise SplitError(f"{spec} names mesh axis {name!r}, and the mesh has {', '.join(names)}")
    if name in found:
        raise SplitError(f"{spec} names mesh axis {name!r} twice; it is {found[name]} already")
    found[name] = meaning


def to_placements(specs: Sequence[Spec]) -> tuple[Any, ...]:
    """PyTorch placements (`Shard`, `Replicate`, `Partial`), one for each axis of the rank grid.

    Raises `SplitError` for a partial in a pool that PyTorch hasn't got, `UsageError` without torch.
    """
    torch = _library("torch.distributed.tensor", "torch")
    made: list[Any] = []
    for spec in specs:
        if spec.partial is not None:
            if spec.partial not in _TORCH_OPS:
                raise SplitError(f"a {spec} has no placement: PyTorch folds by {', '.join(_TORCH_OPS.values())}")
            made.append(torch.Partial(_TORCH_OPS[spec.partial]))
        else:
            made.append(torch.Replicate() if spec.axis is None else torch.Shard(spec.axis))
    return tuple(made)


def from_placements(placements: Sequence[Any], rank: int | None = None) -> tuple[Spec, ...]:
    """The specs of PyTorch placements, one for each mesh dimension.

    rank: how many axes the value has, for shards that are counted from the back. Raises `SplitError` for averages, for
    strided shards (slices that are cut in another order than the mesh dimensions') and for what is no placement.
    """
    return tuple(_from_placement(placement, rank) for placement in placements)


def _from_placement(placement: Any, rank: int | None) -> Spec:
    kind = type(placement).__name__
    if kind == "Replicate":
        return COPIED
    if kind == "Shard":
        return Spec.on(int(placement.dim), rank)
    if kind == "Partial":
        pool = next((pool for pool, op in _TORCH_OPS.items() if op == placement.reduce_op), None)
        if pool is not None:
            return Spec(partial=pool)
        raise SplitError(
            f"{placement}: contributions folded by {placement.reduce_op!r} have no pool here; there are "
            f"{', '.join(_TORCH_OPS.values())}. An average is a sum and a scale: scale the sum after its fold"
        )
    raise SplitError(f"{placement} is not one of Shard, Replicate and Partial; redistribute to those first")


def _require_names(specs: Sequence[Spec], names: Sequence[str]) -> None:
    if len(specs) != len(names) or len(set(names)) != len(names):
        raise SplitError(
            f"{len(specs)} specs and mesh axes {', '.join(names) or 'none'}: one name for each axis of the rank grid "
            "is needed, all different"
        )
