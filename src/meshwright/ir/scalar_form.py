"""Form rules of a `ScalarBody`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.ir.records import Buffer
from meshwright.ir.scalar import (
    MOST_STEPS,
    Arithmetic,
    Choose,
    Number,
    ReadElement,
    Register,
    Repeat,
    ScalarBody,
    ScalarExpr,
    SetRegister,
    Statement,
    WriteElement,
)


def scalar_faults(body: ScalarBody, ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Iterator[str]:
    """Registers, ports and the bound on steps."""
    if not outs:
        yield "a Scalar stage without outputs does nothing"
    if not 0 <= body.registers <= 256:
        yield f"{body.registers} registers; 0 to 256 are possible"
        return
    for statement in body.statements:
        yield from _statement_faults(statement, body.registers, len(ins), len(outs))
    if body.steps() > MOST_STEPS:
        yield f"takes more than {MOST_STEPS} steps a firing, which is the most that is possible"


def _statement_faults(statement: Statement, registers: int, ins: int, outs: int) -> Iterator[str]:
    written: list[int] = []
    exprs: list[ScalarExpr] = []
    match statement:
        case SetRegister(register, value):
            written, exprs = [register], [value]
        case ReadElement(register, port, position, output):
            written, exprs = [register], [position]
            if not 0 <= port < (outs if output else ins):
                yield f"reads {'output' if output else 'input'} port {port}, which isn't there"
        case WriteElement(port, position, value):
            exprs = [position, value]
            if not 0 <= port < outs:
                yield f"writes output port {port}, and there are {outs}"
        case Repeat(register, count, inner):
            written = [register]
            if count < 0:
                yield f"repeats {count} times"
            for below in inner:
                yield from _statement_faults(below, registers, ins, outs)
    for number in (n for e in exprs for n in _numbers(e)):
        if not -(1 << 63) <= number < 1 << 63:
            yield "names a number that doesn't fit 64 bits"
    read = [r for e in exprs for r in _registers(e)]
    for register in (*written, *read):
        if not 0 <= register < registers:
            yield f"names register {register}, and there are {registers}"


def _numbers(expr: ScalarExpr) -> Iterator[int]:
    match expr:
        case Number(value):
            yield value
        case Arithmetic(_, a, b):
            yield from _numbers(a)
            yield from _numbers(b)
        case Choose(c, a, b):
            for part in (c, a, b):
                yield from _numbers(part)
        case _:
            return


def _registers(expr: ScalarExpr) -> Iterator[int]:
    match expr:
        case Register(index):
            yield index
        case Arithmetic(_, a, b):
            yield from _registers(a)
            yield from _registers(b)
        case Choose(c, a, b):
            for part in (c, a, b):
                yield from _registers(part)
        case _:
            return
