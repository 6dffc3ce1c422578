"""What a value still lacks: which contributions to a fold the blocks of a stream, or a piece of a tensor, stand for.

A rank that multiplies its slice of the contraction has a *contribution*: one of several whose fold is the value. Here
is data for that, and what combining contributions gives; `partials` walks a graph with it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from meshwright.errors import GraphError
from meshwright.ir.commuting import commutes
from meshwright.ir.expression import Binary, BinaryOp, Cast, Expr, Operand, operands, walk
from meshwright.ir.pool import Pool

_FOLDS = {Pool.SUM: BinaryOp.ADD, Pool.MAX: BinaryOp.MAX, Pool.MIN: BinaryOp.MIN, Pool.PROD: BinaryOp.MUL}


class Along(Struct, frozen=True, forbid_unknown_fields=True):
    """Positions along an axis run over one slice of an axis that is cut over ranks.

    of: what is cut. index, count: which slice of how many. axis: the axis of the block (of the tensor for a piece);
    None where a block has one position only. from_blocks: how many consecutive blocks share a position, at least.
    within: the number of consecutive blocks that between them have all positions of the slice; 0 where none have.
    """

    of: str
    index: int
    count: int
    axis: int | None
    from_blocks: int = 1
    within: int = 1


class Held(Struct, frozen=True, forbid_unknown_fields=True):
    """The fold of some of the contributions to a value.

    value: what they are contributions to. count: how many there are. times: pairs (which one, how often it is in it).
    """

    value: str
    pool: Pool
    count: int
    times: tuple[tuple[int, int], ...]

    @property
    def missing(self) -> tuple[int, ...]:
        """Contributions that aren't in it."""
        there = {which for which, _ in self.times}
        return tuple(i for i in range(self.count) if i not in there)

    @property
    def repeated(self) -> tuple[tuple[int, int], ...]:
        """Contributions that are in it more often than the others; pairs (which one, how often)."""
        if self.pool.exact_under_regrouping:
            return ()
        least = min(n for _, n in self.times)
        return tuple((which, n) for which, n in self.times if n > least)

    @property
    def complete(self) -> bool:
        """Whether every contribution is in it once."""
        return not self.missing and (self.pool.exact_under_regrouping or all(n == 1 for _, n in self.times))

    def __str__(self) -> str:
        ranks = ", ".join(f"{which}" if n == 1 else f"{which} ({n} times)" for which, n in self.times)
        return f"{self.pool.value} over {self.value} of contributions {ranks} of {self.count}"


