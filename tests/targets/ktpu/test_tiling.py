"""Tilings: legal, complete, counted as programs are, and ordered as clocks do."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.targets.ktpu.matrix_rig import CARD, check, halves, product_of
from tests.targets.ktpu.tiling_rig import clocked, filled, programs

from meshwright.errors import PlacementError
from meshwright.machine import load
from meshwright.numerics import fp22
from meshwright.targets.ktpu.emit_matrix_fills import Side
from meshwright.targets.ktpu.isa import Drain, Fill, Gemm
from meshwright.targets.ktpu.placement import KtpuPlacement
from meshwright.targets.ktpu.tiling import (
    Cost,
    Setting,
    Tiling,
    candidates,
    drain_cycles,
    evenly,
    least_fills,
    panel_fills,
    ranked,
)

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "timing_ktpu.json").read_text())
PLACE = KtpuPlacement(CARD, 0)
replace = msgspec.structs.replace
SIZES = st.integers(1, 200)
PRODUCTS = ((256, 256, 256), (39, 384, 384), (64, 384, 128), (196, 768, 768), (300, 200, 1000))
CLOCKED = (
    *((size, size, size) for size in (256, 384, 512)),
    *((16, 4096, 4096), (1, 1000, 768), (39, 384, 384), (39, 1536, 384), (64, 128, 384), (196, 768, 768)),
    *((128, 256, 256), (300, 520, 64)),
)
"""Those of benchmarks/test_tiling.py that have less than 250 candidates each."""


def tiling_of(m, n, k, tile, clusters=6, **more):
    gm, gn, nk = tile[0] // 4, tile[1] // 4, tile[2] // 32
    return Tiling(m, n, k, gm, gn, nk, Setting.of(CARD, clusters), **more)


def with_latency(latency):
    return replace(CARD, maybe_memory_port=replace(CARD.memory_port, latency_cycles=latency))


# Which there are


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 12000), st.integers(1, 6))
def test_candidates_are_legal_and_different(m, n, k, clusters):
    found = candidates(m, n, k, CARD, clusters)
    assert found
    assert len(set(found)) == len(found)
    for tiling in found:
        PLACE.check_tile(tiling.tile)
        assert tiling.at_work <= clusters


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 400), st.integers(1, 6))
def test_no_legal_tiling_has_as_few_tiles_and_less_padding(m, n, k, clusters):
    """By trying them all: one of the candidates is as small and as deep."""
    found = candidates(m, n, k, CARD, clusters)
    fewest = min(math.prod(tiling.grid) for tiling in found)
    smallest = {}
    for tiling in found:
        key = tiling.grid
        smallest[key] = min(smallest.get(key, tiling.tile), tiling.tile)
    for gm in range(1, -(-m // 4) + 1):
        for gn in range(1, -(-n // 4) + 1):
            grid = (-(-m // (4 * gm)), -(-n // (4 * gn)))
            if gm * gn <= 512 and math.prod(grid) <= max(2 * fewest, 4 * clusters):
                assert smallest[grid][0] <= 4 * gm
                assert smallest[grid][1] <= 4 * gn


@given(st.integers(1, 1000), st.integers(1, 255))
def test_parts_are_the_smallest_of_their_number(size, most):
    found = evenly(size, most)
    wanted = {-(-size // -(-size // part)) for part in range(1, min(size, most) + 1)}
    assert found == sorted(wanted, reverse=True)


def test_products_without_elements():
    for sizes, clusters, batch in (((0, 4, 4), 1, ()), ((4, 4, 4), 0, ()), ((4, 4, 4), 1, (2, 0))):
        with pytest.raises(PlacementError) as error:
            candidates(*sizes, CARD, clusters, batch)
        asked = " x ".join(map(str, (*batch, *sizes)))
        assert str(error.value) == (
            f"tilings of {asked} on {clusters} clusters of ktpu-v13p: each number is 1 at least"
        )


# What follows from them


def test_what_a_tiling_says():
    tiling = tiling_of(196, 768, 768, (52, 128, 64))
    assert (tiling.tile, tiling.grid, tiling.chunks) == ((52, 128, 64), (4, 6), 12)
    assert (tiling.share, tiling.parts, tiling.at_work) == ((4, 1), ((4, 1),) * 6, 6)
    assert tiling.padding == pytest.approx(208 / 196 - 1)
    assert (tiling.issues, tiling.sweep_cycles, tiling.sweeps) == (832, 832, 48)
    # 4 tiles, each with its 12 sweeps of A; B's 12 don't fit 8 slots, and some are filled again.
    assert tiling.fills[0] == 48
    assert tiling.operand_words == 48 * 26 + tiling.fills[1] * 64
    assert tiling.words_a_cycle == tiling.operand_words / (48 * 832)


def test_padding_is_of_rows_columns_and_k():
    assert tiling_of(64, 128, 64, (64, 128, 64)).padding == 0
    assert tiling_of(63, 127, 33, (64, 128, 64)).padding == pytest.approx(64 * 128 * 64 / (63 * 127 * 33) - 1)
    # The last chunk is filled up: 3 sweeps of 2 blocks for 5.
    assert tiling_of(4, 4, 160, (4, 4, 64)).padding == pytest.approx(6 / 5 - 1)


@pytest.mark.parametrize(("gm", "gn", "idle"), [(1, 1, 4), (1, 2, 2), (3, 1, 1), (2, 2, 1), (1, 5, 0), (2, 3, 0)])
def test_small_tiles_are_paced(gm, gn, idle):
    steps = gm * gn * 8 - 1
    assert tiling_of(4, 4, 256, (4 * gm, 4 * gn, 256)).sweep_cycles == steps * (idle + 1) + 1
    assert tiling_of(4, 4, 32, (4 * gm, 4 * gn, 32)).sweep_cycles == gm * gn


def test_equal_tilings_are_equal():
    assert candidates(100, 100, 100, CARD, 6, (2,)) == candidates(100, 100, 100, load("ktpu-v13p"), 6, (2,))
    with pytest.raises(AttributeError):
        candidates(4, 4, 4, CARD)[0].gm = 2  # type: ignore[misc]


# Counted as programs are


@settings(deadline=None, max_examples=40)
@given(SIZES, SIZES, st.integers(1, 700), st.sampled_from([(), (3,), (2, 2)]), st.booleans(), st.data())
def test_operand_words_are_those_of_programs(m, n, k, batch, b_shared, data):
    found = candidates(m, n, k, CARD, 6, batch, b_shared=b_shared)
    tiling = data.draw(st.sampled_from(found))
    made = programs(tiling, CARD)
    most = max(made.values(), key=filled)
    assert len(made) == tiling.at_work
    assert sum(isinstance(word, Drain) for word in next(iter(made.values()))) == tiling.tiles
    assert {(word.gm, word.gn, word.nk) for word in most if isinstance(word, Gemm)} == {
        (tiling.gm, tiling.gn, tiling.nk)
    }
    assert filled(most) == pytest.approx(tiling.operand_words, rel=0.03)
    if len(most) <= 60:
        assert filled(most) == tiling.operand_words
        assert len(most) == tiling.instructions


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 12), st.integers(1, 60), st.integers(1, 64))
def test_fewest_fills(rounds, length, half):
    """Belady's rule, use by use, from a cache that has what is needed soonest."""
    slots, held, misses = 2 * half, [], 0
    for at in range(rounds * length):
        operand = at % length
        if operand in held:
            continue
        misses += 1
        if len(held) == slots:
            # What was used last is needed again last.
            held.remove(max(held, key=lambda one: (one - operand) % length))
        held.append(operand)
    assert least_fills(length, rounds, slots) == misses
    assert panel_fills(rounds, length, 1, slots) >= misses


