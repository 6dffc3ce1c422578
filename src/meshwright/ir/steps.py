"""How stages move blocks, step by step: what a stage may do depends on how far the others have come.

A firing takes steps, and a step moves at most one block a port: a `Matmul` takes a pair of blocks a step and puts its
result in the last one, a `Reduce` over several blocks likewise; a `Permute` takes block after block and, from the
step of the last one on, puts block after block. Everything else fires in one step. A multicast load puts into the
buffer of every receiver in the same step, so it needs room in all of them; receive stages take no steps of their own.

Everything is then one kind of rule, `Rule`: a stage may be no further at one port than another stage is at one of its
own, plus a number. Rules only ever allow more as stages go on, so whatever can step stays able to until it does, and
any order of steps ends in the same place.
"""

from __future__ import annotations

from collections import defaultdict
from enum import StrEnum
from itertools import pairwise

from msgspec import Struct

from meshwright.ir.flow import rates, stage_order
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, GroupId, StageId
from meshwright.ir.operation import Matmul, Permute, Reduce
from meshwright.ir.records import Compute, Load, Recv, Stage, Store


class Port(Struct, frozen=True):
    """When a stage moves blocks: `count` blocks a firing of `period` steps, one a step from step `first` on."""

    period: int = 1
    first: int = 0
    count: int = 1

    def moved(self, steps: int) -> int:
        """Blocks moved after so many steps."""
        firings, step = divmod(steps, self.period)
        return firings * self.count + min(max(step - self.first, 0), self.count)

    def most_steps(self, blocks: int) -> int:
        """The most steps that move no more than `blocks` blocks."""
        firings, left = divmod(blocks, self.count)
        return firings * self.period + self.first + left


class Reason(StrEnum):
    """Why a stage waits."""

    BLOCKS = "a block in"
    ROOM = "room in"
    TURN = "its turn at"


class Rule(Struct, frozen=True):
    """At port `mine` stage `stage` has moved at most what stage `other` has moved at port `theirs`, plus `slack`."""

    stage: StageId
    mine: Port
    other: StageId
    theirs: Port
    slack: int
    reason: Reason
    buffer: BufferId


class Walk(Struct, frozen=True):
    """All that decides in what orders the stages of a graph can step.

    periods, steps: of each stage, steps of a firing and steps in all. rules: grouped by the stage they hold back.
    waits: for each stage the stages that have to have finished before it begins.
    """

    periods: tuple[int, ...]
    steps: tuple[int, ...]
    rules: tuple[tuple[Rule, ...], ...]
    waits: tuple[tuple[StageId, ...], ...]


def walk_of(graph: Graph) -> Walk:
    """The rules of a well-formed graph whose blocks balance (`flow.block_counts`).

    Each group has one sender here, its first; that it has no other is asked elsewhere.
    """
    senders: dict[GroupId, StageId] = {}
    for index, stage in enumerate(graph.stages):
        if isinstance(stage.kind, Load) and stage.kind.multicast is not None:
            senders.setdefault(stage.kind.multicast, StageId(index))
    # A receive stage begins and finishes with the load that fills its buffer.
    acting = [
        senders.get(s.kind.group, StageId(i)) if isinstance(s.kind, Recv) else StageId(i)
        for i, s in enumerate(graph.stages)
    ]
    periods = [_period(graph, stage) for stage in graph.stages]
    steps = [
        0 if isinstance(s.kind, Recv) else n * p for s, n, p in zip(graph.stages, _firings(graph), periods, strict=True)
    ]
    rules = defaultdict[StageId, list[Rule]](list)
    for rule in [*_fifo_rules(graph, acting, periods), *_accumulator_rules(graph, periods)]:
        rules[rule.stage].append(rule)
    waits = defaultdict[StageId, set[StageId]](set)
    for before, after in [*((e.before, e.after) for e in graph.precedences), *_reopened(graph)]:
        waits[acting[after]].add(acting[before])
    everyone = range(len(graph.stages))
    return Walk(
        tuple(periods),
        tuple(steps),
        tuple(tuple(rules[StageId(i)]) for i in everyone),
        tuple(tuple(sorted(waits[StageId(i)])) for i in everyone),
    )


