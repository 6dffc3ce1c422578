"""`ScalarBody`: bounded integer programs for index arithmetic, the argmax of a row, top-k.

Loops have constant trip counts, so every program ends, and its cost is known before it runs. Registers hold whole
numbers or values read from a block; values can be compared, chosen and written, whole numbers also computed with.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from meshwright.ir.nesting import nesting_fault

MOST_STEPS = 1 << 20
"""A body may not take more steps than this a firing."""


class ScalarOp(StrEnum):
    """Operations on two registers' values; comparisons and logic give 1 or 0."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    FLOOR_DIVIDE = "floor_divide"
    MODULO = "modulo"
    MIN = "min"
    MAX = "max"
    LESS = "less"
    LESS_EQUAL = "less_equal"
    EQUAL = "equal"
    AND = "and"
    OR = "or"


class _ScalarNode(Struct, frozen=True, forbid_unknown_fields=True, tag_field="scalar"):
    pass


class Number(_ScalarNode, frozen=True, tag="number"):
    """A whole number."""

    value: int


class Register(_ScalarNode, frozen=True, tag="register"):
    """The value a register holds (0 before anything is set)."""

    index: int


class Arithmetic(_ScalarNode, frozen=True, tag="arithmetic"):
    """Two values combined."""

    op: ScalarOp
    a: ScalarExpr
    b: ScalarExpr


class Choose(_ScalarNode, frozen=True, tag="choose"):
    """`a` where `condition` is not 0, else `b`."""

    condition: ScalarExpr
    a: ScalarExpr
    b: ScalarExpr


ScalarExpr = Number | Register | Arithmetic | Choose


class SetRegister(_ScalarNode, frozen=True, tag="set"):
    """`register = value`."""

    register: int
    value: ScalarExpr


class ReadElement(_ScalarNode, frozen=True, tag="read"):
    """`register = block[position]` of input port `port`, or with `output`, of an output block already written to.

    `position` counts the block's elements row-major.
    """

    register: int
    port: int
    position: ScalarExpr
    output: bool = False


class WriteElement(_ScalarNode, frozen=True, tag="write"):
    """`block[position] = value` of output port `port`; elements never written are 0."""

    port: int
    position: ScalarExpr
    value: ScalarExpr


class Repeat(_ScalarNode, frozen=True, tag="repeat"):
    """Runs `body` `count` times, `register` counting from 0."""

    register: int
    count: int
    body: tuple[Statement, ...]


Statement = SetRegister | ReadElement | WriteElement | Repeat


class ScalarBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A program over `registers` registers that takes one block from each input and gives one to each output."""

    registers: int
    statements: tuple[Statement, ...]

    def steps(self) -> int:
        """How many statements one firing runs; a turn of an empty loop counts as one."""
        return _steps(self.statements)

    def size_fault(self) -> str | None:
        """Why the program is nested too deeply or too large for a graph, or None where it isn't."""
        return nesting_fault(self, _below)


def _below(node: ScalarBody | Statement | ScalarExpr) -> tuple[Statement | ScalarExpr, ...]:
    match node:
        case Number() | Register():
            return ()
        case Arithmetic(_, a, b):
            return (a, b)
        case Choose(condition, a, b):
            return (condition, a, b)
        case SetRegister(_, value):
            return (value,)
        case ReadElement(_, _, position):
            return (position,)
        case WriteElement(_, position, value):
            return (position, value)
        case Repeat(_, _, statements) | ScalarBody(_, statements):
            return statements


def _steps(statements: tuple[Statement, ...]) -> int:
    total = 0
    for statement in statements:
        total += 1
        if isinstance(statement, Repeat):
            total += max(statement.count, 0) * max(_steps(statement.body), 1)
    return total
