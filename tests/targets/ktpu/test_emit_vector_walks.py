"""Walks of descriptors over any addresses."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from meshwright.targets.ktpu.emit_vector_walks import STRIDES, Walk, walks_over
from meshwright.targets.ktpu.isa.descriptors import DIMENSIONS


def addresses_of(walk: Walk) -> list[int]:
    indices = itertools.product(*(range(bound) for _, bound in reversed(walk.dims)))
    strides = [stride for stride, _ in reversed(walk.dims)]
    return [walk.first + sum(i * s for i, s in zip(index, strides, strict=True)) for index in indices]


def check(addresses: list[int], most: int) -> list[Walk]:
    walks = walks_over(3, 40, addresses, most)
    assert [address for walk in walks for address in addresses_of(walk)] == addresses
    at = 40
    for walk in walks:
        assert walk.move == 3
        assert walk.l1 == at
        assert walk.count == len(addresses_of(walk)) <= most
        assert len(walk.dims) <= DIMENSIONS
        assert all(stride in STRIDES and bound > 1 for stride, bound in walk.dims)
        at += walk.count
    return walks


NESTS = st.lists(st.tuples(st.integers(1, 6), st.integers(-5000, 5000).map(lambda words: 32 * words)), max_size=5)


@given(NESTS, st.integers(1, 300))
def test_nests_of_loops(nest, most):
    indices = itertools.product(*(range(count) for count, _ in nest))
    check([sum(i * stride for i, (_, stride) in zip(index, nest, strict=True)) for index in indices], most)


@given(st.lists(st.integers(0, 1 << 14).map(lambda words: 32 * words), max_size=60), st.integers(1, 70))
def test_any_addresses(addresses, most):
    check(addresses, most)


def test_a_nest_of_four_loops_is_one_walk_and_one_of_five_is_not():
    counts, strides = (2, 3, 2, 3, 2), (90000, 20000, 2560, 320, 32)

    def nest(depth):
        indices = itertools.product(*map(range, counts[-depth:]))
        return [sum(i * s for i, s in zip(index, strides[-depth:], strict=True)) for index in indices]

    assert len(check(nest(4), 256)) == 1
    assert len(check(nest(5), 256)) == 2


def test_the_longest_walk_and_the_longest_steps():
    assert [walk.count for walk in check(list(range(0, 32 * 256, 32)), 256)] == [256]
    assert [walk.count for walk in check(list(range(0, 32 * 257, 32)), 256)] == [256, 1]
    step = 1 << 17
    for stride in (step - 32, -step):
        assert len(check([10 * step + stride * i for i in range(3)], 256)) == 1
    for stride in (step, -step - 32):
        assert len(check([10 * step + stride * i for i in range(3)], 256)) == 3
