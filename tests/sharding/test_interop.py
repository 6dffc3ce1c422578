"""Values and specs beside numpy, JAX and PyTorch; `make test-interop` installs the last two for what needs them."""

import os
from itertools import product

import numpy as np
import pytest

from meshwright.errors import SplitError
from meshwright.ir.pool import Pool
from meshwright.ir.spec import COPIED, PARTIAL, Spec
from meshwright.sharding import MeshGroup
from meshwright.sharding.interop import from_partition_spec, from_placements, to_partition_spec, to_placements
from sharding.samples import CARD, GRID, partial, real_group, uneven

S0, S1 = Spec.on(0), Spec.on(1)
VALUES = np.arange(16.0 * 24).reshape(16, 24)
NAMES = ("rows", "columns")
WHOLE = list(product((COPIED, S0, S1), repeat=2))


def needs(module):
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    return pytest.importorskip(module, reason=f"{module} is optional: make test-interop installs it")


# numpy and Python


def test_numpy_reads_whole_values():
    group = MeshGroup.open(CARD)
    for spec in (COPIED, S0, S1):
        value = group.put(VALUES, spec)
        assert np.asarray(value).dtype == np.float16
        assert np.array_equal(np.asarray(value), VALUES)
        assert np.array_equal(np.asarray(value, dtype=np.float64), VALUES)
        assert np.array_equal(np.from_dlpack(value), VALUES)
        assert value.__dlpack_device__() == (1, 0)
    with pytest.raises(ValueError, match="reading it always copies"):
        np.asarray(value, copy=False)
    with pytest.raises(BufferError, match="exporting it always copies"):
        np.from_dlpack(value, copy=False)


def test_python_reads_single_numbers():
    group = MeshGroup.open(CARD)
    value = group.copy(2.5)
    assert (float(value), int(value), bool(value), value.item()) == (2.5, 2, True, 2.5)
    assert group.copy(np.array([[7]])).item() == 7
    with pytest.raises(TypeError):
        float(group.copy([1.0, 2.0]))
    with pytest.raises(ValueError, match="ambiguous"):
        bool(group.copy([1.0, 2.0]))


@pytest.mark.parametrize("pool", [Pool.SUM, Pool.MAX, Pool.MIN, Pool.PROD])
@pytest.mark.parametrize("read", [np.asarray, np.from_dlpack, float, int, bool, lambda v: v.item(), lambda v: v == v])
def test_a_partial_is_read_by_nothing(read, pool):
    group = real_group()
    value = partial(group, uneven((1, 1), 4), pool)
    fetched = group.stats()
    with pytest.raises(SplitError):
        read(value)
    assert group.stats() == fetched


def test_values_are_keys_by_identity():
    group = MeshGroup.open(CARD, 1)
    a, b = group.copy(1.0), group.copy(1.0)
    assert len({a, b, a}) == 2


# PartitionSpec without JAX: anything that iterates like one


class Partition(tuple):
    unreduced = frozenset()
    reduced = frozenset()

    def __new__(cls, *entries, unreduced=(), reduced=()):
        made = super().__new__(cls, entries)
        made.unreduced, made.reduced = frozenset(unreduced), frozenset(reduced)
        return made


def test_partition_specs_that_have_no_meaning_here():
    assert from_partition_spec(Partition("columns", "rows"), NAMES) == (S1, S0)
    assert from_partition_spec(Partition(None, ("rows", "columns")), NAMES) == (S1, S1)
    assert from_partition_spec(Partition("rows", unreduced={"columns"}), NAMES) == (S0, PARTIAL)
    for spec, words in [
        (Partition("depth"), "names mesh axis 'depth', and the mesh has rows, columns"),
        (Partition("rows", "rows"), "names mesh axis 'rows' twice; it is split 0 already"),
        (Partition("rows", unreduced={"rows"}), "twice; it is split 0 already"),
        (Partition(("columns", "rows")), "the first one is cut first"),
        (Partition(object()), "splits are stated here"),
        (Partition("rows", reduced={"columns"}), "gradients"),
    ]:
        with pytest.raises(SplitError, match=words):
            from_partition_spec(spec, NAMES)


