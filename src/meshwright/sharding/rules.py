"""Which split a result has: readings that need no data moved. What has none is refused, with the calls that would do.

One rule for every kernel, from what the kernel says of itself: along which axes it works element for element,
which axes it folds away, and in which operands it is linear. For `a @ b.T` it comes to exactly three readings besides
the one where both are copied: copied x split 0 gives split on columns, split 0 x copied gives split on rows, split on K
x split on K gives a partial sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from msgspec import Struct

from meshwright.errors import SplitError
from meshwright.ir.pool import Pool
from meshwright.ir.spec import COPIED, Spec
from meshwright.kernels.elementwise import elementwise
from meshwright.kernels.kernel import Kernel, Shaped
from meshwright.kernels.matmul import MatrixProduct
from meshwright.sharding.value import Sharded


class Argument(Struct, frozen=True):
    """An operand as messages name it: what it is called, its logical shape, and its spec along one grid axis."""

    name: str
    shaped: Shaped
    spec: Spec

    def __str__(self) -> str:
        return f"`{self.name}` {self.shaped} {described(self.spec)}"


def declared(kernel: Kernel | Callable[..., Any]) -> Kernel:
    """A kernel as it is; a Python function over elements traced into one.

    Raises `SplitError` for a kernel that does not say what it mixes: on slices it might see only part of what it needs.
    """
    if not hasattr(kernel, "emit"):
        return elementwise(cast("Callable[..., Any]", kernel))
    missing = [name for name in ("axes", "contractions", "linear_in", "result", "unit") if not hasattr(kernel, name)]
    if missing:
        raise SplitError(
            f"{getattr(kernel, 'name', type(kernel).__name__)} doesn't declare {', '.join(missing)}: what is "
            "undeclared counts as mixing every axis and as nonlinear. Declare them (see meshwright.kernels.kernel.Kernel)"
        )
    return cast("Kernel", kernel)


def described(spec: Spec) -> str:
    """`is split on axis 1`, `is copied`, `is a partial sum`."""
    if spec.partial is not None:
        return f"is a partial {spec.partial.value}"
    return "is copied" if spec.axis is None else f"is split on axis {spec.axis}"


def result_spec(kernel: Kernel, arguments: Sequence[Argument], count: int) -> Spec:
    """The spec of the kernel's result over `count` ranks. Raises `SplitError` where no reading is free of moving."""
    operands = [a.shaped for a in arguments]
    kernel.result(operands)
    if count == 1 or all(a.spec.is_copied for a in arguments):
        # One rank holds the whole of everything; what is partial there is so already.
        return COPIED if all(a.spec.partial is None for a in arguments) else _partial(kernel, arguments)
    for argument in arguments:
        argument.spec.local(argument.shaped.shape, count)
    if any(a.spec.partial is not None for a in arguments):
        return _partial(kernel, arguments)
    return _split(kernel, arguments)


def _partial(kernel: Kernel, arguments: Sequence[Argument]) -> Spec:
    partial = {i for i, a in enumerate(arguments) if a.spec.partial is not None}
    pools = {a.spec.partial for a in arguments if a.spec.partial is not None}
    pool = next(iter(pools))
    names = " and ".join(f"`{arguments[i].name}`" for i in sorted(partial))
    listing = "; ".join(map(str, arguments))
    if len(pools) > 1:
        raise SplitError(f"{kernel.name}: {listing}. Partials in different pools can't be combined: reduce them first.")
    if any(a.spec.axis is not None for a in arguments):
        raise SplitError(
            f"{kernel.name}: {listing}. A split operand meets a partial one: every rank would combine its slice with a "
            f"contribution to the whole. Reduce {names} first: group.reduce(...)"
        )
    operands = [a.shaped for a in arguments]
    if pool is Pool.SUM and kernel.linear_in(frozenset(partial), operands):
        return Spec(partial=pool)
    raise SplitError(
        f"{kernel.name}: {listing}. It is not linear in {names}, and {kernel.name} of the summands, added up, is not "
        f"{kernel.name} of the sum. Reduce first: group.reduce(...), or matmul_chain_reduce in place of matmul"
    )


def _split(kernel: Kernel, arguments: Sequence[Argument]) -> Spec:
    operands = [a.shaped for a in arguments]
    axes = kernel.axes(operands)
    contracted = _contracted(kernel, arguments)
    if contracted is not None:
        return contracted
    along: dict[int, int] = {}
    for number, argument in enumerate(arguments):
        if argument.spec.axis is None:
            continue
        target = axes[number][argument.spec.axis]
        if target is None:
            raise SplitError(_mixes(kernel, arguments, number))
        along[number] = target
    targets = set(along.values())
    if len(targets) > 1:
        raise SplitError(_disagree(kernel, arguments, "they are split along different axes of the result"))
    target = targets.pop()
    for number, argument in enumerate(arguments):
        if argument.spec.axis is None and _spans(argument.shaped, axes[number], target):
            why = f"`{argument.name}` has the whole of what the other has a slice of"
            raise SplitError(_disagree(kernel, arguments, why))
    return Spec.on(target)


