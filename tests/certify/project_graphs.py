"""The graphs that the project itself makes: kernels on one chip of each machine, and plans over several."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tests.kernels.samples import SAMPLES

import meshwright as mw
from meshwright import targets
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.kernels.alone import graph_alone
from meshwright.kernels.kernel import Shaped
from meshwright.machine import MachineSpec, load

Named = tuple[str, Graph, MachineSpec]


def kernels() -> Iterator[Named]:
    """Every sample of a kernel."""
    for machine in map(load, ("ktpu-v13p", "grid-8x8")):
        place = targets.placement(machine, 0)
        for name, (kernel, operands) in SAMPLES.items():
            kinds = [ElementType.I32 if a.dtype.kind in "iu" else place.value_format for a in operands]
            shaped = [Shaped(a.shape, kind) for a, kind in zip(operands, kinds, strict=True)]
            yield f"{name} on {machine.name}", graph_alone(kernel, place, shaped), machine


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float16)


def plans() -> Iterator[Named]:
    """Products in every pairing, kernels on every rank, reductions in accumulators and collectives on the card."""
    group = mw.MeshGroup.open("ktpu-v13p")
    copied, by_rows, by_k = group.copy(ones(64, 256)), group.split(ones(64, 256), 0), group.split(ones(64, 256), 1)
    weights, weights_by_k = group.split(ones(128, 256), 0), group.split(ones(128, 256), 1)
    partial = group.run(group.plan_matmul(by_k, weights_by_k))
    again = group.run(group.plan_matmul(by_k, weights_by_k))
    largest = group.run(group.plan_each(mw.kernels.reduce("max", -1), by_k))
    vector = group.copy(ones(256))
    three = mw.MeshGroup.open("ktpu-v13p", meshes=(0, 1, 3))
    square = mw.MeshGroup.grid("ktpu-v13p", 2, 2)
    tall = square.put(ones(64, 256), (mw.Spec.on(0), mw.Spec.on(1)))
    flat = square.put(ones(64, 256), (mw.COPIED, mw.Spec.on(1)))
    wide = square.put(ones(128, 256), (mw.COPIED, mw.Spec.on(1)))
    made = {
        "columns": group.plan_matmul(copied, weights),
        "rows": group.plan_matmul(by_rows, copied),
        "partial": group.plan_matmul(by_k, weights_by_k),
        "chain": group.plan_chain_reduce(by_k, weights_by_k),
        "chain with a tile": group.plan_chain_reduce(by_k, weights_by_k, tile=(64, 32, 64)),
        "star": three.plan_reduce(three.split(ones(64, 192), 1), three.split(ones(128, 192), 1)),
        "all-reduce": group.plan_reshard(partial, mw.COPIED),
        "reduce-scatter": group.plan_reshard(partial, mw.Spec.on(0)),
        "reduce-scatter of columns": group.plan_reshard(partial, mw.Spec.on(1)),
        "all-to-all": group.plan_reshard(by_rows, mw.Spec.on(1)),
        "all-gather": group.plan_reshard(by_rows, mw.COPIED),
        "slice": group.plan_reshard(copied, mw.Spec.on(0)),
        "gelu": group.plan_each(mw.kernels.gelu, by_rows),
        "softmax": group.plan_each(mw.kernels.softmax(), by_rows),
        "layer norm": group.plan_each(mw.kernels.layer_norm(), by_rows, vector, vector),
        "twice a partial": group.plan_each(lambda a: a * 2.0, partial),
        "sum of partials": group.plan_each(lambda a, b: a + b, partial, again),
        "sum of slices": group.plan_each(mw.kernels.reduce("sum", -1), by_k),
        "maximum of slices": group.plan_each(mw.kernels.reduce("max", -1), by_k),
        "maximum, reduced": group.plan_reshard(largest, mw.COPIED),
        "on a grid": square.plan_matmul(tall, wide),
        "on a grid, reduced": square.plan_reshard(square.run(square.plan_matmul(tall, wide)), mw.COPIED, 1),
        "chains on a grid": square.plan_chain_reduce(flat, wide, along=1),
    }
    for name, plan in made.items():
        yield name, plan.graph(), group.machine
