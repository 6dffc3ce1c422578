"""What a fault is put into, and what comes of it: subjects, mutants and kinds of fault. Data only."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from meshwright.ir.graph import Graph
from meshwright.ir.ids import TensorId
from meshwright.machine import MachineSpec

Places = Mapping[tuple[TensorId, int], tuple[int, int]]
"""Bytes (start, stop) of every piece in the DRAM of its chip."""


class Subject(Struct, frozen=True, eq=False):
    """A sound graph for a machine."""

    name: str
    graph: Graph
    machine: MachineSpec


class Mutant(Struct, frozen=True, eq=False):
    """A graph with one fault.

    place: where it was put. belongs: the obligations of which at least one has to be broken. machine: another one than
    the subject's, for faults of what the machine has. spans: where pieces lie in DRAM.
    """

    place: str
    belongs: tuple[str, ...]
    graph: Graph
    machine: MachineSpec
    spans: Places | None = None


class Kind(Struct, frozen=True, eq=False):
    """A kind of fault: its name, the obligations it belongs to, and every place of a subject where it applies."""

    name: str
    belongs: tuple[str, ...]
    make: Callable[[Subject], Iterator[Mutant]]


Edit = tuple[str, Graph]
"""Where, and the graph with the fault there."""


def edits(name: str, belongs: str | tuple[str, ...], find: Callable[[Graph], Iterator[Edit]]) -> Kind:
    """A kind whose places are found in the graph alone."""
    owners = (belongs,) if isinstance(belongs, str) else belongs

    def make(subject: Subject) -> Iterator[Mutant]:
        for place, graph in find(subject.graph):
            yield Mutant(place, owners, graph, subject.machine)

    return Kind(name, owners, make)


def places(graph: Graph, machine: MachineSpec) -> dict[tuple[TensorId, int], tuple[int, int]]:
    """Every piece in the DRAM of its chip, one after another, each from a burst's first byte on."""
    burst = machine.dram.burst_bytes
    top: dict[int, int] = defaultdict(int)
    found: dict[tuple[TensorId, int], tuple[int, int]] = {}
    for number, tensor in enumerate(graph.tensors):
        size = math.ceil(math.prod(tensor.local) * tensor.format.bits / 8)
        for rank, chip in enumerate(tensor.chips):
            found[TensorId(number), rank] = (top[chip], top[chip] + size)
            top[chip] += math.ceil(size / burst) * burst
    return found
