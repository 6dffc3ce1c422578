"""The agent of a mesh as the host sees it: its registers, over dispatcher, completion mirror, mailbox and interlink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from meshwright.machine import Coord, MachineSpec, MeshSpec
from meshwright.simulator import registers as reg
from meshwright.simulator.assumptions import Assumptions
from meshwright.simulator.dispatcher import Dispatcher
from meshwright.simulator.faults import not_modelled, unsupported
from meshwright.simulator.interlink import Fabric, Interlink, Packet
from meshwright.simulator.mailbox import Mailbox
from meshwright.simulator.mirror import Mirror
from meshwright.simulator.ordering import Event, HostTime, Issue
from meshwright.simulator.unit import Signal, Unit
from meshwright.targets.ktpu.isa.flit import FLIT_BITS

POSITION_BITS: Final = 4
_COMPLETE: Final = int(Signal.INST_COMPLETE)


class Agent:
    """Registers of 64 bits at byte offsets of the agent's window."""

    def __init__(
        self,
        machine: MachineSpec,
        mesh: MeshSpec,
        units: Mapping[Coord, Unit],
        interlink: Interlink,
        fabric: Fabric,
        time: HostTime,
        assumptions: Assumptions,
        interlinks: Mapping[int, Interlink],
    ) -> None:
        figures = machine.dispatch
        self.at = mesh.agent if mesh.agent is not None else (mesh.ports[0] if mesh.ports else None)
        self.mirror = Mirror()
        self.dispatcher = Dispatcher(figures.staged_words, figures.instruction_fifo)
        self._mailbox = Mailbox(mesh, units, figures.instruction_fifo, assumptions.unit_version)
        self._mesh, self._units, self._time = mesh, units, time
        self._interlink, self._fabric, self._interlinks = interlink, fabric, interlinks
        self._stored: dict[int, int] = dict.fromkeys((reg.CTRL, reg.PROG_DST, reg.PROG_LEN, reg.PROG_BASE), 0)

    def signal(self, at: Coord, code: int, arg: int, event: Event, *, credited: bool = True) -> None:
        """A unit at `at` signals; `event` is what the host sees when it reads of it."""
        self.signals(at, code, arg, [event], count=1, credits=int(credited and code == _COMPLETE))

    def signals(self, at: Coord, code: int, arg: int, events: list[Event], *, count: int, credits: int) -> None:
        """A unit signals `count` times, in the end with this code; `credits` of the signals give one back."""
        self.mirror.signals(at, code, arg, events, count)
        if self._mailbox.received and self._mailbox.full:
            self._mailbox.overflow()
        self.dispatcher.give_back(credits)

    # Reading

    def read(self, offset: int) -> int:
        """The register at `offset`; trouble for one whose content is not modelled."""
        if offset in reg.NODE_STATUS:
            return self.mirror.read(reg.place_of((offset - reg.NODE_STATUS.start) // 8 & 0xFF), self._time.now)
        if offset in reg.INTERLINK:
            return self._interlink.register((offset - reg.INTERLINK.start) // 8)
        if offset in reg.RX_FLIT:
            return self._mailbox.word((offset - reg.RX_FLIT.start) // 8)
        dispatcher = self.dispatcher
        match offset:
            case reg.STATUS:
                return 4 | int(dispatcher.running)
            case reg.CAPS:
                return self._caps()
            case reg.PROG_STAT:
                return dispatcher.credit << 17 | dispatcher.left << 1 | int(dispatcher.running)
            case reg.PROG_CRED:
                return dispatcher.credit
            case reg.SIG_DONE:
                return self.mirror.total(self._time.now)
            case reg.RX_STATUS:
                return self._mailbox.status
            case _:
                return self._stored.get(offset, 0)

    def _caps(self) -> int:
        (x0, y0), (x1, y1) = self._mesh.routers
        return FLIT_BITS | POSITION_BITS << 16 | min(x0, y0) << 24 | max(x1, y1) << 32

    # Writing

    def write(self, offset: int, value: int) -> None:
        """Write the register at `offset`; trouble where what that starts can't be done."""
        if offset >= reg.STAGE:
            self.stage(offset, np.array([value], dtype=np.uint64))
        elif offset in reg.TX_FLIT:
            self._mailbox.put((offset - reg.TX_FLIT.start) // 8, value)
        elif offset in reg.MOVER:
            raise not_modelled("the memory mover")
        else:
            self._write_single(offset, value)

    def _write_single(self, offset: int, value: int) -> None:
        match offset:
            case reg.PROG_KICK:
                self._kick()
            case reg.PROG_CRED:
                self.dispatcher.credit = value & reg.SHORT
            case reg.SIG_DONE:
                self.mirror.clear_total()
            case reg.TX_KICK:
                if not self.dispatcher.running:
                    self._mailbox.send(Issue(self._time.now))
            case reg.RX_POP:
                self._mailbox.pop()
            case reg.INTERLINK_CONTROL:
                self._interlink.configure(value)
            case reg.INTERLINK_MESH:
                self._interlink.name(value)
            case reg.INTERLINK_DOORBELL:
                self._ring(value)
            case _:
                if offset in self._stored:
                    self._stored[offset] = value

    def stage(self, offset: int, words: NDArray[np.uint64]) -> None:
        """Write words from register `offset` of staging memory on."""
        self.dispatcher.stage(offset - reg.STAGE, words)

    def _kick(self) -> None:
        flits = self._stored[reg.PROG_LEN] & reg.SHORT
        if not flits:
            return
        place = reg.place_of(self._stored[reg.PROG_DST] & 0xFF)
        if (unit := self._units.get(place)) is None:
            raise unsupported(
                f"a kick for ({place[0]}, {place[1]}), where no unit is: routers would hand the flits to a neighbour"
            )
        self.dispatcher.start(self._stored[reg.PROG_BASE] & reg.SHORT, flits, unit, Issue(self._time.now))

    def _ring(self, value: int) -> None:
        source, target, tag = self._mesh.id, value & 3, value >> 8 & 0xFF
        if target not in self._interlinks:
            raise unsupported(f"a doorbell for mesh {target}, which is not there")
        self._interlink.rang()
        there = self._interlinks[target]
        if target == source:
            there.ring(source, tag)
            return
        self._fabric.send(Packet("doorbell", source, target, 1, 1, lambda: there.ring(source, tag)))
