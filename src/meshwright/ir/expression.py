"""`Expr`: the closed algebra of elementwise arithmetic. An operation outside it can't be written down.

A tree of operands, constants and the primitives that a vector lane has; everything else (`exp`, `gelu`, ...) is a
function in `library` that builds such a tree. Equal subtrees are one value: readers of a tree compute them once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import force_setattr

from meshwright.errors import GraphError
from meshwright.ir.formats import ElementType
from meshwright.ir.nesting import MOST_DEPTH, nesting_fault


class UnaryOp(StrEnum):
    """Primitives of one operand."""

    NEG = "neg"
    ABS = "abs"
    EXP2 = "exp2"
    LOG2 = "log2"
    RECIPROCAL = "reciprocal"
    RSQRT = "rsqrt"
    NOT = "not"
    """Of a predicate."""


class BinaryOp(StrEnum):
    """Primitives of two operands; `LT`, `GT`, `EQ` make predicates, `AND`, `OR` combine them."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    MAX = "max"
    MIN = "min"
    LT = "lt"
    GT = "gt"
    EQ = "eq"
    AND = "and"
    OR = "or"


COMPARISONS = frozenset({BinaryOp.LT, BinaryOp.GT, BinaryOp.EQ})
PREDICATE_OPS = frozenset({BinaryOp.AND, BinaryOp.OR})


class Special(StrEnum):
    """Constants that JSON has no number for, and the zero that equals the other one but isn't it."""

    INFINITY = "inf"
    NEGATIVE_INFINITY = "-inf"
    NAN = "nan"
    NEGATIVE_ZERO = "-0.0"


class Node(Struct, frozen=True, forbid_unknown_fields=True, tag_field="node"):
    """What all nodes share: operators that build bigger trees, so that library functions read like formulas."""

    def __add__(self, other: Expr | float) -> Expr:
        return Binary(BinaryOp.ADD, as_expr(self), as_expr(other))

    def __radd__(self, other: float) -> Expr:
        return Binary(BinaryOp.ADD, as_expr(other), as_expr(self))

    def __sub__(self, other: Expr | float) -> Expr:
        return Binary(BinaryOp.SUB, as_expr(self), as_expr(other))

    def __rsub__(self, other: float) -> Expr:
        return Binary(BinaryOp.SUB, as_expr(other), as_expr(self))

    def __mul__(self, other: Expr | float) -> Expr:
        return Binary(BinaryOp.MUL, as_expr(self), as_expr(other))

    def __rmul__(self, other: float) -> Expr:
        return Binary(BinaryOp.MUL, as_expr(other), as_expr(self))

    def __neg__(self) -> Expr:
        return Unary(UnaryOp.NEG, as_expr(self))

    def __lt__(self, other: Expr | float) -> Expr:
        return Binary(BinaryOp.LT, as_expr(self), as_expr(other))

    def __gt__(self, other: Expr | float) -> Expr:
        return Binary(BinaryOp.GT, as_expr(self), as_expr(other))


class Operand(Node, frozen=True, tag="operand"):
    """The element of operand number `index`."""

    index: int


class Constant(Node, frozen=True, tag="constant"):
    """The same number everywhere; a machine rounds it into its working format.

    value: any float; those that have a name in `Special` are kept by it, so that equal constants are the same one.
    """

    value: float | Special

    def __post_init__(self) -> None:
        if not isinstance(self.value, Special):
            force_setattr(self, "value", _canonical(float(self.value)))

    @property
    def number(self) -> float:
        """The value as a float."""
        return float(self.value.value) if isinstance(self.value, Special) else float(self.value)


def _canonical(value: float) -> float | Special:
    if math.isnan(value):
        return Special.NAN
    if math.isinf(value):
        return Special.INFINITY if value > 0 else Special.NEGATIVE_INFINITY
    return Special.NEGATIVE_ZERO if value == 0 and math.copysign(1.0, value) < 0 else value


class Unary(Node, frozen=True, tag="unary"):
    """A primitive of one operand."""

    op: UnaryOp
    a: Expr


class Binary(Node, frozen=True, tag="binary"):
    """A primitive of two operands."""

    op: BinaryOp
    a: Expr
    b: Expr


class MultiplyAdd(Node, frozen=True, tag="multiply_add"):
    """`a * b + c` with one rounding, as a vector lane does it."""

    a: Expr
    b: Expr
    c: Expr


class Select(Node, frozen=True, tag="select"):
    """`a` where the predicate holds, else `b`."""

    predicate: Expr
    a: Expr
    b: Expr


class Cast(Node, frozen=True, tag="cast"):
    """Rounds into `format` and goes on in the working format."""

    a: Expr
    format: ElementType


