"""Regions against elements, one by one."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.regions import RegionError, everything, region_of, uncovered

Element = tuple[int, ...]


@st.composite
def accesses(draw: st.DrawFn) -> tuple[Affine, int]:
    axes = 2
    numbers = st.integers(-3, 4)
    loops = draw(st.lists(st.tuples(st.integers(0, 3), st.tuples(*[numbers] * axes)), max_size=3))
    pattern = Affine(
        draw(st.tuples(*[numbers] * axes)),
        draw(st.tuples(*[st.integers(1, 3)] * axes)),
        tuple(Loop(extent, stride) for extent, stride in loops),
        draw(st.tuples(*[st.integers(1, 3)] * axes)),
        0.0,
    )
    return pattern, draw(st.integers(0, pattern.num_blocks))


SHAPE = (5, 6)


def elements(pattern: Affine, blocks: int) -> Counter[Element]:
    found: Counter[Element] = Counter()
    for block in range(blocks):
        axes = [
            [corner + step * i for i in range(size)]
            for corner, size, step in zip(pattern.corner(block), pattern.box, pattern.steps, strict=True)
        ]
        found.update(e for e in product(*axes) if all(0 <= at < size for at, size in zip(e, SHAPE, strict=True)))
    return found


def of(region) -> set[Element]:
    return {tuple(map(int, e)) for p in region.products for e in product(*p.positions)}


@settings(max_examples=400)
@given(accesses())
def test_a_region_is_the_elements_touched(access: tuple[Affine, int]) -> None:
    pattern, blocks = access
    touched = elements(pattern, blocks)
    region = region_of(pattern, SHAPE, blocks)
    assert of(region) == set(touched)
    assert region.again == any(n > 1 for n in touched.values())


@settings(max_examples=300)
@given(accesses(), accesses())
def test_two_regions_meet_where_they_share_elements(a: tuple[Affine, int], b: tuple[Affine, int]) -> None:
    common = set(elements(*a)) & set(elements(*b))
    found = region_of(a[0], SHAPE, a[1]).meets(region_of(b[0], SHAPE, b[1]))
    assert (found is not None) == bool(common)
    if found is not None:
        assert any(all(low <= at < high for at, (low, high) in zip(e, found, strict=True)) for e in common)


@settings(max_examples=300)
@given(accesses(), st.lists(accesses(), max_size=4))
def test_a_gap_is_an_element_that_nothing_covers(a: tuple[Affine, int], cover: list[tuple[Affine, int]]) -> None:
    wanted = set(elements(*a))
    there = set[Element]().union(*(elements(*c) for c in cover))
    regions = [region_of(p, SHAPE, n) for p, n in cover]
    gap = uncovered(region_of(a[0], SHAPE, a[1]).products, [p for r in regions for p in r.products])
    assert (gap is None) == (wanted <= there)
    if gap is not None:
        assert any(all(low <= at < high for at, (low, high) in zip(e, gap, strict=True)) for e in wanted - there)


def test_what_is_outside() -> None:
    assert region_of(Affine((-1, 0), (2, 6)), SHAPE).outside == (0, -1, 0)
    assert region_of(Affine((0, 2), (5, 4), (Loop(2, (0, 3)),)), SHAPE).outside == (1, 2, 8)
    assert region_of(Affine((0, 0), SHAPE), SHAPE).outside is None


def test_a_tensor_without_axes_has_one_element() -> None:
    once = region_of(Affine((), ()), ())
    assert (once.size, once.again) == (1, False)
    assert uncovered([everything(())], once.products) is None
    assert uncovered([everything(())], []) == []
    assert region_of(Affine((), (), (Loop(2, ()),)), ()).again


def test_large_regions_take_no_elements() -> None:
    """A tensor of 2^40 elements in blocks of 2^20."""
    shape = (1 << 20, 1 << 20)
    pattern = Affine((0, 0), (1 << 10, 1 << 10), (Loop(1 << 10, (1 << 10, 0)), Loop(1 << 10, (0, 1 << 10))))
    region = region_of(pattern, shape)
    assert not region.again
    assert uncovered([everything(shape)], region.products) is None
    holed = region_of(pattern, shape, (1 << 20) - 1)
    last = (1 << 20) - (1 << 10)
    assert uncovered([everything(shape)], holed.products) == [(last, 1 << 20), (last, 1 << 20)]


@pytest.mark.parametrize(
    ("pattern", "shape", "message"),
    [
        (Affine((0,), (1 << 30,)), (1 << 30,), "over 4194304 positions along axis 0"),
        (Affine((1 << 60,), (1,)), (8,), "positions past 2^56"),
        (
            Affine((0, 0), (1, 1), (Loop(1 << 12, (1, 1)),)),
            (8, 8),
            "a pattern whose loops move along several axes at once over 1024 times",
        ),
    ],
)
def test_bounds(pattern: Affine, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(RegionError, match="^" + message.replace("^", r"\^") + "$"):
        region_of(pattern, shape)


def test_positions_are_as_many_as_an_axis_has() -> None:
    assert np.array_equal(region_of(Affine((1,), (2,), (Loop(3, (2,)),)), (9,)).products[0].positions[0], range(1, 7))
