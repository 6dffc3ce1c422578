"""Products on rows and columns of sites: the bits of one site, the stated error, and who sends what to whom."""

import math
import re
from itertools import product

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.kernels.block_flow import stuck
from tests.kernels.grid_bits import BF16, allowed, brains, magnitude, same_bits, sums
from tests.kernels.multicast_machines import one_chip

from meshwright import targets
from meshwright.errors import KernelError, PlacementError
from meshwright.evaluate.real import RealArithmetic
from meshwright.evaluate.walk import evaluate
from meshwright.ir import library
from meshwright.ir.expression import Operand
from meshwright.ir.flow import block_counts
from meshwright.ir.form import faults
from meshwright.ir.formats import ElementType as E
from meshwright.ir.operation import Matmul
from meshwright.ir.records import Compute, Load, Recv, Site, Store
from meshwright.kernels.alone import graph_alone, run_alone
from meshwright.kernels.grid import multicast_matmul
from meshwright.kernels.kernel import Shaped
from meshwright.kernels.matmul import MatrixProduct
from meshwright.machine import UnitSpec, load

GRID = load("grid-8x8")
PLACE = targets.placement(GRID, 0)
NUMBERS = targets.arithmetic(GRID)
TILE = (32, 32, 32)


def bf16(*shape):
    return Shaped(shape, E.BF16)


def graph_of(kernel, *operands, place=PLACE):
    graph = graph_alone(kernel, place, operands)
    assert faults(graph) == ()
    block_counts(graph)
    return graph


def run(kernel, *operands):
    return run_alone(kernel, PLACE, NUMBERS, operands)


sizes = st.integers(1, 100)
lines = st.integers(1, 8)


@given(sizes, sizes, sizes, lines, lines, st.sampled_from([1, 2]), st.sampled_from([32, 64]), st.booleans())
@example(1, 1, 1, 8, 8, 1, 32, True)
@example(256, 256, 32, 8, 8, 2, 32, True)
@example(97, 33, 65, 1, 8, 1, 32, False)
def test_any_shape_on_any_rectangle_has_the_bits_of_one_site(m, n, k, rows, columns, depth, deep, transposed):
    a, b = brains(0, m, k), brains(1, n, k)
    tile = (32, 32, deep)
    kernel = multicast_matmul(tile, rows, columns, depth, transposed)
    given_b = b if transposed else np.ascontiguousarray(b.T)
    assert stuck(graph_of(kernel, bf16(*a.shape), bf16(*given_b.shape))) == []
    found = run(kernel, a, given_b)
    assert same_bits(found, run(multicast_matmul(TILE, 1, 1), a, b))
    assert same_bits(found, run(MatrixProduct(), a, b))
    assert same_bits(found, sums(a, b).astype(BF16))
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    assert (np.abs(found.astype(np.float64) - exact) <= allowed(exact, magnitude(a, b), k)).all()


@given(sizes, sizes, sizes, lines, lines, st.booleans())
def test_bias_and_epilogue_come_after_the_last_step(m, n, k, rows, columns, whole):
    a, b, bias = brains(0, m, k), brains(1, n, k), brains(2, *((m, n) if whole else (n,)))
    kernel = multicast_matmul(TILE, rows, columns, epilogue=lambda x: library.maximum(x, 0.0) * 0.5)
    found = run(kernel, a, b, bias)
    total = sums(a, b) + bias.astype(np.float32)
    assert same_bits(found, (np.maximum(total, np.float32(0)) * np.float32(0.5)).astype(BF16))
    alone = msgspec.structs.replace(kernel, rows=1, columns=1)
    assert same_bits(found, run(alone, a, b, bias))
    exact = a.astype(np.float64) @ b.astype(np.float64).T + bias.astype(np.float64)
    within = allowed(exact, magnitude(a, b) + np.abs(bias.astype(np.float64)), k)
    plain = run(multicast_matmul(TILE, rows, columns), a, b, bias)
    assert (np.abs(plain.astype(np.float64) - exact) <= within).all()