@pytest.mark.parametrize(
    ("length", "slots", "chunks", "rounds", "within"),
    [
        # Longer than what is counted: the least possible.
        (50, 8, 2, 8, 0.025),
        (60, 8, 12, 8, 0.025),
        (72, 32, 8, 4, 0.025),
        (96, 64, 12, 4, 0.025),
        # Many rounds, of which the first are counted.
        (20, 16, 5, 64, 0.06),
        (21, 16, 3, 64, 0.06),
        (12, 8, 12, 100, 0.06),
        (47, 2, 47, 20, 0.06),
    ],
)
def test_what_is_not_counted_is_close(length, slots, chunks, rounds, within):
    """To what `Side` does from the first use to the last."""
    order = [*range(length)] * rounds
    side, busy, fills = Side(0, 1, slots // 2, order), None, 0
    for operand in order:
        slot, words = side.take(operand, busy if operand % chunks else None)
        fills, busy = fills + len(words), slot.bank
    assert panel_fills(rounds, length // chunks, chunks, slots) == pytest.approx(fills, rel=within)


def test_panels_that_fit_are_filled_once():
    assert panel_fills(9, 2, 4, 8) == 8
    assert panel_fills(9, 3, 3, 8) > 9
    # With two slots for three operands the bank that is free decides, not what is needed again last.
    assert (panel_fills(9, 1, 3, 2), least_fills(3, 9, 2)) == (19, 15)


# The cost, beside what was measured


@pytest.mark.parametrize("latency", [1, 30])
def test_cycles_of_fills_are_those_measured(latency):
    cost = Cost.of(Setting.of(with_latency(latency)))
    already = replace(cost, fill=cost.port.prequantised)
    for outstanding in (1, 16):
        for kind, rule in (("quant", cost), ("preq", already)):
            measured = GOLDEN["fill"].get(f"fill_{kind}_LAT{latency}_OUTST{outstanding}", {})
            assert measured or (latency, outstanding) == (30, 1)
            assert {f"n={n}": rule.fill_cycles(n) for n in (1, 2, 8, 64, 255)} == measured or not measured


@pytest.mark.parametrize("name", GOLDEN["gemm"])
def test_cycles_of_sweeps_are_those_measured(name):
    gm, gn, nk = map(int, name.split("x"))
    tiling = tiling_of(4 * gm, 4 * gn, 32 * nk, (4 * gm, 4 * gn, 32 * nk))
    measured = GOLDEN["gemm"][name]
    assert tiling.issues == measured["issues"]
    assert tiling.sweep_cycles + 21 == measured["start_to_sweep_end"]
    assert tiling.sweep_cycles + 32 == measured["start_to_gemm_end"]


def test_cycles_of_drains_are_those_measured():
    for n in (1, 2, 4, 8, 9, 64, 512):
        assert drain_cycles(n) == GOLDEN["drain_to_memory"][f"n{n}_LAT1_OUTST1"]["accept_to_done"]


@pytest.mark.parametrize("latency", [1, 30])
def test_a_whole_product_of_one_pass_takes_what_was_measured(latency):
    """64 x 128 x 64 on one cluster. The one measured shares its first FILL with nobody, which saves it a cycle."""
    name = f"64x128x64_P1_drain_LAT{latency}_OUTST{1 if latency == 1 else 16}"
    measured = GOLDEN["whole_matmul"][name]["first_accept_to_last_done"]
    machine = with_latency(latency)
    tiling = Tiling(64, 64, 128, 16, 16, 4, Setting.of(machine, 1))
    assert clocked(programs(tiling, machine), machine) == measured + 1
    assert tiling.cycles == measured + 2


@pytest.mark.parametrize("latency", [1, 30])
def test_a_whole_product_of_several_passes_is_close_to_what_was_measured(latency):
    """256 x 256 x 256 on one cluster with 1024 sub-tiles, every operand filled for every pass."""
    name = f"256x256x256_P1_drain_LAT{latency}_OUTST{1 if latency == 1 else 16}"
    measured = GOLDEN["whole_matmul"][name]["first_accept_to_last_done"]
    one = [*(Fill(n=n, sel=sel) for sel in (0, 1) for n in (255, 1)), Gemm(gm=32, gn=32, nk=8), Drain(n=1024)]
    assert clocked({(1, 1): one * 4}, with_latency(latency)) == pytest.approx(measured, rel=0.02)


def test_both_orders_are_held_against_the_products_that_were_measured():
    """Cycles for each cycle at the peak: five programs, which share A, at two latencies."""
    for latency in (1, 30):
        rows = []
        for (m, k, n), clusters in (((64, 128, 64), 1), ((64, 128, 64), 2), ((64, 128, 64), 4), ((256, 256, 256), 1),
                                    ((256, 256, 256), 4)):  # fmt: skip
            name = f"{m}x{k}x{n}_P{clusters}_drain_LAT{latency}_OUTST{1 if latency == 1 else 16}"
            gm, gn = min(m // 4, 32), min(n // clusters // 4, 32)
            setting = replace(Setting.of(with_latency(latency), clusters), sub_tiles=1024, ports=2)
            tiling = Tiling(m, n, k, gm, gn, min(k // 32, 256 // max(gm, gn)), setting)
            peak = m * n * k / 512 / clusters
            rows.append((GOLDEN["whole_matmul"][name]["first_accept_to_last_done"] / peak, tiling, peak))
        rows.sort(key=lambda row: row[0])
        words = [tiling.words_a_cycle for _, tiling, _ in rows]
        cycles = [tiling.cycles / peak for _, tiling, peak in rows]
        assert agreement(words) == 1
        # Not told apart: 256^3 on four clusters, which share their A as no program here does, and 64 x 128 x 64 on one.
        assert agreement(cycles) == 0.8


def agreement(values) -> float:
    """Kendall's tau with the order in which they are given."""
    pairs = [(a, b) for at, a in enumerate(values) for b in values[at + 1 :]]
    return sum(1 if a < b else -1 for a, b in pairs) / len(pairs)


@pytest.mark.parametrize("sizes", PRODUCTS)
def test_cycles_order_the_programs_of_a_product_better_than_words(sizes):
    found = candidates(*sizes, CARD, 6)
    some = [found[at] for at in np.random.default_rng(0).choice(len(found), 16, replace=False)]
    taken = {tiling: clocked(programs(tiling, CARD), CARD) for tiling in some}
    by_clock = {by: agreement([taken[tiling] for tiling in ranked(some, by)]) for by in ("cycles", "words")}
    assert by_clock["cycles"] > 0.75
    assert by_clock["cycles"] >= by_clock["words"] + 0.1
    for tiling, cycles in taken.items():
        assert tiling.cycles == pytest.approx(cycles, rel=0.15)


@pytest.mark.long
def test_estimates_and_both_orders_beside_a_clock():
    """Every candidate of eleven products; run with -s to see the table."""
    off, taus, losses = [], {"cycles": [], "words": []}, {"cycles": [], "words": []}
    print(f"\n{'product':>15} {'tilings':>8} {'off: median':>12} {'worst':>17} {'tau: cycles':>12} {'words':>6}  first")
    for sizes in CLOCKED:
        found = candidates(*sizes, CARD, 6)
        taken = {tiling: clocked(programs(tiling, CARD), CARD) for tiling in found}
        own = [tiling.cycles / cycles - 1 for tiling, cycles in taken.items()]
        off += own
        for by in ("cycles", "words"):
            order = [taken[tiling] for tiling in ranked(found, by)]
            taus[by].append(agreement(order))
            losses[by].append(order[0] / min(order) - 1)
        print(
            f"{'x'.join(map(str, sizes)):>15} {len(found):>8} {np.median(np.abs(own)):>12.1%} {min(own):>+8.1%} "
            f"{max(own):>+8.1%} {taus['cycles'][-1]:>12.2f} {taus['words'][-1]:>6.2f}  "
            f"+{losses['cycles'][-1]:.1%} by cycles, +{losses['words'][-1]:.1%} by words"
        )
    print(f"{len(off):,} tilings: median {np.median(np.abs(off)):.1%}, worst {min(off):+.0%} and {max(off):+.0%}")
    for by in ("cycles", "words"):
        print(
            f"by {by}: tau {min(taus[by]):.2f} to {max(taus[by]):.2f}, median {np.median(taus[by]):.2f}; the first one "
            f"+{np.median(losses[by]):.1%} in the median, +{max(losses[by]):.1%} in the worst"
        )
    assert np.median(np.abs(off)) < 0.01
    assert max(map(abs, off)) < 0.18
    assert min(taus["cycles"]) > 0.67
    assert all(cycles > words for cycles, words in zip(taus["cycles"], taus["words"], strict=True))


# The order


def test_the_order_is_always_the_same():
    found = candidates(196, 768, 768, CARD, 6)
    shuffled = [found[at] for at in np.random.default_rng(0).permutation(len(found))]
    for by in (None, "cycles", "words"):
        assert ranked(found, by) == ranked(shuffled, by)
    assert ranked(found) == ranked(found, "cycles")
    first, *_, last = ranked(found)
    assert first.cycles == min(t.cycles for t in found)
    assert last.cycles == max(t.cycles for t in found)


def test_by_words_idle_clusters_come_last_then_words_then_padding():
    keys = [(-t.at_work, t.words_a_cycle, t.padding) for t in ranked(candidates(39, 384, 384, CARD, 6), "words")]
    assert keys == sorted(keys)
    assert len({at_work for at_work, *_ in keys}) > 1


def test_without_figures_of_fills_there_is_no_cost():
    """And the order is that by words, and the default tile the plain one."""
    silent = replace(CARD, maybe_memory_port=replace(CARD.memory_port, quantised=None, prequantised=None))
    found = candidates(196, 768, 768, silent, 6)
    assert {tiling.cycles for tiling in found} == {None}
    assert ranked(found) == ranked(found, "words")
    assert KtpuPlacement(silent, 0).matmul_tile(512, 512, 512) == (64, 128, 256)


def test_with_reads_in_flight_the_latency_is_paid_once():
    published = load("ktpu-v13p-published")
    cost = Cost.of(Setting.of(published))
    assert cost.fill_cycles(100) == pytest.approx(720 + 1)


# The default tile


@pytest.mark.parametrize(
    "sizes", [*PRODUCTS, (512, 512, 512), (16, 2048, 1024), (32, 384, 384), (1, 1000, 768), (300, 520, 64), (1, 16, 32)]
)
def test_the_default_tile_leaves_no_more_clusters_idle_and_is_no_slower(sizes):
    plain, default = PLACE._plain_tile(*sizes), PLACE.matmul_tile(*sizes)
    before, after = (tiling_of(*sizes, tile) for tile in (plain, default))
    assert after.at_work >= before.at_work
    if plain == default:
        return
    assert after.cycles < 0.8 * before.cycles
    assert clocked(programs(after, CARD), CARD) < clocked(programs(before, CARD), CARD)


def test_tiles_are_changed_only_where_that_is_worth_it():
    kept = [(32, 384, 384), (39, 384, 384), (39, 1536, 384), (768, 768, 768), (1, 16, 32), (64, 384, 128)]
    assert [sizes for sizes in kept if PLACE.matmul_tile(*sizes) != PLACE._plain_tile(*sizes)] == []
    changed = {(256, 256, 256): (4, 6), (128, 256, 256): (4, 6), (1, 1000, 768): (4, 6), (300, 520, 64): (5, 6)}
    for sizes, at_work in changed.items():
        tiles = PLACE._plain_tile(*sizes), PLACE.matmul_tile(*sizes)
        assert tuple(tiling_of(*sizes, tile).at_work for tile in tiles) == at_work


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 120), st.integers(1, 120), st.integers(1, 700), st.sampled_from([(), (3,)]), st.data())
def test_bits_do_not_depend_on_the_tiling(m, n, k, batch, data):
    """Every candidate leaves what the graph means, which doesn't depend on the tile."""
    tiling = data.draw(st.sampled_from(candidates(m, n, k, CARD, 6, batch)))
    a, b = halves(*batch, m, k, seed=m), halves(*batch, n, k, seed=n)
    found = [list(check(*product_of(a, b, tile)).results().values()) for tile in (tiling.tile, (4, 4, 32))]
    np.testing.assert_array_equal(found[0][0].view(np.uint16), found[1][0].view(np.uint16))


# What is known of a drain that is fused with the last sweep, and why none is emitted: docs/ktpu/tiling.md


@pytest.mark.parametrize("name", [n for n in GOLDEN["gemm_plus_drain"] if n.endswith("fused")])
def test_a_fused_drain_begins_with_the_last_k_block(name):
    """From the GEMM's acceptance; it saves a cycle a sub-tile and 14, and stalls sweeps of more than 256 sub-tiles."""
    gm, gn, nk = map(int, name.split("_")[2].split("x"))
    fused, apart = (GOLDEN["gemm_plus_drain"][name.replace("fused", kind)] for kind in ("fused", "separate"))
    sub_tiles, issues = gm * gn, gm * gn * nk
    assert fused["to_first_emit"] == issues - sub_tiles + 31
    assert apart["gemm_accept_to_drain_done"] - fused["gemm_accept_to_drain_done"] == sub_tiles + 14
    assert (fused["gemm_accept_to_sweep_end"] == apart["gemm_accept_to_sweep_end"]) == (sub_tiles <= 256)


def test_the_accumulator_can_add_and_emit_but_no_log_opens_and_emits():
    """The values of ADD_EMIT are those of a drain after the add; one K block would need a LOAD that emits."""
    log = np.load(Path(__file__).parents[2] / "golden" / "accumulator.npz")
    both = log["op"] == 7
    assert both.sum() == 10
    np.testing.assert_array_equal(fp22.drain(log["tile"][both].astype(np.uint32)).view(np.uint16), log["emit"][both])
    assert set(log["op"][log["emit_valid"]]) == {5, 7}


def test_no_drain_is_fused():
    words = [word for made in programs(tiling_of(64, 64, 128, (64, 64, 128)), CARD).values() for word in made]
    assert {(word.emit, word.fuse) for word in words} == {(0, 0)}
