"""The field tables as Markdown, out of the declarations: what docs/ktpu/instructions.md has between its marks.

`python -m meshwright.targets.ktpu.isa.document docs/ktpu/instructions.md` brings the page up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from meshwright.targets.ktpu.isa import cluster, flit, payload
from meshwright.targets.ktpu.isa import vector_formats as vector
from meshwright.targets.ktpu.isa.fields import Field, Format, InstructionError

START: Final = "<!-- generated: field tables -->"
END: Final = "<!-- end of the field tables -->"


def field_tables() -> str:
    """All field tables, with headings of the third and fourth level."""
    parts = ["### Cluster words: FILL, GEMM, DRAIN", "", _cluster(), "", "### Payloads of a vector core"]
    for name, format_ in payload.FORMATS.items():
        parts += ["", f"#### {name}", "", _table(format_.fields)]
    parts += ["", "#### The value of a dimension (`DESC` with `fld` 1 to 4)", "", _table(payload.DIMENSION.fields)]
    parts += ["", "#### The base for a drain to a unit", "", _table(vector.PEER_RECORD.fields)]
    parts += ["", "### Words of a vector core", "", "#### Elementwise", "", _operations()]
    parts += ["", _table(vector.FORMATS["VMOV"].fields[1:])]
    for name, format_ in vector.FORMATS.items():
        if name not in vector.ALU_OPS:
            parts += ["", f"#### {name} ({_opcode(format_):#04x})", "", _others(format_)]
    parts += ["", "### Flits", "", "#### Header", "", _table(flit.HEADER.fields)]
    for format_ in flit.PAYLOADS:
        parts += ["", f"#### {format_.name}", "", _table(format_.fields)]
    return "\n".join(parts)


def updated(page: str) -> str:
    """`page` with the field tables of today between its marks; `InstructionError` where it has no marks."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise InstructionError(f"the page has no lines {START!r} and {END!r}, between which the field tables go")
    return f"{before}{START}\n\n{field_tables()}\n\n{END}{after}"


def _opcode(format_: Format) -> int:
    return next(field.const for field in format_.fields if field.const is not None)


def _cluster() -> str:
    formats = list(cluster.FORMATS.values())
    users = {"FILL": cluster.Fill.uses, "GEMM": cluster.Gemm.uses, "DRAIN": cluster.Drain.uses}
    opcodes = ", ".join(f"{_opcode(format_)} {format_.name}" for format_ in formats)
    rows = ["| field | bits | default | used by | meaning |", "|---|---|---|---|---|"]
    rows.append(f"| `op` | `{formats[0].fields[0].bits}` | | all | {opcodes} |")
    for field in formats[0].fields[1:]:
        used = ", ".join(name for name, fields in users.items() if field.name in fields) or "none"
        rows.append(f"| `{field.name}` | `{field.bits}` | {field.default} | {used} | {_meaning(field)} |")
    return "\n".join(rows)


def _operations() -> str:
    rows = ["| opcode | mnemonic | result |", "|---|---|---|"]
    rows += [f"| {op:#04x} | `{name}` | {result} |" for op, (name, result) in enumerate(vector.ALU_OPS.items())]
    return "\n".join(rows)


def _others(format_: Format) -> str:
    fields = format_.fields[1:]
    if format_.name == "VSETI":
        return f"{_table(fields)}\n\nSecond word:\n\n{_table(vector.IMMEDIATE.fields)}"
    return _table(fields) if fields else "No fields."


def _table(fields: Iterable[Field]) -> str:
    rows = ["| field | bits | default | meaning |", "|---|---|---|---|"]
    for field in fields:
        default = f"always {field.const}" if field.const is not None else "" if field.default is None else field.default
        rows.append(f"| `{field.name}` | `{field.bits}` | {default} | {_meaning(field)} |")
    return "\n".join(rows)


def _meaning(field: Field) -> str:
    names = ", ".join(f"{value} {name}" for value, name in enumerate(field.names) if name)
    signed = "signed" if field.signed else ""
    return "; ".join(part for part in (field.text, names, signed) if part)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        page = Path(argument)
        page.write_text(updated(page.read_text("utf-8")), "utf-8")
