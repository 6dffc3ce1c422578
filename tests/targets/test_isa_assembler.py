"""Assembler text: what it says, that disassembly assembles to the same words, and errors by line and field."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.machine import load
from meshwright.targets.ktpu.isa import (
    Desc,
    Drain,
    Fill,
    Gemm,
    Imem,
    InstructionError,
    Program,
    Run,
    assemble,
    assemble_code,
    check_program,
    decode_cluster,
    decode_payload,
    disassemble,
    disassemble_code,
    encode_code,
    load_code,
)
from meshwright.targets.ktpu.isa.vector import KINDS, Alu, Halt, SetImmediate, SetMode, decode_code, make
from meshwright.targets.ktpu.isa.vector_formats import FORMATS, Mode, Source


def drawn(format_):
    return {name: st.integers(*field.limits) for name, field in format_.free.items()}


def cluster_words(kind):
    return st.builds(kind, **drawn(kind.format))


clusters = st.one_of(cluster_words(Fill), cluster_words(Gemm), cluster_words(Drain))
vectors = st.one_of(
    *(
        st.fixed_dictionaries(
            drawn(FORMATS[name]) | ({"imm": st.integers(0, (1 << 24) - 1)} if name == "VSETI" else {})
        ).map(lambda values, name=name: make(name, values))
        for name in KINDS
    )
)
payloads = st.one_of(
    st.builds(Imem, addr=st.integers(0, 511), word=st.integers(0, (1 << 32) - 1)),
    st.builds(Desc.base, st.integers(0, 7), st.integers(0, (1 << 40) - 1)),
    st.builds(
        Desc.dim,
        st.integers(0, 7),
        st.integers(0, 3),
        stride=st.integers(-(1 << 17), (1 << 17) - 1),
        bound=st.integers(0, 65535),
    ),
    st.builds(Run, pc=st.integers(0, 511)),
)
vector_programs = st.lists(
    st.one_of(
        payloads.map(lambda payload: (payload,)),
        st.builds(load_code, st.lists(vectors, max_size=5), at=st.integers(0, 500)),
    ),
    max_size=6,
).map(lambda parts: Program("VC", tuple(payload for part in parts for payload in part)))


@given(st.lists(clusters, max_size=4))
@settings(max_examples=50, deadline=None)
def test_cluster_programs_round_trip(words):
    program = Program("MG", tuple(words))
    assert assemble(disassemble(program)) == program
    assert Program.decode("MG", program.encode()) == program
    assert Program.from_bytes("MG", program.to_bytes()) == program
    assert msgspec.json.decode(msgspec.json.encode(program), type=Program) == program


@given(vector_programs)
@settings(max_examples=100, deadline=None)
def test_vector_programs_round_trip(program):
    assert assemble(disassemble(program)).encode() == program.encode()
    assert Program.from_bytes("VC", program.to_bytes()) == program
    assert msgspec.json.decode(msgspec.json.encode(program), type=Program) == program


@given(st.lists(vectors, max_size=10))
@settings(max_examples=100, deadline=None)
def test_code_round_trips(code):
    code = tuple(code)
    assert decode_code(encode_code(code)) == code
    assert assemble_code(disassemble_code(code)) == code
    for instruction in code:
        assert msgspec.json.decode(msgspec.json.encode(instruction), type=type(instruction)) == instruction


def test_names_numbers_and_comments():
    text = """
    .unit MG   # whose
    fill addr=0x30_0000_0000 n=0b101 sel=b   ; a comment
       GEMM gm=2 gn=0x3
    # nothing
    """
    assert assemble(text) == Program("MG", (Fill(addr=0x3000000000, n=5, sel=1), Gemm(gm=2, gn=3)))


def test_the_text_of_a_cluster_program():
    program = Program(
        "MG", (Fill(addr=0x100, n=3, sel=1), Gemm(gm=1, gn=2), Drain(addr=2, n=2, dnode=1, dbuf=2, dmesh=2, dfin=0x12))
    )
    assert disassemble(program) == (
        ".unit MG\nFILL addr=0x100 n=3 sel=B\nGEMM gm=1 gn=2\nDRAIN addr=0x2 n=2 dnode=1 dbuf=2 dmesh=2 dfin=0x12\n"
    )


def test_the_text_of_a_vector_program():
    code = (SetImmediate(imm=128), SetMode(mode=Mode.TREE), Alu(op="VADD", sc=Source.K, vc=1, vd=3), Halt())
    program = Program(
        "VC",
        (
            *load_code(code, at=8),
            Imem(addr=3, word=0x1),
            Desc.base(1, 64),
            Desc.dim(1, 0, stride=-32, bound=0),
            Run(pc=8),
        ),
    )
    assert disassemble(program) == (
        ".unit VC\n.at 8\nVSETI imm=0x80\nVSETMODE mode=TREE\nVADD sc=K vd=3 vc=1\nVHALT\nIMEM addr=3 word=0x00000001\n"
        "DESC ad=1 fld=base value=0x40\nDESC ad=1 fld=dim0 stride=-32 bound=0\nRUN pc=8\n"
    )


def test_half_a_vseti_stays_a_word():
    program = Program("VC", (Imem(addr=4, word=SetImmediate(imm=1).words()[0]), Run()))
    assert disassemble(program) == ".unit VC\nIMEM addr=4 word=0xd0000000\nRUN pc=0\n"
    beside = Program("VC", (Imem(addr=4, word=0xD0000000), Imem(addr=6, word=1)))
    assert disassemble(beside) == ".unit VC\nIMEM addr=4 word=0xd0000000\nIMEM addr=6 word=0x00000001\n"


def test_the_example_of_the_page():
    page = (Path(__file__).parents[2] / "docs" / "ktpu" / "instructions.md").read_text("utf-8")
    text = page.split("```text\n")[1].split("```")[0]
    program = assemble(text)
    check_program(program, load("ktpu-v13p"), 2)
    assert assemble(disassemble(program)) == program


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            ".unit MG\nFILL n=70000",
            "2: FILL: n = 70000 does not fit its 16 bits [217:202]: 0 to 65535; the machine would read 4464",
        ),
        (".unit MG\n\nFILL sel=C", "3: FILL: field sel: 'C' is no number and none of A, B"),
        (".unit MG\nFILL n=1x", "2: FILL: field n: '1x' is no number"),
        (".unit MG\nFILL m=1", "2: FILL has no field 'm'; it has addr, n, sel,"),
        (".unit MG\nFILL n=1 n=1", "2: FILL: field n is given twice"),
        (".unit MG\nFILL n", "2: FILL: 'n' is not field=value"),
        (".unit MG\nFILL n=", "2: FILL: 'n=' is not field=value"),
        (".unit MG\nVADD", "2: 'VADD' is no instruction of MG, which has FILL, GEMM, DRAIN"),
        (".unit VC\nFILL", "2: 'FILL' is no payload of VC, which has IMEM, DESC, RUN, and none of its instructions"),
        (".unit VC\nVADD vd=16", "2: VADD: vd = 16 does not fit its 4 bits [20:17]: 0 to 15; the machine would read 0"),
        (".unit VC\nVLD vd=0", "2: VLD: field ad is missing, and it has no default"),
        (".unit VC\nVSETI", "2: VSETI immediate: field imm is missing, and it has no default"),
        (".unit VC\nVBAR ad=1", "2: VBAR has no field 'ad'; it has none"),
        (".unit VC\n.at 512", "2: .at 512: instruction memory has words 0 to 511"),
        (".unit VC\n.at", "2: .at takes one word of instruction memory; got nothing"),
        (".unit VC\n.at x", "2: .at: 'x' is no number"),
        (".unit VC\n.at 511\nVSETI imm=1", "3: IMEM: addr = 512 does not fit its 9 bits [251:243]: 0 to 511;"),
        (".unit VC\nDESC ad=0 fld=base stride=1", "2: DESC: stride and bound are a dimension's: fld=dim0 to dim3"),
        (
            ".unit VC\nDESC ad=0 fld=dim0 stride=1 value=2",
            "2: DESC: field value is given, and so are stride or bound, which make it up",
        ),
        (
            ".unit VC\nDESC ad=0 fld=dim0 stride=131072",
            "2: dimension: stride = 131072 does not fit its 18 bits [33:16]",
        ),
        (".unit VC\nDESC ad=0 fld=6 value=2", "2: DESC: fld = 6; a descriptor has a base, 0, and dimensions, 1 to 4"),
        (".unit VC\nRUN pc=512", "2: RUN: pc = 512 does not fit its 9 bits"),
        ("FILL n=1", "1: whose program is this? start it with `.unit MG` or `.unit VC`"),
        (".unit XX", "1: .unit takes MG or VC; got XX"),
        (".unit MG\n.unit VC", "2: .unit VC, but the program is for MG"),
        (".unit MG\nGEMM\n.unit MG", "3: .unit comes before the first instruction"),
    ],
)
def test_errors_name_line_and_field(text, message):
    with pytest.raises(InstructionError) as refused:
        assemble(text, source="x.asm")
    assert str(refused.value).startswith(f"x.asm:{message}")


def test_a_text_without_a_unit_is_none():
    with pytest.raises(InstructionError) as refused:
        assemble("# nothing", source="x.asm")
    assert str(refused.value) == "x.asm: no instruction and no `.unit MG` or `.unit VC` in it"
    assert assemble("# nothing", "MG") == Program("MG", ())


def test_code_is_the_vector_cores_only():
    with pytest.raises(InstructionError) as refused:
        assemble_code("VBAR\nRUN pc=0")
    assert str(refused.value) == "line 2: 'RUN' is no instruction of the vector core"


# Programs and words that are none.


def test_a_program_is_for_one_kind_of_unit():
    with pytest.raises(InstructionError) as refused:
        Program("VC", (Run(), Gemm()))
    assert str(refused.value) == "word 1 of a program for VC is Gemm; VC takes Imem, Desc, Run"
    with pytest.raises(InstructionError, match=r"^word 0 of a program for MG is Run; MG takes Fill, Gemm, Drain$"):
        Program("MG", (Run(),))
    with pytest.raises(InstructionError, match=r"^there is no unit of type 'MX'; there are MG and VC$"):
        Program("MX", ())


@pytest.mark.parametrize("op", [0, *range(4, 16)])
def test_unknown_opcodes_are_refused(op):
    with pytest.raises(InstructionError) as refused:
        decode_cluster(op << 252)
    assert str(refused.value).endswith(f"opcode {op} in [255:252] is unknown; a cluster has 1 FILL, 2 GEMM, 3 DRAIN")
    with pytest.raises(InstructionError) as refused:
        decode_payload(op << 252)
    assert str(refused.value).endswith(f"opcode {op} in [255:252] is unknown; a vector core has 1 IMEM, 2 DESC, 3 RUN")


def test_a_bad_word_is_named():
    with pytest.raises(InstructionError, match=r"^word 1: FILL: word 0x1\w+ sets reserved bits \[0\], which are zero"):
        Program.decode("MG", [*Fill().words(), Fill().words()[0] | 1])
    with pytest.raises(InstructionError) as refused:
        Program.from_bytes("MG", bytes(33))
    assert str(refused.value) == "a program is words of 32 bytes; got 33 bytes, 1 too many"
    with pytest.raises(
        InstructionError, match=r"^word 0: DESC: fld = 7; a descriptor has a base, 0, and dimensions, 1 to 4$"
    ):
        Program.decode("VC", [2 << 252 | 7 << 246])


def test_a_bad_vector_word_is_named():
    with pytest.raises(InstructionError, match=r"^vector word 1: VBAR: word 0xe0000001 sets reserved bits \[0\]"):
        decode_code([0xE0000000, 0xE0000001])
    with pytest.raises(InstructionError, match=r"^vector word 0: VSETI: its second word, the immediate, is missing$"):
        decode_code([0xD0000000])
    with pytest.raises(
        InstructionError, match=r"^vector word 0: VSETI immediate: word 0x01000000 sets reserved bits \[24\]"
    ):
        decode_code([0xD0000000, 1 << 24])
    with pytest.raises(InstructionError, match=r"^vector word 0: 0x100000000 is not of 32 bits$"):
        decode_code([1 << 32])
    with pytest.raises(InstructionError, match=r"^'VFOO' is no vector instruction; there are VMOV, "):
        make("VFOO", {})
    with pytest.raises(InstructionError, match=r"^'VLD' is no ALU operation; there are VMOV, "):
        Alu(op="VLD")
