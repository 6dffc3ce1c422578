"""`Card`: a whole machine in software, as a host sees it: words and blocks at addresses.

The host writes programs and data, kicks, and polls. Nothing runs while the host only writes registers; each
read, and each write of DRAM, first lets the card go on until nothing moves, so a poll sees what it waits for or never
will.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

import numpy as np

from meshwright.errors import MachineError
from meshwright.machine import Coord, MachineSpec
from meshwright.simulator import registers as reg
from meshwright.simulator.arithmetic import Kernels
from meshwright.simulator.assumptions import Assumptions
from meshwright.simulator.cluster import Cluster
from meshwright.simulator.faults import Kind, Rejected, Report, Trouble, raised
from meshwright.simulator.interlink import Fabric, Interlink
from meshwright.simulator.memory import Bytes
from meshwright.simulator.mesh import Mesh, Shared, numbers
from meshwright.simulator.operands import Operands
from meshwright.simulator.ordering import Event, HostTime, Issue, see
from meshwright.simulator.unit import DONE, Ahead, Completion, Queued, Signal, Unit, UnitData, UnitFactory
from meshwright.simulator.vector_core_unit import VectorUnit

WORD: Final = 8


class Card:
    """All meshes of `machine`, reset: no memory written, no tile opened, no staging slot filled.

    units: classes of units by type, in place of `Cluster` and `VectorUnit`. assumptions: what the sources leave open.
    capture: faults are kept in `reports` and the unit that met one stops, instead of raising `MachineFault`; `reports`
    has them in both cases. threads: of the kernels; None takes all cores. Deterministic: the same accesses give the
    same bits and reports.

    Raises `MachineError` for a machine of another family.
    """

    def __init__(
        self,
        machine: MachineSpec,
        *,
        units: Mapping[str, UnitFactory] | None = None,
        assumptions: Assumptions | None = None,
        capture: bool = False,
        threads: int | None = None,
    ) -> None:
        if machine.numerics != "ktpu":
            raise MachineError(
                f'Card: {machine.name} has numerics = "{machine.numerics}", and instruction words are of the "ktpu" '
                "family; graphs for it are evaluated, not executed"
            )
        self.machine = machine
        self.reports: list[Report] = []
        self._assumptions = assumptions if assumptions is not None else Assumptions()
        self._capture = capture
        self._time = HostTime()
        self._unacknowledged: list[Event] = []
        self._meshes: dict[int, Mesh] = {}
        operands = Operands()
        factories: dict[str, UnitFactory] = {
            "MG": partial(Cluster, operands=operands),
            "VC": VectorUnit,
            **(units or {}),
        }
        interlinks = {spec.id: Interlink(machine, spec.id, self._assumptions) for spec in machine.meshes}
        self._fabric = Fabric(machine, interlinks)
        shared = Shared(
            machine, self._assumptions, self._fabric, interlinks, self._meshes, self._time, numbers(), Kernels(threads)
        )
        for spec in machine.meshes:
            self._meshes[spec.id] = Mesh(spec, shared, factories)

    def mesh(self, mesh: int) -> Mesh:
        """The mesh with id `mesh`; `MachineError` lists the ids there are."""
        self.machine.mesh(mesh)
        return self._meshes[mesh]

    # Running

    def step(self) -> bool:
        """Let each dispatcher push what it may, each unit do what is queued, and the links move one hop.

        Whether anything was done. Raises `MachineFault` unless faults are captured.
        """
        moved = False
        for mesh in self._meshes.values():
            try:
                moved |= mesh.agent.dispatcher.dispatch()
            except Trouble as trouble:
                self._report(trouble, mesh.id, what="dispatch")
                moved = True
            for unit in mesh.units.values():
                moved |= self._run_unit(mesh, unit)
        moved |= self._fabric.step()
        for mesh in self._meshes.values():
            while mesh.inbox:
                self._receive(mesh, mesh.inbox.popleft())
                moved = True
        return moved

    def run_until_idle(self) -> None:
        """Run until nothing is left to do; the host then knows that everything is complete.

        Raises `MachineFault` unless faults are captured; `Deadlock`, with who waits for what, where something is left
        that can't go on.
        """
        self._advance()
        waiting = self.waiting()
        if waiting:
            self._fault(Report(Kind.DEADLOCK, self.machine.mesh_ids[0], "; ".join(waiting), unit="card"))
            return
        now = self._time.tick()
        see(self._unacknowledged, now)
        for mesh in self._meshes.values():
            mesh.agent.mirror.see_all(now)

    def waiting(self) -> tuple[str, ...]:
        """Who waits for what, one line each: dispatchers without a credit, units that will never go on."""
        lines: list[str] = []
        for mesh in self._meshes.values():
            if (stalled := mesh.agent.dispatcher.stalled) is not None:
                lines.append(f"mesh {mesh.id}, dispatcher: {stalled}")
            for unit in mesh.units.values():
                if unit.stopped and unit.queue:
                    lines.append(f"{unit.label}: stopped at a fault, {len(unit.queue)} instructions left")
                elif unit.waiting is not None:
                    lines.append(f"{unit.label} waits for ever, instruction {unit.started - 1}: {unit.waiting}")
        return tuple(lines)

    def _advance(self) -> None:
        while self.step():
            pass
        # An instruction that is still to come follows everything that the host has seen by now.
        if not any(mesh.busy for mesh in self._meshes.values()):
            for mesh in self._meshes.values():
                mesh.dram.forget_seen()

    def _run_unit(self, mesh: Mesh, unit: Unit) -> bool:
        queue = unit.queue
        moved = False
        while queue and not unit.stopped and unit.waiting is None:
            moved = True
            if (ahead := unit.execute_ahead()) is not None:
                self._retire_ahead(mesh, unit, ahead)
                continue
            queued = queue.popleft()
            event = Event(unit.label, unit.started)
            unit.started += 1
            if (code := unit.take_fault()) is not None:
                mesh.agent.signal(unit.setting.at, Signal.FAULT, code, Event(unit.label, None))
            try:
                completion = unit.execute(queued, event)
            except Trouble as trouble:
                unit.stopped = True
                self._report(trouble, mesh.id, unit, index=unit.started - 1, what=unit.shown(queued.word))
                return True
            if completion is None:
                self._unacknowledged.append(event)
                return True
            unit.retired += 1
            self._retire(mesh, unit, queued, completion, event)
        return moved

    @staticmethod
    def _retire(mesh: Mesh, unit: Unit, queued: Queued, completion: Completion, event: Event) -> None:
        code, arg = completion.code, completion.arg
        if queued.last and code == Signal.INST_COMPLETE:
            code, arg = Signal.BATCH_COMPLETE, queued.txn
        mesh.agent.signal(unit.setting.at, code, arg, event, credited=queued.credited)

    @staticmethod
    def _retire_ahead(mesh: Mesh, unit: Unit, ahead: Ahead) -> None:
        done = [unit.queue.popleft() for _ in range(ahead.count)]
        unit.started += ahead.count
        unit.retired += ahead.count
        code, arg = (Signal.BATCH_COMPLETE, done[-1].txn) if done[-1].last else (DONE.code, DONE.arg)
        credits = sum([queued.credited and not queued.last for queued in done])
        mesh.agent.signals(unit.setting.at, code, arg, ahead.events, count=ahead.count, credits=credits)

    def _receive(self, mesh: Mesh, burst: UnitData) -> None:
        what = (
            f"burst of {len(burst.data)} granules from ({burst.source[1][0]}, {burst.source[1][1]}) of mesh "
            f"{burst.source[0]} for buffer {burst.buffer}, granule {burst.offset}"
        )
        unit = mesh.units.get(burst.dst)
        if unit is None:
            place = f"({burst.dst[0]}, {burst.dst[1]})"
            self._report(Trouble(Kind.UNSUPPORTED, f"it is for {place}, where no unit is"), mesh.id, what=what)
            return
        event = Event(unit.label, None)
        rejected: Rejected | None = None
        try:
            unit.receive(burst, event)
        except Rejected as trouble:
            rejected = trouble
        except Trouble as trouble:
            unit.stopped = True
            self._report(trouble, mesh.id, unit, what=what)
            return
        if burst.signal and burst.ack == mesh.agent.at and (rejected is None or unit.acknowledges_rejected):
            mesh.agent.signal(burst.dst, Signal.DATA_RECEIVED, burst.buffer, event)
        else:
            self._unacknowledged.append(event)
        if rejected is not None:
            self._report(rejected, mesh.id, unit, what=what)

    def _report(
        self, trouble: Trouble, mesh: int, unit: Unit | None = None, *, index: int | None = None, what: str = ""
    ) -> None:
        if unit is None:
            report = Report(trouble.kind, mesh, trouble.problem, instruction=what)
        else:
            report = Report(trouble.kind, mesh, trouble.problem, unit.kind, unit.setting.at, index, what)
        self._fault(report)

    def _fault(self, report: Report) -> None:
        self.reports.append(report)
        if not self._capture:
            raise raised(report) from None

    # The host

    def read64(self, address: int) -> int:
        """The 64-bit word at a host address: a register of an agent, or DRAM. The card goes on first.

        Raises `MachineError` where nothing is at the address, and `MachineFault` unless faults are captured: a word
        that can't be had then reads all ones, as after a bus error.
        """
        return int.from_bytes(self.read_block(address, WORD), "little")

    def write64(self, address: int, value: int) -> None:
        """Write the 64-bit word at a host address; raises as `read64` does."""
        self.write_block(address, (value & (1 << 64) - 1).to_bytes(WORD, "little"))

    def read_block(self, address: int, count: int) -> bytes:
        """`count` bytes, a multiple of 8, of consecutive words from a host address on; raises as `read64` does."""
        self._aligned(address, count, "read")
        self._advance()
        self._time.tick()
        mesh, offset, dram = self._place(address, count)
        try:
            if dram:
                return mesh.host_read(offset, count)
            words = [mesh.agent.read(at) for at in range(offset, offset + count, WORD)]
            return b"".join(word.to_bytes(WORD, "little") for word in words)
        except Trouble as trouble:
            self._report(trouble, mesh.id, what=f"host read of {count} bytes at {address:#x}")
            return b"\xff" * count

    def write_block(self, address: int, data: bytes | bytearray | memoryview | Bytes) -> None:
        """Write consecutive words, a multiple of 8 bytes, from a host address on; raises as `read64` does."""
        content = np.frombuffer(data, dtype=np.uint8)
        self._aligned(address, len(content), "write")
        self._time.tick()
        mesh, offset, dram = self._place(address, len(content))
        try:
            if dram:
                # What was kicked works on what was there then.
                self._advance()
                mesh.host_write(offset, content)
                return
            words = content.view(np.uint64)
            if offset >= reg.STAGE:
                mesh.agent.stage(offset, words)
                return
            for at, word in enumerate(words.tolist()):
                mesh.agent.write(offset + WORD * at, word)
        except Trouble as trouble:
            self._report(trouble, mesh.id, what=f"host write of {len(content)} bytes at {address:#x}")

    def control(self, mesh: int, offset: int = 0) -> int:
        """Host address of a register of a mesh's agent."""
        self.machine.mesh(mesh)
        return self._assumptions.control_base + mesh * self._assumptions.control_stride + offset

    def submit(self, mesh: int, at: Coord, words: Iterable[int]) -> None:
        """Put instruction words straight into a unit's queue, past the agent and its credits.

        For trying programs out; a host dispatches through the agent. `MachineError` where no unit is.
        """
        units = self.mesh(mesh).units
        if at not in units:
            raise MachineError(f"Card.submit: mesh {mesh} has no unit at {at}; it has {', '.join(map(str, units))}")
        issue = Issue(self._time.tick())
        units[at].queue.extend(Queued(word, issue, credited=False) for word in words)

    def _place(self, address: int, count: int) -> tuple[Mesh, int, bool]:
        """Mesh, offset, and whether the bytes are DRAM; `MachineError` where nothing is."""
        if address >> self.machine.address.host_window_shift:
            mesh, local = self.machine.split_host_addr(address)
            return self._meshes[mesh], local, True
        number, offset = divmod(address - self._assumptions.control_base, self._assumptions.control_stride)
        if number in self._meshes and offset + count <= reg.WINDOW:
            return self._meshes[number], offset, False
        raise MachineError(
            f"Card: {count} bytes at host address {address:#x} of {self.machine.name}: agents are at "
            f"{', '.join(hex(self.control(mesh)) for mesh in self._meshes)}, {reg.WINDOW:#x} bytes each, and the DRAM "
            f"of mesh m at (m + 1) << {self.machine.address.host_window_shift}"
        )

    @staticmethod
    def _aligned(address: int, count: int, what: str) -> None:
        if address % WORD or count % WORD or count <= 0:
            raise MachineError(
                f"Card: {what} of {count} bytes at {address:#x}; the window is of 64-bit words, so both are multiples "
                f"of {WORD}"
            )
