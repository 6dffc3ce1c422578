"""A vector core beside a memory of its own, for tests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from meshwright.machine import load
from meshwright.simulator.vector_core import Answer, PeerDrain, VectorCore
from meshwright.targets.ktpu.isa import vector as isa
from meshwright.targets.ktpu.isa.payload import Desc, Imem, Run
from meshwright.targets.ktpu.isa.vector import encode_code
from meshwright.targets.ktpu.isa.vector_formats import ALU_OPS, Source

SPEC = load("ktpu-1").vector_core


class FlatMemory:
    """Words by byte address; what nobody wrote can't be read."""

    def __init__(self) -> None:
        self.words: dict[int, np.ndarray] = {}
        self.sent: list[PeerDrain] = []

    def read(self, addresses):
        return np.stack([self.words[int(a)] for a in addresses])

    def write(self, addresses, words, known):
        self.known = known
        for address, word in zip(addresses, words, strict=True):
            self.words[int(address)] = np.array(word)

    def send(self, drain):
        self.sent.append(drain)

    def put(self, address: int, halves) -> None:
        """Elements of 16 bits from `address` on; the last word is filled up with zeros."""
        bits = np.asarray(halves).reshape(-1).view(np.uint16)
        bits = np.concatenate([bits, np.zeros(-bits.size % 16, np.uint16)])
        for at in range(0, bits.size, 16):
            self.words[address + 2 * at] = bits[at : at + 16].copy()

    def get(self, address: int, count: int) -> np.ndarray:
        """`count` elements of 16 bits from `address` on."""
        words = [self.words[address + 32 * i] for i in range(-(-count // 16))]
        return np.concatenate(words)[:count]


class Rig:
    """Payloads go in, answers come out; `state` may be looked at."""

    def __init__(self, spec=SPEC) -> None:
        self.memory = FlatMemory()
        self.core = VectorCore(spec, self.memory)
        self.state = self.core.state

    def describe(self, number: int, base: int, *dims: tuple[int, int]) -> None:
        """Sets a descriptor; dimensions are (stride, bound), others 0 and 1."""
        self.core.execute(Desc.base(number, base).words()[0])
        for at in range(4):
            stride, bound = dims[at] if at < len(dims) else (0, 1)
            self.core.execute(Desc.dim(number, at, stride=stride, bound=bound).words()[0])

    def load(self, words) -> None:
        """Writes code from word 0 on."""
        for at, word in enumerate(words):
            assert self.core.execute(Imem(addr=at, word=word).words()[0]) == Answer()

    def run(self, *code, halt: bool = True) -> Answer:
        """Loads instructions, a VHALT after them, and runs."""
        words = encode_code([*code, isa.Halt()] if halt else code)
        self.load(words)
        return self.core.execute(Run(pc=0).words()[0])

    def vector(self, register: int, codes) -> None:
        """Puts E8M15 codes into a vector register."""
        codes = np.asarray(codes, np.uint32)
        self.state.v[register, : codes.size] = codes
        self.state.v_taint[register, : codes.size] = 0

    def scalar(self, register: int, word: int) -> None:
        """Puts 24 bits into a scalar register."""
        self.state.s[register] = word
        self.state.s_taint[register] = 0

    def length(self, length: int) -> tuple[isa.VectorInstruction, ...]:
        """Instructions that set the vector length through S15."""
        return isa.SetImmediate(vd_sreg=15, imm=length), isa.SetLength(va_sreg=15)


FILL, LOAD, STORE, DRAIN = 0, 1, 2, 3


def drained(rig: Rig, register: int, length: int = 16) -> tuple[isa.VectorInstruction, ...]:
    """Instructions that store a register at L1 word 0 and drain it to address 0x2000."""
    words = -(-length // 16)
    rig.describe(STORE, 0, (1, 8))
    rig.describe(DRAIN, 0x2000, (32, words))
    return isa.Store(ad=STORE, vd=register), isa.VectorDrain(ad=DRAIN, l1off=0)


def alu_words(registers: st.SearchStrategy[int], masks: list[int]) -> st.SearchStrategy[isa.Alu]:
    """Any ALU words on vector registers and scalars `registers`, predicates 0 and 1; `masks`: their `pm`."""
    selectors = st.sampled_from([Source.V, Source.V, Source.V, Source.S, Source.K])
    return st.builds(
        isa.Alu,
        op=st.sampled_from(tuple(ALU_OPS)),
        sa=selectors,
        sb=selectors,
        sc=selectors,
        vd=registers,
        va=registers,
        vb=registers,
        vc=registers,
        pr=st.integers(0, 1),
        pm=st.sampled_from(masks),
    )
