"""Everything that a group of meshes can be asked for, on both backends: the same bits on every mesh."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import kernels
from meshwright.errors import PlacementError
from meshwright.ir.spec import COPIED, Spec
from meshwright.sharding import MeshGroup
from programs.cases import MORE, any_bits, halves, on_both
from programs.refused import reason
from sharding.samples import CARD, CHAIN, GRID, RUNS, STAR

FEW = settings(deadline=None, max_examples=8 * MORE)
COUNTS = [1, 2, 3, 4]


def rows_of(count, *odd):
    """A shape whose every axis divides by a number of meshes and by little else."""
    return tuple(count * size for size in odd)


# Products.


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("spread", ["rows of a", "rows of b", "contraction"])
def test_products(count, spread):
    a, b = halves(1, *rows_of(count, 7, 35)), halves(2, *rows_of(count, 9, 35))

    def call(group):
        match spread:
            case "rows of a":
                return group.matmul(group.split(a, 0), group.copy(b))
            case "rows of b":
                return group.matmul(group.copy(a), group.split(b, 0))
            case _:
                return group.matmul(group.split(a, 1), group.split(b, 1))

    on_both(call, meshes=count)


@pytest.mark.parametrize("meshes", [run for run in RUNS if len(run) > 1], ids=str)
def test_sums_along_chains(meshes):
    count = len(meshes)
    a, b = halves(1, 23, 37 * count), halves(2, 41, 37 * count)
    on_both(lambda group: group.matmul_chain_reduce(group.split(a, 1), group.split(b, 1)), meshes=meshes)


@pytest.mark.parametrize(
    ("machine", "meshes", "root"),
    [(CARD, (0, 1), 1), (CARD, (0, 1), 0), (CARD, (0, 1, 3), 1), (STAR, (0, 3, 2), 1), (STAR, (2, 0, 1, 3), 3)],
    ids=lambda value: value.name if hasattr(value, "name") else str(value),
)
def test_sums_into_one_mesh(machine, meshes, root):
    count = len(meshes)
    a, b = halves(1, 23, 37 * count), halves(2, 41, 37 * count)
    on_both(lambda group: group.matmul_reduce(group.split(a, 1), group.split(b, 1), root=root), machine, meshes)


def test_sums_of_many_instances():
    """More tiles than clusters: instances follow each other through the accumulators."""
    a, b = halves(1, 100, 128), halves(2, 700, 128)
    on_both(lambda group: group.matmul_chain_reduce(group.split(a, 1), group.split(b, 1)), meshes=2)


@FEW
@given(st.data())
def test_sums_along_chains_of_any_shape_and_tile(data):
    meshes = data.draw(st.sampled_from([run for run in RUNS if len(run) > 1]))
    m, n = (data.draw(st.integers(1, size)) for size in (40, 60))
    k = len(meshes) * data.draw(st.integers(1, 100))
    blocks = data.draw(st.integers(1, 4))
    tile = data.draw(st.sampled_from([None, (-(-m // 4) * 4, -(-n // 4) * 4, 32 * blocks)]))
    a, b = halves(1, m, k), halves(2, n, k)
    on_both(lambda group: group.matmul_chain_reduce(group.split(a, 1), group.split(b, 1), tile=tile), meshes=meshes)


@FEW
@given(st.sampled_from([run for run in RUNS if len(run) > 1]), st.integers(1, 20), st.integers(0, 999))
def test_sums_of_every_kind_of_number(meshes, m, seed):
    """The smallest and the largest that a group takes, in one sum on several meshes."""
    a, b = (any_bits(seed, rows, 64 * len(meshes)) for rows in (m, 24))
    a, b = (np.where(np.isfinite(x), x, np.float16(65504)) for x in (a, b))
    on_both(lambda group: group.matmul_chain_reduce(group.split(a, 1), group.split(b, 1)), meshes=meshes)


def test_sums_into_a_mesh_that_no_drain_can_name_are_refused():
    """Eight meshes: those of the first row are named, those of the second aren't."""
    a, b = halves(1, 8, 128), halves(2, 12, 128)
    chain = lambda group: group.matmul_chain_reduce(group.split(a, 1), group.split(b, 1))  # noqa: E731
    on_both(chain, GRID, (0, 1, 2, 3))
    with pytest.raises(PlacementError) as refusal:
        chain(MeshGroup.open(GRID, (4, 5), backend="simulator"))
    assert "mesh 5 of grid-2x4, and a DRAIN names its mesh in two bits: 0 to 3" in str(refusal.value)
    assert "more than four meshes" in (reason(str(refusal.value)) or "")


# Elements and rows.


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_elements(count, axis):
    x, other = halves(1, *rows_of(count, 5, 27)), halves(2, 27 * count)

    def call(group):
        value = group.copy(x) if axis is None else group.split(x, axis)
        bias = group.split(other, 0) if axis == 1 else group.copy(other)
        return group.each(kernels.gelu, group.each(kernels.add, value, bias))

    on_both(call, meshes=count)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    "kernel", [kernels.softmax(), kernels.reduce("max", 1), kernels.reduce("mean", 1, keep=True)], ids=lambda k: k.name
)
def test_rows(count, kernel):
    x = halves(1, 3 * count, 101)
    on_both(lambda group: group.each(kernel, group.split(x, 0)), meshes=count)


