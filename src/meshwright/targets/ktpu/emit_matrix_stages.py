"""The stages that one cluster runs, cut into works: a product, what is added to it, and where it goes.

What a cluster hasn't got is refused here, with the stage and the reason.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import rustworkx as rx
from msgspec import Struct

from meshwright.errors import PlacementError
from meshwright.ir.expression import Operand
from meshwright.ir.flow import dependencies, stage_order
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, StageId, TensorId
from meshwright.ir.operation import Generic, Matmul, Unit, combine
from meshwright.ir.pattern import Affine
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Compute, Load, Site, Store
from meshwright.machine import MachineSpec
from meshwright.targets.ktpu.emit_matrix_image import OperandImage, ResultImage, sweep_blocks
from meshwright.targets.ktpu.joining import joined
from meshwright.targets.ktpu.layout import K_BLOCK, SUB_TILE, OperandLayout, ResultLayout

FIELD: Final = 255
"""gm, gn and nk are fields of 8 bits. Source: the card's specification."""
_ROUNDED: Final = Generic.elementwise(Operand(0), 1, 2)
_ADDED: Final = combine(2, 2, Pool.SUM, Unit.ACCUMULATOR)


class Loaded(Struct, frozen=True):
    """One operand: its stage, its image, and where each block begins in the piece."""

    stage: StageId
    image: OperandImage
    pattern: Affine


class Product(Struct, frozen=True):
    """A Matmul and its loads. A block takes `contraction` pairs of blocks, each in `sweeps` sweeps of `nk` K blocks.

    continues: it adds to what is in the accumulator, where another one opened the sum.
    """

    stage: StageId
    a: Loaded
    b: Loaded
    gm: int
    gn: int
    nk: int
    sweeps: int
    contraction: int
    continues: bool = False

    @property
    def blocks(self) -> int:
        """How many blocks it makes."""
        return self.a.pattern.num_blocks // self.contraction

    @property
    def stages(self) -> tuple[StageId, ...]:
        """All three."""
        return self.a.stage, self.b.stage, self.stage


class Receive(Struct, frozen=True):
    """Another cluster's tile is added into this one's; the other one does it."""

    stage: StageId


class Send(Struct, frozen=True):
    """The tile is added into that of the cluster at `target`, once stage `opened` has fired there, done by `by`."""

    stage: StageId
    target: Site
    opened: StageId
    by: Site

    @property
    def stages(self) -> tuple[StageId, ...]:
        """The one."""
        return (self.stage,)


class Result(Struct, frozen=True):
    """The tile is drained to memory."""

    stages: tuple[StageId, ...]
    image: ResultImage
    pattern: Affine


Step: TypeAlias = Product | Receive | Send | Result


class Work(Struct, frozen=True):
    """What a cluster does with the accumulator, for each of `blocks` blocks: the product, and the steps after it.

    Steps are products that continue the sum, sums of other clusters, and where it goes.
    """

    product: Product
    steps: tuple[Step, ...]
    blocks: int

    @property
    def products(self) -> tuple[Product, ...]:
        """The one that opens the sum, and those that continue it."""
        return (self.product, *(step for step in self.steps if isinstance(step, Product)))


def refusal(stage: StageId, reason: str) -> PlacementError:
    """The error that says why stage `stage` can't become instructions."""
    return PlacementError(f"stage s{stage} can't be emitted for a cluster: {reason}")


def boxes_problem(pattern: Affine, block: tuple[int, ...], shape: tuple[int, ...]) -> str | None:
    """Why no image of a piece of `shape` holds the boxes of `pattern` as runs, or None where one does.

    A box is of whole rows by columns of the last two axes, a whole number of boxes from the beginning.
    """
    if len(shape) < 2 or pattern.box != (*(1,) * (len(shape) - 2), *block) or any(s != 1 for s in pattern.steps):
        return (
            f"its boxes are {list(pattern.box)} by {list(pattern.steps)} of {list(shape)} for blocks of {list(block)}; "
            "a block is of neighbours along the last two axes"
        )
    moves = (pattern.offset, *(loop.stride for loop in pattern.loops))
    if any(move[axis] < 0 or move[axis] % pattern.box[axis] for move in moves for axis in range(len(shape))):
        return f"its blocks of {list(pattern.box)} don't begin at multiples of their size"
    last = [o + sum((p.extent - 1) * p.stride[a] for p in pattern.loops) for a, o in enumerate(pattern.offset)]
    if any(at >= size for at, size in zip(last, shape, strict=True)):
        return f"the block at {last} is wholly outside {list(shape)}"
    return None


