"""Descriptions that the machine tests share: one whole file of one's own, and random machines."""

from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import strategies as st

from meshwright.machine import LinkSpec, MachineSpec, MeshSpec, UnitSpec, load

OWN = """\
name = "bench"
summary = "three meshes on a bench"
numerics = "ktpu"
topology = "chain"
crosses = ["write"]

[[mesh]]
id = 0
routers = [[1, 1], [1, 2]]
units = [
  { type = "MG", at = [[1, 1],
                       [1, 2]] },
  { type = "VC", at = [[1, 0]] },
]
ports = [[0, 1]]
agent = [0, 1]

[[mesh]]
id = 1
routers = [[1, 1], [1, 2]]
units = [{ type = "MG", rectangle = [[1, 1], [1, 2]] }]
ports = [[0, 1]]

[[mesh]]
id = 3
routers = [[1, 1], [1, 2]]
units = [{ type = "MG", at = [[1, 1], [1, 2]] }]
ports = [[0, 1]]

[[link]]
between = [0, 1]
kind = "cable"

[[link]]
between = [1, 3]
kind = "cable"

[[link_kind]]
name = "cable"
model = "beats"
source = "measured on the bench"
beat_bytes = 32
packet_start_cycles = 5
beat_cycles = 2
max_packet_beats = 32
buffer_beats = 64

[cluster]
source = "specification"
sub_tile = [4, 4]
k_block = 32
l1_sides = 2
l1_banks = 2
l1_entries = 256

[vector_core]
source = "rtl"
lanes = 16
vector_length = 128
l1_words = 512
l1_safe_words = 320
word_bytes = 32
instructions = 512
descriptors = 8
walk_words = 256
loop_words = 15

[dispatch]
source = "specification"
staged_words = 128
commands = 128
instruction_fifo = 32

[address]
source = "rtl"
bits = 40
aperture_bit = 39
mesh_shift = 36
mesh_bits = 2
host_window_shift = 40

[dram]
source = "specification"
bytes = 4_294_967_296
burst_bytes = 256

[memory_port]
source = "rtl"
reads_in_flight = 1
latency_cycles = 30
write_burst_cycles = 32
write_slots = 16
queue_flits = 64
prequantised = { entry_cycles = 23, start_cycles = 29 }

[noc]
source = "rtl"
multicast = false
rates = [{ packet_bytes = 32, bytes_per_cycle = 32 }]

[clock]
source = "measured on the bench"
profile = "slow"
profiles = [
  { name = "slow", fabric_hz = 50e6, matrix_hz = 50e6, vector_hz = 50e6, memory_hz = 50e6 },
]
"""


def linked(ids: list[int], pairs: list[tuple[int, int]], **changes: Any) -> MachineSpec:
    """Grid chips of one site with the given ids and links."""
    base = load("grid-2x4x4")
    site = UnitSpec(type="site", at=((0, 0),))
    at = changes.pop("at", {})
    meshes = tuple(MeshSpec(id=i, routers=((0, 0), (0, 0)), units=(site,), at=at.get(i)) for i in ids)
    links = tuple(LinkSpec(between=pair, kind="ethernet") for pair in pairs)
    return msgspec.structs.replace(base, name="sample", meshes=meshes, links=links, **changes)


@st.composite
def chains(draw: st.DrawFn) -> MachineSpec:
    """A line of 2 to 9 meshes in any order of ids, some links perhaps missing."""
    order = draw(st.lists(st.integers(0, 40), min_size=2, max_size=9, unique=True))
    pairs = [pair if draw(st.booleans()) else pair[::-1] for pair in pairwise(order)]
    kept = [pair for pair in pairs if draw(st.integers(0, 5))]
    return linked(draw(st.permutations(order)), draw(st.permutations(kept)), topology="chain")


@st.composite
def grids(draw: st.DrawFn) -> MachineSpec:
    """A grid of meshes, some links perhaps missing."""
    across, down = draw(st.integers(1, 4)), draw(st.integers(2, 4))
    ids = draw(st.lists(st.integers(0, 60), min_size=across * down, max_size=across * down, unique=True))
    at = {mesh: (i % across, i // across) for i, mesh in enumerate(ids)}
    pairs = [
        (a, b)
        for a in ids
        for b in ids
        if (at[b][0] - at[a][0], at[b][1] - at[a][1]) in ((1, 0), (0, 1)) and draw(st.integers(0, 7))
    ]
    return linked(ids, pairs, topology="grid2d", at=at)


@st.composite
def rings(draw: st.DrawFn) -> MachineSpec:
    """A ring of 3 to 8 meshes."""
    order = draw(st.lists(st.integers(0, 40), min_size=3, max_size=8, unique=True))
    return linked(draw(st.permutations(order)), [*zip(order, order[1:] + order[:1], strict=True)], topology="ring")


fabrics = st.one_of(chains(), grids(), rings())
