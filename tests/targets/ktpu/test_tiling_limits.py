"""Everything that would wrap silently: at its limit, and one past it.

Three places keep a limit. An *encoder* refuses a value that its field can't hold. `check_program` refuses a word that
the machine can't carry out. A *planner* (placement, tilings, emission) never makes such a word, or says why there is
none. Each row below is one limit at one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from tests.targets.ktpu.matrix_rig import CARD, check, halves, product_of
from tests.targets.ktpu.tiling_rig import programs

from meshwright.errors import MeshwrightError
from meshwright.ir.records import Site
from meshwright.sharding import MeshGroup
from meshwright.targets.ktpu.emit_matrix import emit_matrix, images_at
from meshwright.targets.ktpu.emit_matrix_fills import Side, usable_entries
from meshwright.targets.ktpu.isa import Drain, Fill, Gemm, Program, check_program
from meshwright.targets.ktpu.placement import KtpuPlacement
from meshwright.targets.ktpu.tiling import candidates

MESH = 1
TOP = CARD.dram.bytes
AT = Site(0, 1, 1)
replace = msgspec.structs.replace
PEER = Drain(n=1, dnode=1, dst_x=2, dst_y=3, dbuf=2, dflags=1)


def machine_with(**cluster):
    return replace(CARD, maybe_cluster=replace(CARD.cluster, **cluster))


LONG = machine_with(l1_entries=512)
DEEP = machine_with(accumulator_tiles=65536)


def encode(word):
    return word.words()


def ask(word, machine=CARD):
    check_program(Program("MG", (word,)), machine, MESH, (1, 1))


def tile(*sizes, machine=CARD):
    KtpuPlacement(machine, 0).check_tile(sizes)


def local(address):
    return CARD.global_addr(MESH, address)


def result_at(address):
    """64 x 128 of fp16 drained to `address` of the cluster's mesh: 16 KiB."""
    graph, _ = product_of(halves(64, 32), halves(128, 32), (64, 128, 32))
    a, b, c = images_at(graph, AT, CARD)
    assert c.nbytes == 16384
    emit_matrix(graph, AT, CARD, {a: 0, b: 0x10000, c: address})


def sent(rows):
    """A tile of `rows` x 255 sub-tiles on its way to another mesh, whose accumulator has room for it."""
    group = MeshGroup.open(DEEP, (0, 1))
    values = [group.split(np.ones((4 * count, 64)), 1) for count in (rows, 255)]
    graph = group.plan_chain_reduce(*values, tile=(4 * rows, 1020, 32)).graph()
    places = enumerate(images_at(graph, AT, DEEP))
    (_, task) = emit_matrix(graph, AT, DEEP, {image: at << 24 for at, image in places})
    assert [word.n for word in task.program.words] == [rows * 255]


class Limit(NamedTuple):
    what: str
    by: str
    fits: Callable[[], object]
    past: Callable[[], object]
    says: str


def row(what, by, done, fits, past, says):
    """`done` of what fits and of what is one past it."""
    return pytest.param(Limit(what, by, lambda: done(fits), lambda: done(past), says), id=f"{what} ({by})")


WRAPS = "does not fit its {} bits"
LIMITS = [
    # limit, kept by, how, at the limit, one past it, what is said
    row("gm", "encoder", encode, Gemm(gm=255, gn=1), Gemm(gm=256, gn=1), WRAPS.format(8)),
    row("gn", "encoder", encode, Gemm(gm=1, gn=255), Gemm(gm=1, gn=256), WRAPS.format(8)),
    row("nk", "encoder", encode, Gemm(gm=1, gn=1, nk=255), Gemm(gm=1, gn=1, nk=256), WRAPS.format(8)),
    row("gm", "planner", lambda m: tile(m, 4, 32), 1020, 1024, "8-bit fields, 255 at most"),
    row("gn", "planner", lambda n: tile(4, n, 32), 1020, 1024, "8-bit fields, 255 at most"),
    row("nk", "planner", lambda k: tile(4, 4, k), 255 * 32, 256 * 32, "8-bit fields, 255 at most"),
    row("gm * gn, 512", "check", ask, Gemm(gm=16, gn=32), Gemm(gm=27, gn=19), "the accumulator of ktpu-v13p holds 512"),
    row("gm * gn, 512", "planner", lambda n: tile(64, n, 32), 128, 132, "the accumulator holds 512"),
    row("n of a FILL", "encoder", encode, Fill(n=65535), Fill(n=65536), WRAPS.format(16)),
    row("n of a FILL, 8 bits", "check", ask, Fill(addr=local(0), n=255), Fill(addr=local(0), n=256), "256 wraps to 0"),
    row("eoff", "encoder", encode, Fill(eoff=255), Fill(eoff=256), WRAPS.format(8)),
    row("aoff", "encoder", encode, Gemm(aoff=255), Gemm(aoff=256), WRAPS.format(8)),
    row("boff", "encoder", encode, Gemm(boff=255), Gemm(boff=256), WRAPS.format(8)),
    row("eoff + n", "check", ask, Fill(addr=local(0), n=1, eoff=255), Fill(addr=local(0), n=2, eoff=255), "holds 256"),
    row("aoff + gm nk", "check", ask, Gemm(gm=8, gn=1, nk=31, aoff=8), Gemm(gm=8, gn=1, nk=31, aoff=9), "holds 256"),
    row("boff + gn nk", "check", ask, Gemm(gm=1, gn=8, nk=31, boff=8), Gemm(gm=1, gn=8, nk=31, boff=9), "holds 256"),
    row("L1 entries of A", "planner", lambda k: tile(128, 64, k), 256, 288, "A block takes 288 L1 entries"),
    row("L1 entries of B", "planner", lambda k: tile(64, 128, k), 256, 288, "B block takes 288 L1 entries"),
    row(
        "L1 entries that 8 bits address",
        "planner",
        lambda k: tile(4, 128, k, machine=LONG),
        256,
        288,
        "its B block takes 288 L1 entries, and 8-bit fields address 256 of a bank; 4 x 128 x 256 fits",
    ),
    row("n of a DRAIN", "encoder", encode, Drain(n=65535), Drain(n=65536), WRAPS.format(16)),
    row("n of a DRAIN, 512", "check", ask, Drain(addr=local(0), n=512), Drain(addr=local(0), n=513), "1 to 512"),
    row("granule, even", "check", ask, replace(PEER, addr=4), replace(PEER, addr=3), "is inside a sub-tile"),
    row("granule + 2 n, 512", "check", ask, replace(PEER, addr=1022), replace(PEER, addr=1024), "holds 512, and wraps"),
    row("granules of a burst, 16 bits", "planner", sent, 128, 129, "granules; bursts name theirs in 16"),
    row("addr", "encoder", encode, Fill(addr=(1 << 40) - 1), Fill(addr=1 << 40), "does not fit its 40 bits"),
    row("memory", "check", ask, Fill(addr=local(TOP - 256), n=1), Fill(addr=local(TOP - 224), n=1), "bytes up to"),
    row("memory", "planner", result_at, TOP - 16384, TOP - 16128, "reaches mesh 0 up to 0x100000000"),
    row("spans", "check", ask, Drain(addr=local(512), n=1), Drain(addr=local(384), n=1), "not aligned to 256"),
    row("spans", "planner", result_at, 0x20100, 0x20080, "bursts begin at multiples of 256"),
]


