"""Kernels on a grid of sites: placement, tiles, and results in bf16."""

from __future__ import annotations

import re
from math import erf

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import targets
from meshwright.errors import MachineError, PlacementError
from meshwright.evaluate.arithmetic import Products, Typed
from meshwright.evaluate.walk import evaluate
from meshwright.ir.build import GraphBuilder
from meshwright.ir.expression import Operand
from meshwright.ir.formats import ElementType as E
from meshwright.ir.operation import Unit
from meshwright.kernels.elementwise import Elementwise, gelu
from meshwright.kernels.kernel import Piece, Shaped
from meshwright.kernels.matmul import MatrixProduct
from meshwright.kernels.move import emit_copy
from meshwright.machine import load
from meshwright.runtime.traffic import link_bytes
from meshwright.targets.grid.arithmetic import GridArithmetic
from meshwright.targets.grid.placement import GridPlacement

MACHINE = load("grid-2x4x4")
PLACE = GridPlacement(MACHINE, 1)
BF16 = ml_dtypes.bfloat16


def brains(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(BF16)


def run(kernel, *operands, chip=1):
    builder = GraphBuilder()
    pieces = [Piece(builder.tensor(f"x{i}", v.shape, E.BF16, [chip]), 0, v.shape) for i, v in enumerate(operands)]
    shape = kernel.result([Shaped(v.shape, E.BF16) for v in operands]).shape
    result = builder.tensor("y", shape, E.BF16, [chip])
    kernel.emit(builder, targets.placement(MACHINE, chip), pieces, Piece(result, 0, shape))
    graph = builder.graph()
    inputs = {f"x{i}": [v] for i, v in enumerate(operands)}
    return evaluate(graph, inputs, targets.arithmetic(MACHINE))["y"][0], graph


def product(a, b):
    index = np.zeros(1, np.int64)
    request = Products(Typed(a[None], E.BF16), Typed(b[None], E.BF16), index, index, None, E.BF16)
    return GridArithmetic().products(request)[0]


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 150), st.integers(1, 150), st.integers(1, 100))
def test_products_of_any_shape(m, n, k) -> None:
    a, b = brains(m, k), brains(n, k, seed=1)
    found, _ = run(MatrixProduct(), a, b)
    np.testing.assert_array_equal(found.view(np.uint16), product(a, b).view(np.uint16))


def test_a_product_uses_the_sites() -> None:
    found, graph = run(MatrixProduct(), brains(512, 64), brains(32, 64, seed=1))
    assert len({graph.site(stage) for stage in graph.stages}) == 16
    assert {buffer.site.chip for buffer in graph.buffers} == {1}
    assert found.shape == (512, 32)


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 40), st.integers(1, 3000))
def test_elementwise_work_of_any_shape(rows, columns) -> None:
    x, y = brains(rows, columns), brains(columns, seed=1)
    kernel = Elementwise("scaled", Operand(0) * Operand(1) + 1.0, 2)
    found, _ = run(kernel, x, y)
    typed = [Typed(x, E.BF16), Typed(y, E.BF16)]
    (expected,) = GridArithmetic().elementwise([kernel.expr], typed, [E.BF16], Unit.VECTOR)
    np.testing.assert_array_equal(found.view(np.uint16), expected.view(np.uint16))


def test_gelu_is_close_to_gelu() -> None:
    x = np.linspace(-4, 4, 64).astype(BF16).reshape(2, 32)
    found, _ = run(gelu, x)
    exact = [v * 0.5 * (1 + erf(v / 2**0.5)) for v in x.astype(float).reshape(-1)]
    np.testing.assert_allclose(found.astype(float).reshape(-1), exact, atol=2e-2, rtol=2**-8)


