"""The text form of a graph: for people and for diffs. One line a record, sorted by id."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.ir.expression import show
from meshwright.ir.operation import ComputeOp, Generic, Matmul, Permute, Reduce, Unit
from meshwright.ir.pattern import AccessPattern, Affine, Gather
from meshwright.ir.records import (
    AllReduce,
    Buffer,
    Compute,
    Group,
    Load,
    Precedence,
    Recv,
    Scalar,
    Stage,
    StageKind,
    Store,
    Tensor,
    stage_site,
)


def render(
    tensors: Sequence[Tensor],
    buffers: Sequence[Buffer],
    groups: Sequence[Group],
    stages: Sequence[Stage],
    precedences: Sequence[Precedence],
) -> str:
    """The tables of a graph, a line a record; `empty graph` where there is none."""
    lines = [f"t{i} {tensor.name} {_tensor(tensor)}" for i, tensor in enumerate(tensors)]
    lines += [f"b{i} {_buffer(buffer)}" for i, buffer in enumerate(buffers)]
    lines += [f"g{i} {_group(group)}" for i, group in enumerate(groups)]
    for i, stage in enumerate(stages):
        lines.append(f"s{i} {stage_site(buffers, groups, stage)} {_kind(tensors, stage.kind)}{_flow(stage)}")
    ordered = sorted(precedences, key=lambda e: (e.before, e.after))
    lines += [f"s{edge.before} before s{edge.after}" for edge in ordered]
    return "\n".join(lines) or "empty graph"


def _sizes(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))


def _tensor(tensor: Tensor) -> str:
    how = " x ".join(map(str, tensor.specs))
    grid = f" grid {'x'.join(map(str, tensor.grid))}" if tensor.grid else ""
    return f"{tensor.format}[{_sizes(tensor.shape)}] {how} on {_sizes(tensor.chips)}{grid}"


def _buffer(buffer: Buffer) -> str:
    kind = "accumulator" if buffer.resident else "fifo"
    return f"{kind} {buffer.format}[{_sizes(buffer.block)}] x{buffer.depth} at {buffer.site}"


def _group(group: Group) -> str:
    return f"from {group.sender} to ({group.low[0]},{group.low[1]})..({group.high[0]},{group.high[1]})"


def _flow(stage: Stage) -> str:
    ins, outs = (", ".join(f"b{b}" for b in ports) for ports in (stage.ins, stage.outs))
    return (f" {ins}" if ins else "") + (f" -> {outs}" if outs else "")


def _kind(tensors: Sequence[Tensor], kind: StageKind) -> str:
    match kind:
        case Load(tensor, pattern, num_blocks, multicast, rank):
            to = "" if multicast is None else f" to g{multicast}"
            of = "" if rank is None else f" of rank {rank}"
            return f"load {tensors[tensor].name}{of} {_pattern(pattern)} x{num_blocks}{to}"
        case Recv(group):
            return f"recv g{group}"
        case Store(tensor, pattern, sub_blocks, rank):
            of = "" if rank is None else f" of rank {rank}"
            order = "" if sub_blocks is None else f" from sub-blocks {sub_blocks[0]}x{sub_blocks[1]}"
            return f"store {tensors[tensor].name}{of} {_pattern(pattern)}{order}"
        case AllReduce(pool, tensor, combine):
            how = " in the accumulator" if combine.unit is Unit.ACCUMULATOR else ""
            return f"all_reduce {pool.value} of {tensors[tensor].name}{how}"
        case Compute(op):
            return _operation(op)
        case Scalar(body):
            return f"scalar {body.steps()} steps"


def _pattern(pattern: AccessPattern) -> str:
    if isinstance(pattern, Gather):
        origin = f" from {pattern.origin}" if pattern.origin else ""
        return f"{_pattern(pattern.base)} rows of axis {pattern.axis} by b{pattern.index}{origin}"
    return _affine(pattern)


def _affine(pattern: Affine) -> str:
    loops = "".join(f" {x.extent}*({_sizes(x.stride)})" for x in pattern.loops)
    step = f" step ({_sizes(pattern.step)})" if pattern.step else ""
    pad = "" if pattern.pad is None else f" pad {pattern.pad:g}"
    return f"({_sizes(pattern.offset)})+[{_sizes(pattern.box)}]{step}{loops}{pad}"


def _operation(op: ComputeOp) -> str:
    match op:
        case Matmul():
            return _matmul(op)
        case Generic(exprs, maps, unit):
            how = "" if unit is Unit.VECTOR else " in the accumulator"
            broadcast = "" if len(set(maps)) <= 1 else f" maps {list(map(list, maps))}"
            return f"generic {'; '.join(map(show, exprs))}{broadcast}{how}"
        case Reduce(pool, axes, blocks):
            over = f" over {blocks} blocks" if blocks > 1 else ""
            return f"reduce {pool.value} axes {_sizes(axes)}{over}"
        case Permute(axes, grid):
            layout = f" of grid {'x'.join(map(str, grid))}" if grid else ""
            return f"permute {_sizes(axes)}{layout}"


def _matmul(op: Matmul) -> str:
    parts = [f"matmul {'x'.join(map(str, op.block))} over {op.contraction_blocks}"]
    if op.b_transposed:
        parts.append("b [N][K]")
    if op.bias is not None:
        parts.append(f"bias b{op.bias}")
    if op.spill is not None:
        parts.append(f"spill b{op.spill}")
    if op.epilogue is not None:
        parts.append(f"epilogue {show(op.epilogue)}")
    if op.sub_blocks is not None:
        parts.append(f"in sub-blocks {op.sub_blocks[0]}x{op.sub_blocks[1]}")
    return " ".join(parts)
