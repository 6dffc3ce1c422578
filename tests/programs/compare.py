"""Graphs run as programs on simulated cards, beside what they evaluate to: bits compared as integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from meshwright.errors import PlacementError
from meshwright.ir.graph import Graph
from meshwright.machine import MachineSpec, load
from meshwright.runtime.cards import over
from meshwright.runtime.device import Device, Tensor
from meshwright.runtime.held import Held, memory_of
from meshwright.runtime.run import run_graph
from meshwright.runtime.transport import InProcess
from meshwright.simulator import Card
from meshwright.simulator.memory import PAGE
from meshwright.targets.ktpu.compiled import Compiled
from meshwright.targets.ktpu.orders import Operand, Order
from programs.refused import reason

MACHINE = load("ktpu-v13p")
Pieces = Mapping[str, Sequence[np.ndarray]]


class BitsDifferError(AssertionError):
    """Programs gave other bits than the evaluator, or left others in memory."""


class RefusedError(AssertionError):
    """A graph couldn't be run as programs, for no reason that the table of refusals has."""


@dataclass
class Tally:
    """What was compared. images, image_bytes: of values, as they lay in DRAM; refused: graphs by reason."""

    graphs: int = 0
    elements: int = 0
    programs: int = 0
    words: int = 0
    relayouts: int = 0
    relaid: int = 0
    carried: int = 0
    images: int = 0
    image_bytes: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"{self.graphs:,} graphs, {self.elements:,} elements of results compared",
            f"{self.programs:,} programs, {self.words:,} instruction words",
            f"{self.relayouts:,} relayouts of {self.relaid:,} bytes; {self.carried:,} bytes carried by the host",
            f"{self.images:,} images of {self.image_bytes:,} bytes compared in DRAM",
            f"{self.refused.total():,} graphs refused" + ":" * bool(self.refused),
            *(f"  {count:,}  {why}" for why, count in self.refused.most_common()),
        ]


class SimulatedCard:
    """A card in software, a device on each of its meshes. Between graphs its DRAM is forgotten, its units are not."""

    def __init__(self, machine: MachineSpec) -> None:
        self.machine = machine
        self.silicon = Card(machine)
        self.transport = InProcess(self.silicon)
        self.card = over(self.transport, machine)
        self.devices = {mesh: Device(self.card, mesh) for mesh in machine.mesh_ids}

    def compiled(self, graph: Graph, given: frozenset[str] = frozenset()) -> Compiled:
        """What the card's backend runs for a graph."""
        return self.card.backend.compiled(graph, given)

    def hold(self, graph: Graph, inputs: Pieces) -> dict[str, list[Tensor]]:
        """Values of the devices, put there anew."""
        held: dict[str, list[Tensor]] = {}
        for name, pieces in inputs.items():
            record = graph.tensors[graph.tensor_id(name)]
            held[name] = [
                self.devices[chip].hold(piece, record.format) for chip, piece in zip(record.chips, pieces, strict=True)
            ]
        return held

    def run(self, graph: Graph, inputs: Mapping[str, Sequence[Tensor]], names: Sequence[str]) -> dict[str, tuple]:
        """Runs the graph's programs; `names` beside its outputs are kept."""
        return run_graph(graph, self.devices, inputs, names)

    def memory_of(self, value: Tensor) -> list[tuple[Order, np.ndarray]]:
        """What lies in DRAM at each image of a value, read as the host reads."""
        memory = memory_of(value.device)
        found = []
        for order, span in memory.of(value).images.items():
            content = np.zeros(order.nbytes, np.uint8)
            data = self.transport.collect(memory.host_spans(span, order))
            for (first, count), piece in zip(order.spans(), data, strict=True):
                content[first : first + count] = np.frombuffer(piece, np.uint8)[:count]
            found.append((order, content))
        return found

    def held(self, value: Tensor) -> Held:
        """What the runtime knows of a value."""
        return memory_of(value.device).of(value)

    def counted(self) -> tuple[int, int, int]:
        """Relayouts, bytes of them, bytes carried."""
        stats = [device.stats() for device in self.devices.values()]
        return sum(s.relayouts for s in stats), sum(s.relaid for s in stats), sum(s.carried for s in stats)

    def close_devices(self) -> None:
        """Leaves the meshes to others, such as a group."""
        for device in self.devices.values():
            device.close()

    def forget(self) -> None:
        """Frees every value; what a program reads from now on and nobody wrote since is reported."""
        for mesh, device in self.devices.items():
            device.reset()
            dram = self.silicon.mesh(mesh).dram
            for number in list(dram._pages):
                dram.spoil(number * PAGE, min(PAGE, dram.size - number * PAGE), None)


