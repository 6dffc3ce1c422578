"""The vector core as a unit of a mesh: its port is the mesh's wires, its defects are the machine's."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from meshwright.simulator.faults import Kind, Rejected, Trouble, unpredictable, unsupported
from meshwright.simulator.ordering import Event, Guarded, Issue
from meshwright.simulator.unit import DONE, GRANULE, Completion, Queued, Setting, Signal, Unit, UnitData
from meshwright.simulator.vector_core import PeerDrain, VectorCore
from meshwright.simulator.vector_core_memory import Words
from meshwright.simulator.vector_core_state import Addresses
from meshwright.targets.ktpu.isa.disassembler import line_of
from meshwright.targets.ktpu.isa.fields import InstructionError
from meshwright.targets.ktpu.isa.payload import decode_payload

_STEP = 8
"""Bytes of memory that are known or unknown together."""


def runs(addresses: Addresses) -> Iterator[tuple[int, slice]]:
    """First address, and place among `addresses`, of each run of words that follow each other in memory."""
    cuts = [0, *(np.flatnonzero(np.diff(addresses) != GRANULE) + 1).tolist(), len(addresses)]
    for start, stop in pairwise(cuts):
        yield int(addresses[start]), slice(start, stop)


class _Port:
    """A core's port; `issue` and `event` are those of the instruction that is being executed."""

    issue: Issue
    event: Event

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def read(self, addresses: Addresses) -> Words:
        out: Words = np.empty((len(addresses), GRANULE // 2), np.uint16)
        for address, which in runs(addresses):
            count = (which.stop - which.start) * GRANULE
            data = self._setting.wires.read(address, count, self.issue, self.event)
            out[which] = data.view(np.uint16).reshape(-1, GRANULE // 2)
        return out

    def write(self, addresses: Addresses, words: Words, known: NDArray[np.bool_]) -> None:
        data = np.ascontiguousarray(words).view(np.uint8)
        wires, whole = self._setting.wires, bool(known.all())
        for address, which in runs(addresses):
            wires.write(address, data[which].reshape(-1), self.issue, self.event)
            if whole:
                continue
            steps = known[which].reshape(-1, _STEP // 2).all(axis=1)
            for step in np.flatnonzero(~steps).tolist():
                wires.spoil(address + step * _STEP, _STEP, self.issue, self.event)

    def send(self, drain: PeerDrain) -> None:
        setting = self._setting
        if drain.mesh is not None and drain.ack is None:
            raise unsupported(
                "VDRAIN to another mesh without ack: (0, 0) means the sender, whose coordinate is in the far mesh too"
            )
        if drain.fin is None and drain.dst == setting.at:
            raise Trouble(
                Kind.DEADLOCK, f"its own burst: VDRAIN to ({drain.dst[0]}, {drain.dst[1]}), where the unit itself is"
            )
        setting.wires.send(
            UnitData(
                source=(setting.mesh, setting.at),
                mesh=setting.mesh if drain.mesh is None else drain.mesh,
                dst=drain.dst if drain.fin is None else drain.fin,
                data=np.ascontiguousarray(drain.words).view(np.uint8),
                issue=self.issue,
                buffer=drain.buffer,
                offset=drain.granule,
                signal=drain.signal,
                ack=drain.ack or (0, 0),
                port=None if drain.fin is None else drain.dst,
            )
        )


class VectorUnit(Unit):
    """Unit type `VC`. The result of a run is 0: cycles are counted by whoever puts the machine on a clock."""

    kind = "VC"
    type_code = 0x5643
    buffers = 2
    """What it publishes; it takes bursts for buffer 0 only."""
    acknowledges_rejected = False

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._port = _Port(setting)
        self.core = VectorCore(setting.machine.vector_core, self._port)
        self._l1 = Guarded()

    def shown(self, word: int) -> str:
        """The disassembly of a payload."""
        try:
            return line_of(decode_payload(word))
        except InstructionError:
            return f"{word:#066x}"

    def execute(self, queued: Queued, event: Event) -> Completion | None:
        """Execute IMEM, DESC or RUN; other opcodes retire and do nothing."""
        self._port.issue, self._port.event = queued.issue, event
        if queued.word >> 252 == _RUN and (other := self._l1.use(queued.issue, event)) is not None:
            raise unpredictable(
                f"it uses L1, which {other.what} changes; the host had not seen that complete when it issued this"
            )
        answer = self.core.execute(queued.word)
        if answer.defect is not None:
            if answer.defect.kind is Kind.DEADLOCK:
                self.waiting = str(answer.defect)
                return None
            raise Trouble(answer.defect.kind, str(answer.defect))
        return DONE if answer.fault is None else Completion(Signal.FAULT, answer.fault)

    def receive(self, burst: UnitData, event: Event) -> None:
        """Put a burst into L1."""
        if (other := self._l1.arrive(burst.origin, burst.issue, event)) is not None:
            raise unpredictable(
                f"a burst from mesh {burst.source[0]}, {burst.source[1]}, changes L1, which {other.what} uses too; the "
                "host had not seen that complete when it issued the burst. Only one sender's burst may be open at once"
            )
        words = np.ascontiguousarray(burst.data).view(np.uint16)
        if not self.core.receive(burst.buffer, burst.offset, words):
            raise Rejected(
                f"a vector core takes bursts for buffer 0, up to the last of its {self.core.state.spec.l1_words} words "
                f"of L1; the burst is for buffer {burst.buffer}, granules {burst.offset} to "
                f"{burst.offset + len(words) - 1}, and is dropped without an acknowledgement"
            )

    def take_fault(self) -> int | None:
        """Code of the fault of a dropped burst."""
        return self.core.take_fault()


_RUN = 3
