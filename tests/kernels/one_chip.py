"""A kernel on one chip: its graph, and what that computes in an arithmetic."""

import numpy as np

from meshwright import targets
from meshwright.evaluate.real import RealArithmetic
from meshwright.ir.flow import block_counts
from meshwright.ir.formats import ElementType
from meshwright.kernels.alone import graph_alone, run_alone
from meshwright.kernels.kernel import Shaped
from meshwright.machine import load

MACHINE = load("ktpu-v13p")
REAL = RealArithmetic()
KTPU = targets.arithmetic(MACHINE)
HERE = targets.placement(MACHINE, 0)
WITHOUT_VECTOR_CORES = targets.placement(MACHINE, 1)


def f16(*shape):
    return Shaped(tuple(shape), ElementType.F16)


def i32(*shape):
    return Shaped(tuple(shape), ElementType.I32)


def halves(seed, *shape, scale=1.0):
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * scale).astype(np.float16)


def shaped(values):
    return i32(*values.shape) if values.dtype.kind in "iu" else f16(*values.shape)


def graph_of(kernel, *operands, placement=HERE):
    """The well-formed, balanced graph of a kernel over operands."""
    graph = graph_alone(kernel, placement, operands)
    block_counts(graph)
    return graph


def run(kernel, *arrays, arithmetic=KTPU, placement=HERE):
    """What the kernel gives on one chip."""
    graph_of(kernel, *map(shaped, arrays), placement=placement)
    return run_alone(kernel, placement, arithmetic, arrays)


def both(kernel, exact, *arrays, within, least=1e-30):
    """Holds the kernel against `exact(*float64 arrays)`: tightly as real numbers, `within` of the largest as ktpu.

    least: what the largest counts as at least: a few sums of many terms may all come out small, and their errors don't.
    """
    wide = [a if a.dtype.kind in "iu" else a.astype(np.float64) for a in arrays]
    want = exact(*wide)
    as_reals = run(kernel, *arrays, arithmetic=REAL)
    assert as_reals.shape == want.shape
    scale = max(least, np.abs(want).max(initial=0.0))
    assert np.abs(as_reals - want).max(initial=0.0) <= 1e-12 * max(1.0, scale)
    made = run(kernel, *arrays)
    assert made.shape == want.shape
    assert made.dtype == np.float16
    assert np.abs(made.astype(np.float64) - want).max(initial=0.0) <= within * scale
    return made
