"""Memory, decided on regions, against the evaluator, which finds out on the elements themselves, on random graphs."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from msgspec.structs import replace

from evaluate.random_graphs import random_case
from meshwright.certify import Verdict, certify
from meshwright.errors import EvaluationError, NumericsError
from meshwright.evaluate.real import RealArithmetic
from meshwright.evaluate.walk import evaluate
from meshwright.ir.form import faults
from meshwright.ir.graph import Graph
from meshwright.ir.pattern import Affine, affine_of
from meshwright.ir.records import Load, Store
from meshwright.machine import load

GRID = load("grid-8x8")
MEMORY = ("ReadAfterWrite", "WrittenOnce", "Covered", "NoLiveOverwrite")


def mutated(graph: Graph, random: Random) -> Graph:
    """A precedence taken away, or a pattern moved or bent by one."""
    choice = random.randrange(3)
    if choice == 0 and graph.precedences:
        gone = random.randrange(len(graph.precedences))
        return replace(graph, precedences=graph.precedences[:gone] + graph.precedences[gone + 1 :])
    index = random.choice([i for i, s in enumerate(graph.stages) if isinstance(s.kind, (Load, Store))])
    stage = graph.stages[index]
    pattern = affine_of(stage.kind.pattern)
    if not pattern.offset or (choice == 2 and not pattern.loops):
        return graph
    by = [0] * len(pattern.offset)
    by[random.randrange(len(by))] = random.choice([-1, 1])
    if choice == 2:
        loops = list(pattern.loops)
        at = random.randrange(len(loops))
        loops[at] = replace(loops[at], stride=tuple(map(sum, zip(loops[at].stride, by, strict=True))))
        bent = replace(pattern, loops=tuple(loops))
    else:
        bent = replace(pattern, offset=tuple(map(sum, zip(pattern.offset, by, strict=True))))
    affine = isinstance(stage.kind.pattern, Affine)
    kind = replace(stage.kind, pattern=bent if affine else replace(stage.kind.pattern, base=bent))
    stages = list(graph.stages)
    stages[index] = replace(stage, kind=kind)
    return replace(graph, stages=tuple(stages))


def agree(seeds: range) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for seed in seeds:
        case = random_case(seed, seed % 7, bool(seed % 2))
        graph = mutated(case.graph, Random(seed)) if seed % 5 else case.graph
        if faults(graph):
            continue
        try:
            evaluate(graph, case.inputs, RealArithmetic())
            said = ""
        except (EvaluationError, NumericsError) as error:
            said = str(error)
        given = [name for name in case.inputs if graph.tensor_id(name) in graph.stored()]
        certificate = certify(graph, GRID, given=given)
        verdicts = {certificate.entry(name).verdict for name in MEMORY}
        refused = next((name for name in MEMORY if name in said), "outside" if "without a pad" in said else "")
        if not said:
            assert Verdict.BROKEN not in verdicts, f"seed {seed}: evaluates\n{certificate}\n{graph}"
        elif refused:
            assert verdicts != {Verdict.HELD}, f"seed {seed}: {said}\n{certificate}\n{graph}"
        found[refused or ("other" if said else "evaluates"), min(v.value for v in verdicts)] += 1
    return found


def test_regions_say_what_elements_say() -> None:
    found = agree(range(400))
    for refused in (*MEMORY[:3], "outside"):
        assert found[refused, "broken"] >= 3, found
    assert found["evaluates", "held"] >= 50


@pytest.mark.long
def test_regions_say_what_elements_say_on_many_graphs() -> None:
    agree(range(400, 8000))
