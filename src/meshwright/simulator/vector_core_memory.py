"""A vector core's traffic: between its registers and L1, and between L1 and memory or other units.

A fill runs beside the code until a barrier, another fill or the end of the run waits for it; until then nobody can
say which of its words have arrived. Rules: RTL vectors in tests/golden/ktpu_vector_isa.json.
"""

from __future__ import annotations

from functools import cache
from typing import Final, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.numerics import lane
from meshwright.simulator.faults import Kind
from meshwright.simulator.vector_core_state import (
    KNOWN,
    UNWRITTEN,
    Addresses,
    Defect,
    DefectError,
    Fault,
    FaultError,
    State,
)
from meshwright.targets.ktpu.isa import vector as isa
from meshwright.targets.ktpu.isa.vector_formats import PEER_RECORD, DType

Words = NDArray[np.uint16]
"""Memory words as uint16 [n, 16], element 0 first."""

_EARLY: Final = Defect(Kind.UNPREDICTABLE, "L1 words are read before a VBAR has waited for the fill that writes them")


class PeerDrain(Struct, frozen=True, eq=False):
    """Words that leave for another unit.

    dst: where the flits are sent in this mesh. granule: the first one in the receiver's buffer. ack: None for the
    sender. mesh and fin: the receiver's mesh and place there, None where it is in this mesh.
    """

    dst: tuple[int, int]
    buffer: int
    granule: int
    signal: bool
    ack: tuple[int, int] | None
    mesh: int | None
    fin: tuple[int, int] | None
    words: Words


class VectorPort(Protocol):
    """What a vector core reaches outside itself. Addresses are global bytes of whole 32-byte words."""

    def read(self, addresses: Addresses) -> Words:
        """The words at int64 `addresses`, uint16 [n, 16]."""
        ...

    def write(self, addresses: Addresses, words: Words, known: NDArray[np.bool_]) -> None:
        """Stores the words in order; where `known` [n, 16] isn't set, nobody knows what an element is."""
        ...

    def send(self, drain: PeerDrain) -> None:
        """Sends words to another unit."""
        ...


class Flight(Struct, frozen=True, eq=False):
    """A fill that may still be arriving: L1 words, and the memory words that are read for them."""

    words: Addresses
    addresses: Addresses


@cache
def _half_codes() -> NDArray[np.uint32]:
    """The lane's code of every f16: a vector is short, and looking up is quicker than asking for a conversion."""
    return lane.from_fp16(np.arange(1 << 16, dtype=np.uint16))


def require_dtype(dtype: int) -> None:
    """`FaultError` for an element type that the core hasn't got."""
    if dtype not in DType.__members__.values():
        raise FaultError(Fault.DTYPE)


