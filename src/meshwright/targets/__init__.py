"""Machine families: what each gives the other rooms. The only place that tells one family from another."""

from __future__ import annotations

import math

from meshwright.errors import PlacementError
from meshwright.evaluate.arithmetic import Arithmetic
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.kernels.placement import Placement
from meshwright.machine import MachineSpec
from meshwright.targets.grid.arithmetic import GridArithmetic
from meshwright.targets.grid.placement import GridPlacement
from meshwright.targets.ktpu import wire
from meshwright.targets.ktpu.arithmetic import KtpuArithmetic
from meshwright.targets.ktpu.compile import compile_graph
from meshwright.targets.ktpu.compiled import Compiled
from meshwright.targets.ktpu.listing import listing
from meshwright.targets.ktpu.placement import KtpuPlacement


def arithmetic(machine: MachineSpec) -> Arithmetic:
    """The number system of the machine's silicon."""
    match machine.numerics:
        case "ktpu":
            return KtpuArithmetic()
        case "grid":
            return GridArithmetic()


def placement(machine: MachineSpec, chip: int) -> Placement:
    """One chip of the machine as kernels see it; `MachineError` for a chip that isn't there."""
    machine.mesh(chip)
    match machine.numerics:
        case "ktpu":
            return KtpuPlacement(machine, chip)
        case "grid":
            return GridPlacement(machine, chip)


def value_format(machine: MachineSpec) -> ElementType:
    """The element type of float values in the machine's DRAM."""
    return placement(machine, machine.mesh_ids[0]).value_format


def wire_bytes(machine: MachineSpec, format: ElementType, elements: int) -> int:
    """Payload bytes of `elements` of a block that crosses a link of the machine."""
    match machine.numerics:
        case "ktpu":
            return wire.payload_bytes(format, elements)
        case "grid":
            return math.ceil(elements * format.bits / 8)


def programs(machine: MachineSpec, graph: Graph, given: frozenset[str] = frozenset()) -> Compiled:
    """The programs of a graph for the machine's units, and what the host does between them.

    given: names of stored tensors that have a content before. Raises `PlacementError` for what its units don't do, and
    for a machine without instruction words.
    """
    match machine.numerics:
        case "ktpu":
            return compile_graph(graph, machine, given)
        case "grid":
            raise PlacementError(
                f"{machine.name} has no instruction words: its program is the placed graph, plan.graph(), which is "
                "evaluated"
            )


def program_text(machine: MachineSpec, graph: Graph, words: bool = False) -> str:
    """What `programs` gives, as text; words: with the disassembly of every word. Raises as `programs` does."""
    return listing(programs(machine, graph), words)
