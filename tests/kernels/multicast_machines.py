"""Machines of grid chips for tests: one chip of any size, lines and rings of chips."""

import msgspec

from meshwright import targets
from meshwright.machine import LinkSpec, MachineSpec, MeshSpec, UnitSpec, load


def chip_of(columns, rows, chip=0):
    """A chip of `columns` by `rows` sites."""
    places = tuple((x, y) for y in range(rows) for x in range(columns))
    return MeshSpec(id=chip, routers=((0, 0), (columns - 1, rows - 1)), units=(UnitSpec("site", places),))


def one_chip(columns, rows) -> MachineSpec:
    """A machine of one chip."""
    return msgspec.structs.replace(load("grid-8x8"), name=f"grid-{columns}x{rows}", meshes=(chip_of(columns, rows),))


def line(count, columns=2, rows=2, closed=False) -> MachineSpec:
    """`count` chips in a line, each joined to the next; `closed` makes it a ring."""
    pair = load("grid-2x4x4")
    if count == 1:
        return one_chip(columns, rows)
    ends = [(chip, chip + 1) for chip in range(count - 1)] + ([(count - 1, 0)] if closed else [])
    return msgspec.structs.replace(
        pair,
        name=f"{'ring' if closed else 'line'} of {count}",
        topology="ring" if closed else "chain",
        meshes=tuple(chip_of(columns, rows, chip) for chip in range(count)),
        links=tuple(LinkSpec(between, pair.link_kinds[0].name) for between in ends),
    )


def ring(count, columns=2, rows=2) -> MachineSpec:
    """`count` chips in a ring."""
    return line(count, columns, rows, closed=True)


def places(machine):
    """Every chip as kernels see it."""
    return lambda chip: targets.placement(machine, chip)
