"""Evaluation in the card's arithmetic: the bits are those of the number formats, and of the card's vectors."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from evaluate.one_site import F16, F32, FP22, I32, SITE, OneSite, apply
from meshwright.errors import EvaluationError, GraphError
from meshwright.evaluate.walk import evaluate
from meshwright.ir import library
from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.expression import Operand
from meshwright.ir.formats import ElementType
from meshwright.ir.ids import BufferId, ChipId
from meshwright.ir.operation import Generic, Matmul, Reduce, Unit, combine
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Site
from meshwright.ir.spec import PARTIAL, Spec
from meshwright.numerics import fp22, lane
from meshwright.numerics.product import matmul, matmul_fp16
from meshwright.targets.ktpu.arithmetic import KtpuArithmetic

GOLDEN = Path(__file__).parent.parent / "golden"
COPY = Generic.elementwise(Operand(0), 1, 2)


class Recording(KtpuArithmetic):
    """The card's arithmetic, which keeps the accumulator words it made: only what is drained leaves a graph."""

    def __init__(self) -> None:
        self.words: list[np.ndarray] = []

    def products(self, request):
        made = super().products(request)
        if request.out is FP22:
            self.words.append(made)
        return made

    def elementwise(self, exprs, operands, outs, unit):
        made = super().elementwise(exprs, operands, outs, unit)
        if unit is Unit.ACCUMULATOR:
            self.words += made
        return made


def same_bits(found, expected) -> None:
    assert found.dtype.itemsize == expected.dtype.itemsize
    kind = f"u{found.dtype.itemsize}"
    np.testing.assert_array_equal(found.view(kind), expected.view(kind))


def halves(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float16)