def _firings(graph: Graph) -> list[int]:
    """How often each stage fires; one that takes from an accumulator as often as there are blocks in it then."""
    firings = [0] * len(graph.stages)
    counts: dict[BufferId, int] = {}
    sent: dict[GroupId, int] = {}
    for index in stage_order(graph):
        stage = graph.stages[index]
        match stage.kind:
            case Recv(group):
                firings[index] = sent.get(group, 0)
            case Load(num_blocks=blocks):
                firings[index] = blocks
                if stage.kind.multicast is not None:
                    sent[stage.kind.multicast] = blocks
            case Store(pattern=pattern):
                firings[index] = pattern.num_blocks
            case _:
                buffer, each = next(rates(stage), (None, 1))
                firings[index] = 1 if buffer is None else counts.get(buffer, 0) // each
        for buffer in stage.outs:
            counts[buffer] = firings[index] * _putting(graph, stage, _period(graph, stage)).count
    return firings


def _period(graph: Graph, stage: Stage) -> int:
    match stage.kind:
        case Compute(Matmul(contraction_blocks=blocks) | Reduce(blocks=blocks)):
            return blocks
        case Compute(Permute() as op):
            return op.blocks_in + permuted_blocks(graph, stage, op) - 1
        case _:
            return 1


def permuted_blocks(graph: Graph, stage: Stage, op: Permute) -> int:
    """How many blocks a firing of a `Permute` puts."""
    return op.blocks_in * graph.buffers[stage.ins[0]].elements // graph.buffers[stage.outs[0]].elements


def _taking(stage: Stage, buffer: BufferId, each: int, period: int) -> Port:
    late = isinstance(stage.kind, Compute) and isinstance(stage.kind.op, Matmul) and buffer == stage.kind.op.bias
    return Port(period, period - 1 if late else 0, each)


def _putting(graph: Graph, stage: Stage, period: int) -> Port:
    if isinstance(stage.kind, Compute) and isinstance(stage.kind.op, Permute):
        return Port(period, stage.kind.op.blocks_in - 1, permuted_blocks(graph, stage, stage.kind.op))
    return Port(period, period - 1, 1)


def fifo_ends(
    graph: Graph, acting: list[StageId], periods: list[int]
) -> dict[BufferId, tuple[StageId, Port, StageId, Port]]:
    """For every FIFO between two stages: who fills it and at which port, who empties it and at which port."""
    fills = {
        b: (acting[i], _putting(graph, s, periods[i]) if acting[i] == i else Port())
        for i, s in enumerate(graph.stages)
        for b in s.outs
    }
    ends: dict[BufferId, tuple[StageId, Port, StageId, Port]] = {}
    for index, stage in enumerate(graph.stages):
        for buffer, each in rates(stage):
            if not graph.buffers[buffer].resident and buffer in fills:
                ends[buffer] = (*fills[buffer], StageId(index), _taking(stage, buffer, each, periods[index]))
    return ends


def _fifo_rules(graph: Graph, acting: list[StageId], periods: list[int]) -> list[Rule]:
    found: list[Rule] = []
    for buffer, (filler, put, taker, take) in fifo_ends(graph, acting, periods).items():
        found.append(Rule(taker, take, filler, put, 0, Reason.BLOCKS, buffer))
        found.append(Rule(filler, put, taker, take, graph.buffers[buffer].depth, Reason.ROOM, buffer))
    return found


def generations(graph: Graph) -> dict[BufferId, list[list[StageId]]]:
    """For each accumulator the stages that touch it, in table order, cut where one opens it: puts without taking."""
    found = defaultdict[BufferId, list[list[StageId]]](list)
    for index, stage in enumerate(graph.stages):
        for buffer in dict.fromkeys((*stage.ins, *stage.outs)):
            if graph.buffers[buffer].resident:
                if buffer not in stage.ins or not found[buffer]:
                    found[buffer].append([])
                found[buffer][-1].append(StageId(index))
    return found


def _accumulator_rules(graph: Graph, periods: list[int]) -> list[Rule]:
    """Block by block a stage follows the one before it; a block is opened where the last one is through with one."""
    found: list[Rule] = []
    for buffer, opened in generations(graph).items():
        for touching in opened:
            for before, after in pairwise(touching):
                begin, end = Port(periods[after]), Port(periods[before], periods[before] - 1)
                found.append(Rule(after, begin, before, end, 0, Reason.TURN, buffer))
            first, last = touching[0], touching[-1]
            begin, end = Port(periods[first]), Port(periods[last], periods[last] - 1)
            if first != last:
                found.append(Rule(first, begin, last, end, graph.buffers[buffer].depth, Reason.ROOM, buffer))
    return found


def _reopened(graph: Graph) -> list[tuple[StageId, StageId]]:
    """An accumulator is opened again when the stages that touched it before have finished."""
    return [(a[-1], b[0]) for opened in generations(graph).values() for a, b in pairwise(opened)]
