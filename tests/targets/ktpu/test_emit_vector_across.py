"""Folds along axes that aren't the last ones, and along elements that don't follow each other in memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.targets.ktpu.vector_rig import CARD, CHIP, check, check_kernel, graph_of, halves, placed, tasks_of

from meshwright.errors import PlacementError
from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.expression import Operand
from meshwright.ir.formats import ElementType
from meshwright.ir.operation import Generic, Reduce
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.pool import Pool
from meshwright.kernels.norm import layer_norm, rms_norm
from meshwright.kernels.reduce import reduce
from meshwright.kernels.softmax import softmax
from meshwright.targets.ktpu.placement import KtpuPlacement

SITE = KtpuPlacement(CARD, CHIP).vector_sites()[0]
F16, E8M15 = ElementType.F16, ElementType.E8M15
FOLDS = st.sampled_from(["sum", "mean", "max", "min"])
ELEMENTS = st.one_of(st.integers(1, 40), st.sampled_from([127, 128, 129, 143, 144, 145, 255, 256, 257, 384]))


@settings(deadline=None, max_examples=25)
@given(ELEMENTS, st.integers(1, 200), FOLDS, st.booleans(), st.integers(0, 99))
def test_folds_of_columns(elements, columns, fold, keep, seed):
    check_kernel(reduce(fold, 0, keep), halves(elements, columns, seed=seed), layout="padded", cores=1)


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 3), ELEMENTS, st.integers(1, 40), FOLDS, st.integers(-3, -1), st.integers(0, 99))
def test_folds_along_any_axis_of_three(batch, elements, columns, fold, axis, seed):
    check_kernel(reduce(fold, axis, keep=True), halves(batch, elements, columns, seed=seed), layout="padded", cores=1)


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 140), st.integers(1, 70), st.booleans(), st.integers(0, 99))
def test_softmax_of_columns(elements, columns, masked, seed):
    masks = [halves(elements, 1, seed=1)] if masked else []
    check_kernel(softmax(0), halves(elements, columns, seed=seed, scale=3.0), *masks, layout="padded", cores=1)


@pytest.mark.parametrize(
    ("kernel", "shapes"),
    [
        (softmax(0), [(8, 32)]),
        (softmax(0), [(8, 32), (32,)]),
        (softmax(1), [(3, 20, 32), (20, 1)]),
        (softmax(1), [(2, 130, 64)]),
        (reduce("sum", 0), [(300, 64)]),
        (reduce("max", 1), [(4, 12, 32)]),
        (reduce("mean", 0), [(4, 6, 32)]),
    ],
    ids=["softmax", "masked", "a mask a row", "more than 128", "sum", "max", "mean"],
)
def test_on_two_cores_as_the_host_writes_values(kernel, shapes):
    layouts = ["rows" if shape[-1] % 16 == 0 else "padded" for shape in (*shapes, (16,))]
    check_kernel(kernel, *(halves(*shape, seed=at) for at, shape in enumerate(shapes)), layout=layouts)


@pytest.mark.parametrize("elements", [3, 16, 40, 129, 300, 400, 640])
def test_sums_that_round_at_every_node(elements):
    # Exponents that far apart lose bits in another way for any other order.
    rng = np.random.default_rng(elements)
    x = (rng.standard_normal((elements, 48)) * 2.0 ** rng.integers(-12, 10, (elements, 48))).astype(np.float16)
    check_kernel(reduce("sum", 0), x, layout="padded", cores=1)
    check_kernel(reduce("sum", keep=True), x.T.copy(), layout="padded", cores=1)
    check_kernel(reduce("sum", keep=True), x.T.copy(), layout="spread", cores=1)


@pytest.mark.parametrize("elements", [1, 2, 16, 17, 128, 129, 256, 300])
@pytest.mark.parametrize("fold", ["sum", "max", "min"])
def test_zeros_and_nans_pass_every_node(elements, fold):
    rng = np.random.default_rng(elements)
    x = np.full((elements, 32), -0.0, np.float16)
    x[::3, ::2] = 0.0
    check_kernel(reduce(fold, 0), x)
    bits = rng.integers(0, 1 << 16, (elements, 32), dtype=np.uint16)
    bits[rng.random((elements, 32)) < 0.1] = 0xFC00
    check_kernel(reduce(fold, 0), bits.view(np.float16))


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 9), st.integers(1, 90), st.sampled_from(["columns", "spread"]), st.integers(0, 99))
def test_folded_elements_that_are_apart_in_memory(rows, length, layout, seed):
    x = halves(rows, length, seed=seed)
    for kernel in (softmax(), reduce("sum", keep=True), reduce("max", keep=True)):
        check_kernel(kernel, x, layout=layout, cores=1)


@settings(deadline=None, max_examples=10)
@given(st.integers(1, 5), st.integers(1, 60), st.integers(0, 99))
def test_norms_of_elements_with_a_word_each(rows, length, seed):
    x, gamma, beta = halves(rows, length, seed=seed), halves(length, seed=1), halves(length, seed=2)
    check_kernel(layer_norm(), x, gamma, beta, layout="spread", cores=1)
    check_kernel(rms_norm(), x, gamma, layout="spread", cores=1)


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 99))
def test_folds_of_one_element(rows, columns, seed):
    for kernel in (softmax(), reduce("sum", keep=True), reduce("min", keep=True)):
        check_kernel(kernel, halves(rows, 1, seed=seed), layout="padded", cores=1)
    check_kernel(softmax(0), halves(1, 16 * columns, seed=seed), layout="padded", cores=1)


class Columns:
    """A chain at one core whose folds go along the first axis."""

    def __init__(self, *block: int) -> None:
        self.builder = GraphBuilder()
        self.block = block

    def load(self, name, shape=None, format=F16):
        shape = shape or self.block
        fifo = self.builder.fifo(SITE, shape, format)
        self.builder.load(self.builder.tensor(name, shape, format, (CHIP,)), whole(shape), fifo)
        return fifo

    def generic(self, exprs, ins, block, formats=(E8M15,)):
        outs = [self.builder.fifo(SITE, block, format) for format in formats]
        self.builder.compute(Generic(tuple(exprs), ((0, 1),) * len(ins)), ins, outs)
        return outs

    def reduce(self, source, format, pool=Pool.SUM):
        out = self.builder.fifo(SITE, (1, *self.block[1:]), format)
        self.builder.compute(Reduce(pool, (0,)), (source,), (out,))
        return out

    def store(self, name, source, shape):
        self.builder.store(self.builder.tensor(name, shape, F16, (CHIP,)), whole(shape), source)


@settings(deadline=None, max_examples=15)
@given(st.integers(2, 40), st.integers(1, 130), st.sampled_from([F16, E8M15]), st.sampled_from([F16, E8M15]))
def test_statistics_of_columns_that_pass_a_fifo(elements, columns, first, second):
    chain = Columns(elements, columns)
    whole_block, statistic = chain.block, (1, columns)
    term, x = chain.generic([Operand(0) * 0.3, Operand(0)], [chain.load("x")], whole_block, [first, E8M15])
    folded = chain.reduce(term, second)
    (finished,) = chain.generic([Operand(0) * 0.7 + 0.01], [folded], statistic, [first])
    (y,) = chain.generic([Operand(0) * Operand(1)], [x, finished], whole_block, [F16])
    chain.store("y", y, whole_block)
    check(chain.builder.graph(), {"x": halves(elements, columns, seed=columns)}, "padded")


def test_statistics_and_floats_beside_columns():
    chain = Columns(20, 40)
    x, y, s = chain.load("x", format=ElementType.F32), chain.load("y", (20, 1)), chain.load("s", (1, 40))
    scaled, kept = chain.generic(
        [Operand(0) * Operand(1), Operand(0) + Operand(2)], [x, y, s], chain.block, [E8M15, E8M15]
    )
    total, again = chain.generic([Operand(0), Operand(0)], [chain.reduce(scaled, E8M15)], (1, 40), [F16, E8M15])
    (out,) = chain.generic([Operand(0) - Operand(1)], [kept, again], chain.block, [F16])
    chain.store("total", total, (1, 40))
    chain.store("out", out, chain.block)
    floats = np.random.default_rng(3).standard_normal((20, 40)).astype(np.float32)
    check(chain.builder.graph(), {"x": floats, "y": halves(20, 1), "s": halves(1, 40, seed=1)}, "padded")


def test_several_folded_axes_around_one_that_is_kept():
    builder = GraphBuilder()
    x, y = (builder.tensor(n, s, F16, (CHIP,)) for n, s in (("x", (3, 5, 4, 32)), ("y", (1, 5, 1, 32))))
    taken, out = (builder.fifo(SITE, s, F16) for s in ((3, 5, 4, 32), (1, 5, 1, 32)))
    builder.load(x, whole((3, 5, 4, 32)), taken)
    builder.compute(Reduce(Pool.SUM, (0, 2)), (taken,), (out,))
    builder.store(y, whole((1, 5, 1, 32)), out)
    check(builder.graph(), {"x": halves(3, 5, 4, 32)})


@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_that_follow_each_other_along_a_folded_axis_are_folded_apart(axis):
    shape, block, step = ((12, 32), (4, 32), (4, 0)) if axis == 0 else ((4, 96), (4, 32), (0, 32))
    statistic = tuple(1 if a == axis else size for a, size in enumerate(block))
    builder = GraphBuilder()
    x, y = (builder.tensor(n, shape, F16, (CHIP,)) for n in "xy")
    taken, out = (builder.fifo(SITE, block, F16) for _ in range(2))
    term, kept = (builder.fifo(SITE, block, E8M15) for _ in range(2))
    total = builder.fifo(SITE, statistic, E8M15)
    pattern = Affine((0, 0), block, (Loop(3, step),))
    builder.load(x, pattern, taken)
    builder.compute(Generic((Operand(0), Operand(0)), ((0, 1),)), (taken,), (term, kept))
    builder.compute(Reduce(Pool.SUM, (axis,)), (term,), (total,))
    builder.compute(Generic((Operand(0) - Operand(1),), ((0, 1), (0, 1))), (kept, total), (out,))
    builder.store(y, pattern, out)
    check(builder.graph(), {"x": halves(*shape)})


def refused(kernel, *operands, layout="padded") -> str:
    graph = graph_of(kernel, *operands, cores=1)
    with pytest.raises(PlacementError) as error:
        tasks_of(graph, placed(graph, layout))
    return str(error.value)


def test_columns_that_end_inside_a_word_of_others_are_refused():
    assert "no multiple of a word's 32; padded_rows places rows so that each begins at a word" in refused(
        softmax(0), halves(8, 20), layout="rows"
    )


@pytest.mark.parametrize("length", [2999, 5209, 2 * 2999])
def test_rows_in_parts_of_one_element(length):
    # Prime numbers: the only parts of such a row that are alike have one element.
    x, gamma, beta = halves(2, length), halves(length, seed=1), halves(length, seed=2)
    check_kernel(reduce("sum", keep=True), x, layout="padded", cores=1)
    check_kernel(softmax(), x, layout="padded", cores=1)
    check_kernel(layer_norm(), x, gamma, beta, layout="padded", cores=1)
    check_kernel(rms_norm(), x, gamma, layout="padded")


def test_parts_of_one_element_along_two_axes_are_refused():
    builder = GraphBuilder()
    x, y = (builder.tensor(n, s, F16, (CHIP,)) for n, s in (("x", (1, 6)), ("y", (1, 1))))
    taken, out = (builder.fifo(SITE, (1, 1), F16) for _ in range(2))
    builder.load(x, Affine((0, 0), (1, 1), (Loop(6, (0, 1)),)), taken)
    builder.compute(Reduce(Pool.SUM, (0, 1), 6), (taken,), (out,))
    builder.store(y, whole((1, 1)), out)
    graph = builder.graph()
    with pytest.raises(PlacementError) as error:
        tasks_of(graph, placed(graph, "padded"))
    assert str(error.value) == (
        "stage s1 can't be emitted for a vector core: it folds 6 blocks of [1, 1] along axes [0, 1]; parts of one "
        "element don't say along which of them they follow each other"
    )


def test_parts_that_dont_follow_each_other_are_refused():
    builder = GraphBuilder()
    x, y = (builder.tensor(n, s, F16, (CHIP,)) for n, s in (("x", (4, 64)), ("y", (4, 1))))
    taken, out = builder.fifo(SITE, (4, 16), F16), builder.fifo(SITE, (4, 1), F16)
    builder.load(x, Affine((0, 48), (4, 16), (Loop(4, (0, -16)),)), taken)
    builder.compute(Reduce(Pool.SUM, (1,), 4), (taken,), (out,))
    builder.store(y, whole((4, 1)), out)
    graph = builder.graph()
    with pytest.raises(PlacementError) as error:
        tasks_of(graph, placed(graph, "padded"))
    assert str(error.value) == (
        "stage s0 can't be emitted for a vector core: the 4 blocks of a row don't follow each other"
    )
