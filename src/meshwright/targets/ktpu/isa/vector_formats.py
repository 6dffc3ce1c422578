"""Field tables of the vector core's 32-bit words.

Source: RTL, in tests/golden/ktpu_vector_isa.json. Where the makers' encoder takes more bits than the decoder reads
(VRED's `kind`, VSETMODE's `mode`, VFILL's `l1off`), a field here has the bits that are read.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from meshwright.targets.ktpu.isa.fields import Field, Format

WORD_BITS: Final = 32


class Source(IntEnum):
    """Where an operand of an ALU word comes from."""

    V = 0
    S = 1
    C = 2
    K = 3


class Mask(IntEnum):
    """Which elements an ALU word writes; 3 is read as 2."""

    ALL = 0
    SET = 1
    CLEAR = 2


class Mode(IntEnum):
    """How many ALU words make one operation; TREE is for reductions."""

    FLAT = 0
    D2 = 1
    D4 = 2
    TREE = 3


class DType(IntEnum):
    """Element type of memory words; every other code faults."""

    FP16 = 1
    FP32 = 2


class Reduction(IntEnum):
    """What VRED does."""

    SUM = 0
    MAX = 1
    MIN = 2
    SUMSQ = 3
    DOT = 4
    EXPSUM = 5
    ANY = 6
    ALL = 7


_SOURCES: Final = tuple(source.name for source in Source)
_MASKS: Final = tuple(mask.name for mask in Mask)
_DTYPES: Final = ("", *(dtype.name for dtype in DType))

ALU_OPS: Final[dict[str, str]] = {
    "VMOV": "a",
    "VNEG": "-a",
    "VABS": "magnitude of a",
    "VADD": "a + c",
    "VSUB": "a - c",
    "VMUL": "a * b",
    "VFMA": "a * b + c",
    "VFNMA": "-(a * b) + c",
    "VMAX": "b where a < b, else a",
    "VMIN": "b where a > b, else a",
    "VSEL": "a where c is not zero, else b",
    "VCMPLT": "P[pr] = a < b",
    "VCMPGT": "P[pr] = a > b",
    "VCMPEQ": "P[pr] = a == b",
    "VEXP2": "2 to the a",
    "VLOG2": "logarithm of a to base 2",
    "VINV": "1 / a",
    "VRSQRT": "1 / square root of a",
}
"""Mnemonics of the ALU words in the order of their opcodes, and what each computes."""

COMPARES: Final = frozenset({"VCMPLT", "VCMPGT", "VCMPEQ"})

_ALU: Final = (
    Field("sa", 26, 25, names=_SOURCES, text="source of a"),
    Field("sb", 24, 23, names=_SOURCES, text="source of b"),
    Field("sc", 22, 21, names=_SOURCES, text="source of c"),
    Field("vd", 20, 17, text="vector register written"),
    Field("va", 16, 13, text="register of a; of K the low two bits"),
    Field("vb", 12, 9, text="register of b"),
    Field("vc", 8, 5, text="register of c"),
    Field("pr", 4, 3, text="predicate"),
    Field("pm", 2, 1, names=_MASKS, text="elements written: all, where the predicate is set, where it is clear"),
)
_DTYPE: Final = Field("dtype", 26, 24, default=DType.FP16, names=_DTYPES, text="element type of L1 words")
_AD: Final = Field("ad", 23, 21, default=None, text="descriptor")
_OFFSET: Final = Field("offset", 13, 0, signed=True, text="words of L1 added to the address, which wraps at its end")
_L1OFF: Final = Field("l1off", 8, 0, text="first word of L1")
_VA: Final = Field("va", 16, 13, default=None, text="vector register read")
_S_COUNT: Final = Field("va_sreg", 16, 13, default=None, text="scalar register with the number")


def _format(op: int, name: str, *fields: Field) -> Format:
    return Format(name, WORD_BITS, (Field("op", 31, 27, const=op, text="which instruction"), *fields))


_OTHERS: Final = (
    _format(0x12, "VCVT", _DTYPE, Field("vd", 20, 17, default=None, text="vector register written"), _VA),
    _format(
        0x13,
        "VRED",
        Field("vd_sreg", 20, 17, default=None, text="scalar register written"),
        _VA,
        Field("vb", 12, 9, text="second operand; of EXPSUM, where the leaves go"),
        Field("kind", 7, 5, default=None, names=tuple(kind.name for kind in Reduction), text="what is done"),
        Field("pr", 4, 3, text="predicate of ANY and ALL"),
    ),
    _format(0x14, "VLD", _DTYPE, _AD, Field("vd", 20, 17, default=None, text="vector register written"), _OFFSET),
    _format(0x15, "VST", _DTYPE, _AD, Field("vd", 20, 17, default=None, text="vector register read"), _OFFSET),
    _format(
        0x16,
        "VBCAST",
        Field("sa", 26, 25, text="1: every element of V[vd] = S[va]; otherwise S[vd] = element 0 of V[va]"),
        Field("vd", 20, 17, default=None, text="register written"),
        Field("va_sreg", 16, 13, default=None, text="register read"),
    ),
    _format(
        0x17,
        "VSHUF",
        Field("vd", 20, 17, default=None, text="vector register written"),
        _VA,
        Field("vb_sreg", 12, 9, default=None, text="scalar register with the distance"),
    ),
    _format(0x18, "VSETVL", _S_COUNT),
    _format(
        0x19,
        "VSETMODE",
        Field("mode", 14, 13, default=None, names=tuple(mode.name for mode in Mode), text="how words form operations"),
    ),
    _format(
        0x1A,
        "VSETI",
        Field("sa", 26, 25, text="3: write K3; otherwise S[vd]"),
        Field("vd_sreg", 20, 17, text="scalar register written"),
    ),
    _format(0x1B, "VLOOP", _S_COUNT, Field("body", 12, 9, default=None, text="words in the loop, VSETI being two")),
    _format(0x1C, "VBAR"),
    _format(0x1D, "VFILL", _AD, _L1OFF),
    _format(
        0x1E,
        "VDRAIN",
        Field("signal", 25, 25, text="1: signal when complete"),
        Field("to_node", 24, 24, text="1: to a unit, the base being a record; 0: to memory"),
        _AD,
        Field("dst_x", 20, 17, text="x of the unit"),
        Field("dst_y", 16, 13, text="its y"),
        Field("buf_id", 12, 9, text="the unit's buffer"),
        _L1OFF,
    ),
    _format(0x1F, "VHALT"),
)

FORMATS: Final[dict[str, Format]] = {
    **{name: _format(op, name, *_ALU) for op, name in enumerate(ALU_OPS)},
    **{format_.name: format_ for format_ in _OTHERS},
}
"""The field table of each 32-bit word, by mnemonic, in the order of the opcodes."""

MNEMONICS: Final = tuple(FORMATS)
"""Mnemonic of each opcode, 0 to 31."""

IMMEDIATE: Final = Format(
    "VSETI immediate", WORD_BITS, (Field("imm", 23, 0, default=None, text="E8M15 code or whole number"),)
)
"""The second word of VSETI."""

PEER_RECORD: Final = Format(
    "peer record",
    40,
    (
        Field("granule", 15, 0, text="first 32-byte granule in the unit's buffer"),
        Field("ack_x", 19, 16, text="x of where the acknowledgement goes; (0, 0) is the sender"),
        Field("ack_y", 23, 20, text="its y"),
        Field("mesh", 25, 24, text="mesh of the destination, where `fin` is not 0"),
        Field("fin", 33, 26, text="{y, x} of the destination in that mesh; 0: it is in this mesh"),
    ),
)
"""The base of the descriptor that a VDRAIN to a unit names."""
