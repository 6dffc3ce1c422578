"""Faults of meaning: every block arrives and nothing stops, and what comes out is something else."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Final, cast

from msgspec.structs import replace

from meshwright.certify.mutation.editing import (
    changed,
    computed,
    moves_memory,
    with_affine,
    with_kind,
    with_stage,
    with_tensor,
)
from meshwright.certify.mutation.memory import strides_off
from meshwright.certify.mutation.subject import Edit, edits
from meshwright.ir.expression import Constant, Expr, Node, walk
from meshwright.ir.graph import Graph
from meshwright.ir.operation import Generic, Matmul, Permute, Reduce
from meshwright.ir.pattern import Affine, Gather
from meshwright.ir.pool import Pool
from meshwright.ir.records import Compute, Load, Recv, Store


def _swapped(affine: Affine) -> Iterator[tuple[str, Affine]]:
    for a, b in combinations(range(len(affine.loops)), 2):
        loops = list(affine.loops)
        loops[a], loops[b] = loops[b], loops[a]
        if loops[a] != loops[b] and min(loops[a].extent, loops[b].extent) > 1:
            yield f"loops {a} and {b}", replace(affine, loops=tuple(loops))


def _loops_of_loads(graph: Graph) -> Iterator[Edit]:
    yield from _loops(graph, Load)


def _loops_of_stores(graph: Graph) -> Iterator[Edit]:
    yield from _loops(graph, Store)


def _loops(graph: Graph, kind: type[Load] | type[Store]) -> Iterator[Edit]:
    for index, _, access, affine in moves_memory(graph, kind):
        for place, other in _swapped(affine):
            yield f"s{index} {place}", with_kind(graph, index, with_affine(access, other))


def _load_stride(graph: Graph) -> Iterator[Edit]:
    for index, _, access, affine in moves_memory(graph, Load):
        for place, other in strides_off(affine):
            yield f"s{index} {place}", with_kind(graph, index, with_affine(access, other))


def _load_offset(graph: Graph) -> Iterator[Edit]:
    for index, _, access, affine in moves_memory(graph, Load):
        for axis in range(len(affine.box)):
            if not (isinstance(access.pattern, Gather) and access.pattern.axis == axis):
                for by in (-1, 1):
                    there = replace(affine, offset=changed(affine.offset, axis, by))
                    yield f"s{index} axis {axis} by {by}", with_kind(graph, index, with_affine(access, there))


def _origin(graph: Graph) -> Iterator[Edit]:
    for index, _, access, _ in moves_memory(graph, Load):
        if isinstance(access.pattern, Gather) and access.pattern.origin:
            nothing = replace(access.pattern, origin=0)
            yield f"s{index}", with_kind(graph, index, replace(access, pattern=nothing))


def _pad(graph: Graph) -> Iterator[Edit]:
    for index, _, access, affine in moves_memory(graph, Load):
        if affine.pad is not None:
            other = replace(affine, pad=affine.pad + 1.0)
            yield f"s{index}", with_kind(graph, index, with_affine(access, other))


def _operands(graph: Graph) -> Iterator[Edit]:
    for index, stage, _ in computed(graph):
        for a, b in combinations(range(len(stage.ins)), 2):
            first, second = graph.buffers[stage.ins[a]], graph.buffers[stage.ins[b]]
            if (first.block, first.format, first.resident) == (second.block, second.format, second.resident):
                ins = list(stage.ins)
                ins[a], ins[b] = ins[b], ins[a]
                yield f"s{index} operands {a} and {b}", with_stage(graph, index, replace(stage, ins=tuple(ins)))


def _transposed(graph: Graph) -> Iterator[Edit]:
    for index, _, kind in computed(graph):
        if isinstance(kind.op, Matmul) and kind.op.block[1] == kind.op.block[2]:
            other = replace(kind.op, b_transposed=not kind.op.b_transposed)
            yield f"s{index}", with_kind(graph, index, Compute(other))


def _permuted(graph: Graph) -> Iterator[Edit]:
    for index, stage, kind in computed(graph):
        if isinstance(kind.op, Permute) and len(kind.op.axes) > 1:
            axes = (*kind.op.axes[:-2], kind.op.axes[-1], kind.op.axes[-2])
            square = graph.buffers[stage.ins[0]].block == graph.buffers[stage.outs[0]].block
            if square and graph.buffers[stage.ins[0]].block[-1] == graph.buffers[stage.ins[0]].block[-2]:
                yield f"s{index}", with_kind(graph, index, Compute(replace(kind.op, axes=axes)))


def _constant(graph: Graph) -> Iterator[Edit]:
    for index, _, kind in computed(graph):
        if isinstance(kind.op, Generic):
            for at, expr in enumerate(kind.op.exprs):
                for place, other in _constants_off(expr):
                    exprs = (*kind.op.exprs[:at], other, *kind.op.exprs[at + 1 :])
                    yield f"s{index} {place}", with_kind(graph, index, Compute(replace(kind.op, exprs=exprs)))
        elif isinstance(kind.op, Matmul) and kind.op.epilogue is not None:
            for place, other in _constants_off(kind.op.epilogue):
                yield f"s{index} {place}", with_kind(graph, index, Compute(replace(kind.op, epilogue=other)))


def _constants_off(expr: Expr) -> Iterator[tuple[str, Expr]]:
    for number in dict.fromkeys(n for n in walk(expr) if isinstance(n, Constant) and n.number == n.number):
        yield f"constant {number.number:g}", exchanged(expr, number, Constant(number.number + 0.5))


def exchanged(expr: Expr, old: Expr, new: Expr) -> Expr:
    """The tree with `new` wherever `old` stands."""
    done: dict[Expr, Expr] = {}
    for node in walk(expr):
        below = {name: getattr(node, name) for name in node.__struct_fields__}
        made = {name: done[cast("Expr", value)] for name, value in below.items() if isinstance(value, Node)}
        done[node] = new if node == old else replace(node, **made) if made else node
    return done[expr]


def _no_epilogue(graph: Graph) -> Iterator[Edit]:
    for index, _, kind in computed(graph):
        if isinstance(kind.op, Matmul) and kind.op.epilogue is not None:
            yield f"s{index}", with_kind(graph, index, Compute(replace(kind.op, epilogue=None)))


def _reduce_pool(graph: Graph) -> Iterator[Edit]:
    for index, _, kind in computed(graph):
        if isinstance(kind.op, Reduce) and kind.op.pool is not Pool.ARGMAX:
            other = Pool.MAX if kind.op.pool is Pool.SUM else Pool.SUM
            yield f"s{index}", with_kind(graph, index, Compute(replace(kind.op, pool=other)))


def _exchanged_pieces(graph: Graph) -> Iterator[Edit]:
    """The first two ranks' chips exchanged: stages there read, or write, the other's slice."""
    other = {0: 1, 1: 0}
    for number, tensor in enumerate(graph.tensors):
        if len(tensor.chips) < 2 or not any(spec.axis is not None for spec in tensor.specs):
            continue
        chips = (tensor.chips[1], tensor.chips[0], *tensor.chips[2:])
        now = with_tensor(graph, number, replace(tensor, chips=chips))
        for index, stage in enumerate(graph.stages):
            if isinstance(stage.kind, (Load, Store)) and stage.kind.tensor == number and stage.kind.rank is not None:
                rank = other.get(stage.kind.rank, stage.kind.rank)
                now = with_kind(now, index, replace(stage.kind, rank=rank))
        yield f"t{number}", now


def _other_group(graph: Graph) -> Iterator[Edit]:
    """Two receivers at one site that take each other's blocks."""
    receives = [(i, s, s.kind) for i, s in enumerate(graph.stages) if isinstance(s.kind, Recv)]
    for (i, a, x), (j, b, y) in combinations(receives, 2):
        first, second = graph.buffers[a.outs[0]], graph.buffers[b.outs[0]]
        if first.site == second.site and (first.block, first.format) == (second.block, second.format) and x != y:
            yield f"s{i} and s{j}", with_kind(with_kind(graph, i, y), j, x)


KINDS: Final = (
    edits("two loops of a load swapped", "SameFunction", _loops_of_loads),
    edits("two loops of a store swapped", "SameFunction", _loops_of_stores),
    edits("a load's stride off by one", "SameFunction", _load_stride),
    edits("a load one element off", "SameFunction", _load_offset),
    edits("a gather without its rank's offset", "SameFunction", _origin),
    edits("another pad", "SameFunction", _pad),
    edits("two operands exchanged", "SameFunction", _operands),
    edits("a transposed operand taken as it is", "SameFunction", _transposed),
    edits("blocks not transposed", "SameFunction", _permuted),
    edits("a constant off by a half", "SameFunction", _constant),
    edits("an epilogue dropped", "SameFunction", _no_epilogue),
    edits("a reduction by the wrong pool", "SameFunction", _reduce_pool),
    edits("two ranks' pieces exchanged", "SameFunction", _exchanged_pieces),
    edits("two receivers exchanged", "SameFunction", _other_group),
)
