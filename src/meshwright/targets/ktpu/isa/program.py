"""`Program`: what one unit is sent, as typed instructions, and its words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from meshwright.targets.ktpu.isa.cluster import WORD_BITS, ClusterInstruction, Drain, Fill, Gemm, decode_cluster
from meshwright.targets.ktpu.isa.fields import InstructionError
from meshwright.targets.ktpu.isa.payload import Desc, Imem, Payload, Run, decode_payload

Unit: TypeAlias = Literal["MG", "VC"]
"""`MG` is a matmul cluster, `VC` a vector core."""

WORD_BYTES = WORD_BITS // 8
_TAKEN = {"MG": (Fill, Gemm, Drain), "VC": (Imem, Desc, Run)}


class Program(Struct, frozen=True, dict=True):
    """Instructions for one unit, in order, one 256-bit word each.

    Raises `InstructionError` for an instruction of the other type of unit: opcodes 1 to 3 mean something to both, so
    the destination would take one for another.
    """

    unit: Unit
    words: tuple[ClusterInstruction | Payload, ...]

    def __post_init__(self) -> None:
        if self.unit not in _TAKEN:
            raise InstructionError(f"there is no unit of type {self.unit!r}; there are MG and VC")
        for at, instruction in enumerate(self.words):
            if type(instruction) not in _TAKEN[self.unit]:
                taken = ", ".join(kind.__name__ for kind in _TAKEN[self.unit])
                raise InstructionError(
                    f"word {at} of a program for {self.unit} is {type(instruction).__name__}; {self.unit} takes {taken}"
                )

    def __len__(self) -> int:
        return len(self.words)

    def encode(self) -> tuple[int, ...]:
        """The 256-bit words; `InstructionError` names the word and the field that doesn't fit."""
        return self._encoded

    @cached_property
    def _encoded(self) -> tuple[int, ...]:
        encoded: list[int] = []
        for at, instruction in enumerate(self.words):
            try:
                encoded.extend(instruction.words())
            except InstructionError as error:
                raise InstructionError(f"word {at}: {error}") from None
        return tuple(encoded)

    def moved(self, addresses: Mapping[int, int]) -> Program:
        """The same with other DRAM addresses in some words, by their number: of a FILL, a DRAIN, or a base.

        Raises `InstructionError` for a word that has no address, and for one past 40 bits.
        """
        words, encoded = list(self.words), list(self._encoded)
        for at, address in addresses.items():
            instruction = words[at]
            match instruction:
                case Fill() | Drain():
                    field, changed = instruction.format.free["addr"], replace(instruction, addr=address)
                case Desc(fld=0):
                    field, changed = Desc.format.free["value"], replace(instruction, value=address)
                case _:
                    raise InstructionError(f"word {at} is a {instruction.mnemonic}, which has no address")
            low, high = field.limits
            if not low <= address <= high:
                raise InstructionError(f"word {at}: address {address:#x} does not fit {field.width} bits {field.bits}")
            words[at] = changed
            encoded[at] = encoded[at] & ~field.insert(high) | field.insert(address)
        made = Program(self.unit, tuple(words))
        # Only addresses differ, and encoding a word takes far longer than changing one.
        vars(made)["_encoded"] = tuple(encoded)
        return made

    def to_bytes(self) -> bytes:
        """The words, 32 bytes each, little-endian, as staging memory holds them."""
        return b"".join(word.to_bytes(WORD_BYTES, "little") for word in self.encode())

    @classmethod
    def decode(cls, unit: Unit, words: Iterable[int]) -> Program:
        """The program of 256-bit words; `InstructionError` names the word that is none."""
        decode = decode_cluster if unit == "MG" else decode_payload
        found: list[ClusterInstruction | Payload] = []
        for at, word in enumerate(words):
            try:
                found.append(decode(word))
            except InstructionError as error:
                raise InstructionError(f"word {at}: {error}") from None
        return cls(unit, tuple(found))

    @classmethod
    def from_bytes(cls, unit: Unit, data: bytes) -> Program:
        """The program of `to_bytes`; `InstructionError` where `data` isn't whole words."""
        if len(data) % WORD_BYTES:
            raise InstructionError(
                f"a program is words of {WORD_BYTES} bytes; got {len(data)} bytes, {len(data) % WORD_BYTES} too many"
            )
        starts = range(0, len(data), WORD_BYTES)
        return cls.decode(unit, (int.from_bytes(data[at : at + WORD_BYTES], "little") for at in starts))
