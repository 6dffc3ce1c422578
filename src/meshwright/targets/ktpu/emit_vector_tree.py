"""The order in which a vector core folds, for operations that are computed element by element.

A core's own reduction goes along a vector. Its nodes have fixed places, each rounds, and each is an operation that the
lane has: running totals of 128 where there are more elements than that, a tree over each 16 of these, and a tree over
the 16 accumulators that the sixteens go to. What is missing is the pool's identity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from meshwright.ir.pool import Pool
from meshwright.targets.ktpu.emit_vector_layout import LANES, VECTOR
from meshwright.targets.ktpu.emit_vector_values import Value
from meshwright.targets.ktpu.lane_code import code_of

ACCUMULATORS: Final = 16
Node = Callable[[Value, Value], Value]
"""Joins two values."""


def folded(pool: Pool, elements: int, element: Callable[[int], Value], node: Node) -> Value:
    """The fold of `elements` values, asked for in an order in which few of them are alive at once."""
    (number,) = pool.identity
    identity = Value("constant", code_of(float(number)))

    def joined(left: Value, right: Value) -> Value:
        return identity if left == right == identity else node(left, right)

    def leaf(at: int) -> Value:
        if at >= elements:
            return identity
        total = element(at)
        for later in range(at + VECTOR, elements, VECTOR):
            total = node(total, element(later))
        return total

    def accumulator(at: int) -> Value:
        if at * LANES >= min(elements, VECTOR):
            return identity
        return node(identity, _tree(range(at * LANES, (at + 1) * LANES), leaf, joined))

    return _tree(range(ACCUMULATORS), accumulator, joined)


def _tree(leaves: range, value: Callable[[int], Value], node: Node) -> Value:
    """Neighbours joined, and what that gives joined again; depth first."""
    if len(leaves) == 1:
        return value(leaves[0])
    half = len(leaves) // 2
    left = _tree(leaves[:half], value, node)
    return node(left, _tree(leaves[half:], value, node))
