"""One mesh: its DRAM, its units and its agent, and what the units reach through it."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.errors import NumericsError
from meshwright.machine import Coord, MachineSpec, MeshSpec
from meshwright.numerics import mxfp7
from meshwright.simulator.agent import Agent
from meshwright.simulator.arithmetic import BLOCK, ENTRY_BYTES, ROWS, Kernels
from meshwright.simulator.assumptions import Assumptions
from meshwright.simulator.faults import Trouble, not_modelled, undefined, unsupported
from meshwright.simulator.interlink import Fabric, Interlink, Packet, Sticky
from meshwright.simulator.memory import PAGE, Bytes, Dram, Page
from meshwright.simulator.operands import Segment
from meshwright.simulator.ordering import Event, HostTime, Issue
from meshwright.simulator.unit import (
    BURST,
    GRANULE,
    Run,
    Setting,
    Source,
    Unit,
    UnitData,
    UnitFactory,
    Unmodelled,
    Write,
)

PREQUANTISED_BYTES: Final = 128
"""An L1 entry that is quantised already: four words."""
_PACKET_GRANULES: Final = 8
"""Data beats of a packet on a link; one more describes it."""
_KEPT_ENTRIES: Final = 1 << 19
"""L1 entries whose quantised form is kept: 64 MiB of elements."""


Entries: TypeAlias = tuple[NDArray[np.int8], NDArray[np.uint8]]
"""Elements `[n, 4, 32]` and scales `[n, 4]` of L1 entries."""


class _Kept(Struct, frozen=True, eq=False):
    """A segment, and the stamp of the last write to the memory before it was made of that."""

    stamp: int
    segment: Segment
    start: int
    stop: int
    pages: tuple[Page, ...]

    def read(self, event: Event) -> Segment:
        """The segment, which an instruction reads."""
        for page in self.pages:
            page.reads.append((self.start, self.stop, event))
        return self.segment

    @property
    def newest(self) -> int:
        """Stamp of the last write to any of the pages."""
        pages = self.pages
        return pages[0].newest if len(pages) == 1 else max(page.newest for page in pages)


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """First byte and one past the last of the runs that spans (first byte, how many) make together."""
    runs: list[tuple[int, int]] = []
    for start, size in sorted(spans):
        if runs and start <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(runs[-1][1], start + size)
        else:
            runs.append((start, start + size))
    return runs


class Shared(Struct, frozen=True):
    """What all meshes of a card share. numbers: of segments, each once."""

    machine: MachineSpec
    assumptions: Assumptions
    fabric: Fabric
    interlinks: Mapping[int, Interlink]
    meshes: Mapping[int, Mesh]
    time: HostTime
    numbers: Iterator[int]
    kernels: Kernels


def numbers() -> Iterator[int]:
    """Numbers of segments, from 0 on."""
    return count()


class Mesh:
    """Mesh `spec` of a card; what its units see as their wires. `inbox`: bursts that have arrived and wait."""

    def __init__(self, spec: MeshSpec, shared: Shared, units: Mapping[str, UnitFactory]) -> None:
        machine = shared.machine
        self.id = spec.id
        self.spec = spec
        self.dram = Dram(spec.id, machine.dram.bytes)
        self.interlink = shared.interlinks[spec.id]
        self.inbox: deque[UnitData] = deque()
        self._shared = shared
        self._fields = machine.address
        self._kept: OrderedDict[tuple[int, int, bool], _Kept] = OrderedDict()
        self._kept_entries = 0
        self.units: dict[Coord, Unit] = {}
        for kind in spec.unit_types:
            factory = units.get(kind, Unmodelled)
            for at in spec.coords(kind):
                self.units[at] = factory(Setting(machine, shared.assumptions, spec.id, at, self, shared.kernels))
        self.agent = Agent(
            machine,
            spec,
            self.units,
            self.interlink,
            shared.fabric,
            shared.time,
            shared.assumptions,
            shared.interlinks,
        )

    @property
    def busy(self) -> bool:
        """Whether flits are still to be dispatched, or instructions to be executed."""
        return self.agent.dispatcher.running or any(unit.queue for unit in self.units.values())

    # Addresses

    def _split(self, address: int) -> tuple[int, int]:
        """Mesh and local byte of a global address; trouble for special memory and for bits that mean nothing."""
        fields = self._fields
        local = address & (1 << fields.mesh_shift) - 1
        mesh = address >> fields.mesh_shift & (1 << fields.mesh_bits) - 1
        if rest := address >> fields.mesh_shift + fields.mesh_bits:
            aperture = fields.aperture_bit
            if aperture is not None and address >> aperture & 1:
                raise not_modelled(f"address {address:#x} is in special memory, bit {aperture}")
            raise undefined(f"address {address:#x} sets bits {rest:#b} above its mesh field, which mean nothing")
        return mesh, local

    def _own(self, address: int, size: int, align: int) -> int:
        """The local byte of an address that is read; trouble where it is another mesh's, or not aligned."""
        mesh, local = self._split(address)
        if mesh != self.id:
            self.interlink.faults |= Sticky.RD_REMOTE
            raise unsupported(
                f"a read of {address:#x}, which is in mesh {mesh}, on mesh {self.id}: reads do not cross, and this one "
                f"would be answered with byte {local:#x} of mesh {self.id} (RD_REMOTE)"
            )
        if local % align:
            raise undefined(f"a read of {address:#x}, which is not aligned to {align} bytes")
        self.dram.inside(local, size)
        return local

    # Wires

    def read(self, address: int, count: int, issue: Issue, event: Event | None = None) -> Bytes:
        """`count` bytes of this mesh's DRAM."""
        local = self._own(address, count, GRANULE)
        self.dram.ordered(local, count, issue, "it reads")
        found = self.dram.read(local, count).copy()
        if event is not None:
            for page in self.dram.pages(local, count):
                page.reads.append((local, local + count, event))
        return found

    def fill(self, address: int, entries: int, prequantised: bool, issue: Issue, event: Event) -> Segment:
        """L1 entries out of this mesh's DRAM; the same run of unchanged memory gives the same segment."""
        return self._source(address, entries, prequantised, issue).read(event)

    def sources(self, runs: Sequence[Run], issue: Issue) -> list[Source]:
        """What FILLs of `runs` leave in L1, as far as none of them is in trouble."""
        found: list[Source] = []
        together = self._together(runs)
        try:
            for address, entries, prequantised in runs:
                found.append(self._source(address, entries, prequantised, issue, together))
        except Trouble:
            pass  # whoever executes that FILL by itself meets the same
        return found

    def _together(self, runs: Sequence[Run]) -> dict[tuple[int, int], Entries]:
        """Elements and scales of new runs of fp16, by their first byte and size.

        Those that follow each other in a page are quantised in one call; what can't be read is left out.
        """
        new = sorted(
            (self._split(run[0])[1], run[1] * ENTRY_BYTES) for run in runs if not (run[2] or run in self._kept)
        )
        found: dict[tuple[int, int], Entries] = {}
        at = 0
        while at < len(new):
            start, until = at, new[at][0]
            while at < len(new) and new[at][0] == until and until + new[at][1] <= (new[start][0] // PAGE + 1) * PAGE:
                until += new[at][1]
                at += 1
            if until > (first := new[start][0]) and self.dram.written(first, until - first):
                q, scale = self._shared.kernels.quantise_entries(self.dram.read(first, until - first))
                for local, size in new[start:at]:
                    which = slice((local - first) // ENTRY_BYTES, (local - first + size) // ENTRY_BYTES)
                    found[local, size] = q[which], scale[which]
            at = max(at, start + 1)
        return found

    def _source(
        self,
        address: int,
        entries: int,
        prequantised: bool,
        issue: Issue,
        together: Mapping[tuple[int, int], Entries] | None = None,
    ) -> _Kept:
        key, dram = (address, entries, prequantised), self.dram
        kept = self._kept.get(key)
        # Most operands lie in pages that nobody writes any more, which is seen at a glance.
        if kept is not None and (newest := kept.newest) <= kept.stamp and newest < dram.first_unseen:
            self._kept.move_to_end(key)
            return kept
        size = entries * (PREQUANTISED_BYTES if prequantised else ENTRY_BYTES)
        local = self._own(address, size, GRANULE)
        dram.ordered(local, size, issue, "it reads")
        if kept is not None and dram.unchanged(local, size, kept.stamp):
            self._kept.move_to_end(key)
            return kept
        if together is not None and kept is None and (made := together.get((local, size))) is not None:
            segment = Segment(self.number(), *made)
        else:
            segment = self._segment(dram.read(local, size), prequantised)
        if kept is None:
            self._kept_entries += entries
        entry = self._kept[key] = _Kept(dram.stamp, segment, local, local + size, dram.pages(local, size))
        while self._kept_entries > _KEPT_ENTRIES:
            self._kept_entries -= self._kept.popitem(last=False)[0][1]
        return entry

    def _segment(self, data: Bytes, prequantised: bool) -> Segment:
        if not prequantised:
            return Segment(self.number(), *self._shared.kernels.quantise_entries(data))
        try:
            blocks = mxfp7.unpack_words(data.reshape(-1, 1, ROWS, GRANULE))
        except NumericsError as error:
            raise undefined(f"a FILL of quantised entries out of memory that holds none: {error}") from None
        return Segment(self.number(), blocks.q.reshape(-1, ROWS, BLOCK), blocks.scale.reshape(-1, ROWS))

    def number(self) -> int:
        """A number for a new segment."""
        return next(self._shared.numbers)

    def write(self, address: int, data: Bytes, issue: Issue, event: Event) -> None:
        """Write bytes to DRAM of this mesh, or over the links to another's."""
        mesh, local = self._split(address)
        if local % GRANULE:
            raise undefined(f"a write to {address:#x}, which is not aligned to {GRANULE} bytes")
        if mesh == self.id:
            self._before_write(self.dram, local, len(data), issue, event)
            self.dram.write(local, data, event)
            return
        dram = self._remote(mesh, f"a write to {address:#x}")
        dram.inside(local, len(data))
        self._before_write(dram, local, len(data), issue, event)
        copy = data.copy()
        granules = len(data) // GRANULE
        packets = -(-granules // _PACKET_GRANULES)
        self._shared.fabric.send(
            Packet("write", self.id, mesh, packets, granules + packets, lambda: dram.write(local, copy, event))
        )

    def racing(self, writes: Sequence[Write], issue: Issue, unit: str) -> int | None:
        """The first write that `unit` can't do in order, as memory is now; None where it can do them all."""
        spans = [(self._split(address)[1], -(-granules // BURST) * BURST * GRANULE) for address, granules in writes]
        if all(self._writable(start, stop - start, issue, unit) for start, stop in _joined(spans)):
            return None
        return next((at for at, span in enumerate(spans) if not self._writable(*span, issue, unit)), None)

    def _writable(self, local: int, count: int, issue: Issue, unit: str) -> bool:
        try:
            self.dram.ordered(local, count, issue, "it writes", unit)
            self.dram.unread(local, count, issue, "it writes", unit)
        except Trouble:
            return False
        return True

    def store(self, writes: Sequence[Write], data: Sequence[Bytes], events: Sequence[Event]) -> None:
        """Do writes that aren't racing."""
        for (address, granules), content, event in zip(writes, data, events, strict=True):
            local = self._split(address)[1]
            self.dram.write(local, content, event)
            if rest := -granules % BURST:
                self.dram.spoil(local + granules * GRANULE, rest * GRANULE, event)

    def spoil(self, address: int, count: int, issue: Issue, event: Event) -> None:
        """The rest of a burst that a write carries along."""
        mesh, local = self._split(address)
        dram = self.dram if mesh == self.id else self._remote(mesh, f"a write to {address:#x}")
        self._before_write(dram, local, count, issue, event)
        dram.spoil(local, count, event)

    @staticmethod
    def _before_write(dram: Dram, local: int, count: int, issue: Issue, event: Event) -> None:
        dram.ordered(local, count, issue, "it writes", event.unit)
        dram.unread(local, count, issue, "it writes", event.unit)

    def _remote(self, mesh: int, what: str) -> Dram:
        if self._shared.assumptions.remote_writes == "refused":
            raise unsupported(f"{what}, which is in mesh {mesh}, on mesh {self.id}: writes of units do not cross")
        if mesh not in self._shared.meshes:
            raise unsupported(f"{what}: {self._shared.machine.name} has no mesh {mesh}")
        return self._shared.meshes[mesh].dram

    def send(self, burst: UnitData) -> None:
        """Hand a burst to this mesh, or through a memory port to the links."""
        if burst.port is None:
            self.inbox.append(burst)
            return
        where = f"a burst for ({burst.dst[0]}, {burst.dst[1]}) of mesh {burst.mesh}"
        if burst.mesh == self.id:
            raise unsupported(f"{where}, out of that mesh: a destination in the same mesh is named without dfin")
        if burst.port not in self.spec.ports:
            raise unsupported(
                f"{where} is given to ({burst.port[0]}, {burst.port[1]}), which is no memory port of mesh {self.id}; "
                f"it has {', '.join(map(str, self.spec.ports))}"
            )
        if burst.ack == (0, 0):
            self.interlink.faults |= Sticky.ACK0
            raise unsupported(
                f"{where} without a place to acknowledge: (0, 0) means the sender, whose coordinate is in mesh "
                f"{burst.mesh} too (ACK0)"
            )
        meshes = self._shared.meshes
        self._shared.fabric.send(
            Packet(
                "unit_data", self.id, burst.mesh, 1, len(burst.data) + 1, lambda: meshes[burst.mesh].inbox.append(burst)
            )
        )

    def host_read(self, local: int, count: int) -> bytes:
        """Bytes as the host reads them; trouble where a unit's write to them is not known to be complete."""
        self.dram.ordered(local, count, None, "the host reads")
        return b"".join(piece.data for piece in self.dram.pieces(local, count))

    def host_write(self, local: int, data: bytes | Bytes) -> None:
        """Bytes that the host writes; trouble where a unit's use of them is not known to be complete."""
        self.dram.ordered(local, len(data), None, "the host writes")
        self.dram.unread(local, len(data), None, "the host writes")
        self.dram.write(local, np.frombuffer(data, dtype=np.uint8))
