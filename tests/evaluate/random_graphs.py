"""Small random graphs that are well formed and balanced, with inputs: every kind of stage, in chains.

A case is built as a program would build it: flows of blocks are loaded, worked on and stored, at sites of up to three
chips. `exact` cases compute with whole numbers small enough that float64 rounds nothing, so that comparisons and
ties mean the same to everybody; the others also use the functions that round, and nothing that jumps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
from hypothesis import strategies as st

from evaluate.random_expressions import bound_of, random_expr, scalar_program
from evaluate.random_sources import F32, I32, MOST_BLOCKS, MOST_BOUND, Flow, Sources, replace_affine
from meshwright.ir.expression import Expr, Operand
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId
from meshwright.ir.library import maximum, minimum
from meshwright.ir.operation import Generic, Matmul, Permute, Reduce, Unit, combine
from meshwright.ir.pattern import Affine, Gather, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Scalar, Site
from meshwright.ir.spec import PARTIAL, Spec


@dataclass(frozen=True)
class Case:
    """A graph, its inputs, and how closely two evaluations of it have to agree: absolute, 0 for the same bits."""

    graph: Graph
    inputs: dict[str, tuple[np.ndarray, ...]]
    tolerance: float


class Maker(Sources):
    """What can be done with flows, and where they end."""

    # Compute.

    def expr(self, bounds: Sequence[int]) -> tuple[Expr, int]:
        """An expression over operands of these bounds, clamped where it may become large, and its own bound."""
        made = random_expr(self.random, len(bounds), self.exact)
        bound = bound_of(made, bounds)
        if bound <= MOST_BOUND:
            return made, bound
        return minimum(maximum(made, -64.0), 64.0), 64

    def generic(self, flow: Flow) -> list[Flow]:
        rank = self.number(len(flow.block), 3)
        first = tuple(self.shuffled(range(rank))[: len(flow.block)])
        out = [self.number(1, 3) for _ in range(rank)]
        for size, axis in zip(flow.block, first, strict=True):
            out[axis] = size if size > 1 else out[axis]
        operands, maps = [flow], [first]
        for _ in range(self.number(0, 2)):
            axes = tuple(self.shuffled(range(rank))[: self.number(1, rank)])
            block = tuple(self.choose([1, out[axis]]) for axis in axes)
            operands.append(self.load(flow.site, block, flow.count))
            maps.append(axes)
        made = [self.expr([f.bound for f in operands]) for _ in range(self.number(1, 2))]
        outs = [self.flow(flow.site, tuple(out), flow.count, bound) for _, bound in made]
        op = Generic(tuple(e for e, _ in made), tuple(maps))
        self.builder.compute(op, [f.buffer for f in operands], [f.buffer for f in outs])
        return outs

    def constant(self) -> list[Flow]:
        """One block of what an expression over nothing says."""
        expr, bound = self.expr([])
        made = self.flow(self.site(), self.shape(), 1, bound)
        self.builder.compute(Generic((expr,), ()), (), (made.buffer,))
        return [made]

    def matmul(self, flow: Flow) -> list[Flow]:
        if len(flow.block) != 2 or flow.whole:
            return self.generic(flow)
        pairs = self.divisor(flow.count)
        (m, k), n, transposed = flow.block, self.number(1, 3), self.chance()
        b = self.load(flow.site, (n, k) if transposed else (k, n), flow.count)
        bound = flow.bound * b.bound * k * pairs + 8
        bias = self.load(flow.site, self.choose([(1, n), (m, n)]), flow.count // pairs) if self.chance() else None
        spill = self.fifo(flow.site, (m, n)) if self.chance() else None
        epilogue = None
        if bound > MOST_BOUND or self.chance():
            epilogue, bound = self.expr([bound])
        sub = (self.divisor(m), self.divisor(n)) if self.number(0, 2) else None
        made = self.flow(flow.site, (m, n), flow.count // pairs, bound)
        bias_buffer = None if bias is None else bias.buffer
        op = Matmul((m, n, k), pairs, transposed, bias_buffer, spill, epilogue, sub)
        self.builder.compute(op, (flow.buffer, b.buffer), (made.buffer,))
        return [made]

    def open(self, site: Site, block: tuple[int, int], count: int, into: BufferId, more: bool) -> None:
        """Opens an accumulator with a product, or adds one to what it holds."""
        k, pairs = self.number(1, 2), self.number(1, 2)
        a = self.load(site, (block[0], k), count * pairs)
        b = self.load(site, (k, block[1]), count * pairs)
        op = Matmul((*block, k), pairs)
        self.builder.compute(op, (a.buffer, b.buffer, into) if more else (a.buffer, b.buffer), (into,))

    def read_out(self, site: Site, block: tuple[int, ...], count: int, accumulator: BufferId, bound: int) -> Flow:
        made = self.flow(site, block, count, bound)
        self.builder.compute(Generic.elementwise(Operand(0), 1, len(block)), (accumulator,), (made.buffer,))
        return made

    def resident(self) -> list[Flow]:
        """An accumulator that is opened, perhaps added to, read once or twice, and perhaps opened anew."""
        site, block, count = self.site(), (self.number(1, 2), self.number(1, 3)), self.number(1, 3)
        accumulator = self.builder.accumulator(site, block, MOST_BLOCKS)
        made: list[Flow] = []
        for _ in range(self.number(1, 2)):
            rounds = self.number(1, 3)
            for turn in range(rounds):
                self.open(site, block, count, accumulator, more=turn > 0)
            made += [self.read_out(site, block, count, accumulator, 400) for _ in range(self.number(1, 2))]
            count = self.number(1, 3)
        return made

    def peer_add(self) -> list[Flow]:
        """Accumulators of two or three chips added into that of the first."""
        block, count = (self.number(1, 2), self.number(1, 2)), self.number(1, 2)
        sites = [self.site(chip) for chip in range(self.number(2, 3))]
        accumulators = [self.builder.accumulator(site, block, count) for site in sites]
        for site, accumulator in zip(sites, accumulators, strict=True):
            self.open(site, block, count, accumulator, more=False)
        whole = self.builder.tensor(self.name("p"), (count, *block), F32, range(len(sites)), PARTIAL)
        op = combine(len(sites), 2, Pool.SUM, Unit.ACCUMULATOR)
        self.builder.stage(AllReduce(Pool.SUM, whole, op), accumulators, accumulators[:1])
        return [self.read_out(sites[0], block, count, accumulators[0], 400)]

    def all_reduce(self, flow: Flow) -> list[Flow]:
        pool = self.choose([*Pool] if self.exact and not flow.whole else [Pool.SUM, Pool.MAX, Pool.MIN, Pool.PROD])
        sites = [flow.site, *(self.site((flow.site.chip + i) % 3) for i in range(1, self.number(1, 3)))]
        ins: list[Flow] = []
        for i, site in enumerate(sites):
            ins.append(flow if i == 0 else self.load(site, flow.block, flow.count, whole=flow.whole))
            if pool is Pool.ARGMAX:
                ins.append(self.load(site, flow.block, flow.count, whole=True, span=(0, 9)))
        bound = max(f.bound for f in ins)
        bound = bound * len(sites) if pool is Pool.SUM else bound ** len(sites) if pool is Pool.PROD else bound
        if bound > 1 << 40:
            pool, bound = Pool.MAX, max(f.bound for f in ins)
        whole = self.builder.tensor(self.name("p"), (flow.count, *flow.block), F32, [s.chip for s in sites], PARTIAL)
        outs: list[Flow] = []
        for site in sites if self.chance() else [self.choose(sites)]:
            outs.append(self.flow(self.site(site.chip), flow.block, flow.count, bound, flow.whole))
            if pool is Pool.ARGMAX:
                outs.append(self.flow(self.site(site.chip), flow.block, flow.count, 9, whole=True))
        op = combine(len(sites), len(flow.block), pool, Unit.VECTOR)
        self.builder.stage(AllReduce(pool, whole, op), [f.buffer for f in ins], [f.buffer for f in outs])
        return outs if bound <= MOST_BOUND else self.clamped(outs)

    def clamped(self, flows: Sequence[Flow]) -> list[Flow]:
        made: list[Flow] = []
        for flow in flows:
            made.append(self.flow(flow.site, flow.block, flow.count, 64))
            op = Generic.elementwise(minimum(maximum(Operand(0), -64.0), 64.0), 1, len(flow.block))
            self.builder.compute(op, (flow.buffer,), (made[-1].buffer,))
        return made

    def reduce(self, flow: Flow) -> list[Flow]:
        axes = [a for a in range(len(flow.block)) if self.chance()] or [self.number(0, len(flow.block) - 1)]
        blocks = self.divisor(flow.count)
        folded = math.prod(flow.block[a] for a in axes) * blocks
        pools = [Pool.SUM, Pool.MAX, Pool.MIN]
        pools += [Pool.PROD] if flow.bound**folded <= 1 << 40 else []
        pools += [Pool.ARGMAX] * 3 if self.exact and len(axes) == 1 else []
        pool = self.choose(pools)
        block = tuple(1 if a in axes else n for a, n in enumerate(flow.block))
        bound = flow.bound * folded if pool is Pool.SUM else flow.bound
        bound = flow.bound**folded if pool is Pool.PROD else bound
        outs = [self.flow(flow.site, block, flow.count // blocks, bound)]
        if pool is Pool.ARGMAX:
            outs.append(self.flow(flow.site, block, flow.count // blocks, 64, whole=True))
        op = Reduce(pool, tuple(self.shuffled(axes)), blocks)
        self.builder.compute(op, (flow.buffer,), [f.buffer for f in outs])
        return outs if bound <= MOST_BOUND else self.clamped(outs)

    def permute(self, flow: Flow) -> list[Flow]:
        rank = len(flow.block)
        grid, left = [1] * rank, flow.count
        for axis in self.shuffled(range(rank)):
            grid[axis] = self.divisor(left)
            left //= grid[axis]
        axes = tuple(self.shuffled(range(rank)))
        whole = [grid[a] * flow.block[a] for a in axes]
        out = tuple(self.divisor(n) for n in whole)
        count = left * math.prod(n // o for n, o in zip(whole, out, strict=True))
        if count > MOST_BLOCKS:
            out, count = tuple(whole), left
        made = self.flow(flow.site, out, count, flow.bound, flow.whole)
        # The grid is written out: an empty one takes blocks one by one as well, and says so less plainly.
        self.builder.compute(Permute(axes, tuple(grid)), (flow.buffer,), (made.buffer,))
        return [made]

    def scalar(self, flow: Flow) -> list[Flow]:
        body, size, whole = scalar_program(self.random, math.prod(flow.block), flow.whole)
        block = (size,) if self.chance() else (1, size)
        made = self.flow(flow.site, block, flow.count, max(flow.bound, 64), whole)
        self.builder.stage(Scalar(body), (flow.buffer,), (made.buffer,))
        return [made]

    def look_up(self, flow: Flow) -> list[Flow]:
        """Uses a flow of whole numbers as a gather's index."""
        if not flow.whole:
            return self.permute(flow)
        n = math.prod(flow.block)
        block = (n, self.number(1, 2)) if self.chance() else (n,)
        return [self.gather(flow.site, block, flow.count, flow)]

    def through_memory(self, flow: Flow) -> list[Flow]:
        """Stores a flow and loads it again, elsewhere perhaps, once the store has finished."""
        name = self.name("h")
        home = self.choose([flow.site.chip, (flow.site.chip + 1) % 3])
        tensor = self.builder.tensor(name, (flow.count, *flow.block), I32 if flow.whole else F32, (home,))
        stride = (1, *(0 for _ in flow.block))
        pattern = Affine((0,) * len(stride), (1, *flow.block), (Loop(flow.count, stride),))
        store = self.builder.store(tensor, pattern, flow.buffer, rank=0)
        made = replace(flow, site=self.site())
        made = self.flow(made.site, flow.block, flow.count, flow.bound, flow.whole)
        backwards = Affine(
            (flow.count - 1, *(0 for _ in flow.block)), pattern.box, (Loop(flow.count, (-1, *stride[1:])),)
        )
        self.builder.load(tensor, self.choose([pattern, backwards]), made.buffer, rank=0, after=(store,))
        return [made]

    # Stores.

    def store(self, flow: Flow) -> None:
        """Stores a flow so that every element of a fresh tensor is written once."""
        form = I32 if flow.whole else F32
        chip = self.choose([flow.site.chip, (flow.site.chip + 1) % 3])
        rank = 0 if chip != flow.site.chip else self.choose([None, 0])
        name = self.name("y")
        sub = None
        if len(flow.block) == 2 and self.chance():
            sub = (self.divisor(flow.block[0]), self.divisor(flow.block[1]))
        pattern, shape = self.choose([self.stacked, self.tiled, self.interleaved, self.ragged, self.scattered])(flow)
        tensor = self.builder.tensor(name, shape, form, (chip,))
        self.builder.store(tensor, pattern, flow.buffer, rank, sub)

    def stacked(self, flow: Flow) -> tuple[Affine, tuple[int, ...]]:
        """One block after the other along an axis of its own."""
        still = (0,) * len(flow.block)
        return Affine((0, *still), (1, *flow.block), (Loop(flow.count, (1, *still)),)), (flow.count, *flow.block)

    def tiled(self, flow: Flow) -> tuple[Affine, tuple[int, ...]]:
        """Tiles of a grid along the first and the last axis."""
        rows = self.divisor(flow.count)
        columns = flow.count // rows
        rank = len(flow.block)
        if rank == 1:
            return Affine((0,), flow.block, (Loop(flow.count, flow.block),)), (flow.count * flow.block[0],)
        down = tuple(flow.block[0] if a == 0 else 0 for a in range(rank))
        right = tuple(flow.block[-1] if a == rank - 1 else 0 for a in range(rank))
        loops = [(Loop(rows, down), Loop(columns, right)), (Loop(columns, right), Loop(rows, down))]
        shape = (rows * flow.block[0], *flow.block[1:-1], columns * flow.block[-1])
        return Affine((0,) * rank, flow.block, self.choose(loops)), shape

    def interleaved(self, flow: Flow) -> tuple[Affine, tuple[int, ...]]:
        """The blocks' elements take turns along one axis."""
        rank = len(flow.block)
        axis = self.number(0, rank - 1)
        step = tuple(flow.count if a == axis else 1 for a in range(rank))
        stride = tuple(int(a == axis) for a in range(rank))
        shape = tuple(n * s for n, s in zip(flow.block, step, strict=True))
        return Affine((0,) * rank, flow.block, (Loop(flow.count, stride),), step), shape

    def ragged(self, flow: Flow) -> tuple[Affine, tuple[int, ...]]:
        """As tiled, with elements cut off at both ends of the first axis."""
        pattern, shape = self.tiled(flow)
        before = self.number(0, shape[0] - 1)
        after = self.number(0, shape[0] - 1 - before)
        offset = (-before, *pattern.offset[1:])
        return replace_affine(pattern, offset=offset, pad=0.0), (shape[0] - before - after, *shape[1:])

    def scattered(self, flow: Flow) -> tuple[Affine | Gather, tuple[int, ...]]:
        """To looked-up positions along one axis, each once."""
        rank = len(flow.block)
        axis = self.number(0, rank - 1)
        size, origin = flow.block[axis] * flow.count, self.number(0, 3)
        name = self.name("i")
        random = np.random.default_rng(self.number(0, 1 << 16))
        where = random.permutation(size).astype(np.int32) + np.int32(origin)
        indices = self.builder.tensor(name, (flow.count, flow.block[axis]), I32, (flow.site.chip,))
        self.inputs[name] = (where.reshape(flow.count, flow.block[axis]),)
        index = self.fifo(flow.site, (flow.block[axis],), I32)
        self.builder.load(indices, Affine((0, 0), (1, flow.block[axis]), (Loop(flow.count, (1, 0)),)), index)
        base = Affine((0,) * rank, flow.block, (Loop(flow.count, (0,) * rank),))
        shape = tuple(size if a == axis else n for a, n in enumerate(flow.block))
        return Gather(base, axis, index, origin), shape

    def store_pair(self, a: Flow, b: Flow) -> None:
        """Two flows of the same form on two chips: the halves of one tensor, split on its first axis."""
        pattern, shape = self.stacked(a)
        form = I32 if a.whole else F32
        whole = (2 * shape[0], *shape[1:])
        tensor = self.builder.tensor(self.name("z"), whole, form, (a.site.chip, b.site.chip), Spec(axis=0))
        self.builder.store(tensor, pattern, a.buffer)
        self.builder.store(tensor, pattern, b.buffer, rank=1)