class Content(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is known of a stream or piece. held: None for a value that lacks nothing. doubt: why this isn't known."""

    along: tuple[Along, ...] = ()
    held: Held | None = None
    doubt: str = ""


class SumError(GraphError):
    """A partial used as if it were whole, or contributions that don't make the value they are said to make."""

    def __init__(self, obligation: str, message: str, change: str, positions: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.obligation = obligation
        self.change = change
        self.positions = tuple(positions)


def lacking(held: Held | None) -> Held | None:
    """The same, or None once nothing is lacking."""
    return None if held is not None and held.complete else held


def doubtful(contents: Sequence[Content]) -> str:
    """The first doubt among several, or none."""
    return next((c.doubt for c in contents if c.doubt), "")


def folded(pool: Pool, parts: Sequence[Held | None]) -> tuple[Held | None, str]:
    """The bare fold of several values, and a doubt. Raises `SumError` where whole values meet partial ones.

    A fold that has become complete is kept as one, so that folding in a contribution once more is seen.
    """
    short = [p for p in parts if lacking(p) is not None and p is not None]
    if not short:
        return (parts[0] if len(parts) == 1 else None), ""
    if wrong := next((p for p in short if p.pool is not pool), None):
        raise SumError(
            "UnreducedShard",
            f"folds {wrong} by {pool.value}: that is another value",
            f"fold it by {wrong.pool.value}",
        )
    known = [
        p for p in parts if p is not None and (p in short or (p.value, p.count) == (short[0].value, short[0].count))
    ]
    if len(known) < len(parts) and pool in (Pool.MAX, Pool.MIN):
        # Folding in a whole value once a contribution changes nothing: it is a contribution to another whole.
        held, doubt = folded(pool, known)
        return (None if held is None else replace(held, value=_short(f"{held.value} and a whole value"))), doubt
    if len(known) < len(parts):
        raise SumError(
            "UnreducedShard",
            f"folds {short[0]} with a value that is whole: that would count once a contribution",
            "fold the contributions first, then add the whole value",
        )
    if len({(p.value, p.count) for p in known}) > 1:
        return _side_by_side(known)
    times = Counter[int]()
    for part in known:
        times.update(dict(part.times))
    return replace(known[0], times=tuple(sorted(times.items()))), ""


def _side_by_side(parts: Sequence[Held]) -> tuple[Held | None, str]:
    """Contributions of the same ranks to several values: a contribution of those ranks to what is made of them."""
    first = parts[0]
    if any((p.count, p.times) != (first.count, first.times) for p in parts):
        return first, f"contributions to different values are folded: {first} and {parts[1]}"
    names = " and ".join(sorted({p.value for p in parts}))
    return replace(first, value=_short(names)), ""


def applied(exprs: Sequence[Expr], parts: Sequence[Held | None]) -> list[tuple[Held | None, str]]:
    """What elementwise expressions make of values; raises `SumError` for one that isn't whole used as if it were."""
    return [_applied(expr, parts) for expr in exprs]


def _applied(expr: Expr, parts: Sequence[Held | None]) -> tuple[Held | None, str]:
    read = sorted(operands(expr))
    there = [(i, held) for i in read if (held := lacking(parts[i])) is not None]
    if not there:
        return None, ""
    pool = there[0][1].pool
    if len({h.pool for _, h in there}) > 1:
        raise SumError(
            "UnreducedShard", f"combines {there[0][1]} with a partial of another pool", "reduce both before this stage"
        )
    bare = _bare_fold(expr, pool)
    if bare is not None and (len(set(bare)) == len(bare) or _told_apart([parts[i] for i in bare])):
        return folded(pool, [parts[i] for i in bare])
    if not commutes(expr, pool, frozenset(i for i, _ in there)):
        raise SumError(
            "UnreducedShard",
            f"reads {there[0][1]} where only the whole value gives the right result: the expression is not one that "
            f"may be applied to the parts of a {pool.value}",
            "reduce it before this stage",
        )
    first = there[0][1]
    if any((h.count, h.times) != (first.count, first.times) for _, h in there):
        return first, f"an expression over contributions of different ranks: {first} and {there[1][1]}"
    name = " and ".join(dict.fromkeys(h.value for _, h in there))
    return replace(first, value=_short(f"{name} through {_fingerprint(expr)}")), ""


def _bare_fold(expr: Expr, pool: Pool) -> list[int] | None:
    """The operands that an expression folds, as often as it does, if it does nothing else."""
    if pool not in _FOLDS:
        return None
    found: list[int] = []
    stack: list[Expr] = [expr]
    while stack:
        match stack.pop():
            case Operand(index):
                found.append(index)
            case Cast(a, format_) if not format_.is_integer:
                stack.append(a)
            case Binary(op, a, b) if op is _FOLDS[pool]:
                stack += [a, b]
            case _:
                return None
    return found


def _told_apart(parts: Sequence[Held | None]) -> bool:
    """Whether operands of which some are folded in twice are different contributions to one value.

    The same operand twice, and nothing else, is twice the value.
    """
    held = [p for p in map(lacking, parts) if p is not None]
    return len(held) == len(parts) and len({(p.value, p.count) for p in held}) == 1 and len({p.times for p in held}) > 1


def _fingerprint(expr: Expr) -> str:
    return hashlib.sha256(msgspec.json.encode(list(walk(expr))[-1])).hexdigest()[:8]


def _short(name: str) -> str:
    """A name that stays short however often it is derived from; equal names stay equal."""
    return name if len(name) <= 96 else f"{name[:64]}...{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def contracted(contents: Sequence[tuple[Content, int | None]], blocks: int, pool: Pool) -> tuple[Held | None, str]:
    """The contribution that folding along axes makes, if one of them is cut over ranks.

    contents: each operand with the block axis that is folded. blocks: consecutive blocks folded together. Raises
    `SumError` where two operands are at different slices.
    """
    cut: list[Along] = []
    for content, axis in contents:
        cut += [a for a in content.along if a.axis == axis or (blocks > 1 and a.from_blocks < blocks)]
    if not cut:
        return None, ""
    if wrong := next((a for a in cut if not 0 < a.within <= blocks), None):
        return None, f"a fold runs over a part of slice {wrong.index} of {wrong.of}, which is cut in {wrong.count}"
    first = cut[0]
    for other in cut[1:]:
        if (other.index, other.count) != (first.index, first.count):
            raise SumError(
                "EachSummandOnce",
                f"multiplies slice {first.index} of {first.count} of {first.of} with slice {other.index} of "
                f"{other.count} of {other.of}: those are different parts of the contraction",
                f"load slice {first.index} of both",
                (first.index, other.index),
            )
    return Held(_short(" x ".join(a.of for a in cut)), pool, first.count, ((first.index, 1),)), ""
