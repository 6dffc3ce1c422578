"""Programs of vector cores leave in memory, to the bit, what their graphs mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.targets.ktpu.vector_rig import CARD, check_kernel, graph_of, halves, placed, tasks_of

from meshwright.errors import PlacementError
from meshwright.ir import library
from meshwright.ir.expression import (
    Binary,
    BinaryOp,
    Cast,
    Constant,
    MultiplyAdd,
    Operand,
    Select,
    Special,
    Unary,
    UnaryOp,
)
from meshwright.ir.formats import ElementType
from meshwright.kernels.elementwise import Elementwise, add, erf, gelu, multiply, silu
from meshwright.kernels.norm import layer_norm, rms_norm
from meshwright.kernels.reduce import reduce
from meshwright.kernels.rotary import rotary
from meshwright.kernels.softmax import softmax
from meshwright.targets.ktpu.isa import vector as isa
from meshwright.targets.ktpu.isa.payload import Desc, Imem, Run
from meshwright.targets.ktpu.isa.vector import decode_code

QUICK = settings(deadline=None, max_examples=12)


@pytest.mark.parametrize(
    "shape", [(1, 16), (4, 64), (8, 96), (33, 384), (2, 3, 32), (5, 7, 16), (640,), (300, 16), (1, 1), (7,)]
)
@pytest.mark.parametrize("kernel", [silu, gelu, erf], ids=lambda k: k.name)
def test_elementwise_kernels(kernel, shape):
    check_kernel(kernel, halves(*shape, scale=3.0), cores=1 if np.prod(shape) < 32 else 2)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((12, 384), (384,)),
        ((12, 384), (12, 384)),
        ((2, 3, 32), (2, 1, 32)),
        ((2, 3, 32), (3, 1)),
        ((40, 64), (40, 1)),
        ((40, 64), (1,)),
        ((1, 64), (40, 1)),
        ((3, 1, 48), (5, 48)),
    ],
)
def test_operands_that_broadcast(x, y):
    check_kernel(multiply, halves(*x), halves(*y, seed=1), layout="padded")


@QUICK
@given(st.integers(1, 40), st.integers(1, 300), st.booleans(), st.integers(0, 1000))
def test_softmax_of_any_shape(rows, length, masked, seed):
    assume(length > 1)
    operands = [halves(rows, length, seed=seed, scale=4.0)]
    if masked:
        mask = np.where(np.random.default_rng(seed).random(length) < 0.3, -np.inf, 0.0).astype(np.float16)
        operands.append(mask)
    check_kernel(softmax(scale=0.125 if seed % 2 else 1.0), *operands, layout="padded")


@QUICK
@given(st.integers(1, 24), st.integers(2, 800), st.booleans(), st.integers(0, 1000))
def test_layer_norm_of_any_shape(rows, length, residual, seed):
    x = [halves(rows, length, seed=seed + i) for i in range(2 if residual else 1)]
    check_kernel(layer_norm(), *x, halves(length, seed=7), halves(length, seed=8), layout="padded")


@QUICK
@given(st.integers(1, 24), st.integers(2, 1200), st.integers(0, 1000))
def test_rms_norm_of_any_shape(rows, length, seed):
    check_kernel(rms_norm(), halves(rows, length, seed=seed), halves(length, seed=7), layout="padded")


@QUICK
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 25), st.integers(0, 1000))
def test_rotary_of_any_shape(batch, positions, half, seed):
    angles = [halves(positions, 16 * half, seed=s) for s in (1, 2)]
    check_kernel(rotary(), halves(batch, positions, 32 * half, seed=seed), *angles)


@pytest.mark.parametrize(
    ("kernel", "shapes"),
    [
        (rms_norm(), [(6, 2048), (2048,)]),
        (softmax(), [(4, 4000)]),
        (reduce("mean", keep=True), [(5, 3200)]),
        (reduce("max", keep=True), [(5, 3216)]),
    ],
    ids=["rms_norm", "softmax", "mean", "max"],
)
def test_rows_longer_than_a_block(kernel, shapes):
    check_kernel(kernel, *(halves(*shape, seed=at) for at, shape in enumerate(shapes)), layout="padded")


@pytest.mark.parametrize("shape", [(8, 64), (16, 384), (2, 4, 8, 64), (96, 128)])
def test_rows_in_the_order_that_the_host_writes_them(shape):
    check_kernel(softmax(), halves(*shape))
    check_kernel(layer_norm(), halves(*shape), halves(shape[-1], seed=1), halves(shape[-1], seed=2))


@pytest.mark.parametrize("fold", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize(
    ("shape", "layout"), [((64, 64), "rows"), ((32, 16), "rows"), ((37, 100), "padded"), ((4, 8, 130), "padded")]
)
def test_folds_of_rows(fold, shape, layout):
    check_kernel(reduce(fold, keep=layout == "padded"), halves(*shape), layout=layout)


def test_sums_of_zeros_keep_their_sign_as_the_tree_does():
    for length in (16, 20, 130, 144, 256, 300):
        x = np.full((3, length), -0.0, np.float16)
        check_kernel(reduce("sum", keep=True), x, layout="padded")
        x[1, ::3] = 0.0
        check_kernel(reduce("sum", keep=True), x, layout="padded")


# Expressions.

CONSTANTS = st.sampled_from([0.0, 1.0, -1.0, 0.1, 3.0, 1e-6, -7.5, 1e30, *Special]).map(Constant)
LEAVES = st.one_of(st.integers(0, 2).map(Operand), CONSTANTS)
UNARY = st.sampled_from([op for op in UnaryOp if op is not UnaryOp.NOT])
NUMBERS = st.sampled_from([BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MAX, BinaryOp.MIN])
COMPARES = st.sampled_from([BinaryOp.LT, BinaryOp.GT, BinaryOp.EQ])


def _predicates(numbers):
    compares = st.builds(Binary, COMPARES, numbers, numbers)
    both = st.builds(Binary, st.sampled_from([BinaryOp.AND, BinaryOp.OR]), compares, compares)
    return st.one_of(compares, both, st.builds(Unary, st.just(UnaryOp.NOT), compares))


def _wider(numbers):
    return st.one_of(
        st.builds(Unary, UNARY, numbers),
        st.builds(Binary, NUMBERS, numbers, numbers),
        st.builds(MultiplyAdd, numbers, numbers, numbers),
        st.builds(Select, _predicates(numbers), numbers, numbers),
        st.builds(Cast, numbers, st.sampled_from([ElementType.F16, ElementType.E8M15])),
    )


EXPRESSIONS = st.recursive(LEAVES, _wider, max_leaves=12)
BITS = np.array([0, 0x8000, 0x7C00, 0xFC00, 0x7E01, 1, 0x8001, 0x3C00, 0xBC00, 0x7BFF, 0x0400], np.uint16)


def special_halves(*shape, seed) -> np.ndarray:
    """Any bits, and many of the special ones."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 16, shape, dtype=np.uint16)
    chosen = rng.random(shape) < 0.3
    bits[chosen] = rng.choice(BITS, int(chosen.sum()))
    return bits.view(np.float16)


