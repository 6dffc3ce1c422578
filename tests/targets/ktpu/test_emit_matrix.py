"""Programs of clusters leave in memory, to the bit, what their graphs mean: on one mesh and summed over several."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulator.programs import Host
from tests.targets.ktpu.matrix_rig import CARD, Clusters, chain_of, check, halves, product_of, reduce_of

from meshwright.ir.build import GraphBuilder
from meshwright.ir.formats import ElementType
from meshwright.kernels.kernel import Piece
from meshwright.kernels.matmul import MatrixProduct, emit_added, emit_drained, emit_opened
from meshwright.sharding import MeshGroup
from meshwright.targets.ktpu.emit_matrix import Firing
from meshwright.targets.ktpu.isa import Drain
from meshwright.targets.ktpu.placement import KtpuPlacement

CROSSMESH = np.load(Path(__file__).parents[2] / "golden" / "crossmesh.npz")
CHAINS = ((0, 1), (3, 2), (0, 1, 3, 2), (2, 3, 1))
TILES = st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4)).map(
    lambda t: (4 * t[0], 4 * t[1], 32 * t[2])
)
SIZES = st.integers(1, 70)


@settings(max_examples=40, deadline=None)
@given(SIZES, SIZES, st.integers(1, 300), st.none() | TILES, st.sampled_from(CARD.mesh_ids), st.integers(0, 99))
def test_products_of_any_shape_and_tile(m, n, k, tile, chip, seed):
    check(*product_of(halves(m, k, seed=seed), halves(n, k, seed=seed + 100), tile, chip))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 2), SIZES, SIZES, st.booleans(), st.none() | TILES, st.integers(0, 99))
def test_leading_axes(outer, inner, m, n, shared, tile, seed):
    a = halves(outer, inner, m, 48, seed=seed)
    b = halves(*(() if shared else (outer, inner)), n, 48, seed=seed + 100)
    check(*product_of(a, b, tile))


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(CHAINS), SIZES, SIZES, st.integers(1, 70), st.integers(0, 99))
def test_chains_over_meshes(meshes, m, n, share, seed):
    k = share * len(meshes)
    clusters = check(*chain_of(halves(m, k, seed=seed), halves(n, k, seed=seed + 100), meshes))
    assert sum(isinstance(word, Drain) and word.dnode for word in clusters.words) >= len(meshes) - 1


@pytest.mark.parametrize("meshes", CHAINS)
def test_chains_of_more_instances_than_clusters(meshes):
    """Each instance is added up and drained before the next one is opened in the same accumulators."""
    k = 64 * len(meshes)
    check(*chain_of(halves(300, k), halves(520, k, seed=1), meshes))


@pytest.mark.parametrize("case", ["case0", "case1"])
def test_golden_chains(case):
    """The bits of the RTL, with a stated tile, each sum resident."""
    meshes = (0, 1, 3, 2)[: int(CROSSMESH[f"{case}_ranks"])]
    a, b = (CROSSMESH[f"{case}_{side}"].view(np.float16) for side in "ab")
    clusters = check(*chain_of(a, b, meshes, (16, 16, 128)))
    (found,) = clusters.results().values()
    np.testing.assert_array_equal(found.view(np.uint16), CROSSMESH[f"{case}_chain_fp16"])
    assert clusters.rounds == len(meshes) + 1


@pytest.mark.parametrize(("meshes", "root"), [((0, 1), 0), ((0, 1, 3), 1), ((1, 3, 2), 1)])
def test_sums_straight_into_one_mesh(meshes, root):
    """Two senders add into one tile, one after the other: never is more than one burst open."""
    k = 40 * len(meshes)
    check(*reduce_of(halves(72, k), halves(136, k, seed=1), meshes, root))


def test_columns_split_over_meshes():
    group = MeshGroup.open(CARD)
    a, b = halves(24, 96), halves(256, 96, seed=1)
    graph = group.plan_matmul(group.copy(a), group.split(b, 0)).graph()
    first, second = (graph.tensors[t].name for t in graph.inputs())
    check(graph, {first: (a,) * 4, second: tuple(np.split(b, 4))})


def test_two_products_on_the_same_clusters_one_after_the_other():
    """And a sum over meshes between them: accumulators are in use by one at a time, on every mesh in the same order."""
    builder = GraphBuilder()
    inputs = {}

    def operands(name, chip):
        found = []
        for side, n in (("a", 40), ("b", 72)):
            array = halves(n, 96, seed=len(inputs))
            inputs[side + name] = (array,)
            found.append(Piece(builder.tensor(side + name, array.shape, ElementType.F16, (chip,)), 0, array.shape))
        return found

    places = {chip: KtpuPlacement(CARD, chip) for chip in (0, 1)}
    for number, chip in enumerate((0, 1, 1)):
        made = Piece(builder.tensor(f"c{number}", (40, 72), ElementType.F16, (chip,)), 0, (40, 72))
        MatrixProduct((16, 24, 32)).emit(builder, places[chip], operands(f"{number}", chip), made)
    result = builder.tensor("sum", (40, 72), ElementType.F16, (0,))
    tile = (20, 16, 64)
    far = emit_opened(builder, places[1], operands("far", 1), (40, 72), tile, 4)
    near = emit_opened(builder, places[0], operands("near", 0), (40, 72), tile, 4)
    emit_added(builder, result, near, far)
    emit_drained(builder, places[0], near, Piece(result, 0, (40, 72)))
    MatrixProduct((8, 8, 32)).emit(
        builder,
        places[0],
        operands("last", 0),
        Piece(builder.tensor("last", (40, 72), ElementType.F16, (0,)), 0, (40, 72)),
    )
    check(builder.graph(), inputs)


def test_a_host_sends_windows_of_staging_memory():
    """More words than staging memory has, cut anywhere, through the agent and its credits."""
    graph, inputs = product_of(halves(64, 256), halves(96, 256, seed=1), (8, 12, 32))
    clusters = Clusters(graph, inputs)
    for site, tasks in clusters.tasks.items():
        for task in tasks:
            Host(clusters.card, site.chip).run((site.x, site.y), list(task.program.encode()))
    assert max(len(task.program) for tasks in clusters.tasks.values() for task in tasks) > 128
    by_host = clusters.results()
    for key, found in check(graph, inputs).results().items():
        np.testing.assert_array_equal(by_host[key].view(np.uint16), found.view(np.uint16))


def test_what_a_task_waits_for():
    """In a chain: who sends waits for the tile to be opened, who drains for what arrives."""
    graph, inputs = chain_of(halves(16, 96), halves(16, 96, seed=1), (0, 1, 3))
    clusters = Clusters(graph, inputs)
    tasks = {site.chip: clusters.tasks[site] for site in clusters.sites}
    kinds = {number: type(stage.kind).__name__ for number, stage in enumerate(graph.stages)}
    assert [len(tasks[chip]) for chip in (0, 1, 3)] == [2, 2, 2]
    (first, second), third = [task[1] for task in (tasks[0], tasks[1])], tasks[3][1]
    opened = [next(f.stage for f in tasks[chip][0].does if kinds[f.stage] == "Compute") for chip in (0, 1, 3)]
    assert first.after == (Firing(opened[1], 0),)
    assert second.after == (Firing(first.does[0].stage, 0), Firing(opened[2], 0))
    assert third.after == (Firing(second.does[0].stage, 0),)
    assert [arrival.signals for arrival in first.arrivals] == [4]
    assert (first.arrivals[0].site.chip, second.arrivals[0].site.chip, third.arrivals) == (1, 3, ())
