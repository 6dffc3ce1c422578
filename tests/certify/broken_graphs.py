"""One graph for each way in which an obligation is broken, with what is said about it and what would help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from certify.hand_made import (
    CARD,
    F16,
    F32,
    GRID,
    TWO,
    chain_sum,
    cluster,
    copies,
    elementwise,
    eleven_by_two,
    multicast,
    on_partials,
    part,
    pipeline,
    rows,
    site,
    square_of_meshes,
    two_branches,
    vector_core,
)
from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.expression import Binary, BinaryOp, Constant, Operand, Select
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, StageId, TensorId
from meshwright.ir.library import divide, exp
from meshwright.ir.operation import Generic, Matmul, Reduce, Unit, combine
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Precedence, Recv, Stage, Store
from meshwright.ir.spec import COPIED, PARTIAL, Spec
from meshwright.machine import MachineSpec


@dataclass(frozen=True)
class Broken:
    obligation: str
    graph: Graph
    machine: MachineSpec
    message: str
    change: str
    spans: Mapping[tuple[TensorId, int], tuple[int, int]] | None = field(default=None)


def changed(graph: Graph, stage: int, **fields: object) -> Graph:
    stages = list(graph.stages)
    stages[stage] = replace(stages[stage], **fields)
    return replace(graph, stages=tuple(stages))


def kind(graph: Graph, stage: int, **fields: object) -> Graph:
    return changed(graph, stage, kind=replace(graph.stages[stage].kind, **fields))


def buffer(graph: Graph, index: int, **fields: object) -> Graph:
    buffers = list(graph.buffers)
    buffers[index] = replace(buffers[index], **fields)
    return replace(graph, buffers=tuple(buffers))


def tensor(graph: Graph, index: int, **fields: object) -> Graph:
    tensors = list(graph.tensors)
    tensors[index] = replace(tensors[index], **fields)
    return replace(graph, tensors=tuple(tensors))


def with_two_senders() -> Graph:
    graph = multicast(2, 1)
    tensors = (*graph.tensors, replace(graph.tensors[0], name="z"))
    load = graph.stages[0]
    more = Stage(replace(load.kind, tensor=TensorId(len(graph.tensors))), (), (BufferId(2),))
    out = Stage(Store(TensorId(len(tensors)), rows(2)), (BufferId(2),))
    tensors = (*tensors, replace(graph.tensors[0], name="q"))
    buffers = (*graph.buffers, graph.buffers[0])
    return replace(graph, tensors=tensors, buffers=buffers, stages=(*graph.stages, more, out))


def with_a_double_receiver() -> Graph:
    """Two stages receive at the same site."""
    graph = multicast(2, 1)
    more = (
        Stage(Recv(graph.stages[1].kind.group), (), (BufferId(2),)),
        Stage(Store(TensorId(3), rows(2)), (BufferId(2),)),
    )
    tensors = (*graph.tensors, replace(graph.tensors[1], name="again"))
    return replace(graph, tensors=tensors, buffers=(*graph.buffers, graph.buffers[1]), stages=(*graph.stages, *more))


def over_a_split_axis() -> Graph:
    """A sum of exponentials along an axis of which each chip has half: a softmax run for each rank by itself."""
    g = GraphBuilder()
    x = g.tensor("x", (2, 8), F16, (0, 3), Spec(axis=1))
    y = g.tensor("y", (2, 8), F16, (0, 3), Spec(axis=1))
    for at in (vector_core(0), vector_core(3)):
        a, b = g.fifo(at, (1, 4), F16), g.fifo(at, (1, 4), F16)
        e, s, q = g.fifo(at, (1, 4), F16), g.fifo(at, (1, 1), F16), g.fifo(at, (1, 4), F16)
        g.load(x, rows(2), a)
        g.load(x, rows(2), b)
        g.compute(elementwise(exp(Operand(0))), (a,), (e,))
        g.compute(Reduce(Pool.SUM, (1,)), (e,), (s,))
        g.compute(Generic((divide(exp(Operand(0)), Operand(1)),), ((0, 1), (0, 1))), (b, s), (q,))
        g.store(y, rows(2), q)
    return g.graph()


def with_a_bias_everywhere() -> Graph:
    """Every chip adds the bias to its part of a product before the parts are summed."""
    g = GraphBuilder()
    x = g.tensor("x", (4, 64), F16, (0, 1), Spec(axis=1))
    w = g.tensor("w", (4, 64), F16, (0, 1), Spec(axis=1))
    bias = g.tensor("bias", (1, 4), F16, (0, 1))
    y = g.tensor("y", (4, 4), F16, (0, 1), PARTIAL)
    for chip in (0, 1):
        at = cluster(chip)
        a, b, c, out = (g.fifo(at, block, F16) for block in ((4, 32), (4, 32), (1, 4), (4, 4)))
        g.load(x, whole((4, 32)), a)
        g.load(w, whole((4, 32)), b)
        g.load(bias, whole((1, 4)), c)
        g.compute(Matmul((4, 4, 32), 1, True, bias=c), (a, b), (out,))
        g.store(y, whole((4, 4)), out)
    return g.graph()


def other_slice() -> Graph:
    """A product of slice 0 of x with slice 1 of w."""
    g = GraphBuilder()
    x = g.tensor("x", (4, 64), F16, (0, 1), Spec(axis=1))
    w = g.tensor("w", (4, 64), F16, (1, 0), Spec(axis=1))
    y = g.tensor("y", (4, 4), F16, (0, 1), PARTIAL)
    for chip in (0, 1):
        at = cluster(chip)
        a, b, out = (g.fifo(at, block, F16) for block in ((4, 32), (4, 32), (4, 4)))
        g.load(x, whole((4, 32)), a)
        g.load(w, whole((4, 32)), b)
        g.compute(Matmul((4, 4, 32), 1, True), (a, b), (out,))
        g.store(y, whole((4, 4)), out)
    return g.graph()


def never_opened() -> Graph:
    graph = chain_sum((0, 1))
    # The product that opened the second accumulator continues it instead.
    return changed(graph, 5, ins=(*graph.stages[5].ins, graph.stages[5].outs[0]))


def opened_over() -> Graph:
    """Two products open the same accumulator one after the other, and only the second one's sums are read."""
    g = GraphBuilder()
    x, w, y = (g.tensor(n, s, F16, [0]) for n, s in (("x", (4, 32)), ("w", (4, 32)), ("y", (4, 4))))
    at = cluster()
    total, out = g.accumulator(at, (4, 4)), g.fifo(at, (4, 4), F16)
    for _ in range(2):
        a, b = g.fifo(at, (4, 32), F16), g.fifo(at, (4, 32), F16)
        g.load(x, whole((4, 32)), a)
        g.load(w, whole((4, 32)), b)
        g.compute(Matmul((4, 4, 32), 1, True), (a, b), (total,))
    g.compute(Generic.elementwise(Operand(0), 1, 2), (total,), (out,))
    g.store(y, whole((4, 4)), out)
    return g.graph()


