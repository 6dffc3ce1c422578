"""What a wrong result has to do with the right one: checks of relations that mistakes in splitting leave behind.

Everything is asked in residues, where agreement is no accident.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import permutations

import numpy as np
from msgspec import Struct

from meshwright.certify.pieces import places
from meshwright.certify.systems import Inputs
from meshwright.evaluate import field_numbers as field
from meshwright.evaluate.arithmetic import Array
from meshwright.evaluate.field_twin import PRIME, Keys, Residues
from meshwright.ir.graph import Graph
from meshwright.ir.records import Tensor

MOST_TRIALS = 24
"""Evaluations of the reference on changed inputs, at most, that the search for a relation takes."""
_MOST_AXES = 5
_MOST_FRACTION = 1 << 16
_KEYS: Keys = (0, 0, 0, 0)


class Output(Struct, frozen=True, eq=False):
    """One output as the graph made it and as it should be.

    tensor: the graph's record of it. pieces: one a rank, as the graph made them. whole: those put together.
    expected: the whole value by the reference.
    """

    tensor: Tensor
    pieces: tuple[Array, ...]
    whole: Array
    expected: Array


class Split(Struct, frozen=True, eq=False):
    """An input with the graph's record of it and its whole value."""

    name: str
    tensor: Tensor
    value: Array


Trial = Callable[[Inputs], Array]
"""The output by the reference on other inputs."""


def relation(output: Output, splits: Sequence[Split], inputs: Inputs, trial: Trial) -> str | None:
    """The first relation found between what was made and what was expected, in words; None where there is none."""
    algebra = not output.tensor.format.is_integer
    found: str | None = next(_of_pieces(output), None)
    if found is None and algebra:
        found = _unadded(output)
    if found is not None:
        return found
    candidates = _wholes(output)
    for ranks, whole in candidates:
        found = next(_of_wholes(whole, output.expected), None)
        if found is None and algebra:
            found = _multiplied(whole, output)
        if found is not None:
            return found if len(candidates) == 1 else f"{_ranks(ranks)}: {found}"
    return next(_of_inputs(candidates, output.expected, splits, inputs, trial), None) if algebra else None


_Candidate = tuple[tuple[int, ...], Array]
"""Ranks, and what they take the whole value to be."""


def _wholes(output: Output) -> list[_Candidate]:
    """What was made, put together; where ranks hold different copies, each of them with its ranks."""
    pieces = output.pieces
    if any(not spec.is_copied for spec in output.tensor.specs):
        return [(tuple(range(len(pieces))), output.whole)]
    found: list[_Candidate] = []
    for rank, piece in enumerate(pieces):
        at = next((i for i, (_, known) in enumerate(found) if np.array_equal(known, piece)), None)
        if at is None:
            found.append(((rank,), piece))
        else:
            found[at] = ((*found[at][0], rank), piece)
    return found


def _of_pieces(output: Output) -> Iterator[str]:
    """Some ranks are right, or hold each other's pieces."""
    if output.tensor.specs and any(s.partial for s in output.tensor.specs):
        return
    wanted = [output.expected[place] for place in places(output.tensor)]
    right = [np.array_equal(p, w) for p, w in zip(output.pieces, wanted, strict=True)]
    if len(right) > 1 and any(right) and not all(right):
        good, bad = ([r for r, ok in enumerate(right) if ok is which] for which in (True, False))
        hold = "holds" if len(bad) == 1 else "hold"
        instead = _held_instead(output, wanted, bad)
        yield f"equal to it on {_ranks(good)} only; {_ranks(bad)} {hold} something else{instead}"
    elif len(wanted) > 1 and not any(right):
        sources = [_holder(piece, wanted) for piece in output.pieces]
        if None not in sources and len(set(sources)) > 1:
            yield "pieces of it on other ranks: " + ", ".join(
                f"rank {r} holds that of rank {s}" for r, s in enumerate(sources)
            )


def _held_instead(output: Output, wanted: Sequence[Array], bad: Sequence[int]) -> str:
    sources = {rank: _holder(output.pieces[rank], wanted) for rank in bad}
    told = [f"rank {r} has the piece of rank {s}" for r, s in sources.items() if s is not None]
    return f" ({', '.join(told)})" if told else ""


def _holder(piece: Array, wanted: Sequence[Array]) -> int | None:
    return next((rank for rank, other in enumerate(wanted) if np.array_equal(piece, other)), None)


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + " and ".join(
        filter(None, (", ".join(map(str, ranks[:-1])), str(ranks[-1])))
    )


def _of_wholes(made: Array, expected: Array) -> Iterator[str]:
    """Axes are exchanged, or it is shifted along one."""
    if expected.ndim <= _MOST_AXES:
        for axes in permutations(range(expected.ndim)):
            moved = expected.transpose(axes)
            if moved.shape == made.shape and np.array_equal(moved, made):
                yield f"equal to it with its axes in the order {', '.join(map(str, axes))}"
    for axis, size in enumerate(expected.shape):
        # A rotation brings the first slice somewhere: only those that do are tried whole.
        front = made.take([0] if size else [], axis)
        for shift in range(1, size):
            matches = np.array_equal(front, expected.take([-shift], axis))
            if matches and np.array_equal(np.roll(expected, shift, axis), made):
                yield f"equal to it rotated by {shift} along axis {axis}"


