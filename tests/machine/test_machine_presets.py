"""The machines that come with the package, against the facts they are made from."""

import json
from pathlib import Path

import msgspec
import pytest

from meshwright.errors import MachineError
from meshwright.machine import BeatLink, FrameLink, load, preset_text, presets

CARD = load("ktpu-v13p")
TIMING = json.loads((Path(__file__).parent.parent / "golden" / "timing_ktpu.json").read_text(encoding="utf-8"))


def refusal(call, *args):
    with pytest.raises(MachineError) as caught:
        call(*args)
    return str(caught.value)


def test_the_presets_there_are():
    assert presets() == ("grid-2x4x4", "grid-8x8", "ktpu-1", "ktpu-v13p", "ktpu-v13p-published")
    assert [load(name).name for name in presets()] == list(presets())
    assert preset_text("ktpu-1").startswith("# One mesh of the FPGA card")
    assert refusal(preset_text, "ktpu").startswith('no machine and no file is called "ktpu"')


def test_the_card_has_no_vector_core_on_mesh_1():
    assert [CARD.count("MG", mesh) for mesh in CARD.mesh_ids] == [6, 6, 6, 6]
    assert [CARD.count("VC", mesh) for mesh in CARD.mesh_ids] == [2, 0, 2, 2]
    assert (CARD.count("MG"), CARD.count("VC"), CARD.unit_types) == (24, 6, ("MG", "VC"))
    assert CARD.has(0, "VC") and not CARD.has(1, "VC")
    assert CARD.coords(3, "MG") == ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3))
    assert refusal(CARD.coords, 1, "VC") == ("mesh 1 of ktpu-v13p has no VC: it has 6 MG; it is on meshes 0, 3, 2")
    assert refusal(CARD.coords, 0, "site") == "mesh 0 of ktpu-v13p has no site: it has 6 MG, 2 VC; no mesh has one"


def test_the_figures_of_the_card():
    assert CARD.cluster.macs_per_cycle == 512
    assert CARD.cluster.accumulator_tiles == 512
    assert CARD.dram.usable_bytes == 4 * 2**30 - 2**20
    assert CARD.clock.hz == 100e6
    assert CARD.transport("jtag").poll_s == 0.013
    assert refusal(CARD.transport, "usb") == "ktpu-v13p has no transport 'usb'; it has jtag, pcie"
    assert refusal(lambda: CARD.site) == "ktpu-v13p states no [site] figures"


@pytest.mark.parametrize(
    ("words", "safe"), [(0, True), (320, True), (321, False), (352, False), (511, False), (512, True), (513, False)]
)
def test_vector_footprints_in_the_bad_band_are_not_safe(words, safe):
    assert CARD.vector_core.footprint_is_safe(words) is safe


@pytest.mark.parametrize("latency", [1, 30])
@pytest.mark.parametrize("kind", ["quant", "preq"])
def test_fill_figures_give_the_cycles_of_the_rtl(kind, latency):
    port = msgspec.structs.replace(CARD.memory_port, latency_cycles=latency)
    cost = port.quantised if kind == "quant" else port.prequantised
    outstanding = 1 if latency == 1 else 16
    for entries, cycles in TIMING["fill"][f"fill_{kind}_LAT{latency}_OUTST{outstanding}"].items():
        n = int(entries.removeprefix("n="))
        # One read is in flight, so the latency is paid per entry; a lone entry is one cycle less.
        assert cycles == (cost.entry_cycles + latency) * n + cost.start_cycles - (n == 1)


def test_routers_passed_give_the_latency_of_the_rtl():
    rig = msgspec.structs.replace(CARD.meshes[0], routers=((1, 1), (1, 2)), units=(), ports=((0, 1), (0, 2)))
    rig = msgspec.structs.replace(
        rig, units=(msgspec.structs.replace(CARD.meshes[0].units[0], at=((1, 1), (1, 2), (2, 1), (2, 2))),)
    )
    assert CARD.noc.hop_cycles is not None
    measured = {}
    for sent in TIMING["unit_to_unit"].values():
        for where, figures in sent.items():
            if where.startswith("to_") and "noc_latency_first" in figures:
                measured[tuple(int(c) for c in where.split("_")[1:])] = figures["noc_latency_first"]
    assert measured.keys() >= {(1, 1), (1, 2), (2, 2)}
    for place, cycles in measured.items():
        assert rig.hops((2, 1), place) * CARD.noc.hop_cycles == cycles


def test_places_on_a_mesh():
    mesh = CARD.mesh(0)
    assert mesh.corners == ((0, 0), (3, 0), (0, 4), (3, 4))
    assert CARD.hops(0, (1, 1), (1, 1)) == 1
    assert CARD.hops(0, (1, 0), (2, 3)) == 4
    assert [CARD.nearest_port(0, (2, y)) for y in (1, 2, 3)] == [(0, 1), (0, 2), (0, 3)]
    assert CARD.nearest_port(0, (1, 4)) == (0, 3)
    assert refusal(CARD.hops, 0, (1, 1), (3, 3)).startswith("mesh 0 has nothing at (3, 3); it has (1, 1), (1, 2)")
    assert refusal(load("grid-8x8").nearest_port, 0, (0, 0)) == (
        "mesh 0 states no memory port, so none is nearest to (0, 0)"
    )


def test_packets_of_the_card_link():
    kind = CARD.link_kinds[0]
    assert isinstance(kind, BeatLink)
    assert kind.packet_cycles(8) == 21
    assert refusal(kind.packet_cycles, 33) == "link kind 'interlink': a packet of 33 payload beats; it carries 1 to 32"


def test_the_published_build_differs_in_memory_and_clock_only():
    published = load("ktpu-v13p-published")
    same = msgspec.structs.replace(
        published, name=CARD.name, summary=CARD.summary, clock=CARD.clock, maybe_memory_port=CARD.maybe_memory_port
    )
    assert same == CARD and published != CARD
    port = published.memory_port
    assert port.prequantised is not None
    assert (port.prequantised.entry_cycles, port.quantised, port.reads_in_flight > 1) == (7.2, None, True)
    assert published.clock.hz == 300e6


def test_the_grid_machines():
    grid, two = load("grid-8x8"), load("grid-2x4x4")
    assert (grid.count("site"), two.count("site"), two.count("site", 1)) == (64, 32, 16)
    assert grid.coords(0, "site")[:9] == (*((x, 0) for x in range(8)), (0, 1))
    assert grid.hops(0, (0, 0), (7, 7)) == 15
    assert [grid.site.tile_product_cycles(f) for f in ("LoFi", "HiFi2", "HiFi3", "HiFi4")] == [16, 32, 48, 64]
    assert refusal(grid.site.tile_product_cycles, "HiFi1") == (
        "the matrix engine has no fidelity 'HiFi1'; it has LoFi, HiFi2, HiFi3, HiFi4"
    )
    slowest = grid.noc.rates[0]
    assert round(slowest.packet_bytes / slowest.bytes_per_cycle) == 23, "a lone small packet is no peak bandwidth"
    kind = two.link_kinds[0]
    assert isinstance(kind, FrameLink)
    assert kind.payload_efficiency() == 6144 / (6144 + 48 + 50 * 5)
    assert kind.payload_efficiency(1452) == 1452 / 1550 and kind.payload_efficiency(1453) == 1453 / 1601
    assert refusal(grid.global_addr, 0, 0) == "grid-8x8 states no [address] figures"
