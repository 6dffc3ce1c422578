"""Rules against an oracle: every kernel with every combination of specs, on simulated ranks, in float64.

A rule is *wrong* where it calls a combination legal and the ranks' results, put together as it says, are not the
result of the unsplit operands. It is *missing* where a combination is refused and there is a spec under which they
would have been. Operands are of both signs, contributions of uneven size, and pieces scaled by 1, 16, 256, 4096 from
rank to rank, so that a piece in the wrong place shows in the digits; what only holds by chance holds in one sample and
not in the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright import targets
from meshwright.errors import EvaluationError, GraphError, KernelError, SplitError
from meshwright.evaluate.arithmetic import Array
from meshwright.evaluate.real import RealArithmetic
from meshwright.evaluate.walk import evaluate
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.pool import Pool
from meshwright.ir.spec import COPIED, Spec
from meshwright.kernels.alone import RESULT, graph_alone, operand_name
from meshwright.kernels.kernel import Kernel, Shaped
from meshwright.machine import MachineSpec
from meshwright.sharding.catalogue import Sample, catalogue
from meshwright.sharding.group import MeshGroup
from meshwright.sharding.refusals import Argument
from meshwright.sharding.rules import result_spec
from meshwright.sharding.value import Sharded

POOLS: Final = (Pool.SUM, Pool.MAX, Pool.MIN, Pool.PROD)
_FOLDS: Final[dict[Pool, Callable[..., Array]]] = {
    Pool.SUM: np.sum,
    Pool.MAX: np.max,
    Pool.MIN: np.min,
    Pool.PROD: np.prod,
}
_SCALES: Final = (1.0, 16.0, 256.0, 4096.0)

Progress = Callable[[int, int], None]


class Case(Struct, frozen=True):
    """One combination: a kernel with its operands, their specs, and what was found.

    rule: the spec that the rules give, or "refused". truth: the spec under which the ranks' results are right, or
    "none".
    """

    kernel: str
    specs: tuple[str, ...]
    rule: str
    truth: str

    def __str__(self) -> str:
        return f"{self.kernel}: {', '.join(self.specs)}: {self.rule}, and {self.truth} would be right"


class Row(Struct, frozen=True):
    """What came out for one kernel: combinations tried, how many of them the rules allow, the faults."""

    kernel: str
    combinations: int
    legal: int
    wrong: tuple[Case, ...]
    missing: tuple[Case, ...]


def sweep(
    machine: MachineSpec, ranks: int = 2, only: str | None = None, progress: Progress | None = None
) -> tuple[Row, ...]:
    """A row for every sample of the catalogue whose kernel's name contains `only`.

    ranks: of the group; legal combinations are run on it, over links and all. progress: called with (kernels done,
    kernels in all).
    """
    group = MeshGroup.open(machine, ranks, RealArithmetic())
    samples = [s for s in catalogue() if only is None or only in str(s)]
    rows: list[Row] = []
    for done, sample in enumerate(samples, start=1):
        rows.append(swept(group, sample, sample.kernel))
        if progress is not None:
            progress(done, len(samples))
    return tuple(rows)


def swept(group: MeshGroup, sample: Sample, kernel: Kernel, rule: Callable[..., Spec] = result_spec) -> Row:
    """One kernel, judged by `rule`: what it allows is run on the group, what it refuses is looked for a reading of."""
    count = len(group)
    # A single number says little: what holds of one pair of them may hold by chance.
    few = max(math.prod(shaped.shape) for shaped in sample.operands) < 16
    tried = [_Operands.of(sample, count, seed) for seed in range(32 if few else 2)]
    legal = 0
    combinations = 0
    wrong: list[Case] = []
    missing: list[Case] = []
    for specs in _combinations(sample.operands, count):
        combinations += 1
        arguments = [
            Argument(chr(ord("a") + i), shaped, spec)
            for i, (shaped, spec) in enumerate(zip(sample.operands, specs, strict=True))
        ]
        try:
            found: Spec | None = rule(kernel, arguments, count)
        except SplitError:
            found = None
        right = _specs_that_are_right(group.machine, kernel, sample.operands, specs, tried, found)
        case = Case(
            str(sample),
            tuple(map(str, specs)),
            "refused" if found is None else str(found),
            str(right[0]) if right else "none",
        )
        if found is None:
            if right:
                missing.append(case)
            continue
        legal += 1
        if found not in right or not all(_runs_as_it_should(group, kernel, specs, found, t) for t in tried):
            wrong.append(case)
    return Row(str(sample), combinations, legal, tuple(wrong), tuple(missing))


def _combinations(operands: Sequence[Shaped], count: int) -> Iterator[tuple[Spec, ...]]:
    """Copied, split on every axis that divides, or partial, for each operand; partials in one pool at a time."""
    seen: dict[tuple[Spec, ...], None] = {}
    for pool in POOLS:
        choices: list[list[Spec]] = []
        for operand in operands:
            split = [Spec.on(a) for a, size in enumerate(operand.shape) if size % count == 0]
            partial = [] if operand.format.is_integer else [Spec(partial=pool)]
            choices.append([COPIED, *split, *partial])
        seen.update(dict.fromkeys(product(*choices)))
    return iter(seen)


class _Operands(Struct, frozen=True, eq=False):
    """Numbers to try a sample on: whole operands, and for each pool contributions, one a rank, to other wholes."""

    count: int
    whole: tuple[Array, ...]
    contributions: dict[Pool, tuple[tuple[Array, ...], ...]]

    @classmethod
    def of(cls, sample: Sample, count: int, seed: int) -> _Operands:
        rng = np.random.default_rng(seed)
        # Scaled numbers leave the range of most functions, so the first sample isn't.
        scales = _SCALES if seed % 2 else (1.0,) * len(_SCALES)
        whole = tuple(_numbers(rng, shaped, sample.whole, scales, count) for shaped in sample.operands)
        contributions = {
            pool: tuple(
                tuple(rng.standard_normal(shaped.shape) * (0.4 + 0.2 * r) * scales[r % 4] for r in range(count))
                for shaped in sample.operands
            )
            for pool in POOLS
        }
        return cls(count, whole, contributions)

    def value(self, operand: int, spec: Spec) -> Array:
        """The whole value of an operand that is spread as `spec` says."""
        if spec.partial is None:
            return self.whole[operand]
        return np.asarray(_FOLDS[spec.partial](np.stack(self.contributions[spec.partial][operand]), axis=0))

    def pieces(self, operand: int, spec: Spec) -> list[Array]:
        """What every rank has of it."""
        if spec.partial is not None:
            return list(self.contributions[spec.partial][operand])
        whole = self.whole[operand]
        return [whole[place] for place in spec.slices(whole.shape, self.count)]


def _numbers(rng: np.random.Generator, shaped: Shaped, below: int, scales: Sequence[float], count: int) -> Array:
    if shaped.format.is_integer:
        return rng.integers(0, below, shaped.shape)
    values = rng.standard_normal(shaped.shape)
    # Slices along every axis are scaled, so that whichever of them is split its pieces differ.
    for axis, size in enumerate(shaped.shape):
        if size % count == 0:
            factor = np.repeat([scales[r % 4] for r in range(count)], size // count)
            values = values * factor.reshape([-1 if a == axis else 1 for a in range(len(shaped.shape))])
    return np.asarray(values)


def _specs_that_are_right(
    machine: MachineSpec,
    kernel: Kernel,
    operands: Sequence[Shaped],
    specs: Sequence[Spec],
    tried: Sequence[_Operands],
    stated: Spec | None,
) -> list[Spec]:
    """The specs under which the results of the ranks, each on its own pieces, are the result of the whole operands."""
    right: list[Spec] | None = None
    for numbers in tried:
        whole = [numbers.value(i, spec) for i, spec in enumerate(specs)]
        pieces = [numbers.pieces(i, spec) for i, spec in enumerate(specs)]
        truth = _alone(machine, kernel, operands, whole)
        results = [_alone(machine, kernel, operands, [p[rank] for p in pieces]) for rank in range(numbers.count)]
        if truth is None or any(r is None for r in results):
            return []
        made = [r for r in results if r is not None]
        candidates = _candidates(len(truth.shape), stated) if right is None else right
        right = [spec for spec in candidates if _same(_joined(made, spec), truth)]
        if not right:
            break
    return right or []


def _candidates(rank: int, stated: Spec | None) -> list[Spec]:
    every = [COPIED, *(Spec.on(a) for a in range(rank)), *(Spec(partial=pool) for pool in POOLS)]
    return every if stated is None else [stated, *(s for s in every if s != stated)]


def _alone(machine: MachineSpec, kernel: Kernel, operands: Sequence[Shaped], arrays: Sequence[Array]) -> Array | None:
    """What the kernel makes of these arrays on one chip; None where it can't take them."""
    shapes = tuple(Shaped(a.shape, o.format) for a, o in zip(arrays, operands, strict=True))
    try:
        graph = _graph(machine, kernel, shapes)
        given = {operand_name(i): (array,) for i, array in enumerate(arrays)}
        return evaluate(graph, given, RealArithmetic())[RESULT][0]
    except (KernelError, EvaluationError, GraphError):
        return None


