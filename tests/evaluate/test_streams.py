"""Streams: repeats kept once, blocks joined."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.evaluate.stream import Stream


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_joined_blocks_are_neighbours_side_by_side(data) -> None:
    unique = np.arange(float(data.draw(st.integers(1, 6)) * 6)).reshape(-1, 2, 3)
    count, groups = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 5))
    if data.draw(st.booleans()):  # runs of neighbours, as a contraction loop makes them
        starts = [data.draw(st.integers(0, max(0, len(unique) - count))) for _ in range(groups)]
        index = [s + i if s + i < len(unique) else 0 for s in starts for i in range(count)]
    else:
        index = [data.draw(st.integers(0, len(unique) - 1)) for _ in range(groups * count)]
    stream = Stream(unique, np.asarray(index, dtype=np.int64))
    axis = data.draw(st.integers(0, 1))
    joined = stream.joined(count, axis)
    blocks = stream.all()
    for i in range(groups):
        expected = np.concatenate(list(blocks[i * count : (i + 1) * count]), axis=axis)
        np.testing.assert_array_equal(joined.all()[i], expected)
    assert len(joined) == groups
    assert joined is stream.joined(count, axis)


def test_joining_keeps_a_repeated_group_once() -> None:
    stream = Stream(np.arange(4.0).reshape(4, 1, 1), np.asarray([0, 1, 2, 3, 0, 1, 0, 1]))
    joined = stream.joined(2, 1)
    assert len(joined.unique) == 2
    assert joined.index.tolist() == [0, 1, 0, 0]
    odd = Stream(np.arange(3.0).reshape(3, 1, 1), np.asarray([0, 2, 0, 2, 1, 1]))
    assert odd.joined(2, 1).all().reshape(-1).tolist() == [0, 2, 0, 2, 1, 1]
    assert len(odd.joined(2, 1).unique) == 2


def test_blocks_in_order_are_not_copied() -> None:
    blocks = np.arange(6.0).reshape(3, 2)
    assert Stream.of(blocks).all() is blocks
    assert Stream(blocks, np.asarray([2, 0])).all().tolist() == [[4.0, 5.0], [0.0, 1.0]]
