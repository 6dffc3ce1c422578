"""Values over meshes: what is put, what every rank has, what comes back, and pictures of it."""

import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest

import meshwright.kernels as kernels
from meshwright.errors import DeviceError, PlacementError, SplitError
from meshwright.ir.formats import ElementType
from meshwright.ir.spec import COPIED, PARTIAL, Spec
from meshwright.runtime.device import Card
from meshwright.sharding import MeshGroup, Sharded
from sharding.samples import CARD, CHAIN, GRID, RUNS, partial, pieces, real_grid, real_group, uneven

VALUES = np.arange(8.0 * 12).reshape(8, 12)


@pytest.mark.parametrize("meshes", RUNS, ids=str)
@pytest.mark.parametrize("axis", [None, 0, 1, -1, -2])
def test_every_rank_has_its_own_and_all_come_back(meshes, axis):
    if axis in (0, -2) and len(meshes) == 3:
        meshes = meshes[:2]
    group = MeshGroup.open(CARD, meshes)
    held = group.copy(VALUES, "x") if axis is None else group.split(VALUES, axis, "x")
    spec = COPIED if axis is None else Spec.on(axis, 2)
    assert isinstance(held, Sharded)
    assert (held.shape, held.spec, held.meshes, held.name) == ((8, 12), spec, meshes, "x")
    assert held.local == spec.local((8, 12), len(meshes)) == held.part(0).shape
    assert held.parts == tuple(held.part(rank) for rank in range(len(meshes)))
    assert [part.device.mesh for part in held.parts] == list(meshes)
    for piece, place in zip(pieces(held), spec.slices((8, 12), len(meshes)), strict=True):
        assert np.array_equal(piece, VALUES[place])
    assert np.array_equal(held.numpy(), VALUES) and held.numpy().dtype == np.float16
    assert np.array_equal(group.gather(held), VALUES)
    into = np.empty((8, 12), np.float16)
    assert group.gather(held, into=into) is into and np.array_equal(into, VALUES)


def test_element_types():
    group = MeshGroup.open(CARD, 2)
    assert group.copy([1, 2]).format is ElementType.I32
    assert group.copy(np.array([1, 2], np.uint8)).format is ElementType.I32
    assert group.copy([1.0, 2.0]).format is ElementType.F16
    assert group.copy(np.float32([1, 2])).format is ElementType.F16
    assert group.copy(1.0009765625).numpy() == np.float16(1.0009765625)
    # Ties to even: 2049 lies between two halves.
    assert group.copy(2049.0).numpy() == 2048.0
    with pytest.raises(SplitError, match="a value of nan doesn't fit f16"):
        group.copy([1.0, float("nan")])


@pytest.mark.parametrize(("shape", "axis"), [((0, 4), 0), ((4, 0), 0), ((0,), 0), ((2, 1, 4), 2)])
def test_sizes_that_are_special(shape, axis):
    group = MeshGroup.open(CARD)
    held = group.split(np.zeros(shape), axis) if shape[axis] % 4 == 0 else None
    assert held is not None and held.shape == shape and held.numpy().shape == shape


def test_negative_axes_mean_what_they_mean_in_numpy():
    group = real_group()
    value = VALUES.reshape(4, 2, 12)[:, :, :4]
    assert group.split(value, -1).spec == group.split(value, 2).spec == Spec.on(2)
    assert group.split(value, -3).spec == Spec.on(0) == Spec.on(-3, rank=3)
    assert group.reduce_scatter(partial(group, uneven((4, 8), 4), PARTIAL.partial), -1).spec == Spec.on(1)
    assert group.all_to_all(group.split(value, 0), -1).spec == Spec.on(2)
    for axis in (3, -4):
        with pytest.raises(SplitError, match=r"axes 0 to 2, or -3 to -1 from the back"):
            group.split(value, axis)
        with pytest.raises(SplitError, match=r"axes 0 to 2, or -3 to -1 from the back"):
            group.all_to_all(group.split(value, 0), axis)


def test_specs():
    assert Spec() == COPIED and COPIED.is_copied and not PARTIAL.is_copied
    assert Spec.on(1).local((4, 8), 4) == (4, 2)
    assert COPIED.local((4, 8), 4) == PARTIAL.local((4, 8), 4) == (4, 8)
    assert Spec.on(1).slices((4, 8), 2) == ((slice(0, 4), slice(0, 4)), (slice(0, 4), slice(4, 8)))
    assert [str(s) for s in (COPIED, PARTIAL, Spec.on(1))] == ["copied", "partial sum", "split 1"]


def test_chain_order_and_neighbours():
    group = MeshGroup.open(CARD)
    assert group.meshes == group.chain_order() == CHAIN and len(group) == 4
    for a, mesh in enumerate(CHAIN):
        for b, other in enumerate(CHAIN):
            assert group.adjacent(a, b) == ((mesh, other) in [*pairwise(CHAIN), *pairwise(CHAIN[::-1])])
    assert MeshGroup.open(CARD, [3, 1]).chain_order() == (1, 3)
    assert MeshGroup.open("ktpu-v13p", 2).meshes == (0, 1)


