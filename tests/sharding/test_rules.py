"""Readings of a kernel: which splits go together, which partials stay partial, and what is refused."""

from itertools import product

import numpy as np
import pytest

import meshwright.kernels as kernels
from meshwright.errors import PlacementError, PlanError, SplitError
from meshwright.ir import library
from meshwright.ir.pool import Pool
from meshwright.ir.spec import COPIED, PARTIAL, Spec
from meshwright.kernels import reduce
from meshwright.sharding import pairing
from meshwright.sharding.rules import Undeclared, declared, may_stay_partial
from sharding.samples import assembled, partial, pieces, real_group, uneven

S0, S1 = Spec.on(0), Spec.on(1)
READINGS = {(COPIED, S0): S1, (S0, COPIED): S0, (S1, S1): PARTIAL, (COPIED, COPIED): COPIED}


@pytest.mark.parametrize(("a", "b"), list(product((COPIED, S0, S1), repeat=2)), ids=str)
def test_a_product_has_three_readings_besides_both_copied(a, b):
    group = real_group()
    left, right = np.arange(8.0 * 16).reshape(8, 16), np.arange(4.0 * 16).reshape(4, 16) % 7
    values = group.put(left, a), group.put(right, b)
    if (a, b) not in READINGS:
        with pytest.raises(SplitError):
            pairing(*values)
        return
    assert pairing(*values) == READINGS[a, b]
    result = group.matmul(*values)
    assert result.spec == READINGS[a, b]
    whole = group.all_reduce(result) if result.is_partial else result
    assert np.array_equal(whole.numpy(), left @ right.T)


def test_a_partial_operand_of_a_product_stays_partial():
    group = real_group()
    parts = uneven((8, 16), 4)
    right = np.arange(4.0 * 16).reshape(4, 16)
    result = group.matmul(partial(group, parts, Pool.SUM), group.copy(right))
    assert result.spec == PARTIAL
    assert np.array_equal(group.all_reduce(result).numpy(), sum(parts) @ right.T)
    with pytest.raises(SplitError):
        group.matmul(partial(group, parts, Pool.SUM), partial(group, uneven((4, 16), 4), Pool.SUM))
    with pytest.raises(SplitError):
        group.matmul(partial(group, parts, Pool.MAX), group.copy(right))


# What may be done to contributions, by pool: the function, how many of its operands are partial (the rest copied).
LEGAL = [
    (Pool.SUM, lambda x: x * -2.0, 1),
    (Pool.SUM, lambda x, y: x - y, 2),
    (Pool.SUM, lambda x, c: x * c, 1),
    (Pool.SUM, lambda x, c: library.select(c > 0.0, x, -x), 1),
    (Pool.MAX, lambda x: x * 2.0, 1),
    (Pool.MAX, lambda x: library.exp(x * 0.0625), 1),
    (Pool.MAX, lambda x, c: x + c, 1),
    (Pool.MAX, lambda x, c: x - c, 1),
    (Pool.MAX, library.maximum, 1),
    (Pool.MAX, library.minimum, 1),
    (Pool.MAX, library.maximum, 2),
    (Pool.MIN, library.minimum, 2),
    (Pool.MIN, lambda x, c: library.tanh(x) + c, 1),
    (Pool.PROD, lambda x, y: x * y, 2),
    (Pool.PROD, lambda x: x * x, 1),
    (Pool.PROD, library.absolute, 1),
]
REFUSED = [
    (Pool.SUM, lambda x, c: x + c, 1),
    (Pool.SUM, lambda x: x + 10.0, 1),
    (Pool.SUM, library.absolute, 1),
    (Pool.SUM, lambda x, c: library.select(x > c, x, c), 1),
    (Pool.SUM, library.maximum, 2),
    (Pool.SUM, lambda x, y: x * y, 2),
    (Pool.SUM, library.gelu, 1),
    (Pool.MAX, lambda x: x * -2.0, 1),
    (Pool.MAX, lambda x: -x, 1),
    (Pool.MAX, lambda x, c: c - x, 1),
    (Pool.MAX, lambda x, c: x * c, 1),
    (Pool.MAX, lambda x, y: x + y, 2),
    (Pool.MAX, library.minimum, 2),
    (Pool.MAX, lambda x: x * x, 1),
    (Pool.MIN, library.maximum, 2),
    (Pool.MIN, library.silu, 1),
    (Pool.PROD, lambda x: x * 2.0, 1),
    (Pool.PROD, lambda x, c: x * c, 1),
    (Pool.PROD, lambda x, c: x + c, 1),
    (Pool.PROD, lambda x: -x, 1),
]


def operands(group, pool, function, count):
    """As many partials as stated, the other operands copied; and the whole values."""
    import inspect

    total = len(inspect.signature(function).parameters)
    values, whole = [], []
    for number in range(total):
        parts = [np.sign(p) * (1 + np.abs(p) % 4) for p in uneven((4, 8), 4, seed=number)]
        if number < count:
            values.append(partial(group, parts, pool))
            whole.append(
                {Pool.SUM: np.sum, Pool.MAX: np.max, Pool.MIN: np.min, Pool.PROD: np.prod}[pool](parts, axis=0)
            )
        else:
            values.append(group.copy(parts[0]))
            whole.append(parts[0])
    return values, whole


