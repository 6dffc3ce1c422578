"""Bytes that a graph moves over each link between meshes: derived from where its stages and buffers are."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Final

from meshwright import targets
from meshwright.errors import PlacementError
from meshwright.ir.flow import block_counts
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId
from meshwright.ir.moves import reduced
from meshwright.ir.records import AllReduce, Load, Recv, Stage, Store
from meshwright.machine import MachineSpec
from meshwright.machine.checks import Crossing

LinkBytes = dict[tuple[int, int], int]
"""Payload bytes by (from mesh, to mesh) of neighbouring meshes."""


def link_bytes(graph: Graph, machine: MachineSpec) -> LinkBytes:
    """Payload bytes over every link and direction that the graph uses.

    A store to another mesh's piece crosses every link on the way, as does a block put into a buffer on another mesh. An
    `AllReduce` moves each running sum from its operand's mesh to the next operand's, except that with two
    operands the one that isn't the output's moves. Raises `PlacementError` for what the machine says doesn't cross a
    link, or not more than one.
    """
    traffic = _Traffic(graph, machine)
    for index in range(len(graph.stages)):
        traffic.add(index)
    return dict(traffic.crossed)


class _Traffic:
    """Bytes counted so far."""

    def __init__(self, graph: Graph, machine: MachineSpec) -> None:
        self.graph = graph
        self.machine = machine
        self.counts = block_counts(graph)
        self.crossed: Counter[tuple[int, int]] = Counter()

    def add(self, index: int) -> None:
        """Counts what one stage moves."""
        stage = self.graph.stages[index]
        chip = self.graph.site(stage).chip
        match stage.kind:
            case Load(tensor=tensor):
                record = self.graph.tensors[tensor]
                owner = record.chips[self.graph.rank_of(stage)]
                doing = f"stage s{index} on mesh {chip} loads {record.name!r} from mesh {owner}"
                self._require(chip, owner, "read", doing)
                self._move(owner, chip, self._landing(stage))
            case Store(tensor=tensor):
                record = self.graph.tensors[tensor]
                owner = record.chips[self.graph.rank_of(stage)]
                self._require(
                    chip, owner, "write", f"stage s{index} on mesh {chip} stores {record.name!r} to mesh {owner}"
                )
                self._move(chip, owner, stage.ins[0])
            case AllReduce():
                for source, target, buffer in reduced(self.graph, stage):
                    self._require(
                        source, target, "unit_data", f"stage s{index} sends sums from mesh {source} to mesh {target}"
                    )
                    self._move(source, target, buffer)
            case _:
                for buffer in stage.outs:
                    target = self.graph.buffers[buffer].site.chip
                    self._require(
                        chip,
                        target,
                        "unit_data",
                        f"stage s{index} on mesh {chip} puts blocks into b{buffer} on mesh {target}",
                    )
                    self._move(chip, target, buffer)

    def _landing(self, stage: Stage) -> BufferId:
        """Where a load's blocks arrive; those of a multicast all arrive alike."""
        if stage.outs:
            return stage.outs[0]
        assert isinstance(stage.kind, Load)
        group = stage.kind.multicast
        return next(s.outs[0] for s in self.graph.stages if isinstance(s.kind, Recv) and s.kind.group == group)

    def _move(self, source: int, target: int, buffer: BufferId) -> None:
        if source == target:
            return
        record = self.graph.buffers[buffer]
        payload = targets.wire_bytes(self.machine, record.format, record.elements) * self.counts[buffer]
        for hop in pairwise(self.machine.path(source, target)):
            self.crossed[hop] += payload

    def _require(self, source: int, target: int, what: Crossing, doing: str) -> None:
        machine = self.machine
        if machine.reaches(source, target, what):
            return
        if what not in machine.crosses:
            instead = ": copy it from where it is" if what == "read" else ""
            raise PlacementError(f"{doing}; on {machine.name} {_KINDS[what]} don't cross a link{instead}")
        if not machine.fabric.joined(source, target):
            raise PlacementError(f"{doing}; on {machine.name} no link leads there")
        between = machine.path(source, target)[1:-1]
        raise PlacementError(
            f"{doing}, {len(between) + 1} links away; on {machine.name} a link passes nothing on: go over "
            f"{'mesh' if len(between) == 1 else 'meshes'} {', '.join(map(str, between))} step by step"
        )


_KINDS: Final[dict[Crossing, str]] = {
    "read": "reads",
    "write": "writes",
    "unit_data": "blocks between units",
    "doorbell": "doorbells",
}
