"""What units say of themselves: control registers, read through the mailboxes of the agents, one a mesh at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from meshwright.errors import DispatchError
from meshwright.machine import Coord
from meshwright.runtime.transport import Transport
from meshwright.simulator import registers as reg
from meshwright.targets.ktpu.isa import Flit, InstructionError
from meshwright.targets.ktpu.isa.flit import CONTROL_REPLY, CONTROL_REQUEST, FLIT_WORDS, FlitType

CAPS: Final = 0
STATUS: Final = 1
COUNTERS: Final = 2
"""Control registers of a unit."""

_PATIENCE: Final = 16
"""Polls after which no answer is taken to be coming: the network is idle, and a poll takes longer than its crossing."""
_STALE: Final = 4 * reg.RX_DEPTH
"""Flits that may be in the way of an answer."""
_BUSY: Final = 1
_TRANSACTIONS: Final = 256


class Question(Struct, frozen=True):
    """Control register `index` of what stands at a place."""

    at: Coord
    index: int


class Mailboxes:
    """The mailboxes of several meshes; each call asks one question a mesh, and takes as many transport calls as one."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._agents = transport.agents
        self._txn = 0

    def ask(self, questions: Mapping[int, Question]) -> dict[int, int | None]:
        """The 64-bit answers, by mesh. None where what answers is no unit, or not the one that was asked, or nothing.

        Replies that were left in the queues are dropped first. Raises `DispatchError` where a queue can't be emptied,
        or where an agent doesn't send, since it dispatches.
        """
        if not questions:
            return {}
        self._drain(questions)
        self._txn = (self._txn + 1) % _TRANSACTIONS
        writes: list[tuple[int, bytes]] = []
        for mesh, question in questions.items():
            words = b"".join(word.to_bytes(8, "little") for word in _request(question, self._txn).staged())
            writes.append((self._at(mesh, reg.TX_FLIT.start), words))
            writes.append((self._at(mesh, reg.TX_KICK), (1).to_bytes(8, "little")))
        self._transport.submit(writes)
        answers: dict[int, int | None] = dict.fromkeys(questions)
        self._gather(questions, answers)
        return answers

    def grids(self, meshes: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Least and greatest coordinate of the routers of each mesh, as its agent says."""
        listed = list(meshes)
        words = self._transport.poll([self._at(mesh, reg.CAPS) for mesh in listed])
        return {mesh: (word >> 24 & 0xFF, word >> 32 & 0xFF) for mesh, word in zip(listed, words, strict=True)}

    def _at(self, mesh: int, offset: int) -> int:
        return self._agents.register(mesh, offset)

    def _drain(self, questions: Iterable[int]) -> None:
        left = list(questions)
        for _ in range(_STALE):
            offsets = (reg.STATUS, reg.RX_STATUS)
            words = self._transport.poll([self._at(mesh, offset) for mesh in left for offset in offsets])
            full = [
                mesh
                for mesh, busy, received in zip(left, words[::2], words[1::2], strict=True)
                if busy & _BUSY or not received & reg.RX_EMPTY
            ]
            if not full:
                return
            self._pop(mesh for mesh, received in zip(left, words[1::2], strict=True) if not received & reg.RX_EMPTY)
            left = full
        raise DispatchError(
            f"the mailbox of mesh {', '.join(map(str, left))} can't be used: its agent dispatches, or its receive "
            "queue doesn't become empty. Reset the card"
        )

    def _gather(self, questions: Mapping[int, Question], answers: dict[int, int | None]) -> None:
        left = list(questions)
        for _ in range(_PATIENCE):
            if not left:
                return
            words = self._transport.poll([self._at(mesh, reg.RX_STATUS) for mesh in left])
            there = [mesh for mesh, word in zip(left, words, strict=True) if not word & reg.RX_EMPTY]
            if not there:
                continue
            spans = [(self._at(mesh, reg.RX_FLIT.start), 8 * FLIT_WORDS) for mesh in there]
            for mesh, data in zip(there, self._transport.collect(spans), strict=True):
                if (answer := _reply(data, questions[mesh], self._txn)) is not None:
                    left.remove(mesh)
                    answers[mesh] = answer.value
            self._pop(there)

    def _pop(self, meshes: Iterable[int]) -> None:
        self._transport.submit([(self._at(mesh, reg.RX_POP), (1).to_bytes(8, "little")) for mesh in meshes])


class _Answer(Struct, frozen=True):
    value: int | None


def _request(question: Question, txn: int) -> Flit:
    # A host asks as (0, 0): a corner, from where the router brings replies to the agent.
    return Flit(
        type=FlitType.CU_CTRL,
        payload=CONTROL_REQUEST.pack({"index": question.index}),
        dst_x=question.at[0],
        dst_y=question.at[1],
        txn=txn,
        last=1,
    )


def _reply(data: bytes, question: Question, txn: int) -> _Answer | None:
    """The answer in a flit; None for a flit that answers something else.

    Without value where a memory port sent the request back, or another unit answers for an empty place: routers hand
    what is for nobody to a neighbour.
    """
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    try:
        flit = Flit.from_staged(words)
    except InstructionError:
        return None
    if flit.type != FlitType.CU_CTRL or flit.txn != txn:
        return None
    try:
        fields = CONTROL_REPLY.unpack(flit.payload)
    except InstructionError:
        return _Answer(None)
    if fields["index"] != question.index or (flit.src_x, flit.src_y) != question.at:
        return _Answer(None)
    return _Answer(fields["value"])
