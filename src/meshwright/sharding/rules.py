"""Which split a result has: readings that need no data moved. What has none is refused, with the calls that would do.

One rule for every kernel, from what the kernel says of itself: along which axes it works element for element,
which axes it folds away, and what may be done to contributions before they are folded. For `a @ b.T` it comes to
exactly three readings besides the one where both are copied: copied x split 0 gives split on columns, split 0 x copied
gives split on rows, split on K x split on K gives a partial sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice, product
from typing import Any, Protocol, cast, runtime_checkable

from msgspec import Struct

from meshwright.errors import SplitError
from meshwright.ir.build import GraphBuilder
from meshwright.ir.commuting import commutes
from meshwright.ir.ids import StageId
from meshwright.ir.pool import Pool
from meshwright.ir.spec import COPIED, Spec
from meshwright.kernels.elementwise import Elementwise, elementwise
from meshwright.kernels.embedding import Embedding
from meshwright.kernels.join import Concat, Slice
from meshwright.kernels.kernel import Contraction, Kernel, Piece, Shaped, UnitKind
from meshwright.kernels.matmul import MatrixProduct
from meshwright.kernels.norm import LayerNorm
from meshwright.kernels.placement import Placement
from meshwright.kernels.rearrange import Rearrange
from meshwright.kernels.reduce import Reduction
from meshwright.sharding import refusals
from meshwright.sharding.refusals import Argument, Call, NoReading
from meshwright.sharding.value import Sharded


class Undeclared(Struct, frozen=True):
    """A kernel that doesn't say what it mixes: it counts as mixing every axis and as linear in nothing."""

    kernel: Kernel

    @property
    def name(self) -> str:
        """That of the kernel."""
        return self.kernel.name

    @property
    def unit(self) -> UnitKind:
        """That of the kernel."""
        return self.kernel.unit

    def result(self, operands: Sequence[Shaped]) -> Shaped:
        """That of the kernel."""
        return self.kernel.result(operands)

    def axes(self, operands: Sequence[Shaped]) -> tuple[tuple[int | None, ...], ...]:
        """Everything is mixed, unless the kernel says otherwise."""
        if hasattr(self.kernel, "axes"):
            return self.kernel.axes(operands)
        return tuple((None,) * len(o.shape) for o in operands)

    def contractions(self, operands: Sequence[Shaped]) -> tuple[Contraction, ...]:
        """None, unless the kernel says otherwise."""
        return self.kernel.contractions(operands) if hasattr(self.kernel, "contractions") else ()

    def linear_in(self, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
        """In nothing, unless the kernel says otherwise."""
        return hasattr(self.kernel, "linear_in") and self.kernel.linear_in(together, operands)

    def emit(
        self, builder: GraphBuilder, placement: Placement, operands: Sequence[Piece], result: Piece
    ) -> tuple[StageId, ...]:
        """As the kernel does."""
        return self.kernel.emit(builder, placement, operands, result)


def declared(kernel: Kernel | Callable[..., Any]) -> Kernel:
    """A kernel as it is; a Python function over elements traced into one; one that says too little, taken at its least.

    Raises `SplitError` for what is neither.
    """
    if not hasattr(kernel, "emit"):
        if not callable(kernel):
            raise SplitError(
                f"{kernel!r} is no kernel: pass one of meshwright.kernels, or a function of elements such as "
                "lambda x: x * 2.0"
            )
        return elementwise(kernel)
    missing = [name for name in ("name", "unit", "result") if not hasattr(kernel, name)]
    if missing:
        raise SplitError(
            f"{type(kernel).__name__} has no {' and no '.join(missing)}, so there is no telling what it makes or where "
            "it runs; see meshwright.kernels.kernel.Kernel"
        )
    known = cast("Kernel", kernel)
    if all(hasattr(kernel, name) for name in ("axes", "contractions", "linear_in")):
        return known
    return Undeclared(known)


@runtime_checkable
class Commuting(Protocol):
    """A kernel that says of itself what may be done to contributions in pools other than Sum."""

    def commutes_with(self, pool: Pool, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
        """Whether the kernel of folded operands is the fold of the kernel of contributions; see `ir.commuting`."""
        ...


def may_stay_partial(kernel: Kernel, pool: Pool, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
    """Whether a kernel of contributions gives contributions to its result, the other operands being the same on all.

    together: the operands that are contributions, in one pool. False where that isn't known.
    """
    if pool is Pool.SUM:
        return kernel.linear_in(together, operands)
    if isinstance(kernel, Commuting):
        return kernel.commutes_with(pool, together, operands)
    match kernel:
        case Elementwise(expr=expr):
            return commutes(expr, pool, together)
        case Reduction(fold=fold):
            return fold == pool.value
        case Rearrange() | Slice() | Concat():
            return pool in (Pool.MAX, Pool.MIN) or (pool is Pool.PROD and len(together) == len(operands))
        case LayerNorm():
            return together == frozenset({len(operands) - 1}) and pool in (Pool.MAX, Pool.MIN)  # What is added last.
        case Embedding():
            return together == frozenset({0}) and pool is not Pool.ARGMAX
        case _:
            return False


def result_spec(kernel: Kernel, arguments: Sequence[Argument], count: int) -> Spec:
    """The spec of the kernel's result over `count` ranks. Raises `SplitError` where no reading is free of moving."""
    operands = [a.shaped for a in arguments]
    kernel.result(operands)
    for argument in arguments:
        argument.spec.local(argument.shaped.shape, count)
    try:
        return _reading(kernel, arguments, count)
    except NoReading as reason:
        if isinstance(kernel, MatrixProduct) and all(a.spec.partial is None for a in arguments):
            raise SplitError(refusals.matmul(arguments, count)) from None
        instead = _legal_instead(kernel, arguments, count)
        raise SplitError(refusals.message(refusals.found(kernel, arguments), str(reason), instead)) from None


def _reading(kernel: Kernel, arguments: Sequence[Argument], count: int) -> Spec:
    """The spec of the result; `NoReading` where there is none."""
    if any(a.spec.partial is not None for a in arguments):
        return _partial(kernel, arguments)
    if count == 1 or all(a.spec.is_copied for a in arguments):
        # One rank holds the whole of everything.
        return COPIED
    return _split(kernel, arguments, count)


_MOST_TRIED = 4096


def _legal_instead(kernel: Kernel, arguments: Sequence[Argument], count: int) -> list[Call]:
    """Up to three ways to spread the operands otherwise that have a reading, those that change fewest first."""
    choices = [_other_specs(argument, count) for argument in arguments]
    tried = sorted(islice(product(*choices), _MOST_TRIED), key=lambda specs: _changes(arguments, specs))
    calls: dict[Spec, Call] = {}
    for specs in tried:
        changed = [Argument(a.name, a.shaped, spec) for a, spec in zip(arguments, specs, strict=True)]
        try:
            spec = _reading(kernel, changed, count)
            spec.local(kernel.result([a.shaped for a in arguments]).shape, count)
        except (NoReading, SplitError):
            continue
        moves = ", ".join(refusals.change(a, s) for a, s in zip(arguments, specs, strict=True) if s != a.spec)
        calls.setdefault(spec, (moves, refusals.gives(spec)))
        if len(calls) == 3:
            break
    return list(calls.values())


def _other_specs(argument: Argument, count: int) -> list[Spec]:
    """As it is, copied, or split on an axis that divides."""
    split = [Spec.on(a) for a, size in enumerate(argument.shaped.shape) if size % count == 0 and size]
    return list(dict.fromkeys([argument.spec, COPIED, *split]))


def _changes(arguments: Sequence[Argument], specs: Sequence[Spec]) -> int:
    return sum(a.spec != spec for a, spec in zip(arguments, specs, strict=True))


def _partial(kernel: Kernel, arguments: Sequence[Argument]) -> Spec:
    partial = [i for i, a in enumerate(arguments) if a.spec.partial is not None]
    pools = {a.spec.partial for a in arguments if a.spec.partial is not None}
    pool = next(iter(pools))
    if len(pools) > 1:
        raise refusals.pools_differ()
    if any(a.spec.axis is not None for a in arguments):
        raise refusals.split_meets_partial()
    if may_stay_partial(kernel, pool, frozenset(partial), [a.shaped for a in arguments]):
        return Spec(partial=pool)
    raise refusals.not_before_the_fold(kernel, arguments, partial, pool)


def _split(kernel: Kernel, arguments: Sequence[Argument], count: int) -> Spec:
    axes = kernel.axes([a.shaped for a in arguments])
    contracted = _contracted(kernel, arguments)
    if contracted is not None:
        return contracted
    along: dict[int, int] = {}
    for number, argument in enumerate(arguments):
        if argument.spec.axis is None:
            continue
        target = axes[number][argument.spec.axis]
        if target is None:
            raise refusals.mixes(kernel, argument, count)
        along[number] = target
    targets = set(along.values())
    if len(targets) > 1:
        raise refusals.axes_differ()
    target = targets.pop()
    for number, argument in enumerate(arguments):
        if argument.spec.axis is None and _spans(argument.shaped, axes[number], target):
            raise refusals.whole_meets_slice(arguments[next(iter(along))], argument, count)
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


def pairing(a: Sharded, b: Sharded, along: int = 0) -> Spec:
    """The spec of `a @ b.T` along a grid axis where it can be had without moving data, else `SplitError`.

    On a line of ranks there are three readings: copied x split 0 gives split 1, split 0 x copied gives split 0 and
    split 1 x split 1 gives a partial sum; and copied x copied is copied.
    """
    return result_specs(MatrixProduct(), (a, b), ("a", "b"))[along]


def result_specs(kernel: Kernel, values: Sequence[Sharded], names: Sequence[str]) -> tuple[Spec, ...]:
    """The specs of a kernel's result over the values' ranks, one for each grid axis."""
    specs: list[Spec] = []
    for axis, count in enumerate(values[0].ranks.grid):
        arguments = [Argument(v.name or n, v.shaped, v.specs[axis]) for v, n in zip(values, names, strict=True)]
        specs.append(result_spec(kernel, arguments, count))
    return tuple(specs)
