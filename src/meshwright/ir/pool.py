"""Reduce pools: the folds a reduction may use, each with its identity and its combining expression."""

from __future__ import annotations

from enum import StrEnum

from meshwright.ir.expression import Binary, BinaryOp, Constant, Expr, Operand, Select, Special


class Pool(StrEnum):
    """A fold over many operands. `ARGMAX` folds pairs (value, index): the largest value, the lowest index on a tie."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    PROD = "prod"
    ARGMAX = "argmax"

    @property
    def identity(self) -> tuple[float | Special, ...]:
        """What leaves any operand unchanged, one value a component."""
        return _IDENTITY[self]

    @property
    def components(self) -> int:
        """How many values make up one operand: 2 for the pair fold, else 1."""
        return 2 if self is Pool.ARGMAX else 1

    @property
    def exact_under_regrouping(self) -> bool:
        """Whether any grouping and order of the operands gives the same bits (rounding makes Sum and Prod differ)."""
        return self not in (Pool.SUM, Pool.PROD)

    def fold(self, count: int) -> tuple[Expr, ...]:
        """The left fold of `count` operands in the order stated, one expression a component.

        Operand `components * i + c` is component `c` of operand `i`. Raises `ValueError` for fewer than one.
        """
        if count < 1:
            raise ValueError(f"Pool.{self.name}.fold({count}): a fold needs at least one operand")
        if self is Pool.ARGMAX:
            return _fold_pairs(count)
        folded: Expr = Operand(0)
        for index in range(1, count):
            folded = Binary(_FOLD[self], folded, Operand(index))
        return (folded,)


def _fold_pairs(count: int) -> tuple[Expr, ...]:
    # The index is the lowest among those whose value is the largest: symmetric in its operands, and it grows with
    # count squared where folding pair by pair would double the tree at each operand.
    value: Expr = Operand(0)
    for i in range(1, count):
        value = Binary(BinaryOp.MAX, value, Operand(2 * i))
    nowhere = Constant(_NO_INDEX)
    indices: list[Expr] = [
        Select(Binary(BinaryOp.EQ, Operand(2 * i), value), Operand(2 * i + 1), nowhere) for i in range(count)
    ]
    index = indices[0]
    for candidate in indices[1:]:
        index = Binary(BinaryOp.MIN, index, candidate)
    return value, index


_NO_INDEX = 2.0**31 - 1
_IDENTITY: dict[Pool, tuple[float | Special, ...]] = {
    Pool.SUM: (0.0,),
    Pool.MAX: (Special.NEGATIVE_INFINITY,),
    Pool.MIN: (Special.INFINITY,),
    Pool.PROD: (1.0,),
    Pool.ARGMAX: (Special.NEGATIVE_INFINITY, _NO_INDEX),
}
_FOLD = {
    Pool.SUM: BinaryOp.ADD,
    Pool.MAX: BinaryOp.MAX,
    Pool.MIN: BinaryOp.MIN,
    Pool.PROD: BinaryOp.MUL,
}
