"""`MachineSpec`: everything that is known about one machine, and what follows from it."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import TypeVar

import msgspec

from meshwright.errors import MachineError
from meshwright.machine import checks
from meshwright.machine.checks import Crossing, Numerics, Topology
from meshwright.machine.fabric import Fabric
from meshwright.machine.figures import (
    AddressMap,
    BeatLink,
    ClockSpec,
    ClusterSpec,
    DispatchSpec,
    DramSpec,
    LinkKind,
    MemoryPortSpec,
    NocSpec,
    SiteSpec,
    Text,
    TransportSpec,
    VectorCoreSpec,
)
from meshwright.machine.mesh import Coord, LinkSpec, MeshSpec, listed

_Group = TypeVar("_Group")


class MachineSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """A machine: meshes of units, the links between them, and the figures of every part.

    Frozen, hashable data. What can be worked out, such as neighbours, counts and global addresses, is a method.
    Building one checks that its parts agree; `MachineKeyError` (a `MachineError`) names the key that does not.
    Types and ranges are checked where a description is read: `load`, `loads`, `from_json`.

    Groups that only some machines have (`cluster`, `vector_core`, `site`, `dispatch`, `memory_port`, `address`)
    are read through a property that raises `MachineError` where the machine has none; the fields behind the
    properties start with `maybe_`.
    """

    name: Text
    summary: Text
    numerics: Numerics
    topology: Topology
    forwards: bool = False
    """Whether a link passes on traffic for a mesh further away."""
    crosses: tuple[Crossing, ...] = ()
    """What may cross a link."""
    meshes: tuple[MeshSpec, ...] = msgspec.field(name="mesh")
    links: tuple[LinkSpec, ...] = msgspec.field(name="link", default=())
    link_kinds: tuple[LinkKind, ...] = msgspec.field(name="link_kind", default=())
    clock: ClockSpec
    dram: DramSpec
    noc: NocSpec
    maybe_cluster: ClusterSpec | None = msgspec.field(name="cluster", default=None)
    maybe_vector_core: VectorCoreSpec | None = msgspec.field(name="vector_core", default=None)
    maybe_site: SiteSpec | None = msgspec.field(name="site", default=None)
    maybe_dispatch: DispatchSpec | None = msgspec.field(name="dispatch", default=None)
    maybe_memory_port: MemoryPortSpec | None = msgspec.field(name="memory_port", default=None)
    maybe_address: AddressMap | None = msgspec.field(name="address", default=None)
    transports: tuple[TransportSpec, ...] = msgspec.field(name="transport", default=())

    def __post_init__(self) -> None:
        stated = [
            field.encode_name
            for field in msgspec.structs.fields(self)
            if field.name.startswith("maybe_") and getattr(self, field.name) is not None
        ]
        checks.check_groups(self.numerics, stated)
        checks.check_meshes(self.meshes, self.numerics, stated)
        if self.maybe_address is not None:
            checks.check_address(self.maybe_address, self.dram, self.meshes)
        checks.check_links(self.links, self.meshes, self.link_kinds)
        checks.check_topology(self.topology, self.links, self.meshes)
        checks.check_figures(self.dram, self.noc, self.clock)

    # Groups of figures that not every machine has.

    def _group(self, group: _Group | None, name: str) -> _Group:
        if group is None:
            raise MachineError(f"{self.name} states no [{name}] figures")
        return group

    @property
    def cluster(self) -> ClusterSpec:
        """Figures of a matmul cluster."""
        return self._group(self.maybe_cluster, "cluster")

    @property
    def vector_core(self) -> VectorCoreSpec:
        """Figures of a vector core."""
        return self._group(self.maybe_vector_core, "vector_core")

    @property
    def site(self) -> SiteSpec:
        """Figures of a grid site."""
        return self._group(self.maybe_site, "site")

    @property
    def dispatch(self) -> DispatchSpec:
        """Bounds of a round of dispatch."""
        return self._group(self.maybe_dispatch, "dispatch")

    @property
    def memory_port(self) -> MemoryPortSpec:
        """Timing of a memory port."""
        return self._group(self.maybe_memory_port, "memory_port")

    @property
    def address(self) -> AddressMap:
        """How addresses name meshes."""
        return self._group(self.maybe_address, "address")

    def transport(self, name: str) -> TransportSpec:
        """The host transport called `name`; MachineError lists those there are."""
        for transport in self.transports:
            if transport.name == name:
                return transport
        known = listed(transport.name for transport in self.transports) or "none"
        raise MachineError(f"{self.name} has no transport {name!r}; it has {known}")

    # Meshes and the units on them.

    @property
    def mesh_ids(self) -> tuple[int, ...]:
        """Mesh ids: along the links where the meshes form a chain, else in the order stated."""
        return self.fabric.in_order() if self.topology == "chain" else tuple(mesh.id for mesh in self.meshes)

    def mesh(self, mesh: int) -> MeshSpec:
        """The mesh with id `mesh`; MachineError lists the ids there are."""
        for spec in self.meshes:
            if spec.id == mesh:
                return spec
        raise MachineError(f"{self.name} has no mesh {mesh}; its meshes are {listed(self.mesh_ids)}")

    @property
    def unit_types(self) -> tuple[str, ...]:
        """Types of unit anywhere on the machine, in the order stated."""
        return tuple(dict.fromkeys(kind for mesh in self.meshes for kind in mesh.unit_types))

    def has(self, mesh: int, unit_type: str) -> bool:
        """Whether mesh `mesh` carries a unit of the type."""
        return bool(self.mesh(mesh).coords(unit_type))

    def count(self, unit_type: str, mesh: int | None = None) -> int:
        """Units of the type on one mesh, or on all meshes."""
        meshes = self.meshes if mesh is None else (self.mesh(mesh),)
        return sum(len(spec.coords(unit_type)) for spec in meshes)

    def coords(self, mesh: int, unit_type: str) -> tuple[Coord, ...]:
        """Coordinates of the units of one type on one mesh; MachineError names the meshes that carry the type."""
        spec = self.mesh(mesh)
        if found := spec.coords(unit_type):
            return found
        carried = listed(f"{len(unit.at)} {unit.type}" for unit in spec.units) or "no unit at all"
        carriers = [other for other in self.mesh_ids if self.has(other, unit_type)]
        where = (
            f"it is on {'mesh' if len(carriers) == 1 else 'meshes'} {listed(carriers)}"
            if carriers
            else "no mesh has one"
        )
        raise MachineError(f"mesh {mesh} of {self.name} has no {unit_type}: it has {carried}; {where}")

    def hops(self, mesh: int, start: Coord, end: Coord) -> int:
        """Routers that a flit passes on mesh `mesh` from `start` to `end`; see `MeshSpec.hops`."""
        return self.mesh(mesh).hops(start, end)

    def nearest_port(self, mesh: int, place: Coord) -> Coord:
        """The memory port of mesh `mesh` that is fewest routers away from `place`."""
        return self.mesh(mesh).nearest_port(place)

    # Links between meshes.

    @cached_property
    def fabric(self) -> Fabric:
        """The graph of meshes and links."""
        ids = [mesh.id for mesh in self.meshes]
        return Fabric(self.name, ids, [link.between for link in self.links])

    def neighbours(self, mesh: int) -> tuple[int, ...]:
        """Meshes joined to `mesh` by a link."""
        return self.fabric.neighbours(mesh)

    def mesh_hops(self, a: int, b: int) -> int:
        """Links on a shortest way between two meshes."""
        return self.fabric.hops(a, b)

    def path(self, a: int, b: int) -> tuple[int, ...]:
        """Meshes on a shortest way, both ends included; of equally short ways the one over meshes stated first."""
        return self.fabric.path(a, b)

    def chain_order(self, meshes: Sequence[int]) -> tuple[int, ...]:
        """The given meshes in the order of the links between them; MachineError where that order is not there.

        Meshes that branch or close a ring are taken as written if each is joined to the next.
        """
        if self.topology == "chain":
            ids = self.mesh_ids
            return Fabric(self.name, ids, [link.between for link in self.links]).chain_order(meshes)
        return self.fabric.chain_order(meshes)

    def reaches(self, a: int, b: int, what: Crossing = "write") -> bool:
        """Whether `what` sent on mesh `a` can arrive on mesh `b`: over one link, or over more that forward."""
        if a == b:
            return True
        if what not in self.crosses:
            return False
        if b in self.neighbours(a):
            return True
        return self.forwards and self.fabric.joined(a, b)

    def link(self, a: int, b: int) -> LinkSpec:
        """The link between two neighbouring meshes; MachineError names the way there where they are not."""
        for link in self.links:
            if set(link.between) == {a, b}:
                return link
        names = f"{self.name}: no link joins {a} and {b}"
        if a == b or not self.fabric.joined(a, b):
            raise MachineError(f"{names}, and none lead from one to the other")
        raise MachineError(f"{names}; the way between them is {listed(self.path(a, b))}")

    def link_kind(self, link: LinkSpec) -> LinkKind:
        """The figures of a link."""
        return next(kind for kind in self.link_kinds if kind.name == link.kind)

    def link_bytes_per_s(self, link: LinkSpec) -> float:
        """Most bytes a second that cross a link in one direction, all of its `count` together."""
        kind = self.link_kind(link)
        one = kind.beat_bytes * self.clock.hz if isinstance(kind, BeatLink) else kind.bytes_per_s
        return one * link.count

    def without_mesh(self, mesh: int) -> "MachineSpec":
        """This machine with one mesh and its links taken away; a ring becomes a chain, two meshes become one."""
        gone = self.mesh(mesh)
        if len(self.meshes) == 1:
            raise MachineError(f"{self.name} has no mesh but {mesh}; a machine has one at least")
        kept = tuple(spec for spec in self.meshes if spec is not gone)
        topology = "chain" if self.topology == "ring" else self.topology
        if len(kept) == 1:
            topology, kept = "one", (msgspec.structs.replace(kept[0], at=None),)
        return msgspec.structs.replace(
            self,
            name=f"{self.name} without mesh {mesh}",
            summary=f"{self.summary}; mesh {mesh} taken out",
            topology=topology,
            meshes=kept,
            links=tuple(link for link in self.links if mesh not in link.between),
        )

    def without_unit(self, mesh: int, at: Coord) -> "MachineSpec":
        """This machine with the unit at `at` of a mesh taken away; `MachineError` where no unit stands there."""
        spec = self.mesh(mesh)
        kept = tuple(
            msgspec.structs.replace(unit, at=places)
            for unit in spec.units
            if (places := tuple(place for place in unit.at if place != at))
        )
        if kept == spec.units:
            raise MachineError(f"mesh {mesh} of {self.name} has no unit at {at}; it has {listed(spec.occupants())}")
        changed = msgspec.structs.replace(spec, units=kept)
        return msgspec.structs.replace(
            self,
            name=f"{self.name} without ({at[0]}, {at[1]}) of mesh {mesh}",
            summary=f"{self.summary}; the unit at ({at[0]}, {at[1]}) of mesh {mesh} taken out",
            meshes=tuple(changed if one is spec else one for one in self.meshes),
        )

    # Addresses.

    def global_addr(self, mesh: int, local: int, *, special: bool = False) -> int:
        """The address that an instruction carries for byte `local` of mesh `mesh`.

        A local byte must name its own mesh too: left out, the address would mean mesh 0. With `special` the
        aperture bit is set and `local` is bounded by the local bits instead of by the DRAM populated.
        """
        self.mesh(mesh)
        limit = 1 << self.address.mesh_shift if special else self.dram.bytes
        self._within(local, limit, f"mesh {mesh} of {self.name}")
        return self._aperture(special) | mesh << self.address.mesh_shift | local

    def addr_mesh(self, addr: int) -> int:
        """The mesh that a global address is in."""
        return self.split_addr(addr)[0]

    def split_addr(self, addr: int) -> tuple[int, int]:
        """Mesh and local byte of a global address, the aperture bit aside.

        MachineError where bits are set that belong to no field, or where the machine has no such mesh.
        """
        fields = self.address
        mesh = addr >> fields.mesh_shift & (1 << fields.mesh_bits) - 1
        local = addr & (1 << fields.mesh_shift) - 1
        special = fields.aperture_bit is not None and bool(addr >> fields.aperture_bit & 1)
        if addr < 0 or addr != self._aperture(special) | mesh << fields.mesh_shift | local:
            raise MachineError(f"{addr:#x} is no address of {self.name}: bits are set outside its fields")
        self.mesh(mesh)
        return mesh, local

    def host_addr(self, mesh: int, local: int) -> int:
        """Where the host sees byte `local` of the DRAM of mesh `mesh`."""
        self.mesh(mesh)
        self._within(local, self.dram.bytes, f"mesh {mesh} of {self.name}")
        return mesh + 1 << self.address.host_window_shift | local

    def split_host_addr(self, addr: int) -> tuple[int, int]:
        """Mesh and local byte of an address in a host window."""
        window, local = addr >> self.address.host_window_shift, addr & (1 << self.address.host_window_shift) - 1
        if window < 1:
            raise MachineError(f"{addr:#x} lies below the host windows of {self.name}")
        self.mesh(window - 1)
        self._within(local, self.dram.bytes, f"mesh {window - 1} of {self.name}")
        return window - 1, local

    def _aperture(self, special: bool) -> int:
        if not special:
            return 0
        if self.address.aperture_bit is None:
            raise MachineError(f"{self.name} has no aperture bit, so no special memory has an address")
        return 1 << self.address.aperture_bit

    @staticmethod
    def _within(local: int, limit: int, owner: str) -> None:
        if not 0 <= local < limit:
            raise MachineError(f"byte {local:#x} of {owner}: its local addresses are 0 to {limit - 1:#x}")


def to_json(machine: MachineSpec) -> bytes:
    """The machine as JSON, fields in a fixed order."""
    return msgspec.json.encode(machine, order="deterministic")


def canonical_hash(machine: MachineSpec) -> str:
    """`sha256:` and the digest of the machine's data: equal machines have equal hashes, on every host."""
    return f"sha256:{hashlib.sha256(to_json(machine)).hexdigest()}"