def test_a_bias_of_negative_zeros_and_an_epilogue_that_ignores_the_sum():
    a, b = brains(0, 40, 40), brains(1, 40, 40)
    bias = np.full(40, -0.0, dtype=BF16)
    assert same_bits(run(multicast_matmul(TILE), a, b, bias), run(multicast_matmul(TILE), a, b))
    found = run(multicast_matmul(TILE, epilogue=lambda _: 3.0), a, b)
    assert (found == BF16(3.0)).all()


def test_gelu_as_an_epilogue():
    a, b, bias = brains(0, 70, 40), brains(1, 50, 40), brains(2, 50)
    kernel = multicast_matmul(epilogue=library.gelu)
    real = run_alone(kernel, PLACE, RealArithmetic(), [x.astype(np.float64) for x in (a, b, bias)])
    y = a.astype(np.float64) @ b.astype(np.float64).T + bias.astype(np.float64)
    erf = np.vectorize(math.erf)
    # The formula behind gelu has an absolute error of 1.5e-7 in erf.
    np.testing.assert_allclose(real, 0.5 * y * (1 + erf(y / 2**0.5)), atol=1e-5, rtol=2e-4)
    np.testing.assert_allclose(run(kernel, a, b, bias).astype(np.float64), real, atol=1e-3, rtol=2**-7)


@given(sizes, sizes, st.integers(33, 200), lines, lines)
def test_a_float32_spill_loses_nothing(m, n, k, rows, columns):
    a, b = brains(0, m, k), brains(1, n, k)
    found = run(multicast_matmul(TILE, rows, columns, spill=E.F32), a, b)
    assert same_bits(found, sums(a, b).astype(BF16))