def _spans(shaped: Shaped, axes: Sequence[int | None], target: int) -> bool:
    """Whether a copied operand has a full axis along the result axis that is split."""
    return any(axis == target and size != 1 for axis, size in zip(axes, shaped.shape, strict=True))


def _contracted(kernel: Kernel, arguments: Sequence[Argument]) -> Spec | None:
    operands = [a.shaped for a in arguments]
    for contraction in kernel.contractions(operands):
        taking = [(a, axis) for a, axis in zip(arguments, contraction.axes, strict=True) if axis is not None]
        if taking and all(a.spec.axis == axis for a, axis in taking):
            others = [a for a, axis in zip(arguments, contraction.axes, strict=True) if axis is None]
            if all(a.spec.is_copied for a in others):
                return Spec(partial=contraction.pool)
    return None


def _mixes(kernel: Kernel, arguments: Sequence[Argument], number: int) -> str:
    if isinstance(kernel, MatrixProduct):
        return _matmul_message(arguments)
    split = arguments[number]
    free = [
        axis for axis, target in enumerate(kernel.axes([a.shaped for a in arguments])[number]) if target is not None
    ]
    instead = f"Split `{split.name}` on axis {free[0]} instead, or copy it" if free else f"Copy `{split.name}` instead"
    return (
        f"{kernel.name}: {split}, and {kernel.name} mixes elements along that axis: every rank would see only its "
        f"slice. {instead}"
    )


def _disagree(kernel: Kernel, arguments: Sequence[Argument], why: str) -> str:
    if isinstance(kernel, MatrixProduct):
        return _matmul_message(arguments)
    return (
        f"{kernel.name}: {'; '.join(map(str, arguments))}. These don't go together: {why}. "
        "State the same split for both, or copy the one that is to meet every slice"
    )


def _matmul_message(arguments: Sequence[Argument]) -> str:
    a, b = arguments
    k_a, k_b = len(a.shaped.shape) - 1, len(b.shaped.shape) - 1
    split_a, split_b = f"group.split({a.name}, axis={k_a})", f"group.split({b.name}, axis={k_b})"
    columns, rows = f"group.split({b.name}, axis={k_b - 1})", f"group.split({a.name}, axis={k_a - 1})"
    partial = "gives a partial sum; reduce it with matmul_chain_reduce"
    if a.spec.axis == k_a and b.spec.axis is None:
        why = "Every mesh would multiply its slice of K by the whole of K."
        instead = [
            (split_b, partial),
            (f"group.copy({a.name})", "with b copied, every mesh computes the whole product"),
        ]
    elif b.spec.axis == k_b and a.spec.axis is None:
        why = "Every mesh would multiply the whole of K by its slice of K."
        instead = [(split_a, partial), (columns, "gives a result split on its columns")]
    else:
        why = "Every mesh would see only some of the pairs of a row of `a` and a row of `b`."
        instead = [
            (f"group.copy({a.name}), {columns}", "gives a result split on its columns"),
            (f"{rows}, group.copy({b.name})", "gives a result split on its rows"),
            (f"{split_a}, {split_b}", partial),
        ]
    width = max(len(call) for call, _ in instead)
    lines = [f"{call:<{width}}   {gives}" for call, gives in instead]
    legal = "\n                  ".join(lines)
    return f"matmul: {_matmul_side(a, k_a)} and {_matmul_side(b, k_b)}.\n  {why}\n  Legal instead:  {legal}"


def _matmul_side(side: Argument, k: int) -> str:
    tail = ", the contraction," if side.spec.axis == k else ""
    return f"{side}{tail}"


def pairing(a: Sharded, b: Sharded) -> tuple[Spec, ...]:
    """The specs of `a @ b.T` where it can be had without moving data, one a grid axis; else `SplitError`."""
    return result_specs(MatrixProduct(), (a, b), ("a", "b"))


def result_specs(kernel: Kernel, values: Sequence[Sharded], names: Sequence[str]) -> tuple[Spec, ...]:
    """The specs of a kernel's result over the values' ranks, one for each grid axis."""
    specs: list[Spec] = []
    for axis, count in enumerate(values[0].ranks.grid):
        arguments = [Argument(v.name or n, v.shaped, v.specs[axis]) for v, n in zip(values, names, strict=True)]
        specs.append(result_spec(kernel, arguments, count))
    return tuple(specs)