def large_product(m: int, n: int, k: int, depth: int = 2) -> Graph:
    """One product of a block at a cluster of the card."""
    g = GraphBuilder()
    x, w, y = (g.tensor(name, shape, F16, [0]) for name, shape in (("x", (m, k)), ("w", (n, k)), ("y", (m, n))))
    at = cluster()
    a, b, out = g.fifo(at, (m, k), F16, depth), g.fifo(at, (n, k), F16, depth), g.fifo(at, (m, n), F16)
    g.load(x, whole((m, k)), a)
    g.load(w, whole((n, k)), b)
    g.compute(Matmul((m, n, k), 1, True), (a, b), (out,))
    g.store(y, whole((m, n)), out)
    return g.graph()


def many_stages() -> Graph:
    """A chain of 130 operations at one vector core: more than a round has commands for."""
    g = GraphBuilder()
    at = vector_core()
    x, y = g.tensor("x", (1, 4), F16, [0]), g.tensor("y", (1, 4), F16, [0])
    last = g.fifo(at, (1, 4), F16, 1)
    g.load(x, rows(1), last)
    for _ in range(130):
        following = g.fifo(at, (1, 4), F16, 1)
        g.compute(elementwise(), (last,), (following,))
        last = following
    g.store(y, rows(1), last)
    return g.graph()


