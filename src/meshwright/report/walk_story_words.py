"""The instruction words of a walk, field by field, and a flit as it lies in staging memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from meshwright.machine import Coord
from meshwright.report.document import Heading, Listing, Part, Rows, Text
from meshwright.report.walk import UnitProgram, Walk
from meshwright.report.walk_exchange import Kick
from meshwright.report.walk_story_text import aligned, counted, wide_hex
from meshwright.targets.ktpu.isa.cluster import OPCODE, WORD_BITS, ClusterInstruction, Drain, Fill, Gemm
from meshwright.targets.ktpu.isa.disassembler import line_of
from meshwright.targets.ktpu.isa.fields import Field
from meshwright.targets.ktpu.isa.flit import HEADER, PAYLOAD_BITS, FlitType

_MOST_WORDS: Final = 12
_HEXADECIMAL: Final = ("addr", "dfin")


def programs(walked: Walk, whole: bool) -> Iterator[Part]:
    """What each cluster was sent: disassembly, words, fields."""
    yield Heading("7. The programs")
    total = sum(len(program.words) for program in walked.programs)
    yield Text(
        f"{counted(len(walked.programs), 'program')} of {counted(total, 'word')} in all, read out of staging memory as "
        "it was written. FILL streams entries into L1 and quantises them on the way; GEMM sweeps; DRAIN rounds the "
        "resident tile to fp16 and writes it. A field that isn't shown has its default."
    )
    first, *others = walked.programs
    yield from _program(first, whole)
    yield from _fields(first)
    alike = [program for program in others if _shape(program) == _shape(first)]
    for program in others:
        if whole or program not in alike:
            yield from _program(program, whole)
    if alike and not whole:
        places = ", ".join(f"({program.at[0]}, {program.at[1]})" for program in alike)
        yield Text(
            f"And {counted(len(alike), 'cluster')} like it, at {places}: the same words but for the addresses of what "
            "is streamed in and drained."
        )


def _shape(program: UnitProgram) -> tuple[str, ...]:
    """The program without its addresses."""
    return tuple(
        " ".join(part for part in line_of(word).split() if not part.startswith("addr=")) for word in _cluster(program)
    )


def _cluster(program: UnitProgram) -> list[ClusterInstruction]:
    return [word for word in program.program.words if isinstance(word, (Fill, Gemm, Drain))]


def _program(program: UnitProgram, whole: bool) -> Iterator[Part]:
    yield Text(f"The cluster at ({program.at[0]}, {program.at[1]}), {counted(len(program.words), 'word')}:")
    shown = list(enumerate(zip(_cluster(program), program.words, strict=True)))
    left = 0
    if not whole and len(shown) > _MOST_WORDS:
        left = len(shown) - _MOST_WORDS
        shown = [*shown[: _MOST_WORDS - 2], *shown[-2:]]
    lines: list[str] = []
    before = -1
    for number, (word, bits) in shown:
        if number > before + 1:
            lines.append(f"... {left} words more")
        lines += [f"{number:<4}{line_of(word)}", f"    {wide_hex(bits, WORD_BITS)}"]
        if whole:
            lines.append(f"    {' '.join(f'{name}{place}={value}' for name, place, value, _ in fields_of(word, bits))}")
        before = number
    yield Listing("\n".join(lines))


def _fields(program: UnitProgram) -> Iterator[Part]:
    """The fields that the first FILL, GEMM and DRAIN look at."""
    kinds: dict[str, tuple[ClusterInstruction, int]] = {}
    for word, bits in zip(_cluster(program), program.words, strict=True):
        kinds.setdefault(word.mnemonic, (word, bits))
    for word, bits in kinds.values():
        yield Text(f"The fields that this {word.mnemonic} looks at:")
        yield Listing(aligned([("field", "bits", "value", ""), *fields_of(word, bits)]))


def fields_of(word: ClusterInstruction, bits: int) -> list[tuple[str, str, str, str]]:
    """Name, place, value and meaning of each field that an instruction looks at, cut out of the word itself."""
    fields = [OPCODE, *(word.format.free[name] for name in word.uses)]
    return [(field.name, field.bits, _value(field, field.extract(bits), word.mnemonic), field.text) for field in fields]


def _value(field: Field, value: int, mnemonic: str) -> str:
    if field is OPCODE:
        return f"{value} {mnemonic}"
    if field.names:
        return f"{value} {field.names[value]}"
    return f"{value:#x}" if field.name in _HEXADECIMAL else str(value)


def staged(kick: Kick, agent: Coord | None) -> Iterator[Part]:
    """The first slot of a kick: five 64-bit words, header and payload."""
    flit = kick.flits[0]
    words = flit.staged()
    yield Text(
        f"Staging slot {kick.first} as it was written, five words of 64 bits: four of payload, the low one first, and "
        "the header."
    )
    yield Listing(aligned([(f"word {at}", f"{word:#018x}") for at, word in enumerate(words)]))
    yield Text(
        f"The header, bits 287 to 256. The dispatcher puts its own place{_place(agent)} into `src` and `PROG_DST` into "
        "`dst`; the rest goes out as it is. The payload, bits 255 to 0, is the instruction word."
    )
    header = [field for field in HEADER.fields if field.name != "payload"]
    yield Rows(("field", "bits", "value", "meaning"), tuple(_header(field, flit.encode()) for field in header))
    yield Listing(f"payload  {wide_hex(flit.payload, PAYLOAD_BITS)}")


def _place(agent: Coord | None) -> str:
    return "" if agent is None else f", ({agent[0]}, {agent[1]}),"


def _header(field: Field, bits: int) -> tuple[str, ...]:
    value = field.extract(bits)
    named = f"{value} {FlitType(value).name}" if field.name == "type" else str(value)
    return field.name, field.bits, named, field.text
