"""`same_function`: whether two graphs compute the same function of their inputs, by evaluation on random residues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
from msgspec import Struct

from meshwright.certify.degrees import degrees_of, error_bound
from meshwright.certify.indices import ranges_of
from meshwright.certify.parting import Parting, parting
from meshwright.certify.pieces import contributions, first_disagreement, join_logical, places, pool_of
from meshwright.certify.real_check import RealDifference, compare_in_reals
from meshwright.certify.relations import Output, relation, split_inputs_of
from meshwright.certify.systems import FieldSystem, Inputs, System, draw_inputs, fold, split_inputs, tensor_named
from meshwright.errors import EvaluationError, GraphError
from meshwright.evaluate.arithmetic import Array
from meshwright.evaluate.walk import evaluate
from meshwright.ir.expression import Constant, Expr, walk
from meshwright.ir.graph import Graph
from meshwright.ir.operation import Generic, Matmul
from meshwright.ir.pattern import affine_of
from meshwright.ir.records import AllReduce, Compute, Load, Scalar, Tensor
from meshwright.ir.scalar import Arithmetic, Choose, Number, ScalarExpr, SetRegister, Statement, WriteElement

Verdict = Literal["held", "broken", "not decided"]


class InterfaceError(GraphError):
    """Two graphs that don't have the same inputs and outputs, as they are named."""


class Witness(Struct, frozen=True):
    """One element that differs.

    seed: of the round, by which `same_function(..., rounds=1, seed=seed)` finds it again. rank: whose piece; None for
    contributions folded. index: in that piece. found, expected: residues, or whole numbers. real: the same output of
    both in real arithmetic, where it differs most, if it does.
    """

    seed: int
    output: str
    rank: int | None
    index: tuple[int, ...]
    found: int
    expected: int
    real: RealDifference | None = None

    def __str__(self) -> str:
        where = "" if self.rank is None else f"rank {self.rank}'s piece of "
        text = f"{where}{self.output!r} at {list(self.index)} is {self.found}, not {self.expected} (seed {self.seed})"
        return text if self.real is None else f"{text}; in real arithmetic {self.real}"


class SameFunction(Struct, frozen=True):
    """The answer.

    error: where held, how likely at most two different functions pass all rounds, each maximum, minimum, comparison
    and select taken as it fell. choices: among how many operands the widest of these chooses one at random (1: none):
    a difference in a single operand of it, in a single element, passes a round with up to (1 - 1 / choices).
    relation: where broken, what the result is instead, None if nothing was recognised. parting: where they first part.
    """

    verdict: Verdict
    rounds: int
    error: float
    choices: int = 1
    witness: Witness | None = None
    relation: str | None = None
    parting: Parting | None = None
    reason: str = ""

    @property
    def held(self) -> bool:
        """Whether they compute the same."""
        return self.verdict == "held"

    def __str__(self) -> str:
        if self.held:
            among = "" if self.choices == 1 else f"; each maximum or select shows one of up to {self.choices} operands"
            return f"held: equal in {self.rounds} rounds, error at most {self.error:.2g}{among}"
        lines = [f"{self.verdict}: {self.reason}", f"  {self.witness}"]
        if self.verdict == "broken":
            instead = "no relation to the reference was found" if self.relation is None else None
            lines.append(f"  {instead or f'another relation than the one promised: {self.relation}'}")
        if self.parting is not None:
            lines.append(f"  {self.parting}")
        return "\n".join(lines)


def same_function(
    graph: Graph,
    reference: Graph,
    rounds: int = 2,
    seed: int = 0,
    names: Mapping[str, str] | None = None,
    indices: Mapping[str, tuple[int, int]] | None = None,
    updated: Sequence[str] = (),
) -> SameFunction:
    """Whether `graph` computes the same outputs from the same inputs as `reference`, however either is split.

    Both are evaluated on random integers modulo 2^61 - 1. Tensors are matched by name: `names` gives the graph's name
    for those of the reference that are called something else. indices: for an input of whole numbers the lowest and
    one past the highest; by default all positions of the axis that a gather looks up with it. updated: the reference's
    names of tensors that are input and output in one, such as a cache of which a part is stored anew.

    Raises `GraphError` where inputs or outputs don't match in name or shape, and `EvaluationError` where a graph
    can't be evaluated or a range of whole numbers is neither stated nor derivable.
    """
    if rounds < 1:
        raise EvaluationError(f"rounds={rounds}: nothing is compared; at least 1 is needed")
    pair = _Pair(graph, reference, dict(names or {}), updated)
    ranges = ranges_of(pair.inputs, indices or {}, reference, graph, pair.names)
    constants = tuple(sorted({*_constants(graph), *_constants(reference)}))
    degrees = degrees_of(graph), degrees_of(reference)
    choices = max(d.choices for d in degrees)
    inputs: Inputs | None = None
    for number in range(rounds):
        system = FieldSystem(seed + number, constants)
        inputs = draw_inputs(system, pair.inputs, ranges, inputs)
        witness, made = pair.compare(system, inputs)
        if witness is not None:
            return _differing(pair, system, inputs, ranges, witness, made, number + 1, choices)
    return SameFunction("held", rounds, error_bound(*degrees) ** rounds, choices)