def round_a_ring() -> Graph:
    """Every chip of a ring of five writes to the one after its neighbour, all the same way round."""
    g = GraphBuilder()
    for source in range(5):
        x, y = g.tensor(f"x{source}", (4,), F32, [source]), g.tensor(f"y{source}", (4,), F32, [(source + 2) % 5])
        fifo = g.fifo(site(source), (4,), F32)
        g.load(x, whole((4,)), fifo)
        g.store(y, whole((4,)), fifo, rank=0)
    return g.graph()


def ring_of_five() -> MachineSpec:
    """Five chips in a ring that forwards."""
    mesh, link = TWO.meshes[0], TWO.links[0]
    meshes = tuple(replace(mesh, id=i) for i in range(5))
    links = tuple(replace(link, between=(i, (i + 1) % 5)) for i in range(5))
    return replace(TWO, name="a ring", topology="ring", forwards=True, links=links, meshes=meshes)


def along_a_square() -> Graph:
    """A 2 x 2 grid of chips addressed as a line of four: chip 1's neighbour in it is two links away."""
    g = GraphBuilder()
    partial = g.tensor("p", (1, 4), F32, (0, 1, 2, 3), PARTIAL)
    y = g.tensor("y", (1, 4), F32, (3,))
    ins = [g.fifo(site(chip), (1, 4), F32) for chip in range(4)]
    for fifo in ins:
        g.load(partial, whole((1, 4)), fifo)
    out = g.fifo(site(3), (1, 4), F32)
    g.stage(AllReduce(Pool.SUM, partial, combine(4, 2, Pool.SUM, Unit.VECTOR)), ins, (out,))
    g.store(y, whole((1, 4)), out)
    return g.graph()


def remote_load() -> Graph:
    """Chip 0 loads what is in chip 1's memory."""
    g = GraphBuilder()
    x, y = g.tensor("x", (4,), F16, [1]), g.tensor("y", (4,), F16, [0])
    fifo = g.fifo(vector_core(), (4,), F16)
    g.load(x, whole((4,)), fifo, rank=0)
    g.store(y, whole((4,)), fifo)
    return g.graph()


def in_place_ahead() -> Graph:
    """x is shifted by one in place: block t is written where block t + 1 has yet to be read."""
    g = GraphBuilder()
    x, z = g.tensor("x", (8,), F32, [0]), g.tensor("z", (8,), F32, [0])
    first, fifo = g.fifo(site(), (1,), F32), g.fifo(site(), (1,), F32)
    ones = Affine((0,), (1,), (Loop(8, (1,)),))
    g.load(z, ones, first)
    stored = g.store(x, ones, first)
    g.load(x, Affine((0,), (1,), (Loop(7, (1,)),)), fifo, after=(stored,))
    g.store(x, Affine((1,), (1,), (Loop(7, (1,)),)), fifo)
    return g.graph()


TOO_LONG = buffer(pipeline(), 0, block=(1, 8))
SPANS = {(TensorId(0), 0): (0, 64), (TensorId(1), 0): (32, 96)}
SHORT = {(TensorId(0), 0): (0, 64), (TensorId(1), 0): (64, 96)}
EIGHT = part(0, 8)

