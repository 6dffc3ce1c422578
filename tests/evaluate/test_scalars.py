"""Scalar programs: index arithmetic, argmax of a row, top-k, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

from evaluate.one_site import F32, I32, OneSite
from meshwright.errors import EvaluationError
from meshwright.evaluate.real import RealArithmetic
from meshwright.ir.records import Scalar
from meshwright.ir.scalar import (
    Arithmetic,
    Choose,
    Number,
    ReadElement,
    Register,
    Repeat,
    ScalarBody,
    ScalarOp,
    SetRegister,
    WriteElement,
)
from meshwright.targets.grid.arithmetic import GridArithmetic
from meshwright.targets.ktpu.arithmetic import KtpuArithmetic

ARITHMETICS = [RealArithmetic(), KtpuArithmetic(), GridArithmetic()]
ROWS = np.asarray([[1.0, 5.0, 5.0, -2.0], [-1.0, -3.0, -1.5, -0.5], [7.0, 0.0, 7.0, 8.0]], dtype=np.float32)


def r(index):
    return Register(index)


def op(name, a, b):
    return Arithmetic(name, a, b)


def run(body, ins, outs, arithmetic=ARITHMETICS[0]):
    """Results of a program; ins: arrays with one block a row; outs: (elements, element type)."""
    site = OneSite()
    buffers = [site.load(v, (1, v.shape[1]), I32 if v.dtype.kind == "i" else F32) for v in ins]
    results = [site.fifo((1, size), format) for size, format in outs]
    site.builder.stage(Scalar(body), buffers, results)
    firings = len(ins[0]) if ins else 1
    names = [site.store(buffer, (firings, size), format) for buffer, (size, format) in zip(results, outs, strict=True)]
    made = site.run(arithmetic)
    return [made[name] for name in names]


def argmax(size):
    """Register 0 the best value, 1 its position, 2 counts, 3 the candidate."""
    better = op(ScalarOp.LESS, r(0), r(3))
    return ScalarBody(
        4,
        (
            ReadElement(0, 0, Number(0)),
            Repeat(
                2,
                size,
                (
                    ReadElement(3, 0, r(2)),
                    SetRegister(1, Choose(better, r(2), r(1))),
                    SetRegister(0, op(ScalarOp.MAX, r(0), r(3))),
                ),
            ),
            WriteElement(0, Number(0), r(0)),
            WriteElement(1, Number(0), r(1)),
        ),
    )


@pytest.mark.parametrize("arithmetic", ARITHMETICS, ids=lambda a: a.name)
def test_argmax_of_every_row(arithmetic) -> None:
    values, positions = run(argmax(4), [ROWS], [(1, F32), (1, I32)], arithmetic)
    assert values.reshape(-1).tolist() == [5.0, -0.5, 8.0]
    assert positions.reshape(-1).tolist() == [1, 3, 3]
    assert positions.dtype == (np.int64 if arithmetic.name == "real" else np.int32)


def test_top_k_by_insertion_reads_its_outputs_back() -> None:
    k, size = 3, ROWS.shape[1]
    # Outputs hold values and 1 + positions, best first; an element moves in from the back and pushes others on.
    fill = Repeat(0, k, (WriteElement(0, r(0), Number(-1000)), WriteElement(1, r(0), Number(-1))))
    swap = (
        SetRegister(4, op(ScalarOp.SUB, Number(k - 1), r(3))),
        ReadElement(5, 0, r(4), output=True),
        ReadElement(6, 1, r(4), output=True),
        SetRegister(7, op(ScalarOp.LESS, r(5), r(1))),
        WriteElement(0, r(4), Choose(r(7), r(1), r(5))),
        WriteElement(1, r(4), Choose(r(7), r(2), r(6))),
        # What was pushed out goes one place further back, if there is one.
        SetRegister(8, op(ScalarOp.MIN, op(ScalarOp.ADD, r(4), Number(1)), Number(k - 1))),
        SetRegister(9, op(ScalarOp.AND, r(7), op(ScalarOp.LESS, r(4), Number(k - 1)))),
        ReadElement(10, 0, r(8), output=True),
        ReadElement(11, 1, r(8), output=True),
        WriteElement(0, r(8), Choose(r(9), r(5), r(10))),
        WriteElement(1, r(8), Choose(r(9), r(6), r(11))),
    )
    insert = Repeat(2, size, (ReadElement(1, 0, r(2)), Repeat(3, k, swap)))
    values, positions = run(ScalarBody(12, (fill, insert)), [ROWS], [(k, F32), (k, I32)])
    order = [sorted(range(size), key=lambda i, row=row: (-row[i], i))[:k] for row in ROWS]
    assert positions.tolist() == order
    assert values.tolist() == [[row[i] for i in picked] for row, picked in zip(ROWS.tolist(), order, strict=True)]


def test_index_arithmetic_is_pythons() -> None:
    numbers = np.asarray([[7, 2], [-7, 2], [7, -2], [0, 5]], dtype=np.int64)
    ops = [
        ScalarOp.ADD, ScalarOp.SUB, ScalarOp.MUL, ScalarOp.FLOOR_DIVIDE, ScalarOp.MODULO, ScalarOp.MIN, ScalarOp.MAX,
        ScalarOp.LESS, ScalarOp.LESS_EQUAL, ScalarOp.EQUAL, ScalarOp.AND, ScalarOp.OR,
    ]  # fmt: skip
    body = ScalarBody(
        2,
        (
            ReadElement(0, 0, Number(0)),
            ReadElement(1, 0, Number(1)),
            *(WriteElement(0, Number(i), op(name, r(0), r(1))) for i, name in enumerate(ops)),
        ),
    )
    (found,) = run(body, [numbers], [(len(ops), I32)])
    expected = [
        [a + b, a - b, a * b, a // b, a % b, min(a, b), max(a, b), a < b, a <= b, a == b, bool(a and b), bool(a or b)]
        for a, b in numbers.tolist()
    ]
    assert found.tolist() == np.asarray(expected).tolist()


def test_a_program_without_inputs_fires_once_and_leaves_zeros_where_it_does_not_write() -> None:
    body = ScalarBody(1, (Repeat(0, 3, (WriteElement(0, r(0), op(ScalarOp.MUL, r(0), r(0))),)),))
    (found,) = run(body, [], [(4, I32)])
    assert found.tolist() == [[0, 1, 4, 0]]


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (
            (ReadElement(0, 0, Number(4)),),
            "a scalar program reaches position 4 to 4 of a block of 4",
        ),
        (
            (WriteElement(1, op(ScalarOp.SUB, r(0), Number(1)), Number(0)),),
            "a scalar program reaches position -1 to -1 of a block of 1",
        ),
        (
            (SetRegister(0, op(ScalarOp.FLOOR_DIVIDE, Number(1), r(1))),),
            "a scalar program divides by zero",
        ),
        ((SetRegister(0, op(ScalarOp.MODULO, Number(1), r(1))),), "a scalar program divides by zero"),
        (
            (ReadElement(0, 0, Number(0)), SetRegister(1, op(ScalarOp.ADD, r(0), Number(1)))),
            "a scalar program computes with a value that isn't a whole number",
        ),
        (
            (ReadElement(0, 0, Number(0)), ReadElement(1, 0, r(0))),
            "a scalar program computes with a value that isn't a whole number",
        ),
        (
            (ReadElement(0, 0, Number(0)), WriteElement(1, Number(0), r(0))),
            "a scalar program writes a value that isn't whole to an output of indices",
        ),
    ],
)
def test_what_a_program_may_not_do(statements, message) -> None:
    with pytest.raises(EvaluationError, match=re.escape(f"stage s1 of real evaluation: {message}")):
        run(ScalarBody(2, statements), [ROWS], [(1, F32), (1, I32)])


@pytest.mark.parametrize("arithmetic", ARITHMETICS[1:], ids=lambda a: a.name)
def test_an_index_that_does_not_fit_is_refused_and_does_not_wrap(arithmetic) -> None:
    body = ScalarBody(1, (WriteElement(0, Number(0), op(ScalarOp.MUL, Number(1 << 16), Number(1 << 15))),))
    with pytest.raises(EvaluationError, match=re.escape("2147483648 doesn't fit i32, which ends at 2147483647")):
        run(body, [], [(1, I32)], arithmetic)
