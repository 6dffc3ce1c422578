"""Products in instruction words, from packed memory to drained memory, bit for bit."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulator.programs import CARD, Host, Product, drained, fills, fresh, image, words

from meshwright.numerics import fp22, mxfp7, product
from meshwright.simulator.accumulator import pack, unpack
from meshwright.targets.ktpu.isa import Drain, Fill, Gemm

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "matmul_machine.npz")
CASES = sorted({name[:-2] for name in GOLDEN.files})
AT = (1, 2)


def operands(seed, m, n, k):
    random = np.random.default_rng(seed)
    return (random.standard_normal((rows, k)).astype(np.float16).view(np.uint16) for rows in (m, n))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mesh", CARD.mesh_ids)
def test_golden_products_through_memory(case, mesh):
    a, b, c = (GOLDEN[f"{case}_{what}"] for what in "abc")
    sums = Product(a, b, 4, 4, min(4, a.shape[1] // 32), mesh=mesh, base=0x4000)
    card = fresh()
    sums.load(card)
    card.submit(mesh, AT, words(*sums.program()))
    card.run_until_idle()
    assert np.array_equal(sums.result(card, *c.shape), c)


@pytest.mark.parametrize("case", CASES)
def test_golden_products_dispatched_by_a_host(case):
    a, b, c = (GOLDEN[f"{case}_{what}"] for what in "abc")
    sums = Product(a, b, 2, 8, 1, mesh=3)
    card = fresh()
    sums.load(card)
    Host(card, 3).run((2, 3), words(*sums.program()), credit=8)
    assert np.array_equal(sums.result(card, *c.shape), c)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_tiling_gives_the_bits_of_the_product(data):
    """Tiles, K blocks a sweep, banks and offsets: none of them changes a bit."""
    gm, gn = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 8))
    parts = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    k = 32 * sum(parts)
    a, b = operands(data.draw(st.integers(0, 1000)), 4 * gm, 4 * gn, k)
    card = fresh()
    steps, address, block = [], 0, 0
    for index, nk in enumerate(parts):
        where = {}
        for side, groups, x in (("a", gm, a), ("b", gn, b)):
            chunk = image(x[:, 32 * block : 32 * (block + nk)], groups, nk)
            card.write_block(CARD.host_addr(0, address), chunk.tobytes())
            # Neighbouring sweeps must not share a bank; within it the operand may lie anywhere.
            bank = (index + data.draw(st.just(0))) % 2
            first = data.draw(st.integers(0, 256 - groups * nk))
            steps += fills(address, groups * nk, sel=int(side == "b"), fbank=bank, eoff=first)
            where[side + "bank"], where[side + "off"] = bank, first
            address += chunk.nbytes
        steps.append(Gemm(gm=gm, gn=gn, nk=nk, acc=int(index > 0), **where))
        block += nk
    out = 1 << 20
    card.submit(0, AT, words(*steps, Drain(addr=out, n=gm * gn)))
    card.run_until_idle()
    found = drained(card.read_block(CARD.host_addr(0, out), 32 * gm * gn), (1, 1), gm, gn)
    assert np.array_equal(found, product.matmul_fp16(a, b).view(np.uint16))


def test_quantised_operands_in_memory():
    a, b = operands(3, 16, 16, 128)
    card = fresh()
    for address, x in ((0, a), (0x10000, b)):
        packed = mxfp7.pack_words(mxfp7.quantise(x))
        card.write_block(CARD.host_addr(0, address), packed.tobytes())
    steps = (
        Fill(addr=0, n=16, sel=0, preq=1),
        Fill(addr=0x10000, n=16, sel=1, preq=1),
        Gemm(gm=4, gn=4, nk=4),
        Drain(addr=0x20000, n=16),
    )
    card.submit(0, AT, words(*steps))
    card.run_until_idle()
    found = drained(card.read_block(CARD.host_addr(0, 0x20000), 512), (1, 1), 4, 4)
    assert np.array_equal(found, product.matmul_fp16(a, b).view(np.uint16))


def test_an_anchor_moves_every_exponent():
    """Block values are scaled by a power of two, and sums of values that far from both ends scale with them."""
    a, b = operands(4, 16, 16, 256)
    plain = product.matmul(a, b)
    for anchor in (35, 47):
        sums = Product(a, b, 4, 4, 4)
        steps = [
            step if not isinstance(step, Gemm) else Gemm(gm=4, gn=4, nk=4, anchor=anchor, **_rest(step))
            for step in sums.program()[:-1]
        ]
        card = fresh()
        sums.load(card)
        card.submit(0, AT, words(*steps))
        card.run_until_idle()
        codes = card.mesh(0).units[AT].accumulator.codes()
        assert len(codes) == 16
        found = codes.reshape(4, 4, 4, 4).transpose(0, 2, 1, 3).reshape(16, 16)
        assert np.array_equal(found, plain + np.uint32((40 - anchor) << 14 & 0xFFFFFFFF))


def _rest(gemm):
    return {name: getattr(gemm, name) for name in ("acc", "abank", "bbank", "aoff", "boff")}


def test_tiles_stay_until_they_are_overwritten():
    """A drain leaves the tiles as they are; a smaller sweep overwrites the first of them only."""
    a, b = operands(5, 16, 16, 32)
    c, d = operands(6, 4, 4, 32)
    large, small = Product(a, b, 4, 4, 1), Product(c, d, 1, 1, 1, base=1 << 16)
    card = fresh()
    large.load(card)
    small.load(card)
    again = 1 << 17
    steps = [*large.program(), *small.tile(0, 0), Drain(addr=again, n=16)]
    card.submit(0, AT, words(*steps))
    card.run_until_idle()
    tiles = np.frombuffer(card.read_block(CARD.host_addr(0, again), 512), np.uint16).reshape(16, 4, 4)
    whole = product.matmul_fp16(a, b).view(np.uint16).reshape(4, 4, 4, 4).transpose(0, 2, 1, 3).reshape(16, 4, 4)
    assert np.array_equal(tiles[0], product.matmul_fp16(c, d).view(np.uint16))
    assert np.array_equal(tiles[1:], whole[1:])


def test_a_sweep_that_nobody_looks_at_still_opens_its_tiles():
    """The second grid covers one tile only, so the first grid's sums must be there for the rest."""
    a, b = operands(7, 8, 8, 64)
    first = Product(a, b, 2, 2, 2)
    card = fresh()
    first.load(card)
    steps = [*first.tile(0, 0), Gemm(gm=1, gn=1, nk=2, acc=1), Gemm(gm=2, gn=2, nk=2, acc=1), first.drain(0, 0)]
    card.submit(0, AT, words(*steps))
    card.run_until_idle()
    once = product.matmul(a, b)
    corner = once.copy()
    corner[:4, :4] = product.matmul(a[:4], b[:4], start=once[:4, :4].copy())
    # Sub-tile 0 of the 1 x 1 grid reads the entries of group 0, as that of the 2 x 2 grid does.
    want = product.matmul_fp16(a, b, start=corner).view(np.uint16)
    assert np.array_equal(first.result(card, 8, 8), want)


