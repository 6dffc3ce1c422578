"""What is in programs of clusters: tiles, fills that are left out, banks, and sweeps that continue each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.targets.ktpu.matrix_rig import CARD, Clusters, check, halves, product_of

from meshwright.ir.build import GraphBuilder
from meshwright.ir.formats import ElementType
from meshwright.ir.operation import Matmul
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.records import Site
from meshwright.targets.ktpu.emit_matrix import OperandImage, ResultImage, emit_matrix, images_at
from meshwright.targets.ktpu.emit_matrix_fills import Side
from meshwright.targets.ktpu.emit_matrix_image import sweep_blocks
from meshwright.targets.ktpu.isa import Drain, Fill, Gemm
from meshwright.targets.ktpu.layout import LayoutError, OperandLayout, ResultLayout

AT = Site(0, 1, 1)


def one_cluster(m, n, k, tile):
    """A product of which one cluster does all the blocks."""
    builder = GraphBuilder()
    a, b = (builder.tensor(name, (rows, k), ElementType.F16, (0,)) for name, rows in (("a", m), ("b", n)))
    c = builder.tensor("c", (m, n), ElementType.F16, (0,))
    rows, columns, deep = -(-m // tile[0]), -(-n // tile[1]), -(-k // tile[2])
    fifos = [builder.fifo(AT, block, ElementType.F16) for block in ((tile[0], tile[2]), (tile[1], tile[2]), tile[:2])]
    for tensor, fifo, strides in ((a, 0, (tile[0], 0)), (b, 1, (0, tile[1]))):
        loops = (Loop(rows, (strides[0], 0)), Loop(columns, (strides[1], 0)), Loop(deep, (0, tile[2])))
        box = (tile[fifo], tile[2])
        builder.load(tensor, Affine((0, 0), box, loops, pad=0.0), fifos[fifo])
    builder.compute(Matmul(tile, deep, b_transposed=True), fifos[:2], fifos[2:])
    loops = (Loop(rows, (tile[0], 0)), Loop(columns, (0, tile[1])))
    builder.store(c, Affine((0, 0), tile[:2], loops, pad=0.0), fifos[2])
    graph = builder.graph()
    return graph, {"a": (halves(m, k),), "b": (halves(n, k, seed=1),)}


def words_of(kind, clusters):
    return [word for word in clusters.words if isinstance(word, kind)]


def filled(clusters, sel):
    return sum(word.n for word in words_of(Fill, clusters) if word.sel == sel)


def test_operands_that_fit_are_filled_once():
    clusters = check(*one_cluster(64, 96, 256, (16, 16, 64)))
    # 4 x 4 blocks of A in 4 rows of instances, each used by 6 of them; B has 6 x 4 blocks of 8 entries.
    assert filled(clusters, 0) == 64 // 4 * 256 // 32
    assert filled(clusters, 1) == 96 // 4 * 256 // 32
    assert len(words_of(Gemm, clusters)) == 4 * 6 * 4


def test_where_they_do_not_fit_what_is_needed_again_last_goes():
    clusters = check(*one_cluster(64, 64, 2048, (32, 32, 512)))
    # A block takes 128 of the 512 entries of a side, and a sweep's bank isn't filled while it runs.
    (again_a, again_b), blocks = (filled(clusters, side) for side in (0, 1)), 4 * 4 * 128
    assert 64 // 4 * 2048 // 32 <= again_a < blocks
    assert 64 // 4 * 2048 // 32 < again_b < blocks


@pytest.mark.parametrize("tile", [(64, 64, 512), (128, 8, 256), (8, 128, 256)])
def test_a_bank_that_is_full_takes_two_fills(tile):
    """256 entries: one more than a FILL counts."""
    clusters = check(*one_cluster(tile[0], tile[1], 2 * tile[2], tile))
    assert {word.n for word in words_of(Fill, clusters)} >= {255, 1}
    assert max(word.n for word in words_of(Fill, clusters)) == 255


def test_blocks_deeper_than_a_bank_are_swept_in_parts():
    clusters = check(*one_cluster(64, 32, 3000, (64, 32, 1536)))
    gemms = words_of(Gemm, clusters)
    # 48 K blocks of 16 groups of 4 rows: 16 at a time fill a bank; 94 of the 96 are not padding.
    assert {word.nk for word in gemms} == {16}
    assert [word.acc for word in gemms] == [0, 1, 1, 1, 1, 1]


def test_sweeps_over_nothing_but_padding_are_left_out():
    clusters = check(*one_cluster(64, 32, 40, (64, 32, 1536)))
    assert len(words_of(Gemm, clusters)) == 1


def test_an_accumulator_full_of_sub_tiles():
    clusters = check(*one_cluster(64, 128, 64, (64, 128, 64)))
    assert [word.n for word in words_of(Drain, clusters)] == [512]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 80),
    st.lists(st.integers(0, 9).map(lambda block: block << 20), min_size=1, max_size=60),
    st.lists(st.booleans(), min_size=60, max_size=60),
)
def test_fills_leave_what_sweeps_read_alone(groups, entries, order, drained):
    """Each sweep finds its own entries, and no fill goes to the bank that the sweep before it reads."""
    entries = max(entries, groups)
    side = Side(1, groups, entries, order)
    bank_of, busy, held = {}, None, {}
    for address, drain in zip(order, drained, strict=False):
        slot, fills = side.take(address, busy)
        for fill in fills:
            assert fill.sel == 1
            assert fill.fbank != busy
            assert fill.eoff + fill.n <= entries
            for entry in range(fill.n):
                held[fill.fbank, fill.eoff + entry] = fill.addr + 256 * entry
        assert [held[slot.bank, slot.first + entry] for entry in range(groups)] == [
            address + 256 * entry for entry in range(groups)
        ]
        bank_of[address] = slot.bank
        busy = None if drain else slot.bank
    assert set(bank_of) == set(order)


def fewest_fills(order, slots):
    """By trying every choice."""
    states = {frozenset(): 0}
    for address in order:
        after = {}
        for held, fills in states.items():
            if address in held:
                choices = [(held, fills)]
            elif len(held) < slots:
                choices = [(held | {address}, fills + 1)]
            else:
                choices = [((held - {gone}) | {address}, fills + 1) for gone in held]
            for state, count in choices:
                after[state] = min(count, after.get(state, count))
        states = after
    return min(states.values())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2), st.lists(st.integers(0, 6), min_size=1, max_size=16))
def test_no_order_takes_fewer_fills(operands, order):
    """Where each sweep is drained, so that both banks are free."""
    side = Side(0, 8, 8 * operands, order)
    assert sum(len(side.take(address, None)[1]) for address in order) == fewest_fills(order, 2 * operands)


def test_after_a_drain_either_bank_is_free():
    """Three operands that fill a bank each, twice over: the first stays while the third replaces the second."""
    clusters = check(*one_cluster(128, 192, 512, (64, 64, 512)))
    assert filled(clusters, 1) == 4 * 256


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 256), st.integers(1, 300))
def test_sweeps_of_a_block_are_even_and_fit(groups, blocks):
    nk = sweep_blocks(groups, blocks, 256, 255)
    assert nk * groups <= 256
    assert blocks % nk == 0
    assert not any(blocks % more == 0 for more in range(nk + 1, min(255, 256 // groups, blocks) + 1))


# Images


def test_images_of_small_instances_begin_at_bursts():
    graph, _ = product_of(halves(2, 12, 64), halves(2, 8, 64), (4, 8, 32))
    (a, b, c) = images_at(graph, AT, CARD)
    assert (a.shape, b.shape, c.shape) == ((2, 12, 64), (2, 8, 64), (2, 12, 8))
    # Two sub-tiles of 32 bytes, in a burst of their own.
    assert (c.layout.instance_bytes, c.pitch, c.nbytes) == (64, 256, 2 * 3 * 256)
    assert list(c.runs()) == [(256 * at, 64) for at in range(6)]
    assert c.run((1, 4, 0)) == 4 * 256
    assert (a.run((1, 4, 32)), a.nbytes) == (2 * 3 * 256 + 3 * 256, 2 * 6 * 256)
    assert a.run((1, 4, 64)) is None


def test_images_refuse_what_they_are_not_for():
    a = OperandImage(0, 0, (2,), OperandLayout(8, 32, 2, 1))
    with pytest.raises(LayoutError, match=r"OperandImage: the piece is \[2, 8, 32\], and the array \[16, 32\]"):
        a.pack(np.zeros((16, 32), np.float16))
    c = ResultImage(0, 0, (2,), ResultLayout.over(4, 8, (1, 2)))
    with pytest.raises(LayoutError, match=r"ResultImage: the image of \[2, 4, 8\] has 512 bytes, not 128"):
        c.unpack(bytes(128))


def test_clusters_share_images():
    graph, inputs = product_of(halves(16, 64), halves(96, 64))
    clusters = Clusters(graph, inputs)
    assert len(clusters.sites) == 6
    assert len(clusters.where) == 3
    assert sum(len(images_at(graph, site, CARD)) for site in clusters.sites) == 18


def test_the_same_graph_gives_the_same_words():
    graph, inputs = one_cluster(64, 96, 256, (16, 16, 64))
    where = Clusters(graph, inputs).where
    assert emit_matrix(graph, AT, CARD, where) == emit_matrix(graph, AT, CARD, where)
