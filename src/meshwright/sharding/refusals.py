"""What a pairing of splits is refused with: what was found, why it has no reading, and the calls that would do."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from meshwright.ir.pool import Pool
from meshwright.ir.spec import Spec
from meshwright.kernels.kernel import Kernel, Shaped
from meshwright.kernels.matmul import MatrixProduct

Call = tuple[str, str]
"""A call that would be legal, and what it gives."""

_SHARES = {2: "half", 3: "third", 4: "quarter"}


class Argument(Struct, frozen=True):
    """An operand as messages name it: what it is called, its logical shape, and its spec along one grid axis."""

    name: str
    shaped: Shaped
    spec: Spec

    def __str__(self) -> str:
        return f"`{self.name}` {self.shaped} {described(self.spec)}"


def described(spec: Spec) -> str:
    """`is split on axis 1`, `is copied`, `is a partial sum`."""
    if spec.partial is not None:
        return f"is a partial {spec.partial.value}"
    return "is copied" if spec.axis is None else f"is split on axis {spec.axis}"


def share(count: int) -> str:
    """What a rank has of what is split over `count`."""
    return _SHARES.get(count, "slice")


def message(found: str, why: str, instead: Sequence[Call]) -> str:
    """What was found; why there is no reading; the calls that would be legal, one a line with what each gives."""
    width = max(len(call) for call, _ in instead)
    calls = "\n                  ".join(f"{call:<{width}}   {gives}" for call, gives in instead)
    return f"{found}.\n  {why}\n  Legal instead:  {calls}"


def _found(kernel: Kernel, arguments: Sequence[Argument]) -> str:
    *first, last = map(str, arguments)
    return f"{kernel.name}: {', '.join(first)} and {last}" if first else f"{kernel.name}: {last}"


def _folds(arguments: Sequence[Argument], which: Sequence[int]) -> list[Call]:
    names = [arguments[i].name for i in which]
    return [
        (", ".join(f"group.all_reduce({name})" for name in names), "every rank then has the whole of it"),
    ]


def pools_differ(kernel: Kernel, arguments: Sequence[Argument], partial: Sequence[int]) -> str:
    """Partials in different pools."""
    why = "Contributions that are folded in different ways have no common fold."
    return message(_found(kernel, arguments), why, _folds(arguments, partial))


def split_meets_partial(kernel: Kernel, arguments: Sequence[Argument], partial: Sequence[int]) -> str:
    """A slice and a contribution to the whole."""
    why = "Every rank would combine its slice of one with a contribution to the whole of the other."
    split = next(a for a in arguments if a.spec.axis is not None)
    name = arguments[partial[0]].name
    calls = [*_folds(arguments, partial)]
    if arguments[partial[0]].shaped.shape == split.shaped.shape:
        calls.insert(0, (f"group.reduce_scatter({name}, axis={split.spec.axis})", f"then split as `{split.name}` is"))
    return message(_found(kernel, arguments), why, calls)


def not_before_the_fold(kernel: Kernel, arguments: Sequence[Argument], partial: Sequence[int], pool: Pool) -> str:
    """A kernel of contributions that says nothing about the kernel of their fold."""
    names = " and ".join(f"`{arguments[i].name}`" for i in partial)
    others = [a for i, a in enumerate(arguments) if i not in partial]
    operands = [a.shaped for a in arguments]
    if pool is Pool.SUM and others and kernel.linear_in(frozenset(range(len(arguments))), operands):
        what = " and ".join(f"`{a.name}`" for a in others)
        why = f"Every rank would take in {what} with its contribution, and the sum would hold {what} once a rank."
    else:
        why = f"{kernel.name} of every contribution, folded by {pool.value}, is not {kernel.name} of {names}."
    return message(_found(kernel, arguments), why, _folds(arguments, partial))


def mixes(kernel: Kernel, arguments: Sequence[Argument], number: int, count: int) -> str:
    """A split along an axis that the kernel mixes."""
    if isinstance(kernel, MatrixProduct):
        return _matmul(arguments, count)
    split = arguments[number]
    axes = kernel.axes([a.shaped for a in arguments])[number]
    free = [axis for axis, target in enumerate(axes) if target is not None and split.shaped.shape[axis] % count == 0]
    calls = [(f"group.reshard({split.name}, Spec.on({a}))", f"{kernel.name} works along axis {a} alone") for a in free]
    calls.append((f"group.reshard({split.name}, COPIED)", "every rank then has all of it"))
    why = f"{kernel.name} mixes elements along that axis, and every rank would see only its {share(count)}."
    together = _contraction_calls(kernel, arguments)
    return message(_found(kernel, arguments), why, together + calls)


def _contraction_calls(kernel: Kernel, arguments: Sequence[Argument]) -> list[Call]:
    """Where the axis is one that slices of all operands are folded along: all of them split there."""
    for contraction in kernel.contractions([a.shaped for a in arguments]):
        taking = [(a, axis) for a, axis in zip(arguments, contraction.axes, strict=True) if axis is not None]
        if any(a.spec.axis == axis for a, axis in taking):
            calls = ", ".join(f"group.split({a.name}, axis={axis})" for a, axis in taking if a.spec.axis != axis)
            if calls:
                return [(calls, f"gives a partial {contraction.pool.value}")]
    return []


def axes_differ(kernel: Kernel, arguments: Sequence[Argument], along: dict[int, int], count: int) -> str:
    """Splits along different axes of the result."""
    if isinstance(kernel, MatrixProduct):
        return _matmul(arguments, count)
    why = "They are split along different axes of the result, so that no rank has what goes together."
    return message(_found(kernel, arguments), why, _alike(kernel, arguments, along))


def whole_meets_slice(
    kernel: Kernel, arguments: Sequence[Argument], along: dict[int, int], number: int, count: int
) -> str:
    """A copied operand that has the whole of an axis of which another has a slice."""
    if isinstance(kernel, MatrixProduct):
        return _matmul(arguments, count)
    split = arguments[next(iter(along))]
    why = f"Every rank would meet its {share(count)} of `{split.name}` with the whole of `{arguments[number].name}`."
    return message(_found(kernel, arguments), why, _alike(kernel, arguments, along))


def _alike(kernel: Kernel, arguments: Sequence[Argument], along: dict[int, int]) -> list[Call]:
    """The others split as the first split operand is, or that one copied."""
    first, target = next(iter(along.items()))
    axes = kernel.axes([a.shaped for a in arguments])
    changes: list[str] = []
    for number, argument in enumerate(arguments):
        mine = [a for a, t in enumerate(axes[number]) if t == target and argument.shaped.shape[a] != 1]
        if number != first and mine and argument.spec.axis != mine[0]:
            changes.append(f"group.reshard({argument.name}, Spec.on({mine[0]}))")
    copies = ", ".join(f"group.reshard({arguments[i].name}, COPIED)" for i in along)
    return [
        (", ".join(changes) or copies, f"then split as `{arguments[first].name}` is"),
        *([(copies, "every rank then computes the whole result")] if changes else []),
    ]


def _matmul(arguments: Sequence[Argument], count: int) -> str:
    a, b = arguments
    k_a, k_b = len(a.shaped.shape) - 1, len(b.shaped.shape) - 1
    split_a, split_b = f"group.split({a.name}, axis={k_a})", f"group.split({b.name}, axis={k_b})"
    columns, rows = f"group.split({b.name}, axis={k_b - 1})", f"group.split({a.name}, axis={k_a - 1})"
    partial = "gives a partial sum; reduce it with matmul_chain_reduce"
    part = share(count)
    if a.spec.axis == k_a and b.spec.axis is None:
        why = f"Every mesh would multiply its {part} of K by the whole of K."
        instead = [
            (split_b, partial),
            (f"group.copy({a.name})", f"with `{b.name}` copied, every mesh computes the whole product"),
        ]
    elif b.spec.axis == k_b and a.spec.axis is None:
        why = f"Every mesh would multiply the whole of K by its {part} of K."
        instead = [(split_a, partial), (columns, "gives a result split on its columns")]
    else:
        why = f"Every mesh would see only some of the pairs of a row of `{a.name}` and a row of `{b.name}`."
        instead = [
            (f"group.copy({a.name}), {columns}", "gives a result split on its columns"),
            (f"{rows}, group.copy({b.name})", "gives a result split on its rows"),
            (f"{split_a}, {split_b}", partial),
        ]
    return message(f"matmul: {_side(a, k_a)} and {_side(b, k_b)}", why, instead).replace(",.", ".", 1)


def _side(side: Argument, k: int) -> str:
    return f"{side}{', the contraction,' if side.spec.axis == k else ''}"
