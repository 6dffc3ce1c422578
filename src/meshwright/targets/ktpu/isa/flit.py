"""Flits: 288 bits, a header over a payload of 256. Memory requests, data between units, signals, and control.

Source: RTL, in tests/golden/ktpu_vector_isa.json; whole flits in tests/golden/ktpu_vector_words.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from msgspec import Struct

from meshwright.machine import Coord
from meshwright.targets.ktpu.isa.fields import Field, Format, InstructionError

FLIT_BITS: Final = 288
PAYLOAD_BITS: Final = 256
FLIT_WORDS: Final = 5
"""64-bit words of a staged flit: four of payload, low first, then the header."""
BURST_GRANULES: Final = 256
"""Most data flits that follow one descriptor."""
REMOTE: Final = 4
"""Bit of `rsvd` that says that the flit is for another mesh, named by the two bits below."""


class FlitType(IntEnum):
    """What the payload is."""

    MEM_RD_REQ = 0
    MEM_WR_REQ = 1
    MEM_RD_RESP = 2
    MEM_WR_ACK = 3
    MEM_WR_DATA = 4
    CU_INST = 5
    CU_SIGNAL = 6
    CU_CTRL = 7
    CU_DATA = 8
    ERROR = 15


HEADER: Final = Format(
    "flit",
    FLIT_BITS,
    (
        Field("dst_x", 287, 284, text="x of where it goes"),
        Field("dst_y", 283, 280, text="its y"),
        Field("src_x", 279, 276, text="x of where it comes from; the dispatcher writes its own place here"),
        Field("src_y", 275, 272, text="its y"),
        Field("type", 271, 268, default=None, text="what the payload is"),
        Field("txn", 267, 260, text="transaction; for another mesh {y, x} of the destination there"),
        Field("last", 259, 259, text="1: the last flit of a burst or of a kick"),
        Field("rsvd", 258, 256, text="bit 2: for another mesh, named by bits 1 and 0; of a read response, the word"),
        Field("payload", 255, 0, text="see the payload tables"),
    ),
)

MEM_REQUEST: Final = Format(
    "MEM_REQ",
    PAYLOAD_BITS,
    (
        Field("addr", 255, 216, default=None, text="global byte address"),
        Field("len_minus1", 215, 208, text="words of an entry, or data flits of a write, less one"),
        Field("flags", 207, 200, text="bit 4: quantise; 5: B layout; 6: stream"),
        Field("count", 199, 192, text="entries; 0 means 1"),
        Field("peer", 191, 168, text="{y, x} of up to three peers"),
        Field("n_peer", 167, 166, text="how many they are"),
        Field("entry_words", 165, 158, text="words of an entry; 0, or more than 4, means 4"),
    ),
)
CU_SIGNAL: Final = Format(
    "CU_SIGNAL",
    PAYLOAD_BITS,
    (
        Field("code", 255, 248, default=None, text="0 instruction done, 1 batch done, 3 data received, 4 fault"),
        Field("arg", 247, 216, text="of a run its cycles, of a batch its txn, of data its buffer, of a fault its code"),
    ),
)
CU_DATA: Final = Format(
    "CU_DATA_DESC",
    PAYLOAD_BITS,
    (
        Field("buf_id", 255, 248, text="cluster: 0 L1 A, 1 L1 B, 2 accumulator; vector core: 0"),
        Field("offset_granules", 247, 232, text="first granule of 32 bytes; one more each flit"),
        Field("len_minus1", 231, 224, text="data flits that follow, less one"),
        Field("flags", 223, 216, text="bit 0: signal when complete"),
        Field("ack_y", 215, 212, text="y of where the acknowledgement goes; (0, 0) is the source"),
        Field("ack_x", 211, 208, text="its x"),
    ),
)
CONTROL_REQUEST: Final = Format(
    "CU_CTRL_REQ",
    PAYLOAD_BITS,
    (
        Field("op", 255, 248, const=0, text="request"),
        Field("index", 247, 240, text="0 capabilities, 1 status, 2 counters, 3 debug"),
    ),
)
CONTROL_REPLY: Final = Format(
    "CU_CTRL_REPLY",
    PAYLOAD_BITS,
    (
        Field("op", 255, 248, const=2, text="reply"),
        Field("index", 247, 240, text="as asked"),
        Field("value", 239, 176, text="the answer"),
    ),
)
PAYLOADS: Final = (MEM_REQUEST, CU_SIGNAL, CU_DATA, CONTROL_REQUEST, CONTROL_REPLY)
"""The payload tables of flits that carry no instruction."""


class Flit(Struct, frozen=True, kw_only=True):
    """One flit; `type` is one of `FlitType`."""

    type: int
    payload: int = 0
    dst_x: int = 0
    dst_y: int = 0
    src_x: int = 0
    src_y: int = 0
    txn: int = 0
    last: int = 0
    rsvd: int = 0

    def encode(self) -> int:
        """The 288 bits; `InstructionError` for a value that its field can't hold."""
        return HEADER.pack({name: getattr(self, name) for name in HEADER.free})

    @classmethod
    def decode(cls, bits: int) -> Flit:
        """The flit of 288 bits; `InstructionError` for more bits, or a type that there isn't."""
        values = HEADER.unpack(bits)
        if values["type"] not in FlitType.__members__.values():
            known = ", ".join(f"{kind.value} {kind.name}" for kind in FlitType)
            raise InstructionError(f"flit {bits:#074x}: type {values['type']} is unknown; there are {known}")
        return cls(**values)

    def staged(self) -> tuple[int, ...]:
        """The five 64-bit words of a staging slot, payload first, low first; the upper half of the last is zero."""
        bits = self.encode()
        return tuple(bits >> 64 * i & (1 << 64) - 1 for i in range(FLIT_WORDS))

    @classmethod
    def from_staged(cls, words: Sequence[int]) -> Flit:
        """The flit of a staging slot; `InstructionError` where it isn't five 64-bit words of 288 bits."""
        if len(words) != FLIT_WORDS or any(not 0 <= word < 1 << 64 for word in words):
            raise InstructionError(f"a staged flit is {FLIT_WORDS} words of 64 bits; got {[hex(w) for w in words]}")
        return cls.decode(sum(word << 64 * i for i, word in enumerate(words)))