def test_groups_of_one_card_share_no_bytes():
    card = Card(CARD)
    group = MeshGroup(card, (0, 1), real_group(1).arithmetic)
    with pytest.raises(DeviceError, match="two devices on the same bytes"):
        MeshGroup(card, (1, 3), group.arithmetic)
    group.close()
    again = MeshGroup(card, (0, 1), group.arithmetic)
    assert np.array_equal(again.copy(VALUES).numpy(), VALUES)


def test_memory_is_given_back():
    group = MeshGroup.open(CARD)
    used = [device.used for device in group.stats().devices.values()]
    a, b = group.split(VALUES, 1), group.copy(VALUES)
    group.free(a, b)
    assert [device.used for device in group.stats().devices.values()] == used
    with pytest.raises(DeviceError, match="has been freed"):
        a.numpy()


def test_what_is_counted():
    group = MeshGroup.open(CARD)
    held = group.split(VALUES, 1)
    assert [d.sent for d in group.stats().devices.values()] == [8 * 3 * 2] * 4
    held.numpy()
    assert [d.fetched for d in group.stats().devices.values()] == [8 * 3 * 2] * 4
    group.each(lambda x: x * 2.0, held)
    assert group.stats().graphs_run == 1


def test_on_rank_and_put_like():
    group = real_group()
    value = group.copy(VALUES)
    one = group.on_rank(value, 2)
    assert one.meshes == (3,) and np.array_equal(one.numpy(), VALUES)
    other = group.put_like(one, VALUES * 2)
    assert other.meshes == (3,)
    assert np.array_equal(group.each(kernels.add, one, other).numpy(), VALUES * 3)
    assert group.stats().crossed == {}


PICTURE = """\
x f16[8, 12] split 1 on meshes 0, 1, 3, 2
  mesh 0  [:, 0:3]    axis 1 |########........................|
  mesh 1  [:, 3:6]    axis 1 |........########................|
  mesh 3  [:, 6:9]    axis 1 |................########........|
  mesh 2  [:, 9:12]   axis 1 |........................########|"""

ON_A_GRID = """\
f16[8, 12] split 0 x split 1 on meshes 0, 1, 4, 5
  mesh 0  [0:4, 0:6]    axis 0 |################................|   axis 1 |################................|
  mesh 1  [0:4, 6:12]   axis 0 |################................|   axis 1 |................################|
  mesh 4  [4:8, 0:6]    axis 0 |................################|   axis 1 |################................|
  mesh 5  [4:8, 6:12]   axis 0 |................################|   axis 1 |................################|"""

OF_A_PARTIAL = """\
f16[4] partial sum on meshes 3, 2
  mesh 3  [:]   a contribution to it, folded by sum
  mesh 2  [:]   a contribution to it, folded by sum"""

OF_A_COPY = """\
f16[8, 12] copied on meshes 0, 1
  mesh 0  [:, :]
  mesh 1  [:, :]"""


def test_text_pictures():
    assert MeshGroup.open(CARD).split(VALUES, 1, "x").picture() == PICTURE
    assert real_grid(2, 2).put(VALUES, (Spec.on(0), Spec.on(1))).picture() == ON_A_GRID
    group = real_group((3, 2))
    assert partial(group, uneven((4,), 2), PARTIAL.partial).picture() == OF_A_PARTIAL
    assert MeshGroup.open(CARD, 2).copy(VALUES).picture() == OF_A_COPY
    assert MeshGroup.open(CARD, 1).copy(3.0).picture() == "f16[] copied on mesh 0\n  mesh 0  []"


@pytest.mark.parametrize("specs", [(COPIED, COPIED), (Spec.on(0), Spec.on(1)), (Spec.on(1), COPIED), (Spec.on(0),) * 2])
def test_drawings(specs):
    value = real_grid(2, 4).put(np.zeros((8, 16)), specs, name="a < b & c")
    root = ET.fromstring(value.svg())
    space = "{http://www.w3.org/2000/svg}"
    assert root.find(f"{space}title").text == str(value)
    boxes = root.findall(f"{space}rect")
    outlines, filled = ([b for b in boxes if (b.get("fill") == "none") is want] for want in (True, False))
    assert len(outlines) == len(filled) == 8
    labels = [text.text for text in root.findall(f"{space}text")]
    assert [label.split()[1] for label in labels if label.startswith("mesh")] == list("01234567")
    # The filled parts have the share of the outline that the piece has of the value.
    for outline, part in zip(outlines, filled, strict=True):
        area = [float(b.get("width")) * float(b.get("height")) for b in (part, outline)]
        assert area[0] / area[1] == pytest.approx(np.prod(value.local) / 128, rel=0.02)


