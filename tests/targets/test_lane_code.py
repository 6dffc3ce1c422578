"""Expressions as programs of the vector lane: node by node on the twin, and exactly where nothing rounds."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from meshwright.errors import EvaluationError
from meshwright.evaluate.arithmetic import Typed
from meshwright.evaluate.expression import evaluate_trees
from meshwright.evaluate.real import RealArithmetic
from meshwright.ir import library
from meshwright.ir.expression import (
    Binary,
    BinaryOp,
    Cast,
    Constant,
    MultiplyAdd,
    Operand,
    Select,
    Unary,
    UnaryOp,
    as_expr,
)
from meshwright.ir.formats import ElementType as E
from meshwright.ir.operation import Unit
from meshwright.numerics import lane
from meshwright.numerics.backend import available
from meshwright.numerics.lane_program import execute
from meshwright.targets.ktpu.lane_code import code_of, compile_expressions

A, B, C = Operand(0), Operand(1), Operand(2)
_OPCODES = {
    UnaryOp.NEG: "neg",
    UnaryOp.ABS: "abs",
    UnaryOp.EXP2: "exp2",
    UnaryOp.LOG2: "log2",
    UnaryOp.RECIPROCAL: "inv",
    UnaryOp.RSQRT: "rsqrt",
}


def on_twin(node, values):
    """One node on lane codes, by the numpy twin; predicates are booleans."""
    how = {"backend": "numpy"}
    values = np.broadcast_arrays(*values) if values else []
    match node:
        case Constant():
            return np.asarray(lane.from_fp32(np.float32(node.number), **how))
        case Unary(UnaryOp.NOT):
            return ~values[0]
        case Unary(op):
            return lane.apply(_OPCODES[op], values[0], **how)
        case Binary(BinaryOp.LT | BinaryOp.GT | BinaryOp.EQ as op):
            return lane.compare(op.value, values[0], values[1], **how)
        case Binary(BinaryOp.AND):
            return values[0] & values[1]
        case Binary(BinaryOp.OR):
            return values[0] | values[1]
        case Binary(op):
            return (
                getattr(lane, op.value)(*values, **how)
                if op.value in ("add", "sub", "mul")
                else lane.apply(op.value, values[0], values[1], **how)
            )
        case MultiplyAdd():
            return lane.fma(*values, **how)
        case Select():
            # Choosing is moving, and a move leaves one zero and one nan.
            return np.where(values[0], *(lane.apply("mov", v, **how) for v in values[1:]))
        case Cast(_, format):
            return lane.apply({E.F16: "round_fp16", E.F32: "round_fp32", E.E8M15: "mov"}[format], values[0], **how)


def by_twin(exprs, operands):
    return evaluate_trees(exprs, operands, on_twin)


def compiled(exprs, operands, backend):
    formats = (E.E8M15,)
    code = compile_expressions(tuple(exprs), formats * len(operands), formats * len(exprs))
    return execute(code, tuple(operands), backend=backend)


NODES = [
    *(Unary(op, A) for op in _OPCODES),
    *(Binary(op, A, B) for op in (BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MAX, BinaryOp.MIN)),
    *(Select(Binary(op, A, B), A, C) for op in (BinaryOp.LT, BinaryOp.GT, BinaryOp.EQ)),
    *(Select(Binary(op, A < B, B > C), A, B) for op in (BinaryOp.AND, BinaryOp.OR)),
    Select(Unary(UnaryOp.NOT, A < B), A, B),
    MultiplyAdd(A, B, C),
    *(Cast(A, format) for format in (E.F16, E.F32, E.E8M15)),
    as_expr(-2.5) + A * 0.0,
]
codes = st.one_of(
    st.integers(0, (1 << 24) - 1),
    st.sampled_from([0, 0x800000, 0x7F8000, 0xFF8000, 0x7FC000, 0x3F8000, 0xBF8000, 0x7F7FFF, 0x008000, 0x000001]),
)


@pytest.mark.parametrize("backend", available())
@pytest.mark.parametrize("expr", NODES, ids=lambda e: f"{type(e).__name__}-{getattr(e, 'op', '')}")
def test_every_node_has_the_bits_of_its_instruction(expr, backend) -> None:
    special = np.asarray([0, 0x800000, 0x7F8000, 0xFF8000, 0x7FC000, 0x3F8000, 0xBF8001, 0x7F7FFF, 0x008000], np.uint32)
    random = np.random.default_rng(0).integers(0, 1 << 24, 800).astype(np.uint32)
    triples = np.asarray(list(product(special, repeat=3)), dtype=np.uint32).T
    operands = [np.concatenate([t, np.roll(random, i)]) for i, t in enumerate(triples)]
    (expected,) = by_twin([expr], operands)
    (found,) = compiled([expr], operands, backend)
    np.testing.assert_array_equal(found, np.broadcast_to(expected, found.shape))


@st.composite
def expressions(draw, depth=4):
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        return draw(st.one_of(st.sampled_from([A, B, C]), st.floats(-8, 8, width=16).map(Constant)))
    below = expressions(depth - 1)
    kind = draw(st.sampled_from(["unary", "binary", "binary", "fma", "select", "cast"]))
    match kind:
        case "unary":
            return Unary(draw(st.sampled_from(list(_OPCODES))), draw(below))
        case "binary":
            ops = [BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MAX, BinaryOp.MIN]
            return Binary(draw(st.sampled_from(ops)), draw(below), draw(below))
        case "fma":
            return MultiplyAdd(draw(below), draw(below), draw(below))
        case "select":
            return Select(draw(predicates(depth - 1)), draw(below), draw(below))
        case _:
            return Cast(draw(below), draw(st.sampled_from([E.F16, E.F32, E.E8M15])))


@st.composite
def predicates(draw, depth):
    kind = draw(st.sampled_from(["compare", "compare", "and", "or", "not"])) if depth else "compare"
    if kind == "compare":
        op = draw(st.sampled_from([BinaryOp.LT, BinaryOp.GT, BinaryOp.EQ]))
        return Binary(op, draw(expressions(max(depth - 1, 0))), draw(expressions(max(depth - 1, 0))))
    if kind == "not":
        return Unary(UnaryOp.NOT, draw(predicates(depth - 1)))
    return Binary(BinaryOp(kind), draw(predicates(depth - 1)), draw(predicates(depth - 1)))


@settings(deadline=None, max_examples=150)
@given(st.lists(expressions(), min_size=1, max_size=3), arrays(np.uint32, (3, 9), elements=codes))
def test_random_expressions_have_the_bits_of_the_twin(exprs, operands) -> None:
    expected = by_twin(exprs, list(operands))
    for backend in available():
        for found, wanted in zip(compiled(exprs, operands, backend), expected, strict=True):
            np.testing.assert_array_equal(found, np.broadcast_to(wanted, found.shape))


def holds(predicate, a, b):
    operands = [lane.from_fp32(np.asarray(v, np.float32)) for v in (a, b)]
    (found,) = compiled([Select(predicate, as_expr(1.0), as_expr(0.0))], operands, None)
    return lane.decode(found).astype(bool).tolist()


def test_truth_tables() -> None:
    a, b = [0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 1.0]
    p, q = A > 0.5, B > 0.5
    no = lambda x: Unary(UnaryOp.NOT, x)  # noqa: E731
    both, either = Binary(BinaryOp.AND, p, q), Binary(BinaryOp.OR, p, q)
    assert holds(p, a, b) == [False, False, True, True]
    assert holds(no(p), a, b) == [True, True, False, False]
    assert holds(both, a, b) == [False, False, False, True]
    assert holds(either, a, b) == [False, True, True, True]
    assert holds(Binary(BinaryOp.AND, p, no(q)), a, b) == [False, False, True, False]
    assert holds(Binary(BinaryOp.OR, no(p), q), a, b) == [True, True, False, True]
    assert holds(no(Binary(BinaryOp.AND, both, either)), a, b) == [True, True, True, False]
    assert holds(Binary(BinaryOp.OR, both, no(either)), a, b) == [True, False, False, True]


EXACT = [
    A + B, A - B, A * B, -A, Unary(UnaryOp.ABS, A), library.maximum(A, B), library.minimum(A, B),
    MultiplyAdd(A, B, C), Select(A < B, A, C), Cast(A, E.F16), A * 2.0 - B,
    library.select(Unary(UnaryOp.NOT, A > B), B, 1.0),
]  # fmt: skip


@pytest.mark.parametrize("expr", EXACT, ids=str)
def test_where_nothing_rounds_the_lane_is_real_arithmetic(expr) -> None:
    values = np.random.default_rng(1).integers(-8, 9, (3, 64)).astype(np.float64)
    operands = [lane.from_fp32(v.astype(np.float32)) for v in values]
    (found,) = compiled([expr], operands, None)
    (expected,) = RealArithmetic().elementwise([expr], [Typed(v, E.F32) for v in values], [E.F32], Unit.VECTOR)
    np.testing.assert_array_equal(lane.decode(found), np.broadcast_to(expected, found.shape))


def test_equal_subtrees_are_computed_once() -> None:
    shared = library.exp2(A * B)
    program = compile_expressions((shared + shared * A, shared), (E.F16, E.F16), (E.F16, E.F32))
    assert [i.op for i in program.instructions].count("exp2") == 1


def test_a_constant_is_the_nearest_word() -> None:
    assert code_of(1.0) == 0x3F8000
    assert lane.decode(np.uint32(code_of(0.1))) == pytest.approx(0.1, rel=2**-16)
    assert code_of(float("-inf")) == 0xFF8000


def test_what_the_lane_has_not_got() -> None:
    for exprs, inputs, outputs, message in (
        ((A,), (E.BF16,), (E.F16,), "the vector lane can't load bf16; it has f16, f32, e8m15"),
        ((A,), (E.F16,), (E.FP22,), "the vector lane can't store fp22; it has f16, f32, e8m15"),
        ((Cast(A, E.BF16),), (E.F16,), (E.F16,), "the vector lane can't round to bf16"),
    ):
        with pytest.raises(EvaluationError, match=f"^{re.escape(message)}$"):
            compile_expressions(exprs, inputs, outputs)
