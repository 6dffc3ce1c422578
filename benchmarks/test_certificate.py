"""How long the whole certificate of a decoder layer takes, with its meaning, and following its evidence without it.

Printed by `python -m pytest benchmarks/test_certificate.py -s`: a row for each number of chips.
"""

import time

import msgspec
import pytest

from decoder_layer import LLAMA_2_7B, Sizes, decoder_layer
from meshwright.certify import Verdict, Waiver, certify, recheck
from meshwright.machine import LinkSpec, MachineSpec, MeshSpec, UnitSpec, load

# 64 chips need 64 heads; hidden and feed-forward sizes are the same.
OF_64_HEADS = Sizes(tokens=16, heads=64, head=64, feed_forward=11008)
MEMORY = 1 << 40
WAIVED = [Waiver("AccumulatorFits", "blocks are whole matrices: capacities are no part of this", "the benchmark")]


def line_of(chips: int) -> MachineSpec:
    """Chips of one site each in a line that forwards, with memory for whole matrices."""
    pair = load("grid-2x4x4")
    meshes = tuple(
        MeshSpec(id=chip, routers=((0, 0), (0, 0)), units=(UnitSpec("site", ((0, 0),)),)) for chip in range(chips)
    )
    return msgspec.structs.replace(
        pair,
        name=f"line of {chips}",
        forwards=True,
        meshes=meshes,
        links=tuple(LinkSpec((chip, chip + 1), pair.link_kinds[0].name) for chip in range(chips - 1)),
        maybe_site=msgspec.structs.replace(pair.site, memory_bytes=MEMORY),
        dram=msgspec.structs.replace(pair.dram, bytes=MEMORY),
    )


@pytest.mark.parametrize("chips", [4, 8, 16, 32, 64])
def test_certificate_of_a_decoder_layer(benchmark, chips):
    """Hidden 4096, feed-forward 11008, 16 tokens, tensor-parallel over the chips."""
    sizes = OF_64_HEADS if chips == 64 else LLAMA_2_7B
    machine = line_of(chips)
    # Graphs are made anew for each turn: what has been found of one is kept with it.
    benchmark.pedantic(
        lambda graph: certify(graph, machine, WAIVED), setup=lambda: ((decoder_layer(sizes, chips),), {}), rounds=3
    )
    graph = decoder_layer(sizes, chips)
    certificate = certify(graph, machine, WAIVED)
    assert certificate.verdict is Verdict.HELD
    again = decoder_layer(sizes, chips)
    start = time.perf_counter()
    recheck(certificate, again, machine)
    benchmark.extra_info["recheck, s"] = followed = time.perf_counter() - start
    print(
        f"\n{chips:3} chips, {len(graph.stages):5} stages: certificate {benchmark.stats.stats.min:.2f} s, "
        f"recheck {followed:.2f} s"
    )


@pytest.mark.parametrize("chips", [4, 64])
def test_certificate_with_its_meaning(benchmark, chips):
    """The same with `SameFunction` against the layer on one chip, two rounds."""
    sizes = OF_64_HEADS if chips == 64 else LLAMA_2_7B
    graph, reference, machine = decoder_layer(sizes, chips), decoder_layer(sizes), line_of(chips)
    certificate = benchmark.pedantic(lambda: certify(graph, machine, WAIVED, reference), rounds=1)
    assert certificate.entry("SameFunction").verdict is Verdict.HELD
    print(f"\n{chips:3} chips with SameFunction: {benchmark.stats.stats.min:.1f} s")
