"""Every golden word, both ways, and every declared field against the golden tables."""

import json
from pathlib import Path

import pytest

from meshwright.targets.ktpu.isa import (
    Desc,
    Drain,
    Fill,
    Flit,
    Gemm,
    Imem,
    InstructionError,
    Program,
    Run,
    cluster,
    decode_cluster,
    decode_code,
    decode_payload,
    encode_code,
    flit,
    payload,
    vector_formats,
)
from meshwright.targets.ktpu.isa.flit import FlitType
from meshwright.targets.ktpu.isa.vector import KINDS, make
from meshwright.targets.ktpu.isa.vector_formats import DType, Mode, Reduction, Source

GOLDEN = Path(__file__).parents[1] / "golden"
CLUSTER_WORDS = json.loads((GOLDEN / "ktpu_isa_words.json").read_text())
CLUSTER_ISA = json.loads((GOLDEN / "ktpu_isa.json").read_text())["cluster"]
VECTOR = json.loads((GOLDEN / "ktpu_vector_words.json").read_text())
VECTOR_ISA = json.loads((GOLDEN / "ktpu_vector_isa.json").read_text())
PAYLOADS = [example for example in VECTOR["examples"] if example["name"] in payload.FORMATS]
CODE = [example for example in VECTOR["examples"] if example["name"] in KINDS]


def named(examples):
    return [f"{example['name']}-{i}" for i, example in enumerate(examples)]


def test_there_are_as_many_golden_words_as_were_counted():
    assert (len(CLUSTER_WORDS), len(PAYLOADS), len(CODE)) == (120, 12, 91)


@pytest.mark.parametrize("example", CLUSTER_WORDS, ids=named(CLUSTER_WORDS))
def test_cluster_words(example):
    word = int(example["word"], 16)
    fields = dict(example["fields"])
    fields["addr"] |= fields.pop("addr_hi") << 34
    instruction = decode_cluster(word)
    assert (instruction.mnemonic, instruction.values) == (example["name"], fields)
    assert type(instruction)(**fields).words() == (word,)


def code_values(example):
    """Golden fields as the machine reads them."""
    fields = {name: int(value, 16) if isinstance(value, str) else value for name, value in example["fields"].items()}
    if "to_k" in fields:
        fields["sa"] = 3 * fields.pop("to_k")
    if "offset" in fields:
        # The file states the 14 bits as they were asked for; the field is signed.
        fields["offset"] -= (fields["offset"] >> 13) << 14
    return fields


@pytest.mark.parametrize("example", CODE, ids=named(CODE))
def test_vector_words(example):
    words = tuple(int(word, 16) for word in example["word"].split())
    values = code_values(example)
    assert make(example["name"], values).words() == words
    (instruction,) = decode_code(words)
    assert instruction.mnemonic == example["name"]
    assert instruction.values | ({"imm": instruction.imm} if example["name"] == "VSETI" else {}) == values


@pytest.mark.parametrize("example", PAYLOADS, ids=named(PAYLOADS))
def test_payloads_and_their_flits(example):
    word, fields = int(example["word"], 16), example["fields"]
    match example["name"]:
        case "IMEM":
            made = Imem(addr=fields["addr"], word=int(fields["word"], 16))
        case "DESC":
            made = Desc.dim(fields["ad"], fields["fld"] - 1, stride=fields["stride"], bound=fields["bound"])
            assert made.stride_and_bound == (fields["stride"], fields["bound"])
        case _:
            made = Run(pc=fields["pc"])
    assert made.words() == (word,)
    assert decode_payload(word) == made
    carried = Flit(type=FlitType.CU_INST, txn=VECTOR_ISA["constants"]["CU_TXN"], payload=word)
    assert carried.encode() == int(example["flit_288"], 16)
    assert Flit.decode(int(example["flit_288"], 16)) == carried


@pytest.mark.parametrize("kernel", VECTOR["kernels"], ids=lambda kernel: kernel["name"])
def test_kernels(kernel):
    words = tuple(int(word, 16) for word in kernel["words"])
    assert encode_code(decode_code(words)) == words
    for descriptor in kernel["descriptors"]:
        value = int(descriptor["value"], 16)
        desc = Desc(ad=descriptor["ad"], fld=descriptor["fld"], value=value)
        assert decode_payload(desc.words()[0]) == desc


def runs(format_):
    """Fields as the golden tables have them: one entry a run of bits."""
    found = {}
    for field in format_.fields:
        for suffix, (hi, lo) in zip(("", "_hi"), field.parts, strict=False):
            found[field.name + suffix] = (hi, lo, field.const)
    return found


