"""`meshwright asm` and `meshwright disasm`, and the page of the field tables."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshwright.cli import app
from meshwright.targets.ktpu.isa import InstructionError, Program, assemble
from meshwright.targets.ktpu.isa.document import END, START, updated

PAGE = Path(__file__).parents[2] / "docs" / "ktpu" / "instructions.md"
GEMM = """.unit MG
FILL addr=0x3000000000 n=64
FILL addr=0x3000010000 n=64 sel=B
GEMM gm=8 gn=8 nk=8
DRAIN addr=0x3000020000 n=64
"""
CODE = "VSETI imm=0x80\nVSETVL va_sreg=0\nVHALT\n"


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="meshwright")


def answer(*arguments):
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def refusal(*arguments):
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    return result.stderr


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "gemm.asm"
    file.write_text(GEMM)
    return file


def test_text_to_words_to_text(source, tmp_path):
    words = assemble(GEMM).encode()
    assert answer("asm", source) == "".join(f"{word:064x}\n" for word in words)
    for name in ("gemm.hex", "gemm.bin"):
        out = tmp_path / name
        assert answer("asm", source, "-o", out, "--machine", "ktpu-v13p", "--mesh", 3) == ""
        assert answer("disasm", out, "--unit", "MG") == GEMM
    assert (tmp_path / "gemm.bin").read_bytes() == assemble(GEMM).to_bytes()
    assert Program.from_bytes("MG", (tmp_path / "gemm.bin").read_bytes()) == assemble(GEMM)


def test_bare_code(tmp_path):
    file = tmp_path / "code.asm"
    file.write_text(CODE)
    assert answer("asm", file, "--code") == "d0000000\n00000080\nc0000000\nf8000000\n"
    for name in ("code.hex", "code.bin"):
        answer("asm", file, "--code", "-o", tmp_path / name)
        assert answer("disasm", tmp_path / name, "--code") == CODE
    assert refusal("asm", file, "--code", "--unit", "MG").startswith("error: --code is code of a vector core by itself")


def test_hexadecimal_text_may_have_comments(tmp_path):
    file = tmp_path / "words.hex"
    file.write_text("# two words\n0xe0000000 ; one\nf8000000\n")
    assert answer("disasm", file, "--code") == "VBAR\nVHALT\n"


def test_refusals(source, tmp_path):
    bad = tmp_path / "bad.asm"
    bad.write_text(".unit MG\nFILL n=1 sel=2\n")
    assert refusal("asm", bad) == (
        f"error: {bad}:2: FILL: sel = 2 does not fit its 1 bits [201]: 0 to 1; the machine would read 0\n"
    )
    assert (
        refusal("asm", tmp_path / "none.asm")
        == f"error: {tmp_path / 'none.asm'} can't be read: No such file or directory\n"
    )
    assert refusal("asm", source, "--machine", "ktpu-v13p").startswith("error: --machine and --mesh go together")
    assert refusal("asm", source, "--machine", "ktpu-v13p", "--mesh", 2).startswith(
        f"error: {source}: word 0: FILL of 64 entries: address 0x3000000000 is in mesh 3, and the unit is on mesh 2"
    )
    assert refusal("asm", source, "-o", tmp_path / "no" / "where").startswith(
        f"error: {tmp_path / 'no' / 'where'} can't be "
    )


def test_refused_words(source, tmp_path):
    file = tmp_path / "words"

    def refused(data, *options):
        file.write_bytes(data)
        return refusal("disasm", file, *options)

    assert refused(bytes(33), "--unit", "MG") == f"error: {file}: 33 bytes are not whole words of 32\n"
    assert refused(bytes(32), "--unit", "MG").startswith(f"error: {file}: word 0: cluster word 0x0")
    assert refused(b"12\nxyz", "--code") == f"error: {file}:2: 'xyz' is no hexadecimal word\n"
    assert refused(b"123456789", "--code") == f"error: {file}:1: 123456789 has more than 32 bits\n"
    assert refused(b"", "--unit", "MG") == f"error: {file}: no words in it\n"
    assert refused(b"\xff", "--unit", "MG").startswith(f"error: {file} is no text: byte 0 is not UTF-8")
    assert refused(b"1" + b"0" * 63) == (
        "error: the words don't say whose they are: add --unit MG or --unit VC (or --code)\n"
    )


def test_the_page_has_the_field_tables_of_the_declarations():
    page = PAGE.read_text("utf-8")
    assert updated(page) == page, "run: python -m meshwright.targets.ktpu.isa.document docs/ktpu/instructions.md"


def test_a_changed_table_shows():
    page = PAGE.read_text("utf-8")
    assert updated(page.replace("| `gm` | `[199:192]`", "| `gm` | `[199:193]`")) == page


@pytest.mark.parametrize("page", ["", START, END, f"{END}{START}"])
def test_a_page_without_marks_is_refused(page):
    with pytest.raises(InstructionError, match=r"^the page has no lines "):
        updated(page)
