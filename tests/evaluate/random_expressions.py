"""Random expressions and scalar programs, and bounds on what they come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from meshwright.ir.expression import (
    Binary,
    BinaryOp,
    Cast,
    Constant,
    Expr,
    MultiplyAdd,
    Operand,
    Select,
    Unary,
    UnaryOp,
    is_predicate,
    walk,
)
from meshwright.ir.formats import ElementType
from meshwright.ir.library import absolute, maximum, minimum
from meshwright.ir.scalar import (
    Arithmetic,
    Choose,
    Number,
    ReadElement,
    Register,
    Repeat,
    ScalarBody,
    ScalarExpr,
    ScalarOp,
    SetRegister,
    Statement,
    WriteElement,
)

_DIVIDING = [ScalarOp.FLOOR_DIVIDE, ScalarOp.MODULO]
_FLOATS = [ElementType.F16, ElementType.BF16, ElementType.F32]
_ARITHMETIC = [BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MAX, BinaryOp.MIN]
_SIGNS = [UnaryOp.NEG, UnaryOp.ABS]
_ROUNDING = [UnaryOp.LOG2, UnaryOp.RECIPROCAL, UnaryOp.RSQRT]


def random_expr(random: Random, count: int, exact: bool, leaves: int = 6) -> Expr:
    """An expression over `count` operands with at most so many leaves.

    exact: it gives whole numbers for whole numbers. Otherwise it may round, and doesn't jump: functions are kept to
    arguments where they are tame, and nothing is compared.
    """
    if leaves < 2 or random.random() < 0.15:
        if count and random.random() < 0.75:
            return Operand(random.randrange(count))
        return Constant(float(random.randint(-3, 3)))

    def part(share: int) -> Expr:
        return random_expr(random, count, exact, max(leaves // share, 1))

    options = ["binary", "binary", "binary", "unary", "multiply_add", "cast", "select" if exact else "function"]
    match random.choice(options):
        case "binary":
            return Binary(random.choice(_ARITHMETIC), part(2), part(2))
        case "unary":
            return Unary(random.choice(_SIGNS), part(1))
        case "multiply_add":
            return MultiplyAdd(part(3), part(3), part(3))
        case "cast":
            return Cast(part(1), random.choice(_FLOATS))
        case "select":
            return Select(_predicate(random, part), part(3), part(3))
        case _:
            if random.random() < 0.3:
                return Unary(UnaryOp.EXP2, minimum(maximum(part(1), -3.0), 3.0))
            return Unary(random.choice(_ROUNDING), absolute(part(1)) + 1.0)


def _predicate(random: Random, part: Callable[[int], Expr]) -> Expr:
    def compared() -> Expr:
        return Binary(random.choice([BinaryOp.LT, BinaryOp.GT, BinaryOp.EQ]), part(3), part(6))

    match random.randrange(6):
        case 0:
            return Unary(UnaryOp.NOT, compared())
        case 1:
            return Binary(random.choice([BinaryOp.AND, BinaryOp.OR]), compared(), compared())
        case _:
            return compared()


def bound_of(expr: Expr, operands: Sequence[int]) -> int:
    """A bound on the magnitude of `expr`, and of everything in it, from bounds on its operands'."""
    known: dict[Expr, int] = {}
    for node in walk(expr):
        if is_predicate(node):
            known[node] = max(known[below] for below in _below(node))
        else:
            known[node] = _bound(node, known, operands)
    return known[expr]


def _below(node: Expr) -> tuple[Expr, ...]:
    return (node.a, node.b) if isinstance(node, Binary) else (node.a,)  # type: ignore[union-attr]


def _bound(node: Expr, known: dict[Expr, int], operands: Sequence[int]) -> int:
    match node:
        case Operand(index):
            return operands[index]
        case Constant():
            return int(abs(node.number)) + 1
        case Unary(_, a) | Cast(a, _):
            return max(known[a], 8)
        case Binary(BinaryOp.ADD | BinaryOp.SUB, a, b):
            return known[a] + known[b]
        case Binary(BinaryOp.MUL, a, b):
            return known[a] * known[b]
        case Binary(_, a, b):
            return max(known[a], known[b])
        case MultiplyAdd(a, b, c):
            return known[a] * known[b] + known[c]
        case Select(p, a, b):
            return max(known[p], known[a], known[b])


def scalar_program(random: Random, size: int, whole: bool) -> tuple[ScalarBody, int, bool]:
    """A program over one block of `size` elements, the size of its one output block, and whether that is whole."""
    match random.randrange(6 if whole else 3):
        case 0:
            return _reversed(size), size, whole
        case 1:
            return _position_of_largest(size), 1, True
        case 2:
            return _running_largest(size), size, whole
        case _:
            return _each(size, _whole_number(random, 6)), size, True


def _program(registers: int, *statements: Statement) -> ScalarBody:
    return ScalarBody(registers, statements)


def _reversed(size: int) -> ScalarBody:
    last = Arithmetic(ScalarOp.SUB, Number(size - 1), Register(0))
    return _program(2, Repeat(0, size, (ReadElement(1, 0, Register(0)), WriteElement(0, last, Register(1)))))


def _position_of_largest(size: int) -> ScalarBody:
    """Registers: 0 counts, 1 is the element, 2 the largest so far, 3 where it was."""
    better = Arithmetic(ScalarOp.LESS, Register(2), Register(1))
    turn = (
        ReadElement(1, 0, Register(0)),
        SetRegister(3, Choose(better, Register(0), Register(3))),
        SetRegister(2, Arithmetic(ScalarOp.MAX, Register(2), Register(1))),
    )
    return _program(4, ReadElement(2, 0, Number(0)), Repeat(0, size, turn), WriteElement(0, Number(0), Register(3)))


def _running_largest(size: int) -> ScalarBody:
    """Reads its own output back: each element is the larger of the one before and the input's."""
    before = Arithmetic(ScalarOp.MAX, Arithmetic(ScalarOp.SUB, Register(0), Number(1)), Number(0))
    turn = (
        ReadElement(1, 0, Register(0)),
        ReadElement(2, 0, before, output=True),
        WriteElement(0, Register(0), Arithmetic(ScalarOp.MAX, Register(1), Register(2))),
    )
    return _program(3, Repeat(0, size, turn))


def _each(size: int, value: ScalarExpr) -> ScalarBody:
    """Each element by an expression over register 0, its position, and register 1, the element; modulo 64."""
    small = Arithmetic(ScalarOp.MODULO, value, Number(64))
    turn = (ReadElement(1, 0, Register(0)), WriteElement(0, Register(0), small))
    return _program(2, Repeat(0, size, turn))


def _whole_number(random: Random, leaves: int) -> ScalarExpr:
    if leaves < 2:
        return random.choice([Register(0), Register(1), Register(1), Number(random.randint(-5, 5))])
    inner = _whole_number(random, leaves // 2)
    match random.randrange(4):
        case 0:
            return Choose(inner, _whole_number(random, leaves // 3), _whole_number(random, leaves // 3))
        case 1:
            return Arithmetic(random.choice(_DIVIDING), inner, Number(random.choice([-3, -2, 2, 3])))
        case _:
            others = [op for op in ScalarOp if op not in _DIVIDING]
            return Arithmetic(random.choice(others), inner, _whole_number(random, leaves // 2))
