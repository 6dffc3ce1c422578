"""The feed-forward block of a transformer over a group of meshes, with what it cost and how exact it was."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
from msgspec import Struct

from meshwright.evaluate.arithmetic import Array
from meshwright.frontend.minilm import Array64, MiniLM
from meshwright.ir import library
from meshwright.ir.expression import Operand
from meshwright.ir.graph import Graph
from meshwright.kernels.elementwise import Elementwise, add
from meshwright.runtime.traffic import LinkBytes, link_bytes
from meshwright.sharding.group import MeshGroup
from meshwright.sharding.lower import graph_of
from meshwright.sharding.plan import Plan

bias_gelu = Elementwise("gelu(h + b)", library.gelu(Operand(0) + Operand(1)), 2)

Progress = Callable[[int, int], None]


class Errors(Struct, frozen=True):
    """Relative errors |y - reference| / |reference| over all elements, against float64.

    rms: of y - reference, as a share of the reference's.
    """

    median: float
    p99: float
    largest: float
    rms: float

    @classmethod
    def of(cls, values: Array, reference: Array64) -> Errors:
        """The errors of `values`; elements whose reference is 0 are left out."""
        there = reference != 0
        error = values.astype(np.float64) - reference
        median, p99, largest = np.percentile(np.abs(error[there] / reference[there]), (50, 99, 100))
        return cls(float(median), float(p99), float(largest), rms(error) / rms(reference))


class Sizes(Struct, frozen=True):
    """How large the stage graphs of a piece of work were, added up."""

    graphs: int
    stages: int
    buffers: int
    tensors: int

    @classmethod
    def of(cls, graphs: list[Graph]) -> Sizes:
        """The sums over `graphs`."""
        return cls(
            len(graphs),
            sum(len(g.stages) for g in graphs),
            sum(len(g.buffers) for g in graphs),
            sum(len(g.tensors) for g in graphs),
        )


class Layer(Struct, frozen=True, eq=False):
    """What came out of one layer's block."""

    number: int
    plans: tuple[Plan, ...]
    hidden: Array
    hidden_product: Array
    output: Array
    errors: Errors
    crossed: LinkBytes
    sizes: Sizes
    seconds: float
    macs: int


def run_layer(group: MeshGroup, model: MiniLM, number: int, x: Array64, progress: Progress | None = None) -> Layer:
    """One layer's block on `x` [tokens, hidden]: columns, GELU, contraction summed along the chain, bias.

    With one mesh nothing is split and the second product is an ordinary one.
    """
    w1, b1 = (model.layer(number, f"intermediate.dense.{n}") for n in ("weight", "bias"))
    w2, b2 = (model.layer(number, f"output.dense.{n}") for n in ("weight", "bias"))
    alone = len(group) == 1
    tokens = group.copy(x, "tokens")
    first, first_bias = group.split(w1, 0, "w1"), group.split(b1, 0, "b1")
    second = group.split(w2, 1, "w2")
    plans: list[Plan] = []
    graphs: list[Graph] = []
    start = time.perf_counter()

    def run(plan: Plan, step: int):
        plans.append(plan)
        graphs.append(graph_of(plan))
        value = group.run(plan)
        if progress is not None:
            progress(step, 4)
        return value

    product = run(group.plan_matmul(tokens, first), 1)
    hidden = run(group.plan_each(bias_gelu, product, first_bias), 2)
    summed = run(group.plan_matmul(hidden, second) if alone else group.plan_chain_reduce(hidden, second), 3)
    bias = group.put_like(summed, b2, "b2")
    output = run(group.plan_each(add, summed, bias), 4)
    seconds = time.perf_counter() - start
    _, reference = model.feed_forward(number, x)
    values = output.numpy()
    return Layer(
        number,
        tuple(plans),
        hidden.numpy(),
        product.numpy(),
        values,
        Errors.of(values, reference),
        _crossed(graphs, group),
        Sizes.of(graphs),
        seconds,
        2 * x.shape[0] * w1.size,
    )


def _crossed(graphs: list[Graph], group: MeshGroup) -> LinkBytes:
    total: Counter[tuple[int, int]] = Counter()
    for graph in graphs:
        total.update(link_bytes(graph, group.machine))
    return dict(total)


def rms(values: Array64) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.mean(values * values)))


def differing(a: Array, b: Array) -> tuple[int, float]:
    """How many elements of two fp16 arrays have different bits, and the largest difference in rms of the first."""
    other = a.view(np.uint16) != b.view(np.uint16)
    left, right = a.astype(np.float64), b.astype(np.float64)
    return int(other.sum()), float(np.abs(left - right).max(initial=0.0)) / rms(left)


def layers(
    group: MeshGroup, model: MiniLM, x: Array64, progress: Callable[[int, int], None] | None = None
) -> Iterator[Layer]:
    """Every layer's feed-forward block on the same input."""
    count = model.config.num_hidden_layers
    for number in range(count):
        base = number * 4
        yield run_layer(
            group, model, number, x, None if progress is None else lambda s, n, base=base: progress(base + s, count * n)
        )