def works_at(graph: Graph, site: Site, machine: MachineSpec) -> tuple[Work, ...]:
    """The works of the cluster at `site`, in an order that suits every cluster of the graph.

    Raises `PlacementError`, naming the stage, for what a cluster can't do.
    """
    if (site.x, site.y) not in machine.coords(site.chip, "MG"):
        raise PlacementError(f"no cluster stands at {site} of {machine.name}; they stand at {_clusters(machine, site)}")
    found: list[Work] = []
    for component in graph.derived(_components):
        stages = [s for s in component if site in _sites(graph, s)]
        if stages:
            found.append(_Reader(graph, site, machine).work(stages))
    return tuple(found)


def _clusters(machine: MachineSpec, site: Site) -> str:
    return ", ".join(map(str, machine.coords(site.chip, "MG")))


def _sites(graph: Graph, stage: StageId) -> tuple[Site, ...]:
    record = graph.stages[stage]
    if isinstance(record.kind, AllReduce):
        return tuple(graph.buffers[b].site for b in record.ins)
    return (graph.site(record),)


def _components(graph: Graph) -> tuple[tuple[StageId, ...], ...]:
    """Stages joined by buffers, in an order that all dependencies allow: the same for every site.

    An accumulator has one tile at a time, so a component is over at a site before the next one begins there; in one
    order for all sites, none waits for another that waits for it. Raises as `stage_order` does for a circle of stages.
    """
    stage_order(graph)
    parts = joined({StageId(number): (*s.takes(), *s.outs) for number, s in enumerate(graph.stages)})
    of = {stage: at for at, part in enumerate(parts) for stage in part}
    waits: rx.PyDiGraph[int, None] = rx.PyDiGraph()
    waits.add_nodes_from(range(len(parts)))
    for before, after in dependencies(graph):
        if of[before] != of[after]:
            waits.add_edge(of[before], of[after], None)
    try:
        found = list(rx.lexicographical_topological_sort(waits, key=lambda at: f"{parts[at][0]:012d}"))
    except rx.DAGHasCycle:
        found = []
    if len(found) < len(parts):
        raise PlacementError(
            "stages joined by buffers wait for others that wait for them, and an accumulator is not shared: sums over "
            "meshes have to be over before what is computed from them begins"
        )
    return tuple(tuple(StageId(stage) for stage in parts[at]) for at in found)