def test_memory_that_changes_is_filled_anew():
    a, b = operands(8, 16, 16, 64)
    c, _ = operands(9, 16, 16, 64)
    sums = Product(a, b, 4, 4, 2)
    card = fresh()
    sums.load(card)
    card.submit(0, AT, words(*sums.program()))
    card.run_until_idle()
    card.write_block(CARD.host_addr(0, sums.at_a), image(c, 4, 2).tobytes())
    card.submit(0, AT, words(*sums.program()))
    card.run_until_idle()
    assert np.array_equal(sums.result(card, 16, 16), product.matmul_fp16(c, b).view(np.uint16))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 9))
def test_granules_hold_sixteen_codes_of_22_bits(seed, tiles):
    codes = np.random.default_rng(seed).integers(0, 1 << 22, (tiles, 4, 4)).astype(np.uint32)
    granules = pack(codes)
    assert np.array_equal(unpack(granules), codes)
    whole = int.from_bytes(granules[:2].tobytes(), "little")
    for i in range(4):
        for j in range(4):
            assert whole >> 22 * (4 * i + j) & (1 << 22) - 1 == codes[0, i, j]
    assert whole >> 352 == 0


def test_results_are_the_same_without_compiled_kernels(monkeypatch):
    monkeypatch.setenv("MESHWRIGHT_BACKEND", "numpy")
    a, b = operands(10, 16, 32, 64)
    sums = Product(a, b, 4, 4, 1)
    card = fresh()
    sums.load(card)
    card.submit(0, AT, words(*sums.program()))
    card.run_until_idle()
    monkeypatch.undo()
    assert np.array_equal(sums.result(card, 16, 32), product.matmul_fp16(a, b).view(np.uint16))


def test_codes_of_a_drained_tile_saturate_as_the_accumulator_does():
    a = np.full((4, 32), 0x7BFF, np.uint16)
    sums = Product(a, a, 1, 1, 1)
    card = fresh()
    sums.load(card)
    card.submit(0, AT, words(*sums.program()))
    card.run_until_idle()
    assert (sums.result(card, 4, 4) == 0x7BFF).all()
    assert (fp22.drain(product.matmul(a, a)).view(np.uint16) == 0x7BFF).all()
