"""Kinds of mistakes that other tools' users have reported, each closed as a whole kind; the truths are stated there."""

from itertools import product

import msgspec
import numpy as np
import pytest

import meshwright.kernels as kernels
from meshwright.errors import PlanError, SplitError
from meshwright.ir import library
from meshwright.ir.pool import Pool
from meshwright.ir.spec import COPIED, PARTIAL, Spec
from meshwright.kernels import reduce
from meshwright.kernels.kernel import Contraction
from meshwright.sharding import MeshGroup
from meshwright.sharding.steps import AddTiles
from meshwright.sharding.summands import fold_of
from sharding.samples import CARD, CHAIN, partial, pieces, real_grid, real_group, uneven, without

S0, S1 = Spec.on(0), Spec.on(1)


def refused(call, *words):
    with pytest.raises(SplitError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


# 1. `sum() + 10` of a split value is 55, never 65


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    "function", [lambda x: x + 10.0, lambda x: 10.0 - x, lambda x: library.multiply_add(x, 2.0, 10.0)]
)
def test_1_a_number_is_not_added_to_every_summand(ranks, function):
    group = real_group(ranks)
    values = np.arange(8.0 * 2).reshape(8, 2)
    total = group.each(reduce("sum", 0), group.split(values, 0))
    assert total.spec == PARTIAL
    refused(lambda: group.each(function, total), "is a partial sum", "group.all_reduce(x)")
    whole = group.each(function, group.all_reduce(total))
    assert np.array_equal(whole.numpy(), group.each(function, group.copy(values.sum(0))).numpy())


def test_1_the_numbers_of_the_case():
    group = real_group(2)
    column = np.arange(10.0).reshape(10, 1)
    total = group.all_reduce(group.each(reduce("sum", 0), group.split(column, 0)))
    assert group.each(lambda x: x + 10.0, total).numpy().tolist() == [55.0]


# 2. A norm of a partial


@pytest.mark.parametrize("function", [library.absolute, lambda x: x * x, library.sqrt, library.gelu, library.log])
def test_2_nothing_nonlinear_is_done_to_summands(function):
    group = real_group(2)
    value = partial(group, [np.array([1.0, 3.0]), np.array([2.0, 1.0])], Pool.SUM)
    refused(lambda: group.each(function, value), "is a partial sum")


def test_2_the_numbers_of_the_case():
    group = real_group(2)
    value = partial(group, [np.array([1.0, 3.0]), np.array([2.0, 1.0])], Pool.SUM)
    squares = group.each(lambda x: x * x, group.all_reduce(value))
    norm = group.each(library.sqrt, group.each(reduce("sum", 0), squares))
    assert float(norm) == pytest.approx(5.0, abs=1e-12)
    refused(lambda: group.each(kernels.rms_norm(), value, group.copy(np.ones(2))), "is a partial sum")


# 3. A largest value times a negative number


@pytest.mark.parametrize("factor", [-2.0, -0.5, -1.0])
@pytest.mark.parametrize("pool", [Pool.MAX, Pool.MIN])
def test_3_a_negative_factor_turns_the_order_round(pool, factor):
    group = real_group(2)
    value = partial(group, [np.array([1.0]), np.array([3.0])], pool)
    refused(lambda: group.each(lambda x: x * factor, value), f"is a partial {pool.value}")
    refused(lambda: group.each(kernels.scale(factor), value), f"is a partial {pool.value}")
    refused(lambda: group.each(kernels.negative, value), f"is a partial {pool.value}")
    refused(lambda: group.each(kernels.multiply, value, group.copy(np.array([factor]))), f"is a partial {pool.value}")


def test_3_the_numbers_of_the_case():
    group = real_group(2)
    value = partial(group, [np.array([1.0]), np.array([3.0])], Pool.MAX)
    assert group.each(lambda x: x * -2.0, group.all_reduce(value)).numpy().tolist() == [-6.0]
    assert group.all_reduce(group.each(lambda x: x * 2.0, value)).numpy().tolist() == [6.0]


# 4. Comparing partials, and reading one on the host


@pytest.mark.parametrize("pool", [Pool.SUM, Pool.MAX, Pool.MIN, Pool.PROD])
@pytest.mark.parametrize("compare", [lambda a, b: a < b, lambda a, b: a > b])
def test_4_partials_are_not_compared(pool, compare):
    group = real_group(2)
    a, b = (partial(group, uneven((4,), 2, seed), pool) for seed in (0, 1))
    refused(lambda: group.each(lambda x, y: library.select(compare(x, y), 1.0, 0.0), a, b), f"partial {pool.value}")


