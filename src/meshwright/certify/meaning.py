"""Meaning: `SameFunction`, that the graph computes what a reference graph computes."""

from __future__ import annotations

import math
from typing import Final

from meshwright.certify.certificate import Entry, FieldAgreement, Witness, graph_hash
from meshwright.certify.findings import Case, broken, held, not_decided
from meshwright.certify.same_function import InterfaceError, SameFunction, same_function
from meshwright.errors import EvaluationError, GraphError, NumericsError
from meshwright.ir.flow import block_counts
from meshwright.ir.graph import Graph
from meshwright.ir.operation import Matmul
from meshwright.ir.records import Compute

MOST_ELEMENTS: Final = 1 << 30
"""An evaluation sees no more elements than this, over all tensors and streams; one takes eight bytes.

Pieces of what is given and blocks that are loaded whole are views, so it holds about a third of that at most.
"""
MOST_PRODUCTS: Final = 1 << 35
"""An evaluation multiplies no more pairs of elements than this: minutes."""
_ROUNDS: Final = 2
_SEED: Final = 0


def too_much(graph: Graph) -> str:
    """Why a graph isn't evaluated, or nothing. Raises `GraphError` where its blocks don't balance."""
    counts = block_counts(graph)
    elements = sum(math.prod(t.local) * len(t.chips) for t in graph.tensors)
    elements += sum(counts.get(b, 0) * graph.buffers[b].elements for s in graph.stages for b in s.outs)
    if elements > MOST_ELEMENTS:
        return f"an evaluation would hold more than {MOST_ELEMENTS} elements"
    products = sum(
        counts.get(s.outs[0], 0) * math.prod(s.kind.op.block) * s.kind.op.contraction_blocks
        for s in graph.stages
        if isinstance(s.kind, Compute) and isinstance(s.kind.op, Matmul)
    )
    return f"an evaluation would multiply more than {MOST_PRODUCTS} pairs" if products > MOST_PRODUCTS else ""


def same_function_entry(case: Case) -> Entry:
    """Both graphs give the same residues on random ones."""
    name = "SameFunction"
    assert case.reference is not None
    try:
        for what, graph in (("the graph", case.graph), ("the reference", case.reference)):
            if reason := too_much(graph):
                return not_decided(name, f"{what} is too large: {reason}")
        answer = same_function(case.graph, case.reference, _ROUNDS, _SEED, names=case.names)
    except InterfaceError as error:
        return broken(name, str(error), Witness(change="read what the reference reads, and store what it makes"))
    except (GraphError, EvaluationError, NumericsError) as error:
        return not_decided(name, str(error))
    if answer.held:
        pairs = tuple(sorted(case.names.items()))
        return held(name, FieldAgreement(graph_hash(case.reference), answer.rounds, _SEED, answer.error, pairs))
    if answer.verdict == "broken":
        return broken(name, str(answer), _witness(case, answer))
    return not_decided(name, answer.reason)


def _witness(case: Case, answer: SameFunction) -> Witness:
    found = answer.witness
    if found is None:
        return Witness()
    elements = tuple((i, i + 1) for i in found.index)
    tensor = case.graph.tensor_id(case.names.get(found.output, found.output))
    chips = case.graph.tensors[tensor].chips
    at = chips if found.rank is None else (chips[found.rank],)
    return Witness((), (), at, found.output, elements, "follow the output back from this element to where both part")
