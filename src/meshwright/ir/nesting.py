"""How deep and how large a tree may be, and the walk that finds out without recursion.

Hashing, comparing, printing and serialising a tree all recurse; a bound on its depth is what keeps them from running
out of stack, and a bound on its nodes, counted as a serialised tree has them, keeps shared subtrees from multiplying.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

MOST_DEPTH = 256
MOST_NODES = 1 << 16

_Node = TypeVar("_Node")


def nesting_fault(root: _Node, below: Callable[[_Node], Sequence[_Node]]) -> str | None:
    """Why the tree under `root` is refused as too deep or too large, or None where it isn't.

    below: the nodes directly below a node. A node that stands in several places counts once for each.
    """
    # By identity: a tree that is too deep can't be hashed or compared. `root` keeps every node alive meanwhile.
    known: dict[int, tuple[int, int]] = {}
    stack: list[tuple[_Node, bool]] = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if id(node) in known:
            continue
        under = below(node)
        if not ready:
            stack.append((node, True))
            stack.extend((child, False) for child in under)
            continue
        depth = 1 + max((known[id(child)][0] for child in under), default=0)
        nodes = 1 + sum(known[id(child)][1] for child in under)
        if depth > MOST_DEPTH:
            return f"is nested more than {MOST_DEPTH} deep"
        if nodes > MOST_NODES:
            return f"has more than {MOST_NODES} nodes, counting a shared one wherever it stands"
        known[id(node)] = (depth, nodes)
    return None
