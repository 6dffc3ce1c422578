"""Assembler text: one line an instruction, `MNEMONIC field=value ...`.

`#` or `;` starts a comment. A value is a number (`12`, `-3`, `0x1F`, `0b101`) or one of the field's names; a field
that is left out has its default. `.unit MG` or `.unit VC` says whose program it is. In a program for `VC` the vector
core's own instructions may stand beside `IMEM`, `DESC` and `RUN`: they become the `IMEM` payloads that write them,
from word 0 of instruction memory on, or from where the last `.at WORD` says. `DESC` takes `stride` and `bound` in
place of `value`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from meshwright.targets.ktpu.isa.cluster import FORMATS as CLUSTER
from meshwright.targets.ktpu.isa.cluster import ClusterInstruction, Drain, Fill, Gemm
from meshwright.targets.ktpu.isa.fields import Field, Format, InstructionError
from meshwright.targets.ktpu.isa.payload import DIMENSION, Desc, Imem, Payload, Run
from meshwright.targets.ktpu.isa.payload import FORMATS as PAYLOADS
from meshwright.targets.ktpu.isa.program import Program, Unit
from meshwright.targets.ktpu.isa.vector import KINDS, VectorInstruction, make
from meshwright.targets.ktpu.isa.vector_formats import FORMATS as VECTOR
from meshwright.targets.ktpu.isa.vector_formats import IMMEDIATE

_COMMENT: Final = re.compile(r"[#;].*")
_CLUSTER_KINDS: Final[dict[str, type[Fill] | type[Gemm] | type[Drain]]] = {"FILL": Fill, "GEMM": Gemm, "DRAIN": Drain}


class _Line(NamedTuple):
    number: int
    head: str
    operands: tuple[str, ...]


def assemble(text: str, unit: Unit | None = None, *, source: str = "line") -> Program:
    """The program of assembler text. `source` names the text in messages, as in `gemm.asm:3: ...`.

    Raises `InstructionError`, with line and field, for what is no instruction of the unit, for a value that its field
    can't hold, and where neither `unit` nor a `.unit` line says whose program it is, or they disagree.
    """
    lines = _lines(text)
    chosen = unit
    builder: list[ClusterInstruction | Payload] = []
    at = 0
    for line in lines:
        with _located(source, line.number):
            if line.head == ".UNIT":
                chosen = _unit(line, chosen, bool(builder))
            elif chosen is None:
                raise InstructionError("whose program is this? start it with `.unit MG` or `.unit VC`")
            elif chosen == "MG":
                builder.append(_cluster(line))
            elif line.head == ".AT":
                at = _address(line)
            else:
                payloads = _payloads(line, at)
                builder.extend(payloads)
                at = next((p.addr + 1 for p in reversed(payloads) if isinstance(p, Imem)), at)
    if chosen is None:
        raise InstructionError(f"{source}: no instruction and no `.unit MG` or `.unit VC` in it")
    return Program(chosen, tuple(builder))


def assemble_code(text: str, *, source: str = "line") -> tuple[VectorInstruction, ...]:
    """The vector core's instructions of assembler text without payloads; raises as `assemble` does."""
    code: list[VectorInstruction] = []
    for line in _lines(text):
        with _located(source, line.number):
            code.append(_vector(line))
    return tuple(code)


class _located:  # noqa: N801 - reads as a statement
    """Puts source and line in front of an `InstructionError`'s message."""

    def __init__(self, source: str, number: int) -> None:
        self._where = f"{source} {number}" if source == "line" else f"{source}:{number}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InstructionError):
            raise InstructionError(f"{self._where}: {error}") from None


def _lines(text: str) -> list[_Line]:
    found: list[_Line] = []
    for number, whole in enumerate(text.splitlines(), 1):
        words = _COMMENT.sub("", whole).split()
        if words:
            found.append(_Line(number, words[0].upper(), tuple(words[1:])))
    return found


