"""Comparing two graphs in real arithmetic, where laws of exp, log and the like hold, up to float64's rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from meshwright.certify.systems import RealSystem, System
from meshwright.errors import EvaluationError
from meshwright.evaluate.arithmetic import Array

TOLERANCE: Final = 1e-9
"""Of the larger of an expected element's magnitude and the root mean square of all of that piece."""
DRAWS: Final = 3

Sides = Sequence[tuple[str, Array, Array]]
"""Name of an output, what was made, what was expected."""


class RealDifference(Struct, frozen=True):
    """One element of an output in real arithmetic, where it differs most."""

    output: str
    index: tuple[int, ...]
    found: float
    expected: float

    def __str__(self) -> str:
        return f"{self.output!r} at {list(self.index)} is {self.found:.9g}, not {self.expected:.9g}"


def compare_in_reals(sides: Callable[[System], Sides], seed: int) -> RealDifference | str:
    """The largest difference on a few random inputs, or why that shows none.

    Three draws: two around zero, one positive. An element that is no finite number on either side says nothing.
    """
    largest, compared = 0.0, 0
    for draw in range(DRAWS):
        system = RealSystem(seed + draw, positive=draw == DRAWS - 1)
        try:
            found = sides(system)
        except EvaluationError as error:
            return f"they differ on residues, and can't be compared in real arithmetic: {error}"
        for name, made, expected in found:
            count, excess, difference = _worst(name, made, expected)
            compared += count
            largest = max(largest, excess)
            if difference is not None:
                return difference
    if not compared:
        return "they differ on residues, and in real arithmetic nothing finite comes out on random inputs"
    return (
        f"they differ on residues, where exp2, log2 and rsqrt are any functions, and agree in real arithmetic on "
        f"{DRAWS} random inputs (largest difference {largest:.1g}, tolerance {TOLERANCE:g}): "
        "they may be equal by a law of these functions, or differ by less than that"
    )


def _worst(name: str, made: Array, expected: Array) -> tuple[int, float, RealDifference | None]:
    """Elements compared, the largest relative difference, and that element where it is too large."""
    x, y = np.asarray(made, np.float64).reshape(-1), np.asarray(expected, np.float64).reshape(-1)
    either = np.isfinite(x) | np.isfinite(y)
    finite = np.isfinite(y)
    if not either.any():
        return 0, 0.0, None
    size = float(np.sqrt(np.mean(np.square(y[finite])))) if finite.any() else 0.0
    with np.errstate(all="ignore"):
        relative = np.abs(x - y) / np.maximum(np.abs(y), max(size, np.finfo(np.float64).tiny))
    relative = np.where(either, np.where(np.isfinite(relative), relative, np.inf), 0.0)
    relative = np.where(x == y, 0.0, relative)
    at = int(np.argmax(relative))
    worst = float(relative[at])
    if worst <= TOLERANCE:
        return int(either.sum()), worst, None
    index = tuple(map(int, np.unravel_index(at, np.shape(made))))
    return int(either.sum()), worst, RealDifference(name, index, float(x[at]), float(y[at]))