@given(sizes, sizes, st.integers(33, 200), lines, lines)
def test_a_bf16_spill_rounds_between_steps(m, n, k, rows, columns):
    a, b = brains(0, m, k), brains(1, n, k)
    found = run(multicast_matmul(TILE, rows, columns, spill=E.BF16), a, b)
    assert same_bits(found, sums(a, b, range(32, k, 32), BF16).astype(BF16))
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    terms = magnitude(a, b)
    within = allowed(exact, terms, k) + 2.0**-7 * -(-k // 32) * terms
    assert (np.abs(found.astype(np.float64) - exact) <= within).all()


def test_a_bf16_spill_is_not_the_same_as_none():
    a, b = brains(0, 64, 128), brains(1, 64, 128)
    assert not same_bits(run(multicast_matmul(TILE, spill=E.BF16), a, b), run(multicast_matmul(TILE), a, b))


def test_float32_operands():
    a, b = (np.random.default_rng(i).standard_normal((50, 70)).astype(np.float32) for i in (0, 1))
    graph = graph_alone(multicast_matmul(TILE), PLACE, [Shaped(x.shape, E.F32) for x in (a, b)])
    found = evaluate(graph, {"operand 0": [a], "operand 1": [b]}, NUMBERS)["result"][0]
    assert same_bits(found, sums(a, b))


@pytest.mark.parametrize(("columns", "rows"), [(1, 1), (1, 8), (8, 1), (3, 5), (8, 8)])
def test_each_row_and_each_column_has_one_sender(columns, rows):
    place = targets.placement(one_chip(columns, rows), 0)
    graph = graph_of(
        multicast_matmul(TILE), bf16(32 * rows, 96), bf16(32 * columns, 96), bf16(32 * columns), place=place
    )
    loads = [s for s in graph.stages if isinstance(s.kind, Load)]
    of = {
        name: [s for s in loads if graph.tensors[s.kind.tensor].name == name]
        for name in ("operand 0", "operand 1", "operand 2")
    }
    assert [graph.site(s) for s in of["operand 0"]] == [Site(0, 0, y) for y in range(rows)]
    for name in ("operand 1", "operand 2"):
        assert [graph.site(s) for s in of[name]] == [Site(0, x, 0) for x in range(columns)]
    for load_ in of["operand 0"]:
        rectangle(graph, load_, lambda y: ((0, y), (columns - 1, y)), graph.site(load_).y)
    for load_ in (*of["operand 1"], *of["operand 2"]):
        rectangle(graph, load_, lambda x: ((x, 0), (x, rows - 1)), graph.site(load_).x)
    # Every block of DRAM is loaded once: a by its row, b and the bias by their column.
    assert sum(s.kind.num_blocks for s in of["operand 0"]) == rows * 3
    assert sum(s.kind.num_blocks for s in of["operand 1"]) == columns * 3
    assert sum(s.kind.num_blocks for s in of["operand 2"]) == columns
    receivers = sum(isinstance(s.kind, Recv) for s in graph.stages)
    assert receivers == rows * (columns - 1) + 2 * columns * (rows - 1)


def rectangle(graph, stage, corners, at):
    group = stage.kind.multicast
    low, high = corners(at)
    if low == high:
        assert group is None
    else:
        assert (graph.groups[group].low, graph.groups[group].high) == (low, high)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_fifos_have_the_stated_depth(depth):
    graph = graph_of(multicast_matmul(TILE, depth=depth), bf16(64, 64), bf16(64, 64), bf16(64))
    assert {b.depth for b in graph.buffers} == {depth}
    assert stuck(graph) == []


def test_two_deep_is_the_default_and_one_block_of_spill_is_enough():
    graph = graph_of(multicast_matmul(TILE, spill=E.F32), bf16(64, 64), bf16(64, 64))
    spills = {s.kind.op.spill for s in graph.stages if isinstance(s.kind, Compute)}
    assert len(spills) == 4
    assert {(b.depth, b.format) for i, b in enumerate(graph.buffers) if i in spills} == {(1, E.F32)}
    assert {(b.depth, b.format) for i, b in enumerate(graph.buffers) if i not in spills} == {(2, E.BF16)}


@pytest.mark.parametrize("shape", [(1, 1, 1), (300, 40, 64), (32, 2000, 33), (257, 257, 257)])
def test_every_site_of_the_rectangle_has_the_same_number_of_blocks(shape):
    m, n, k = shape
    graph = graph_of(multicast_matmul(TILE), bf16(m, k), bf16(n, k))
    stores = [s for s in graph.stages if isinstance(s.kind, Store)]
    assert len({s.kind.pattern.num_blocks for s in stores}) == 1
    each = stores[0].kind.pattern.num_blocks
    blocks = -(-m // 32) * -(-n // 32)
    # What is too much is less than one row and one column of blocks of shares.
    assert blocks <= len(stores) * each
    across = len({graph.site(s).x for s in stores})
    down = len({graph.site(s).y for s in stores})
    assert len(stores) == across * down <= 64


def test_the_default_block_is_a_sites_share():
    graph = graph_of(multicast_matmul(), bf16(1024, 2048), bf16(512, 2048))
    (op,) = {s.kind.op for s in graph.stages if isinstance(s.kind, Compute)}
    assert (op.block, op.contraction_blocks) == ((128, 64, 256), 8)
    assert sum(isinstance(s.kind, Compute) for s in graph.stages) == 64
    assert all(isinstance(s.kind.op, Matmul) for s in graph.stages if isinstance(s.kind, Compute))


def test_what_it_says_of_itself():
    two, three = (bf16(4, 8), bf16(6, 8)), (bf16(4, 8), bf16(6, 8), bf16(6))
    plain, curved = multicast_matmul(), multicast_matmul(epilogue=library.gelu)
    scaled = multicast_matmul(epilogue=lambda x: x * 2.0)
    assert plain.axes(two) == ((0, None), (1, None))
    assert plain.axes(three) == ((0, None), (1, None), (1,))
    assert plain.axes((*two, bf16(4, 6)))[2] == (0, 1)
    assert multicast_matmul(b_transposed=False).axes(two) == ((0, None), (None, 1))
    assert [len(k.contractions(o)) for k, o in product((plain, curved, scaled), (two, three))] == [1, 0, 0, 0, 1, 0]
    assert multicast_matmul(b_transposed=False).contractions(two)[0].axes == (1, 0)
    for together, kernel, operands, linear in (
        ({0}, plain, two, True),
        ({1}, scaled, two, True),
        ({0, 1}, plain, two, False),
        ({0}, plain, three, False),
        ({0, 2}, plain, three, True),
        ({1, 2}, scaled, three, True),
        ({2}, plain, three, False),
        ({0}, curved, two, False),
    ):
        assert kernel.linear_in(frozenset(together), operands) is linear
    assert (plain.name, plain.unit) == ("multicast matmul", "matrix")


REFUSED = {
    "multicast matmul: `a` is bf16[4, 8] and `b` is bf16[6, 9]: the contraction has 8 and 9 elements. The product is "
    "a @ b.T: `b` is stored [N][K]": (multicast_matmul(), bf16(4, 8), bf16(6, 9)),
    "multicast matmul: `a` is bf16[4, 8] and `b` is bf16[6, 8]: the contraction has 8 and 6 elements. The product is "
    "a @ b: `b` is stored [K][N]": (multicast_matmul(b_transposed=False), bf16(4, 8), bf16(6, 8)),
    "multicast matmul: `a` is bf16[2, 4, 8] and `b` is bf16[6, 8]; both have two axes. The product is a @ b.T: `b` is "
    "stored [N][K]": (multicast_matmul(), bf16(2, 4, 8), bf16(6, 8)),
    "multicast matmul: the bias is bf16[4] and the product [4, 6]; a bias is [6], or as large as the product": (
        multicast_matmul(),
        bf16(4, 8),
        bf16(6, 8),
        bf16(4),
    ),
    "multicast matmul takes a and b, or a, b and a bias; 1 operands are given: bf16[4, 8]": (
        multicast_matmul(),
        bf16(4, 8),
    ),
    "multicast matmul: operand 1 is bf16[0, 8], which has no elements; there is nothing to do": (
        multicast_matmul(),
        bf16(4, 8),
        bf16(0, 8),
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_operands_that_do_not_fit(message):
    kernel, *operands = REFUSED[message]
    with pytest.raises(KernelError, match=f"^{re.escape(message)}$"):
        graph_alone(kernel, PLACE, operands)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: multicast_matmul(depth=0),
            "multicast_matmul(depth=0): a FIFO holds at least one block; two let filling and taking overlap",
        ),
        (
            lambda: multicast_matmul(spill=E.I32),
            "multicast_matmul(spill=i32): partial sums are no whole numbers; f32 loses nothing",
        ),
        (
            lambda: multicast_matmul(epilogue=lambda x: x * Operand(1)),
            "multicast_matmul: the epilogue reads operand 1, and there is operand 0 alone",
        ),
        (
            lambda: multicast_matmul(epilogue=lambda x: x < 0.0),
            "multicast_matmul: the epilogue is a predicate, and elements are numbers: select one of two by it",
        ),
        (
            lambda: multicast_matmul(epilogue=lambda x: x + (x < 0.0)),
            "multicast_matmul: the epilogue: ($0 + ($0 < 0)) takes a number where it is given a predicate: ($0 < 0)",
        ),
        (
            lambda: multicast_matmul(epilogue=lambda x: "x"),
            "multicast_matmul: the epilogue can't be traced into the compute algebra: ",
        ),
    ],
)
def test_products_that_can_not_be_made(make, message):
    with pytest.raises(KernelError, match=f"^{re.escape(message)}"):
        make()


def test_sites_that_are_not_there():
    with pytest.raises(
        PlacementError,
        match=re.escape(
            "multicast matmul over 9 rows of sites: chip 0 has 8 rows and 8 columns of them; 1 to 8 rows are possible"
        ),
    ):
        graph_alone(multicast_matmul(rows=9), PLACE, [bf16(4, 8), bf16(6, 8)])
    with pytest.raises(PlacementError, match="a matrix engine works on tiles of 32 x 32 x 32"):
        graph_alone(multicast_matmul((32, 32, 16)), PLACE, [bf16(4, 8), bf16(6, 8)])


def test_sites_with_a_gap_are_no_rectangle():
    machine = one_chip(2, 2)
    mesh = msgspec.structs.replace(machine.meshes[0], units=(UnitSpec("site", ((0, 0), (1, 0), (1, 1))),))
    place = targets.placement(msgspec.structs.replace(machine, meshes=(mesh,)), 0)
    with pytest.raises(
        PlacementError,
        match=re.escape(
            "multicast matmul on chip 0: its 3 sites leave gaps in the rectangle (0,0)..(1,1) of 4; a multicast "
            "reaches every place of its rectangle"
        ),
    ):
        graph_alone(multicast_matmul(), place, [bf16(4, 8), bf16(6, 8)])