class Burst(Struct, frozen=True, kw_only=True):
    """Data from one unit to another: a descriptor flit, then one flit for each granule of 32 bytes.

    dst: the receiver; where `mesh` is given, this mesh's memory port, and `fin` the receiver in that mesh. ack: where
    the receiver acknowledges; None is the sender. offset: first granule in the receiver's `buffer`.
    """

    src: Coord
    dst: Coord
    granules: tuple[int, ...]
    """256 bits each."""
    buffer: int = 0
    offset: int = 0
    signal: bool = False
    ack: Coord | None = None
    mesh: int | None = None
    fin: Coord | None = None

    def flits(self) -> tuple[Flit, ...]:
        """Descriptor and data, `last` on the final flit.

        Raises `InstructionError` for no granule or more than 256, a unit that sends to itself, and a destination in
        another mesh without its place there or without somewhere to acknowledge.
        """
        self._check()
        x, y = self.ack or (0, 0)
        payload = CU_DATA.pack(
            {
                "buf_id": self.buffer,
                "offset_granules": self.offset,
                "len_minus1": len(self.granules) - 1,
                "flags": int(self.signal),
                "ack_y": y,
                "ack_x": x,
            }
        )
        payloads = (payload, *self.granules)
        final = len(payloads) - 1
        fin = self.fin or (0, 0)
        return tuple(
            Flit(
                type=FlitType.CU_DATA,
                payload=payload,
                dst_x=self.dst[0],
                dst_y=self.dst[1],
                src_x=self.src[0],
                src_y=self.src[1],
                txn=fin[1] << 4 | fin[0],
                last=int(at == final),
                rsvd=0 if self.mesh is None else REMOTE | self.mesh,
            )
            for at, payload in enumerate(payloads)
        )

    def _check(self) -> None:
        asked = f"burst from {self.src} to {self.dst}"
        if not 1 <= len(self.granules) <= BURST_GRANULES:
            raise InstructionError(f"{asked}: {len(self.granules)} granules; a burst carries 1 to {BURST_GRANULES}")
        if self.mesh is None:
            if self.fin is not None:
                raise InstructionError(f"{asked}: fin {self.fin} is a place in another mesh, and no mesh is named")
            if self.src == self.dst:
                raise InstructionError(f"{asked}: a unit that sends to itself waits for itself")
            return
        if not 0 <= self.mesh < REMOTE:
            raise InstructionError(f"{asked}: mesh {self.mesh} does not fit 2 bits: 0 to {REMOTE - 1}")
        if self.fin is None or self.fin == (0, 0):
            raise InstructionError(f"{asked}: in mesh {self.mesh}, where? name the receiver there with fin=(x, y)")
        if self.ack is None or self.ack == (0, 0):
            raise InstructionError(
                f"{asked}: across meshes (0, 0) would be the sender's coordinate in mesh {self.mesh}; name where to "
                "acknowledge with ack=(x, y)"
            )
        if max(self.fin) > 15 or min(self.fin) < 0:
            raise InstructionError(f"{asked}: fin {self.fin} does not fit 4 bits a coordinate: 0 to 15")
