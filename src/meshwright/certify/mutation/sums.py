"""Faults of partial sums: contributions lost, counted twice, folded wrongly, or taken for the whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from meshwright.certify.mutation.editing import (
    appended,
    chips_of,
    computed,
    producer,
    reordered,
    upstream,
    with_kind,
    with_stage,
    with_tensor,
    without,
)
from meshwright.certify.mutation.subject import Edit, Kind, Mutant, Subject, edits
from meshwright.errors import SplitError
from meshwright.ir.contributions import lacking
from meshwright.ir.expression import Binary, BinaryOp, Constant, Expr, Operand
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, TensorId
from meshwright.ir.operation import Generic, Matmul, combine
from meshwright.ir.partials import contents
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Buffer, Compute, Load, Stage, Tensor
from meshwright.ir.spec import COPIED, Spec

_SUMS: Final = ("UnreducedShard", "EachSummandOnce")


def _reductions(graph: Graph) -> Iterator[tuple[int, Stage, AllReduce]]:
    for index, stage in enumerate(graph.stages):
        if isinstance(stage.kind, AllReduce) and stage.kind.pool.components == 1:
            yield index, stage, stage.kind


def _folds(graph: Graph) -> Iterator[tuple[int, Stage, Generic, Pool]]:
    """Compute stages that fold partials and do nothing else."""
    held = contents(graph).buffers
    for index, stage, kind in computed(graph):
        if isinstance(kind.op, Generic) and len(kind.op.exprs) == 1 and len(stage.ins) > 1:
            partial = [lacking(held[b].held) for b in stage.ins]
            first = partial[0]
            if first is None or any(p is None or p.pool is not first.pool for p in partial):
                continue
            if kind.op.exprs == first.pool.fold(len(stage.ins)):
                yield index, stage, kind.op, first.pool


def _dropped(graph: Graph) -> Iterator[Edit]:
    """The consumer of every result takes the contribution of its own chip instead."""
    for index, stage, _ in _reductions(graph):
        own = {graph.buffers[b].site.chip: b for b in stage.ins}
        now = {out: own[graph.buffers[out].site.chip] for out in stage.outs}
        stages = [s.remap_buffers(lambda b, now=now: now.get(b, b)) for s in graph.stages]
        yield f"s{index}", without(replace(graph, stages=tuple(stages)), {index})


def _fewer(kind: AllReduce, count: int) -> AllReduce:
    rank = len(kind.combine.maps[0])
    return replace(kind, combine=combine(count, rank, kind.pool, kind.combine.unit))


def _left_out(graph: Graph) -> Iterator[Edit]:
    """One operand, and what works for it alone, taken away: from reductions across chips and from folds on one."""
    for index, stage, kind in _reductions(graph):
        for at, buffer in enumerate(stage.ins):
            ins = (*stage.ins[:at], *stage.ins[at + 1 :])
            if not ins or len(ins) < len(stage.outs) > 1 or buffer in stage.outs:
                continue
            fewer = with_stage(graph, index, replace(stage, kind=_fewer(kind, len(ins)), ins=ins))
            yield f"s{index} operand {at}", without(fewer, upstream(graph, buffer) or set())
    for index, stage, op, pool in _folds(graph):
        for at, buffer in enumerate(stage.ins):
            ins = (*stage.ins[:at], *stage.ins[at + 1 :])
            bare = replace(op, exprs=pool.fold(len(ins)), maps=(*op.maps[:at], *op.maps[at + 1 :]))
            fewer = with_stage(graph, index, Stage(Compute(bare), ins, stage.outs))
            yield f"s{index} operand {at}", without(fewer, upstream(graph, buffer) or set())


def _twice(graph: Graph) -> Iterator[Edit]:
    """An addition into an accumulator made once more, or an operand that a fold on one chip reads twice."""
    for index, stage, _ in _reductions(graph):
        if all(graph.buffers[b].resident for b in stage.ins):
            order = [*range(index + 1), index, *range(index + 1, len(graph.stages))]
            again = replace(graph, stages=tuple(graph.stages[i] for i in order), precedences=())
            yield f"s{index}", again
    for index, _, op, pool in _folds(graph):
        for at in range(len(op.maps)):
            more: Expr = Binary(_OP[pool], op.exprs[0], Operand(at))
            yield f"s{index} operand {at}", with_kind(graph, index, Compute(replace(op, exprs=(more,))))


_OP: Final = {Pool.SUM: BinaryOp.ADD, Pool.MAX: BinaryOp.MAX, Pool.MIN: BinaryOp.MIN, Pool.PROD: BinaryOp.MUL}


def _other(pool: Pool) -> Pool:
    return Pool.MAX if pool is Pool.SUM else Pool.SUM


def _wrong_pool(graph: Graph) -> Iterator[Edit]:
    for index, stage, kind in _reductions(graph):
        other = _other(kind.pool)
        rank = len(kind.combine.maps[0])
        fold = combine(len(stage.ins), rank, other, kind.combine.unit)
        yield f"s{index}", with_kind(graph, index, replace(kind, pool=other, combine=fold))
    for index, _, op, pool in _folds(graph):
        folds = replace(op, exprs=_other(pool).fold(len(op.maps)))
        yield f"s{index}", with_kind(graph, index, Compute(folds))


def _one_each(graph: Graph) -> Iterator[Edit]:
    """1 added to each contribution of a FIFO, before anything folds it."""
    for number, content in enumerate(contents(graph).buffers):
        held = lacking(content.held)
        record = graph.buffers[number]
        before = producer(graph, BufferId(number))
        if held is None or held.pool is not Pool.SUM or record.resident or before is None:
            continue
        fresh = BufferId(len(graph.buffers))
        stage = graph.stages[before]
        first = replace(stage, outs=tuple(fresh if b == number else b for b in stage.outs))
        add = Generic.elementwise(Binary(BinaryOp.ADD, Operand(0), Constant(1.0)), 1, len(record.block))
        more = Stage(Compute(add), (fresh,), (BufferId(number),))
        yield f"b{number} after s{before}", appended(with_stage(graph, before, first), [more], [record])


def _bias_everywhere(graph: Graph) -> Iterator[Edit]:
    """Every rank's product gets the same bias before the ranks are summed."""
    held = contents(graph).buffers
    partial = [
        (i, s, k.op)
        for i, s, k in computed(graph)
        if isinstance(k.op, Matmul) and k.op.bias is None and len(s.ins) == 2 and lacking(held[s.outs[0]].held)
    ]
    if not partial:
        return
    now = graph
    for index, stage, op in partial:
        chip = graph.site(stage).chip
        blocks = _firings(graph, stage, op)
        if blocks is None:
            return
        record = graph.buffers[stage.ins[0]]
        name = f"bias {op.block[1]}"
        known = next((TensorId(i) for i, t in enumerate(now.tensors) if t.name == name), None)
        if known is None:
            known = TensorId(len(now.tensors))
            now = appended(now, tensors=[Tensor(name, (1, op.block[1]), record.format, chips_of(graph))])
        fifo = BufferId(len(now.buffers))
        pattern = Affine((0, 0), (1, op.block[1]), (Loop(blocks, (0, 0)),))
        load = Stage(Load(known, pattern, blocks, rank=chips_of(graph).index(chip)), (), (fifo,))
        now = with_kind(now, index, Compute(replace(op, bias=fifo)))
        now = appended(now, [load], [Buffer(record.site, (1, op.block[1]), record.format, 2)])
    yield f"{len(partial)} products", now


