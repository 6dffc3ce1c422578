"""Kernels on one mesh of the card: the bits of the number formats called directly, whatever the shape."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import targets
from meshwright.evaluate.walk import evaluate
from meshwright.ir import library
from meshwright.ir.build import GraphBuilder
from meshwright.ir.expression import Operand
from meshwright.ir.formats import ElementType as E
from meshwright.kernels.elementwise import Elementwise, add, gelu, scale
from meshwright.kernels.kernel import Piece, Shaped
from meshwright.kernels.matmul import MatrixProduct
from meshwright.machine import load
from meshwright.numerics.lane_program import execute
from meshwright.numerics.product import matmul_fp16
from meshwright.targets.ktpu.lane_code import compile_expressions

CARD = load("ktpu-v13p")


def halves(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def run(kernel, *operands, chip=0):
    builder = GraphBuilder()
    pieces = [Piece(builder.tensor(f"x{i}", v.shape, E.F16, [chip]), 0, v.shape) for i, v in enumerate(operands)]
    shape = kernel.result([Shaped(v.shape, E.F16) for v in operands]).shape
    result = builder.tensor("y", shape, E.F16, [chip])
    kernel.emit(builder, targets.placement(CARD, chip), pieces, Piece(result, 0, shape))
    inputs = {f"x{i}": [v] for i, v in enumerate(operands)}
    return evaluate(builder.graph(), inputs, targets.arithmetic(CARD))["y"][0]


def same(found, expected) -> None:
    assert found.dtype == expected.dtype == np.float16
    np.testing.assert_array_equal(found.view(np.uint16), expected.view(np.uint16))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 150), st.integers(1, 300), st.integers(1, 600))
def test_products_of_any_shape(m, n, k) -> None:
    a, b = halves(m, k), halves(n, k, seed=1)
    same(run(MatrixProduct(), a, b), matmul_fp16(a, b))


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_products_with_a_stated_tile(data) -> None:
    m, n, k = (data.draw(st.integers(1, size)) for size in (40, 40, 200))
    tile = tuple(step * data.draw(st.integers(1, 8)) for step in (4, 4, 32))
    a, b = halves(m, k), halves(n, k, seed=1)
    same(run(MatrixProduct(tile), a, b, chip=1), matmul_fp16(a, b))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("batch", [(3,), (2, 2)])
def test_products_with_leading_axes(batch, shared) -> None:
    a = halves(*batch, 9, 70)
    b = halves(37, 70, seed=1) if shared else halves(*batch, 37, 70, seed=1)
    same(run(MatrixProduct(), a, b), matmul_fp16(a, b))


def test_special_values_go_through_a_product() -> None:
    a, b = halves(8, 64), halves(8, 64, seed=1)
    a[0, 0], a[1, 3], b[2, 5] = np.float16(np.inf), np.float16(np.nan), np.float16(65504)
    same(run(MatrixProduct(), a, b), matmul_fp16(a, b))


def direct(expr, *operands):
    program = compile_expressions((expr,), (E.F16,) * len(operands), (E.F16,))
    return execute(program, operands)[0]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=3), st.integers(1, 1500))
def test_elementwise_work_of_any_shape(leading, last) -> None:
    x = halves(*leading[:2], last)
    same(run(gelu, x), direct(gelu.expr, x))


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_operands_broadcast_by_numpys_rules(data) -> None:
    rank = data.draw(st.integers(1, 3))
    shape = [data.draw(st.integers(1, 20)) for _ in range(rank)]
    shapes = []
    for _ in range(3):
        kept = [size if data.draw(st.booleans()) else 1 for size in shape]
        shapes.append(tuple(kept[data.draw(st.integers(0, rank - 1)) :]))
    operands = [halves(*s, seed=i) for i, s in enumerate(shapes)]
    expr = library.multiply_add(Operand(0), Operand(1), Operand(2)) - Operand(1)
    same(run(Elementwise("own", expr, 3), *operands), direct(expr, *operands))


def test_a_kernel_that_reads_an_operand_twice() -> None:
    x = halves(5, 700)
    same(run(Elementwise("square", Operand(0) * Operand(0), 1), x), direct(Operand(0) * Operand(0), x))
    same(run(add, x, x), direct(add.expr, x, x))
    same(run(scale(0.1), x), direct(scale(0.1).expr, x))
