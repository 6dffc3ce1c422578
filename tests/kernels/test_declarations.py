"""What a kernel says of itself, which is what splits are judged by, holds when it is run."""

from itertools import chain, combinations

import numpy as np
import pytest
from tests.kernels.one_chip import KTPU, REAL, f16, run, shaped
from tests.kernels.samples import SAMPLES

from meshwright import kernels
from meshwright.ir.pool import Pool

FOLDS = {Pool.SUM: np.add, Pool.MAX: np.maximum, Pool.MIN: np.minimum}


def halves_of(arrays, cut):
    """The operands twice: with each axis in `cut` ((operand, axis) pairs) cut to its first and to its second half."""
    both = []
    for part in (0, 1):
        taken = list(arrays)
        for operand, axis in cut:
            taken[operand] = np.split(taken[operand], 2, axis)[part]
        both.append(taken)
    return both


@pytest.mark.parametrize("name", SAMPLES)
def test_slices_along_a_declared_axis_are_slices_of_the_result_to_the_bit(name):
    kernel, arrays = SAMPLES[name]
    whole = run(kernel, *arrays)
    declared = kernel.axes([shaped(a) for a in arrays])
    assert [len(axes) for axes in declared] == [a.ndim for a in arrays]
    for target in {axis for axes in declared for axis in axes if axis is not None}:
        cut = [
            (operand, axis)
            for operand, axes in enumerate(declared)
            for axis, to in enumerate(axes)
            if to == target and arrays[operand].shape[axis] != 1
        ]
        if not cut:
            continue
        parts = [run(kernel, *part) for part in halves_of(arrays, cut)]
        joined = np.concatenate(parts, target)
        assert np.array_equal(joined.view(np.uint16), whole.view(np.uint16)), f"result axis {target}, cut {cut}"


@pytest.mark.parametrize("name", SAMPLES)
def test_slices_of_a_contraction_fold_to_the_result(name):
    kernel, arrays = SAMPLES[name]
    whole = run(kernel, *arrays, arithmetic=REAL)
    for contraction in kernel.contractions([shaped(a) for a in arrays]):
        cut = [(operand, axis) for operand, axis in enumerate(contraction.axes) if axis is not None]
        first, second = (run(kernel, *part, arithmetic=REAL) for part in halves_of(arrays, cut))
        assert np.allclose(FOLDS[contraction.pool](first, second), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_declared_linear_is(name):
    kernel, arrays = SAMPLES[name]
    floats = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]
    subsets = chain.from_iterable(combinations(range(len(arrays)), size) for size in range(1, len(arrays) + 1))
    for together in subsets:
        if not kernel.linear_in(frozenset(together), [shaped(a) for a in arrays]):
            continue
        assert set(together) <= set(floats)
        random = np.random.default_rng(9)
        other = [random.standard_normal(a.shape) if i in together else a for i, a in enumerate(arrays)]
        total = [a + 3.0 * o if i in together else a for i, (a, o) in enumerate(zip(arrays, other, strict=True))]
        f, g, both = (run(kernel, *given, arithmetic=REAL) for given in (arrays, other, total))
        assert np.allclose(both, f + 3.0 * g, rtol=1e-9, atol=1e-9), together


LINEAR = {
    "add": {(0, 1)},
    "multiply": {(0,), (1,)},
    "negative": {(0,)},
    "scale": {(0,)},
    "matmul": {(0,), (1,)},
    "convolution": {(0,), (1,)},
    "layer_norm": {(1, 2)},
    "rms_norm, residual": {(2,)},
    "sum": {(0,)},
    "mean": {(0,)},
    "rotary": {(0,), (1, 2)},
    "transpose": {(0,)},
    "merge_heads": {(0,)},
    "concat": {(0, 1, 2)},
    "slice": {(0,)},
    "embedding": {(0,)},
    "softmax": set(),
    "max": set(),
    "gelu": set(),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_operands(name):
    kernel, arrays = SAMPLES[name]
    operands = [shaped(a) for a in arrays]
    subsets = chain.from_iterable(combinations(range(len(arrays)), size) for size in range(1, len(arrays) + 1))
    assert {together for together in subsets if kernel.linear_in(frozenset(together), operands)} == LINEAR[name]


MIXED = {
    "softmax": ((0, 1, None),),
    "softmax, masked": ((0, 1, 2, None), (0, 1, 2, None)),
    "softmax, axis 0": ((None, 1, 2),),
    "layer_norm": ((0, 1, None), (None,), (None,)),
    "sum": ((0, 1, None),),
    "sum, kept": ((0, None, 2),),
    "mean": ((None, 0, 1),),
    "rotary": ((0, 1, 2, None), (2, None), (2, None)),
    "convolution": ((0, None, None, None), (3, None, None, None)),
    "embedding": ((None, 2), (0, 1)),
    "concat": ((0, None, 2),) * 3,
    "slice": ((0, None, 2),),
    "transpose of three": ((1, 2, 0),),
    "split_heads": ((0, 2, 1),),
    "split_heads_transposed": ((0, 3, 1),),
    "merge_heads": ((0, 2, 1, None),),
    "matmul, leading": ((0, 1, 2, None), (0, 1, 3, None)),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_axes(name):
    kernel, arrays = SAMPLES[name]
    assert kernel.axes([shaped(a) for a in arrays]) == MIXED[name]


def test_a_single_head_is_not_sliced():
    assert kernels.split_heads(32).axes([f16(2, 5, 32)]) == ((0, 2, None),)


def test_means_of_slices_are_no_contraction():
    assert kernels.reduce("mean").contractions([f16(4, 8)]) == ()
    assert kernels.reduce("max", 0).contractions([f16(4, 8)])[0].pool is Pool.MAX


def test_samples_have_distinct_bits_so_that_a_swap_would_show():
    for _, arrays in SAMPLES.values():
        assert all(len(np.unique(a)) > 1 for a in arrays)
    assert KTPU.name == "ktpu"