class Traffic:
    """What moves in one run. `touched` says which words of L1 the run has used."""

    def __init__(self, state: State, port: VectorPort) -> None:
        self.state = state
        self.port = port
        self.touched: NDArray[np.bool_] = np.zeros(state.spec.l1_words, np.bool_)
        self._flight: Flight | None = None
        self._drained: list[Addresses] = []

    def _l1_walk(self, instruction: isa.Load | isa.Store) -> Addresses:
        state = self.state
        require_dtype(instruction.dtype)
        steps = state.chunks * (2 if instruction.dtype == DType.FP32 else 1)
        words = (state.descriptors[instruction.ad].walk(steps) + instruction.offset) % state.spec.l1_words
        self.touched[words] = True
        return words

    def load(self, instruction: isa.Load) -> None:
        """VLD."""
        state, words = self.state, self._l1_walk(instruction)
        bits, taints = state.l1[words], state.l1_taint[words]
        if instruction.dtype == DType.FP32:
            codes = lane.from_fp32(bits.view(np.uint32).reshape(-1))
            taint = taints.reshape(-1, 2).max(axis=1)
        else:
            codes, taint = _half_codes()[bits.reshape(-1)], taints.reshape(-1)
        state.v[instruction.vd, : codes.size] = codes
        state.v_taint[instruction.vd, : codes.size] = taint

    def store(self, instruction: isa.Store, pc: int) -> None:
        """VST."""
        state, words = self.state, self._l1_walk(instruction)
        if instruction.dtype == DType.FP32:
            what = "VST of FP32 writes the second half of a chunk over the first"
            state.l1_taint[words] = state.taint(Defect(Kind.UNPREDICTABLE, what, pc))
            return
        n = state.chunks * state.spec.lanes
        taints = state.v_taint[instruction.vd, :n].reshape(len(words), -1)
        if self.may_arrive(words):
            what = "VST to L1 words that a fill may still write"
            state.l1_taint[words] = state.taint(Defect(Kind.UNPREDICTABLE, what, pc))
            return
        state.l1[words] = lane.to_fp16(state.v[instruction.vd, :n]).view(np.uint16).reshape(len(words), -1)
        state.l1_taint[words] = taints

    def may_arrive(self, words: Addresses) -> bool:
        """Whether a fill may still write one of these words of L1."""
        return self._flight is not None and bool(np.isin(words, self._flight.words).any())

    def land(self) -> None:
        """The fill in flight has arrived: its words, but those that were stored to meanwhile, are what was read."""
        flight, state = self._flight, self.state
        if flight is None:
            return
        self._flight = None
        taints = state.l1_taint[flight.words]
        state.l1_taint[flight.words] = np.where(taints == state.taint(_EARLY), KNOWN, taints)

    def _memory_walk(self, number: int) -> Addresses:
        descriptor = self.state.descriptors[number]
        if descriptor.count > self.state.spec.walk_words:
            raise FaultError(Fault.LEN)
        return descriptor.walk(descriptor.count)

    def _whole_words(self, addresses: Addresses, pc: int) -> None:
        odd = addresses[addresses % self.state.spec.word_bytes != 0]
        if odd.size:
            what = f"byte address {int(odd[0]):#x} is not that of a whole word of memory"
            raise DefectError(Defect(Kind.UNDEFINED, what, pc))

    def fill(self, instruction: isa.VectorFill, pc: int) -> None:
        """VFILL."""
        state, addresses = self.state, self._memory_walk(instruction.ad)
        self._whole_words(addresses, pc)
        self.land()
        if any(np.isin(addresses, drained).any() for drained in self._drained):
            what = "VFILL reads memory that this run has drained to, and nothing says that the drain has arrived"
            raise DefectError(Defect(Kind.UNPREDICTABLE, what, pc))
        words = (instruction.l1off + np.arange(len(addresses))) % state.spec.l1_words
        state.l1[words] = self.port.read(addresses)
        state.l1_taint[words] = state.taint(_EARLY)
        self.touched[words] = True
        self._flight = Flight(words, addresses)

    def drain(self, instruction: isa.VectorDrain, pc: int) -> None:
        """VDRAIN."""
        state = self.state
        count = state.descriptors[instruction.ad].count
        addresses = self._memory_walk(instruction.ad)
        words = (instruction.l1off + np.arange(count)) % state.spec.l1_words
        self.touched[words] = True
        taints = state.l1_taint[words]
        if instruction.to_node:
            state.require_known(taints)
            self._drain_to_peer(instruction, state.l1[words])
            return
        # Elements past a vector's length go along in its last chunk; that nobody set them harms nobody yet.
        known = taints == KNOWN
        if taints.any():
            state.require_known(taints[~known.any(axis=1)], taints[taints > UNWRITTEN])
        self._whole_words(addresses, pc)
        if self._flight is not None and np.isin(addresses, self._flight.addresses).any():
            what = "VDRAIN writes memory that a fill may still be reading"
            raise DefectError(Defect(Kind.UNPREDICTABLE, what, pc))
        self.port.write(addresses, state.l1[words], known)
        self._drained.append(addresses)

    def _drain_to_peer(self, instruction: isa.VectorDrain, words: Words) -> None:
        record = PEER_RECORD.unpack(self.state.descriptors[instruction.ad].base)
        fin, ack = record["fin"], (record["ack_x"], record["ack_y"])
        self.port.send(
            PeerDrain(
                dst=(instruction.dst_x, instruction.dst_y),
                buffer=instruction.buf_id,
                granule=record["granule"],
                signal=bool(instruction.signal),
                ack=None if ack == (0, 0) else ack,
                mesh=record["mesh"] if fin else None,
                fin=(fin & 15, fin >> 4) if fin else None,
                words=words,
            )
        )

    def check_footprint(self) -> None:
        """The words from the first to the last that the run touched, against what the machine's figures allow."""
        if not self.touched.any():
            return
        words = int(np.flatnonzero(self.touched)[-1]) + 1
        spec = self.state.spec
        if not spec.footprint_is_safe(words):
            what = (
                f"the run uses L1 up to word {words - 1}: between {spec.l1_safe_words} words (l1_safe_words) and all "
                f"{spec.l1_words} a card gave wrong data and reported success"
            )
            raise DefectError(Defect(Kind.UNPREDICTABLE, what))