@pytest.mark.parametrize("golden", CLUSTER_ISA, ids=lambda golden: golden["name"])
def test_cluster_table(golden):
    format_ = cluster.FORMATS[golden["name"]]
    assert runs(format_) == {f["name"]: (f["hi"], f["lo"], f["const"]) for f in golden["fields"]}
    assert format_.bits == golden["width"]
    assert format_.reserved == (1 << golden["padding_low_bits"]) - 1
    defaults = {f["name"]: f["default"] for f in golden["fields"] if f["const"] is None and f["name"] != "addr_hi"}
    assert {name: field.default for name, field in format_.free.items()} == defaults
    assert not any(f["signed"] for f in golden["fields"])


# The golden table has what the makers' encoder takes; these fields have what the decoder reads.
NARROWER = {("VRED", "kind"): (7, 5), ("VSETMODE", "mode"): (14, 13)}


@pytest.mark.parametrize("name", VECTOR_ISA["opcodes"])
def test_vector_table(name):
    format_ = vector_formats.FORMATS[name]
    golden = VECTOR_ISA["formats32"][VECTOR_ISA["opcodes"][name]["format"]]
    expected = {
        f["name"]: NARROWER.get((name, f["name"]), (f["hi"], f["lo"]))
        for f in golden
        if "const" not in f and "word" not in f
    }
    assert {field.name: (field.hi, field.lo) for field in format_.fields} == expected
    signed = {f["name"] for f in golden if f.get("signed")}
    assert {field.name for field in format_.fields if field.signed} == signed
    assert format_.fields[0].const == VECTOR_ISA["opcodes"][name]["code"]
    assert vector_formats.MNEMONICS[VECTOR_ISA["opcodes"][name]["code"]] == name


def test_vector_names():
    constants = VECTOR_ISA["constants"]
    assert {source.name: source.value for source in Source} == constants["SRC"]
    assert {mode.name: mode.value for mode in Mode} == constants["VMODE"]
    assert {kind.name: kind.value for kind in Reduction} == constants["RED"]
    assert {dtype.name: dtype.value for dtype in DType} == constants["DTYPE"]
    assert constants["CU_INST_TYPE"] == FlitType.CU_INST
    assert constants["FLIT_BITS"] == flit.FLIT_BITS


@pytest.mark.parametrize("name", VECTOR_ISA["payload256"])
def test_payload_table(name):
    expected = {f["name"]: (f["hi"], f["lo"], f.get("const")) for f in VECTOR_ISA["payload256"][name]}
    assert runs(payload.FORMATS[name]) == expected


def test_flit_tables():
    tables = {format_.name: format_ for format_ in flit.PAYLOADS} | {"header": flit.HEADER}
    golden = VECTOR_ISA["flit_payloads"] | {"header": VECTOR_ISA["flit288_header"]}
    assert tables.keys() == golden.keys()
    for name, fields in golden.items():
        assert runs(tables[name]) == {f["name"]: (f["hi"], f["lo"], f.get("const")) for f in fields}, name


def test_a_program_whose_addresses_are_moved_is_the_one_with_those_addresses():
    cluster = Program("MG", (Fill(addr=0x40, n=3, sel=1), Gemm(gm=2, gn=2, nk=3, acc=1), Drain(addr=0x99, n=4)))
    moved = cluster.moved({0: (1 << 40) - 1, 2: 0})
    wanted = Program("MG", (Fill(addr=(1 << 40) - 1, n=3, sel=1), Gemm(gm=2, gn=2, nk=3, acc=1), Drain(addr=0, n=4)))
    assert moved == wanted
    assert moved.encode() == wanted.encode()
    core = Program("VC", (Desc.base(3, 1 << 21), Desc.dim(3, 1, stride=-32, bound=9), Run(pc=5)))
    moved = core.moved({0: 0x25_1234_5678})
    wanted = Program("VC", (Desc.base(3, 0x25_1234_5678), *core.words[1:]))
    assert (moved, moved.encode()) == (wanted, wanted.encode())
    for program, at, message in (
        (cluster, {1: 0}, "word 1 is a GEMM, which has no address"),
        (core, {1: 0}, "word 1 is a DESC, which has no address"),
        (cluster, {0: 1 << 40}, r"word 0: address 0x10000000000 does not fit 40 bits"),
        (core, {0: -1}, r"word 0: address -0x1 does not fit 40 bits"),
    ):
        with pytest.raises(InstructionError, match=message):
            program.moved(at)