class _Reader:
    """Reads the stages of one component at one site."""

    def __init__(self, graph: Graph, site: Site, machine: MachineSpec) -> None:
        self.graph = graph
        self.site = site
        self.machine = machine

    def work(self, stages: list[StageId]) -> Work:
        """The work of these stages."""
        products = [s for s in stages if self._matmul(s) is not None]
        opening = [s for s in products if len(self.graph.stages[s].ins) == 2]
        if len(opening) != 1:
            raise refusal(
                stages[0],
                f"stages {_listed(stages)} have {len(opening)} Matmuls that open a sum, and a cluster's work is one",
            )
        product = self._product(opening[0])
        steps = tuple(self._step(s, product) for s in self._touching(opening[0]))
        done = {s for part in (product, *steps) for s in (part.stages if not isinstance(part, Receive) else ())}
        done |= {step.stage for step in steps if isinstance(step, Receive)}
        for stage in stages:
            if stage not in done:
                raise refusal(stage, f"a {self._named(stage)} is not among what a cluster's program does")
        if not steps or isinstance(steps[-1], (Product, Receive)):
            raise refusal(opening[0], "its sum stays in the accumulator; nothing sends or drains it")
        return Work(product, steps, product.blocks)

    def _named(self, stage: StageId) -> str:
        kind = self.graph.stages[stage].kind
        return type(kind.op).__name__ if isinstance(kind, Compute) else type(kind).__name__

    def _matmul(self, stage: StageId) -> Matmul | None:
        kind = self.graph.stages[stage].kind
        return kind.op if isinstance(kind, Compute) and isinstance(kind.op, Matmul) else None

    # The product.

    def _product(self, stage: StageId) -> Product:
        op, record = self._matmul(stage), self.graph.stages[stage]
        assert op is not None
        if op.bias is not None or op.spill is not None or op.epilogue is not None or op.sub_blocks is not None:
            raise refusal(stage, "it has a bias, a spill, an epilogue or sub-blocks; a cluster multiplies and adds")
        if not op.b_transposed:
            raise refusal(stage, "its b is stored [K][N]; a cluster takes [N][K] (b_transposed)")
        kept = self.graph.buffers[record.outs[0]]
        if kept.format is not (ElementType.FP22 if kept.resident else ElementType.F16):
            raise refusal(stage, f"it puts {kept.format} into b{record.outs[0]}; a FIFO gets f16, drained")
        m, n, k = op.block
        if m % SUB_TILE or n % SUB_TILE or k % K_BLOCK:
            raise refusal(stage, f"its blocks are {m} x {n} x {k}; a cluster's are multiples of 4 x 4 x 32")
        gm, gn, cluster = m // SUB_TILE, n // SUB_TILE, self.machine.cluster
        nk = sweep_blocks(max(gm, gn), k // K_BLOCK, cluster.l1_entries, FIELD)
        if gm * gn > cluster.accumulator_tiles or max(gm, gn) > FIELD or not nk:
            raise refusal(
                stage,
                f"its blocks have {gm} x {gn} sub-tiles; the accumulator of {self.machine.name} holds "
                f"{cluster.accumulator_tiles}, a bank {cluster.l1_entries} rows of them, and a field {FIELD}",
            )
        a, b = (self._loaded(b, rows, nk) for b, rows in zip(record.ins[:2], (gm, gn), strict=True))
        if a.image.layout.k != b.image.layout.k:
            raise refusal(stage, f"its operands have {a.image.layout.k} and {b.image.layout.k} elements along K")
        continues = len(record.ins) > 2
        return Product(stage, a, b, gm, gn, nk, k // K_BLOCK // nk, op.contraction_blocks, continues)

    def _loaded(self, buffer: BufferId, groups: int, nk: int) -> Loaded:
        stage, record = next((StageId(i), s) for i, s in enumerate(self.graph.stages) if buffer in s.outs)
        match record.kind:
            case Load(tensor=tensor, multicast=None, pattern=Affine() as pattern):
                rank, shape = self._piece(stage, tensor)
            case _:
                raise refusal(stage, "operands are loaded block after block, not looked up or sent by other sites")
        self._check_boxes(stage, pattern, self.graph.buffers[buffer].block, shape)
        if pattern.pad:
            raise refusal(stage, f"it reads {pattern.pad} outside its tensor; images are padded with zeros")
        layout = OperandLayout(shape[-2], shape[-1], groups, nk)
        return Loaded(stage, OperandImage(tensor, rank, shape[:-2], layout), pattern)

    def _piece(self, stage: StageId, tensor: TensorId) -> tuple[int, tuple[int, ...]]:
        record, rank = self.graph.tensors[tensor], self.graph.rank_of(self.graph.stages[stage])
        if record.format is not ElementType.F16:
            raise refusal(stage, f"{record.name} is {record.format}; a cluster reads and drains f16")
        if record.chips[rank] != self.site.chip:
            raise refusal(stage, f"the piece is on mesh {record.chips[rank]}, whose memory a cluster doesn't reach")
        return rank, record.local

    @staticmethod
    def _check_boxes(stage: StageId, pattern: Affine, block: tuple[int, ...], shape: tuple[int, ...]) -> None:
        if problem := boxes_problem(pattern, block, shape):
            raise refusal(stage, problem)

    # What comes after it.

    def _touching(self, product: StageId) -> list[StageId]:
        """Stages after the product that use its sum: of an accumulator in table order, which is theirs."""
        (kept,) = self.graph.stages[product].outs
        users = [StageId(i) for i, s in enumerate(self.graph.stages) if kept in (*s.takes(), *s.outs) and i != product]
        if self.graph.buffers[kept].resident and users and users[0] < product:
            raise refusal(users[0], "it uses an accumulator before the Matmul that opens it")
        return users

    def _step(self, stage: StageId, product: Product) -> Step:
        record = self.graph.stages[stage]
        (kept,) = self.graph.stages[product.stage].outs
        match record.kind:
            case Compute(Matmul()):
                return self._product(stage)
            case Store():
                return self._result((stage,), product)
            case Compute(Generic() as op) if op == _ROUNDED:
                (rounded,) = record.outs
                stored = [StageId(i) for i, s in enumerate(self.graph.stages) if rounded in s.takes()]
                return self._result((stage, *stored), product)
            case Compute():
                raise refusal(
                    stage,
                    "it computes with a sum; a cluster rounds it to f16 and drains it, nothing else. Store it, and "
                    "load it at a vector core",
                )
            case AllReduce(combine=op) if op == _ADDED and len(record.ins) == 2 and record.outs == record.ins[:1]:
                return self._sum(stage, kept)
            case AllReduce():
                raise refusal(stage, "a cluster adds one tile into one other, which stays: two inputs, the first kept")
            case _:
                raise refusal(stage, f"a {self._named(stage)} is not among what a cluster's program does")

    def _sum(self, stage: StageId, kept: BufferId) -> Step:
        target, source = self.graph.stages[stage].ins
        mine, theirs = self.graph.buffers[target], self.graph.buffers[source]
        if mine.block != theirs.block:
            raise refusal(stage, f"tiles of {list(mine.block)} and {list(theirs.block)}; sub-tiles have to correspond")
        if kept == target:
            return Receive(stage)
        here, there = theirs.site.chip, mine.site.chip
        if here == there or not self.machine.reaches(here, there, "unit_data"):
            raise refusal(stage, f"no data for units gets from mesh {here} to mesh {there} of {self.machine.name}")
        if self.machine.mesh(there).agent is None:
            raise refusal(stage, f"mesh {there} states no agent that could count what arrives")
        before = [i for i, s in enumerate(self.graph.stages[:stage]) if target in (*s.takes(), *s.outs)]
        if not before:
            raise refusal(stage, f"nothing opened b{target} before it; tile memory holds what was last there")
        opened = StageId(before[-1])
        return Send(stage, mine.site, opened, _sites(self.graph, opened)[-1])

    def _result(self, stages: tuple[StageId, ...], product: Product) -> Result:
        record = self.graph.stages[stages[-1]]
        match record.kind:
            case Store(tensor=tensor, sub_blocks=None, pattern=Affine() as pattern) if not stages[2:]:
                rank, shape = self._piece(stages[-1], tensor)
            case _:
                raise refusal(stages[-1], "a drained tile is stored, by no looked-up positions and not in sub-blocks")
        self._check_boxes(stages[-1], pattern, self.graph.buffers[record.ins[0]].block, shape)
        self._check_alone(stages[-1], tensor, rank, pattern.box)
        layout = ResultLayout.over(shape[-2], shape[-1], (product.gm, product.gn))
        return Result(stages, ResultImage(tensor, rank, shape[:-2], layout), pattern)

    def _check_alone(self, stage: StageId, tensor: TensorId, rank: int, box: tuple[int, ...]) -> None:
        """One image has one tile: stores of others would have the piece in two orders."""
        for number, other in enumerate(self.graph.stages):
            if not isinstance(other.kind, Store) or other.kind.tensor != tensor or self.graph.rank_of(other) != rank:
                continue
            pattern = other.kind.pattern
            if not isinstance(pattern, Affine) or pattern.box != box:
                raise refusal(stage, f"s{number} stores the same piece in blocks of another shape than {list(box)}")


def _listed(stages: list[StageId]) -> str:
    return ", ".join(f"s{stage}" for stage in stages)