def _firings(graph: Graph, stage: Stage, op: Matmul) -> int | None:
    before = producer(graph, stage.ins[0])
    kind = None if before is None else graph.stages[before].kind
    return kind.num_blocks // op.contraction_blocks if isinstance(kind, Load) else None


def _not_opened(graph: Graph) -> Iterator[Edit]:
    """A stage that opens an accumulator put after the last one that adds to it."""
    for index, stage in enumerate(graph.stages):
        opens = [b for b in stage.outs if graph.buffers[b].resident and b not in stage.ins]
        for buffer in opens:
            adds = [i for i, s in enumerate(graph.stages) if i > index and buffer in s.ins and buffer in s.outs]
            if adds:
                order = [i for i in range(len(graph.stages)) if i != index]
                order.insert(order.index(adds[0]) + 1, index)
                yield f"s{index} after s{adds[0]}", reordered(graph, order)


def _continued(graph: Graph) -> Iterator[Edit]:
    """A product that opens an accumulator adds to it instead."""
    for index, stage, kind in computed(graph):
        if isinstance(kind.op, Matmul) and len(stage.ins) == 2 and graph.buffers[stage.outs[0]].resident:
            yield f"s{index}", with_stage(graph, index, replace(stage, ins=(*stage.ins, stage.outs[0])))