@settings(deadline=None, max_examples=60)
@given(EXPRESSIONS, st.integers(1, 9), st.integers(1, 150), st.integers(0, 1 << 30), st.integers(0, 3))
def test_any_expression(expr, rows, length, seed, how):
    shapes = [(rows, length), [(rows, length), (length,), (rows, 1), (1,)][how], (rows, length)]
    operands = [special_halves(*shape, seed=seed + i) for i, shape in enumerate(shapes)]
    # Constants alone have no shape of their own, and a kernel reads all of its operands.
    total = Select(Operand(0) < Operand(1), expr, Operand(2))
    check_kernel(Elementwise("any", total, 3), *operands, layout="padded", cores=1)


def test_what_two_rows_share_a_word_with_is_not_written():
    with pytest.raises(PlacementError, match=r"begins|steps by bytes 0x28, no multiple of a word's 32; padded_rows"):
        check_kernel(softmax(), halves(8, 20))


# Refusals and limits.


def refused(kernel, *operands, layout="rows") -> str:
    graph = graph_of(kernel, *operands)
    with pytest.raises(PlacementError) as error:
        tasks_of(graph, placed(graph, layout))
    return str(error.value)


@pytest.mark.parametrize(
    ("kernel", "shapes", "layout", "message"),
    [
        (
            rotary(interleaved=True),
            [(4, 32), (4, 16), (4, 16)],
            "rows",
            "elements of a row are 2 apart in memory, or with gaps; a core moves words of 16",
        ),
        (
            reduce("sum"),
            [(30, 64)],
            "rows",
            "it has one element a row, and the store of the word that the last one is in would write over elements",
        ),
        (
            multiply,
            [(40, 64), (40, 1)],
            "rows",
            "a core takes f16 that follow each other from the beginning of a word on, or have a word each",
        ),
        (
            add,
            [(6, 20), (20,)],
            "rows",
            "a row of block 0 steps by bytes 0x28, no multiple of a word's 32; padded_rows places rows so that each",
        ),
        (
            Elementwise("round", Cast(Operand(0) * 2.0, ElementType.F32), 1),
            [(4, 32)],
            "rows",
            "a cast to f32 makes NaNs quiet, and a vector core has nothing that does only that",
        ),
    ],
    ids=["step", "tail", "picked", "rows", "cast"],
)
def test_refusals(kernel, shapes, layout, message):
    text = refused(kernel, *(halves(*shape) for shape in shapes), layout=layout)
    assert "can't be emitted for a vector core" in text or kernel.name == "round"
    assert message in text