def _differing(
    pair: _Pair,
    system: FieldSystem,
    inputs: Inputs,
    ranges: Mapping[str, tuple[int, int]],
    witness: Witness,
    made: dict[str, Output],
    rounds: int,
    choices: int,
) -> SameFunction:
    """The answer where a round has found a difference."""
    draw = partial(draw_inputs, tensors=pair.inputs, ranges=ranges)
    real = compare_in_reals(lambda s: pair.wholes(s, draw(s)), system.seed)
    where = parting(system, pair.graph, pair.reference, inputs, pair.names)
    if isinstance(real, str):
        return SameFunction("not decided", rounds, 0.0, choices, witness, None, where, real)
    output = witness.output
    found = relation(
        made[output],
        split_inputs_of(pair.graph, inputs, pair.names),
        inputs,
        lambda changed: pair.expected(system, changed)[output],
    )
    shown = Witness(witness.seed, output, witness.rank, witness.index, witness.found, witness.expected, real)
    return SameFunction("broken", rounds, 0.0, choices, shown, found, where, f"{output!r} is not what was promised")


class _Pair:
    """Two graphs, matched by name."""

    def __init__(self, graph: Graph, reference: Graph, names: dict[str, str], updated: Sequence[str]) -> None:
        self.graph, self.reference, self.names = graph, reference, names
        for name, here in names.items():
            if not any(t.name == here for t in graph.tensors):
                raise GraphError(f"names={{{name!r}: {here!r}}}: the graph has no tensor {here!r}")
        stored = {reference.tensors[t].name for t in reference.stored()}
        for name in updated:
            if name not in stored:
                raise GraphError(f"updated={name!r}: the reference doesn't store that; it stores {_quoted(stored)}")
        given = {*reference.inputs(), *map(reference.tensor_id, updated)}
        self.inputs = {reference.tensors[t].name: reference.tensors[t] for t in sorted(given)}
        made = {*reference.outputs(), *map(reference.tensor_id, updated)}
        self.outputs = tuple(reference.tensors[t].name for t in sorted(made))
        self._match()

    def _here(self, name: str) -> str:
        return self.names.get(name, name)

    def _match(self) -> None:
        known = {self._here(name) for name in self.inputs}
        extra = [self.graph.tensors[t].name for t in self.graph.inputs() if self.graph.tensors[t].name not in known]
        if extra:
            raise InterfaceError(
                f"the graph reads {_quoted(extra)}, which the reference doesn't (it reads "
                f"{_quoted(self.inputs)}); where only names differ, say "
                "names={name in the reference: name in the graph}"
            )
        stored = {self.graph.tensors[t].name for t in self.graph.stored()}
        missing = [name for name in self.outputs if self._here(name) not in stored]
        if missing or not self.outputs:
            raise InterfaceError(
                f"the reference makes {_quoted(missing)}, which the graph doesn't (it stores "
                f"{_quoted(stored)}); where only names differ, "
                "say names={name in the reference: name in the graph}"
            )
        present = {t.name: t for t in self.graph.tensors}
        for name in (*self.inputs, *self.outputs):
            mine, theirs = present.get(self._here(name)), tensor_named(self.reference, name)
            if mine is not None and (mine.shape != theirs.shape or mine.format.is_integer != theirs.format.is_integer):
                raise InterfaceError(
                    f"{name!r} is {mine.format}{list(mine.shape)} in the graph and {theirs.format}{list(theirs.shape)} "
                    "in the reference: the same function has the same shapes"
                )

    def expected(self, system: System, inputs: Inputs) -> dict[str, Array]:
        """Whole outputs by the reference; `EvaluationError` where its copies contradict each other."""
        given = split_inputs(system, self.reference, inputs, {})
        made = evaluate(self.reference, given, system.arithmetic, self.outputs)
        wholes: dict[str, Array] = {}
        for name in self.outputs:
            tensor = tensor_named(self.reference, name)
            ranks = first_disagreement(tensor, made[name])
            if ranks is not None and isinstance(system, FieldSystem):
                raise EvaluationError(
                    f"the reference can't be compared with: its output {name!r} is {_how(tensor)}, and ranks "
                    f"{ranks[0]} and {ranks[1]} hold different values of the same part"
                )
            wholes[name] = _join(system, tensor, made[name])
        return wholes

    def made(self, system: System, inputs: Inputs) -> dict[str, tuple[Array, ...]]:
        """The pieces of every output by the graph, under the reference's names."""
        keep = [self._here(name) for name in self.outputs]
        given = split_inputs(system, self.graph, inputs, self.names)
        pieces = evaluate(self.graph, given, system.arithmetic, keep)
        return {name: pieces[self._here(name)] for name in self.outputs}

    def wholes(self, system: System, inputs: Inputs) -> list[tuple[str, Array, Array]]:
        """Name, what the graph made and what the reference made, rank by rank where ranks hold the value itself."""
        expected = self.expected(system, inputs)
        found: list[tuple[str, Array, Array]] = []
        for name, pieces in self.made(system, inputs).items():
            tensor = tensor_named(self.graph, self._here(name))
            for _, piece, wanted in _sides(system, tensor, pieces, expected[name]):
                found.append((name, piece, wanted))
        return found

    def compare(self, system: FieldSystem, inputs: Inputs) -> tuple[Witness | None, dict[str, Output]]:
        """The first element that differs, and every output as it was made and expected."""
        expected = self.expected(system, inputs)
        witness: Witness | None = None
        outputs: dict[str, Output] = {}
        for name, pieces in self.made(system, inputs).items():
            tensor = tensor_named(self.graph, self._here(name))
            outputs[name] = Output(tensor, pieces, _join(system, tensor, pieces), expected[name])
            for rank, piece, wanted in _sides(system, tensor, pieces, expected[name]):
                if witness is None and not np.array_equal(piece, wanted):
                    at = np.unravel_index(int(np.argmax(piece.reshape(-1) != wanted.reshape(-1))), piece.shape)
                    index = tuple(map(int, at))
                    witness = Witness(system.seed, name, rank, index, int(piece[index]), int(wanted[index]))
        return witness, outputs


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "nothing"


