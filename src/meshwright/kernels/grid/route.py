"""`Route`: chips in the order in which data moves on, each a neighbour of the next."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from meshwright.errors import PlacementError
from meshwright.machine import MachineSpec


class Route(Struct, frozen=True):
    """Chips along a line, or around a ring (`closed`: the last one is joined to the first).

    A collective moves data from each place only to the next or the one before.
    """

    chips: tuple[int, ...]
    closed: bool = False

    @classmethod
    def along(cls, machine: MachineSpec, chips: Sequence[int] | None = None, closed: bool | None = None) -> Route:
        """The chips of `machine` in the order given; all of them, along its chain or ring, by default.

        closed: whether they are a ring; None: whether the machine is a ring of which all chips are named.
        Raises `PlacementError` where two that follow each other have no link, or writes don't cross it.
        """
        order = tuple(_all_of(machine) if chips is None else chips)
        for position, chip in enumerate(order):
            machine.mesh(chip)
            if chip in order[:position]:
                raise PlacementError(f"route over chips {_listed(order)} of {machine.name}: chip {chip} comes twice")
        ring = machine.topology == "ring" and len(order) == len(machine.meshes) if closed is None else closed
        hops = [*pairwise(order), *([(order[-1], order[0])] if ring else [])]
        if ring and len(order) < 3:
            raise PlacementError(
                f"route over chips {_listed(order)} of {machine.name}: a ring has three chips at least; "
                "closed=False makes it a line"
            )
        for here, there in hops:
            if there not in machine.neighbours(here):
                raise PlacementError(
                    f"route over chips {_listed(order)} of {machine.name}{', closed' if ring else ''}: no link joins "
                    f"{here} and {there}, and a collective moves one hop a step. The way between them is "
                    f"{_listed(machine.path(here, there))}"
                )
            if not machine.reaches(here, there, "write"):
                raise PlacementError(
                    f"route over chips {_listed(order)} of {machine.name}: writes don't cross its links, and a "
                    "collective writes to the next chip"
                )
        return cls(order, ring)

    def __len__(self) -> int:
        return len(self.chips)


def _all_of(machine: MachineSpec) -> tuple[int, ...]:
    if machine.topology == "ring":
        first = machine.mesh_ids[0]
        return (first, *machine.fabric.path_around(first))
    return machine.mesh_ids


def _listed(chips: Sequence[int]) -> str:
    return ", ".join(map(str, chips)) or "none"
