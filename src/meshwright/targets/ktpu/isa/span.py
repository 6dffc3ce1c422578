"""Where an instruction's addresses and destinations may lie: memory of the unit's own mesh, and other units."""

from __future__ import annotations

from msgspec import Struct

from meshwright.errors import MachineError
from meshwright.machine import Coord, MachineSpec
from meshwright.targets.ktpu.isa.fields import InstructionError

L1_A, L1_B, ACCUMULATOR = 0, 1, 2
"""Buffers of a cluster; a vector core has buffer 0 only."""
GRANULES_A_TILE = 2
OFFSET_BITS = 16


class Place(Struct, frozen=True):
    """The unit that a program is for: a machine, a mesh, and, where known, its coordinate there."""

    machine: MachineSpec
    mesh: int
    at: Coord | None = None


def check_span(place: Place, what: str, addr: int, size: int, align: int) -> None:
    """`InstructionError` unless bytes `addr` to `addr + size` are memory of the unit's own mesh, aligned."""
    machine, mesh = place.machine, place.mesh
    try:
        named, local = machine.split_addr(addr)
    except MachineError as error:
        raise InstructionError(f"{what}: {error}") from None
    if named != mesh:
        own = addr ^ (named ^ mesh) << machine.address.mesh_shift
        raise InstructionError(
            f"{what}: address {addr:#x} is in mesh {named}, and the unit is on mesh {mesh}, where it would alias to "
            f"local memory; byte {local:#x} of mesh {mesh} is {own:#x} (machine.global_addr)"
        )
    if addr % align:
        raise InstructionError(f"{what}: address {addr:#x} is not aligned to {align} bytes")
    aperture = machine.address.aperture_bit
    special = aperture is not None and bool(addr >> aperture & 1)
    limit = 1 << machine.address.mesh_shift if special else machine.dram.bytes
    if local + size > limit:
        raise InstructionError(
            f"{what}: {size} bytes from {local:#x} on end at {local + size:#x}; mesh {mesh} of {machine.name} has "
            f"bytes up to {limit:#x}"
        )


class Peer(Struct, frozen=True, kw_only=True):
    """Where data for another unit goes.

    dst: a unit of this mesh, or, where `fin` isn't (0, 0), this mesh's memory port towards unit `fin` of mesh `mesh`.
    granule: first granule of 32 bytes in `buffer`; count: how many sub-tiles, or granules of a vector core's words.
    """

    dst: Coord
    buffer: int
    granule: int
    count: int
    mesh: int
    fin: Coord
    ack: Coord


def check_peer(place: Place, what: str, peer: Peer) -> None:
    """`InstructionError` where the data would arrive nowhere, in the wrong place, or unacknowledged."""
    receiver = _local(place, what, peer) if peer.fin == (0, 0) else _remote(place, what, peer)
    if receiver == "VC":
        _vector_buffer(place, what, peer)
    elif receiver == "MG":
        _cluster_buffer(place, what, peer)


def _local(place: Place, what: str, peer: Peer) -> str:
    if peer.mesh not in (0, place.mesh):
        raise InstructionError(
            f"{what}: mesh {peer.mesh} is named, but dfin = 0 keeps the data on mesh {place.mesh}; name the unit there "
            "with dfin = {y, x}"
        )
    if peer.dst == place.at:
        raise InstructionError(f"{what}: the unit at {peer.dst} would send to itself, and wait for itself")
    return _unit(place, what, place.mesh, peer.dst)


def _remote(place: Place, what: str, peer: Peer) -> str:
    machine, mesh = place.machine, place.mesh
    own = machine.mesh(mesh)
    if peer.mesh == mesh:
        raise InstructionError(f"{what}: dfin names unit {peer.fin} of another mesh, and mesh {mesh} is the unit's own")
    if peer.ack == (0, 0):
        raise InstructionError(
            f"{what}: to mesh {peer.mesh} without somewhere to acknowledge: (0, 0) would be the sender's coordinate, "
            f"which exists there too; name dack, such as the agent {own.agent}"
        )
    try:
        reached = machine.reaches(mesh, peer.mesh, "unit_data")
        receiver = _unit(place, what, peer.mesh, peer.fin)
    except MachineError as error:
        raise InstructionError(f"{what}: {error}") from None
    if not reached:
        raise InstructionError(f"{what}: no data for units gets from mesh {mesh} to mesh {peer.mesh} of {machine.name}")
    ports = own.ports if own.agent is None else (*own.ports, own.agent)
    if peer.dst not in ports:
        raise InstructionError(
            f"{what}: to another mesh, dst is this mesh's own memory port; {peer.dst} is none of "
            f"{', '.join(map(str, dict.fromkeys(ports)))}"
        )
    return receiver


def _unit(place: Place, what: str, mesh: int, coord: Coord) -> str:
    occupants = place.machine.mesh(mesh).occupants()
    kind = occupants.get(coord, "nothing")
    if kind not in ("MG", "VC"):
        units = ", ".join(f"{kind} {at}" for at, kind in occupants.items() if kind in ("MG", "VC"))
        raise InstructionError(f"{what}: at {coord} of mesh {mesh} stands {kind}; it has {units}")
    return kind


def _vector_buffer(place: Place, what: str, peer: Peer) -> None:
    words = place.machine.vector_core.l1_words
    if peer.buffer != 0:
        raise InstructionError(f"{what}: buffer {peer.buffer} of a vector core, which has buffer 0 only")
    if peer.granule + peer.count > words:
        raise InstructionError(
            f"{what}: granules {peer.granule} to {peer.granule + peer.count - 1}; the L1 of a vector core has {words}"
        )


def _cluster_buffer(place: Place, what: str, peer: Peer) -> None:
    if peer.buffer not in (L1_A, L1_B, ACCUMULATOR):
        raise InstructionError(f"{what}: buffer {peer.buffer}; a cluster has 0 L1 A, 1 L1 B, 2 the accumulator")
    if peer.buffer == ACCUMULATOR:
        tiles = place.machine.cluster.accumulator_tiles
        first = peer.granule // GRANULES_A_TILE
        if peer.granule % GRANULES_A_TILE:
            raise InstructionError(
                f"{what}: granule {peer.granule} is inside a sub-tile: the accumulator's addresses count granules, two "
                f"a sub-tile; sub-tile {first} starts at {first * GRANULES_A_TILE}"
            )
        if first + peer.count > tiles:
            raise InstructionError(
                f"{what}: sub-tiles {first} to {first + peer.count - 1}; the accumulator holds {tiles}, and wraps "
                "past them"
            )
    elif peer.granule + peer.count > 1 << OFFSET_BITS:
        raise InstructionError(
            f"{what}: granules {peer.granule} to {peer.granule + peer.count - 1}; a burst's offset has "
            f"{OFFSET_BITS} bits"
        )
