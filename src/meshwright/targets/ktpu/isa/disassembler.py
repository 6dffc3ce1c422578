"""Words as assembler text that assembles to the same words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from meshwright.targets.ktpu.isa.cluster import ClusterInstruction
from meshwright.targets.ktpu.isa.fields import Field, InstructionError
from meshwright.targets.ktpu.isa.payload import DIMENSION, Desc, Imem, Payload, Run
from meshwright.targets.ktpu.isa.program import Program
from meshwright.targets.ktpu.isa.vector import SetImmediate, VectorInstruction, decode_at
from meshwright.targets.ktpu.isa.vector_formats import IMMEDIATE

_HEXADECIMAL: Final = frozenset({"addr", "value", "word", "imm", "dfin", "peers"})


def disassemble(program: Program) -> str:
    """The program's text, one line an instruction, with a `.unit` line in front.

    Of a vector core's `IMEM` payloads the instructions are shown that they write; a word that is none stays `IMEM`.
    """
    return "".join(f"{line}\n" for line in (f".unit {program.unit}", *_program_lines(program)))


def disassemble_code(code: Iterable[VectorInstruction]) -> str:
    """The text of a vector core's instructions, one line each."""
    return "".join(f"{_vector(instruction)}\n" for instruction in code)


def line_of(instruction: ClusterInstruction | Payload) -> str:
    """The text of one word of a program."""
    match instruction:
        case Desc():
            return _descriptor(instruction)
        case Imem() | Run():
            values = {name: getattr(instruction, name) for name in instruction.format.free}
            # An address in instruction memory reads better in decimal than one in DRAM does.
            shown = [f"{name}={value:#010x}" if name == "word" else f"{name}={value}" for name, value in values.items()]
            return " ".join((instruction.mnemonic, *shown))
        case _:
            return _line(instruction.mnemonic, instruction.format.free, instruction.values)


def _program_lines(program: Program) -> Iterator[str]:
    at, expected = 0, 0
    while at < len(program.words):
        instruction = program.words[at]
        if not isinstance(instruction, Imem):
            yield line_of(instruction)
            at += 1
            continue
        run = _run(program.words, at)
        decoded = _first_of(run)
        if decoded is None:
            yield line_of(instruction)
            used = 1
        else:
            if instruction.addr != expected:
                yield f".at {instruction.addr}"
            text, used = decoded
            yield text
        at += used
        expected = instruction.addr + used


def _run(words: Sequence[ClusterInstruction | Payload], at: int) -> list[int]:
    """What an instruction that starts at payload `at` may consist of: its word, and the next one if that follows."""
    first, found = words[at], list[int]()
    for next_, payload in enumerate(words[at : at + 2]):
        if isinstance(payload, Imem) and isinstance(first, Imem) and payload.addr == first.addr + next_:
            found.append(payload.word)
        else:
            break
    return found


def _first_of(words: Sequence[int]) -> tuple[str, int] | None:
    try:
        instruction, used = decode_at(words, 0)
    except InstructionError:
        return None
    return _vector(instruction), used


def _vector(instruction: VectorInstruction) -> str:
    fields, values = instruction.format.free, instruction.values
    if isinstance(instruction, SetImmediate):
        fields, values = fields | IMMEDIATE.free, values | {"imm": instruction.imm}
    return _line(instruction.mnemonic, fields, values)


def _descriptor(desc: Desc) -> str:
    fields, values = desc.format.free, {"ad": desc.ad, "fld": desc.fld}
    if desc.fld == 0:
        return _line(desc.mnemonic, fields, values | {"value": desc.value})
    stride, bound = desc.stride_and_bound
    return _line(desc.mnemonic, fields | DIMENSION.free, values | {"stride": stride, "bound": bound}, whole=True)


def _line(mnemonic: str, fields: Mapping[str, Field], values: Mapping[str, int], *, whole: bool = False) -> str:
    stated = {name: value for name, value in values.items() if whole or value != fields[name].default}
    shown = (f"{name}={_shown(fields[name], value)}" for name, value in stated.items())
    return " ".join((mnemonic, *shown))


def _shown(field: Field, value: int) -> str:
    if 0 <= value < len(field.names) and field.names[value]:
        return field.names[value]
    return f"{value:#x}" if field.name in _HEXADECIMAL else str(value)
