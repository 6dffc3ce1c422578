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
    """The rows that name `expert` in a list of `choices` (`top` a row), in order.

    Output: `capacity` rows; what is left over is row 0. More of them are refused when the program runs: it would write
    past the end.
    """
    place, chosen, filled, at, old, match = (Register(i) for i in range(6))
    look: tuple[Statement, ...] = (
        *_match(expert, place, chosen, match, filled, at),
        *_put(0, at, old, Choose(match, _op(ScalarOp.FLOOR_DIVIDE, place, top), old), capacity),
        SetRegister(filled.index, _op(ScalarOp.ADD, filled, match)),
    )
    return ScalarBody(6, (Repeat(place.index, choices, look),))


def chosen_places(expert: int, choices: int, top: int, capacity: int) -> ScalarBody:
    """As `chosen_rows`, and what goes with each row.

    Inputs: the choices, and a weight for each. Outputs of `capacity` each: the rows, their places in the list, and the
    weights there. What is left over is row 0 at place `choices`, one past the last, with weight 0.
    """
    place, chosen, filled, at, old, match, weight = (Register(i) for i in range(7))
    values = (_op(ScalarOp.FLOOR_DIVIDE, place, top), place, weight)
    look: tuple[Statement, ...] = (
        *_match(expert, place, chosen, match, filled, at),
        ReadElement(weight.index, 1, place),
        *(s for port, value in enumerate(values) for s in _put(port, at, old, Choose(match, value, old), capacity)),
        SetRegister(filled.index, _op(ScalarOp.ADD, filled, match)),
    )
    clear = WriteElement(1, place, Number(choices))
    return ScalarBody(7, (Repeat(place.index, capacity, (clear,)), Repeat(place.index, choices, look)))


def _match(
    expert: int, place: Register, chosen: Register, match: Register, filled: Register, at: Register
) -> tuple[Statement, ...]:
    """Whether the choice at `place` names the expert, and where it is put: at the end, or nowhere new."""
    # A program takes the same path for every block: where nothing matches, element 0 is written as it was.
    return (
        ReadElement(chosen.index, 0, place),
        SetRegister(match.index, _op(ScalarOp.EQUAL, chosen, expert)),
        SetRegister(at.index, Choose(match, filled, Number(0))),
    )


def _put(port: int, at: Register, old: Register, value: ScalarExpr, capacity: int) -> tuple[Statement, ...]:
    """Writes `value`, which may be what was there, and refuses a position past the end."""
    there = _op(ScalarOp.MIN, at, capacity - 1)
    return ReadElement(old.index, port, there, output=True), WriteElement(port, at, value)


def rows_of_choices(choices: int, experts: int, capacity: int) -> ScalarBody:
    """Where the result of every choice is, among the experts' lists one below the other, `capacity` rows each.

    Output: first how many choices each of the `experts` has got, then a row for each of the `choices`, which are those
    of `chosen_rows`. A choice of no expert (-1) is refused when the program runs.
    """
    place, chosen, count = (Register(i) for i in range(3))
    row = _op(ScalarOp.ADD, _op(ScalarOp.MUL, chosen, capacity), count)
    look: tuple[Statement, ...] = (
        ReadElement(chosen.index, 0, place),
        ReadElement(count.index, 0, chosen, output=True),
        WriteElement(0, _op(ScalarOp.ADD, place, experts), row),
        WriteElement(0, chosen, _op(ScalarOp.ADD, count, 1)),
    )
    return ScalarBody(3, (Repeat(place.index, choices, look),))
