"""Is a graph well formed? Every rule that can be decided by looking at one record and what it names.

`faults` lists what is wrong, each with the obligation it belongs to; `require_well_formed` refuses with the first ones.
Whether blocks balance, whether anything deadlocks and what it computes is not asked here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from meshwright.errors import GraphError, SplitError
from meshwright.ir.expression import size_fault
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, StageId
from meshwright.ir.operation import Generic, Matmul, Permute, Reduce
from meshwright.ir.operation_form import generic_faults, matmul_faults, permute_faults, reduce_faults
from meshwright.ir.pattern import Affine, Gather, affine_of, box_fits_block
from meshwright.ir.records import AllReduce, Buffer, Compute, Load, Recv, Scalar, Stage, Store, Tensor
from meshwright.ir.scalar_form import scalar_faults

MOST_BLOCKS = 1 << 31
_MOST_SHOWN = 5


class Fault(Struct, frozen=True):
    """One thing wrong: the obligation, the stage (None for a table's record), and what in words."""

    obligation: str
    stage: StageId | None
    message: str

    def __str__(self) -> str:
        where = "" if self.stage is None else f"stage s{self.stage}: "
        return f"{self.obligation}: {where}{self.message}"


def require_well_formed(graph: Graph) -> None:
    """Raises `GraphError` naming the first faults, with stage and reason, unless there are none."""
    found = faults(graph)
    if found:
        lines = [str(fault) for fault in found[:_MOST_SHOWN]]
        if len(found) > _MOST_SHOWN:
            lines.append(f"and {len(found) - _MOST_SHOWN} more")
        raise GraphError("this graph is not well formed:\n  " + "\n  ".join(lines))


def faults(graph: Graph) -> tuple[Fault, ...]:
    """Everything that is wrong with the form of `graph`; later rules are not asked where an id dangles."""
    return graph.derived(_faults)


def _faults(graph: Graph) -> tuple[Fault, ...]:
    dangling = tuple(_dangling(graph))
    if dangling:
        return dangling
    found = [*size_faults(graph), *_table_faults(graph), *_sharing_faults(graph)]
    if found:
        return tuple(found)
    for index, stage in enumerate(graph.stages):
        found.extend(Fault(obligation, StageId(index), text) for obligation, text in _stage_faults(graph, stage))
    return tuple(found)


def _dangling(graph: Graph) -> Iterator[Fault]:
    def outside(what: str, number: int, size: int) -> Iterator[str]:
        if not 0 <= number < size:
            yield f"names {what}{number}, and there are {size}"

    for index, stage in enumerate(graph.stages):
        texts: list[str] = []
        for buffer in (*stage.ins, *stage.outs, *stage.hidden()):
            texts.extend(outside("buffer b", buffer, len(graph.buffers)))
        if isinstance(stage.kind, (Load, Store, AllReduce)):
            texts.extend(outside("tensor t", stage.kind.tensor, len(graph.tensors)))
        if isinstance(stage.kind, Load) and stage.kind.multicast is not None:
            texts.extend(outside("group g", stage.kind.multicast, len(graph.groups)))
        if isinstance(stage.kind, Recv):
            texts.extend(outside("group g", stage.kind.group, len(graph.groups)))
        yield from (Fault("Remapped", StageId(index), text) for text in texts)
    for edge in graph.precedences:
        for end in (edge.before, edge.after):
            yield from (
                Fault("Remapped", None, f"a precedence {t}") for t in outside("stage s", end, len(graph.stages))
            )


def size_faults(graph: Graph) -> Iterator[Fault]:
    """Expressions and scalar programs that are nested too deeply or too large to be hashed, compared or printed."""
    for index, stage in enumerate(graph.stages):
        texts: list[str | None] = []
        match stage.kind:
            case Compute(Generic(exprs)) | AllReduce(combine=Generic(exprs)):
                texts = [size_fault(expr) for expr in exprs]
            case Compute(Matmul(epilogue=epilogue)) if epilogue is not None:
                texts = [size_fault(epilogue)]
            case Scalar(body):
                texts = [body.size_fault()]
            case _:
                pass
        what = "a scalar program" if isinstance(stage.kind, Scalar) else "an expression"
        yield from (Fault("Shapes", StageId(index), f"{what} {text}") for text in texts if text is not None)


def _table_faults(graph: Graph) -> Iterator[Fault]:
    for name, count in Counter(t.name for t in graph.tensors).items():
        if count > 1 or not name:
            yield Fault("Shapes", None, f"{count} tensors are called {name!r}; a name is not empty and names one")
    for index, tensor in enumerate(graph.tensors):
        yield from (Fault("Shapes", None, f"tensor t{index} {tensor.name!r}: {t}") for t in _tensor_faults(tensor))
    for index, buffer in enumerate(graph.buffers):
        if not buffer.block or min(buffer.block) < 1 or buffer.elements > MOST_BLOCKS:
            yield Fault(
                "Shapes",
                None,
                f"buffer b{index}: block shape {buffer.block} must have axes, sizes of at least 1 and at most "
                f"{MOST_BLOCKS} elements",
            )
        if buffer.depth < 1:
            yield Fault("Shapes", None, f"buffer b{index}: depth {buffer.depth} must be at least 1")
    for index, group in enumerate(graph.groups):
        if group.low[0] > group.high[0] or group.low[1] > group.high[1] or min(group.low) < 0:
            yield Fault("GroupIsRectangle", None, f"group g{index}: {group.low} to {group.high} is not a rectangle")
        elif max(group.high) > 1023:
            yield Fault("GroupIsRectangle", None, f"group g{index}: reaches {group.high}, past coordinate 1023")


def _tensor_faults(tensor: Tensor) -> Iterator[str]:
    if any(size < 0 for size in tensor.shape):
        yield f"shape {tensor.shape} has a negative size"
    if not tensor.format.in_memory:
        yield f"{tensor.format} is internal to a unit; DRAM can't hold it"
    if not tensor.chips or len(set(tensor.chips)) < len(tensor.chips):
        yield f"chips {tensor.chips} must name at least one chip, each once"
    elif math.prod(tensor.ranks) != len(tensor.chips) or len(tensor.specs) != len(tensor.ranks):
        yield f"{len(tensor.specs)} specs over a rank grid {tensor.ranks} don't go with {len(tensor.chips)} chips"
    else:
        try:
            _ = tensor.local
        except SplitError as error:
            yield str(error)


def _sharing_faults(graph: Graph) -> Iterator[Fault]:
    """A block FIFO has one producer and one consumer: a block that two stages take would be there for one of them."""
    producers = Counter[BufferId]()
    consumers = Counter[BufferId]()
    for stage in graph.stages:
        producers.update(stage.outs)
        consumers.update(stage.takes())
        if isinstance(stage.kind, Compute) and isinstance(stage.kind.op, Matmul) and stage.kind.op.spill is not None:
            producers[stage.kind.op.spill] += 1
            consumers[stage.kind.op.spill] += 1
    for index, buffer in enumerate(graph.buffers):
        put, taken = producers[BufferId(index)], consumers[BufferId(index)]
        if buffer.resident:
            continue
        if put > 1 or taken > 1:
            yield Fault(
                "Ports",
                None,
                f"buffer b{index} is a FIFO with {put} producers and {taken} consumers; one each",
            )
        elif taken and not put:
            yield Fault("Ports", None, f"buffer b{index} is taken from, but no stage puts blocks into it")


def _stage_faults(graph: Graph, stage: Stage) -> Iterator[tuple[str, str]]:
    ins = [graph.buffers[b] for b in stage.ins]
    outs = [graph.buffers[b] for b in stage.outs]
    if not isinstance(stage.kind, AllReduce) and len({b.site for b in ins}) > 1:
        yield (
            "Ports",
            f"its inputs are at {', '.join(sorted({str(b.site) for b in ins}))}; a stage runs at one site",
        )
        return
    if isinstance(stage.kind, (Compute, Scalar)) and len({b.site for b in (*ins, *outs)}) > 1:
        there = ", ".join(sorted({str(b.site) for b in outs} - {str(graph.site(stage))}))
        yield (
            "Ports",
            f"it runs at {graph.site(stage)} and puts blocks at {there}; only a multicast or an AllReduce moves blocks "
            "between sites",
        )
        return
    match stage.kind:
        case Load():
            yield from _load_faults(graph, stage.kind, stage, outs)
        case Recv():
            if ins or len(outs) != 1 or not graph.groups[stage.kind.group].holds(outs[0].site):
                yield (
                    "Ports",
                    f"a Recv has no inputs and one output, at a site of g{stage.kind.group}'s rectangle",
                )
        case Store():
            if len(ins) != 1 or outs:
                yield "Ports", f"a Store has one input and no outputs, not {len(ins)} and {len(outs)}"
            else:
                yield from _memory_faults(graph, stage.kind, stage, ins[0])
                yield from _sub_block_faults(stage.kind.sub_blocks, ins[0].block)
        case AllReduce():
            yield from _all_reduce_faults(graph, stage.kind, stage, ins, outs)
        case Compute(op):
            match op:
                case Matmul():
                    yield from matmul_faults(graph, op, stage, ins, outs)
                    yield from _sub_block_faults(op.sub_blocks, op.block[:2])
                case Generic():
                    yield from generic_faults(op, ins, outs)
                case Reduce():
                    yield from reduce_faults(op, ins, outs)
                case Permute():
                    yield from permute_faults(op, ins, outs)
        case Scalar(body):
            yield from (("Shapes", text) for text in scalar_faults(body, ins, outs))


def _load_faults(graph: Graph, load: Load, stage: Stage, outs: list[Buffer]) -> Iterator[tuple[str, str]]:
    if stage.ins:
        yield "Ports", "a Load has no inputs"
        return
    if load.multicast is None:
        if len(outs) != 1:
            yield "Ports", f"a Load has one output, not {len(outs)}"
            return
        block = outs[0]
    else:
        group = graph.groups[load.multicast]
        inside = group.holds(group.sender)
        if len(outs) != int(inside):
            yield (
                "Ports",
                (
                    f"the sender of g{load.multicast} at {group.sender} is {'in' if inside else 'outside'} it: "
                    f"a Load has {int(inside)} outputs there, not {len(outs)}"
                ),
            )
            return
        if outs and outs[0].site != group.sender:
            yield (
                "Ports",
                f"its output is at {outs[0].site}, and the sender of g{load.multicast} is {group.sender}",
            )
        receivers = [
            graph.buffers[s.outs[0]]
            for s in graph.stages
            if isinstance(s.kind, Recv) and s.kind.group == load.multicast and s.outs
        ]
        blocks = [*outs, *receivers]
        if not blocks:
            yield "Ports", f"nobody receives from g{load.multicast}"
            return
        block = blocks[0]
        if any((b.block, b.format) != (block.block, block.format) for b in blocks):
            yield "Shapes", f"the receivers of g{load.multicast} take blocks of different shapes or formats"
    if not 0 <= load.num_blocks <= load.pattern.num_blocks:
        yield "Shapes", f"num_blocks is {load.num_blocks}, and the pattern makes {_count(load.pattern.num_blocks)}"
    yield from _memory_faults(graph, load, stage, block)


def _count(number: int) -> str:
    # A product of sizes that a hostile file states can have more digits than Python agrees to print.
    return str(number) if number <= MOST_BLOCKS else f"more than {MOST_BLOCKS}"


def _memory_faults(graph: Graph, kind: Load | Store, stage: Stage, block: Buffer) -> Iterator[tuple[str, str]]:
    tensor = graph.tensors[kind.tensor]
    chip = graph.site(stage).chip
    if kind.rank is None and chip not in tensor.chips:
        yield (
            "Ports",
            f"chip {chip} holds no piece of {tensor.name!r} (chips {tensor.chips} do); name a rank to reach one",
        )
    if kind.rank is not None and not 0 <= kind.rank < len(tensor.chips):
        yield "Ports", f"rank {kind.rank} of {tensor.name!r}: it has ranks 0 to {len(tensor.chips) - 1}"
    if block.format != tensor.format:
        yield (
            "Shapes",
            (
                f"moves {tensor.format} {tensor.name!r} through a buffer of {block.format}; moving does no arithmetic: "
                "cast in a Compute stage"
            ),
        )
    pattern = affine_of(kind.pattern)
    yield from (("Shapes", f"pattern over {tensor.name!r}: {t}") for t in _pattern_faults(pattern, tensor, block))
    if isinstance(kind.pattern, Gather):
        yield from _gather_faults(graph, kind.pattern, stage, tensor)


def _pattern_faults(pattern: Affine, tensor: Tensor, block: Buffer) -> Iterator[str]:
    axes = len(tensor.shape)
    lengths = {
        len(pattern.offset),
        len(pattern.box),
        len(pattern.steps),
        *(len(x.stride) for x in pattern.loops),
    }
    if lengths != {axes}:
        yield f"offset, box, step and every stride need {axes} numbers, one an axis"
        return
    if any(size < 1 for size in pattern.box) or any(step < 1 for step in pattern.steps):
        yield f"box {pattern.box} and steps {pattern.steps} must be at least 1"
    if any(loop.extent < 0 for loop in pattern.loops) or pattern.num_blocks > MOST_BLOCKS:
        yield f"loop extents {[x.extent for x in pattern.loops]} must not be negative or make over {MOST_BLOCKS} blocks"
    if not box_fits_block(pattern.box, block.block):
        yield f"box {pattern.box} doesn't fill a block of {block.block}"


def _gather_faults(graph: Graph, gather: Gather, stage: Stage, tensor: Tensor) -> Iterator[tuple[str, str]]:
    index = graph.buffers[gather.index]
    if not 0 <= gather.axis < len(tensor.shape):
        yield (
            "Shapes",
            f"gathers along axis {gather.axis} of {tensor.name!r}, which has {len(tensor.shape)} axes",
        )
    elif gather.axis < len(gather.base.box) and index.elements != gather.base.box[gather.axis]:
        yield (
            "Shapes",
            f"index blocks of b{gather.index} hold {index.elements}, the box takes {gather.base.box[gather.axis]}",
        )
    if not index.format.is_integer:
        yield "Shapes", f"index buffer b{gather.index} holds {index.format}; indices are whole numbers (i32)"
    if index.site != graph.site(stage):
        yield "Ports", f"index buffer b{gather.index} is at {index.site}, the stage at {graph.site(stage)}"


def _sub_block_faults(sub: tuple[int, int] | None, block: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    if sub is None:
        return
    if len(block) != 2 or min(sub) < 1 or block[0] % sub[0] or block[1] % sub[1]:
        yield "Shapes", f"sub-blocks {sub} don't tile a block of {block}"


def _all_reduce_faults(
    graph: Graph, kind: AllReduce, stage: Stage, ins: list[Buffer], outs: list[Buffer]
) -> Iterator[tuple[str, str]]:
    parts = kind.pool.components
    chips = [b.site.chip for b in ins[::parts]]
    if not ins or len(ins) % parts or len(set(chips)) != len(chips) or _torn(ins, parts):
        yield "Ports", f"inputs on chips {chips}: one contribution a chip ({parts} buffers each) is needed"
        return
    expected = kind.pool.fold(len(chips))
    if kind.combine.exprs != expected:
        yield (
            "CombineMatchesPool",
            f"its combine is not the {kind.pool.value} fold of {len(chips)} operands in port order",
        )
    out_chips = [b.site.chip for b in outs[::parts]]
    if not outs or len(outs) % parts or len(outs) not in (parts, len(ins)) or len(set(out_chips)) != len(out_chips):
        yield "Ports", f"it has outputs on chips {out_chips}: one (rooted) or one on every chip taking part"
        return
    if _torn(outs, parts):
        yield "Ports", f"the {parts} components of one of its results are on different chips"
        return
    if not set(out_chips) <= set(chips):
        yield "Ports", f"outputs on chips {out_chips} that don't take part ({chips})"
    for group in range(0, len(outs), parts):
        yield from generic_faults(kind.combine, ins, outs[group : group + parts])


def _torn(buffers: list[Buffer], parts: int) -> bool:
    """Whether the components of one operand are on different chips."""
    return any(b.site.chip != buffers[i - i % parts].site.chip for i, b in enumerate(buffers))
