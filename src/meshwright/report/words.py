"""Stages, buffers and amounts in a few words. Names come from files and may hold anything: they are made printable."""

from __future__ import annotations

from meshwright.ir.graph import Graph
from meshwright.ir.operation import ComputeOp, Generic, Matmul, Permute, Reduce
from meshwright.ir.pattern import Gather
from meshwright.ir.records import AllReduce, Compute, Load, Recv, Scalar, Stage, Store

_LONGEST_NAME = 40


def printable(text: str, longest: int = _LONGEST_NAME) -> str:
    """`text` on one line: what isn't printable as an escape, what is too long cut with an ellipsis."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


def amount(count: int) -> str:
    """Bytes in binary units, to four digits: `96 KiB`, `1.465 MiB`."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power:
            return f"{count / (1 << power):.4g} {unit}"
    return f"{count} B"


def sizes(shape: tuple[int, ...]) -> str:
    """`32x64`."""
    return "x".join(map(str, shape))


def work_of(graph: Graph, stage: Stage) -> str:
    """What a stage does, in a few words: `matmul 32x32x32 + bias`, `load x`."""
    match stage.kind:
        case Load(tensor=tensor, pattern=pattern, multicast=multicast):
            verb = "gather" if isinstance(pattern, Gather) else "load"
            sends = "" if multicast is None else ", send"
            return f"{verb}{sends} {printable(graph.tensors[tensor].name)}"
        case Recv():
            return "receive"
        case Store(tensor=tensor, pattern=pattern):
            verb = "scatter" if isinstance(pattern, Gather) else "store"
            return f"{verb} {printable(graph.tensors[tensor].name)}"
        case AllReduce(pool, _, _):
            return f"all_reduce {pool.value}"
        case Compute(op):
            return _operation(op)
        case Scalar(body):
            return f"scalar, {body.steps()} steps"


def _operation(op: ComputeOp) -> str:
    match op:
        case Matmul():
            parts = (("bias", op.bias), ("epilogue", op.epilogue), ("spill", op.spill))
            return "".join((f"matmul {sizes(op.block)}", *(f" + {what}" for what, there in parts if there is not None)))
        case Generic(exprs):
            return "generic" if len(exprs) == 1 else f"generic, {len(exprs)} results"
        case Reduce(pool, axes, blocks):
            over = f" of {blocks} blocks" if blocks > 1 else ""
            return f"reduce {pool.value}{over} axes {', '.join(map(str, axes))}"
        case Permute(axes):
            return f"permute {', '.join(map(str, axes))}"