def resident_partials(builder: GraphBuilder, a, b, ranks: int):
    """A product with K split over chips, each partial sum in its chip's accumulator."""
    m, k = a.shape
    n, part = b.shape[0], k // ranks
    x, y = (builder.tensor(name, v.shape, F16, range(ranks), Spec.on(1)) for name, v in (("a", a), ("b", b)))
    held: list[BufferId] = []
    for chip in range(ranks):
        site = Site(ChipId(chip), 1, 1)
        fifo_a, fifo_b = builder.fifo(site, (m, 32), F16), builder.fifo(site, (n, 32), F16)
        for tensor, fifo, rows in ((x, fifo_a, m), (y, fifo_b, n)):
            builder.load(tensor, Affine((0, 0), (rows, 32), (Loop(part // 32, (0, 32)),)), fifo)
        held.append(builder.accumulator(site, (m, n)))
        builder.compute(Matmul((m, n, 32), part // 32, True), (fifo_a, fifo_b), (held[-1],))
    pieces = {"a": np.split(a, ranks, axis=1), "b": np.split(b, ranks, axis=1)}
    return held, {name: [p.view(np.float16) for p in ps] for name, ps in pieces.items()}


def added(builder: GraphBuilder, order: str, held, shape) -> BufferId:
    """Sums the chips' tiles: a chain passes a running sum on, a star adds every other tile into the last one."""
    partial = builder.tensor("partial", shape, F16, range(len(held)), PARTIAL)
    fold = combine(2, 2, Pool.SUM, Unit.ACCUMULATOR)
    last = len(held) - 1
    pairs = [(i + 1, i) for i in range(last)] if order == "chain" else [(last, i) for i in range(last)]
    for tile, peer in pairs:
        builder.stage(AllReduce(Pool.SUM, partial, fold), (held[tile], held[peer]), (held[tile],))
    return held[-1]


def drained(builder: GraphBuilder, buffer: BufferId) -> None:
    site, shape = builder.place(buffer), builder.block(buffer)
    out = builder.fifo(site, shape, F16)
    builder.compute(COPY, (buffer,), (out,))
    builder.store(builder.tensor("y", shape, F16, [site.chip]), whole(shape), out)


CROSSMESH = np.load(GOLDEN / "crossmesh.npz")
CASES = sorted(name[:-2] for name in CROSSMESH.files if re.fullmatch(r"case\d+_a", name))


@pytest.mark.parametrize("order", ["chain", "star"])
@pytest.mark.parametrize("case", CASES)
def test_sums_over_chips_have_the_bits_of_the_cards_vectors(case, order) -> None:
    a, b = CROSSMESH[f"{case}_a"], CROSSMESH[f"{case}_b"]
    ranks = int(CROSSMESH[f"{case}_ranks"])
    builder, arithmetic = GraphBuilder(), Recording()
    held, inputs = resident_partials(builder, a, b, ranks)
    drained(builder, added(builder, order, held, (len(a), len(b))))
    found = evaluate(builder.graph(), inputs, arithmetic)["y"][0]
    for words, expected in zip(arithmetic.words, CROSSMESH[f"{case}_partials_fp22"], strict=False):
        same_bits(words[0], expected)
    assert len(arithmetic.words) == 2 * ranks - 1
    same_bits(arithmetic.words[-1][0], CROSSMESH[f"{case}_{order}_fp22"])
    same_bits(found, CROSSMESH[f"{case}_{order}_fp16"])


def test_there_are_cases_with_two_and_four_chips() -> None:
    assert {2, 4} <= {int(CROSSMESH[f"{case}_ranks"]) for case in CASES}


PEER = np.load(GOLDEN / "peer_add.npz")


@pytest.mark.parametrize("name", [n.removesuffix("_a") for n in PEER.files if n.endswith("_a")])
def test_a_peer_add_has_the_bits_of_the_cards_vectors(name) -> None:
    a, b = PEER[f"{name}_a"], PEER[f"{name}_b"]
    builder = GraphBuilder()
    held, inputs = resident_partials(builder, a, b, 2)
    held.reverse()  # The first half is resident, the second arrives.
    drained(builder, added(builder, "chain", held, (len(a), len(b))))
    same_bits(evaluate(builder.graph(), inputs, KtpuArithmetic())["y"][0], PEER[f"{name}_c_peer_add"])


def test_two_products_in_one_accumulator_are_one_product() -> None:
    a, b = halves(16, 128), halves(16, 128, seed=1)
    site = OneSite()
    resident = site.builder.accumulator(SITE, (16, 16))
    for part in (slice(0, 64), slice(64, 128)):
        ins = [site.load(v[:, part].copy(), (16, 32), F16) for v in (a, b)]
        op = Matmul((16, 16, 32), 2, True)
        continued = (resident,) if part.start else ()
        site.builder.compute(op, (*ins, *continued), (resident,))
    out = site.fifo((16, 16), F16)
    site.builder.compute(COPY, (resident,), (out,))
    name = site.store(out, (16, 16), F16)
    arithmetic = Recording()
    found = site.run(arithmetic)[name]
    same_bits(arithmetic.words[-1][0], matmul(a, b))
    same_bits(found, matmul_fp16(a, b))


def test_a_product_in_blocks_has_the_bits_of_one_call() -> None:
    a, b = halves(8, 96), halves(12, 96, seed=1)
    site = OneSite()
    op = Matmul((8, 12, 32), 3, True)
    out = site.fifo((8, 12), F16)
    site.builder.compute(op, [site.load(v, (len(v), 32), F16) for v in (a, b)], (out,))
    name = site.store(out, (8, 12), F16)
    same_bits(site.run(KtpuArithmetic())[name], matmul_fp16(a, b))


@pytest.mark.parametrize("spill", [F16, F32, ElementType.E8M15])
def test_a_spilled_sum_is_rounded_between_pairs(spill) -> None:
    a, b = halves(4, 96), halves(4, 96, seed=1)
    site = OneSite()
    buffer, out = site.fifo((4, 4), spill), site.fifo((4, 4), F16)
    op = Matmul((4, 4, 32), 3, True, spill=buffer)
    site.builder.compute(op, [site.load(v, (4, 32), F16) for v in (a, b)], (out,))
    name = site.store(out, (4, 4), F16)
    words = None
    for k in range(0, 96, 32):
        words = matmul(a[:, k : k + 32], b[:, k : k + 32], start=words)
        if k < 64:  # Whatever the buffer holds, words leave the accumulator as fp16 only.
            words = fp22.encode(fp22.drain(words).astype(np.float64))
    same_bits(site.run(KtpuArithmetic())[name], fp22.drain(words))


def test_bias_and_epilogue_run_on_the_lane_after_the_drain() -> None:
    a, b, bias = halves(4, 32), halves(8, 32, seed=1), halves(1, 8, seed=2)
    site = OneSite()
    ins = [site.load(v, v.shape, F16) for v in (a, b)]
    op = Matmul((4, 8, 32), 1, True, bias=site.load(bias, (1, 8), F16), epilogue=Operand(0) * 3.0)
    out = site.fifo((4, 8), F16)
    site.builder.compute(op, ins, (out,))
    name = site.store(out, (4, 8), F16)
    total = lane.add(lane.from_fp16(matmul_fp16(a, b)), np.broadcast_to(lane.from_fp16(bias), (4, 8)))
    same_bits(site.run(KtpuArithmetic())[name], lane.to_fp16(lane.mul(total, lane.from_fp32(np.float32(3.0)))))


def test_words_leave_the_accumulator_as_fp16_whatever_reads_them() -> None:
    a, b = halves(4, 32, scale=90.0), halves(4, 32, seed=1, scale=90.0)
    words = matmul(a, b)
    for op, expected in (
        (Generic.elementwise(Operand(0), 1, 2), lane.to_fp32(lane.from_fp16(fp22.drain(words)))),
        (Reduce(Pool.MAX, (1,)), lane.to_fp32(lane.from_fp16(fp22.drain(words).max(1, keepdims=True)))),
    ):
        site = OneSite()
        resident, out = site.builder.accumulator(SITE, (4, 4)), site.fifo(expected.shape, F32)
        site.builder.compute(Matmul((4, 4, 32), 1, True), [site.load(v, (4, 32), F16) for v in (a, b)], (resident,))
        site.builder.compute(op, (resident,), (out,))
        name = site.store(out, expected.shape)
        same_bits(site.run(KtpuArithmetic())[name], expected)


def test_elementwise_work_has_the_bits_of_lane_instructions() -> None:
    x, y = halves(3, 40, scale=4.0), halves(1, 40, seed=1)
    expr = library.multiply_add(Operand(0), Operand(1), -0.3) - library.reciprocal(Operand(0))
    found = apply(
        Generic.elementwise(expr, 2, 2), [(x, (3, 40)), (y, (1, 40))], (3, 40), (3, 40), KtpuArithmetic(), F16
    )
    codes, other = lane.from_fp16(x), np.broadcast_to(lane.from_fp16(y), (3, 40))
    constant = np.broadcast_to(lane.from_fp32(np.float32(-0.3)), (3, 40))
    expected = lane.sub(lane.fma(codes, other, constant), lane.apply("inv", codes))
    same_bits(found, lane.to_fp16(expected))


@pytest.mark.parametrize(("pool", "kind"), [(Pool.SUM, "sum"), (Pool.MAX, "max"), (Pool.MIN, "min")])
@pytest.mark.parametrize("length", [16, 37, 128])
def test_folds_have_the_bits_of_the_vector_cores_reductions(pool, kind, length) -> None:
    x = halves(5, length, scale=30.0)
    found = apply(Reduce(pool, (1,)), [(x, (5, length))], (5, 1), (5, 1), KtpuArithmetic(), F16)
    fill = {"sum": 0.0, "max": -np.inf, "min": np.inf}[kind]
    padded = np.pad(x, ((0, 0), (0, -length % 16)), constant_values=np.float16(fill))
    same_bits(found[:, 0].copy(), lane.to_fp16(lane.reduce(kind, padded, format="fp16")))


def test_a_long_row_is_first_folded_to_128() -> None:
    x = halves(2, 300, scale=30.0)
    found = apply(Reduce(Pool.SUM, (1,)), [(x, (2, 300))], (2, 1), (2, 1), KtpuArithmetic(), F16)
    codes = lane.from_fp16(x)
    total = lane.add(codes[:, :128], codes[:, 128:256])
    total[:, :44] = lane.add(total[:, :44], codes[:, 256:])
    same_bits(found[:, 0].copy(), lane.to_fp16(lane.reduce("sum", total)))


def refused(message, op, operands, formats, block=(4, 4)) -> None:
    site = OneSite()
    ins = [site.load(v, v.shape, f) for v, f in zip(operands, formats[:-1], strict=True)]
    out = site.fifo(block, formats[-1])
    site.builder.compute(op, ins, (out,))
    site.store(out, block, formats[-1])
    with pytest.raises(EvaluationError, match=re.escape(message)):
        site.run(KtpuArithmetic())


BF16 = ElementType.BF16


def test_what_the_card_has_not_got() -> None:
    single, half = np.ones((4, 4), np.float32), halves(4, 4)
    whole_numbers, brain = np.ones((4, 4), np.int32), np.ones((4, 4), ml_dtypes.bfloat16)
    product = Matmul((4, 4, 4), 1, True)
    refused("the ktpu machine has no bf16; use f16 or f32", COPY, [brain], [BF16, BF16])
    refused("the vector lane can't load i32; it has f16, f32, e8m15", COPY, [whole_numbers], [I32, F16])
    refused("the vector lane can't store i32; it has f16, f32, e8m15", COPY, [half], [F16, I32])
    refused(
        "the vector core has no prod reduction; it has sum, max and min",
        Reduce(Pool.PROD, (1,)),
        [half],
        [F16, F16],
        (4, 1),
    )
    refused("the vector core can't load i32", Reduce(Pool.SUM, (1,)), [whole_numbers], [I32, I32], (4, 1))
    refused("a cluster multiplies f16 operands, not f32", product, [single, half], [F32, F16, F16])
    refused(
        "a cluster keeps sums in fp22 and drains f16; f32 takes a Compute stage on a vector core after it",
        product,
        [half, half],
        [F16, F16, F32],
    )
    refused(
        "f16 elements come as float16, found float32; round them first, for example with .astype",
        COPY,
        [single],
        [F16, F16],
    )


def test_an_accumulator_can_only_add_its_own_words() -> None:
    site = OneSite()
    ins = [site.load(halves(4, 4), (4, 4), F16) for _ in range(2)]
    out = site.fifo((4, 4), F16)
    site.builder.compute(combine(2, 2, Pool.SUM, Unit.ACCUMULATOR), ins, (out,))
    site.store(out, (4, 4), F16)
    with pytest.raises(GraphError, match=re.escape("an accumulator adds accumulator words (fp22) only")):
        site.run(KtpuArithmetic())
