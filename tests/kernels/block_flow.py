"""Runs a graph block by block within the depths of its FIFOs: who fires, and whether all finish.

A stage takes one block from each input at a time, a Matmul its bias with the last pair; it puts its result when the
last block of a fold has come and there is room. A multicast puts a block when every receiver has room for it.
Accumulators and Permutes don't occur in these graphs.
"""

from collections import Counter, defaultdict
from itertools import chain

from meshwright.ir.flow import block_counts
from meshwright.ir.operation import Matmul, Reduce
from meshwright.ir.records import Compute, Load, Recv, Store


class _Flow:
    def __init__(self, graph):
        self.graph = graph
        self.counts = block_counts(graph)
        self.held = Counter()
        self.done = Counter()
        self.most = Counter()
        self.senders = {s.kind.multicast for s in graph.stages if isinstance(s.kind, Load)} - {None}
        self.receivers = defaultdict(list)
        for stage in graph.stages:
            if isinstance(stage.kind, Recv):
                self.receivers[stage.kind.group].append(stage.outs[0])
        self.before = defaultdict(list)
        for edge in graph.precedences:
            self.before[edge.after].append(edge.before)
        self.total = [self._steps(stage) for stage in graph.stages]

    def _fold(self, stage):
        if isinstance(stage.kind, Compute):
            match stage.kind.op:
                case Matmul(contraction_blocks=blocks) | Reduce(blocks=blocks):
                    return blocks
        return 1

    def _steps(self, stage):
        match stage.kind:
            case Load(num_blocks=blocks):
                return blocks
            case Recv():
                return 0
            case Store(pattern=pattern):
                return pattern.num_blocks
        return self.counts[stage.outs[0]] * self._fold(stage)

    def _puts(self, stage):
        if isinstance(stage.kind, Load) and stage.kind.multicast is not None:
            return [*stage.outs, *self.receivers[stage.kind.multicast]]
        return list(stage.outs)

    def _takes(self, stage, last):
        """A bias is taken with the last pair; the rest in every step."""
        bias = stage.kind.op.bias if isinstance(stage.kind, Compute) and isinstance(stage.kind.op, Matmul) else None
        return [b for b in stage.takes() if b != bias or last]

    def fire(self, number):
        """Whether stage `number` could take a step, and has."""
        stage = self.graph.stages[number]
        if self.done[number] == self.total[number]:
            return False
        if any(self.done[b] < self.total[b] for b in self.before[number]):
            return False
        last = (self.done[number] + 1) % self._fold(stage) == 0
        takes, puts = self._takes(stage, last), self._puts(stage) if last else []
        if any(not self.held[b] for b in takes):
            return False
        if any(self.held[b] == self.graph.buffers[b].depth for b in puts):
            return False
        self.held.subtract(takes)
        self.held.update(puts)
        for buffer in puts:
            self.most[buffer] = max(self.most[buffer], self.held[buffer])
        self.done[number] += 1
        return True


def stuck(graph):
    """The stages that wait forever; none if the graph runs to its end."""
    flow = _Flow(graph)
    followers = defaultdict(set)
    touching = defaultdict(set)
    for number, stage in enumerate(graph.stages):
        for buffer in chain(stage.takes(), flow._puts(stage)):
            touching[buffer].add(number)
    for number, stage in enumerate(graph.stages):
        for buffer in chain(stage.takes(), flow._puts(stage)):
            followers[number] |= touching[buffer]
    for edge in graph.precedences:
        followers[edge.before].add(edge.after)
    waiting = list(range(len(graph.stages)))
    while waiting:
        number = waiting.pop()
        fired = False
        while flow.fire(number):
            fired = True
        if fired:
            waiting.extend(followers[number])
    assert all(count <= graph.buffers[b].depth for b, count in flow.most.items())
    return [n for n, total in enumerate(flow.total) if flow.done[n] < total]