def _not_drained(graph: Graph) -> Iterator[Edit]:
    """The stage that takes sums out, and what follows it, taken away."""
    for index, stage, _ in computed(graph):
        if any(graph.buffers[b].resident for b in stage.ins) and not any(graph.buffers[b].resident for b in stage.outs):
            after = {i for i, s in enumerate(graph.stages) if set(s.ins) & set(stage.outs)}
            yield f"s{index}", without(graph, {index, *after})


def _partial_as_whole(graph: Graph) -> Iterator[Edit]:
    """A tensor of contributions that is stored as if each were the value."""
    for number in sorted(graph.stored()):
        tensor = graph.tensors[number]
        if any(s.partial is not None for s in tensor.specs) and len(tensor.chips) > 1:
            specs = tuple(COPIED if s.partial is not None else s for s in tensor.specs)
            yield f"t{number}", with_tensor(graph, number, replace(tensor, specs=specs))


def _other_spec(subject: Subject) -> Iterator[Mutant]:
    """A stored value said to be copied, or split along another axis; the whole has the same shape."""
    graph = subject.graph
    for number in sorted(graph.stored()):
        tensor = graph.tensors[number]
        there = tensor.specs[0]
        if len(tensor.specs) > 1 or len(tensor.chips) == 1 or there.partial is not None:
            continue
        for spec in (COPIED, *(Spec(axis=a) for a in range(len(tensor.shape)))):
            other = replace(tensor, specs=(spec,))
            if spec != there and _divides(other):
                wrong = with_tensor(graph, number, other)
                yield Mutant(f"t{number} {spec}", ("ReadAfterWrite", "Covered", "SameFunction"), wrong, subject.machine)


def _divides(tensor: Tensor) -> bool:
    try:
        return bool(tensor.local)
    except SplitError:
        return False


def _as_summands(graph: Graph) -> Iterator[Edit]:
    """Copies of a value said to be contributions to it: a reader would add them up."""
    for number in sorted(graph.stored() - graph.loaded()):
        tensor = graph.tensors[number]
        if tensor.specs == (COPIED,) and len(tensor.chips) > 1:
            yield f"t{number}", with_tensor(graph, number, replace(tensor, specs=(Spec(partial=Pool.SUM),)))


KINDS: Final = (
    edits("an all-reduce dropped", _SUMS, _dropped),
    edits("a contribution stored as the value", "UnreducedShard", _partial_as_whole),
    edits("a constant added to every contribution", "UnreducedShard", _one_each),
    edits("a bias on every rank", "UnreducedShard", _bias_everywhere),
    edits("a fold by the wrong pool", "UnreducedShard", _wrong_pool),
    edits("a summand left out", "EachSummandOnce", _left_out),
    edits("a summand added twice", "EachSummandOnce", _twice),
    edits("an addition before the accumulator is opened", "OpenedBeforeAdd", _not_opened),
    edits("a product that continues what nobody opened", "OpenedBeforeAdd", _continued),
    edits("sums that nobody takes out", "OpenedBeforeAdd", _not_drained),
    Kind("a wrong spec on a stored tensor", ("ReadAfterWrite", "Covered", "SameFunction"), _other_spec),
    edits("copies said to be summands", "SameFunction", _as_summands),
)
