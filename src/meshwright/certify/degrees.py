"""How likely two different functions agree on random residues: an upper bound, from a walk over the degrees.

A value is a polynomial in *atoms*: the inputs, what each hash gives (an atom of its own for each argument), and the
reciprocals. Sums keep the larger degree, products add them, a hash begins anew at 1. Two functions that differ as such
expressions agree on random residues only where

- their difference, multiplied by all denominators, happens to vanish: its degree over the prime (Schwartz-Zippel);
- or a denominator vanishes: its degree over the prime;
- or two different arguments of the same hash coincide: the sum of their degrees over the prime, for each pair.

Hashes are taken for random functions here. The bound is a sum over all of these, for one round.
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from meshwright.evaluate.expression import evaluate_trees
from meshwright.evaluate.field_twin import PRIME
from meshwright.ir.expression import (
    COMPARISONS,
    Binary,
    BinaryOp,
    Cast,
    Constant,
    Expr,
    MultiplyAdd,
    Select,
    Unary,
    UnaryOp,
)
from meshwright.ir.flow import block_counts, stage_order
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, GroupId, StageId, TensorId
from meshwright.ir.operation import Generic, Matmul, Reduce
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Compute, Load, Recv, Scalar, Stage, Store

_ORDER = "order"
_EXTREMES = (BinaryOp.MAX, BinaryOp.MIN)


class Degree(Struct, frozen=True):
    """Of one value: the highest degree in all atoms, and the highest in reciprocals alone.

    under: a bit for each node of the graph's expressions whose reciprocals may be among its atoms.
    """

    total: int = 0
    reciprocals: int = 0
    under: int = 0

    def times(self, other: Degree) -> Degree:
        """Of the product."""
        return Degree(self.total + other.total, self.reciprocals + other.reciprocals, self.under | other.under)

    def power(self, count: int) -> Degree:
        """Of the product of `count` such values."""
        return Degree(self.total * count, self.reciprocals * count, self.under)

    def plus(self, other: Degree) -> Degree:
        """Of the sum, and of either one."""
        reciprocals = max(self.reciprocals, other.reciprocals)
        return Degree(max(self.total, other.total), reciprocals, self.under | other.under)


class _Reciprocals(Struct, frozen=True):
    """One node's: the sum of the degrees of their denominators, and the highest degree of a numerator."""

    denominators: int
    numerator: int


class _Term(Struct, frozen=True):
    """A value of an expression: its degree, and its block's shape before it is broadcast."""

    degree: Degree
    shape: tuple[int, ...]


class Arguments(Struct, frozen=True):
    """The arguments of one hash: how many there are, and the sum of their degrees without denominators."""

    count: int = 0
    degrees: int = 0

    def joined(self, other: Arguments) -> Arguments:
        """Both together."""
        return Arguments(self.count + other.count, self.degrees + other.degrees)


class Degrees(Struct, frozen=True):
    """What the walk over one graph found.

    output: the degree of its outputs without denominators. denominators: the sum of the degrees of all denominators.
    arguments: by hash. choices: among how many operands the widest maximum, minimum or select chooses one; 1: none.
    """

    output: int
    denominators: int
    arguments: dict[str, Arguments]
    choices: int


def degrees_of(graph: Graph) -> Degrees:
    """Walks over the graph, stage by stage. Raises `GraphError` where its blocks don't balance."""
    walk = _Walk(graph)
    for stage in stage_order(graph):
        walk.run(stage)
    outputs = graph.outputs()
    output = max((walk.cleared(degree) for (t, _), degree in walk.stored.items() if t in outputs), default=0)
    denominators = sum(r.denominators for r in walk.reciprocals)
    return Degrees(output, denominators, dict(walk.arguments), walk.choices)


