"""Access patterns against one element at a time."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import EvaluationError
from meshwright.evaluate.boxes import Boxes, turning_loops
from meshwright.ir.pattern import Affine, Loop

PAD = -7.0


def elements(pattern, count, looked_up=None, positions=None):
    """For each block the tensor index of each of its elements, row-major."""
    for t in range(count):
        corner = pattern.corner(t)
        block = []
        for box in product(*(range(size) for size in pattern.box)):
            at = [c + b * s for c, b, s in zip(corner, box, pattern.steps, strict=True)]
            if looked_up is not None:
                at[looked_up] = positions[t][box[looked_up]]
            block.append(tuple(at))
        yield block


def inside(index, shape):
    return all(0 <= i < size for i, size in zip(index, shape, strict=True))


@st.composite
def patterns(draw):
    rank = draw(st.integers(0, 3))
    per_axis = lambda low, high: st.tuples(*(st.integers(low, high) for _ in range(rank)))  # noqa: E731
    loops = draw(st.lists(st.builds(Loop, st.integers(0, 3), per_axis(-3, 3)), max_size=3))
    pattern = Affine(
        draw(per_axis(-3, 5)),
        draw(per_axis(1, 3)),
        tuple(loops),
        draw(st.one_of(st.just(()), per_axis(1, 3))),
        PAD,
    )
    return pattern, draw(per_axis(0, 6)), draw(st.integers(0, pattern.num_blocks))


@settings(deadline=None, max_examples=400)
@given(patterns())
def test_reads_writes_and_touches_what_the_pattern_says(case) -> None:
    pattern, shape, count = case
    array = np.arange(1.0, 1.0 + np.prod(shape, dtype=int)).reshape(shape)
    blocks, size = list(elements(pattern, count)), int(np.prod(pattern.box))
    boxes = Boxes(pattern, shape, "a load", count=count)

    found = boxes.read(array, np.asarray(PAD), pattern.box).all()
    expected = [[array[i] if inside(i, shape) else PAD for i in block] for block in blocks]
    assert found.shape == (count, *pattern.box)
    np.testing.assert_array_equal(found.reshape(count, size), np.reshape(expected, (count, size)))

    flat = [int(np.ravel_multi_index(i, shape)) if shape else 0 for block in blocks for i in block if inside(i, shape)]
    repeated = len(set(flat)) < len(flat)
    assert boxes.overlapping() == repeated or len(boxes.index) != len(np.unique(boxes.index))
    if not repeated and not boxes.overlapping():
        assert sorted(boxes.touched().tolist()) == sorted(flat)
        assert boxes.touched_count == len(flat)
        target, wanted = array.copy(), array.copy()
        values = 100.0 + np.arange(count * np.prod(pattern.box, dtype=int)).reshape(count, *pattern.box)
        boxes.write(target, values)
        for block, numbers in zip(blocks, values.reshape(count, size), strict=True):
            for index, number in zip(block, numbers, strict=True):
                if inside(index, shape):
                    wanted[index] = number
        np.testing.assert_array_equal(target, wanted)


@settings(deadline=None, max_examples=150)
@given(patterns(), patterns())
def test_what_is_obviously_apart_shares_nothing(one, other) -> None:
    shape = one[1]
    if len(other[1]) != len(shape):
        return
    a, b = Boxes(one[0], shape, "a", count=one[2]), Boxes(other[0], shape, "b", count=other[2])
    if a.obviously_apart_from(b):
        assert not set(a.touched().tolist()) & set(b.touched().tolist())


@settings(deadline=None, max_examples=100)
@given(patterns(), st.data())
def test_without_a_pad_nothing_may_lie_outside(case, data) -> None:
    pattern, shape, count = case
    bare = Affine(pattern.offset, pattern.box, pattern.loops, pattern.step)
    outside = any(not inside(i, shape) for block in elements(bare, count) for i in block)
    if outside:
        with pytest.raises(EvaluationError, match="a pattern without a pad has to stay inside"):
            Boxes(bare, shape, "a load", count=count)
    else:
        Boxes(bare, shape, "a load", count=count)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_looked_up_rows(data) -> None:
    shape = (data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4)))
    blocks, rows = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 3))
    pattern = Affine((0, 0), (rows, shape[1]), (Loop(blocks, (0, 0)),), pad=PAD)
    positions = np.asarray(
        data.draw(
            st.lists(st.lists(st.integers(-2, 6), min_size=rows, max_size=rows), min_size=blocks, max_size=blocks)
        ),
        dtype=np.int64,
    ).reshape(blocks, rows)
    array = np.arange(np.prod(shape), dtype=float).reshape(shape)
    boxes = Boxes(pattern, shape, "a load", 0, positions)
    expected = [
        [array[i] if inside(i, shape) else PAD for i in block] for block in elements(pattern, blocks, 0, positions)
    ]
    found = boxes.read(array, np.asarray(PAD), pattern.box).all()
    np.testing.assert_array_equal(found.reshape(-1), np.reshape(expected, -1))
    touched = [i for block in elements(pattern, blocks, 0, positions) for i in block if inside(i, shape)]
    assert boxes.overlapping() == (len(set(touched)) < len(touched))
    if not boxes.overlapping():
        target, wanted = np.zeros(shape), np.zeros(shape)
        values = 1.0 + np.arange(float(blocks * rows * shape[1])).reshape(blocks, rows, shape[1])
        boxes.write(target, values)
        for block, numbers in zip(
            elements(pattern, blocks, 0, positions), values.reshape(blocks, rows * shape[1]), strict=True
        ):
            for index, number in zip(block, numbers, strict=True):
                if inside(index, shape):
                    wanted[index] = number
        np.testing.assert_array_equal(target, wanted)


def test_the_message_says_how_far_it_reaches() -> None:
    pattern = Affine((0, -1), (2, 2), (Loop(3, (2, 0)),))
    with pytest.raises(
        EvaluationError,
        match=re.escape(
            "load of 'x': reaches 0 to 5 along axis 0, which has 4; a pattern without a pad has to stay inside"
        ),
    ):
        Boxes(pattern, (4, 4), "load of 'x'")


def test_a_looked_up_row_that_is_not_held_is_refused_without_a_pad() -> None:
    with pytest.raises(EvaluationError, match="reaches 9 to 9 along axis 0, which has 4"):
        Boxes(Affine((0, 0), (1, 2)), (4, 2), "load", 0, np.asarray([[9]]))


def test_a_loop_that_does_not_move_repeats_a_block_and_copies_nothing() -> None:
    pattern = Affine((0, 0), (2, 4), (Loop(3, (2, 0)), Loop(5, (0, 0))))
    stream = Boxes(pattern, (6, 4), "load").read(np.arange(24.0).reshape(6, 4), np.asarray(0.0), (2, 4))
    assert len(stream.unique) == 3
    assert stream.index.tolist() == [i for i in range(3) for _ in range(5)]


def test_a_nest_too_large_to_hold_is_refused_before_anything_is_allocated() -> None:
    endless = Affine((0,), (1,), (Loop(1 << 20, (1,)), Loop(1 << 20, (1,))), pad=0.0)
    with pytest.raises(EvaluationError, match="is more than an evaluation can hold"):
        turning_loops(endless)
    with pytest.raises(EvaluationError, match=re.escape("load: 1048576 blocks of (8192,) are too much to hold")):
        Boxes(Affine((0,), (1 << 13,), (Loop(1 << 20, (1,)),), pad=0.0), (4,), "load")


def test_far_boxes_do_not_make_a_canvas_of_everything_between_them() -> None:
    pattern = Affine((0,), (2,), (Loop(2, (1 << 40,)),), pad=5.0)
    found = Boxes(pattern, (4,), "load").read(np.arange(4.0), np.asarray(5.0), (2,)).all()
    assert found.tolist() == [[0.0, 1.0], [5.0, 5.0]]