def test_a_copy_to_the_other_chip_is_paid_for_by_its_elements() -> None:
    builder = GraphBuilder()
    source, target = builder.tensor("x", (3, 5), E.BF16, [0]), builder.tensor("y", (3, 5), E.BF16, [1])
    emit_copy(builder, targets.placement(MACHINE, 0), Piece(source, 0, (3, 5)), Piece(target, 0, (3, 5)))
    graph = builder.graph()
    moved = sum(graph.buffers[stage.ins[0]].elements for stage in graph.stages if stage.ins)
    assert link_bytes(graph, MACHINE) == {(0, 1): 2 * moved}
    x = brains(3, 5)
    found = evaluate(graph, {"x": [x]}, targets.arithmetic(MACHINE))["y"][0]
    assert (found == x).all()


def test_what_a_target_says_of_a_grid() -> None:
    assert isinstance(targets.arithmetic(MACHINE), GridArithmetic)
    assert targets.value_format(MACHINE) is E.BF16
    assert [targets.wire_bytes(MACHINE, f, 3) for f in (E.BF16, E.F32, E.I32)] == [6, 12, 12]
    place = targets.placement(MACHINE, 0)
    assert place.matrix_sites() == place.vector_sites()
    assert len(place.matrix_sites()) == 16
    assert place.mover_site() == place.matrix_sites()[0]
    assert (place.value_format, place.lane_format) == (E.BF16, E.F32)
    assert (place.resident_sums, place.has_vector_units) == (False, True)
    with pytest.raises(MachineError, match="grid-2x4x4 has no mesh 7; its meshes are 0, 1"):
        targets.placement(MACHINE, 7)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 20000))
def test_default_tiles_are_legal(m, n, k) -> None:
    tile = PLACE.matmul_tile(m, n, k)
    PLACE.check_tile(tile)
    assert tile[2] * -(-k // tile[2]) - k < tile[2]


def test_small_products_are_spread_over_more_sites() -> None:
    assert PLACE.matmul_tile(128, 128, 64)[:2] == (32, 32)
    assert PLACE.matmul_tile(4096, 4096, 64)[:2] == (128, 128)
    assert PLACE.matmul_tile(1, 1, 1) == (32, 32, 32)


def test_tiles_that_do_not_fit() -> None:
    with pytest.raises(
        PlacementError,
        match=re.escape(
            "matmul tile 40 x 32 x 1 on grid-2x4x4: a matrix engine works on tiles of 32 x 32 x 32; the nearest legal "
            "tile is 64 x 32 x 32"
        ),
    ):
        PLACE.check_tile((40, 32, 1))
    # Two blocks of 128 x K and K x 128 in bf16, two of 128 x 128, and sums in float32: 1024 K + 131072 bytes.
    PLACE.check_tile((128, 128, 1312))
    with pytest.raises(
        PlacementError,
        match=re.escape(
            "matmul tile 128 x 128 x 1344 on grid-2x4x4: two blocks of each operand and of the result, and the sums, "
            "take 1,507,328 bytes, and a site has 1,499,136; K blocks of 1312 fit"
        ),
    ):
        PLACE.check_tile((128, 128, 1344))
    with pytest.raises(PlacementError, match="and a site has 1,499,136; fewer rows or columns would fit"):
        PLACE.check_tile((512, 512, 32))


def test_blocks_of_a_vector_engine_fit_a_sites_memory() -> None:
    for blocks in (1, 2, 3, 7, 1000):
        elements = PLACE.vector_elements(blocks)
        assert elements % 1024 == 0
        assert elements == 1024 or 2 * 4 * blocks * elements <= MACHINE.site.memory_bytes


def test_a_chip_without_sites_says_who_has_them() -> None:
    meshes = (msgspec.structs.replace(MACHINE.meshes[0], units=()), MACHINE.meshes[1])
    place = GridPlacement(msgspec.structs.replace(MACHINE, meshes=meshes), 0)
    assert not place.has_vector_units
    with pytest.raises(
        PlacementError, match="mesh 0 of grid-2x4x4 has no site: it has no unit at all; it is on mesh 1"
    ):
        place.matrix_sites()
