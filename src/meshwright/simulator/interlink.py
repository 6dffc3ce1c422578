"""The links between meshes: queues from neighbour to neighbour that forward, and the registers that count.

What one mesh sends another arrives in the order it was sent. Counters follow the card: beats and packets of each link
and direction, packets forwarded, doorbells. What they count in time (stalls, credits, blocked cycles) is not modelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntFlag
from typing import Final, Literal

from msgspec import Struct

from meshwright.machine import MachineSpec
from meshwright.simulator.assumptions import Assumptions
from meshwright.simulator.faults import not_modelled, unsupported

Crossing = Literal["write", "unit_data", "doorbell"]

IDENTITY: Final = 0x494C
_COUNT: Final = (1 << 32) - 1
_LINKS: Final = 2
"""Links of a mesh that have counters."""
_MESHES: Final = 4
"""Meshes that a doorbell register has a place for."""


class Sticky(IntFlag):
    """Fault bits of an interlink; they stay until they are cleared."""

    RD_REMOTE = 1
    ACK0 = 2
    SWITCH = 4
    AXI = 8
    INJ = 16


class Packet(Struct, frozen=True):
    """Something on its way to mesh `target`: `packets` packets of `beats` beats in all; `deliver` is called there."""

    what: Crossing
    source: int
    target: int
    packets: int
    beats: int
    deliver: Callable[[], None]


class _Traffic(Struct):
    packets: int = 0
    beats: int = 0

    def count(self, packet: Packet) -> None:
        self.packets += packet.packets
        self.beats += packet.beats

    def register(self) -> int:
        return (self.beats & _COUNT) << 32 | self.packets & _COUNT


class Interlink:
    """One mesh's end of its links: switches, sticky faults and counters.

    Link i is the one to the i-th neighbour that the machine lists.
    """

    def __init__(self, machine: MachineSpec, mesh: int, assumptions: Assumptions) -> None:
        self.mesh = mesh
        self.neighbours = machine.neighbours(mesh)
        self.faults = Sticky(0)
        self._assumptions = assumptions
        self._enabled = True
        self._own = mesh
        self._sent = [_Traffic() for _ in self.neighbours]
        self._received = [_Traffic() for _ in self.neighbours]
        self._forwarded = 0
        self._bells = [0] * _MESHES
        self._tags = [0] * _MESHES
        self._rung = 0

    def check(self) -> None:
        """Trouble where the interlink is switched off, or has been told another mesh id than its own."""
        if not self._enabled:
            self.faults |= Sticky.SWITCH
            raise unsupported(f"the interlink of mesh {self.mesh} is switched off")
        if self._own != self.mesh:
            raise unsupported(f"the interlink of mesh {self.mesh} was configured as mesh {self._own}")

    def leaves(self, neighbour: int, packet: Packet) -> None:
        """Count a packet on its way out."""
        self._sent[self.neighbours.index(neighbour)].count(packet)
        if packet.source != self.mesh:
            self._forwarded += packet.packets

    def arrives(self, neighbour: int, packet: Packet) -> None:
        """Count a packet on its way in."""
        self._received[self.neighbours.index(neighbour)].count(packet)

    def ring(self, source: int, tag: int) -> None:
        """A doorbell out of mesh `source` has arrived."""
        self._bells[source] = self._bells[source] + 1 & _COUNT
        self._tags[source] = tag

    def rang(self) -> None:
        """Count a doorbell that was sent."""
        self._rung += 1

    def configure(self, value: int) -> None:
        """Write of the control register: bit 0 enables, 1 clears doorbell counts, 2 clears faults."""
        self._enabled = bool(value & 1)
        if value & 2:
            self._bells = [0] * _MESHES
        if value & 4:
            self.faults = Sticky(0)

    def name(self, mesh: int) -> None:
        """Write of the register that holds the mesh's own id."""
        self._own = mesh & 3

    def register(self, index: int) -> int:
        """Status register `index`; trouble for one that counts in time."""
        match index:
            case 0:
                return IDENTITY | self._own << 20 if self._enabled else 0
            case 1:
                return int(self.faults)
            case 2 | 3 | 4 | 5:
                return self._doorbell(index - 2)
            case 6 | 7 | 8 | 9:
                link, received = divmod(index - 6, 2)
                traffic = self._received if received else self._sent
                return traffic[link].register() if link < min(_LINKS, len(traffic)) else 0
            case 12:
                return self._forwarded & _COUNT
            case 14:
                return self._rung
            case _:
                raise not_modelled(f"interlink register {index}: it counts stalls, blocked cycles or credits")

    def _doorbell(self, source: int) -> int:
        if self._assumptions.doorbell_read == "rtl":
            return self._tags[source] << 32 | self._bells[source]
        return (self._rung & 0xFFFF) << 16 | self._bells[source] & 0xFFFF


class Fabric:
    """The links of all meshes: a queue for each direction of each."""

    def __init__(self, machine: MachineSpec, ends: dict[int, Interlink]) -> None:
        self._machine = machine
        self._ends = ends
        self._queues: dict[tuple[int, int], deque[Packet]] = {}
        for a, b in (link.between for link in machine.links):
            self._queues[a, b], self._queues[b, a] = deque(), deque()

    def send(self, packet: Packet) -> None:
        """Put a packet on the first link of its way; trouble where there is none."""
        machine = self._machine
        if packet.target not in self._ends:
            raise unsupported(f"{packet.what} to mesh {packet.target}, and {machine.name} has no such mesh")
        if not machine.reaches(packet.source, packet.target, packet.what):
            raise unsupported(
                f"{packet.what} from mesh {packet.source} to mesh {packet.target}: {machine.name} has no way for it"
            )
        self._ends[packet.source].check()
        self._put(packet.source, packet)

    def _put(self, here: int, packet: Packet) -> None:
        after = self._machine.path(here, packet.target)[1]
        self._ends[here].leaves(after, packet)
        self._queues[here, after].append(packet)

    def step(self) -> bool:
        """Move what waits in each queue over one link; whether anything moved."""
        waiting = [(pair, list(queue)) for pair, queue in self._queues.items() if queue]
        # Taken out first: a packet that is passed on below waits for the next step.
        for pair, _ in waiting:
            self._queues[pair].clear()
        for (here, there), packets in waiting:
            for packet in packets:
                self._ends[there].arrives(here, packet)
                if packet.target == there:
                    packet.deliver()
                else:
                    self._put(there, packet)
        return bool(waiting)