def error_bound(first: Degrees, second: Degrees) -> float:
    """How likely, at most, one round takes two different functions for the same one; 1.0 where nothing is known."""
    ways = first.output + second.output + first.denominators + second.denominators
    for name in {*first.arguments, *second.arguments}:
        both = first.arguments.get(name, Arguments()).joined(second.arguments.get(name, Arguments()))
        # Every argument is in a pair with each of the others: its degree counts once for each.
        ways += max(both.count - 1, 0) * both.degrees
    return ways / PRIME if ways < PRIME else 1.0


class _Walk:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.counts = block_counts(graph)
        self.stored: dict[tuple[TensorId, int], Degree] = {}
        self.buffers: dict[BufferId, Degree] = {}
        self.groups: dict[GroupId, Degree] = {}
        self.reciprocals: list[_Reciprocals] = []
        self.arguments: defaultdict[str, Arguments] = defaultdict(Arguments)
        self.choices = 1

    def cleared(self, degree: Degree) -> int:
        """The degree of the numerator over the common denominator of all its reciprocals."""
        below = [r for i, r in enumerate(self.reciprocals) if degree.under >> i & 1]
        common = sum(r.denominators for r in below) + max((r.numerator for r in below), default=0)
        return degree.total + degree.reciprocals * common

    def run(self, stage_id: StageId) -> None:
        stage = self.graph.stages[stage_id]
        match stage.kind:
            case Load(tensor, _, _, multicast):
                made = self.stored.get((tensor, self.graph.rank_of(stage)), Degree(1))
                if multicast is not None:
                    self.groups[multicast] = made
                self._put(stage, [made] * len(stage.outs))
            case Recv(group):
                self._put(stage, [self.groups[group]])
            case Store(tensor):
                piece = tensor, self.graph.rank_of(stage)
                self.stored[piece] = self.buffers[stage.ins[0]].plus(self.stored.get(piece, Degree(1)))
            case AllReduce(combine=combine):
                self._generic(stage, combine)
            case Compute(op):
                match op:
                    case Matmul():
                        self._matmul(stage, op)
                    case Generic():
                        self._generic(stage, op)
                    case Reduce():
                        self._reduce(stage, op)
                    case _:
                        self._put(stage, [self.buffers[stage.ins[0]]])
            case Scalar():
                self._scalar(stage)

    def _put(self, stage: Stage, degrees: Sequence[Degree]) -> None:
        self.buffers.update(zip(stage.outs, degrees, strict=True))

    def _elements(self, buffer: BufferId) -> int:
        return self.counts.get(buffer, 0) * self.graph.buffers[buffer].elements

    def _matmul(self, stage: Stage, op: Matmul) -> None:
        total = self.buffers[stage.ins[0]].times(self.buffers[stage.ins[1]])
        for more in (*stage.ins[2:], *(() if op.bias is None else (op.bias,))):
            total = total.plus(self.buffers[more])
        if op.epilogue is not None:
            (total,) = self._trees((op.epilogue,), [_Term(total, op.block[:2])], self.counts.get(stage.outs[0], 0))
        self._put(stage, [total])

    def _generic(self, stage: Stage, op: Generic) -> None:
        rank = len(self.graph.buffers[stage.outs[0]].block)
        operands = [
            _Term(self.buffers[b], _laid_out(self.graph.buffers[b].block, axes, rank))
            for b, axes in zip(stage.ins, op.maps, strict=True)
        ]
        made = self._trees(op.exprs, operands, self.counts.get(stage.outs[0], 0))
        # An AllReduce makes the same results for every chip.
        self._put(stage, made * (len(stage.outs) // len(made)))

    def _reduce(self, stage: Stage, op: Reduce) -> None:
        taken = self.buffers[stage.ins[0]]
        block = self.graph.buffers[stage.ins[0]].block
        length = op.blocks * math.prod(block[axis] for axis in op.axes)
        if op.pool is Pool.PROD:
            taken = taken.power(length)
        elif op.pool is not Pool.SUM:
            self._asked(_ORDER, self._elements(stage.ins[0]), taken)
            self.choices = max(self.choices, length)
        self._put(stage, [taken, Degree()][: len(stage.outs)])

    def _scalar(self, stage: Stage) -> None:
        taken = Degree()
        for buffer in stage.ins:
            taken = taken.plus(self.buffers[buffer])
            self._asked(_ORDER, self._elements(buffer), self.buffers[buffer])
            self.choices = max(self.choices, self.graph.buffers[buffer].elements)
        self._put(stage, [taken] * len(stage.outs))

    def _asked(self, function: str, count: int, argument: Degree) -> None:
        more = Arguments(count, count * self.cleared(argument))
        self.arguments[function] = self.arguments[function].joined(more)

    def _trees(self, exprs: Sequence[Expr], operands: Sequence[_Term], firings: int) -> list[Degree]:
        def apply(node: Expr, below: Sequence[_Term]) -> _Term:
            shape = np.broadcast_shapes(*(term.shape for term in below))
            return _Term(self._node(node, [t.degree for t in below], firings * math.prod(shape)), shape)

        made = evaluate_trees(exprs, operands, apply)
        self.choices = max(self.choices, *(len(_fold_operands(expr)) for expr in exprs))
        return [term.degree for term in made]

    def _node(self, node: Expr, below: Sequence[Degree], elements: int) -> Degree:
        match node:
            case Unary(UnaryOp.NEG | UnaryOp.NOT):
                return below[0]
            case Unary(UnaryOp.ABS):
                self._ordered((node.a,), below, elements)
                return below[0]
            case Unary(UnaryOp.RECIPROCAL):
                return self._reciprocal(below[0], elements)
            case Unary(op):
                self._asked(op.value, elements, below[0])
                return Degree(1)
            case Binary(BinaryOp.MUL):
                return below[0].times(below[1])
            case Binary(op, a, b):
                if op in COMPARISONS or op in _EXTREMES:
                    self._ordered((a, b), below, elements)
                return below[0].plus(below[1])
            case MultiplyAdd():
                return below[0].times(below[1]).plus(below[2])
            case Select():
                return below[1].plus(below[2])
            case Cast(_, format_):
                if format_.is_integer:
                    self._asked("into whole numbers", elements, below[0])
                return below[0]
            case _:
                return Degree()

    def _reciprocal(self, argument: Degree, elements: int) -> Degree:
        cleared = self.cleared(argument)
        self.reciprocals.append(_Reciprocals(elements * cleared, cleared - argument.total))
        return Degree(1, 1, argument.under | 1 << (len(self.reciprocals) - 1))

    def _ordered(self, nodes: Sequence[Expr], below: Sequence[Degree], elements: int) -> None:
        for node, degree in zip(nodes, below, strict=True):
            # What a maximum gives is one of its operands, which have been counted.
            if not (isinstance(node, Binary) and node.op in _EXTREMES):
                self._asked(_ORDER, 1 if isinstance(node, Constant) else elements, degree)
            self.choices = max(self.choices, _rarity(node.number) if isinstance(node, Constant) else 2)


def _laid_out(block: tuple[int, ...], axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    sizes = dict(zip(axes, block, strict=True))
    return tuple(sizes.get(axis, 1) for axis in range(rank))


def _fold_operands(expr: Expr) -> Sequence[Expr]:
    """The operands of a maximum of maxima (or minimum of minima) that the whole expression is."""
    if not isinstance(expr, Binary) or expr.op not in _EXTREMES:
        return ()
    found: list[Expr] = []
    pending: list[Expr] = [expr.a, expr.b]
    while pending:
        node = pending.pop()
        if isinstance(node, Binary) and node.op is expr.op:
            pending += [node.a, node.b]
        else:
            found.append(node)
    return found


def _rarity(number: float) -> int:
    """One in how many residues, at least, is on the far side of a constant in the random order."""
    if not math.isfinite(number):
        return 2  # The end of the order: nothing is on its far side, nor is there in the graph.
    (bits,) = struct.unpack("<Q", struct.pack("<d", abs(number)))
    beyond = max(7 * 2**60 - bits, 0)
    return -(-2 * 7 * 2**60 // beyond) if beyond else 1 << 60
