"""Bytes that a graph moves over each link between meshes: derived from where its stages and buffers are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from meshwright import targets
from meshwright.errors import PlacementError
from meshwright.ir.flow import block_counts
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId
from meshwright.ir.records import AllReduce, Load, Store
from meshwright.machine import MachineSpec

LinkBytes = dict[tuple[int, int], int]
"""Payload bytes by (from mesh, to mesh) of neighbouring meshes."""


_Mover = Callable[[int, int, BufferId], None]


def link_bytes(graph: Graph, machine: MachineSpec) -> LinkBytes:
    """Payload bytes over every link and direction that the graph uses.

    A store to another mesh's piece crosses every link on the way, as does a block put into a buffer on another mesh. An
    `AllReduce` moves each running sum from its operand's mesh to the next operand's, except that with two
    operands the one that isn't the output's moves. Raises `PlacementError` for a load of another mesh's memory where
    the machine says that reads don't cross, and where no way leads.
    """
    counts = block_counts(graph)
    crossed: Counter[tuple[int, int]] = Counter()

    def move(source: int, target: int, buffer: BufferId) -> None:
        record = graph.buffers[buffer]
        payload = targets.wire_bytes(machine, record.format, record.elements) * counts[buffer]
        for hop in pairwise(machine.path(source, target)):
            crossed[hop] += payload

    for index, stage in enumerate(graph.stages):
        chip = graph.site(stage).chip
        match stage.kind:
            case Load(tensor=tensor):
                owner = graph.tensors[tensor].chips[graph.rank_of(stage)]
                if owner != chip and not machine.reaches(chip, owner, "read"):
                    raise PlacementError(
                        f"stage s{index} on mesh {chip} loads {graph.tensors[tensor].name!r} from mesh {owner}; on "
                        f"{machine.name} reads don't cross a link: copy it from where it is"
                    )
                for buffer in stage.outs:
                    move(owner, chip, buffer)
            case Store(tensor=tensor):
                move(chip, graph.tensors[tensor].chips[graph.rank_of(stage)], stage.ins[0])
            case AllReduce():
                _reduce_moves(graph, stage.ins, stage.outs, move)
            case _:
                for buffer in stage.outs:
                    move(chip, graph.buffers[buffer].site.chip, buffer)
    return dict(crossed)


def _reduce_moves(graph: Graph, ins: tuple[BufferId, ...], outs: tuple[BufferId, ...], move: _Mover) -> None:
    chips = [graph.buffers[b].site.chip for b in ins]
    ends = [graph.buffers[b].site.chip for b in outs]
    if len(ins) == 2 and len(outs) == 1 and ends[0] == chips[0]:
        move(chips[1], chips[0], ins[1])
        return
    for (source, target), buffer in zip(pairwise(chips), ins, strict=False):
        move(source, target, buffer)
    for end, buffer in zip(ends, outs, strict=True):
        move(chips[-1], end, buffer)
