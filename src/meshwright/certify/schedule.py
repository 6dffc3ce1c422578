"""Finds an order in which all stages come to their end, or the stages that can't.

Greedy is complete. Whether a stage can step depends on rules that each let it be so much further than another stage
(`ir.steps`); stages only ever go on, so a stage that can step can still do so after any other has. Two orders of steps
can therefore always be continued to a common state, and all orders that go as far as they can end in the same one:
if this one gets stuck, every order does.

Stages that are joined by buffers go round together; where a round, or several, leaves the buffers as they were, it is
repeated as often as the shortest loop allows in one go. That keeps both the search and its evidence short.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from typing import Final

import rustworkx as rx
from msgspec import Struct
from msgspec.structs import replace

from meshwright.certify.certificate import FiringOrder, Part, Run
from meshwright.ir.ids import BufferId, StageId
from meshwright.ir.steps import Reason, Rule, Walk

MOST_BATCHES: Final = 1 << 19
"""More batches of steps than this aren't tried; a few seconds."""
_MOST_STARTS: Final = 1 << 8
"""A smallest circle is looked for from so many stages."""


class SearchError(Exception):
    """An order took more than `MOST_BATCHES` batches of steps."""


class Outcome(Struct, frozen=True):
    """How far every stage came, in what order, and the most blocks that each buffer held."""

    done: tuple[int, ...]
    order: FiringOrder
    peaks: dict[BufferId, int]
    finished: bool
    batches: int


def run(walk: Walk, deeper: dict[BufferId, int] | None = None) -> Outcome:
    """Goes as far as can be gone. deeper: how many more blocks some buffers hold. Raises `SearchError`."""
    search = _Search(walk, deeper or {})
    search.all()
    finished = all(d == n for d, n in zip(search.done, walk.steps, strict=True))
    return Outcome(tuple(search.done), FiringOrder(tuple(search.parts)), dict(search.peaks), finished, search.batches)