class Comparison:
    """Compares on one simulated card a machine, and counts.

    opened: makes the cards; tests of this suite put faults into them.
    """

    def __init__(self, opened: Callable[[MachineSpec], SimulatedCard] = SimulatedCard) -> None:
        self.tally = Tally()
        self._opened = opened
        self._cards: dict[MachineSpec, SimulatedCard] = {}

    def card(self, machine: MachineSpec = MACHINE) -> SimulatedCard:
        """The card that graphs for a machine run on."""
        if machine not in self._cards:
            self._cards[machine] = self._opened(machine)
        return self._cards[machine]

    def compare(self, graph: Graph, inputs: Pieces, wanted: Pieces, machine: MachineSpec = MACHINE) -> bool:
        """Whether the graph was run: its programs leave exactly `wanted`, in every image of every value.

        wanted: what it evaluates to. Raises `BitsDifferError`, and `RefusedError` for a refusal that has no reason.
        """
        card = self.card(machine)
        before = card.counted()
        try:
            values = card.hold(graph, inputs)
            made = card.run(graph, values, list(set(wanted) - {graph.tensors[t].name for t in graph.outputs()}))
            self._results(graph, made, wanted)
            for held, elements in ((values, inputs), (made, wanted)):
                for name, pieces in elements.items():
                    self._memory(card, name, held[name], pieces)
        except PlacementError as error:
            if (why := reason(str(error))) is None:
                raise RefusedError(f"refused, and tests/programs/refused.py has no reason for it: {error}") from error
            self.tally.refused[why] += 1
            card.forget()
            return False
        except BaseException:
            # Units may have stopped half way.
            self._cards.pop(machine, None)
            raise
        self._count(graph, card, before, frozenset(inputs))
        card.forget()
        return True

    def _results(self, graph: Graph, made: Mapping[str, Sequence[Tensor]], wanted: Pieces) -> None:
        for name, pieces in wanted.items():
            for rank, (value, piece) in enumerate(zip(made[name], pieces, strict=True)):
                found = value.device.held(value)
                if (problem := difference(found, piece)) is not None:
                    chip = graph.tensors[graph.tensor_id(name)].chips[rank]
                    raise BitsDifferError(f"{name!r}, piece {rank} on mesh {chip}: {problem}\n{graph}")
                self.tally.elements += piece.size

    def _memory(self, card: SimulatedCard, name: str, values: Sequence[Tensor], pieces: Sequence[np.ndarray]) -> None:
        for rank, (value, piece) in enumerate(zip(values, pieces, strict=True)):
            for order, content in card.memory_of(value):
                if (problem := image_difference(order, content, piece)) is not None:
                    raise BitsDifferError(
                        f"DRAM, image of {name!r}, piece {rank}, as {type(order).__name__}: {problem}"
                    )
                self.tally.images += 1
                self.tally.image_bytes += order.nbytes

    def _count(self, graph: Graph, card: SimulatedCard, before: tuple[int, int, int], given: frozenset[str]) -> None:
        tally = self.tally
        stored = {graph.tensors[t].name for t in graph.stored()}
        programs = card.compiled(graph, given & stored).programs
        tally.graphs += 1
        tally.programs += len(programs)
        tally.words += sum(len(work.code.program) for work in programs)
        relayouts, relaid, carried = (now - then for now, then in zip(card.counted(), before, strict=True))
        tally.relayouts, tally.relaid = tally.relayouts + relayouts, tally.relaid + relaid
        tally.carried += carried


def difference(found: np.ndarray, wanted: np.ndarray) -> str | None:
    """What is different, bit for bit; None where nothing is."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"{found.dtype}{list(found.shape)}, and {wanted.dtype}{list(wanted.shape)} is what it evaluates to"
    a, b = (np.ascontiguousarray(x).reshape(-1).view(f"u{x.dtype.itemsize}") for x in (found, wanted))
    where = np.flatnonzero(a != b)
    if not where.size:
        return None
    first = where[0]
    at = tuple(int(i) for i in np.unravel_index(first, wanted.shape))
    return (
        f"{where.size:,} of {wanted.size:,} elements differ; the first, {at}, is {a[first]:#x} and evaluates to "
        f"{b[first]:#x}"
    )


def image_difference(order: Order, content: np.ndarray, wanted: np.ndarray) -> str | None:
    """Which bytes of an image are not those of the elements; None where all are that say something.

    Padding of operands says something: it is multiplied. That of rows and of what clusters drain doesn't.
    """
    packed, says = order.pack(wanted), np.zeros(order.nbytes, np.bool_)
    for first, count in order.spans():
        says[first : first + count] = True
    if not isinstance(order, Operand):
        says &= order.pack(np.full(wanted.shape, -1, f"i{wanted.dtype.itemsize}").view(wanted.dtype)) != 0
    where = np.flatnonzero((content != packed) & says)
    if not where.size:
        return None
    first = where[0]
    return (
        f"{where.size:,} of {says.sum():,} bytes differ; the first, {first:#x}, is {content[first]:#x} and has to be "
        f"{packed[first]:#x}"
    )
