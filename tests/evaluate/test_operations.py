"""Operations of the compute algebra over blocks, in real arithmetic, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from evaluate.one_site import F32, FP22, I32, SITE, OneSite, apply, blocks_of
from meshwright.evaluate.real import RealArithmetic
from meshwright.evaluate.walk import evaluate
from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.expression import Operand, as_expr
from meshwright.ir.ids import ChipId
from meshwright.ir.operation import Generic, Matmul, Permute, Reduce, Unit, combine
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Site
from meshwright.ir.spec import PARTIAL, Spec

REAL = RealArithmetic()


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float64)


FOLDS = {Pool.SUM: np.sum, Pool.MAX: np.max, Pool.MIN: np.min, Pool.PROD: np.prod}


@pytest.mark.parametrize("pool", FOLDS)
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (1, 0)])
def test_reduce_over_axes_and_consecutive_blocks(pool, axes) -> None:
    x = numbers(4, 6)
    # Blocks of (2, 3), row-major: each two of them are one row of blocks.
    found = apply(Reduce(pool, axes, blocks=2), [(x, (2, 3))], *_reduced(axes))
    for row in range(2):
        pair = np.stack([x[2 * row : 2 * row + 2, :3], x[2 * row : 2 * row + 2, 3:]])
        expected = FOLDS[pool](pair, axis=(0, *(1 + a for a in axes)), keepdims=True)[0]
        block = found[row : row + 1] if 0 in axes else found[2 * row : 2 * row + 2]
        np.testing.assert_array_equal(block, expected)


def _reduced(axes):
    block = tuple(1 if a in axes else size for a, size in enumerate((2, 3)))
    return block, (2 * block[0], block[1])


def test_argmax_counts_through_the_blocks_and_takes_the_lowest_on_a_tie() -> None:
    x = np.asarray([[1.0, 2.0, 7.0, 7.0, 3.0, 7.0], [5.0, 5.0, 0.0, 1.0, 5.0, 2.0]])
    site = OneSite()
    fifo = site.load(x, (1, 3))
    value, position = site.fifo((1, 1)), site.fifo((1, 1), I32)
    site.builder.compute(Reduce(Pool.ARGMAX, (1,), blocks=2), (fifo,), (value, position))
    names = site.store(value, (2, 1)), site.store(position, (2, 1), I32)
    made = site.run()
    assert made[names[0]].tolist() == [[7.0], [5.0]]
    assert made[names[1]].tolist() == [[2], [0]]


@pytest.mark.parametrize(
    ("axes", "grid", "block", "cut"),
    [((1, 0), (1, 1), (4, 6), (6, 4)), ((1, 0), (2, 3), (2, 2), (3, 2)), ((0, 1), (2, 1), (2, 6), (1, 3))],
)
def test_permute_lays_out_transposes_and_cuts(axes, grid, block, cut) -> None:
    x = numbers(4, 6)
    found = apply(Permute(axes, grid), [(x, block)], cut, tuple(x.shape[a] for a in axes))
    np.testing.assert_array_equal(found, x.transpose(axes))


def test_permute_of_three_axes() -> None:
    x = numbers(2, 3, 4)
    found = apply(Permute((2, 0, 1), (1, 3, 2)), [(x, (2, 1, 2))], (2, 1, 3), (4, 2, 3))
    np.testing.assert_array_equal(found, x.transpose(2, 0, 1))


def test_generic_lays_operands_along_the_axes_they_name() -> None:
    rows, columns, x = numbers(2), numbers(3, seed=1), numbers(3, 2, seed=2)
    site = OneSite()
    ins = [site.load(rows, (2,)), site.load(columns, (3,)), site.load(x, (3, 2))]
    total, other = site.fifo((2, 3)), site.fifo((2, 3))
    exprs = (Operand(0) * Operand(1) + Operand(2), as_expr(5.0))
    site.builder.compute(Generic(exprs, ((0,), (1,), (1, 0))), ins, (total, other))
    names = site.store(total, (2, 3)), site.store(other, (2, 3))
    made = site.run()
    np.testing.assert_array_equal(made[names[0]], rows[:, None] * columns + x.T)
    np.testing.assert_array_equal(made[names[1]], np.full((2, 3), 5.0))


def matmul_site(op, a, b, bias=None, resident=False):
    """One product of whole operands in blocks, K innermost; gives the site, its fifo and the shape."""
    m, n, k = op.block
    site = OneSite()
    rows, columns, depth = a.shape[0] // m, (b.shape[0] if op.b_transposed else b.shape[1]) // n, a.shape[1] // k
    fifo_a, fifo_b = site.fifo((m, k)), site.fifo((n, k) if op.b_transposed else (k, n))
    site.inputs = {"a": [a], "b": [b]}
    t_a, t_b = (site.builder.tensor(name, v[0].shape, F32, [0]) for name, v in site.inputs.items())
    site.builder.load(
        t_a, Affine((0, 0), (m, k), (Loop(rows, (m, 0)), Loop(columns, (0, 0)), Loop(depth, (0, k)))), fifo_a
    )
    step_n, step_k = ((n, 0), (0, k)) if op.b_transposed else ((0, n), (k, 0))
    box = (n, k) if op.b_transposed else (k, n)
    site.builder.load(
        t_b, Affine((0, 0), box, (Loop(rows, (0, 0)), Loop(columns, step_n), Loop(depth, step_k))), fifo_b
    )
    return site, (fifo_a, fifo_b), (rows * m, columns * n)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sub_blocks", [None, (1, 2), (2, 3)])
def test_matmul_with_bias_and_epilogue_in_sub_blocks(transposed, sub_blocks) -> None:
    a, b = numbers(4, 6), numbers(6, 12, seed=1)
    bias = numbers(1, 12, seed=2)
    op = Matmul((2, 6, 3), 2, transposed, sub_blocks=sub_blocks, epilogue=Operand(0) * 2.0 - 1.0)
    site, ins, shape = matmul_site(op, a, b.T.copy() if transposed else b)
    site.inputs["bias"] = [bias]
    t_bias = site.builder.tensor("bias", bias.shape, F32, [0])
    fifo = site.fifo((1, 6))
    site.builder.load(t_bias, Affine((0, 0), (1, 6), (Loop(2, (0, 0)), Loop(2, (0, 6)))), fifo)
    import msgspec

    out = site.fifo((2, 6))
    site.builder.compute(msgspec.structs.replace(op, bias=fifo), ins, (out,))
    name = site.store(out, shape, sub_blocks=sub_blocks)
    np.testing.assert_array_equal(site.run()[name], (a @ b + bias) * 2.0 - 1.0)


def test_sub_blocks_that_nobody_undoes_stay_in_their_order() -> None:
    a, b = numbers(2, 2), numbers(4, 2, seed=1)
    op = Matmul((2, 4, 2), 1, True, sub_blocks=(1, 2))
    site, ins, shape = matmul_site(op, a, b)
    out = site.fifo((2, 4))
    site.builder.compute(op, ins, (out,))
    name = site.store(out, shape)
    product = a @ b.T
    order = [product[r, c : c + 2] for r in range(2) for c in (0, 2)]
    np.testing.assert_array_equal(site.run()[name].reshape(-1), np.concatenate(order))


def test_an_epilogue_that_ignores_the_sum() -> None:
    op = Matmul((2, 2, 2), 1, True, epilogue=as_expr(3.0))
    site, ins, shape = matmul_site(op, numbers(2, 2), numbers(2, 2))
    out = site.fifo((2, 2))
    site.builder.compute(op, ins, (out,))
    name = site.store(out, shape)
    assert site.run()[name].tolist() == [[3.0, 3.0]] * 2


@pytest.mark.parametrize("format", [FP22, F32])
def test_a_product_continues_the_resident_sum_of_another(format) -> None:
    from meshwright.ir.records import Buffer

    a, b = numbers(4, 8), numbers(4, 8, seed=1)
    op = Matmul((2, 2, 2), 2, True)
    first, ins, shape = matmul_site(op, a[:, :4].copy(), b[:, :4].copy())
    fifos = []
    for values in (a, b):
        name = f"second{len(fifos)}"
        first.inputs[name] = [values[:, 4:].copy()]
        tensor = first.builder.tensor(name, (4, 4), F32, [0])
        strides = ((2, 0), (0, 0)) if not fifos else ((0, 0), (2, 0))
        fifos.append(first.fifo((2, 2)))
        pattern = Affine((0, 0), (2, 2), (*(Loop(2, s) for s in strides), Loop(2, (0, 2))))
        first.builder.load(tensor, pattern, fifos[-1])
    resident = first.builder._buffer(Buffer(SITE, (2, 2), format, 4, resident=True))
    first.builder.compute(op, ins, (resident,))
    first.builder.compute(op, (*fifos, resident), (resident,))
    out = first.fifo((2, 2))
    first.builder.compute(Generic.elementwise(Operand(0), 1, 2), (resident,), (out,))
    name = first.store(out, shape)
    np.testing.assert_array_equal(first.run()[name], a @ b.T)


def test_a_spilled_sum_is_the_sum() -> None:
    a, b = numbers(4, 6), numbers(4, 6, seed=1)
    site, ins, shape = matmul_site(Matmul((2, 2, 2), 3, True), a, b)
    spill, out = site.fifo((2, 2)), site.fifo((2, 2))
    site.builder.compute(Matmul((2, 2, 2), 3, True, spill=spill), ins, (out,))
    name = site.store(out, shape)
    np.testing.assert_array_equal(site.run()[name], a @ b.T)


@pytest.mark.parametrize("pool", Pool)
@pytest.mark.parametrize("rooted", [True, False])
def test_all_reduce_over_three_chips(pool, rooted) -> None:
    builder = GraphBuilder()
    chips = (0, 1, 2)
    sites = [Site(ChipId(c), 1, 1) for c in chips]
    parts = [numbers(2, 4, seed=c) for c in chips]
    x = builder.tensor("x", (6, 4), F32, chips, Spec.on(0))
    spec = Spec(partial=pool) if pool is not Pool.ARGMAX else PARTIAL
    partial = builder.tensor("partial", (2, 4), F32, chips, spec)
    places = builder.tensor("places", (2, 4), I32, chips)
    inputs = {"x": parts}
    ins = []
    for rank, site in enumerate(sites):
        ins.append(builder.fifo(site, (1, 4), F32))
        builder.load(x, blocks_of((2, 4), (1, 4)), ins[-1])
        if pool is Pool.ARGMAX:
            ins.append(builder.fifo(site, (1, 4), I32))
            builder.load(places, blocks_of((2, 4), (1, 4)), ins[-1])
            inputs.setdefault("places", []).append(np.full((2, 4), 10 * rank, dtype=np.int64))
    ends = sites[1:2] if rooted else sites
    formats = (F32, I32)[: pool.components]
    outs = [builder.fifo(site, (1, 4), f) for site in ends for f in formats]
    builder.stage(AllReduce(pool, partial, combine(3, 2, pool, Unit.VECTOR)), ins, outs)
    results = [builder.tensor(f"y{c}", (2, 4), f, [s.chip for s in ends]) for c, f in enumerate(formats)]
    for number, out in enumerate(outs):
        builder.store(results[number % pool.components], blocks_of((2, 4), (1, 4)), out)
    made = evaluate(builder.graph(), inputs, REAL)
    stacked = np.stack(parts)
    expected = [stacked.max(0), 10 * stacked.argmax(0)] if pool is Pool.ARGMAX else [FOLDS[pool](stacked, axis=0)]
    for component, wanted in enumerate(expected):
        assert len(made[f"y{component}"]) == len(ends)
        for piece in made[f"y{component}"]:
            np.testing.assert_array_equal(piece, wanted)


@pytest.mark.parametrize("inside", [True, False])
def test_multicast_lands_the_same_blocks_at_every_site(inside) -> None:
    builder = GraphBuilder()
    sites = [Site(ChipId(0), x, y) for y in (1, 2) for x in (1, 2)]
    sender = sites[0] if inside else Site(ChipId(0), 0, 0)
    x = builder.tensor("x", (4, 4), F32, [0])
    group = builder.group(sender, (1, 1), (2, 2))
    receivers = [builder.fifo(site, (2, 4), F32) for site in sites]
    builder.multicast(x, blocks_of((4, 4), (2, 4)), group, receivers)
    for number, (site, buffer) in enumerate(zip(sites, receivers, strict=True)):
        out = builder.fifo(site, (2, 4), F32)
        builder.compute(Generic.elementwise(Operand(0) * float(number), 1, 2), (buffer,), (out,))
        builder.store(builder.tensor(f"y{number}", (4, 4), F32, [0]), blocks_of((4, 4), (2, 4)), out)
    values = numbers(4, 4)
    made = evaluate(builder.graph(), {"x": [values]}, REAL)
    for number in range(4):
        np.testing.assert_array_equal(made[f"y{number}"][0], values * number)


def test_pieces_of_a_split_tensor_stay_on_their_ranks() -> None:
    builder = GraphBuilder()
    x, y = (builder.tensor(name, (4, 2), F32, [3, 1], Spec.on(0)) for name in ("x", "y"))
    for chip, factor in ((3, 2.0), (1, 3.0)):
        site = Site(ChipId(chip), 1, 1)
        fifo, out = (builder.fifo(site, (2, 2), F32) for _ in range(2))
        builder.load(x, whole((2, 2)), fifo)
        builder.compute(Generic.elementwise(Operand(0) * factor, 1, 2), (fifo,), (out,))
        builder.store(y, whole((2, 2)), out)
    found = evaluate(builder.graph(), {"x": [np.ones((2, 2)), np.ones((2, 2))]}, REAL)["y"]
    assert [piece[0, 0] for piece in found] == [2.0, 3.0]
