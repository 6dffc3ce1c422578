"""Graphs of kernels: well formed, balanced, on the right units, and the same bits from every backend."""

import numpy as np
import pytest
from tests.kernels.one_chip import HERE, WITHOUT_VECTOR_CORES, f16, graph_of, run, shaped
from tests.kernels.samples import SAMPLES

from meshwright import kernels
from meshwright.errors import PlacementError
from meshwright.ir.records import Compute, Load, Store
from meshwright.kernels.blocks import Segment, dividing, even, filled, segments
from meshwright.numerics.backend import available, using

COMPILED = [name for name in available() if name != "numpy"]
VECTOR = [name for name, (kernel, _) in SAMPLES.items() if kernel.unit == "vector"]
SITES = {
    "vector": set(HERE.vector_sites()),
    "matrix": set(HERE.matrix_sites()),
    "mover": {HERE.mover_site()},
}


@pytest.mark.parametrize("name", SAMPLES)
def test_stages_are_at_the_units_that_the_kernel_names(name):
    kernel, arrays = SAMPLES[name]
    graph = graph_of(kernel, *map(shaped, arrays))
    used = {graph.site(stage) for stage in graph.stages}
    assert used <= SITES[kernel.unit]
    if kernel.unit == "vector" and arrays[0].size > 64:
        assert used == SITES["vector"]


@pytest.mark.parametrize("name", SAMPLES)
def test_emit_gives_the_stores_of_the_result_and_every_operand_is_read(name):
    kernel, arrays = SAMPLES[name]
    graph = graph_of(kernel, *map(shaped, arrays))
    names = {graph.tensors[s.kind.tensor].name for s in graph.stages if isinstance(s.kind, Load)}
    assert names >= {f"operand {i}" for i in range(len(arrays))}
    outputs = {graph.tensors[t].name for t in graph.outputs()}
    assert outputs == {"result"}
    assert any(isinstance(s.kind, Store) for s in graph.stages)
    assert kernel.unit == "mover" or any(isinstance(s.kind, Compute) for s in graph.stages)


@pytest.mark.parametrize("name", VECTOR)
def test_a_mesh_without_vector_cores_refuses_vector_work(name):
    kernel, arrays = SAMPLES[name]
    with pytest.raises(PlacementError) as refusal:
        graph_of(kernel, *map(shaped, arrays), placement=WITHOUT_VECTOR_CORES)
    assert str(refusal.value) == NO_VECTOR_CORE


NO_VECTOR_CORE = "mesh 1 of ktpu-v13p has no VC: it has 6 MG; it is on meshes 0, 3, 2"


@pytest.mark.parametrize("name", [n for n in SAMPLES if n not in VECTOR])
def test_other_work_runs_on_a_mesh_without_vector_cores(name):
    kernel, arrays = SAMPLES[name]
    here, there = run(kernel, *arrays), run(kernel, *arrays, placement=WITHOUT_VECTOR_CORES)
    assert np.array_equal(here.view(np.uint16), there.view(np.uint16))


@pytest.mark.skipif(not COMPILED, reason="installed without a compiler")
@pytest.mark.parametrize("name", SAMPLES)
def test_every_backend_gives_the_bits_of_numpy(name):
    kernel, arrays = SAMPLES[name]
    with using("numpy"):
        oracle = run(kernel, *arrays)
    for backend in COMPILED:
        with using(backend, threads=1):
            made = run(kernel, *arrays)
        assert np.array_equal(made.view(np.uint16), oracle.view(np.uint16)), backend


def test_kernels_are_frozen_data():
    assert kernels.softmax(1, 0.5) == kernels.softmax(1, 0.5)
    assert hash(kernels.split_heads(8)) == hash(kernels.split_heads(8))
    with pytest.raises(AttributeError):
        kernels.softmax().axis = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("size", "most", "block"),
    [(128, 9, 8), (1536, 848, 768), (1537, 848, 769), (7, 100, 7), (1, 1, 1), (97, 50, 49), (5, 0, 1)],
)
def test_even_blocks(size, most, block):
    assert even(size, most) == block


def test_even_blocks_keep_to_words():
    assert even(1537, 848, 16) == 784
    assert even(20, 15, 16) == 10
    assert filled((6, 1537), 848) == (1, 784)
    assert filled((6, 8), 100) == (6, 8)
    assert filled((6, 8), 20) == (2, 8)
    assert filled((6, 8, 5), 20, {1: 8}) == (3, 8, 5)


def test_dividing_blocks_and_segments():
    assert dividing(5003, 400) == 1
    assert dividing(5000, 426) == 250
    assert segments(10, 4) == (Segment(0, 2, 4), Segment(8, 1, 2))
    assert segments(3, 4) == (Segment(0, 1, 3),)
    assert segments(8, 4) == (Segment(0, 2, 4),)


@pytest.mark.parametrize(
    ("a", "b", "block"),
    [
        ((8, 12, 128, 32), (8, 12, 128, 32), (64, 128)),
        ((8, 12, 128, 128), (8, 12, 32, 128), (64, 32)),
        ((8, 3, 32), (8, 5, 32), (4, 8)),
        ((64, 32), (128, 32), (64, 16)),
    ],
)
def test_blocks_of_products_are_narrow_only_where_units_would_be_idle(a, b, block):
    graph = graph_of(kernels.MatrixProduct(), f16(*a), f16(*b))
    stores = [s for s in graph.stages if isinstance(s.kind, Store)]
    assert {graph.buffers[s.ins[0]].block for s in stores} == {block}
    assert len(stores) > 1