def _unit(line: _Line, chosen: Unit | None, late: bool) -> Unit:
    named = line.operands[0].upper() if len(line.operands) == 1 else ""
    if named not in ("MG", "VC"):
        raise InstructionError(f".unit takes MG or VC; got {' '.join(line.operands) or 'nothing'}")
    if chosen not in (None, named):
        raise InstructionError(f".unit {named}, but the program is for {chosen}")
    if late:
        raise InstructionError(".unit comes before the first instruction")
    return named


def _address(line: _Line) -> int:
    field = PAYLOADS["IMEM"].free["addr"]
    if len(line.operands) != 1:
        raise InstructionError(f".at takes one word of instruction memory; got {' '.join(line.operands) or 'nothing'}")
    address = _value(".at", field, line.operands[0])
    low, high = field.limits
    if not low <= address <= high:
        raise InstructionError(f".at {address}: instruction memory has words {low} to {high}")
    return address


def _cluster(line: _Line) -> ClusterInstruction:
    if line.head not in _CLUSTER_KINDS:
        raise InstructionError(f"{line.head!r} is no instruction of MG, which has {', '.join(_CLUSTER_KINDS)}")
    values = _values(line, CLUSTER[line.head].free)
    CLUSTER[line.head].check(values)
    return _CLUSTER_KINDS[line.head](**values)


def _payloads(line: _Line, at: int) -> list[Payload]:
    if line.head in KINDS:
        payloads: list[Payload] = []
        for word in _vector(line).words():
            payloads.append(Imem(addr=at + len(payloads), word=word))
        for payload in payloads:
            payload.words()  # past the end of instruction memory?
        return payloads
    if line.head not in PAYLOADS:
        raise InstructionError(
            f"{line.head!r} is no payload of VC, which has {', '.join(PAYLOADS)}, and none of its instructions"
        )
    if line.head == "DESC":
        return [_descriptor(line)]
    format_ = PAYLOADS[line.head]
    values = _values(line, format_.free)
    format_.check(values)
    return [Imem(**values) if line.head == "IMEM" else Run(**values)]


def _descriptor(line: _Line) -> Desc:
    format_ = PAYLOADS["DESC"]
    values = _values(line, format_.free | DIMENSION.free)
    dimension = {name: values.pop(name) for name in DIMENSION.free if name in values}
    if dimension:
        if "value" in values:
            raise InstructionError("DESC: field value is given, and so are stride or bound, which make it up")
        if not values.get("fld"):
            raise InstructionError("DESC: stride and bound are a dimension's: fld=dim0 to dim3")
        values["value"] = DIMENSION.pack(dimension)
    format_.check(values)
    desc = Desc(**values)
    desc.words()
    return desc


def _vector(line: _Line) -> VectorInstruction:
    if line.head not in KINDS:
        raise InstructionError(f"{line.head!r} is no instruction of the vector core")
    return make(line.head, _values(line, _free(VECTOR[line.head])))


def _free(format_: Format) -> dict[str, Field]:
    return format_.free | IMMEDIATE.free if format_.name == "VSETI" else format_.free


def _values(line: _Line, fields: dict[str, Field]) -> dict[str, int]:
    values: dict[str, int] = {}
    for operand in line.operands:
        name, equals, text = operand.partition("=")
        if not equals or not text:
            raise InstructionError(f"{line.head}: {operand!r} is not field=value")
        if name not in fields:
            raise InstructionError(f"{line.head} has no field {name!r}; it has {', '.join(fields) or 'none'}")
        if name in values:
            raise InstructionError(f"{line.head}: field {name} is given twice")
        values[name] = _value(f"{line.head}: field {name}", fields[name], text)
    return values


def _value(what: str, field: Field, text: str) -> int:
    if text and text.upper() in (name.upper() for name in field.names):
        return [name.upper() for name in field.names].index(text.upper())
    try:
        return int(text, 0)
    except ValueError:
        names = ", ".join(name for name in field.names if name)
        known = f" and none of {names}" if names else ""
        raise InstructionError(f"{what}: {text!r} is no number{known}") from None
