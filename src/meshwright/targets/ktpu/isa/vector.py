"""Instructions of a vector core: typed objects, and their 32-bit words both ways.

Fields hold plain numbers; `Source`, `Mask`, `Mode`, `DType` and `Reduction` name those that have names. What each word
does is in docs/ktpu/instructions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final, TypeAlias

from msgspec import Struct

from meshwright.targets.ktpu.isa.fields import Format, InstructionError
from meshwright.targets.ktpu.isa.vector_formats import ALU_OPS, FORMATS, IMMEDIATE, MNEMONICS, WORD_BITS, DType


class _VectorWord(Struct, frozen=True, kw_only=True):
    """One instruction. The format follows from the class, or, where several share it, from `op`."""

    name: ClassVar[str] = ""

    @property
    def mnemonic(self) -> str:
        """The instruction's name in assembler text."""
        return self.name

    @property
    def format(self) -> Format:
        """The field table of the (first) word."""
        return FORMATS[self.mnemonic]

    @property
    def values(self) -> dict[str, int]:
        """Field values of the (first) word by name."""
        return {name: getattr(self, name) for name in self.format.free}

    def words(self) -> tuple[int, ...]:
        """The 32-bit words; `InstructionError` for a value that its field can't hold."""
        return (self.format.pack(self.values),)


class Alu(_VectorWord, frozen=True, kw_only=True, tag_field="word", tag="ALU"):
    """An elementwise operation; `op` is one of `ALU_OPS`.

    VADD and VSUB take their second operand from slot c; VMUL, VMAX, VMIN and the compares from slot b.
    """

    op: str
    sa: int = 0
    sb: int = 0
    sc: int = 0
    vd: int = 0
    va: int = 0
    vb: int = 0
    vc: int = 0
    pr: int = 0
    pm: int = 0

    def __post_init__(self) -> None:
        if self.op not in ALU_OPS:
            raise InstructionError(f"{self.op!r} is no ALU operation; there are {', '.join(ALU_OPS)}")

    @property
    def mnemonic(self) -> str:
        """The instruction's name in assembler text."""
        return self.op


class Convert(_VectorWord, frozen=True, kw_only=True, tag_field="word", tag="VCVT"):
    """VCVT: V[vd] = V[va] rounded through an element type."""

    name: ClassVar[str] = "VCVT"
    dtype: int = DType.FP16
    vd: int
    va: int


class Reduce(_VectorWord, frozen=True, kw_only=True, tag_field="word", tag="VRED"):
    """VRED: S[vd_sreg] = a reduction of V[va], `kind` being one of `Reduction`."""

    name: ClassVar[str] = "VRED"
    vd_sreg: int
    va: int
    vb: int = 0
    kind: int
    pr: int = 0


class Load(_VectorWord, frozen=True, kw_only=True, tag_field="word", tag="VLD"):
    """VLD: V[vd] = the words of L1 that descriptor `ad` walks, from `offset` on."""

    name: ClassVar[str] = "VLD"
    dtype: int = DType.FP16
    ad: int
    vd: int
    offset: int = 0


class Store(_VectorWord, frozen=True, kw_only=True, tag_field="word", tag="VST"):
    """VST: the words of L1 that descriptor `ad` walks, from `offset` on, = V[vd]."""

    name: ClassVar[str] = "VST"
    dtype: int = DType.FP16
    ad: int
    vd: int
    offset: int = 0


class Broadcast(_VectorWord, frozen=True, kw_only=True, tag_field="word", tag="VBCAST"):
    """VBCAST: with `sa` 1, every element of V[vd] = S[va_sreg]; otherwise S[vd] = element 0 of V[va_sreg]."""

    name: ClassVar[str] = "VBCAST"
    sa: int = 0
    vd: int
    va_sreg: int


class Shuffle(_VectorWord, frozen=True, kw_only=True, tag_field="word", tag="VSHUF"):
    """VSHUF: each chunk of V[va] rotated by S[vb_sreg] elements."""

    name: ClassVar[str] = "VSHUF"
    vd: int
    va: int
    vb_sreg: int


class SetLength(_VectorWord, frozen=True, kw_only=True, tag_field="word", tag="VSETVL"):
    """VSETVL: the vector length = S[va_sreg], 1 to 128."""

    name: ClassVar[str] = "VSETVL"
    va_sreg: int


class SetMode(_VectorWord, frozen=True, kw_only=True, tag_field="word", tag="VSETMODE"):
    """VSETMODE: `mode` is one of `Mode`."""

    name: ClassVar[str] = "VSETMODE"
    mode: int


class SetImmediate(_VectorWord, frozen=True, kw_only=True, tag_field="word", tag="VSETI"):
    """VSETI, two words: S[vd_sreg] = `imm`, or K3 = `imm` with `sa` 3."""

    name: ClassVar[str] = "VSETI"
    sa: int = 0
    vd_sreg: int = 0
    imm: int

    def words(self) -> tuple[int, ...]:
        """Both words; `InstructionError` for a value that its field can't hold."""
        return self.format.pack(self.values), IMMEDIATE.pack({"imm": self.imm})


