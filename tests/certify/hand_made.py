"""Small graphs made by hand for one obligation each, and machines to hold them against."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.expression import Expr, Operand
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, ChipId, GroupId, StageId, TensorId
from meshwright.ir.operation import Generic, Matmul, Reduce, Unit, combine
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Buffer, Group, Load, Recv, Site, Stage, Store, Tensor
from meshwright.ir.spec import COPIED, Spec
from meshwright.machine import MachineSpec, load, loads, preset_text

F16, F32, FP22 = ElementType.F16, ElementType.F32, ElementType.FP22
CARD = load("ktpu-v13p")
GRID = load("grid-8x8")
TWO = load("grid-2x4x4")
CHAIN = (0, 1, 3, 2)
"""The meshes of the card along its links."""


def site(chip: int = 0, x: int = 0, y: int = 0) -> Site:
    return Site(ChipId(chip), x, y)


def vector_core(chip: int = 0) -> Site:
    return site(chip, 1, 0)


def cluster(chip: int = 0) -> Site:
    return site(chip, 1, 1)


def rows(count: int, columns: int = 4, first: int = 0, step: int = 1) -> Affine:
    """One row a block."""
    return Affine((first, 0), (1, columns), (Loop(count, (step, 0)),))


def elementwise(expr: Expr | None = None, count: int = 1) -> Generic:
    return Generic.elementwise(Operand(0) * 2.0 if expr is None else expr, count, 2)


def pipeline(blocks: int = 4, depth: int = 2, at: Site | None = None) -> Graph:
    """y = 2 x, row by row: load (s0), compute (s1), store (s2)."""
    g = GraphBuilder()
    there = at or site()
    x, y = g.tensor("x", (blocks, 4), F32, [there.chip]), g.tensor("y", (blocks, 4), F32, [there.chip])
    a, b = g.fifo(there, (1, 4), F32, depth), g.fifo(there, (1, 4), F32, depth)
    g.load(x, rows(blocks), a)
    g.compute(elementwise(), (a,), (b,))
    g.store(y, rows(blocks), b)
    return g.graph()


def two_branches(blocks: int, depth: int) -> Graph:
    """y = x + (a sum over `blocks` rows of x) for the same rows: the long way holds the short one back.

    The first way (b0) waits beside the second (b1), which gives its only block after `blocks` of them: unless b0 is as
    deep, loads of a multicast that fill both can't go on.
    """
    g = GraphBuilder()
    x, y = g.tensor("x", (blocks, 4), F32, [0]), g.tensor("y", (blocks, 4), F32, [0])
    left, right = site(0, 0), site(0, 1)
    near, far = g.fifo(left, (1, 4), F32, depth), g.fifo(right, (1, 4), F32)
    group = g.group(left, (0, 0), (1, 0))
    g.multicast(x, rows(blocks), group, (near, far))
    total, spread = g.tensor("total", (1, 4), F32, [0]), g.fifo(left, (1, 4), F32)
    summed = g.fifo(right, (1, 4), F32)
    g.compute(Reduce(Pool.SUM, (0,), blocks), (far,), (summed,))
    stored = g.store(total, rows(1), summed)
    g.load(total, Affine((0, 0), (1, 4), (Loop(blocks, (0, 0)),)), spread, after=(stored,))
    out = g.fifo(left, (1, 4), F32)
    g.compute(elementwise(Operand(0) + Operand(1), 2), (near, spread), (out,))
    g.store(y, rows(blocks), out)
    return g.graph()


def multicast(columns: int, lines: int, receivers: int | None = None) -> Graph:
    """Rows of x sent to a rectangle, with a receiver at each site; or, not well made, at the first `receivers` only."""
    sites = [site(0, x, y) for y in range(lines) for x in range(columns)]
    buffers = [Buffer(s, (1, 4), F32, 2) for s in sites]
    taken = sites if receivers is None else sites[:receivers]
    tensors = [Tensor("x", (2, 4), F32, (ChipId(0),))]
    tensors += [Tensor(f"y{i}", (2, 4), F32, (ChipId(0),)) for i in range(len(taken))]
    group = Group(sites[0], (0, 0), (columns - 1, lines - 1))
    stages = [Stage(Load(TensorId(0), rows(2), 2, GroupId(0)), (), (BufferId(0),))]
    stages += [Stage(Recv(GroupId(0)), (), (BufferId(i),)) for i in range(1, len(taken))]
    stages += [Stage(Store(TensorId(1 + i), rows(2)), (BufferId(i),)) for i in range(len(taken))]
    return Graph(tuple(tensors), tuple(buffers[: len(taken)]), (group,), tuple(stages))


def chain_sum(
    chips: Sequence[int] = CHAIN, additions: Sequence[tuple[int, int]] | None = None, drain: int | None = None
) -> Graph:
    """x w^T with the contraction split over `chips`: sums opened on each, added from one to the next, drained.

    additions: pairs (from, to) of positions in `chips`; drain: the position that is drained.
    """
    g = GraphBuilder()
    n = len(chips)
    x = g.tensor("x", (4, 32 * n), F16, chips, Spec(axis=1))
    w = g.tensor("w", (4, 32 * n), F16, chips, Spec(axis=1))
    last = n - 1 if drain is None else drain
    y = g.tensor("y", (4, 4), F16, [chips[last]])
    sums: list[BufferId] = []
    for chip in chips:
        at = cluster(chip)
        a, b, total = g.fifo(at, (4, 32), F16), g.fifo(at, (4, 32), F16), g.accumulator(at, (4, 4))
        g.load(x, whole((4, 32)), a)
        g.load(w, whole((4, 32)), b)
        g.compute(Matmul((4, 4, 32), 1, True), (a, b), (total,))
        sums.append(total)
    fold = combine(2, 2, Pool.SUM, Unit.ACCUMULATOR)
    for source, target in [(i, i + 1) for i in range(n - 1)] if additions is None else additions:
        g.stage(AllReduce(Pool.SUM, y, fold), (sums[target], sums[source]), (sums[target],))
    out = g.fifo(cluster(chips[last]), (4, 4), F16)
    g.compute(Generic.elementwise(Operand(0), 1, 2), (sums[last],), (out,))
    g.store(y, whole((4, 4)), out)
    return g.graph()


def on_partials(
    expr: Expr, pool: Pool = Pool.SUM, result: Spec = COPIED, others: Sequence[Spec] = (), chip: int = 0
) -> Graph:
    """An expression over a partial p of two chips, and operands of other specs, stored on chip 0 or both."""
    g = GraphBuilder()
    chips = (0, 3)
    specs = [Spec(partial=pool), *others]
    tensors = [g.tensor(f"p{i}", (1, 4), F16, chips, spec) for i, spec in enumerate(specs)]
    y = g.tensor("y", (1, 4), F16, chips, result)
    for at in map(vector_core, chips):
        ins = [g.fifo(at, (1, 4), F16) for _ in tensors]
        for tensor, buffer in zip(tensors, ins, strict=True):
            g.load(tensor, whole((1, 4)), buffer)
        out = g.fifo(at, (1, 4), F16)
        g.compute(Generic.elementwise(expr, len(ins), 2), ins, (out,))
        g.store(y, whole((1, 4)), out)
    return g.graph()


def copies(
    *moves: tuple[str, Affine, str, Affine], shape: tuple[int, ...] = (8,), before: Sequence[tuple[int, int]] = ()
) -> Graph:
    """Copies between tensors by name on chip 0; move number i is stages 2 i (load) and 2 i + 1 (store)."""
    g = GraphBuilder()
    names = dict.fromkeys(name for move in moves for name in (move[0], move[2]))
    ids = {name: g.tensor(name, shape, F32, [0]) for name in names}
    for source, load_pattern, target, store_pattern in moves:
        fifo = g.fifo(site(), load_pattern.box, F32)
        g.load(ids[source], load_pattern, fifo)
        g.store(ids[target], store_pattern, fifo)
    for first, second in before:
        g.precede(StageId(first), StageId(second))
    return g.graph()


def part(start: int, stop: int) -> Affine:
    """Elements `start` to `stop` of a vector as one block."""
    return Affine((start,), (stop - start,))


def square_of_meshes() -> MachineSpec:
    """Four chips on a 2 x 2 grid of links: 0 and 3, and 1 and 2, are two links apart; nothing is forwarded."""
    text = preset_text("grid-2x4x4")
    head, _, tail = text.partition("[[link_kind]]")
    mesh = head[head.index("[[mesh]]") :]
    one = mesh[: mesh.index("[[mesh]]", 2)]
    meshes = "".join(one.replace("id = 0", f"id = {i}\nat = [{i % 2}, {i // 2}]") for i in range(4))
    kind, _, rest = tail.partition("[[link]]")
    figures = rest[rest.index("[site]") :]
    links = "".join(f'[[link]]\nbetween = [{a}, {b}]\nkind = "ethernet"\n' for a, b in ((0, 1), (0, 2), (1, 3), (2, 3)))
    top = head[: head.index("[[mesh]]")].replace('topology = "chain"', 'topology = "grid2d"')
    return loads(f"{top}{meshes}[[link_kind]]{kind}{links}\n{figures}")


def eleven_by_two() -> MachineSpec:
    """A chip with a mesh of 22 sites."""
    text = preset_text("grid-8x8").replace("[[0, 0], [7, 7]]", "[[0, 0], [10, 1]]")
    return loads(text.replace('name = "grid-8x8"', 'name = "grid-11x2"'))
