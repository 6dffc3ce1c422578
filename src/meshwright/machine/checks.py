"""What must hold between the parts of a machine description. Each refusal names the key at fault.

A key is a path into the description, such as `("mesh", 1, "units", 0, "at", 2)`; a loader turns it into a line.
"""

from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Literal, TypeAlias, get_args

import rustworkx as rx

from meshwright.errors import MachineError
from meshwright.machine.figures import AddressMap, ClockSpec, DramSpec, LinkKind, NocSpec
from meshwright.machine.mesh import Coord, LinkSpec, MeshSpec, listed

Key: TypeAlias = tuple[str | int, ...]
Numerics: TypeAlias = Literal["ktpu", "grid"]
Crossing: TypeAlias = Literal["write", "unit_data", "doorbell", "read"]
Topology: TypeAlias = Literal["one", "chain", "ring", "grid2d"]

GROUPS_OF: dict[str, tuple[str, ...]] = {"ktpu": ("address", "dispatch", "memory_port"), "grid": ()}
"""Groups of figures that every machine of a family has, by family."""
UNITS_OF: dict[str, dict[str, str]] = {
    "ktpu": {"MG": "cluster", "VC": "vector_core"},
    "grid": {"site": "site"},
}
"""Unit types of a family, each with the group of figures that describes it."""


class MachineKeyError(MachineError):
    """A machine description is wrong at one key; `key` is the path to it."""

    def __init__(self, key: Key, problem: str) -> None:
        super().__init__(f"{spelled(key)}: {problem}")
        self.key = key
        self.problem = problem