def _unadded(output: Output) -> str | None:
    """What ranks hold was never added."""
    pieces = output.pieces
    if len(pieces) < 2 or pieces[0].shape != output.expected.shape:
        return None
    if not np.array_equal(field.sum_rows(np.stack(pieces, axis=-1)), output.expected):
        return None
    return f"contributions that nobody has added: the sum over the {len(pieces)} ranks is it"


def _multiplied(made: Residues, output: Output) -> str | None:
    """It is multiplied by a small fraction."""
    factor, ranks = _factor(made, output.expected), len(output.pieces)
    if factor is None:
        return None
    every = f": as if each of the {ranks} ranks had counted all of it" if factor == ranks > 1 else ""
    return f"{_times(factor)} it{every}"


def _factor(made: Residues, expected: Residues) -> Fraction | None:
    """The small fraction that `made` is of `expected` everywhere, or None."""
    nonzero = np.flatnonzero(expected)
    if made.shape != expected.shape or not len(nonzero):
        return None
    at = nonzero[:1]
    quotient = field.mul(made.reshape(-1)[at], field.inverse(expected.reshape(-1)[at], _KEYS))
    if not np.array_equal(field.mul(expected, quotient), made):
        return None
    return _fraction(int(quotient[0]))


def _fraction(residue: int) -> Fraction | None:
    """The fraction of small numbers that the residue is (Euclid's algorithm on the prime and it), or None."""
    before, after = (PRIME, 0), (residue, 1)
    while after[0] >= _MOST_FRACTION:
        steps = before[0] // after[0]
        before, after = after, (before[0] - steps * after[0], before[1] - steps * after[1])
    numerator, denominator = after
    return Fraction(numerator, denominator) if 0 < abs(denominator) < _MOST_FRACTION else None


def _times(factor: Fraction) -> str:
    return "zero times" if factor == 0 else f"{factor} times"


def _of_inputs(
    candidates: Sequence[_Candidate], expected: Array, splits: Sequence[Split], inputs: Inputs, trial: Trial
) -> Iterator[str]:
    """An input is added more or less often, or one rank's part of it is missing or counts twice."""
    if any(whole.shape != expected.shape for _, whole in candidates):
        return
    for ranks, whole in candidates:
        where = "" if len(candidates) == 1 else f"{_ranks(ranks)}: "
        for split in splits:
            yield from (where + text for text in _added(split, field.sub(whole, expected)))
    # The inputs that a graph names last are the ones that its outputs are made of last.
    changes = [(split, rank, place) for split in reversed(splits) for rank, place in _distinct_pieces(split)]
    for split, rank, place in changes[: MOST_TRIALS // 2]:
        for factor, what in ((0, "is not in it"), (2, "counts twice")):
            other = trial(inputs.with_value(split.name, _scaled(split, place, factor)))
            for ranks, whole in candidates:
                if np.array_equal(other, whole):
                    where = "" if len(candidates) == 1 else f"{_ranks(ranks)}: "
                    yield f"{where}what it is when rank {rank}'s part of {split.name!r} {what}"


def _added(split: Split, excess: Residues) -> Iterator[str]:
    if split.value.ndim > excess.ndim or split.value.dtype != np.uint64:
        return
    try:
        spread = np.broadcast_to(split.value, excess.shape)
    except ValueError:
        return
    factor = _factor(excess, spread)
    if factor is not None and factor != 0:
        ranks = len(split.tensor.chips)
        every = f", once on each of {ranks} ranks" if factor == ranks - 1 > 0 else ""
        how = "more than it should be" if factor > 0 else "less than it should be"
        yield f"it and {split.name!r}: {split.name!r} is added {abs(factor)} times {how}{every}"


def _distinct_pieces(split: Split) -> Iterator[tuple[int, tuple[slice, ...]]]:
    seen: set[tuple[tuple[int, int], ...]] = set()
    for rank, place in enumerate(places(split.tensor)):
        key = tuple((s.start, s.stop) for s in place)
        if key not in seen and split.value.dtype == np.uint64 and any(s.axis is not None for s in split.tensor.specs):
            seen.add(key)
            yield rank, place


def _scaled(split: Split, place: tuple[slice, ...], factor: int) -> Residues:
    changed = split.value.copy()
    changed[place] = field.mul(changed[place], np.asarray(factor, dtype=np.uint64))
    return changed


def split_inputs_of(graph: Graph, inputs: Inputs, names: dict[str, str]) -> list[Split]:
    """The inputs that the graph has, with its records of them."""
    present = {t.name: t for t in graph.tensors}
    pairs = ((name, present.get(names.get(name, name)), value) for name, value in inputs.values.items())
    return [Split(name, tensor, value) for name, tensor, value in pairs if tensor is not None]
