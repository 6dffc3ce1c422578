"""Instructions of a matmul cluster: FILL, GEMM and DRAIN, one word of 256 bits each.

The three share one table of fields; an instruction looks at some of them and the rest stay at their defaults. Source:
the card's specification, in tests/golden/ktpu_isa.json; encoded words in tests/golden/ktpu_isa_words.json.
"""

from __future__ import annotations

from typing import ClassVar, Final, TypeAlias

from msgspec import Struct

from meshwright.targets.ktpu.isa.fields import Field, Format, InstructionError

WORD_BITS: Final = 256
SIDES: Final = ("A", "B")
OPCODE: Final = Field("op", 255, 252, default=None, text="which instruction")

_FIELDS: Final = (
    Field("addr", 251, 218, upper=(68, 63), text="global byte address; granules in the peer for a drain to a unit"),
    Field("n", 217, 202, text="L1 entries to stream, or sub-tiles to drain"),
    Field("sel", 201, 201, names=SIDES, text="L1 side that a FILL writes"),
    Field("acc", 200, 200, text="1: continue the resident tiles; 0: the first K block overwrites them"),
    Field("gm", 199, 192, text="sub-tiles down"),
    Field("gn", 191, 184, text="sub-tiles across"),
    Field("nk", 183, 176, default=1, text="K blocks, outermost in the sweep"),
    Field("anchor", 175, 168, default=40, text="exponent anchor of the accumulator"),
    Field("peers", 167, 144, text="coordinates of units that share a FILL; nothing may set it yet"),
    Field("npeer", 143, 142, text="how many they are; nothing may set it yet"),
    Field("preq", 141, 141, text="1: the operand is already quantised in memory"),
    Field("eoff", 140, 133, text="first L1 entry that a FILL writes, in bank `fbank`"),
    Field("aoff", 132, 125, text="first entry of A that a GEMM reads, in bank `abank`"),
    Field("boff", 124, 117, text="first entry of B that a GEMM reads, in bank `bbank`"),
    Field("emit", 116, 116, text="not described by the specification"),
    Field("fuse", 115, 115, text="not described by the specification"),
    Field("abank", 114, 114, text="bank of A that a GEMM reads"),
    Field("bbank", 113, 113, text="bank of B that a GEMM reads"),
    Field("fbank", 112, 112, text="bank that a FILL writes"),
    Field("dnode", 111, 111, text="1: drain to a unit; 0: to memory"),
    Field("dst_x", 110, 107, text="x of where the drain goes: a unit, or this mesh's memory port towards another mesh"),
    Field("dst_y", 106, 103, text="its y"),
    Field("dbuf", 102, 95, text="0: L1 A; 1: L1 B; 2: add into the resident tiles"),
    Field("dflags", 94, 87, text="bit 0: signal when complete"),
    Field("dack_y", 86, 83, text="y of where the acknowledgement goes; (0, 0) is the sender"),
    Field("dack_x", 82, 79, text="its x"),
    Field("dmesh", 78, 77, text="mesh of the destination, where `dfin` is not 0"),
    Field("dfin", 76, 69, text="{y, x} of the destination in mesh `dmesh`; 0: it is in this mesh"),
)


def _format(name: str, op: int) -> Format:
    return Format(name, WORD_BITS, (Field("op", 255, 252, const=op, text=OPCODE.text), *_FIELDS))


FORMATS: Final[dict[str, Format]] = {name: _format(name, op) for op, name in enumerate(("FILL", "GEMM", "DRAIN"), 1)}
"""The field table of each instruction, by mnemonic."""


class _ClusterWord(Struct, frozen=True, kw_only=True):
    """The fields that all three have; see the tables in docs/ktpu/instructions.md. `addr` has all its 40 bits."""

    format: ClassVar[Format]
    uses: ClassVar[tuple[str, ...]]
    """The fields that the instruction looks at."""

    addr: int = 0
    n: int = 0
    sel: int = 0
    acc: int = 0
    gm: int = 0
    gn: int = 0
    nk: int = 1
    anchor: int = 40
    peers: int = 0
    npeer: int = 0
    preq: int = 0
    eoff: int = 0
    aoff: int = 0
    boff: int = 0
    emit: int = 0
    fuse: int = 0
    abank: int = 0
    bbank: int = 0
    fbank: int = 0
    dnode: int = 0
    dst_x: int = 0
    dst_y: int = 0
    dbuf: int = 0
    dflags: int = 0
    dack_y: int = 0
    dack_x: int = 0
    dmesh: int = 0
    dfin: int = 0

    @property
    def mnemonic(self) -> str:
        """The instruction's name in assembler text."""
        return self.format.name

    @property
    def values(self) -> dict[str, int]:
        """Field values by name."""
        return {name: getattr(self, name) for name in self.format.free}

    def words(self) -> tuple[int, ...]:
        """The one word of 256 bits; `InstructionError` for a value that its field can't hold."""
        return (self.format.pack(self.values),)


class Fill(_ClusterWord, frozen=True, kw_only=True, tag_field="op", tag="FILL"):
    """Stream `n` L1 entries from `addr` into side `sel`, from entry `eoff` of bank `fbank` on."""

    format: ClassVar[Format] = FORMATS["FILL"]
    uses: ClassVar[tuple[str, ...]] = ("addr", "n", "sel", "preq", "eoff", "fbank")


class Gemm(_ClusterWord, frozen=True, kw_only=True, tag_field="op", tag="GEMM"):
    """Sweep `gm x gn` sub-tiles over `nk` K blocks, K outermost.

    Reads A at entry `aoff + g * nk + kb` of bank `abank` and B at `boff + h * nk + kb` of bank `bbank`; the result is
    sub-tile `g * gn + h`. It retires when its sweep starts, so a FILL right after it must go to the other bank.
    """

    format: ClassVar[Format] = FORMATS["GEMM"]
    uses: ClassVar[tuple[str, ...]] = ("acc", "gm", "gn", "nk", "anchor", "aoff", "boff", "abank", "bbank")


class Drain(_ClusterWord, frozen=True, kw_only=True, tag_field="op", tag="DRAIN"):
    """Write `n` sub-tiles in order: as saturating fp16 to `addr`, or, with `dnode`, to a unit."""

    format: ClassVar[Format] = FORMATS["DRAIN"]
    uses: ClassVar[tuple[str, ...]] = (
        "addr",
        "n",
        "dnode",
        "dst_x",
        "dst_y",
        "dbuf",
        "dflags",
        "dack_y",
        "dack_x",
        "dmesh",
        "dfin",
    )


ClusterInstruction: TypeAlias = Fill | Gemm | Drain
"""What a cluster executes."""

_BY_OPCODE: Final[dict[int, type[Fill] | type[Gemm] | type[Drain]]] = {1: Fill, 2: Gemm, 3: Drain}


def decode_cluster(word: int) -> ClusterInstruction:
    """The instruction of a 256-bit word; `InstructionError` for an unknown opcode or a reserved bit that is set."""
    op = OPCODE.extract(word)
    if op not in _BY_OPCODE:
        raise InstructionError(
            f"cluster word {word:#066x}: opcode {op} in {OPCODE.bits} is unknown; a cluster has 1 FILL, 2 GEMM, 3 DRAIN"
        )
    kind = _BY_OPCODE[op]
    return kind(**kind.format.unpack(word))
