"""The evaluator in real arithmetic against the interpreter, on random graphs of every kind of stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from evaluate.interpreter import interpret
from evaluate.random_graphs import Case, cases, random_case
from meshwright.evaluate.real import RealArithmetic
from meshwright.evaluate.walk import evaluate
from meshwright.ir.graph import Graph
from meshwright.ir.operation import ComputeOp, Generic, Matmul, Permute, Reduce, Unit
from meshwright.ir.pattern import Gather, affine_of
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Compute, Load, Recv, Scalar, Stage, Store


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases)
def test_evaluator_agrees_with_interpreter(case: Case) -> None:
    agrees(case)


def agrees(case: Case) -> None:
    expected = interpret(case.graph, case.inputs)
    found = evaluate(case.graph, case.inputs, RealArithmetic())
    assert list(found) == list(expected)
    for name, pieces in expected.items():
        assert len(found[name]) == len(pieces)
        for rank, (a, b) in enumerate(zip(found[name], pieces, strict=True)):
            assert a.shape == b.shape and a.dtype == b.dtype, (name, rank)
            assert np.all(np.abs(a - b) <= case.tolerance), f"{name} rank {rank}: {a} and {b}\n{case.graph}"


@pytest.mark.long
@settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases)
def test_evaluator_agrees_with_interpreter_on_many_graphs(case: Case) -> None:
    agrees(case)


def test_random_graphs_hold_everything() -> None:
    """Otherwise agreement would be about less than it says."""
    found: Counter[str] = Counter()
    for seed in range(500):
        case = random_case(seed, seed % 7, bool(seed % 2))
        for stage in case.graph.stages:
            found.update(features(stage, case.graph))
    few = {name: found[name] for name in FEATURES if found[name] < 5}
    assert not few


FEATURES = [
    *("Load", "Recv", "Store", "AllReduce", "Scalar", "Matmul", "Generic", "Reduce", "Permute"),
    *("bias", "spill", "epilogue", "sub_blocks", "b_transposed", "continued", "several pairs", "spill over pairs"),
    *(
        "gather load",
        "gather store",
        "pad",
        "step",
        "halo",
        "same again",
        "fewer blocks",
        "another rank",
        "store sub_blocks",
    ),
    *("sender outside", "rooted", "all", "in the accumulator", "broadcast", "two outputs", "no operands"),
    *("several blocks", "argmax over blocks", "grid"),
    *(f"reduce {pool}" for pool in Pool),
    *(f"all_reduce {pool}" for pool in Pool),
]


def features(stage: Stage, graph: Graph) -> Iterator[str]:
    """What of `FEATURES` a stage has."""
    kind = stage.kind
    match kind:
        case Load(pattern=pattern) | Store(pattern=pattern):
            yield type(kind).__name__
            affine = affine_of(pattern)
            had = {
                f"gather {type(kind).__name__.lower()}": isinstance(pattern, Gather),
                "pad": affine.pad is not None,
                "step": bool(affine.step),
                "halo": affine.pad is not None and min(affine.offset) < 0,
                "same again": any(loop.extent > 1 and not any(loop.stride) for loop in affine.loops),
                "fewer blocks": isinstance(kind, Load) and kind.num_blocks < pattern.num_blocks,
                "another rank": kind.rank is not None,
                "store sub_blocks": isinstance(kind, Store) and kind.sub_blocks is not None,
                "sender outside": isinstance(kind, Load) and kind.multicast is not None and not stage.outs,
            }
        case AllReduce(pool=pool, combine=combine):
            yield f"all_reduce {pool}"
            several = len(stage.outs) > pool.components
            had = {"AllReduce": True, "all": several, "rooted": not several}
            had["in the accumulator"] = combine.unit is Unit.ACCUMULATOR
        case Compute(op):
            yield type(op).__name__
            had = _of_operation(op, stage, graph)
        case Recv() | Scalar():
            had = {type(kind).__name__: True}
    yield from (name for name, has in had.items() if has)


def _of_operation(op: ComputeOp, stage: Stage, graph: Graph) -> dict[str, bool]:
    match op:
        case Matmul():
            return {
                "bias": op.bias is not None,
                "spill": op.spill is not None,
                "spill over pairs": op.spill is not None and op.contraction_blocks > 1,
                "epilogue": op.epilogue is not None,
                "sub_blocks": op.sub_blocks is not None and op.sub_blocks[0] > 1 and op.sub_blocks[1] < op.block[1],
                "b_transposed": op.b_transposed,
                "continued": len(stage.ins) == 3,
                "several pairs": op.contraction_blocks > 1,
            }
        case Generic(exprs, maps):
            shapes = {graph.buffers[b].block for b in (*stage.ins, *stage.outs)}
            return {"broadcast": len(shapes) > 1, "two outputs": len(exprs) > 1, "no operands": not maps}
        case Reduce(pool, _, blocks):
            named = {f"reduce {pool}": True, "several blocks": blocks > 1}
            return {**named, "argmax over blocks": pool is Pool.ARGMAX and blocks > 1}
        case Permute():
            return {"grid": op.blocks_in > 1}