BROKEN: dict[str, Broken] = {
    "a box that doesn't fill its block": Broken(
        "Shapes",
        TOO_LONG,
        GRID,
        "stage s0: pattern over 'x': box (1, 4) doesn't fill a block of (1, 8) (and 1 more)",
        "change that shape, or the record that it has to fit",
    ),
    "two stages take from one FIFO": Broken(
        "Ports",
        replace(pipeline(), stages=(*pipeline().stages, pipeline().stages[2])),
        GRID,
        "buffer b1 is a FIFO with 1 producers and 2 consumers; one each",
        "connect the buffers so that each FIFO has one stage that fills it and one that empties it, at one site",
    ),
    "a buffer that isn't there": Broken(
        "Remapped",
        changed(pipeline(), 2, ins=(BufferId(7),)),
        GRID,
        "stage s2: names buffer b7, and there are 2",
        "name a record that is there; rename with `Stage.remap_buffers`, which renames every buffer",
    ),
    "a combine that is no fold": Broken(
        "CombineMatchesPool",
        kind(chain_sum(), 12, pool=Pool.MAX),
        CARD,
        "stage s12: its combine is not the max fold of 2 operands in port order",
        "build `combine` with `ir.operation.combine` from the pool and the number of inputs",
    ),
    "a store of fewer blocks": Broken(
        "BlockBalance",
        kind(pipeline(), 2, pattern=rows(3)),
        GRID,
        "stage s2 takes 3 blocks from b1 (3 firings of 1), and 4 are put into it",
        "make the patterns on both sides of the buffer turn equally often, or take the stage away",
    ),
    "blocks that nobody takes": Broken(
        "BlockBalance",
        replace(pipeline(), stages=pipeline().stages[:2]),
        GRID,
        "4 blocks are put into b1, and no stage takes them",
        "make the patterns on both sides of the buffer turn equally often, or take the stage away",
    ),
    "a rectangle past the mesh": Broken(
        "GroupIsRectangle",
        multicast(11, 2),
        GRID,
        "group g0, (0, 0) to (10, 1) on chip 0: grid-8x8 has no unit at 0:(8,0), which is in it",
        "shrink the rectangle to sites that have a unit",
    ),
    "a machine without multicast": Broken(
        "GroupIsRectangle",
        multicast(1, 3),
        CARD,
        "group g0, (0, 0) to (0, 2) on chip 0: the network of ktpu-v13p has no multicast",
        "give every receiver a load of its own",
    ),
    "two loads that send to a group": Broken(
        "OneSender",
        with_two_senders(),
        GRID,
        "group g0 has 2 senders, s0, s4: a receiver can't tell whose block came first",
        "give all but one of s0, s4 a group of its own",
    ),
    "sixteen workers in a rectangle of 22": Broken(
        "NoOrphanRecv",
        multicast(11, 2, 16),
        eleven_by_two(),
        "group g0 is a rectangle of 22 sites, and 16 of them receive: nothing takes the blocks that s0 sends to "
        "0:(5,1) and 5 more",
        "add a Recv at 0:(5,1) and 5 more, or shrink the rectangle to the sites that receive",
    ),
    "a receiver without a sender": Broken(
        "NoOrphanRecv",
        replace(multicast(2, 1), stages=multicast(2, 1).stages[1::2]),
        GRID,
        "stage s0 receives from g0, and no load sends to it",
        "add a load that sends to g0",
    ),
    "two receivers at a site": Broken(
        "NoOrphanRecv",
        with_a_double_receiver(),
        GRID,
        "s1 and s4 both take the blocks of g0 at 0:(1,0); a multicast leaves one block a site",
        "take s4 away",
    ),
    "a FIFO one block too shallow under a multicast": Broken(
        "NoDeadlock",
        two_branches(4, 3),
        GRID,
        "5 stages wait for each other:\n"
        "    s0 (Load at 0:(0,0)), in firing 3, waits for room in b0 at 0:(0,0) (3 of 3 taken), which s5 empties\n"
        "    s5 (Compute at 0:(0,0)), in firing 0, waits for a block in b2, which s4 puts\n"
        "    s4 (Load at 0:(0,0)) waits, before it begins, for s3 to finish\n"
        "    s3 (Store at 0:(1,0)), in firing 0, waits for a block in b3, which s2 puts\n"
        "    s2 (Compute at 0:(1,0)), in firing 0, waits for a block in b1, which s0 puts",
        "make b0 4 blocks deep instead of 3",
    ),
    "a precedence against the flow": Broken(
        "NoDeadlock",
        replace(pipeline(), precedences=(Precedence(StageId(2), StageId(0)),)),
        GRID,
        "the stages s0 -> s1 -> s2 -> s0 each have to precede the next: no block is there at the start, so none of "
        "them begins",
        "take one of these orders away: (s2, s0)",
    ),
    "transfers that chase each other round a ring": Broken(
        "ChannelsAcyclic",
        round_a_ring(),
        ring_of_five(),
        "the links 0 to 1, 1 to 2, 2 to 3, 3 to 4, 4 to 0 wait for each other in a circle: a transfer that holds one "
        "needs the next",
        "move the blocks of s1 hop by hop, through memory of the chips on the way",
    ),
    "operands too large for L1": Broken(
        "BufferFits",
        large_product(64, 64, 1056),
        CARD,
        "buffers and stages at 0:(1,1) take 2112 L1 entries of side A, and ktpu-v13p has 512: 1600 too many",
        "smaller blocks or less deep FIFOs at 0:(1,1); s2 has the largest part, 2112",
    ),
    "a FIFO too deep for a vector core": Broken(
        "BufferFits",
        pipeline(400, 200, vector_core()),
        CARD,
        "buffers and stages at 0:(1,0) take 400 L1 words, and ktpu-v13p has 320: 80 too many",
        "smaller blocks or less deep FIFOs at 0:(1,0); s0 has the largest part, 200",
    ),
    "sums too large for an accumulator": Broken(
        "AccumulatorFits",
        large_product(128, 128, 32, 1),
        CARD,
        "buffers and stages at 0:(1,1) take 1024 sub-tiles, and ktpu-v13p has 512: 512 too many",
        "smaller blocks or less deep FIFOs at 0:(1,1); s2 has the largest part, 1024",
    ),
    "a tensor larger than DRAM": Broken(
        "ArenaFits",
        tensor(pipeline(), 0, shape=(1 << 30, 4)),
        GRID,
        "the 2 pieces on chip 0 take 17,179,869,248 bytes, and grid-8x8 has 12,884,901,888 for values: 4,294,967,360 "
        "too many",
        "split 'x', the largest, further",
    ),
    "more stages than a round has commands": Broken(
        "RoundFits",
        many_stages(),
        CARD,
        "buffers and stages at 0:(0,0) take 132 commands of the mesh, and ktpu-v13p has 128: 4 too many",
        "smaller blocks or less deep FIFOs at 0:(0,0); s0 has the largest part, 1",
    ),
    "a load without the precedence": Broken(
        "ReadAfterWrite",
        copies(("x", EIGHT, "h", EIGHT), ("h", EIGHT, "y", EIGHT)),
        GRID,
        "s2 (Load at 0:(0,0)) loads what s1 stores to [0:8] of 'h', and nothing says that s1 comes first",
        "add the precedence (s1, s2)",
    ),
    "a load of what nothing stores": Broken(
        "ReadAfterWrite",
        copies(("x", part(0, 6), "h", part(0, 6)), ("h", EIGHT, "y", EIGHT), before=[(1, 2)]),
        GRID,
        "s2 (Load at 0:(0,0)) loads [6:8] of 'h', which nothing stores before it",
        "store them first, and state the precedence of that store",
    ),
    "a box outside its tensor": Broken(
        "ReadAfterWrite",
        copies(("x", part(4, 12), "y", EIGHT)),
        GRID,
        "s0 (Load at 0:(0,0)) reaches 4 to 11 along axis 0 of 'x', which has 8",
        "give the pattern a pad, or turn its loops less often",
    ),
    "blocks that overlap": Broken(
        "WrittenOnce",
        copies(("x", Affine((0,), (4,), (Loop(3, (2,)),)), "y", Affine((0,), (4,), (Loop(3, (2,)),)))),
        GRID,
        "s1 (Store at 0:(0,0)) writes some elements within [0:8] of 'y' more than once",
        "let its loops move at least a box at a time",
    ),
    "two stores in no order": Broken(
        "WrittenOnce",
        copies(("x", EIGHT, "y", EIGHT), ("z", part(2, 5), "y", part(2, 5))),
        GRID,
        "s1 and s3 both store to [2:5] of 'y', and nothing says which comes last",
        "add a precedence between s1 and s3",
    ),
    "a result with a gap": Broken(
        "Covered",
        copies(("x", part(0, 3), "y", part(0, 3)), ("x", part(5, 8), "y", part(5, 8))),
        GRID,
        "nothing stores [3:5] of 'y', which is a result",
        "store [3:5] as well",
    ),
    "an overwrite that a load may come after": Broken(
        "NoLiveOverwrite",
        copies(("x", EIGHT, "h", EIGHT), ("h", EIGHT, "y", EIGHT), ("z", EIGHT, "h", EIGHT), before=[(1, 2), (1, 5)]),
        GRID,
        "s5 (Store at 0:(0,0)) overwrites [0:8] of 'h', which s2 loads, and nothing says which comes first",
        "add the precedence (s2, s5)",
    ),
    "an update in place that runs ahead": Broken(
        "NoLiveOverwrite",
        in_place_ahead(),
        GRID,
        "s3 (Store at 0:(0,0)) overwrites [1:2] of 'x', which s2, which feeds it, may load only later",
        "store to another tensor",
    ),
    "spans that share bytes": Broken(
        "SpansDisjoint",
        pipeline(),
        GRID,
        "on chip 0 'x' at 0 to 64 and 'y' at 32 to 96 share bytes 32 to 64",
        "start 'y' at 64",
        SPANS,
    ),
    "a span that is too short": Broken(
        "SpansDisjoint",
        pipeline(),
        GRID,
        "rank 0's piece of 'y' takes 64 bytes, and its span 64 to 96 has 32",
        "let it end at 128",
        SHORT,
    ),
    "a partial stored as a value": Broken(
        "UnreducedShard",
        on_partials(Operand(0)),
        CARD,
        "s2 (Store at 0:(1,0)) stores to 'y', copied, the contribution of rank 0 alone: sum over p0 of contributions 0 "
        "of 2 (and 1 more)",
        "fold it with the other 1 first, or give the tensor a partial sum spec",
    ),
    "one added to every contribution": Broken(
        "UnreducedShard",
        on_partials(Operand(0) + 1.0, result=PARTIAL),
        CARD,
        "s1 (Compute at 0:(1,0)) reads sum over p0 of contributions 0 of 2 where only the whole value gives the right "
        "result: the expression is not one that may be applied to the parts of a sum (and 1 more)",
        "reduce it before this stage",
    ),
    "a partial maximum times a negative number": Broken(
        "UnreducedShard",
        on_partials(Operand(0) * -2.0, Pool.MAX, Spec(partial=Pool.MAX)),
        CARD,
        "s1 (Compute at 0:(1,0)) reads max over p0 of contributions 0 of 2 where only the whole value gives the right "
        "result: the expression is not one that may be applied to the parts of a max (and 1 more)",
        "reduce it before this stage",
    ),
    "a comparison of partials": Broken(
        "UnreducedShard",
        on_partials(
            Select(Binary(BinaryOp.LT, Operand(0), Operand(1)), Constant(1.0), Constant(0.0)),
            others=(PARTIAL,),
            result=PARTIAL,
        ),
        CARD,
        "s2 (Compute at 0:(1,0)) reads sum over p0 of contributions 0 of 2 where only the whole value gives the right "
        "result: the expression is not one that may be applied to the parts of a sum (and 1 more)",
        "reduce it before this stage",
    ),
    "a copied value added to every contribution": Broken(
        "UnreducedShard",
        on_partials(Operand(0) + Operand(1), others=(COPIED,), result=PARTIAL),
        CARD,
        "s2 (Compute at 0:(1,0)) folds sum over p0 of contributions 0 of 2 with a value that is whole: that would "
        "count once a contribution (and 1 more)",
        "fold the contributions first, then add the whole value",
    ),
    "a bias on every rank": Broken(
        "UnreducedShard",
        with_a_bias_everywhere(),
        CARD,
        "s3 (Compute at 0:(1,1)) folds sum over x x w of contributions 0 of 2 with a value that is whole: that would "
        "count once a contribution (and 1 more)",
        "fold the contributions first, then add the whole value",
    ),
    "a softmax of slices": Broken(
        "UnreducedShard",
        over_a_split_axis(),
        CARD,
        "s4 (Compute at 0:(1,0)) reads sum over x of contributions 0 of 2 where only the whole value gives the right "
        "result: the expression is not one that may be applied to the parts of a sum (and 1 more)",
        "reduce it before this stage",
    ),
    "one summand missing": Broken(
        "EachSummandOnce",
        chain_sum(additions=[(0, 1), (1, 3)]),
        CARD,
        "s15 (Store at 2:(1,1)) stores to 'y', copied, a sum of x x w without the contribution of rank 2",
        "fold in rank 2, once",
    ),
    "one summand twice": Broken(
        "EachSummandOnce",
        chain_sum(additions=[(0, 1), (1, 2), (2, 3), (1, 3)]),
        CARD,
        "s17 (Store at 2:(1,1)) stores to 'y', copied, a sum of x x w with the contribution of rank 0 in it 2 times",
        "fold in rank 0 once",
    ),
    "slices that don't belong together": Broken(
        "EachSummandOnce",
        other_slice(),
        CARD,
        "s2 (Compute at 0:(1,1)) multiplies slice 0 of 2 of x with slice 1 of 2 of w: those are different parts of the "
        "contraction (and 1 more)",
        "load slice 0 of both",
    ),
    "an accumulator that nobody opened": Broken(
        "OpenedBeforeAdd",
        never_opened(),
        CARD,
        "s5 (Compute at 1:(1,1)) adds to accumulator b5, which no stage before it in the table opens",
        "put a stage that only puts into b5 before s5",
    ),
    "an accumulator opened over its sums": Broken(
        "OpenedBeforeAdd",
        opened_over(),
        CARD,
        "s2 (Compute at 0:(1,1)) leaves sums in accumulator b0, and it is opened again over them",
        "drain b0 first",
    ),
    "a neighbour two links away": Broken(
        "NeighboursOnly",
        along_a_square(),
        square_of_meshes(),
        "s4 (AllReduce at 0:(0,0)) moves blocks from chip 1 to 2: they are 2 links apart, and grid-2x4x4 forwards "
        "nothing",
        "go from neighbour to neighbour: 1, 0, 2",
    ),
    "a load across a link": Broken(
        "NeighboursOnly",
        remote_load(),
        CARD,
        "s0 (Load at 0:(1,0)) moves blocks from chip 1 to 0: read doesn't cross a link of ktpu-v13p; write, unit_data, "
        "doorbell does",
        "let the chip that has the data write it",
    ),
    "a chip that isn't there": Broken(
        "NeighboursOnly",
        chain_sum((0, 5)),
        CARD,
        "s6 (AllReduce at 5:(1,1)) moves blocks from chip 0 to 5: ktpu-v13p has no chip 5",
        "use one that is there: 0, 1, 3, 2",
    ),
    "vector work on a cluster": Broken(
        "UnitPresent",
        pipeline(at=cluster()),
        CARD,
        "s1 (Compute at 0:(1,1)) needs VC at 0:(1,1) of ktpu-v13p, and MG is there",
        "place it where there is one: VC at 0:(1,0)",
    ),
    "a product where nothing stands": Broken(
        "UnitPresent",
        pipeline(at=site(1, 4, 4)),
        TWO,
        "s0 (Load at 1:(4,4)) needs site at 1:(4,4) of grid-2x4x4, and nothing is there",
        "place it where there is one: site at 0:(0,0)",
    ),
}
