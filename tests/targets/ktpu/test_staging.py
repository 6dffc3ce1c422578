"""Graphs rewritten so that units can run them mean the same, to the bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import kernels
from meshwright.certify import Verdict, certify
from meshwright.errors import PlacementError
from meshwright.evaluate.walk import evaluate
from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.expression import Operand
from meshwright.ir.form import require_well_formed
from meshwright.ir.formats import ElementType
from meshwright.ir.ids import StageId
from meshwright.ir.operation import Generic, Matmul
from meshwright.ir.pattern import Affine, Gather, Loop
from meshwright.ir.records import Load, Site, Store
from meshwright.kernels.alone import graph_alone, operand_name
from meshwright.kernels.kernel import Shaped
from meshwright.machine import load
from meshwright.targets.ktpu.arithmetic import KtpuArithmetic
from meshwright.targets.ktpu.placement import KtpuPlacement
from meshwright.targets.ktpu.staging import epilogues_apart, part_of, through_memory

CARD = load("ktpu-v13p")
F16 = ElementType.F16
CORE, CLUSTER = (Site(0, *CARD.coords(0, unit)[0]) for unit in ("VC", "MG"))
AGENT = KtpuPlacement(CARD, 0).mover_site()


def values_of(graph, seed=0):
    random = np.random.default_rng(seed)
    return {
        graph.tensors[t].name: (random.standard_normal(graph.tensors[t].local).astype(np.float16),)
        for t in graph.inputs()
    }


CAPACITIES = ("BufferFits", "AccumulatorFits", "ArenaFits", "RoundFits")


def means_the_same(before, after):
    require_well_formed(after)
    broken = [e for e in certify(after, CARD).entries if e.verdict is Verdict.BROKEN and e.obligation not in CAPACITIES]
    assert not broken, "an order or a piece that the rewriting lost"
    given_ = values_of(before)
    wanted = evaluate(before, given_, KtpuArithmetic())
    found = evaluate(after, given_, KtpuArithmetic(), keep=list(wanted))
    for name, pieces in wanted.items():
        for a, b in zip(pieces, found[name], strict=True):
            np.testing.assert_array_equal(a.view(np.uint16), b.view(np.uint16))


CASES = {
    "product": (kernels.MatrixProduct(), (20, 96), (40, 96)),
    "convolution": (kernels.convolution(padding=1), (1, 6, 5, 8), (4, 3, 3, 8)),
    "softmax": (kernels.softmax(), (12, 40)),
    "long norm": (kernels.layer_norm(), (2, 4096), (4096,), (4096,)),
    "sum": (kernels.reduce("sum"), (6, 33)),
    "added": (kernels.add, (3, 5, 18), (18,)),
}


@pytest.mark.parametrize("case", CASES)
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 2**16))
def test_any_loads_and_stores_may_go_through_memory(case, seed):
    kernel, *shapes = CASES[case]
    graph = graph_alone(kernel, KtpuPlacement(CARD, 0), [Shaped(shape, F16) for shape in shapes])
    moves = [StageId(n) for n, s in enumerate(graph.stages) if isinstance(s.kind, (Load, Store))]
    chosen = np.random.default_rng(seed).random(len(moves)) < 0.5
    cut = [stage for stage, one in zip(moves, chosen, strict=True) if one]
    made = through_memory(graph, cut, CARD)
    assert len(made.stages) == len(graph.stages) + 2 * len(cut)
    assert all(made.site(made.stages[s]) == graph.site(graph.stages[s]) for s in range(len(graph.stages)))
    assert all(made.site(stage) == AGENT for stage in made.stages[len(graph.stages) :])
    means_the_same(graph, made)


def test_a_copy_runs_where_its_source_is():
    builder = GraphBuilder()
    x, y = (builder.tensor(name, (4, 16), F16, (chip,)) for name, chip in (("x", 0), ("y", 1)))
    taken, made = (builder.fifo(CORE, (4, 16), F16) for _ in range(2))
    builder.load(x, whole((4, 16)), taken)
    builder.compute(Generic.elementwise(Operand(0) + Operand(0), 1, 2), (taken,), (made,))
    store = builder.store(y, whole((4, 16)), made, rank=0)
    graph = builder.graph()
    cut = through_memory(graph, [store], CARD)
    assert [cut.site(stage).chip for stage in cut.stages[-2:]] == [0, 0]
    assert cut.tensors[-1].chips == (0,)
    means_the_same(graph, cut)


def test_a_block_that_is_loaded_often_is_copied_once():
    kernel = kernels.convolution(padding=1)
    graph = graph_alone(kernel, KtpuPlacement(CARD, 0), [Shaped((1, 14, 14, 64), F16), Shaped((256, 3, 3, 64), F16)])
    loads = [StageId(n) for n, s in enumerate(graph.stages) if isinstance(s.kind, Load)]
    often = [s for s in loads if any(x.extent > 1 and not any(x.stride) for x in graph.stages[s].kind.pattern.loops)]
    assert often
    cut = through_memory(graph, loads, CARD)
    for number, stage in enumerate(loads):
        kind = graph.stages[stage].kind
        moving = [loop.extent for loop in kind.pattern.loops if any(loop.stride)]
        scratch = cut.tensors[len(graph.tensors) + number]
        assert scratch.shape[0] == np.prod(moving, dtype=int)
        assert cut.stages[stage].kind.num_blocks == kind.num_blocks
    means_the_same(graph, cut)


def looked_up(site):
    builder = GraphBuilder()
    table = builder.tensor("table", (9, 16), F16, (0,))
    ids = builder.tensor("ids", (4,), ElementType.I32, (0,))
    out = builder.tensor("out", (4, 16), F16, (0,))
    index, taken = builder.fifo(site, (4,), ElementType.I32), builder.fifo(site, (4, 16), F16)
    builder.load(ids, whole((4,)), index)
    found = builder.load(table, Gather(Affine((0, 0), (4, 16)), 0, index), taken)
    builder.store(out, whole((4, 16)), taken)
    return builder.graph(), found


def test_positions_that_are_looked_up():
    graph, stage = looked_up(CORE)
    with pytest.raises(PlacementError) as refused:
        through_memory(graph, [stage], CARD)
    assert str(refused.value) == "stage s1 looks positions up, and a unit of this machine can't: only copies do"
    graph = graph_alone(kernels.gelu, KtpuPlacement(CARD, 0), [Shaped((64, 256), F16)])
    with pytest.raises(TypeError, match="s1 is a Compute; loads and stores go through memory"):
        through_memory(graph, [StageId(1)], CARD)


@pytest.mark.parametrize("bias", [None, (1, 16), (8, 16)])
@pytest.mark.parametrize("epilogue", [None, Operand(0) * Operand(0)])
@pytest.mark.parametrize("blocks", [1, 3])
def test_what_follows_a_sum_is_apart(bias, epilogue, blocks):
    if bias is None and epilogue is None:
        return
    builder = GraphBuilder()
    loop = (Loop(blocks, (1, 0, 0)),)

    def operand(name, shape):
        tensor = builder.tensor(name, (blocks, *shape), F16, (0,))
        fifo = builder.fifo(CLUSTER, shape, F16)
        builder.load(tensor, Affine((0, 0, 0), (1, *shape), loop), fifo)
        return fifo

    a, b = operand("a", (8, 64)), operand("b", (16, 64))
    added = None if bias is None else operand("bias", bias)
    out = builder.fifo(CLUSTER, (8, 16), F16)
    op = Matmul((8, 16, 64), 1, b_transposed=True, bias=added, epilogue=epilogue)
    stage = builder.compute(op, (a, b), (out,))
    builder.store(builder.tensor("c", (blocks, 8, 16), F16, (0,)), Affine((0, 0, 0), (1, 8, 16), loop), out)
    graph = builder.graph()
    apart = epilogues_apart(graph, CARD)
    assert apart.site(apart.stages[stage]) == CLUSTER
    assert apart.site(apart.stages[-1]) == CORE
    means_the_same(graph, apart)
    assert epilogues_apart(apart, CARD) is apart


def test_parts_that_are_alike_are_equal():
    graph = graph_alone(kernels.gelu, KtpuPlacement(CARD, 0), [Shaped((64, 256), F16)])
    halves = [
        tuple(StageId(n) for n, s in enumerate(graph.stages) if graph.site(s) == site)
        for site in dict.fromkeys(graph.site(s) for s in graph.stages)
    ]
    first, second = (part_of(graph, stages, CORE) for stages in halves)
    assert [type(s.kind) for s in first.graph.stages] == [type(s.kind) for s in second.graph.stages]
    assert first.graph.tensors == second.graph.tensors
    assert first.pieces == second.pieces
    (read,), (written,) = first.reads, first.writes
    assert (graph.tensors[read[1][0]].name, written[1][0]) == (operand_name(0), graph.outputs()[0])
