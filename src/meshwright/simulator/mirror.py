"""The completion mirror of an agent: for each node the last signal, and how many there were."""

from __future__ import annotations

from msgspec import Struct

from meshwright.machine import Coord
from meshwright.simulator.ordering import Event, see
from meshwright.simulator.registers import SHORT


class _Node(Struct):
    code: int = 0
    arg: int = 0
    count: int = 0
    unseen: list[Event] = []  # msgspec copies an empty default for each instance


class Mirror:
    """Signals by node. A node that never signalled reads 0. Counts are cumulative, modulo 65536, and never cleared."""

    def __init__(self) -> None:
        self._nodes: dict[Coord, _Node] = {}
        self._all = 0

    def signals(self, at: Coord, code: int, arg: int, events: list[Event], count: int) -> None:
        """Count `count` signals, of which the last one has this code.

        events: those of them that anybody may ask for; the host sees them when it reads the node's word.
        """
        if (node := self._nodes.get(at)) is None:
            node = self._nodes[at] = _Node()
        node.code, node.arg = code, arg & 0xFFFF_FFFF
        node.count = node.count + count & SHORT
        node.unseen += events
        self._all = self._all + count & SHORT

    def read(self, at: Coord, now: int) -> int:
        """Word of the node at a place; the host has now seen what it counts."""
        if (node := self._nodes.get(at)) is None:
            return 0
        see(node.unseen, now)
        return node.code << 56 | node.arg << 24 | node.count << 8 | 1

    def total(self, now: int) -> int:
        """Signals of all nodes since the last clearing; the host has now seen all of them."""
        self.see_all(now)
        return self._all

    def clear_total(self) -> None:
        """A write to the total clears it."""
        self._all = 0

    def see_all(self, now: int) -> None:
        """The host learns of every signal so far."""
        for node in self._nodes.values():
            see(node.unseen, now)
