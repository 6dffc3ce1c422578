"""Where operands and results may lie: maps of Generics, and pieces placed with any strides."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.targets.ktpu.vector_rig import BASE, CARD, CHIP, check, halves, placed, size_of, tasks_of

from meshwright.errors import PlacementError
from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.expression import Operand
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import TensorId
from meshwright.ir.operation import Generic, Reduce
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.pool import Pool
from meshwright.targets.ktpu.emit_vector import Placed, row_major
from meshwright.targets.ktpu.placement import KtpuPlacement

SITES = KtpuPlacement(CARD, CHIP).vector_sites()
F16, E8M15 = ElementType.F16, ElementType.E8M15
A, B = Operand(0), Operand(1)


def mapped(shape, operands, exprs=None) -> Graph:
    """One Generic over operands of given (shape, map), whole, at one core."""
    builder = GraphBuilder()
    ins = []
    for number, (own, _) in enumerate(operands):
        ins.append(builder.fifo(SITES[0], own, F16))
        builder.load(builder.tensor(f"x{number}", own, F16, (CHIP,)), whole(own), ins[-1])
    out = builder.fifo(SITES[0], shape, F16)
    total = Operand(0)
    for number in range(1, len(operands)):
        total = total * 0.5 + Operand(number)
    builder.compute(Generic(exprs or (total,), tuple(along for _, along in operands)), tuple(ins), (out,))
    builder.store(builder.tensor("y", shape, F16, (CHIP,)), whole(shape), out)
    return builder.graph()


def check_mapped(shape, operands, layout="padded"):
    graph = mapped(shape, operands)
    check(graph, {f"x{n}": halves(*own, seed=n) for n, (own, _) in enumerate(operands)}, layout)


# Maps.


@pytest.mark.parametrize(
    ("shape", "operands"),
    [
        ((12, 48), [((12, 48), (0, 1)), ((48,), (1,))]),
        ((12, 48), [((48,), (1,)), ((12,), (0,))]),
        ((12, 48), [((12, 48), (0, 1)), ((12,), (0,))]),
        ((5, 6, 40), [((5, 6, 40), (0, 1, 2)), ((6, 40), (1, 2)), ((5, 40), (0, 2)), ((40,), (2,))]),
        ((5, 6, 40), [((6, 5, 40), (1, 0, 2)), ((5, 1, 40), (0, 1, 2))]),
        ((3, 4, 5, 32), [((5, 4, 3, 32), (2, 1, 0, 3)), ((4, 32), (1, 3))]),
        ((4, 200), [((4, 200), (0, 1)), ((1,), (0,))]),
        ((64,), [((64,), (0,)), ((1,), (0,))]),
    ],
    ids=[
        "a row",
        "a row and a column",
        "a column",
        "three axes",
        "transposed rows",
        "reversed rows",
        "one",
        "one of one",
    ],
)
def test_maps_that_a_walk_can_do(shape, operands):
    check_mapped(shape, operands)


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_any_map_whose_rows_stay_rows(data):
    rank = data.draw(st.integers(1, 4))
    shape = (*(data.draw(st.integers(1, 5)) for _ in range(rank - 1)), data.draw(st.integers(1, 150)))
    operands = []
    for _ in range(data.draw(st.integers(1, 3))):
        outer = data.draw(st.permutations(range(rank - 1)))[: data.draw(st.integers(0, rank - 1))]
        along = (*outer, rank - 1)
        own = tuple(data.draw(st.sampled_from([1, shape[a]])) if a != rank - 1 else shape[a] for a in along)
        operands.append((own, along))
    check_mapped(shape, operands)


def test_transposed_elements_where_memory_has_them_in_rows():
    # The operand is stored column by column, so along the result's rows its elements follow each other.
    check_mapped((32, 48), [((48, 32), (1, 0)), ((32, 48), (0, 1))], ["columns", "padded", "padded"])
    graph = mapped((32, 48), [((48, 32), (1, 0)), ((32, 48), (0, 1))])
    with pytest.raises(PlacementError) as error:
        tasks_of(graph, placed(graph, "padded"))
    assert str(error.value) == (
        "stage s0 can't be emitted for a vector core: elements of a row are 32 apart in memory, or with gaps; a core "
        "moves words of 16"
    )


def test_transposed_elements_that_have_a_word_each():
    check_mapped((6, 5), [((5, 6), (1, 0)), ((6, 5), (0, 1))], "spread")


def test_maps_in_the_middle_of_a_chain():
    builder = GraphBuilder()
    x, s, y = (builder.tensor(n, shape, F16, (CHIP,)) for n, shape in (("x", (6, 40)), ("s", (40,)), ("y", (6, 40))))
    taken, scale, made, out = (
        builder.fifo(SITES[0], shape, format)
        for shape, format in (((6, 40), F16), ((40,), F16), ((40,), E8M15), ((6, 40), F16))
    )
    builder.load(x, whole((6, 40)), taken)
    builder.load(s, whole((40,)), scale)
    builder.compute(Generic((A * 0.3 + 1.0,), ((0,),)), (scale,), (made,))
    builder.compute(Generic((A * B,), ((0, 1), (1,))), (taken, made), (out,))
    builder.store(y, whole((6, 40)), out)
    check(builder.graph(), {"x": halves(6, 40), "s": halves(40, seed=1)}, "padded")


@pytest.mark.parametrize("axis", [0, 1])
def test_maps_before_a_fold(axis):
    builder = GraphBuilder()
    folded = (1, 40) if axis == 0 else (12, 1)
    shapes = {"x": (12, 40), "s": (40,), "y": folded}
    x, s, y = (builder.tensor(n, shape, F16, (CHIP,)) for n, shape in shapes.items())
    taken, scale, made, out = (
        builder.fifo(SITES[0], shape, format)
        for shape, format in (((12, 40), F16), ((40,), F16), ((12, 40), E8M15), (folded, F16))
    )
    builder.load(x, whole((12, 40)), taken)
    builder.load(s, whole((40,)), scale)
    builder.compute(Generic((A * B,), ((0, 1), (1,))), (taken, scale), (made,))
    builder.compute(Reduce(Pool.SUM, (axis,)), (made,), (out,))
    builder.store(y, whole(folded), out)
    check(builder.graph(), {"x": halves(12, 40), "s": halves(40, seed=1)}, "padded")


def test_a_fold_of_transposed_axes_keeps_its_order_or_is_refused():
    builder = GraphBuilder()
    shapes = {"x": (4, 5, 32), "y": (1, 1, 32)}
    x, y = (builder.tensor(n, shape, F16, (CHIP,)) for n, shape in shapes.items())
    taken, folded, out = (
        builder.fifo(SITES[0], shape, f) for shape, f in (((4, 5, 32), F16), ((1, 1, 32), E8M15), ((1, 1, 32), F16))
    )
    builder.load(x, whole((4, 5, 32)), taken)
    builder.compute(Reduce(Pool.SUM, (0, 1)), (taken,), (folded,))
    builder.compute(Generic((A * 0.1,), ((1, 0, 2),)), (folded,), (out,))
    builder.store(y, whole((1, 1, 32)), out)
    graph = builder.graph()
    with pytest.raises(PlacementError) as error:
        tasks_of(graph, placed(graph, "padded"))
    assert str(error.value) == (
        "stage s1 can't be emitted for a vector core: it folds axes that are [1, 0] of what is stored, and takes "
        "them in that order"
    )


# Blocks that two cores share a value by, each from a word on.


def staged(block, fold=None) -> Graph:
    """Two blocks of [2, *block], one at each core. A buffer has one axis at least."""
    builder = GraphBuilder()
    result = tuple(1 if axis == fold else size for axis, size in enumerate(block))
    x, y = (builder.tensor(n, (2, *shape), F16, (CHIP,)) for n, shape in (("x", block), ("y", result)))
    for number, site in enumerate(SITES[:2]):
        start = (number, *(0 for _ in block))
        taken, out = builder.fifo(site, block or (1,), F16), builder.fifo(site, result or (1,), F16)
        builder.load(x, Affine(start, (1, *block)), taken)
        if fold is None:
            builder.compute(Generic.elementwise(A * 0.3 + 1.0, 1, max(len(block), 1)), (taken,), (out,))
        else:
            builder.compute(Reduce(Pool.SUM, (fold,)), (taken,), (out,))
        builder.store(y, Affine(start, (1, *result)), out)
    return builder.graph()


def by_words(graph: Graph) -> dict[tuple[TensorId, int], Placed]:
    """Each block from a word on, its elements as the host writes them."""
    found, address = {}, BASE
    for number, tensor in enumerate(graph.tensors):
        block = tensor.local[1:]
        pitch = 16 * math.ceil(math.prod(block) / 16)
        found[TensorId(number), 0] = Placed(address, (pitch, *row_major(0, block).strides))
        address += size_of(found[TensorId(number), 0], tensor.local, tensor.format)
    return found


@pytest.mark.parametrize("block", [(8,), (1, 8), (8, 1), (), (1,), (1, 1), (3, 24), (2, 3, 8), (16,), (8, 16), (100,)])
def test_blocks_of_two_cores_in_words_of_their_own(block):
    graph = staged(block)
    x = halves(2, *block)
    check(graph, {"x": x}, by_words(graph))
    check(graph, {"x": x}, "spread")
    if block and not (len(block) == 1 and block[0] == 1):
        check(graph, {"x": x}, "padded")


@pytest.mark.parametrize(
    ("block", "fold"), [((8, 1), 0), ((1, 8), 1), ((8,), 0), ((20, 3), 1), ((20, 3), 0), ((2, 3, 8), 1)]
)
def test_folds_of_blocks_of_two_cores(block, fold):
    graph = staged(block, fold)
    check(graph, {"x": halves(2, *block)}, "spread")
    if block[-1] > 1:
        check(graph, {"x": halves(2, *block)}, ["padded", "spread" if fold == len(block) - 1 else "padded"])


def test_two_cores_don_t_write_one_word():
    graph = staged(())
    with pytest.raises(PlacementError) as error:
        tasks_of(graph, placed(graph, "padded"))
    assert "ends inside a word, and the store of the whole word would write over the 15 elements after it" in str(
        error.value
    )


# Blocks that follow each other.


def in_blocks(shape, box, order, pad=None) -> Graph:
    builder = GraphBuilder()
    loops = []
    for axis in order:
        stride = tuple(box[axis] if a == axis else 0 for a in range(len(shape)))
        loops.append(Loop(math.ceil(shape[axis] / box[axis]), stride))
    pattern = Affine((0,) * len(shape), box, tuple(loops), pad=pad)
    vector = Affine((0,), (box[-1],), tuple(Loop(loop.extent, (loop.stride[-1],)) for loop in loops), pad=pad)
    x, s, y = (builder.tensor(n, own, F16, (CHIP,)) for n, own in (("x", shape), ("s", shape[-1:]), ("y", shape)))
    taken, scale, out = (builder.fifo(SITES[0], own, F16) for own in (box, (*(1,) * (len(box) - 1), box[-1]), box))
    builder.load(x, pattern, taken)
    builder.load(s, vector, scale)
    builder.compute(Generic.elementwise(A * B, 2, len(shape)), (taken, scale), (out,))
    builder.store(y, pattern, out)
    return builder.graph()


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_blocks_narrower_than_a_word_side_by_side(data):
    shape = (data.draw(st.integers(1, 9)), data.draw(st.integers(1, 80)))
    box = (data.draw(st.integers(1, shape[0])), data.draw(st.integers(1, shape[1])))
    order = data.draw(st.permutations([0, 1]))
    ragged = any(size % own for size, own in zip(shape, box, strict=True))
    graph = in_blocks(shape, box, order, 0.0 if ragged else None)
    check(graph, {"x": halves(*shape), "s": halves(shape[1], seed=1)}, "padded")


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_pieces_with_any_pitch(data):
    shape = tuple(data.draw(st.integers(1, 6)) for _ in range(data.draw(st.integers(0, 2))))
    shape = (*shape, data.draw(st.integers(1, 140)))
    graph = mapped(shape, [(shape, tuple(range(len(shape))))] * 2)
    where, address = {}, BASE
    for number, tensor in enumerate(graph.tensors):
        strides, step = [1], 16 * (math.ceil(shape[-1] / 16) + data.draw(st.integers(0, 2)))
        for size in shape[-2::-1]:
            strides.append(step)
            step *= size + data.draw(st.integers(0, 2))
        order = data.draw(st.permutations(range(len(shape) - 1)))
        # Axes but the last may lie in any order where they have the same size.
        if len({shape[a] for a in order}) == 1 and data.draw(st.booleans()):
            strides[1:] = strides[1:][::-1]
        where[TensorId(number), 0] = Placed(address, tuple(reversed(strides)))
        address += size_of(where[TensorId(number), 0], tensor.local, tensor.format)
    check(graph, {f"x{n}": halves(*shape, seed=n) for n in range(2)}, where)


def test_a_value_of_no_axes():
    builder = GraphBuilder()
    x, y = (builder.tensor(n, (), F16, (CHIP,)) for n in "xy")
    taken, out = (builder.fifo(SITES[0], (1,), F16) for _ in range(2))
    builder.load(x, whole(()), taken)
    builder.compute(Generic.elementwise(A + 1.0, 1, 1), (taken,), (out,))
    builder.store(y, whole(()), out)
    check(builder.graph(), {"x": np.array(2.5, np.float16)}, "padded")