def test_more_values_than_registers():
    # Twenty values that are all needed before the first of them can go.
    values = [Operand(0) * (2.0 + i) for i in range(20)]
    high = values[0]
    for value in values[1:]:
        high = library.maximum(high, value)
    total = values[0] * high
    for value in values[1:]:
        total = total + value * high
    text = refused(Elementwise("wide", total, 1), halves(4, 32))
    assert "more than 16 vectors are alive at once, and registers can't be saved to L1 exactly" in text


def test_more_constants_than_scalar_registers_are_set_where_they_are_used():
    total = Operand(0)
    for number in range(40):
        total = library.multiply_add(total, 1.0 + number / 64, 0.5 + number)
    check_kernel(Elementwise("polynomial", total, 1), halves(9, 200), layout="padded")


def programs(kernel, *operands, layout="rows", cores=2):
    graph = graph_of(kernel, *operands, cores=cores)
    return [task.program for task in tasks_of(graph, placed(graph, layout))]


def code_words(program) -> list[int]:
    return [payload.word for payload in program.words if isinstance(payload, Imem)]


def test_code_stays_and_only_descriptors_change_between_runs():
    (program, _) = programs(gelu, halves(128, 1024))
    runs = [at for at, payload in enumerate(program.words) if isinstance(payload, Run)]
    assert len(runs) > 8
    between = program.words[runs[3] + 1 : runs[4]]
    # Where it loads from and where it stores to.
    assert all(isinstance(payload, Desc) and payload.fld == 0 for payload in between)
    assert len(between) == 2


@pytest.mark.parametrize(("length", "drained"), [(16, True), (32, True), (48, True), (64, False), (128, False)])
def test_predicates_are_used_after_a_gap_or_an_empty_pipe(length, drained):
    x, y = halves(1, length), halves(1, length, seed=1)
    kernel = Elementwise("select", Select(Operand(0) < Operand(1), Operand(1), Operand(0)), 2)
    (program,) = programs(kernel, x, y, cores=1)
    code = decode_code(code_words(program))
    at = next(i for i, c in enumerate(code) if isinstance(c, isa.Alu) and c.op == "VCMPLT")
    after = [type(c) for c in code[at + 1 : at + 4]]
    assert after == ([isa.Alu, isa.SetMode, isa.Alu] if drained else [isa.Alu, isa.Alu, isa.Store])
    check_kernel(kernel, x, y, cores=1)


def test_a_core_uses_no_more_of_l1_than_is_safe():
    for kernel, shapes in ((softmax(), [(64, 384)]), (layer_norm(), [(64, 768), (768,), (768,)]), (gelu, [(64, 512)])):
        for program in programs(kernel, *(halves(*shape) for shape in shapes)):
            code = [c for c in decode_code(code_words(program)) if isinstance(c, isa.Load | isa.Store)]
            assert max(c.offset for c in code) < CARD.vector_core.l1_safe_words