@pytest.mark.parametrize("pool", [Pool.SUM, Pool.MAX, Pool.MIN, Pool.PROD])
@pytest.mark.parametrize(
    "read", [np.asarray, float, int, bool, lambda v: v.item(), lambda v: v.numpy(), lambda v: v == 1]
)
def test_4_partials_are_not_read(pool, read):
    group = real_group(2)
    refused(lambda: read(partial(group, [np.ones(1), np.ones(1)], pool)))


# 5. and 7. Another shape


def survives(shape, axis, count, seen):
    """The axis that a split goes on as, found by looking where the elements of every slice are."""
    labels = np.empty(shape, int)
    for rank, part in enumerate(np.split(np.arange(shape[axis]), count)):
        labels[(slice(None),) * axis + (part,)] = rank
    other = labels.reshape(seen)
    for candidate, size in enumerate(seen):
        if size % count == 0 and size > 1:
            expected = np.repeat(np.arange(count), size // count)
            if (other == expected.reshape([-1 if a == candidate else 1 for a in range(len(seen))])).all():
                return candidate
    return None


SHAPES = [
    (12, 8),
    (16, 6),
    (6, 16),
    (96,),
    (4, 24),
    (24, 4),
    (2, 48),
    (3, 32),
    (2, 6, 8),
    (12, 2, 4),
    (1, 96),
    (96, 1, 1),
]


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(("shape", "seen"), list(product(SHAPES, repeat=2)), ids=str)
def test_5_a_split_survives_another_shape_or_is_refused(shape, seen, count):
    group = real_group(count)
    values = np.arange(96.0).reshape(shape)
    for axis, size in enumerate(shape):
        if size % count:
            continue
        held = group.split(values, axis)
        expected = survives(shape, axis, count, seen)
        if expected is None:
            refused(lambda held=held: group.reshape(held, seen), f"the split on axis {axis} doesn't survive")
            continue
        result = group.reshape(held, seen)
        assert result.spec == Spec.on(expected)
        assert np.array_equal(result.numpy(), values.reshape(seen))
        for piece, place in zip(pieces(result), result.places(), strict=True):
            assert np.array_equal(piece, values.reshape(seen)[place])
    copied = group.reshape(group.copy(values), seen)
    assert copied.spec == COPIED and np.array_equal(copied.numpy(), values.reshape(seen))


def test_5_the_numbers_of_the_case():
    group = real_group(4)
    refused(lambda: group.reshape(group.split(np.ones((12, 8)), 1), (16, 6)), "doesn't survive", "COPIED")
    grid = real_grid(2, 2)
    held = grid.put(np.arange(96.0).reshape(12, 8), (S0, S1))
    refused(lambda: grid.reshape(held, (96,)), "doesn't survive")
    nested = grid.put(np.arange(96.0).reshape(12, 8), (S0, S0))
    flat = grid.reshape(nested, (96,))
    assert flat.specs == (S0, S0) and np.array_equal(flat.numpy(), np.arange(96.0))


def test_7_a_split_of_one_element_is_refused_and_never_becomes_copied():
    group = real_group(2)
    refused(lambda: group.split(np.ones((1, 2)), 0), "1 is not a multiple of 2")
    # (2, 1) seen as (1, 2): the slices are those of the other axis.
    result = group.reshape(group.split(np.array([[1.0], [16.0]]), 0), (1, 2))
    assert result.spec == S1 and [p.tolist() for p in pieces(result)] == [[[1.0]], [[16.0]]]


# 6. What does not divide


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("shape", [(6, 256), (5, 7), (1, 9)])
def test_6_what_does_not_divide_is_refused_before_any_work(ranks, shape):
    group = real_group(ranks)
    for axis, size in enumerate(shape):
        if size % ranks == 0:
            assert group.split(np.ones(shape), axis).spec == Spec.on(axis)
            continue
        before = group.stats()
        padded = -(-size // ranks) * ranks
        refused(lambda axis=axis: group.split(np.ones(shape), axis), f"Pad axis {axis} to {padded} first")
        assert group.stats() == before


# 8. Pieces of several widths


@pytest.mark.parametrize("widths", [(2, 3, 4, 5), (4, 4, 4, 2), (1, 2, 2, 2)])
def test_8_pieces_that_differ_are_no_equal_slices(widths):
    group = MeshGroup.open(CARD)
    like = group.copy(1.0).format
    parts = [d.put(np.zeros((2, w), np.float16), like) for d, w in zip(group.devices.values(), widths, strict=True)]
    for spec in (S1, S0, COPIED, PARTIAL):
        refused(lambda spec=spec: group.assemble(parts, spec), "can't be the equal pieces of one value")


# 9. Looking up global indices in a slice of a table


@pytest.mark.parametrize("ranks", [2, 4])
def test_9_a_table_is_not_looked_up_slice_by_slice(ranks):
    group = real_group(ranks)
    table, indices = np.arange(64.0).reshape(16, 4), np.arange(16)
    refused(
        lambda: group.each(kernels.embedding, group.split(table, 0), group.copy(indices)), "mixes elements along axis 0"
    )
    for spec_table, spec_indices in [(COPIED, COPIED), (S1, COPIED), (COPIED, S0)]:
        found = group.each(kernels.embedding, group.put(table, spec_table), group.put(indices, spec_indices))
        assert np.array_equal(found.numpy(), table[indices])


# 10. A fold by the wrong pool


@pytest.mark.parametrize(("pool", "truth"), [(Pool.MIN, 1.0), (Pool.MAX, 1.0), (Pool.PROD, 1.0), (Pool.SUM, 2.0)])
def test_10_a_partial_is_folded_by_its_own_pool(pool, truth):
    """`and` of 1 and 1 is their smallest, 1; added up it would be 2."""
    group = real_group(2)
    value = partial(group, [np.ones(4), np.ones(4)], pool)
    for result in (group.all_reduce(value), group.reduce(value), group.reduce_scatter(value, 0)):
        assert (result.numpy() == truth).all()
    for wrong in set(Pool) - {pool, Pool.ARGMAX}:
        plan = group.plan_all_reduce(value)
        steps = tuple(
            msgspec.structs.replace(s, kernel=fold_of(wrong, 2)) if s.kernel == fold_of(pool, 2) else s
            for s in plan.steps
        )
        with pytest.raises(PlanError, match=f"folds a partial {pool.value} by {wrong.value}"):
            group.run(msgspec.structs.replace(plan, steps=steps))


# 11. A bias on every rank


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("kernel", [kernels.add, kernels.subtract, lambda x, b: x * 2.0 + b])
def test_11_a_bias_is_not_counted_once_a_rank(ranks, kernel):
    group = real_group(ranks)
    parts, bias = uneven((4, 12), ranks), np.arange(12.0) + 1
    value = partial(group, parts, Pool.SUM)
    refused(lambda: group.each(kernel, value, group.copy(bias)), "is a partial sum", "group.all_reduce(a)")
    # Added after the fold, or as a contribution that is there on one rank only.
    truth = group.each(kernel, group.copy(np.zeros((4, 12))), group.copy(bias)).numpy()
    after = group.each(kernel, group.all_reduce(value), group.copy(bias)).numpy()
    scale = 2.0 if kernel not in (kernels.add, kernels.subtract) else 1.0
    assert np.array_equal(after, scale * sum(parts) + truth)
    alone = partial(group, [bias if rank == 0 else np.zeros(12) for rank in range(ranks)], Pool.SUM)
    assert np.array_equal(group.all_reduce(group.each(kernel, value, alone)).numpy(), after)


# 12. Refusing too much is a fault too: `ij,i->j` on a grid


SPECS_A = [COPIED, S0, S1]
VECTOR_TIMES_MATRIX = {
    # (a: [j, i], v: [1, i]) along one axis of ranks, and what their product [1, j] is.
    (COPIED, COPIED): COPIED,
    (S0, COPIED): S1,
    (S1, S1): PARTIAL,
}


@pytest.mark.parametrize(
    ("first", "second"),
    list(product(product(SPECS_A, (COPIED, S1)), repeat=2)),
    ids=lambda pair: " ".join(map(str, pair)),
)
def test_12_what_is_legal_on_each_axis_is_legal_on_both(first, second):
    group = real_grid(2, 2)
    a, v = np.arange(8.0 * 16).reshape(8, 16), np.arange(16.0)[None] - 5
    held_a, held_v = group.put(a, (first[0], second[0])), group.put(v, (first[1], second[1]))
    legal = [pair in VECTOR_TIMES_MATRIX for pair in (first, second)]
    if not all(legal):
        refused(lambda: group.matmul(held_v, held_a))
        return
    result = group.matmul(held_v, held_a)
    assert result.specs == (VECTOR_TIMES_MATRIX[first], VECTOR_TIMES_MATRIX[second])
    for along, spec in enumerate(result.specs):
        if spec.partial is not None:
            result = group.all_reduce(result, along)
    assert np.array_equal(result.numpy(), v @ a.T)


class WeightedSum:
    """`ij,i->j` as a kernel of its own: matrix [i, j], weights [i]."""

    name, unit = "weighted sum", "vector"

    def result(self, operands):
        return msgspec.structs.replace(operands[0], shape=operands[0].shape[1:])

    def axes(self, operands):
        return (None, 0), (None,)

    def contractions(self, operands):
        return (Contraction((0, 0), Pool.SUM),)

    def linear_in(self, together, operands):
        return len(together) == 1

    def emit(self, builder, placement, operands, result):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("matrix", "weights", "expected"),
    [
        (COPIED, COPIED, COPIED),
        (S1, COPIED, S0),
        (S0, S0, PARTIAL),
        (PARTIAL, COPIED, PARTIAL),
        (COPIED, PARTIAL, PARTIAL),
        (S0, COPIED, None),
        (COPIED, S0, None),
        (S1, S0, None),
        (PARTIAL, PARTIAL, None),
        (PARTIAL, S0, None),
    ],
    ids=str,
)
def test_12_a_kernel_of_ones_own_is_judged_by_what_it_says(matrix, weights, expected):
    group = real_group(2)

    def held(shape, spec):
        return partial(group, [np.ones(shape)] * 2, Pool.SUM) if spec.partial else group.put(np.ones(shape), spec)

    values = held((4, 6), matrix), held((4,), weights)
    if expected is None:
        refused(lambda: group.plan_each(WeightedSum(), *values), "weighted sum")
    else:
        assert group.plan_each(WeightedSum(), *values).spec == expected


# 13. A summand that is missing, or there twice, is named


def summed(ranks=4):
    group = MeshGroup.open(CARD, ranks)
    values = [group.split(np.ones((16, 64 * ranks)), 1) for _ in range(2)]
    return group, group.plan_chain_reduce(*values)


@pytest.mark.parametrize("link", range(3))
def test_13_what_is_missing_is_named_by_rank_and_mesh(link):
    group, plan = summed()
    additions = [i for i, s in enumerate(plan.steps) if isinstance(s.kernel, AddTiles)]
    with pytest.raises(PlanError, match=rf"rank 0 \(mesh {CHAIN[0]}\) is missing"):
        group.run(without(plan, additions[link]))


@pytest.mark.parametrize("rank", range(2))
def test_13_in_folds_in_memory_as_well(rank):
    group = real_group((3, 2))
    value = partial(group, uneven((4, 4), 2), Pool.SUM)
    plan = group.plan_to_one(value, root=0)
    fold = next(i for i, s in enumerate(plan.steps) if s.kernel == fold_of(Pool.SUM, 2))
    twice = msgspec.structs.replace(plan.steps[fold], args=(plan.steps[fold].args[rank],) * 2)
    steps = tuple(twice if i == fold else s for i, s in enumerate(plan.steps))
    with pytest.raises(PlanError, match=r"the contribution of rank \d \(mesh \d\) is missing from it"):
        group.run(msgspec.structs.replace(plan, steps=steps))
    thrice = msgspec.structs.replace(
        plan.steps[fold], kernel=fold_of(Pool.SUM, 3), args=(*plan.steps[fold].args, plan.steps[fold].args[rank])
    )
    steps = tuple(thrice if i == fold else s for i, s in enumerate(plan.steps))
    with pytest.raises(PlanError, match=rf"rank {rank} \(mesh {(3, 2)[rank]}\) is in it 2 times"):
        group.run(msgspec.structs.replace(plan, steps=steps))


def test_13_twice_is_no_fault_where_it_changes_nothing():
    group = real_group((3, 2))
    value = partial(group, uneven((4, 4), 2), Pool.MAX)
    plan = group.plan_to_one(value, root=0)
    fold = next(i for i, s in enumerate(plan.steps) if s.kernel == fold_of(Pool.MAX, 2))
    args = plan.steps[fold].args
    thrice = msgspec.structs.replace(plan.steps[fold], kernel=fold_of(Pool.MAX, 3), args=(*args, args[0]))
    steps = tuple(thrice if i == fold else s for i, s in enumerate(plan.steps))
    result = group.run(msgspec.structs.replace(plan, steps=steps))
    assert np.array_equal(result.numpy(), group.all_reduce(value).numpy())
