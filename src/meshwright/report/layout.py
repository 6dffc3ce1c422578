"""Where chips and sites stand in a picture."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct

from meshwright.machine import MachineSpec
from meshwright.report.summary import Summary

Place = tuple[int, int]
"""Column and row."""

_WIDER_THAN_HIGH = 1.6
_SHORT_RING = 16


class ChipGrid(Struct, frozen=True):
    """Coordinates of a chip that anything stands at, sorted: those in between are left out of the picture."""

    xs: tuple[int, ...]
    ys: tuple[int, ...]

    def columns(self, low: int, high: int) -> tuple[int, int]:
        """First and last column drawn of the coordinates from `low` to `high`."""
        return bisect_left(self.xs, low), bisect_right(self.xs, high) - 1

    def rows(self, low: int, high: int) -> tuple[int, int]:
        """First and last row."""
        return bisect_left(self.ys, low), bisect_right(self.ys, high) - 1


def chip_grids(summary: Summary, machine: MachineSpec | None) -> dict[int, ChipGrid]:
    """The grid of every chip; of a machine's chips with all of their units."""
    xs: defaultdict[int, set[int]] = defaultdict(set)
    ys: defaultdict[int, set[int]] = defaultdict(set)

    def note(chip: int, x: int, y: int) -> None:
        xs[chip].add(x)
        ys[chip].add(y)

    for site in summary.sites:
        note(site.site.chip, site.site.x, site.site.y)
    for group in summary.multicasts:
        for x, y in (group.low, group.high, (group.sender.x, group.sender.y)):
            note(group.sender.chip, x, y)
    if machine is not None:
        for mesh in machine.meshes:
            for x, y in mesh.occupants():
                note(mesh.id, x, y)
    return {chip: ChipGrid(tuple(sorted(xs[chip])), tuple(sorted(ys[chip]))) for chip in summary.chips}


def chip_places(summary: Summary, machine: MachineSpec | None, shape: float) -> dict[int, Place]:
    """Column and row of every chip: neighbours of a line, a ring or a grid side by side.

    shape: width of a chip's picture by its height.
    """
    if machine is not None and machine.topology == "grid2d":
        return {mesh.id: mesh.at or (0, 0) for mesh in machine.meshes}
    order, closed = _line(summary.chips, summary.links)
    count = len(order)
    if closed:
        return dict(zip(order, _around(count), strict=True))
    across = max(1, min(count, round(math.sqrt(count * _WIDER_THAN_HIGH / shape))))
    if count <= 4 and shape < 2:
        across = count
    return {chip: _snake(number, across) for number, chip in enumerate(order)}


def _line(chips: Sequence[int], links: Sequence[tuple[int, int]]) -> tuple[list[int], bool]:
    """The chips along their links, and whether these close a ring; as they are where links fork."""
    joined: defaultdict[int, list[int]] = defaultdict(list)
    for a, b in links:
        joined[a].append(b)
        joined[b].append(a)
    if any(len(others) > 2 for others in joined.values()):
        return list(chips), False
    order: dict[int, None] = {}
    for start in sorted(chips, key=lambda chip: (len(joined[chip]) == 2, chips.index(chip))):
        at: int | None = start
        while at is not None and at not in order:
            order[at] = None
            at = next((other for other in joined[at] if other not in order), None)
    closed = len(chips) > 2 and len(links) == len(chips) and all(len(joined[chip]) == 2 for chip in chips)
    return list(order), closed


def _snake(number: int, across: int) -> Place:
    row, column = divmod(number, across)
    return (column if row % 2 == 0 else across - 1 - column), row


def _around(count: int) -> list[Place]:
    """A closed walk: there and back in two rows; of many, up and down in columns beside a way back."""
    down = next((rows for rows in range(int(math.sqrt(count)), 1, -1) if rows % 2 == 0 and count % rows == 0), 0)
    if count <= _SHORT_RING or down < 4:
        top = (count + 1) // 2
        return [(column, 0) for column in range(top)] + [(column, 1) for column in range(count - top)][::-1]
    across = count // down
    walk = [(column, 0) for column in range(across)]
    for row in range(1, down):
        columns = range(1, across) if row % 2 == 0 else range(across - 1, 0, -1)
        walk += [(column, row) for column in columns]
    return walk + [(0, row) for row in range(down - 1, 0, -1)]
