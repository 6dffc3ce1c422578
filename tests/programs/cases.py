"""What the tests of programs share: graphs of single kernels, groups, and plans that both backends run."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from tests.kernels.one_chip import shaped

from meshwright import targets
from meshwright.evaluate.walk import evaluate
from meshwright.ir.graph import Graph
from meshwright.kernels.alone import graph_alone, operand_name
from meshwright.kernels.compose import Composition
from meshwright.sharding import MeshGroup, Sharded
from programs.compare import MACHINE, Comparison, difference

KTPU = targets.arithmetic(MACHINE)
MORE = int(os.environ.get("MESHWRIGHT_MORE_EXAMPLES", "1"))
"""How many times as many random examples."""


def halves(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * scale).astype(np.float16)


def any_bits(seed, *shape):
    """Bit patterns of fp16, row by row from ordinary numbers alone to two fifths any bits, infinities, NaNs and -0.

    One infinity fills a block's scale, and rows of them give one and the same result: so some rows have none, or one.
    """
    random = np.random.default_rng([seed, *shape])
    special = random.choice(np.array([0x7C00, 0xFC00, 0x7E00, 0xFFFF, 0x7C01, 0x8000], np.uint16), shape)
    bits = np.where(random.random(shape) < 0.3, random.integers(0, 1 << 16, shape).astype(np.uint16), special)
    share = random.choice([0, 0.02, 0.1, 0.4], (*shape[:-1], 1))
    return np.where(random.random(shape) < share, bits, halves(seed, *shape).view(np.uint16)).view(np.float16)


def graph_and_inputs(kernel, operands: Sequence[np.ndarray], chip: int = 0, machine=MACHINE) -> tuple[Graph, dict]:
    """A kernel alone on one chip of a card."""
    graph = graph_alone(kernel, targets.placement(machine, chip), [shaped(x) for x in operands])
    return graph, {operand_name(number): (x,) for number, x in enumerate(operands)}


def same(comparison: Comparison, graph: Graph, inputs, machine=MACHINE) -> None:
    """The graph's programs give what it evaluates to: its results, and every intermediate that is stored."""
    wanted = evaluate(graph, inputs, KTPU, [graph.tensors[t].name for t in graph.stored()])
    assert comparison.compare(graph, inputs, wanted, machine), f"refused: {dict(comparison.tally.refused)}"


def same_kernel(comparison: Comparison, kernel, *operands: np.ndarray, chip: int = 0, machine=MACHINE) -> np.ndarray:
    """A kernel, or each of a composition, alone on one chip; returns what it evaluates to."""
    if isinstance(kernel, Composition):
        return kernel.through(
            lambda one, *values: same_kernel(comparison, one, *values, chip=chip, machine=machine), *operands
        )
    graph, inputs = graph_and_inputs(kernel, operands, chip, machine)
    same(comparison, graph, inputs, machine)
    return evaluate(graph, inputs, KTPU)["result"][0]


def same_value(found: Sharded, wanted: Sharded) -> None:
    """Every rank's piece, bit for bit."""
    assert found.meshes == wanted.meshes
    assert found.specs == wanted.specs
    for rank, (a, b) in enumerate(zip(found.parts, wanted.parts, strict=True)):
        problem = difference(a.numpy(), b.numpy())
        assert problem is None, f"piece {rank}, on mesh {found.meshes[rank]}: {problem}"


def on_both(call, machine=MACHINE, meshes=None, grid=None) -> tuple[MeshGroup, Sharded]:
    """`call(group)` on a group whose graphs are evaluated and on one that runs programs: one and the same value.

    Returns the second group, and what it gave.
    """
    groups = [
        MeshGroup.open(machine, meshes, backend=backend)
        if grid is None
        else MeshGroup.grid(machine, *grid, meshes, backend=backend)
        for backend in ("evaluator", "simulator")
    ]
    wanted, found = (call(group) for group in groups)
    same_value(found, wanted)
    return groups[1], found