@pytest.mark.parametrize("limit", LIMITS)
def test_at_the_limit_and_one_past_it(limit: Limit):
    limit.fits()
    with pytest.raises(MeshwrightError) as error:
        limit.past()
    assert limit.says in str(error.value)


# Limits that planners keep without anybody being refused: what comes out of them passes `check_program`.


@pytest.mark.parametrize(
    ("tile", "most"),
    [
        ((64, 64, 512), {"nk": 16, "n": 255}),  # 256 entries a bank: 255 and 1
        ((4, 1020, 32), {"gn": 255, "n": 255}),
        ((1020, 4, 32), {"gm": 255, "n": 255}),
        ((4, 4, 8160), {"nk": 255, "n": 255}),
        ((64, 128, 256), {"n": 255}),
        ((4, 4, 8192), {"nk": 128}),  # one K block more than the field: two sweeps of 128
    ],
)
def test_words_of_tiles_at_the_limits(tile, most):
    m, n, k = (min(size, 1100) if at < 2 else size for at, size in enumerate(tile))
    clusters = check(*product_of(halves(m, k), halves(n, k, seed=1), tile if k <= 8160 else None))
    fills, gemms = ([w for w in clusters.words if isinstance(w, kind)] for kind in (Fill, Gemm))
    for name, value in most.items():
        assert max(getattr(word, name) for word in (fills if name == "n" else gemms)) == value


@pytest.mark.parametrize("machine", [CARD, LONG, machine_with(accumulator_tiles=256), machine_with(l1_entries=60)])
@pytest.mark.parametrize("sizes", [(300, 1100, 9000), (1, 5000, 64), (5000, 1, 64), (3, 3, 40000), (517, 331, 700)])
def test_every_candidate_is_within_every_limit(machine, sizes):
    for tiling in candidates(*sizes, machine, 6):
        assert max(tiling.gm, tiling.gn, tiling.nk) <= 255
        assert tiling.gm * tiling.gn <= machine.cluster.accumulator_tiles
        assert max(tiling.gm, tiling.gn) * tiling.nk <= min(machine.cluster.l1_entries, 256)
        KtpuPlacement(machine, 0).check_tile(tiling.tile)


@pytest.mark.parametrize("entries", [255, 256, 257, 512])
def test_offsets_stay_within_8_bits_whatever_a_bank_holds(entries):
    """Of longer banks the rest is left alone: words name 256 entries, in eoff, aoff and boff."""
    machine = machine_with(l1_entries=entries)
    assert usable_entries(entries) == min(entries, 256)
    for tiling in candidates(100, 100, 3000, machine, 1)[::7]:
        for word in next(iter(programs(tiling, machine).values())):
            check_program(Program("MG", (word,)), CARD if entries >= 256 else machine, 0)
            word.words()


def test_a_fill_never_goes_into_a_bank_that_a_sweep_reads():
    """With one operand a bank: sweep after sweep alternates."""
    side, busy, banks = Side(0, 256, 256, [0, 1, 2, 3, 4]), None, []
    for at in range(5):
        slot, fills = side.take(at, busy)
        assert {fill.fbank for fill in fills} == {slot.bank}
        busy = slot.bank
        banks.append(busy)
    assert banks == [0, 1, 0, 1, 0]
