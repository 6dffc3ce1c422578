"""The mailbox of an agent: single flits out, replies in. Hosts find the units of a mesh through it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from meshwright.machine import Coord, MeshSpec
from meshwright.simulator.dispatcher import push
from meshwright.simulator.faults import not_modelled, undefined, unsupported
from meshwright.simulator.ordering import Issue
from meshwright.simulator.registers import RX_DEPTH, RX_EMPTY, RX_OVERFLOW
from meshwright.simulator.unit import Queued, Unit
from meshwright.targets.ktpu.isa import Flit, InstructionError
from meshwright.targets.ktpu.isa.flit import CONTROL_REPLY, CONTROL_REQUEST, FLIT_WORDS, FlitType

_TYPE_AT, _VERSION_AT, _BUFFERS_AT, _DEPTH_AT = 48, 40, 36, 20
_BUSY_AT, _SPACE_AT = 63, 32
_WORD: Final = (1 << 64) - 1


class Mailbox:
    """Words of one flit to send, and `received`, the queue of flits that arrived."""

    def __init__(self, mesh: MeshSpec, units: Mapping[Coord, Unit], fifo: int, version: int) -> None:
        self._mesh = mesh
        self._units = units
        self._fifo = fifo
        self._version = version
        self._out = [0] * FLIT_WORDS
        self.received: deque[tuple[int, ...]] = deque()
        self._overflow = False

    def put(self, index: int, value: int) -> None:
        """Word `index` of the flit to send."""
        self._out[index] = value

    def word(self, index: int) -> int:
        """Word `index` of the flit at the head of the queue; trouble where there is none."""
        if not self.received:
            raise undefined("a word of the receive queue is read, and the queue is empty: poll RX_STATUS bit 16 first")
        return self.received[0][index]

    def pop(self) -> None:
        """Drop the head of the queue."""
        if self.received:
            self.received.popleft()

    @property
    def status(self) -> int:
        """RX_STATUS."""
        return (0 if self.received else RX_EMPTY) | (RX_OVERFLOW if self._overflow else 0)

    @property
    def full(self) -> bool:
        """Whether the receive queue is."""
        return len(self.received) >= RX_DEPTH

    def overflow(self) -> None:
        """Something found the receive queue full: a reply that is lost, or a signal, which is not."""
        self._overflow = True

    def send(self, issue: Issue) -> None:
        """Send the flit; trouble where it is none, or of a type that hosts have no use for."""
        try:
            flit = Flit.from_staged(self._out)
        except InstructionError as error:
            raise undefined(f"the mailbox sends no flit: {error}") from None
        match flit.type:
            case FlitType.CU_CTRL:
                self._ask(flit)
            case FlitType.CU_INST:
                self._instruct(flit, issue)
            case kind:
                raise not_modelled(f"flits of type {FlitType(kind).name} out of the mailbox")

    def _instruct(self, flit: Flit, issue: Issue) -> None:
        place = (flit.dst_x, flit.dst_y)
        if (unit := self._units.get(place)) is None:
            raise unsupported(f"an instruction for {place} of mesh {self._mesh.id}, where no unit is")
        push(unit, Queued(flit.payload, issue, flit.txn, bool(flit.last)), self._fifo)

    def _ask(self, flit: Flit) -> None:
        """A control request: a unit replies, a memory port or the agent sends it back as it is."""
        place = self._reached((flit.dst_x, flit.dst_y))
        payload = flit.payload
        if (unit := self._units.get(place)) is not None:
            try:
                index = CONTROL_REQUEST.unpack(payload)["index"]
            except InstructionError as error:
                raise undefined(f"a control request for {unit.label}: {error}") from None
            payload = CONTROL_REPLY.pack({"index": index, "value": self._answer(unit, index)})
        reply = Flit(
            type=FlitType.CU_CTRL,
            payload=payload,
            dst_x=flit.src_x,
            dst_y=flit.src_y,
            src_x=place[0],
            src_y=place[1],
            txn=flit.txn,
        )
        if self.full:
            self.overflow()
            return
        self.received.append(reply.staged())

    def _reached(self, place: Coord) -> Coord:
        """What answers at a place: what stands there, else what the router clamps it to."""
        if place in self._mesh.occupants():
            return place
        (x0, y0), (x1, y1) = self._mesh.routers
        if place in self._mesh.corners and self._mesh.agent is not None:
            return self._mesh.agent
        return min(max(place[0], x0), x1), min(max(place[1], y0), y1)

    def _answer(self, unit: Unit, index: int) -> int:
        match index:
            case 0:
                return (
                    unit.type_code << _TYPE_AT
                    | self._version << _VERSION_AT
                    | unit.buffers << _BUFFERS_AT
                    | self._fifo << _DEPTH_AT
                )
            case 1:
                busy = bool(unit.queue) or unit.waiting is not None
                return (int(busy) << _BUSY_AT | (self._fifo - len(unit.queue)) << _SPACE_AT) & _WORD
            case 2 | 3:
                raise not_modelled(f"control register {index} of {unit.label}: it counts cycles")
            case _:
                return 0