def _how(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.specs))


def _join(system: System, tensor: Tensor, pieces: Sequence[Array]) -> Array:
    return join_logical(tensor, pieces, partial(fold, system, tensor.format))


def _sides(
    system: System, tensor: Tensor, pieces: Sequence[Array], expected: Array
) -> list[tuple[int | None, Array, Array]]:
    """Rank, its piece, and what that should be; contributions are folded first and belong to no rank."""
    if pool_of(tensor) is not None:
        held = contributions(tensor)
        assert len(held) == len(pieces)
        return [(None, _join(system, tensor, pieces), expected)]
    return [
        (rank, piece, expected[place]) for rank, (piece, place) in enumerate(zip(pieces, places(tensor), strict=True))
    ]


def _constants(graph: Graph) -> Iterable[float]:
    """Every number that the graph names and that isn't NaN."""
    for stage in graph.stages:
        match stage.kind:
            case Compute(Generic(exprs)) | AllReduce(combine=Generic(exprs)):
                yield from (n for expr in exprs for n in _numbers(expr))
            case Compute(Matmul(epilogue=epilogue)) if epilogue is not None:
                yield from _numbers(epilogue)
            case Load(pattern=pattern) if affine_of(pattern).pad is not None:
                yield float(affine_of(pattern).pad or 0.0)
            case Scalar(body):
                yield from (n for statement in body.statements for n in _written(statement))
            case _:
                pass


def _numbers(expr: Expr) -> Iterable[float]:
    return (node.number for node in walk(expr) if isinstance(node, Constant) and node.number == node.number)


def _written(statement: Statement) -> Iterable[float]:
    """Whole numbers that a scalar program may write among values."""
    match statement:
        case WriteElement(_, _, value) | SetRegister(_, value):
            yield from _named(value)
        case _:
            for below in getattr(statement, "body", ()):
                yield from _written(below)


def _named(expr: ScalarExpr) -> Iterable[float]:
    match expr:
        case Number(value):
            yield float(value)
        case Arithmetic(_, a, b):
            yield from (*_named(a), *_named(b))
        case Choose(_, a, b):
            yield from (*_named(a), *_named(b))
        case _:
            return