def random_case(seed: int, steps: int, exact: bool) -> Case:
    """The random graph of `seed` with so many steps between its sources and its stores, with inputs."""
    make = Maker(Random(seed), exact)
    first = make.choose(["load", "load", "load", "whole", "whole", "multicast", "resident", "peer_add", "constant"])
    if first in ("load", "whole"):
        # Blocks with two axes can go through a product, so they are half of all.
        block = make.shape() if make.chance() else (make.number(1, 3), make.number(1, 3))
        make.flows.append(make.load(make.site(), block, make.choose([1, 2, 3, 4, 6]), whole=first == "whole"))
    else:
        make.flows += getattr(make, first)()
    ways = ["generic", "matmul", "matmul", "reduce", "permute", "scalar", "all_reduce", "look_up", "through_memory"]
    for _ in range(steps):
        flow = make.flows.pop(make.number(0, len(make.flows) - 1))
        make.flows += getattr(make, make.choose(ways))(flow)
    while make.flows:
        flow = make.flows.pop()
        like = [f for f in make.flows if (f.block, f.count, f.whole) == (flow.block, flow.count, flow.whole)]
        like = [f for f in like if f.site.chip != flow.site.chip]
        if like and make.chance():
            make.flows.remove(like[0])
            make.store_pair(flow, like[0])
        else:
            make.store(flow)
    return Case(make.builder.graph(), make.inputs, 0.0 if make.exact else 1e-12 * make.peak)


cases = st.builds(random_case, st.integers(0, (1 << 32) - 1), st.integers(0, 6), st.booleans())
"""Every choice is made by one random generator: hypothesis, choosing itself, prefers the simple far too much here."""
