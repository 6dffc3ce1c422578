"""Rows and groups of rows that are too much for one run, and each limit of a run: at it, and one past it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.targets.ktpu.vector_rig import CARD, CHIP, check, check_kernel, graph_of, halves, placed, tasks_of

from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.expression import Operand
from meshwright.ir.formats import ElementType
from meshwright.ir.operation import Generic, Reduce
from meshwright.ir.pool import Pool
from meshwright.kernels.elementwise import Elementwise, add, gelu, maximum, multiply
from meshwright.kernels.norm import layer_norm, rms_norm
from meshwright.kernels.reduce import reduce
from meshwright.kernels.softmax import softmax
from meshwright.targets.ktpu.isa import vector as isa
from meshwright.targets.ktpu.isa.payload import Desc, Imem, Payload, Run
from meshwright.targets.ktpu.placement import KtpuPlacement

SITE = KtpuPlacement(CARD, CHIP).vector_sites()[0]
CORE = CARD.vector_core
LENGTHS = st.one_of(st.integers(2, 200), st.sampled_from([255, 256, 257, 384, 511, 512, 513, 1000]))
LONG = [4096, 8192]


def words_of(graph, layout="padded") -> tuple[Payload, ...]:
    """The payloads of the first core."""
    return tasks_of(graph, placed(graph, layout))[0].program.words


def words_at_first(graph, layout="rows") -> list:
    """All payloads that the first core is sent: the programs of its chains, one after the other."""
    tasks = tasks_of(graph, placed(graph, layout))
    return [word for task in tasks if task.site == tasks[0].site for word in task.program.words]


def count(words, kind) -> int:
    return sum(isinstance(word, kind) for word in words)


def codes(words) -> list[list[isa.VectorInstruction]]:
    """The code that each run executes, VHALT included."""
    memory: dict[int, int] = {}
    found = []
    for payload in words:
        if isinstance(payload, Imem):
            memory[payload.addr] = payload.word
        elif isinstance(payload, Run):
            at, code = payload.pc, []
            while not code or not isinstance(code[-1], isa.Halt):
                following = [memory[at + i] for i in range(2) if at + i in memory]
                instruction, size = isa.decode_at(following, 0)
                code.append(instruction)
                at += size
            found.append(code)
    return found


# Kernels.


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 40), LENGTHS, st.sampled_from(["sum", "mean", "max", "min"]), st.booleans(), st.integers(0, 99))
def test_folds_whose_results_share_words(rows, length, fold, one_core, seed):
    # 16 rows to a core at least, in whole words of results.
    rows = rows if one_core else 32 * -(-rows // 32)
    check_kernel(reduce(fold), halves(rows, length, seed=seed), layout="padded", cores=1 if one_core else 2)


@pytest.mark.parametrize("length", LONG)
@pytest.mark.parametrize(
    ("kernel", "vectors"),
    [
        (softmax(scale=0.125), 0),
        (softmax(), 1),
        (layer_norm(), 2),
        (rms_norm(), 1),
        (reduce("sum", keep=True), 0),
        (reduce("max", keep=True), 0),
    ],
    ids=["softmax", "masked", "layer_norm", "rms_norm", "sum", "max"],
)
def test_long_rows(kernel, vectors, length):
    operands = [halves(3, length), *(halves(length, seed=1 + at) for at in range(vectors))]
    check_kernel(kernel, *operands, layout="padded")


@pytest.mark.parametrize("fold", ["sum", "mean"])
def test_long_rows_whose_results_share_words(fold):
    check_kernel(reduce(fold), halves(64, 384))
    check_kernel(reduce(fold), halves(32, 4096, scale=0.1))


def test_a_layer_norm_with_a_residual_in_parts():
    x = [halves(3, 4096, seed=at) for at in range(2)]
    check_kernel(layer_norm(), *x, halves(4096, seed=7), halves(4096, seed=8), layout="padded")


def test_parts_of_a_long_row_that_are_alike_share_their_code():
    words = words_of(graph_of(reduce("sum"), halves(64, 4096)), "rows")
    # 64 pieces of a row, two instructions each, 16 rows of them that share a word of results.
    assert count(words, Imem) < CORE.instructions
    assert count(words, Run) > 16


# Limits.


@pytest.mark.parametrize(("operands", "runs"), [(6, 1), (7, 2), (8, 2), (13, 2), (14, 3), (15, 3), (20, 3), (21, 4)])
def test_more_loads_and_stores_than_descriptors(operands, runs):
    kernel = Elementwise("many", sum((Operand(i) for i in range(1, operands)), Operand(0)), operands)
    x = [halves(1, 48, seed=at) for at in range(operands)]
    check_kernel(kernel, *x, layout="padded", cores=1)
    # Seven descriptors for fills and drains: fills that don't fit beside the drain have runs of their own.
    assert count(words_of(graph_of(kernel, *x, cores=1)), Run) == runs
    check_kernel(kernel, *(halves(37, 200, seed=at) for at in range(operands)), layout="padded", cores=1)


def test_more_results_than_descriptors():
    builder = GraphBuilder()
    shape = (4, 32)
    x, fifo = builder.tensor("x", shape, ElementType.F16, (CHIP,)), builder.fifo(SITE, shape, ElementType.F16)
    builder.load(x, whole(shape), fifo)
    outs = [builder.fifo(SITE, shape, ElementType.F16) for _ in range(9)]
    builder.compute(Generic(tuple(Operand(0) * (1.0 + at) for at in range(9)), ((0, 1),)), (fifo,), tuple(outs))
    for at, out in enumerate(outs):
        builder.store(builder.tensor(f"y{at}", shape, ElementType.F16, (CHIP,)), whole(shape), out)
    graph = builder.graph()
    check(graph, {"x": halves(*shape)})
    moves = [isa.VectorFill, isa.VectorDrain]
    counts = [[sum(isinstance(i, move) for i in code) for move in moves] for code in codes(words_of(graph))]
    # The fill alone, then seven drains beside the work, then the rest.
    assert counts == [[1, 0], [0, 7], [0, 2]]


def sums(terms: int) -> Elementwise:
    """`terms` instructions; expressions are nested 256 deep at most, so two chains of them."""
    first = second = Operand(0)
    for _ in range(240):
        first = first + Operand(0)
    for _ in range(terms - 241):
        second = second * Operand(0)
    return Elementwise("sums", first + second, 1)


def test_code_of_one_row_as_long_as_the_code_memory():
    x = halves(1, 32)
    runs: list[int] = []
    for terms in range(486, 496):
        check_kernel(sums(terms), x, cores=1)
        words = words_of(graph_of(sums(terms), x, cores=1))
        runs.append(count(words, Run))
        assert max(p.addr for p in words if isinstance(p, Imem)) < CORE.instructions
    # Besides the sums: two words of a length, its use, a mode, a load and a store; a barrier, the halt, and room for
    # fills and drains through seven descriptors.
    assert runs == [1 if terms + 6 + 9 <= CORE.instructions else 2 for terms in range(486, 496)]


def folded(length: int):
    """A sum of one row, stored with a word of its own."""
    builder = GraphBuilder()
    x, y = (builder.tensor(n, s, ElementType.F16, (CHIP,)) for n, s in (("x", (1, length)), ("y", (1, 1))))
    taken, out = (builder.fifo(SITE, s, ElementType.F16) for s in ((1, length), (1, 1)))
    builder.load(x, whole((1, length)), taken)
    builder.compute(Reduce(Pool.SUM, (1,)), (taken,), (out,))
    builder.store(y, whole((1, 1)), out)
    return builder.graph()


@pytest.mark.parametrize(
    ("words", "fills"), [(1, 1), (255, 1), (256, 1), (257, 2), (319, 2), (320, None), (321, None), (512, None)]
)
def test_walks_of_256_words_and_320_words_of_l1(words, fills):
    for length in (16 * words, 16 * words - 15):
        graph = folded(length)
        check(graph, {"x": halves(1, length, scale=0.1)}, "padded")
        sent = codes(words_of(graph))
        if fills is None:
            # A word is for the result.
            assert len(sent) > 1
        else:
            assert [sum(isinstance(i, isa.VectorFill) for i in code) for code in sent] == [fills]


@pytest.mark.parametrize("words", [303, 304, 311, 312, 313, 319, 320, 400])
def test_words_that_values_are_rounded_through_are_nobody_elses(words):
    length = 16 * words
    builder = GraphBuilder()
    x, y = (builder.tensor(n, s, ElementType.F16, (CHIP,)) for n, s in (("x", (1, length)), ("y", (1, 1))))
    taken, rounded = (builder.fifo(SITE, (1, length), ElementType.F16) for _ in range(2))
    out = builder.fifo(SITE, (1, 1), ElementType.F16)
    builder.load(x, whole((1, length)), taken)
    builder.compute(Generic((Operand(0) * (1.0 / 3.0),), ((0, 1),)), (taken,), (rounded,))
    builder.compute(Reduce(Pool.MAX, (1,)), (rounded,), (out,))
    builder.store(y, whole((1, 1)), out)
    row = halves(1, length)
    # The greatest element comes last: words that were written over would hide it.
    row[0, -1] = 100.0
    check(builder.graph(), {"x": row}, "padded")


@pytest.mark.parametrize("length", [16, 127, 128, 129, 255, 256, 257])
def test_vectors_of_128_elements(length):
    for kernel in (gelu, softmax(), reduce("min", keep=True)):
        check_kernel(kernel, halves(3, length), layout="padded", cores=1)


def test_every_run_stays_within_what_is_safe():
    kernels = [
        (softmax(), [(3, 8192)]),
        (layer_norm(), [(3, 4096), (4096,), (4096,)]),
        (reduce("sum"), [(64, 384)]),
        (softmax(axis=0), [(40, 32)]),
        (gelu, [(64, 1536)]),
    ]
    for kernel, shapes in kernels:
        for code in codes(words_at_first(graph_of(kernel, *(halves(*shape) for shape in shapes)), "padded")):
            # No loop: what a core would step through in one is words of L1, and nothing steps their addresses.
            assert not any(isinstance(i, isa.Loop) for i in code)
            moved = [i.offset for i in code if isinstance(i, isa.Load | isa.Store)]
            sent = [i.l1off for i in code if isinstance(i, isa.VectorFill | isa.VectorDrain)]
            assert max([0, *moved, *sent]) < CORE.l1_safe_words


# What is sent.


@pytest.mark.parametrize(
    ("kernel", "shape", "most"),
    [
        (gelu, (64, 1536), 420),
        (softmax(), (192, 128), 190),
        (layer_norm(), (32, 384), 140),
        (reduce("sum"), (64, 384), 275),
        (softmax(), (4, 8192), 1020),
    ],
    ids=["gelu", "softmax", "layer_norm", "sum", "long softmax"],
)
def test_groups_are_as_large_as_it_takes_to_send_little(kernel, shape, most):
    operands = [halves(*shape), *(halves(shape[-1], seed=at) for at in range(2 if kernel.name == "layer_norm" else 0))]
    words = words_at_first(graph_of(kernel, *operands))
    assert len(words) <= most
    assert len(words) == count(words, Imem) + count(words, Desc) + count(words, Run)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 20), LENGTHS, st.integers(0, 99))
def test_elementwise_kernels_of_any_size(rows, length, seed):
    x, y = halves(rows, length, seed=seed), halves(length, seed=seed + 1)
    for kernel in (add, maximum, multiply):
        check_kernel(kernel, x, y, layout="padded", cores=1)


@pytest.mark.parametrize("length", [255, 256, 257, 384, 511, 512, 513, 1000, 4096])
def test_special_values_pass_every_run(length):
    rng = np.random.default_rng(length)
    bits = rng.integers(0, 1 << 16, (2, length), dtype=np.uint16)
    x = bits.view(np.float16)
    for kernel in (reduce("max", keep=True), reduce("min", keep=True), reduce("sum", keep=True), softmax()):
        check_kernel(kernel, x, layout="padded")