@lru_cache(maxsize=1024)
def _graph(machine: MachineSpec, kernel: Kernel, shapes: tuple[Shaped, ...]) -> Graph:
    place = next(p for mesh in machine.mesh_ids if (p := targets.placement(machine, mesh)).has_vector_units)
    return graph_alone(kernel, place, shapes)


def _joined(pieces: Sequence[Array], spec: Spec) -> Array | None:
    """The value whose pieces these are under `spec`; None where they aren't pieces of one value."""
    if len({piece.shape for piece in pieces}) > 1:
        return None
    if spec.partial is not None:
        return np.asarray(_FOLDS[spec.partial](np.stack(pieces), axis=0))
    if spec.axis is not None:
        return np.concatenate(pieces, axis=spec.axis) if spec.axis < pieces[0].ndim else None
    return pieces[0] if all(_same(piece, pieces[0]) for piece in pieces) else None


def _same(values: Array | None, truth: Array) -> bool:
    """Equal but for the rounding of float64, in the order of the sums; numbers that aren't in the same places."""
    if values is None or values.shape != truth.shape:
        return False
    finite = np.isfinite(truth)
    if not np.array_equal(values[~finite], truth[~finite], equal_nan=True):
        return False
    size = float(np.max(np.abs(truth[finite]), initial=0.0))
    near: NDArray[Any] = np.abs(values[finite] - truth[finite]) <= 1e-9 * np.abs(truth[finite]) + 1e-13 * size
    return bool(near.all())


def _runs_as_it_should(group: MeshGroup, kernel: Kernel, specs: Sequence[Spec], found: Spec, tried: _Operands) -> bool:
    """Whether the plan of a legal combination, run on the group, has that spec and the result of the whole."""
    values: list[Sharded] = []
    operands: list[Shaped] = []
    for number, spec in enumerate(specs):
        pieces = tried.pieces(number, spec)
        element = ElementType.I32 if pieces[0].dtype.kind == "i" else ElementType.F16
        held = [group.devices[m].hold(np.array(p), element) for m, p in zip(group.meshes, pieces, strict=True)]
        values.append(group.assemble(held, spec))
        operands.append(values[-1].shaped)
    result = group.run(group.plan_each(kernel, *values))
    pieces = [part.numpy() for part in result.parts]
    truth = _alone(group.machine, kernel, operands, [tried.value(i, spec) for i, spec in enumerate(specs)])
    group.free(result, *values)
    return result.spec == found and truth is not None and _same(_joined(pieces, found), truth)
