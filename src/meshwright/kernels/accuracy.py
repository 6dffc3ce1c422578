"""How far kernels are from the exact result, in a machine's arithmetic: measured, on stated operands.

Operands are f16 values; the reference is the formula in float64 on those very values. So what is counted is all
that the machine does: quantising, its accumulator, the lane's functions, and rounding the result to f16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from meshwright.evaluate.arithmetic import Arithmetic, Array
from meshwright.kernels.accuracy_cases import Case, Float64, cases
from meshwright.kernels.alone import run_alone
from meshwright.kernels.compose import Composition
from meshwright.kernels.kernel import Kernel
from meshwright.kernels.placement import Placement


class Row(Struct, frozen=True):
    """Errors of all elements of one case: median, 99th percentile and largest.

    relative: of the difference from the reference, over the root mean square of the reference. units: over the f16
    unit in the last place at the reference's magnitude; 0.5 is what rounding alone gives.
    """

    kernel: str
    distribution: str
    relative: tuple[float, float, float]
    units: tuple[float, float, float]


def table(placement: Placement, arithmetic: Arithmetic, seed: int = 0) -> tuple[Row, ...]:
    """Measures every case on one chip. Raises `PlacementError` for a chip that lacks a unit."""
    return tuple(measure(case, placement, arithmetic) for case in cases(seed))


def measure(case: Case, placement: Placement, arithmetic: Arithmetic) -> Row:
    """One case."""

    def run(kernel: Kernel, *operands: Array) -> Array:
        return run_alone(kernel, placement, arithmetic, operands)

    kernel = case.kernel
    made = kernel.through(run, *case.operands) if isinstance(kernel, Composition) else run(kernel, *case.operands)
    exact = case.formula(*(o.astype(np.float64) for o in case.operands))
    error = np.abs(made.astype(np.float64) - exact)
    relative = error / math.sqrt(float(np.mean(exact * exact)))
    units = error / unit_in_the_last_place(exact)
    return Row(kernel.name, case.distribution, _percentiles(relative), _percentiles(units))


def unit_in_the_last_place(values: Float64) -> Float64:
    """The distance of neighbouring f16 numbers at the magnitude of each value."""
    _, exponent = np.frexp(values)
    return np.ldexp(1.0, np.where(values == 0.0, -24, np.maximum(exponent - 11, -24)))


def _percentiles(errors: Float64) -> tuple[float, float, float]:
    median, most, largest = np.percentile(errors, (50, 99, 100))
    return float(median), float(most), float(largest)


def markdown(rows: Sequence[Row]) -> str:
    """The table as Markdown."""
    head = "| kernel | operands | median | 99th | largest | median ULP | 99th | largest |"
    lines = [head, "|---|---|--:|--:|--:|--:|--:|--:|"]
    for row in rows:
        relative = " | ".join(f"{value:.1e}" for value in row.relative)
        units = " | ".join(f"{value:.2f}" if value < 100 else f"{value:.0f}" for value in row.units)
        lines.append(f"| {row.kernel} | {row.distribution} | {relative} | {units} |")
    return "\n".join(lines)