# JAX


@pytest.mark.parametrize("specs", WHOLE, ids=str)
def test_jax_puts_the_same_elements_on_the_same_ranks(specs):
    jax = needs("jax")
    from jax.sharding import Mesh, NamedSharding

    group = MeshGroup.grid(GRID, 2, 4)
    value = group.put(VALUES, specs)
    spec = to_partition_spec(specs, NAMES, rank=2)
    assert from_partition_spec(spec, NAMES) == specs
    devices = np.array(jax.devices()[:8]).reshape(2, 4)
    theirs = jax.device_put(VALUES.astype(np.float16), NamedSharding(Mesh(devices, NAMES), spec))
    shards = {shard.device.id: np.asarray(shard.data) for shard in theirs.addressable_shards}
    for rank, part in enumerate(value.parts):
        assert np.array_equal(shards[devices.reshape(-1)[rank].id], part.numpy())
    assert np.array_equal(np.asarray(jax.dlpack.from_dlpack(value)), VALUES)
    assert np.array_equal(np.asarray(jax.numpy.asarray(np.asarray(value))), VALUES)


def test_jax_partial_sums_are_unreduced_axes():
    needs("jax")
    spec = to_partition_spec((S1, PARTIAL), NAMES, rank=2)
    assert spec.partitions == (None, "rows") and spec.unreduced == {"columns"}
    assert from_partition_spec(spec, NAMES) == (S1, PARTIAL)
    with pytest.raises(SplitError, match="JAX's unreduced axes are sums"):
        to_partition_spec((Spec(partial=Pool.MAX), COPIED), NAMES, rank=2)
    with pytest.raises(SplitError, match="name one of 0 to 1"):
        to_partition_spec((Spec.on(2), COPIED), NAMES, rank=2)
    with pytest.raises(SplitError, match="one name for each axis"):
        to_partition_spec((S0,), NAMES, rank=2)
    from jax.sharding import PartitionSpec

    with pytest.raises(SplitError, match="splits are stated here"):
        from_partition_spec(PartitionSpec(PartitionSpec.UNCONSTRAINED), NAMES)


# PyTorch

POOLED = [Spec(partial=pool) for pool in (Pool.SUM, Pool.MAX, Pool.MIN, Pool.PROD)]


@pytest.mark.parametrize("specs", [*WHOLE, *product((COPIED, S0), POOLED), *product(POOLED, (COPIED, S1))], ids=str)
def test_torch_placements_there_and_back(specs):
    needs("torch")
    assert from_placements(to_placements(specs)) == specs


@pytest.mark.parametrize("specs", WHOLE, ids=str)
def test_torch_puts_the_same_elements_on_the_same_ranks(specs):
    torch = needs("torch")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    group = MeshGroup.grid(GRID, 2, 4)
    value = group.put(VALUES, specs)
    whole = torch.from_dlpack(value)
    assert np.array_equal(whole.numpy(), VALUES)
    for rank, part in enumerate(value.parts):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=8)
        try:
            mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=NAMES)
            theirs = distribute_tensor(whole, mesh, to_placements(specs), src_data_rank=None)
            assert np.array_equal(theirs.to_local().numpy(), part.numpy())
        finally:
            torch.distributed.destroy_process_group()


def test_torch_placements_that_have_no_meaning_here():
    needs("torch")
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    assert from_placements([Shard(-1), Replicate()], rank=3) == (Spec.on(2), COPIED)
    with pytest.raises(SplitError, match="counted from the front here"):
        from_placements([Shard(-1)])
    with pytest.raises(SplitError, match="An average is a sum and a scale"):
        from_placements([Partial("avg")])
    with pytest.raises(SplitError, match="is not one of Shard, Replicate and Partial"):
        from_placements([_StridedShard(0, split_factor=2)])
    with pytest.raises(SplitError, match="PyTorch folds by"):
        to_placements([Spec(partial=Pool.ARGMAX)])
