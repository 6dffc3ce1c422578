"""Scalar programs of expert routing: the top k of a row of scores, and the list of rows that chose an expert."""

from __future__ import annotations

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


def _op(op: ScalarOp, a: ScalarExpr | int, b: ScalarExpr | int) -> ScalarExpr:
    return Arithmetic(op, *(Number(x) if isinstance(x, int) else x for x in (a, b)))


def _at(row: ScalarExpr, width: int, column: ScalarExpr | int) -> ScalarExpr:
    """The position of an element in a row-major block that is `width` wide."""
    return _op(ScalarOp.ADD, _op(ScalarOp.MUL, row, width), column)


def _any(*conditions: ScalarExpr) -> ScalarExpr:
    found, *others = conditions
    for other in others:
        found = _op(ScalarOp.OR, found, other)
    return found


def _all(*conditions: ScalarExpr) -> ScalarExpr:
    found, *others = conditions
    for other in others:
        found = _op(ScalarOp.AND, found, other)
    return found


def top_scores(rows: int, width: int, count: int, top: int) -> ScalarBody:
    """The `top` largest of the first `count` scores in each row of a block (rows, width), the largest first.

    Equal scores: the lower position first. A nan is never chosen; where fewer than `top` are left, the position is -1
    and the score 0. Outputs: positions (rows, top) and scores (rows, top), and once more each row's largest (rows, 1).
    """
    row, turn, position, score, best, best_at, last, last_at = (Register(i) for i in range(8))
    found = _op(ScalarOp.LESS_EQUAL, 0, best_at)
    # What is still to be chosen comes after the last choice: lower, or equal and further on.
    left = _any(
        _op(ScalarOp.EQUAL, turn, 0),
        _op(ScalarOp.LESS, score, last),
        _all(_op(ScalarOp.EQUAL, score, last), _op(ScalarOp.LESS, last_at, position)),
    )
    is_number = _op(ScalarOp.EQUAL, score, score)
    higher = _any(_op(ScalarOp.EQUAL, found, 0), _op(ScalarOp.LESS, best, score))
    # A row that has run out of scores stays so.
    going_on = _any(_op(ScalarOp.EQUAL, turn, 0), _op(ScalarOp.LESS_EQUAL, 0, last_at))
    # Decided once: the best score changes before its position does.
    take = Register(8)
    look: tuple[Statement, ...] = (
        ReadElement(score.index, 0, _at(row, width, position)),
        SetRegister(take.index, _all(left, is_number, higher, going_on)),
        SetRegister(best.index, Choose(take, score, best)),
        SetRegister(best_at.index, Choose(take, position, best_at)),
    )
    choose: tuple[Statement, ...] = (
        SetRegister(best.index, Number(0)),
        SetRegister(best_at.index, Number(-1)),
        Repeat(position.index, count, look),
        WriteElement(0, _at(row, top, turn), best_at),
        WriteElement(1, _at(row, top, turn), best),
        SetRegister(last.index, best),
        SetRegister(last_at.index, best_at),
    )
    of_row: tuple[Statement, ...] = (
        Repeat(turn.index, top, choose),
        ReadElement(score.index, 1, _at(row, top, 0), output=True),
        WriteElement(2, row, score),
    )
    return ScalarBody(9, (Repeat(row.index, rows, of_row),))


def chosen_rows(expert: int, choices: int, top: int, capacity: int) -> ScalarBody:
    """The places in a list of `choices` (`top` a row) that name `expert`, in order, and what goes with each.

    Inputs: the choices, and a weight for each. Outputs of `capacity` each: the rows, the places, and the weights of
    the places. What is left over names row `choices / top` and place `choices`, which are one past the last, with
    weight 0. More places than `capacity` are refused when the program runs: it would write past the end.
    """
    place, chosen, weight, filled, at, old_row, old_place, old_weight, match = (Register(i) for i in range(9))
    row = _op(ScalarOp.FLOOR_DIVIDE, place, top)
    clear: tuple[Statement, ...] = (
        WriteElement(0, place, Number(choices // top)),
        WriteElement(1, place, Number(choices)),
    )
    # A program takes the same path for every block: where nothing matches, element 0 is written as it was.
    look: tuple[Statement, ...] = (
        ReadElement(chosen.index, 0, place),
        ReadElement(weight.index, 1, place),
        SetRegister(match.index, _op(ScalarOp.EQUAL, chosen, expert)),
        SetRegister(at.index, Choose(match, filled, Number(0))),
        ReadElement(old_row.index, 0, _minimum(at, capacity - 1), output=True),
        ReadElement(old_place.index, 1, _minimum(at, capacity - 1), output=True),
        ReadElement(old_weight.index, 2, _minimum(at, capacity - 1), output=True),
        WriteElement(0, at, Choose(match, row, old_row)),
        WriteElement(1, at, Choose(match, place, old_place)),
        WriteElement(2, at, Choose(match, weight, old_weight)),
        SetRegister(filled.index, _op(ScalarOp.ADD, filled, match)),
    )
    return ScalarBody(9, (Repeat(place.index, capacity, clear), Repeat(place.index, choices, look)))


def _minimum(a: ScalarExpr, b: int) -> ScalarExpr:
    return _op(ScalarOp.MIN, a, b)
