"""Meshes and links: which units stand where, and which meshes are joined."""

from collections.abc import Iterable
from typing import Annotated, TypeAlias

import msgspec

from meshwright.errors import MachineError
from meshwright.machine.figures import Count, Natural, Text

Coord: TypeAlias = tuple[Natural, Natural]
"""A place on a mesh, `(x, y)`; x runs to the right, y runs down."""


class UnitSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The units of one type on one mesh."""

    type: Text
    at: Annotated[tuple[Coord, ...], msgspec.Meta(min_length=1)]


class MeshSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One mesh: a rectangle of routers, and what stands at its coordinates.

    A router serves its own coordinate; a border router also serves the coordinates just outside the rectangle.
    The four corners outside it touch no router, so nothing ever stands there.
    """

    id: Natural
    routers: tuple[Coord, Coord]
    """First and last router, both included."""
    units: tuple[UnitSpec, ...]
    ports: tuple[Coord, ...] = ()
    """Memory ports."""
    agent: Coord | None = None
    """The orchestrator, where acknowledgements are sent; may share a memory port's coordinate."""
    at: Coord | None = None
    """Place of the mesh among the meshes, where these form a grid."""

    @property
    def corners(self) -> tuple[Coord, ...]:
        """Coordinates diagonally outside the routers, which never hold anything."""
        (x0, y0), (x1, y1) = self.routers
        places = ((x0 - 1, y0 - 1), (x1 + 1, y0 - 1), (x0 - 1, y1 + 1), (x1 + 1, y1 + 1))
        return tuple((x, y) for x, y in places if x >= 0 and y >= 0)

    @property
    def unit_types(self) -> tuple[str, ...]:
        """Types of unit on this mesh, in the order stated."""
        return tuple(unit.type for unit in self.units)

    def coords(self, unit_type: str) -> tuple[Coord, ...]:
        """Coordinates of the units of one type, in the order stated; empty where there are none."""
        return next((unit.at for unit in self.units if unit.type == unit_type), ())

    def occupants(self) -> dict[Coord, str]:
        """What stands where: a unit type, "port", "agent", or "port+agent"."""
        found = {at: unit.type for unit in self.units for at in unit.at}
        found.update(dict.fromkeys(self.ports, "port"))
        if self.agent is not None:
            found[self.agent] = "port+agent" if self.agent in self.ports else "agent"
        return found

    def router_of(self, place: Coord) -> Coord:
        """The router that serves `place`; MachineError where nothing stands there."""
        if place not in self.occupants():
            raise MachineError(f"mesh {self.id} has nothing at {place}; it has {listed(self.occupants())}")
        (x0, y0), (x1, y1) = self.routers
        return min(max(place[0], x0), x1), min(max(place[1], y0), y1)

    def hops(self, start: Coord, end: Coord) -> int:
        """Routers that a flit passes from `start` to `end`: one where both hang on the same router.

        Source: latencies of unit to unit transfers, RTL, in tests/golden/timing_ktpu.json (5 cycles a router).
        """
        (ax, ay), (bx, by) = self.router_of(start), self.router_of(end)
        return abs(ax - bx) + abs(ay - by) + 1

    def nearest_port(self, place: Coord) -> Coord:
        """The memory port with the fewest routers in between; of equally near ones the first stated."""
        if not self.ports:
            raise MachineError(f"mesh {self.id} states no memory port, so none is nearest to {place}")
        return min(self.ports, key=lambda port: self.hops(place, port))


class LinkSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Links between two meshes, both ways."""

    between: tuple[Natural, Natural]
    kind: Text
    """Name of the link kind that has the figures."""
    count: Count = 1
    """Links that run side by side."""


def listed(items: Iterable[object]) -> str:
    """`1, 2, 3`: items for a message."""
    return ", ".join(str(item) for item in items)
