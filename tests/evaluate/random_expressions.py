"""Random expressions and scalar programs, and bounds on what they come to."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

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

_FLOATS = [ElementType.F16, ElementType.BF16, ElementType.F32]
_ARITHMETIC = [BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MAX, BinaryOp.MIN]
_SIGNS = [UnaryOp.NEG, UnaryOp.ABS]


def _leaves(count: int) -> st.SearchStrategy[Expr]:
    constants = st.integers(-3, 3).map(lambda n: Constant(float(n)))
    if not count:
        return constants
    return st.one_of(st.integers(0, count - 1).map(Operand), st.integers(0, count - 1).map(Operand), constants)


def _common(inner: st.SearchStrategy[Expr]) -> list[st.SearchStrategy[Expr]]:
    return [
        st.builds(Binary, st.sampled_from(_ARITHMETIC), inner, inner),
        st.builds(Unary, st.sampled_from(_SIGNS), inner),
        st.builds(MultiplyAdd, inner, inner, inner),
        st.builds(Cast, inner, st.sampled_from(_FLOATS)),
    ]


def predicates(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    """Comparisons of `inner`, and logic on them."""
    compared = st.builds(Binary, st.sampled_from([BinaryOp.LT, BinaryOp.GT, BinaryOp.EQ]), inner, inner)
    joined = st.builds(Binary, st.sampled_from([BinaryOp.AND, BinaryOp.OR]), compared, compared)
    return st.one_of(compared, joined, st.builds(Unary, st.just(UnaryOp.NOT), compared))


def exact_exprs(count: int) -> st.SearchStrategy[Expr]:
    """Expressions that give whole numbers for whole numbers."""

    def extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return st.one_of(*_common(inner), st.builds(Select, predicates(inner), inner, inner))

    return st.recursive(_leaves(count), extend, max_leaves=5)


def smooth_exprs(count: int) -> st.SearchStrategy[Expr]:
    """Expressions that don't jump, with the functions that round, kept to arguments where they are tame."""

    def extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        positive = inner.map(lambda e: absolute(e) + 1.0)
        tame = inner.map(lambda e: minimum(maximum(e, -3.0), 3.0))
        rounding = st.sampled_from([UnaryOp.LOG2, UnaryOp.RECIPROCAL, UnaryOp.RSQRT])
        functions = [st.builds(Unary, rounding, positive), st.builds(Unary, st.just(UnaryOp.EXP2), tame)]
        return st.one_of(*_common(inner), *functions)

    return st.recursive(_leaves(count), extend, max_leaves=5)


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


def scalar_programs(size: int, whole: bool) -> st.SearchStrategy[tuple[ScalarBody, int, bool]]:
    """A program over one block of `size` elements, the size of its one output block, and whether that is whole."""
    made = [
        st.just((_reversed(size), size, whole)),
        st.just((_position_of_largest(size), 1, True)),
        st.just((_running_largest(size), size, whole)),
    ]
    if whole:
        made.append(_whole_number_values().map(lambda value: (_each(size, value), size, True)))
    return st.one_of(*made)


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


def _whole_number_values() -> st.SearchStrategy[ScalarExpr]:
    leaves = st.one_of(st.integers(0, 1).map(Register), st.integers(-5, 5).map(Number))
    divisors = st.sampled_from([-3, -2, 2, 3]).map(Number)
    dividing = [ScalarOp.FLOOR_DIVIDE, ScalarOp.MODULO]
    other = [op for op in ScalarOp if op not in dividing]

    def extend(inner: st.SearchStrategy[ScalarExpr]) -> st.SearchStrategy[ScalarExpr]:
        return st.one_of(
            st.builds(Arithmetic, st.sampled_from(other), inner, inner),
            st.builds(Arithmetic, st.sampled_from(dividing), inner, divisors),
            st.builds(Choose, inner, inner, inner),
        )

    return st.recursive(leaves, extend, max_leaves=6)
