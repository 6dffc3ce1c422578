"""What kernels ask of their operands, and the refusals they share."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.errors import KernelError
from meshwright.kernels.kernel import Shaped


def named(operands: Sequence[Shaped]) -> str:
    """Operands for messages: `f16[32, 384] and f16[384]`."""
    return " and ".join(map(str, operands)) or "none"


def require_operands(name: str, operands: Sequence[Shaped], takes: dict[int, str] | None = None) -> None:
    """Raises `KernelError` for another number of operands than the readings in `takes` have, or an empty operand."""
    if takes is not None and len(operands) not in takes:
        ways = ", or ".join(takes.values())
        raise KernelError(f"{name} takes {ways}; {len(operands)} operands are given: {named(operands)}")
    for number, operand in enumerate(operands):
        if 0 in operand.shape:
            raise KernelError(f"{name}: operand {number} is {operand}, which has no elements; there is nothing to do")


def require_floats(name: str, operands: Sequence[Shaped]) -> None:
    """Raises `KernelError` for whole numbers where the kernel computes."""
    for number, operand in enumerate(operands):
        if operand.format.is_integer:
            raise KernelError(
                f"{name}: operand {number} is {operand}, whole numbers; it computes with floats. Put the values as "
                "floats: values.astype(numpy.float16)"
            )


def resolved_axis(name: str, axis: int, operand: Shaped) -> int:
    """`axis` counted from the front; `KernelError` for one that isn't there."""
    rank = len(operand.shape)
    if not -rank <= axis < rank:
        raise KernelError(f"{name}: axis {axis} of {operand}, which has {rank} axes")
    return axis % rank


def require_broadcasts_into(name: str, what: str, operand: Shaped, whole: Shaped) -> None:
    """Raises `KernelError` unless `operand` broadcasts to the shape of `whole` by numpy's rules."""
    lined_up = zip(reversed(operand.shape), reversed(whole.shape), strict=False)
    if len(operand.shape) > len(whole.shape) or any(size not in (1, full) for size, full in lined_up):
        raise KernelError(
            f"{name}: {what} is {operand} and the operand {whole}; it has to broadcast to that shape: axes line up "
            "from the last one, each of the same size or of size 1"
        )


def axes_from_the_last(shape: Sequence[int], rank: int) -> tuple[int, ...]:
    """The axis, of `rank`, of each axis of a shape that lines up from the last one."""
    return tuple(range(rank - len(shape), rank))


def axes_but(shape: Sequence[int], rank: int, mixed: int) -> tuple[int | None, ...]:
    """The same, but None for the axis `mixed`."""
    return tuple(None if axis == mixed else axis for axis in axes_from_the_last(shape, rank))
