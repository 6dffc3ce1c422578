"""Kernels emitted for vector cores, run on cores in software, beside what their graphs mean."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from tests.simulator.vector_rig import FlatMemory

from meshwright.evaluate.walk import evaluate
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import TensorId
from meshwright.ir.records import Site
from meshwright.kernels.alone import graph_alone, operand_name
from meshwright.kernels.kernel import Shaped
from meshwright.machine import load
from meshwright.simulator.vector_core import VectorCore
from meshwright.targets.ktpu.arithmetic import KtpuArithmetic
from meshwright.targets.ktpu.emit_vector import Placed, VectorTask, emit_vector, padded_rows, row_major
from meshwright.targets.ktpu.isa.check import check_program
from meshwright.targets.ktpu.placement import KtpuPlacement

CARD = load("ktpu-v13p")
CHIP = 0
BASE = CARD.global_addr(CHIP, 0x10000)
POISON = 0x5A
"""What every byte of memory is before anything is written: a store beyond its elements shows."""


def columns(address: int, shape: tuple[int, ...]) -> Placed:
    """The first axis innermost, each column from a word on."""
    return Placed(address, padded_rows(0, shape[::-1]).strides[::-1])


def spread(address: int, shape: tuple[int, ...]) -> Placed:
    """Every element in a word of its own."""
    return Placed(address, tuple(16 * stride for stride in row_major(0, shape).strides))


LAYOUTS = {"rows": row_major, "padded": padded_rows, "columns": columns, "spread": spread}


def placed(graph: Graph, layout: str | Sequence[str]) -> dict[tuple[TensorId, int], Placed]:
    """Every piece of the graph on chip 0, one after the other; one layout for all, or for each in turn."""
    layouts = itertools.cycle([layout] if isinstance(layout, str) else layout)
    address = BASE
    found = {}
    for number, (tensor, each) in enumerate(zip(graph.tensors, layouts, strict=False)):
        place = LAYOUTS[each](address, tensor.local)
        found[TensorId(number), 0] = place
        address += size_of(place, tensor.local, tensor.format)
    return found


def size_of(place: Placed, shape: Sequence[int], format: ElementType) -> int:
    """Bytes that a piece takes, and a gap after it."""
    elements = 1 + sum((size - 1) * stride for size, stride in zip(shape, place.strides, strict=True))
    return (elements * format.bits // 8 + 511) // 256 * 256


def view(memory: np.ndarray, place: Placed, shape, dtype) -> np.ndarray:
    size = np.dtype(dtype).itemsize
    return np.ndarray(shape, dtype, memory, place.address - BASE, tuple(s * size for s in place.strides))


def tasks_of(graph: Graph, where) -> tuple[VectorTask, ...]:
    """The tasks of every vector core of chip 0."""
    sites = sorted({graph.site(s) for s in graph.stages}, key=str)
    return tuple(task for site in sites for task in emit_vector(graph, site, CARD, where))


def run(
    graph: Graph, inputs: dict[str, np.ndarray], where: dict[tuple[TensorId, int], Placed]
) -> dict[str, np.ndarray]:
    """What the emitted programs leave in memory for every tensor that the graph stores and doesn't load again.

    Every program is checked against the machine first. Nothing outside the elements of results may change, but what
    shares a last word with them and is nobody's.
    """
    pieces = [(where[TensorId(number), 0], tensor) for number, tensor in enumerate(graph.tensors)]
    end = max(place.address + size_of(place, tensor.local, tensor.format) for place, tensor in pieces)
    memory = np.full(end - BASE, POISON, np.uint8)
    for name, array in inputs.items():
        view(memory, where[graph.tensor_id(name), 0], array.shape, array.dtype)[...] = array
    port = FlatMemory()
    for at in range(0, len(memory), 32):
        port.words[BASE + at] = memory[at : at + 32].view(np.uint16)
    cores: dict[Site, VectorCore] = {}
    for task in tasks_of(graph, where):
        check_program(task.program, CARD, CHIP, (task.site.x, task.site.y))
        core = cores.setdefault(task.site, VectorCore(CARD.vector_core, port))
        for word in task.program.encode():
            answer = core.execute(word)
            assert (answer.fault, answer.defect) == (None, None)
    after = np.concatenate([port.words[BASE + at] for at in range(0, len(memory), 32)]).view(np.uint8)
    results = {}
    for tensor in graph.outputs():
        record = graph.tensors[tensor]
        results[record.name] = view(after, where[tensor, 0], record.local, np.float16).copy()
    for name, array in inputs.items():
        left = view(after, where[graph.tensor_id(name), 0], array.shape, array.dtype)
        np.testing.assert_array_equal(left.view(np.uint16), array.view(np.uint16))
    return results


def check(
    graph: Graph,
    inputs: dict[str, np.ndarray],
    layout: str | Sequence[str] | dict[tuple[TensorId, int], Placed] = "rows",
) -> None:
    """The programs leave exactly the bits that the graph means. layout: of `LAYOUTS`, or the places themselves."""
    wanted = evaluate(graph, {name: (array,) for name, array in inputs.items()}, KtpuArithmetic())
    found = run(graph, inputs, layout if isinstance(layout, dict) else placed(graph, layout))
    for name, (array,) in wanted.items():
        np.testing.assert_array_equal(found[name].view(np.uint16), array.view(np.uint16), err_msg=name)


class OneCore(KtpuPlacement, frozen=True):
    """Everything on the first vector core: two would share a word of a value that is small enough."""

    def vector_sites(self) -> tuple[Site, ...]:
        return super().vector_sites()[:1]


def graph_of(kernel, *operands, cores: int = 2) -> Graph:
    """The graph of a kernel on chip 0."""
    placement = (KtpuPlacement if cores == 2 else OneCore)(CARD, CHIP)
    return graph_alone(kernel, placement, [Shaped(np.shape(o), ElementType.F16) for o in operands])


def check_kernel(kernel, *operands, layout: str | Sequence[str] = "rows", cores: int = 2) -> None:
    """A kernel alone, on the vector cores of chip 0."""
    check(graph_of(kernel, *operands, cores=cores), {operand_name(i): o for i, o in enumerate(operands)}, layout)


def halves(*shape, seed=0, scale=1.0) -> np.ndarray:
    """Normal values."""
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float16)
