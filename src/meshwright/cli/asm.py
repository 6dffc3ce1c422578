"""`meshwright asm` and `meshwright disasm`: assembler text to instruction words of the ktpu card, and back."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from meshwright.errors import UsageError
from meshwright.machine import load
from meshwright.targets.ktpu.isa import (
    InstructionError,
    Program,
    assemble,
    assemble_code,
    check_program,
    decode_code,
    disassemble,
    disassemble_code,
    encode_code,
)
from meshwright.targets.ktpu.isa.cluster import WORD_BITS
from meshwright.targets.ktpu.isa.vector_formats import WORD_BITS as CODE_BITS

_HEX: Final = ".hex"
_COMMENT: Final = re.compile(r"[#;].*")

_Unit = Annotated[
    Literal["MG", "VC"] | None,
    typer.Option("--unit", help="Whose program it is: a matmul cluster's or a vector core's.", show_default=False),
]
_Code = Annotated[
    bool, typer.Option("--code", help="Bare code of a vector core, words of 32 bits, instead of a program.")
]


def asm(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Assembler text.", show_default=False)],
    unit: _Unit = None,
    code: _Code = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the words there: as text to NAME.hex, else binary, little-endian."),
    ] = None,
    machine: Annotated[
        str | None, typer.Option("--machine", help="Check the program against this machine.", show_default=False)
    ] = None,
    mesh: Annotated[
        int | None, typer.Option("--mesh", help="The mesh that it is to run on.", show_default=False)
    ] = None,
) -> None:
    """Assemble instruction words of the ktpu card, one line an instruction.

    [bold]Examples[/bold]

      meshwright asm gemm.asm
      meshwright asm gemm.asm --machine ktpu-v13p --mesh 3 -o gemm.bin
    """
    text = _text(file, _read(file))
    if code:
        if machine is not None or mesh is not None or unit == "MG":
            raise UsageError("--code is code of a vector core by itself; it goes with neither --unit MG nor --machine")
        words, bits = encode_code(assemble_code(text, source=str(file))), CODE_BITS
    else:
        program = assemble(text, unit, source=str(file))
        _check(file, program, machine, mesh)
        words, bits = program.encode(), WORD_BITS
    _write(out, words, bits)


def disasm(
    file: Annotated[
        Path, typer.Argument(metavar="PROGRAM", help="Words: binary, or hexadecimal text.", show_default=False)
    ],
    unit: _Unit = None,
    code: _Code = False,
) -> None:
    """Print the assembler text of instruction words; `meshwright asm` makes the same words of it.

    [bold]Examples[/bold]

      meshwright disasm gemm.bin --unit MG
      meshwright disasm softmax.hex --code
    """
    words = _words(file, CODE_BITS if code else WORD_BITS)
    try:
        if code:
            typer.echo(disassemble_code(decode_code(words)), nl=False)
        elif unit is None:
            raise UsageError("the words don't say whose they are: add --unit MG or --unit VC (or --code)")
        else:
            typer.echo(disassemble(Program.decode(unit, words)), nl=False)
    except InstructionError as problem:
        raise InstructionError(f"{file}: {problem}") from None


def _check(file: Path, program: Program, machine: str | None, mesh: int | None) -> None:
    if machine is None and mesh is None:
        return
    if machine is None or mesh is None:
        raise UsageError("--machine and --mesh go together: what a program may do depends on both")
    try:
        check_program(program, load(machine), mesh)
    except InstructionError as problem:
        raise InstructionError(f"{file}: {problem}") from None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as problem:
        raise UsageError(f"{file} can't be read: {problem.strerror}") from None


def _text(file: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise UsageError(f"{file} is no text: byte {problem.start} is not UTF-8; disasm reads binary words") from None


def _words(file: Path, bits: int) -> list[int]:
    data = _read(file)
    # Every word of a program has zero bytes, and text has none.
    if b"\0" in data:
        size = bits // 8
        if len(data) % size:
            raise UsageError(f"{file}: {len(data)} bytes are not whole words of {size}")
        return [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]
    words: list[int] = []
    for number, line in enumerate(_text(file, data).splitlines(), 1):
        for digits in _COMMENT.sub("", line).split():
            try:
                word = int(digits, 16)
            except ValueError:
                raise UsageError(f"{file}:{number}: {digits!r} is no hexadecimal word") from None
            if not 0 <= word < 1 << bits:
                raise UsageError(f"{file}:{number}: {digits} has more than {bits} bits")
            words.append(word)
    if not words:
        raise UsageError(f"{file}: no words in it")
    return words


def _write(out: Path | None, words: Sequence[int], bits: int) -> None:
    text = "".join(f"{word:0{bits // 4}x}\n" for word in words)
    if out is None:
        typer.echo(text, nl=False)
        return
    data = text.encode() if out.suffix == _HEX else b"".join(word.to_bytes(bits // 8, "little") for word in words)
    try:
        out.write_bytes(data)
    except OSError as problem:
        raise UsageError(f"{out} can't be written: {problem.strerror}") from None
