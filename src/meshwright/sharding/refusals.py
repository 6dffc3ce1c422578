"""What a pairing of splits is refused with: what was found, why it has no reading, and the calls that would do."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from meshwright.ir.pool import Pool
from meshwright.ir.spec import Spec
from meshwright.kernels.kernel import Kernel, Shaped

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


def found(kernel: Kernel, arguments: Sequence[Argument]) -> str:
    """The kernel and its operands with their specs."""
    *first, last = map(str, arguments)
    return f"{kernel.name}: {', '.join(first)} and {last}" if first else f"{kernel.name}: {last}"


class NoReading(Exception):  # noqa: N818 - it is caught where the message is made, and is no error by itself.
    """Operands whose specs have no reading free of moving, and why, in a sentence."""


def pools_differ() -> NoReading:
    """Partials in different pools."""
    return NoReading("Contributions that are folded in different ways have no common fold.")


def split_meets_partial() -> NoReading:
    """A slice and a contribution to the whole."""
    return NoReading("Every rank would combine its slice of one with a contribution to the whole of the other.")


def not_before_the_fold(kernel: Kernel, arguments: Sequence[Argument], partial: Sequence[int], pool: Pool) -> NoReading:
    """A kernel of contributions that says nothing about the kernel of their fold."""
    names = " and ".join(f"`{arguments[i].name}`" for i in partial)
    others = [a for i, a in enumerate(arguments) if i not in partial]
    operands = [a.shaped for a in arguments]
    if pool is Pool.SUM and others and kernel.linear_in(frozenset(range(len(arguments))), operands):
        what = " and ".join(f"`{a.name}`" for a in others)
        return NoReading(
            f"Every rank would take in {what} with its contribution, and the sum would hold {what} once a rank."
        )
    subject = "The function" if kernel.name == "<lambda>" else kernel.name
    return NoReading(f"{subject} of every contribution, folded by {pool.value}, is not that of {names}.")


def mixes(kernel: Kernel, argument: Argument, count: int) -> NoReading:
    """A split along an axis that the kernel mixes."""
    return NoReading(
        f"{kernel.name} mixes elements along axis {argument.spec.axis} of `{argument.name}`, and every rank would see "
        f"only its {share(count)}."
    )


def axes_differ() -> NoReading:
    """Splits along different axes of the result."""
    return NoReading("They are split along different axes of the result, so that no rank has what goes together.")


def whole_meets_slice(split: Argument, whole: Argument, count: int) -> NoReading:
    """A copied operand that has the whole of an axis of which another has a slice."""
    return NoReading(f"Every rank would meet its {share(count)} of `{split.name}` with the whole of `{whole.name}`.")


def change(argument: Argument, spec: Spec) -> str:
    """The call that takes an operand from its spec to another one."""
    if argument.spec.partial is not None:
        if spec.axis is None:
            return f"group.all_reduce({argument.name})"
        return f"group.reduce_scatter({argument.name}, axis={spec.axis})"
    return f"group.reshard({argument.name}, {'COPIED' if spec.axis is None else f'Spec.on({spec.axis})'})"


def gives(spec: Spec) -> str:
    """What a result with this spec is."""
    if spec.partial is not None:
        return f"gives a partial {spec.partial.value}"
    return "every rank computes the whole" if spec.axis is None else f"gives a result split on axis {spec.axis}"


def matmul(arguments: Sequence[Argument], count: int) -> str:
    """The message for a product of operands that are split so that no reading is free of moving."""
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
            (f"group.copy({a.name})", f"with {b.name} copied, every mesh computes the whole product"),
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