class _Search:
    """How far every stage has come, and the order so far."""

    def __init__(self, walk: Walk, deeper: dict[BufferId, int]) -> None:
        self.walk = walk
        self.deeper = deeper
        self.done = [0] * len(walk.steps)
        self.parts: list[Part] = []
        self.peaks = defaultdict[BufferId, int](int)
        self.batches = 0
        self.islands, self.island_of = _islands(walk)
        self.opens = defaultdict[StageId, set[int]](set)
        for stage, befores in enumerate(walk.waits):
            for before in befores:
                self.opens[before].add(self.island_of[stage])

    def all(self) -> None:
        """Every island in turn, again when a stage that one of its stages waited for has finished."""
        queue = deque(range(len(self.islands)))
        waiting = set(queue)
        while queue:
            island = queue.popleft()
            waiting.discard(island)
            for stage in self._island(self.islands[island]):
                for other in self.opens.get(stage, ()):
                    if other != island and other not in waiting:
                        waiting.add(other)
                        queue.append(other)

    def _island(self, stages: list[StageId]) -> list[StageId]:
        """Rounds over one island until nothing steps; gives the stages that finished."""
        open_before = [s for s in stages if self.done[s] < self.walk.steps[s]]
        rounds: list[list[Run]] = []
        # As Brent looks for a period: one state is kept, a later one each time as many rounds again have gone by.
        kept, since, next_kept = self._state(open_before), 0, 1
        while made := self._round(open_before):
            rounds.append(made)
            state = self._state(open_before)
            if state == kept:
                # Rounds from `since` on left buffers and firings as they were, so they can be gone round again.
                body = tuple(r for one in rounds[since:] for r in one)
                self._put(rounds[:since], Part(self._repeat(body) + 1, body))
                rounds, since, next_kept = [], 0, 1
            elif len(rounds) == next_kept:
                kept, since, next_kept = state, len(rounds), 2 * next_kept
        self._put(rounds)
        return [s for s in open_before if self.done[s] == self.walk.steps[s]]

    def _state(self, stages: list[StageId]) -> tuple[int, ...]:
        """All that decides what can step, but for how much is left: buffers, firings begun, stages not begun."""
        found: list[int] = []
        for stage in stages:
            done = self.done[stage]
            found.append(done % self.walk.periods[stage] if done else -1)
            found.extend(
                self._moved(rule.stage, rule) - self._moved(rule.other, rule) for rule in self.walk.rules[stage]
            )
        return tuple(found)

    def _moved(self, stage: StageId, rule: Rule) -> int:
        return (rule.mine if stage == rule.stage else rule.theirs).moved(self.done[stage])

    def _round(self, stages: list[StageId]) -> list[Run]:
        """Every stage in turn, as many steps as it can."""
        made: list[Run] = []
        for stage in stages:
            steps = self._possible(stage)
            if steps > 0:
                self.batches += 1
                if self.batches > MOST_BATCHES:
                    raise SearchError
                self.done[stage] += steps
                made.append(Run(stage, steps))
                self._note_peaks(stage)
        return made

    def _possible(self, stage: StageId) -> int:
        left = self.walk.steps[stage] - self.done[stage]
        if left == 0 or any(self.done[b] < self.walk.steps[b] for b in self.walk.waits[stage]):
            return 0
        most = self.walk.steps[stage]
        for rule in self.walk.rules[stage]:
            slack = rule.slack + (self.deeper.get(rule.buffer, 0) if rule.reason is Reason.ROOM else 0)
            most = min(most, rule.mine.most_steps(rule.theirs.moved(self.done[rule.other]) + slack))
        return most - self.done[stage]

    def _note_peaks(self, stage: StageId) -> None:
        for rule in self.walk.rules[stage]:
            if rule.reason is Reason.ROOM:
                there = rule.mine.moved(self.done[stage]) - rule.theirs.moved(self.done[rule.other])
                self.peaks[rule.buffer] = max(self.peaks[rule.buffer], there)

    def _repeat(self, body: tuple[Run, ...]) -> int:
        """Goes through `body` as often as every stage in it has that many steps left; gives how often."""
        steps = defaultdict[StageId, int](int)
        for one in body:
            steps[one.stage] += one.steps
        times = min(((self.walk.steps[s] - self.done[s]) // n for s, n in steps.items()), default=0)
        for stage, each in steps.items():
            self.done[stage] += each * times
        return times

    def _put(self, rounds: list[list[Run]], last: Part | None = None) -> None:
        runs = tuple(r for one in rounds for r in one)
        if runs:
            self.parts.append(Part(1, runs))
        if last is not None:
            self.parts.append(last)


def _islands(walk: Walk) -> tuple[list[list[StageId]], list[int]]:
    """Stages joined by buffers, each island in an order in which blocks flow; and the island of each stage."""
    flow: rx.PyDiGraph[int, None] = rx.PyDiGraph(multigraph=False)
    flow.add_nodes_from(list(range(len(walk.steps))))
    flow.add_edges_from(
        [(r.other, r.stage, None) for rules in walk.rules for r in rules if r.reason is not Reason.ROOM]
    )
    order = {stage: at for at, stage in enumerate(rx.lexicographical_topological_sort(flow, key=lambda s: f"{s:012d}"))}
    islands = [sorted(map(StageId, part), key=lambda s: order[s]) for part in rx.weakly_connected_components(flow)]
    islands.sort(key=lambda island: order[island[0]])
    island_of = [0] * len(walk.steps)
    for number, island in enumerate(islands):
        for stage in island:
            island_of[stage] = number
    return islands, island_of


class Wait(Struct, frozen=True):
    """A stage that can't step, why, and the stage that would have to step first."""

    stage: StageId
    other: StageId
    reason: Reason | None
    buffer: BufferId | None


def waits(walk: Walk, done: tuple[int, ...]) -> list[Wait]:
    """Who waits for whom in a state in which nothing can step."""
    found: list[Wait] = []
    for index, total in enumerate(walk.steps):
        stage = StageId(index)
        if done[stage] == total:
            continue
        found += [Wait(stage, b, None, None) for b in walk.waits[stage] if done[b] < walk.steps[b]]
        for rule in walk.rules[stage]:
            if rule.mine.most_steps(rule.theirs.moved(done[rule.other]) + rule.slack) <= done[stage]:
                found.append(Wait(stage, rule.other, rule.reason, rule.buffer))
    return found


def smallest_circle(found: list[Wait]) -> list[Wait]:
    """As few waits as make a circle; in a tangle of many stages a small one."""
    after = defaultdict[StageId, list[Wait]](list)
    for wait in found:
        after[wait.stage].append(wait)
    digraph: rx.PyDiGraph[int, None] = rx.PyDiGraph(multigraph=False)
    digraph.add_nodes_from(list(range(1 + max((max(w.stage, w.other) for w in found), default=-1))))
    digraph.add_edges_from([(w.stage, w.other, None) for w in found])
    tangles = [set(ring) for ring in rx.strongly_connected_components(digraph) if len(ring) > 1]
    if not tangles:
        return [w for w in found if w.stage == w.other][:1]
    tangle = min(tangles, key=lambda ring: (len(ring), min(ring)))
    within = {StageId(s): [w for w in after[StageId(s)] if w.other in tangle] for s in tangle}
    best: list[Wait] = []
    for start in sorted(within)[:_MOST_STARTS]:
        circle = _circle(within, start, len(best) or math.inf)
        if circle:
            best = circle
        if len(best) == 2:
            break
    return best


def _circle(after: dict[StageId, list[Wait]], start: StageId, shorter_than: float) -> list[Wait]:
    came: dict[StageId, Wait] = {}
    far = {start: 0}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        if far[here] + 1 >= shorter_than:
            return []
        for wait in after.get(here, ()):
            if wait.other == start:
                way = [wait]
                while way[0].stage != start:
                    way.insert(0, came[way[0].stage])
                return way
            if wait.other not in far:
                far[wait.other] = far[here] + 1
                came[wait.other] = wait
                queue.append(wait.other)
    return []


class Depths(Struct, frozen=True):
    """How many blocks more some buffers have to hold. None of them could be lowered by itself."""

    deeper: dict[BufferId, int]


def sufficient_depths(walk: Walk) -> Depths | None:
    """Deeper buffers with which all stages come to their end; None where no depth helps.

    Each time the stages get stuck, the full buffer that is in the way is made deeper; afterwards each one is made as
    shallow again as the others allow. So none can be lowered by itself; other choices may need less in all. Raises
    `SearchError` where that takes more than a few times `MOST_BATCHES` batches.
    """
    deeper: dict[BufferId, int] = {}
    tries = _Tries(walk)
    while not (outcome := tries.run(deeper)).finished:
        stuck = waits(_with(walk, deeper), outcome.done)
        full = [w.buffer for w in smallest_circle(stuck) if w.reason is Reason.ROOM and w.buffer is not None]
        if not full:
            return None
        # Doubling, so that a depth of thousands is found in time; lowering comes after.
        deeper[full[0]] = max(1, 2 * deeper.get(full[0], 0))
    for buffer, most in list(deeper.items()):
        low, high = 0, most
        while low < high:
            middle = (low + high) // 2
            enough = tries.run({**deeper, buffer: middle}).finished
            low, high = (low, middle) if enough else (middle + 1, high)
        deeper[buffer] = high
    return Depths({b: n for b, n in deeper.items() if n})


class _Tries:
    """Runs with deeper buffers, as many as there is time for."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.spent = 0

    def run(self, deeper: dict[BufferId, int]) -> Outcome:
        """One more. Raises `SearchError`."""
        if self.spent > 2 * MOST_BATCHES:
            raise SearchError
        outcome = run(self.walk, deeper)
        # What is fixed about a run, looking at every stage, counts as well.
        self.spent += outcome.batches + len(self.walk.steps)
        return outcome


def _with(walk: Walk, deeper: dict[BufferId, int]) -> Walk:
    def rule(one: Rule) -> Rule:
        more = deeper.get(one.buffer, 0) if one.reason is Reason.ROOM else 0
        return replace(one, slack=one.slack + more) if more else one

    return replace(walk, rules=tuple(tuple(map(rule, rules)) for rules in walk.rules))
