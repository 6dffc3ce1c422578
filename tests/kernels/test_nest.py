"""Blocks dealt to sites: each once, the largest part as small as cuts along two axes make it."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.kernels.nest import Nest, cuts

COUNTS = st.lists(st.integers(1, 12), min_size=1, max_size=4).map(tuple)


def one_axis(count, hands):
    """The largest part where cuts are along one axis."""
    return min(math.ceil(size / hands) * math.prod(count) // size for size in count)


@settings(deadline=None, max_examples=200)
@given(COUNTS, st.integers(1, 20))
def test_every_block_is_dealt_once(count, hands):
    parts = list(Nest.over(tuple(3 * size - 1 for size in count), (3,) * len(count)).dealt(hands))
    assert 1 <= len(parts) <= hands
    found = [
        block
        for part in parts
        for block in itertools.product(*(range(f, f + c) for f, c in zip(part.first, part.count, strict=True)))
    ]
    assert sorted(found) == list(itertools.product(*map(range, count)))
    sizes = [math.prod(part.count) for part in parts]
    assert max(sizes) == sizes[0] == math.prod(cuts(count, hands))
    assert [part.first for part in parts] == sorted(part.first for part in parts)


@settings(deadline=None, max_examples=200)
@given(COUNTS, st.integers(1, 20))
def test_two_axes_only_where_that_is_better(count, hands):
    share = cuts(count, hands)
    along = [axis for axis, (size, part) in enumerate(zip(count, share, strict=True)) if part < size]
    assert len(along) <= 2
    assert math.prod(share) < one_axis(count, hands) if len(along) == 2 else math.prod(share) == one_axis(count, hands)


@pytest.mark.parametrize(
    ("count", "hands", "share", "parts"),
    [
        ((4, 2), 6, (1, 2), 4),  # (2, 1) has parts as large
        ((4, 3), 6, (2, 1), 6),  # one axis: 4 parts of 3, or 3 of 4
        ((8, 3), 6, (4, 1), 6),
        ((5, 5), 6, (1, 5), 5),
        ((12, 1), 6, (2, 1), 6),
        ((1, 7), 6, (1, 2), 4),
        ((2, 3, 5), 6, (1, 1, 5), 6),
        ((), 6, (), 1),
    ],
)
def test_parts(count, hands, share, parts):
    nest = Nest.over(count, (1,) * len(count))
    assert cuts(count, hands) == share
    assert len(list(nest.dealt(hands))) == parts


def test_padding_is_where_a_part_reaches_past_the_edge():
    """4 x 3 blocks of 4 x 4, the last row and column of them cut: 2 x 1 blocks a part."""
    parts = [part.pattern((0, 1), (14, 12)) for part in Nest.over((14, 12), (4, 4)).dealt(6)]
    assert [part.offset for part in parts] == [(0, 0), (0, 4), (0, 8), (8, 0), (8, 4), (8, 8)]
    assert [part.pad for part in parts] == [None] * 3 + [0.0] * 3
    parts = [part.pattern((0, 1), (16, 11)) for part in Nest.over((16, 11), (4, 4)).dealt(6)]
    assert [part.pad for part in parts] == [None, None, 0.0] * 2