Expr = Operand | Constant | Unary | Binary | MultiplyAdd | Select | Cast


def as_expr(value: Expr | Node | float) -> Expr:
    """A node as it is, a number as a constant."""
    if isinstance(value, (Operand, Constant, Unary, Binary, MultiplyAdd, Select, Cast)):
        return value
    if isinstance(value, Node):
        raise TypeError(f"{type(value).__name__} is not an expression node")
    return Constant(value)


def children(expr: Expr) -> tuple[Expr, ...]:
    """The nodes directly below, in the order of their fields."""
    match expr:
        case Operand() | Constant():
            return ()
        case Unary(_, a) | Cast(a, _):
            return (a,)
        case Binary(_, a, b):
            return (a, b)
        case MultiplyAdd(a, b, c) | Select(a, b, c):
            return (a, b, c)


def is_predicate(expr: Expr) -> bool:
    """Whether the node's value is a predicate (true or false) rather than a number."""
    if isinstance(expr, Binary):
        return expr.op in COMPARISONS or expr.op in PREDICATE_OPS
    return isinstance(expr, Unary) and expr.op is UnaryOp.NOT


def size_fault(expr: Expr) -> str | None:
    """Why the tree is too deep or too large for a graph, or None where it isn't."""
    return nesting_fault(expr, children)


def walk(expr: Expr) -> Iterator[Expr]:
    """Every distinct node, each after the nodes below it. Raises `GraphError` for a tree that has a `size_fault`."""
    fault = size_fault(expr)
    if fault is not None:
        raise GraphError(f"an expression {fault}")
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(expr, False)]
    while stack:
        node, ready = stack.pop()
        if node in seen:
            continue
        if ready:
            seen.add(node)
            yield node
        else:
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(children(node)))


def operands(expr: Expr) -> frozenset[int]:
    """The operand numbers that the tree reads."""
    return frozenset(node.index for node in walk(expr) if isinstance(node, Operand))


def substitute(expr: Expr, replace: Callable[[Operand], Expr]) -> Expr:
    """The tree with each operand replaced by what `replace` gives for it."""
    done: dict[Expr, Expr] = {}
    for node in walk(expr):
        match node:
            case Operand():
                done[node] = replace(node)
            case Constant():
                done[node] = node
            case Unary(op, a):
                done[node] = Unary(op, done[a])
            case Cast(a, format_):
                done[node] = Cast(done[a], format_)
            case Binary(op, a, b):
                done[node] = Binary(op, done[a], done[b])
            case MultiplyAdd(a, b, c):
                done[node] = MultiplyAdd(done[a], done[b], done[c])
            case Select(p, a, b):
                done[node] = Select(done[p], done[a], done[b])
    return done[expr]


def type_fault(expr: Expr) -> str | None:
    """Why the tree mixes up predicates and numbers, or None where it doesn't."""
    for node in walk(expr):
        wanted = _wanted_predicates(node)
        for child, wants in zip(children(node), wanted, strict=True):
            if is_predicate(child) != wants:
                found, needed = ("a predicate", "a number") if is_predicate(child) else ("a number", "a predicate")
                return f"{show(node)} takes {needed} where it is given {found}: {show(child)}"
    return None


def _wanted_predicates(node: Expr) -> tuple[bool, ...]:
    if isinstance(node, Select):
        return (True, False, False)
    takes = (isinstance(node, Binary) and node.op in PREDICATE_OPS) or (
        isinstance(node, Unary) and node.op is UnaryOp.NOT
    )
    return (takes,) * len(children(node))


_INFIX = {
    BinaryOp.ADD: "+",
    BinaryOp.SUB: "-",
    BinaryOp.MUL: "*",
    BinaryOp.LT: "<",
    BinaryOp.GT: ">",
    BinaryOp.EQ: "==",
}


def show(expr: Expr) -> str:
    """The tree as people write it: `($0 * 0.5) + $1`; what is deeper than a graph may hold is left out as `...`."""
    return _show(expr, MOST_DEPTH)


def _show(expr: Expr, levels: int) -> str:
    if not levels:
        return "..."
    below: list[str] = []
    for child in children(expr):  # A comprehension would take a second frame a level.
        below.append(_show(child, levels - 1))
    match expr:
        case Operand(index):
            return f"${index}"
        case Constant():
            return f"{expr.number:.9g}"
        case Binary(op) if op in _INFIX:
            return f"({below[0]} {_INFIX[op]} {below[1]})"
        case Unary(op) | Binary(op):
            name = op.value
        case Cast(_, format_):
            name = format_.value
        case MultiplyAdd():
            name = "multiply_add"
        case Select():
            name = "select"
    return f"{name}({', '.join(below)})"