PLAN = """\
plan on ktpu-v13p meshes 0, 1, 3, 2: gelu f16[8, 64] split 1
  because x split 1 gives split 1 with no data moved between meshes; \
mesh 1 has no vector core, so mesh 3 works on its share
  0: mesh 0: gelu x@0 -> gelu@0
  1: mesh 1: copy x@1 -> x_of_1@3
  2: mesh 3 for mesh 1: gelu x_of_1@3 -> gelu@1  after 1
  3: mesh 3: gelu x@3 -> gelu@3
  4: mesh 2: gelu x@2 -> gelu@2
  over links: 1 to 3 256 bytes, 3 to 1 256 bytes"""

CHAIN_PLAN = """\
plan on ktpu-v13p mesh 1: matmul f16[16, 16] copied
  because a split 1, b split 1: a partial sum on every mesh, added in the accumulators along 0-1
  0: mesh 0: matmul, opens (tile 16 x 16 x 64) a@0, b@0 -> sum@0
  1: mesh 1: matmul, opens (tile 16 x 16 x 64) a@1, b@1 -> sum@1
  2: mesh 1: add into sum@0 -> sum@1  after 0, 1
  3: mesh 1: drain sum@1 -> matmul@1  after 1, 2
  over links: 0 to 1 1,024 bytes"""


def test_plans_say_who_runs_what_after_what_and_what_crosses():
    group = MeshGroup.open(CARD)
    assert str(group.plan_each(kernels.gelu, group.split(np.ones((8, 64)), 1))) == PLAN
    two = MeshGroup.open(CARD, 2)
    a = two.split(np.ones((16, 128)), 1)
    plan = two.plan_chain_reduce(a, a)
    assert str(plan) == CHAIN_PLAN
    assert (plan.spec, plan.shape, plan.tile, plan.opens) == (COPIED, (16, 16), (16, 16, 64), (0, 1))
    step = plan.steps[0]
    assert (step.rank, step.node, step.knobs) == (0, 0, {"tile": (16, 16, 64)})
    assert "over links: nothing" in str(group.plan_each(lambda x: x, group.on_rank(group.copy(VALUES), 0)))


def test_a_share_that_is_done_far_away_comes_back_hop_by_hop():
    """Of a row of a grid whose meshes 4 to 6 have no vector core only mesh 7 can do the work of mesh 5."""
    import msgspec

    meshes = tuple(
        msgspec.structs.replace(m, units=tuple(u for u in m.units if u.type != "VC")) if m.id in (4, 5, 6) else m
        for m in GRID.meshes
    )
    machine = msgspec.structs.replace(GRID, meshes=meshes)
    group = MeshGroup.grid(machine, 1, 4, meshes=(4, 5, 6, 7), arithmetic=real_group(1).arithmetic)
    plan = group.plan_each(lambda x: x + 1.0, group.split(np.arange(64.0), 0, along=1))
    assert plan.link_bytes() == {(4, 5): 32, (5, 6): 64, (6, 7): 96, (7, 6): 96, (6, 5): 64, (5, 4): 32}
    assert np.array_equal(group.run(plan).numpy(), np.arange(64.0) + 1)


def test_matmul_of_a_partial_may_be_summed_in_the_accumulators():
    """It is linear: what every rank has made of its contribution is a contribution to the product."""
    group = real_group()
    parts, b = uneven((8, 32), 4), np.arange(16.0 * 32).reshape(16, 32)
    result = group.matmul_chain_reduce(partial(group, parts, PARTIAL.partial), group.copy(b))
    assert np.array_equal(result.numpy(), sum(parts) @ b.T)


def test_the_group_without_a_vector_core_still_multiplies():
    group = MeshGroup.open(CARD, [1])
    a = group.copy(np.ones((8, 32)))
    assert group.matmul(a, a).shape == (8, 8)
    with pytest.raises(PlacementError, match="open a group that includes one"):
        group.each(kernels.gelu, a)


@pytest.mark.parametrize("spec", [Spec.on(0), COPIED])
def test_a_machine_with_other_floats(spec):
    """Two chips of a grid machine hold bf16: what is put is rounded to that, and a split changes no bit."""
    group = MeshGroup.open("grid-2x4x4")
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((32, 128)), rng.standard_normal((64, 128))
    held = group.put(w, spec)
    assert held.format is ElementType.BF16 and held.numpy().dtype.name == "bfloat16"
    result = group.each(kernels.gelu, group.matmul(group.copy(x), held))
    alone = MeshGroup.open("grid-2x4x4", 1)
    expected = alone.each(kernels.gelu, alone.matmul(alone.copy(x), alone.copy(w)))
    assert np.array_equal(result.numpy().view(np.uint16), expected.numpy().view(np.uint16))
    with pytest.raises(SplitError, match="doesn't fit bf16, which ends at"):
        group.copy(1e39)