@pytest.mark.parametrize("count", COUNTS)
def test_norms_embeddings_and_moves(count):
    table, gamma = halves(1, 13, 24 * count), halves(2, 24 * count)
    indices = np.random.default_rng(3).integers(0, 13, (count, 5)).astype(np.int32)

    def call(group):
        rows = group.each(kernels.embedding, group.copy(table), group.split(indices, 0))
        normed = group.each(kernels.layer_norm(), rows, group.copy(gamma), group.copy(gamma))
        return group.each(kernels.split_heads(8), normed)

    on_both(call, meshes=count)


@pytest.mark.parametrize("count", COUNTS)
def test_attention_over_heads(count):
    shape = (2, 9, 32 * 12)
    values = [halves(s, *shape) for s in range(3)]
    on_both(lambda group: kernels.attention(32).through(group.each, *(group.split(x, 2) for x in values)), meshes=count)


# Collectives.

PARTIALS = {
    "sum": lambda group, x: group.matmul(group.split(x, 1), group.split(x, 1)),
    "max": lambda group, x: group.each(kernels.reduce("max", 1), group.split(x, 1)),
    "min": lambda group, x: group.each(kernels.reduce("min", 1), group.split(x, 1)),
}


@pytest.mark.parametrize("pool", PARTIALS)
@pytest.mark.parametrize("count", COUNTS[1:])
@pytest.mark.parametrize("what", ["reduce", "all_reduce", "reduce_scatter"])
def test_folds_of_partials(count, pool, what):
    x = halves(1, *rows_of(count, 5, 35))

    def call(group):
        value = PARTIALS[pool](group, x)
        match what:
            case "reduce":
                return group.reduce(value, count - 1)
            case "all_reduce":
                return group.all_reduce(value)
            case _:
                return group.reduce_scatter(value, 0)

    on_both(call, meshes=count)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("before", "after"), list(permutations((None, 0, 1), 2)))
def test_reshard(count, before, after):
    x = halves(1, *rows_of(count, 3, 11))

    def call(group):
        value = group.copy(x) if before is None else group.split(x, before)
        return group.reshard(value, COPIED if after is None else Spec.on(after))

    on_both(call, meshes=count)


@pytest.mark.parametrize("count", COUNTS[1:])
@pytest.mark.parametrize(
    "call",
    [
        lambda group, x: group.all_gather(group.split(x, 1)),
        lambda group, x: group.broadcast(group.on_rank(group.copy(x), len(group) - 1)),
        lambda group, x: group.broadcast(group.on_rank(group.copy(x), 0)),
        lambda group, x: group.shift(group.split(x, 0), 1),
        lambda group, x: group.shift(group.split(x, 0), -2),
        lambda group, x: group.all_to_all(group.split(x, 0), 1),
        lambda group, x: group.reshape(group.split(x, 0), (x.shape[0], x.shape[1] // len(group), len(group))),
    ],
    ids=["all_gather", "broadcast from the end", "broadcast", "shift", "shift back", "all_to_all", "reshape"],
)
def test_moves(count, call):
    """Of values that the host sent, and of ones that clusters left on the card in their own order."""
    x, w = halves(1, *rows_of(count, 3, 22)), halves(2, *rows_of(count, 5, 22))
    on_both(lambda group: call(group, x), meshes=count)

    def of_a_product(group):
        product = group.matmul(group.copy(x), group.copy(w))
        return group.all_gather(group.shift(group.reshard(product, Spec.on(0)), 1))

    on_both(of_a_product, meshes=count)


@pytest.mark.parametrize("rows", [COPIED, Spec.on(0)], ids=str)
def test_ranks_on_a_grid(rows):
    """Two lines of two meshes: sums of each line's contributions, with rows of the result spread over the lines."""
    x, w = halves(1, 20, 70), halves(2, 12, 70)

    def call(group):
        product = group.matmul(group.put(x, [rows, Spec.on(1)]), group.put(w, [COPIED, Spec.on(1)]))
        return group.all_reduce(product, along=1)

    on_both(call, meshes=(0, 1, 2, 3), grid=(2, 2))


def test_a_value_goes_through_every_order_and_back():
    """Product, elements, product, a sum over meshes, norm, product: relaid each time, and never wrong."""
    x, w1, w2, gamma = halves(1, 13, 96), halves(2, 192, 96), halves(3, 48, 192), halves(4, 48)

    def call(group):
        hidden = group.each(kernels.gelu, group.matmul(group.copy(x), group.split(w1, 0)))
        total = group.matmul_chain_reduce(hidden, group.split(w2, 1))
        back = group.broadcast(group.each(kernels.rms_norm(), total, group.on_rank(group.copy(gamma), 3)))
        return group.matmul(back, group.copy(w2[:, :48]))

    group, _ = on_both(call)
    stats = group.stats()
    assert sum(device.relayouts for device in stats.devices.values()) >= 6
    assert set(stats.crossed) >= set(pairwise(CHAIN))