class Loop(_VectorWord, frozen=True, kw_only=True, tag_field="word", tag="VLOOP"):
    """VLOOP: the next `body` words run S[va_sreg] times, once at least."""

    name: ClassVar[str] = "VLOOP"
    va_sreg: int
    body: int


class Barrier(_VectorWord, frozen=True, kw_only=True, tag_field="word", tag="VBAR"):
    """VBAR: wait until fills have arrived."""

    name: ClassVar[str] = "VBAR"


class VectorFill(_VectorWord, frozen=True, kw_only=True, tag_field="word", tag="VFILL"):
    """VFILL: memory that descriptor `ad` walks into L1 from word `l1off` on."""

    name: ClassVar[str] = "VFILL"
    ad: int
    l1off: int = 0


class VectorDrain(_VectorWord, frozen=True, kw_only=True, tag_field="word", tag="VDRAIN"):
    """VDRAIN: L1 from word `l1off` on into memory that descriptor `ad` walks, or, with `to_node`, to a unit."""

    name: ClassVar[str] = "VDRAIN"
    signal: int = 0
    to_node: int = 0
    ad: int
    dst_x: int = 0
    dst_y: int = 0
    buf_id: int = 0
    l1off: int = 0


class Halt(_VectorWord, frozen=True, kw_only=True, tag_field="word", tag="VHALT"):
    """VHALT: wait for everything, and end the run."""

    name: ClassVar[str] = "VHALT"


VectorInstruction: TypeAlias = (
    Alu
    | Convert
    | Reduce
    | Load
    | Store
    | Broadcast
    | Shuffle
    | SetLength
    | SetMode
    | SetImmediate
    | Loop
    | Barrier
    | VectorFill
    | VectorDrain
    | Halt
)
"""What a vector core executes."""

KINDS: Final[dict[str, type[VectorInstruction]]] = {
    **dict.fromkeys(ALU_OPS, Alu),
    **{
        kind.name: kind
        for kind in (
            Convert,
            Reduce,
            Load,
            Store,
            Broadcast,
            Shuffle,
            SetLength,
            SetMode,
            SetImmediate,
            Loop,
            Barrier,
            VectorFill,
            VectorDrain,
            Halt,
        )
    },
}
"""The class of each mnemonic."""


def make(mnemonic: str, values: dict[str, int]) -> VectorInstruction:
    """The instruction with these field values, VSETI's `imm` among them.

    Raises `InstructionError` for an unknown mnemonic, a missing or unknown field, or a value out of its range.
    """
    if mnemonic not in KINDS:
        raise InstructionError(f"{mnemonic!r} is no vector instruction; there are {', '.join(KINDS)}")
    stated = dict(values)
    if mnemonic == "VSETI":
        IMMEDIATE.check({name: stated.pop(name) for name in ("imm",) if name in stated})
    FORMATS[mnemonic].check(stated)
    kind = _kind(mnemonic)
    return kind(op=mnemonic, **values) if mnemonic in ALU_OPS else kind(**values)


def _kind(mnemonic: str) -> Callable[..., VectorInstruction]:
    return KINDS[mnemonic]


def encode_code(code: Iterable[VectorInstruction]) -> tuple[int, ...]:
    """The 32-bit words of instructions, one after the other."""
    return tuple(word for instruction in code for word in instruction.words())


def decode_at(words: Sequence[int], at: int) -> tuple[VectorInstruction, int]:
    """The instruction that starts at `words[at]`, and where the next one starts.

    Raises `InstructionError` for a reserved bit that is set and for a VSETI without its second word; every opcode
    is taken.
    """
    word = words[at]
    if not 0 <= word < 1 << WORD_BITS:
        raise InstructionError(f"vector word {at}: {word:#x} is not of {WORD_BITS} bits")
    mnemonic = MNEMONICS[word >> 27]
    try:
        values = FORMATS[mnemonic].unpack(word)
        if mnemonic != "VSETI":
            return make(mnemonic, values), at + 1
        if at + 1 == len(words):
            raise InstructionError("VSETI: its second word, the immediate, is missing")
        return make(mnemonic, values | IMMEDIATE.unpack(words[at + 1])), at + 2
    except InstructionError as error:
        raise InstructionError(f"vector word {at}: {error}") from None


def decode_code(words: Sequence[int]) -> tuple[VectorInstruction, ...]:
    """The instructions of 32-bit words; raises as `decode_at` does."""
    code: list[VectorInstruction] = []
    at = 0
    while at < len(words):
        instruction, at = decode_at(words, at)
        code.append(instruction)
    return tuple(code)
