"""Where the flows of random graphs come from: random inputs, and loads of every kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from meshwright.ir.build import GraphBuilder
from meshwright.ir.formats import ElementType
from meshwright.ir.ids import BufferId, ChipId, StageId, TensorId
from meshwright.ir.pattern import Affine, Gather, Loop
from meshwright.ir.records import Load, Site
from meshwright.ir.spec import COPIED, PARTIAL, Spec

F32, I32, FP22 = ElementType.F32, ElementType.I32, ElementType.FP22
MOST_BOUND = 1 << 12
"""Values larger than this are clamped before they go on, so that sums of products of them stay exact."""
MOST_BLOCKS = 12


@dataclass(frozen=True)
class Flow:
    """Blocks that are on their way: the FIFO they are in, and a bound on the magnitude of their elements."""

    buffer: BufferId
    site: Site
    block: tuple[int, ...]
    count: int
    bound: int
    whole: bool = False


@dataclass
class Sources:
    """The random choices of one case and what has been made of them so far."""

    random: Random
    exact: bool
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    inputs: dict[str, tuple[np.ndarray, ...]] = field(default_factory=dict)
    flows: list[Flow] = field(default_factory=list)
    names: int = 0
    peak: int = 1

    # Small choices.

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def chance(self) -> bool:
        return self.random.random() < 0.5

    def choose(self, options):
        return self.random.choice(list(options))

    def shuffled(self, options):
        return self.random.sample(list(options), len(options))

    def shape(self, most_axes: int = 3, most: int = 3) -> tuple[int, ...]:
        return tuple(self.number(1, most) for _ in range(self.number(1, most_axes)))

    def divisor(self, n: int) -> int:
        return self.choose([d for d in range(1, n + 1) if n % d == 0])

    def name(self, what: str) -> str:
        self.names += 1
        return f"{what}{self.names}"

    def site(self, chip: int | None = None) -> Site:
        return Site(ChipId(self.number(0, 2) if chip is None else chip), self.number(0, 1), self.number(0, 1))

    def fifo(self, site: Site, block: tuple[int, ...], format: ElementType = F32) -> BufferId:
        return self.builder.fifo(site, block, format, self.number(1, 3))

    def flow(self, site: Site, block: tuple[int, ...], count: int, bound: int, whole: bool = False) -> Flow:
        self.peak = max(self.peak, bound)
        return Flow(self.fifo(site, block, I32 if whole else F32), site, block, count, bound, whole)

    # Tensors and loads.

    def tensor(
        self, shape: Sequence[int], site: Site, whole: bool, span: tuple[int, int]
    ) -> tuple[TensorId, int | None]:
        """An input whose pieces have `shape`, on one to three chips, and the rank that a load at `site` names."""
        chips = self.choose([(site.chip,), ((site.chip + 1) % 3,), (0, 1), (2, 0, 1), (1, site.chip + 3)])
        spec = self.choose([COPIED, PARTIAL, *(Spec(axis=a) for a in range(len(shape)))])
        size = [n * len(chips) if axis == spec.axis else n for axis, n in enumerate(shape)]
        name = self.name("x")
        made = self.builder.tensor(name, size, I32 if whole else F32, chips, spec)
        random = np.random.default_rng(self.number(0, 1 << 16))
        pieces = [self.numbers(random, shape, whole, span) for _ in chips]
        self.inputs[name] = tuple(pieces[:1] * len(chips) if spec.is_copied else pieces)
        own = site.chip in chips
        return made, None if own and self.chance() else self.number(0, len(chips) - 1)

    def numbers(self, random, shape: Sequence[int], whole: bool, span: tuple[int, int]) -> np.ndarray:
        integers = random.integers(span[0], span[1] + 1, size=tuple(shape))
        if whole:
            return integers.astype(np.int32)
        return (integers if self.exact else integers - random.integers(0, 8, size=tuple(shape)) / 8).astype(np.float32)

    def loops(self, axes: int, count: int) -> tuple[Loop, ...]:
        """A nest of at least `count` blocks."""
        outer = self.divisor(count)
        extents = [outer + self.number(0, 1), count // outer] if self.chance() else [count]
        # A loop of stride 0 reads the same boxes again.
        moves = [self.number(0, 3) > 0 for _ in extents]
        strides = [[self.number(-1, 2) if m else 0 for _ in range(axes)] for m in moves]
        return tuple(Loop(e, tuple(s)) for e, s in zip(extents, strides, strict=True))

    def box(self, block: tuple[int, ...]) -> tuple[int, ...]:
        """A box whose elements are the block's: with a size-1 axis put in, or those there are left out."""
        if self.chance():
            return block
        squeezed = tuple(n for n in block if n != 1) or (1,)
        at = self.number(0, len(squeezed))
        return squeezed if len(squeezed) == 3 else (*squeezed[:at], 1, *squeezed[at:])

    def pattern(self, block: tuple[int, ...], count: int) -> tuple[Affine, tuple[int, ...]]:
        """A pattern of at least `count` blocks and the shape of a piece that it reads: past its edges if padded."""
        box = self.box(block)
        axes = len(box)
        made = Affine(
            tuple(self.number(-2, 2) for _ in box),
            box,
            self.loops(axes, count),
            tuple(self.number(1, 2) for _ in box) if self.chance() else (),
        )
        if self.chance():
            pad = float(self.number(-4, 4))
            return replace_affine(made, pad=pad), tuple(self.number(1, 4) for _ in box)
        corners = [made.corner(t) for t in range(made.num_blocks)]
        low = [min(c[a] for c in corners) for a in range(axes)]
        high = [max(c[a] for c in corners) + (box[a] - 1) * made.steps[a] for a in range(axes)]
        offset = tuple(o - least for o, least in zip(made.offset, low, strict=True))
        return replace_affine(made, offset=offset), tuple(h - least + 1 for h, least in zip(high, low, strict=True))

    def load(
        self,
        site: Site,
        block: tuple[int, ...],
        count: int,
        whole: bool = False,
        span: tuple[int, int] = (-4, 4),
        padded: bool = True,
    ) -> Flow:
        """A fresh flow out of a fresh input."""
        pattern, shape = self.pattern(block, count)
        while pattern.pad is not None and not padded:
            pattern, shape = self.pattern(block, count)
        if not whole and self.number(0, 3) == 0:
            return self.gather(site, block, count)
        tensor, rank = self.tensor(shape, site, whole, span)
        made = self.flow(site, block, count, max(abs(span[0]) + 1, abs(span[1]), 4), whole)
        self.load_some(tensor, pattern, made, rank)
        return made

    def load_some(self, tensor: TensorId, pattern: Affine | Gather, made: Flow, rank: int | None) -> StageId:
        """A load of the flow's number of blocks, which may be fewer than the pattern's."""
        return self.builder.stage(Load(tensor, pattern, made.count, rank=rank), outs=(made.buffer,))

    def gather(self, site: Site, block: tuple[int, ...], count: int, index: Flow | None = None) -> Flow:
        """A flow whose positions along one axis are looked up: in `index`, or in a fresh input."""
        box = self.box(block) if index is None else block
        axis = self.number(0, len(box) - 1) if index is None else box.index(math.prod(index.block))
        shape = [self.number(1, 4) for _ in box]
        origin = self.number(0, 9)
        padded = index is not None or self.chance()
        # An index block is taken for each block of the pattern, so it makes just as many as are moved.
        loop = Loop(count, tuple(self.number(0 if not padded else -1, 2) for _ in box))
        base = Affine((0,) * len(box), box, (loop,), pad=float(self.number(-3, 3)) if padded else None)
        if not padded:
            reach = [(count - 1) * stride + size for stride, size in zip(loop.stride, box, strict=True)]
            shape = [shape[a] if a == axis else reach[a] for a in range(len(box))]
        if index is None:
            edge = 1 if padded else 0
            span = (origin - edge, origin + shape[axis] - 1 + edge)
            index = self.load(site, (box[axis],), count, whole=True, span=span, padded=padded and span[0] < 1 < span[1])
        tensor, rank = self.tensor(shape, site, False, (-4, 4))
        made = self.flow(site, block, count, 5)
        self.load_some(tensor, Gather(base, axis, index.buffer, origin), made, rank)
        return made

    def multicast(self) -> list[Flow]:
        """The same blocks at every site of a rectangle; its sender is in it or not."""
        block, count, chip = self.shape(), self.number(1, 3), self.number(0, 2)
        low = (self.number(0, 1), self.number(0, 1))
        high = (low[0] + self.number(0, 1), low[1] + self.number(0, 1))
        sender = Site(ChipId(chip), self.number(0, 2), self.number(0, 2))
        group = self.builder.group(sender, low, high)
        pattern, shape = self.pattern(block, count)
        pattern = replace_affine(pattern, loops=(Loop(count, pattern.loops[-1].stride),))
        if pattern.pad is None:
            pattern = replace_affine(pattern, pad=0.0)
        name = self.name("m")
        tensor = self.builder.tensor(name, shape, F32, (chip,))
        random = np.random.default_rng(self.number(0, 1 << 16))
        self.inputs[name] = (self.numbers(random, shape, False, (-4, 4)),)
        sites = [Site(ChipId(chip), x, y) for x in range(low[0], high[0] + 1) for y in range(low[1], high[1] + 1)]
        made = [self.flow(site, block, count, 5) for site in sites]
        self.builder.multicast(tensor, pattern, group, [f.buffer for f in made])
        return made


def replace_affine(pattern: Affine, **changes: object) -> Affine:
    """The pattern with some fields changed."""
    kept = {"offset": pattern.offset, "box": pattern.box, "loops": pattern.loops, "step": pattern.step}
    return Affine(**{**kept, "pad": pattern.pad, **changes})  # type: ignore[arg-type]