def spelled(key: Key) -> str:
    """A key as people write it: `mesh[1].units[0].at[2]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return text.removeprefix(".") or "machine"


def check_meshes(meshes: Sequence[MeshSpec], family: str, stated: Sequence[str]) -> None:
    """Ids differ, every unit has a router, a coordinate to itself, a known type, and figures among `stated`."""
    if not meshes:
        raise MachineKeyError(("mesh",), "a machine has one mesh at least")
    seen: dict[int, int] = {}
    for index, mesh in enumerate(meshes):
        if mesh.id in seen:
            raise MachineKeyError(
                ("mesh", index, "id"), f"mesh id {mesh.id} is taken by mesh[{seen[mesh.id]}]; ids differ"
            )
        seen[mesh.id] = index
        _check_units(mesh, index, family, stated)
        _check_places(mesh, index)


def _check_units(mesh: MeshSpec, index: int, family: str, stated: Sequence[str]) -> None:
    known = UNITS_OF[family]
    for number, unit in enumerate(mesh.units):
        key: Key = ("mesh", index, "units", number, "type")
        if unit.type not in known:
            raise MachineKeyError(key, f'unit type "{unit.type}" is unknown; numerics = "{family}" has {listed(known)}')
        if unit.type in mesh.unit_types[:number]:
            raise MachineKeyError(key, f'units of type "{unit.type}" are listed twice; make it one entry')
        if known[unit.type] not in stated:
            raise MachineKeyError(
                key, f"mesh {mesh.id} has {unit.type}, but there is no table [{known[unit.type]}] with its figures"
            )


def _check_places(mesh: MeshSpec, index: int) -> None:
    (x0, y0), (x1, y1) = mesh.routers
    if x0 > x1 or y0 > y1:
        raise MachineKeyError(
            ("mesh", index, "routers"),
            f"the first router ({x0}, {y0}) must not lie beyond the last ({x1}, {y1})",
        )
    taken: dict[Coord, str] = {}
    for key, name, place in _places(mesh, index):
        _check_reached(mesh, key, name, place)
        if place in taken:
            raise MachineKeyError(key, f"{name} at {place} of mesh {mesh.id}, where {taken[place]} already is")
        taken[place] = name
    if mesh.agent is not None:
        _check_reached(mesh, ("mesh", index, "agent"), "the agent", mesh.agent)
        if taken.get(mesh.agent, "a memory port") != "a memory port":
            raise MachineKeyError(
                ("mesh", index, "agent"),
                f"the agent at {mesh.agent} of mesh {mesh.id}, where {taken[mesh.agent]} already is",
            )


def _places(mesh: MeshSpec, index: int) -> list[tuple[Key, str, Coord]]:
    root: Key = ("mesh", index)
    units: list[tuple[Key, str, Coord]] = [
        ((*root, "units", number, "at", i), f"a unit {unit.type}", place)
        for number, unit in enumerate(mesh.units)
        for i, place in enumerate(unit.at)
    ]
    ports = [((*root, "ports", i), "a memory port", place) for i, place in enumerate(mesh.ports)]
    return units + ports


def _check_reached(mesh: MeshSpec, key: Key, name: str, place: Coord) -> None:
    (x0, y0), (x1, y1) = mesh.routers
    if place in mesh.corners:
        raise MachineKeyError(
            key, f"{name} at {place}, a corner of mesh {mesh.id} that no router serves; corners stay empty"
        )
    if not (x0 - 1 <= place[0] <= x1 + 1 and y0 - 1 <= place[1] <= y1 + 1):
        raise MachineKeyError(
            key,
            f"{name} at {place}, out of reach of the routers ({x0}, {y0}) to ({x1}, {y1}) of mesh {mesh.id}",
        )


def check_links(links: Sequence[LinkSpec], meshes: Sequence[MeshSpec], kinds: Sequence[LinkKind]) -> None:
    """Every link joins two different meshes that are there, once, and has a kind that is described."""
    ids = [mesh.id for mesh in meshes]
    names = [kind.name for kind in kinds]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise MachineKeyError(("link_kind", index, "name"), f'link kind "{name}" is described twice')
    seen: dict[frozenset[int], int] = {}
    for index, link in enumerate(links):
        a, b = link.between
        for end in link.between:
            if end not in ids:
                raise MachineKeyError(
                    ("link", index, "between"),
                    f"no mesh {end} to link ({a} with {b}); the meshes are {listed(ids)}",
                )
        if a == b:
            raise MachineKeyError(("link", index, "between"), f"mesh {a} is linked with itself")
        if (pair := frozenset(link.between)) in seen:
            raise MachineKeyError(
                ("link", index, "between"),
                f"{a} and {b} are already joined by link[{seen[pair]}]; for several links side by side set its count",
            )
        seen[pair] = index
        if link.kind not in names:
            raise MachineKeyError(
                ("link", index, "kind"), f'no link kind "{link.kind}"; described are: {listed(names) or "none"}'
            )


def check_topology(topology: Topology, links: Sequence[LinkSpec], meshes: Sequence[MeshSpec]) -> None:
    """The links have the stated form. Meshes and links may be missing from a chain or a grid, not from a ring."""
    if topology == "one":
        if len(meshes) > 1:
            raise MachineKeyError(
                ("topology",), f'"one", but there are {len(meshes)} meshes; say {_others("one")} instead'
            )
    elif len(meshes) == 1:
        raise MachineKeyError(("topology",), f'"{topology}", but there is one mesh; say "one"')
    if topology != "grid2d":
        for index, mesh in enumerate(meshes):
            if mesh.at is not None:
                raise MachineKeyError(
                    ("mesh", index, "at"), f'only topology = "grid2d" places its meshes; it is "{topology}"'
                )
    if topology == "grid2d":
        _check_grid(links, meshes)
    elif topology != "one":
        _check_line(topology, links, meshes)


def _others(topology: Topology) -> str:
    return " or ".join(f'"{name}"' for name in get_args(Topology) if name != topology)


def _check_line(topology: Topology, links: Sequence[LinkSpec], meshes: Sequence[MeshSpec]) -> None:
    ids = [mesh.id for mesh in meshes]
    graph: rx.PyGraph[int, None] = rx.PyGraph(multigraph=False)
    graph.add_nodes_from(ids)
    for index, link in enumerate(links):
        a, b = (ids.index(end) for end in link.between)
        for end in (a, b):
            if graph.degree(end) == 2:
                others = listed(ids[i] for i in sorted(graph.neighbors(end)))
                raise MachineKeyError(
                    ("link", index, "between"),
                    f'topology = "{topology}", but with this link mesh {ids[end]} forks: it is already joined to '
                    f'{others}. Take a link away, or say topology = "grid2d"',
                )
        if topology == "chain" and rx.has_path(graph, a, b):
            raise MachineKeyError(
                ("link", index, "between"),
                f'topology = "chain", but this link from {ids[a]} to {ids[b]} closes a cycle. Take it away, or '
                f'say topology = "ring"',
            )
        graph.add_edge(a, b, None)
    if topology == "ring" and (len(links) < len(ids) or not rx.is_connected(graph)):
        loose = listed(ids[i] for i in graph.node_indices() if graph.degree(i) < 2)
        found = f"meshes {loose} have fewer than two links" if loose else "the links make several rings"
        raise MachineKeyError(("topology",), f'"ring", but {found}. Add what is missing, or say topology = "chain"')


def _check_grid(links: Sequence[LinkSpec], meshes: Sequence[MeshSpec]) -> None:
    place: dict[int, Coord] = {}
    for index, mesh in enumerate(meshes):
        if mesh.at is None:
            raise MachineKeyError(
                ("mesh", index), f'topology = "grid2d", but mesh {mesh.id} has no place; add at = [x, y]'
            )
        if mesh.at in place.values():
            raise MachineKeyError(("mesh", index, "at"), f"two meshes at {mesh.at} of the grid")
        place[mesh.id] = mesh.at
    for index, link in enumerate(links):
        (ax, ay), (bx, by) = (place[end] for end in link.between)
        if abs(ax - bx) + abs(ay - by) != 1:
            raise MachineKeyError(
                ("link", index, "between"),
                f'topology = "grid2d", but {link.between[0]} at ({ax}, {ay}) and {link.between[1]} at '
                f"({bx}, {by}) are not next to each other",
            )


def check_groups(family: str, stated: Sequence[str]) -> None:
    """The groups of figures that every machine of the family needs are among `stated`."""
    for group in GROUPS_OF[family]:
        if group not in stated:
            raise MachineKeyError((), f'numerics = "{family}" needs a table [{group}], and there is none')


def check_address(address: AddressMap, dram: DramSpec, meshes: Sequence[MeshSpec]) -> None:
    """The fields of an address fit side by side, every mesh id fits its field, and DRAM fits the local bits."""
    top = address.mesh_shift + address.mesh_bits
    if top > address.bits:
        raise MachineKeyError(
            ("address", "mesh_bits"),
            f"the mesh field takes bits {address.mesh_shift} to {top - 1}, past the {address.bits} bits of an address",
        )
    if address.aperture_bit is not None and not top <= address.aperture_bit < address.bits:
        raise MachineKeyError(
            ("address", "aperture_bit"),
            f"bit {address.aperture_bit} must lie above the mesh field and within the {address.bits} bits of an "
            f"address: {top} to {address.bits - 1}",
        )
    if address.host_window_shift < address.mesh_shift:
        raise MachineKeyError(
            ("address", "host_window_shift"),
            f"windows of 2^{address.host_window_shift} bytes overlap: a mesh has 2^{address.mesh_shift}",
        )
    if dram.bytes > 1 << address.mesh_shift:
        raise MachineKeyError(
            ("dram", "bytes"),
            f"{dram.bytes} bytes of DRAM are more than the {address.mesh_shift} local bits of an address reach",
        )
    for index, mesh in enumerate(meshes):
        if mesh.id >= 1 << address.mesh_bits:
            raise MachineKeyError(
                ("mesh", index, "id"),
                f"mesh id {mesh.id} does not fit the address: its mesh field has {address.mesh_bits} bits, so ids "
                f"are 0 to {(1 << address.mesh_bits) - 1}",
            )


def check_figures(dram: DramSpec, noc: NocSpec, clock: ClockSpec) -> None:
    """Reserved DRAM leaves some, packet sizes ascend, and the clock profile is one of those described."""
    if dram.reserved_bytes >= dram.bytes:
        raise MachineKeyError(
            ("dram", "reserved_bytes"), f"{dram.reserved_bytes} bytes reserved of {dram.bytes}: nothing is left"
        )
    if dram.bytes % dram.burst_bytes or dram.reserved_bytes % dram.burst_bytes:
        raise MachineKeyError(
            ("dram", "burst_bytes"),
            f"{dram.bytes} bytes, {dram.reserved_bytes} of them reserved, are not whole bursts of {dram.burst_bytes}",
        )
    sizes = [rate.packet_bytes for rate in noc.rates]
    if any(a >= b for a, b in pairwise(sizes)):
        raise MachineKeyError(("noc", "rates"), f"packet sizes must ascend; found {listed(sizes)}")
    names = [profile.name for profile in clock.profiles]
    for a, b in combinations(range(len(names)), 2):
        if names[a] == names[b]:
            raise MachineKeyError(("clock", "profiles", b, "name"), f'profile "{names[b]}" is described twice')
    if clock.profile not in names:
        raise MachineKeyError(("clock", "profile"), f'no profile "{clock.profile}"; described are {listed(names)}')