@pytest.mark.parametrize(("pool", "function", "count"), LEGAL)
def test_legal_on_contributions(pool, function, count):
    group = real_group()
    values, whole = operands(group, pool, function, count)
    result = group.each(function, *values)
    assert result.spec == Spec(partial=pool)
    expected = group.each(function, *map(group.copy, whole)).numpy()
    assert np.allclose(group.all_reduce(result).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize(("pool", "function", "count"), REFUSED)
def test_refused_on_contributions(pool, function, count):
    group = real_group()
    values, _ = operands(group, pool, function, count)
    runs = group.stats().graphs_run
    with pytest.raises(SplitError, match="partial"):
        group.each(function, *values)
    assert group.stats().graphs_run == runs


@pytest.mark.parametrize("pool", [Pool.SUM, Pool.MAX, Pool.MIN])
def test_partials_come_about_where_a_fold_meets_a_split(pool):
    group = real_group()
    value = np.random.default_rng(0).integers(-50, 50, (8, 24)).astype(float)
    result = group.each(reduce(pool, axis=1), group.split(value, 1))
    assert result.spec == Spec(partial=pool) and result.shape == (8,)
    expected = {Pool.SUM: np.sum, Pool.MAX: np.max, Pool.MIN: np.min}[pool](value, axis=1)
    assert np.array_equal(group.all_reduce(result).numpy(), expected)
    # Folded again in the same pool they stay partial; in another one they don't.
    assert group.each(reduce(pool, axis=0), result).spec == Spec(partial=pool)
    other = Pool.MAX if pool is not Pool.MAX else Pool.MIN
    with pytest.raises(SplitError):
        group.each(reduce(other, axis=0), result)


def test_moving_contributions_keeps_them():
    group = real_group()
    for pool in (Pool.SUM, Pool.MAX, Pool.MIN, Pool.PROD):
        value = partial(group, uneven((4, 8), 4), pool)
        assert group.each(kernels.transpose(), value).spec == Spec(partial=pool)
        assert group.reshape(value, (2, 16)).spec == Spec(partial=pool)


def test_pools_do_not_mix():
    group = real_group()
    a, b = partial(group, uneven((4, 8), 4), Pool.MAX), partial(group, uneven((4, 8), 4), Pool.MIN)
    with pytest.raises(SplitError, match="folded in different ways"):
        group.each(library.maximum, a, b)


def test_a_fold_in_another_pool_is_no_way_to_the_result():
    import msgspec

    from meshwright.sharding.summands import fold_of

    group = real_group()
    plan = group.plan_all_reduce(partial(group, uneven((4, 8), 4), Pool.MIN))
    wrong = [
        msgspec.structs.replace(step, kernel=fold_of(Pool.SUM, step.kernel.count))
        if hasattr(step.kernel, "count")
        else step
        for step in plan.steps
    ]
    with pytest.raises(PlanError, match=r"folds a partial min by sum: that is another value. Fold it by min"):
        group.run(msgspec.structs.replace(plan, steps=tuple(wrong)))


class Silent:
    """A kernel of one's own that says nothing about what it mixes."""

    name = "silent"
    unit = "vector"

    def __init__(self):
        self.inner = kernels.negative

    def result(self, shapes):
        return self.inner.result(shapes)

    def emit(self, *arguments):
        return self.inner.emit(*arguments)


def test_what_is_undeclared_mixes_everything_and_is_nonlinear():
    group = real_group()
    value = np.arange(32.0).reshape(4, 8)
    assert isinstance(declared(Silent()), Undeclared)
    assert np.array_equal(group.each(Silent(), group.copy(value)).numpy(), -value)
    for axis in (0, 1):
        with pytest.raises(SplitError, match=rf"split on axis {axis}\.\n  silent mixes elements"):
            group.each(Silent(), group.split(value, axis))
    with pytest.raises(SplitError, match="silent of every contribution"):
        group.each(Silent(), partial(group, uneven((4, 8), 4), Pool.SUM))


MIXING = [
    (kernels.softmax(axis=-1), 1, [(8, 16)]),
    (kernels.softmax(axis=0), 0, [(8, 16)]),
    (kernels.layer_norm(), 1, [(8, 16), (16,), (16,)]),
    (kernels.rms_norm(), 1, [(8, 16), (16,)]),
    (kernels.rotary(), 1, [(8, 16), (8, 8), (8, 8)]),
    (reduce("mean", 1), 1, [(8, 16)]),
    (kernels.concat(1), 1, [(8, 16), (8, 16)]),
    (kernels.slice(1, 0, 4), 1, [(8, 16)]),
]


@pytest.mark.parametrize(("kernel", "axis", "shapes"), MIXING, ids=lambda v: getattr(v, "name", None))
def test_a_kernel_that_mixes_along_the_split_is_refused(kernel, axis, shapes):
    group = real_group()
    values = [np.ones(shape) for shape in shapes]
    others = [group.copy(v) for v in values[1:]]
    with pytest.raises(SplitError, match=f"split on axis {axis}"):
        group.each(kernel, group.split(values[0], axis), *others)


def test_one_rank_holds_the_whole_of_everything():
    group = real_group(1)
    value = np.arange(32.0).reshape(4, 8)
    split = group.split(value, 1)
    assert group.each(kernels.softmax(), split).spec == COPIED
    assert group.matmul(split, group.split(value, 1)).spec == COPIED
    # Collectives move nothing and give the spec that they promise.
    assert group.all_gather(split).spec == COPIED
    assert group.all_reduce(group.copy(value)).spec == COPIED
    assert group.reduce_scatter(group.copy(value), 0).spec == S0
    assert group.all_to_all(split, 0).spec == S0
    assert group.stats().crossed == {}
    # What is partial there stays so: it is for folding, by however many ranks.
    one = partial(group, [value], Pool.SUM)
    with pytest.raises(SplitError):
        group.each(library.absolute, one)
    assert np.array_equal(group.all_reduce(one).numpy(), value)


def test_copied_pieces_meet_slices_only_where_they_broadcast():
    group = real_group()
    value, row = np.arange(32.0).reshape(4, 8), np.arange(8.0)
    assert group.each(kernels.add, group.split(value, 0), group.copy(row)).spec == S0
    assert group.each(kernels.add, group.split(value, 0), group.copy(row[None])).spec == S0
    with pytest.raises(SplitError):
        group.each(kernels.add, group.split(value, 1), group.copy(row))
    assert group.each(kernels.add, group.split(value, 1), group.split(row, 0)).spec == S1
    with pytest.raises(SplitError):
        group.each(kernels.add, group.split(value, 0), group.split(value, 1))


def test_contributions_on_a_mesh_without_a_vector_core_are_worked_on_elsewhere():
    group = real_group()
    parts = uneven((4, 8), 4)
    result = group.each(lambda x: x * 2.0, partial(group, parts, Pool.SUM))
    for piece, part in zip(pieces(result), parts, strict=True):
        assert np.array_equal(piece, part * 2)


def test_a_copied_operand_is_already_where_the_work_is_done():
    """Mesh 1's share is done on mesh 3, which has all of what is copied: only the slice crosses, and its result."""
    group = real_group()
    plan = group.plan_each(kernels.add, group.split(np.ones((4, 64)), 0), group.copy(np.ones(64)))
    assert plan.link_bytes() == {(1, 3): 128, (3, 1): 128}


def test_specs_of_both_kinds_at_once_on_a_line():
    group = real_group((3, 2))
    value = assembled(group, uneven((4, 8), 2), PARTIAL)
    with pytest.raises(SplitError, match="slice of one with a contribution"):
        group.each(kernels.add, value, group.split(np.ones((4, 8)), 0))


class Biased:
    """A kernel of one's own that says what it does to contributions: x + 1, whatever the pool is called."""

    name, unit = "biased", "vector"
    inner = kernels.elementwise(lambda x: x + 1.0)

    def result(self, operands):
        return self.inner.result(operands)

    def axes(self, operands):
        return self.inner.axes(operands)

    def contractions(self, operands):
        return ()

    def linear_in(self, together, operands):
        return False

    def commutes_with(self, pool, together, operands):
        return pool is Pool.MIN

    def emit(self, *arguments):
        return self.inner.emit(*arguments)


def test_a_kernel_of_ones_own_says_in_which_pools_it_commutes():
    group = real_group()
    parts = uneven((4, 8), 4)
    smallest = group.each(Biased(), partial(group, parts, Pool.MIN))
    assert np.array_equal(group.all_reduce(smallest).numpy(), np.min(parts, axis=0) + 1)
    for pool in (Pool.SUM, Pool.MAX, Pool.PROD):
        with pytest.raises(SplitError):
            group.each(Biased(), partial(group, parts, pool))


def test_no_pool_commutes_with_what_is_not_known():
    for pool in Pool:
        assert not may_stay_partial(kernels.softmax(), pool, frozenset({0}), ())
        assert not may_stay_partial(Undeclared(Silent()), pool, frozenset({0}), ())


def test_contributions_may_be_added_to_themselves():
    group = real_group()
    parts = uneven((4, 8), 4)
    value = partial(group, parts, Pool.SUM)
    twice = group.each(kernels.add, value, value)
    assert twice.spec == PARTIAL and np.array_equal(group.all_reduce(twice).numpy(), 2 * sum(parts))
    factors = [np.sign(p) * 2 for p in parts]
    squared = group.each(kernels.multiply, *[partial(group, factors, Pool.PROD)] * 2)
    assert np.array_equal(group.all_reduce(squared).numpy(), np.prod(factors, axis=0) ** 2)


def test_a_tile_that_does_not_fit_is_refused_where_it_is_stated():
    group = real_group()
    value = group.copy(np.ones((128, 256)))
    assert group.plan_matmul(value, value, tile=(64, 64, 32)).steps[0].knobs == {"tile": (64, 64, 32)}
    with pytest.raises(PlacementError, match="the accumulator holds 512"):
        group.plan_matmul(value, value, tile=(128, 128, 32))
