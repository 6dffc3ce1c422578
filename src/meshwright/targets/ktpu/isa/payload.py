"""What a vector core takes as instructions: 256-bit payloads that load its code and descriptors and start it.

Each payload is one flit and one completion. Source: RTL, in tests/golden/ktpu_vector_isa.json; encoded payloads in
tests/golden/ktpu_vector_words.json.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final, TypeAlias

from msgspec import Struct

from meshwright.targets.ktpu.isa.cluster import OPCODE, WORD_BITS
from meshwright.targets.ktpu.isa.fields import Field, Format, InstructionError
from meshwright.targets.ktpu.isa.vector import VectorInstruction, encode_code

DESCRIPTOR_FIELDS: Final = ("base", "dim0", "dim1", "dim2", "dim3")

FORMATS: Final[dict[str, Format]] = {
    "IMEM": Format(
        "IMEM",
        WORD_BITS,
        (
            Field("op", 255, 252, const=1, text=OPCODE.text),
            Field("addr", 251, 243, default=None, text="word of instruction memory"),
            Field("word", 31, 0, default=None, text="what is written there"),
        ),
    ),
    "DESC": Format(
        "DESC",
        WORD_BITS,
        (
            Field("op", 255, 252, const=2, text=OPCODE.text),
            Field("ad", 251, 249, default=None, text="descriptor"),
            Field("fld", 248, 246, default=None, names=DESCRIPTOR_FIELDS, text="0: base; 1 to 4: dimension 0 to 3"),
            Field("value", 245, 212, default=None, upper=(68, 63), text="base, or a dimension's stride and bound"),
        ),
    ),
    "RUN": Format(
        "RUN",
        WORD_BITS,
        (
            Field("op", 255, 252, const=3, text=OPCODE.text),
            Field("pc", 251, 243, text="word of instruction memory to start at"),
        ),
    ),
}
"""The field table of each payload, by mnemonic."""

DIMENSION: Final = Format(
    "dimension",
    34,
    (
        Field("stride", 33, 16, signed=True, text="added to the address for each step"),
        Field("bound", 15, 0, default=1, text="steps; 0 means 1"),
    ),
)
"""The value of a `DESC` whose `fld` is 1 to 4."""


class Imem(Struct, frozen=True, kw_only=True, tag_field="op", tag="IMEM"):
    """Write one 32-bit word of instruction memory."""

    format: ClassVar[Format] = FORMATS["IMEM"]

    addr: int
    word: int

    @property
    def mnemonic(self) -> str:
        """The payload's name in assembler text."""
        return self.format.name

    def words(self) -> tuple[int, ...]:
        """The payload; `InstructionError` for a value that its field can't hold."""
        return (self.format.pack({"addr": self.addr, "word": self.word}),)


class Desc(Struct, frozen=True, kw_only=True, tag_field="op", tag="DESC"):
    """Write one field of a descriptor: base (`fld` 0) or dimension `fld - 1`, as `base` and `dim` make them."""

    format: ClassVar[Format] = FORMATS["DESC"]

    ad: int
    fld: int
    value: int

    @classmethod
    def base(cls, ad: int, address: int) -> Desc:
        """Set the base of descriptor `ad`: 40 bits, in bytes for VFILL and VDRAIN, in words of L1 for VLD and VST."""
        return cls(ad=ad, fld=0, value=address)

    @classmethod
    def dim(cls, ad: int, dim: int, *, stride: int, bound: int) -> Desc:
        """Set dimension `dim` (0 innermost) of descriptor `ad`.

        Raises `InstructionError` where `dim`, `stride` (18 bits, signed) or `bound` (16 bits; 0 means 1) is out of
        range.
        """
        if not 0 <= dim < len(DESCRIPTOR_FIELDS) - 1:
            raise InstructionError(f"DESC: dim = {dim}; a descriptor has dimensions 0 to 3")
        return cls(ad=ad, fld=dim + 1, value=DIMENSION.pack({"stride": stride, "bound": bound}))

    @property
    def mnemonic(self) -> str:
        """The payload's name in assembler text."""
        return self.format.name

    @property
    def stride_and_bound(self) -> tuple[int, int]:
        """Of a dimension, as stored; `InstructionError` for a base, and for bits past the dimension's 34."""
        if self.fld == 0:
            raise InstructionError(f"DESC ad={self.ad} sets a base, which has neither stride nor bound")
        values = DIMENSION.unpack(self.value)
        return values["stride"], values["bound"]

    def words(self) -> tuple[int, ...]:
        """The payload.

        Raises `InstructionError` for a value that its field can't hold, a `fld` past 4, and a dimension of more than
        34 bits.
        """
        word = self.format.pack({"ad": self.ad, "fld": self.fld, "value": self.value})
        if self.fld >= len(DESCRIPTOR_FIELDS):
            raise InstructionError(f"DESC: fld = {self.fld}; a descriptor has a base, 0, and dimensions, 1 to 4")
        if self.fld:
            DIMENSION.unpack(self.value)
        return (word,)


class Run(Struct, frozen=True, kw_only=True, tag_field="op", tag="RUN"):
    """Start the core at word `pc` of instruction memory; its completion carries the cycles that it took."""

    format: ClassVar[Format] = FORMATS["RUN"]

    pc: int = 0

    @property
    def mnemonic(self) -> str:
        """The payload's name in assembler text."""
        return self.format.name

    def words(self) -> tuple[int, ...]:
        """The payload; `InstructionError` for a value that its field can't hold."""
        return (self.format.pack({"pc": self.pc}),)


Payload: TypeAlias = Imem | Desc | Run
"""What is sent to a vector core."""


def decode_payload(word: int) -> Payload:
    """The payload of a 256-bit word.

    Raises `InstructionError` for an unknown opcode, which the core retires without doing anything, for a reserved bit
    that is set, and for a descriptor field that there isn't.
    """
    op = OPCODE.extract(word)
    match op:
        case 1:
            return Imem(**Imem.format.unpack(word))
        case 2:
            desc = Desc(**Desc.format.unpack(word))
            desc.words()
            return desc
        case 3:
            return Run(**Run.format.unpack(word))
        case _:
            raise InstructionError(
                f"vector payload {word:#066x}: opcode {op} in {OPCODE.bits} is unknown; a vector core has 1 IMEM, "
                "2 DESC, 3 RUN"
            )


def load_code(code: Iterable[VectorInstruction], at: int = 0) -> tuple[Imem, ...]:
    """The payloads that write `code` into instruction memory from word `at` on."""
    return tuple(Imem(addr=at + i, word=word) for i, word in enumerate(encode_code(code)))
