"""`GraphBuilder`, patterns and specs: what they make and what they refuse."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ir.samples import F16, F32, SAMPLES, rows, site
from meshwright.errors import GraphError, SplitError
from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.formats import ElementType
from meshwright.ir.pattern import Affine, Loop, box_fits_block
from meshwright.ir.pool import Pool
from meshwright.ir.records import Group, Precedence, Stage, Store
from meshwright.ir.spec import COPIED, PARTIAL, Spec


def test_names_tell_tensors_apart() -> None:
    g = GraphBuilder()
    g.tensor("x", (2,), F16, [0])
    with pytest.raises(GraphError) as error:
        g.tensor("x", (3,), F32, [0])
    assert str(error.value) == "a tensor called 'x' is there already; names tell tensors apart"


def test_a_multicast_needs_a_buffer_at_every_site() -> None:
    g = GraphBuilder()
    x = g.tensor("x", (4, 3), F32, [0])
    group = g.group(site(), (0, 0), (1, 1))
    three = [g.fifo(site(0, x, y), (2, 3), F32) for x, y in ((0, 0), (0, 1), (1, 0))]
    for receivers in (three, [*three, three[0]], [*three, g.fifo(site(0, 2, 0), (2, 3), F32)]):
        with pytest.raises(GraphError) as error:
            g.multicast(x, rows(2, 2, 3), group, receivers)
        assert str(error.value) == (
            f"multicast to g0: its rectangle has 4 sites, the {len(receivers)} receive buffers are not one "
            "at each of them"
        )


def test_precedences_are_kept_once() -> None:
    g = GraphBuilder()
    x, y = (g.tensor(name, (2,), F32, [0]) for name in "xy")
    a, b = g.fifo(site(), (2,), F32), g.fifo(site(), (2,), F32)
    first = g.load(x, whole((2,)), a)
    store = g.store(y, whole((2,)), a)
    second = g.load(y, whole((2,)), b, after=(store, store))
    g.store(g.tensor("z", (2,), F32, [0]), whole((2,)), b)
    g.precede(store, second)
    graph = g.graph()
    assert graph.precedences == (Precedence(store, second),)
    assert (first, graph.inputs(), graph.outputs()) == (0, (0,), (2,))
    assert graph.stored() == {1, 2} and graph.loaded() == {0, 1}


def test_what_a_graph_says_of_its_stages() -> None:
    chained = SAMPLES["chained_reduce"]()
    assert chained.tensor_id("part") == 2
    with pytest.raises(KeyError):
        chained.tensor_id("none")
    assert chained.chips_taking_part(chained.stages[6]) == (0, 1)
    assert [chained.rank_of(chained.stages[i]) for i in (0, 3)] == [0, 1]
    assert str(chained.site(chained.stages[5])) == "1:(0,0)"
    with pytest.raises(TypeError) as error:
        chained.rank_of(chained.stages[6])
    assert str(error.value) == "a AllReduce touches no piece of a tensor"
    with pytest.raises(GraphError) as refused:
        chained.site(Stage(Store(0, whole((2, 2)))))
    assert str(refused.value) == "a Store without buffers has no site"


def test_a_group_holds_its_sites_and_no_others() -> None:
    group = Group(site(1, 5, 5), (1, 0), (3, 1))
    assert [(s.x, s.y) for s in group.sites] == [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (3, 1)]
    for chip, x, y in product(range(3), range(6), range(4)):
        assert group.holds(site(chip, x, y)) == (site(chip, x, y) in group.sites)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(-3, 3), st.integers(-3, 3)), max_size=3))
def test_corners_count_the_innermost_loop_fastest(nest: list[tuple[int, int, int]]) -> None:
    pattern = Affine((5, -2), (1, 1), tuple(Loop(extent, (a, b)) for extent, a, b in nest))
    turns = list(product(*(range(extent) for extent, _, _ in nest)))
    assert pattern.num_blocks == len(turns)
    for t, turn in enumerate(turns):
        along = [sum(i * strides[axis] for i, (_, *strides) in zip(turn, nest, strict=True)) for axis in (0, 1)]
        assert pattern.corner(t) == (5 + along[0], -2 + along[1])


def test_boxes_fit_blocks_up_to_axes_of_size_one() -> None:
    assert box_fits_block((1, 4, 2), (4, 2)) and box_fits_block((4, 2), (4, 1, 2)) and box_fits_block((1,), ())
    assert not box_fits_block((2, 4), (4, 2)) and not box_fits_block((8,), (4, 2))


REFUSED_SPECS = [
    (
        lambda: Spec(axis=0, partial=Pool.SUM),
        "Spec(axis=0, partial=sum): a value is split or partial, not both. "
        "Use Spec.on(axis) for pieces of a value, or Spec(partial=pool) for contributions to one.",
    ),
    (
        lambda: Spec(axis=-1),
        "Spec(axis=-1): an axis is counted from the front here, since the rank isn't known. "
        "Use Spec.on(axis, rank=...) to count from the back.",
    ),
    (lambda: Spec.on(-3, rank=2), "Spec.on(-3, rank=2): there are only 2 axes."),
    (
        lambda: Spec(axis=2).local((4, 4), 2),
        "split on axis 2 of a value of shape (4, 4): it has axes 0 to 1 only.",
    ),
    (
        lambda: Spec(axis=0).local((6, 256), 4),
        "split of (6, 256) on axis 0 over 4 ranks: 6 is not a multiple of 4, and pieces must be equal. "
        "Pad axis 0 to 8 first, or copy the value.",
    ),
    (
        lambda: Spec(axis=0).local((10**400 + 1,), 2),
        f"split of ({10**400 + 1},) on axis 0 over 2 ranks: {10**400 + 1} is not a multiple of 2, and pieces must be "
        f"equal. Pad axis 0 to {10**400 + 2} first, or copy the value.",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSED_SPECS, ids=range(len(REFUSED_SPECS)))
def test_specs_that_can_not_be_honoured(make, message: str) -> None:
    with pytest.raises(SplitError) as error:
        make()
    assert str(error.value) == message


@given(st.integers(0, 2), st.integers(1, 4), st.tuples(*[st.integers(1, 3)] * 3))
def test_slices_put_together_are_the_whole(axis: int, count: int, sizes: tuple[int, ...]) -> None:
    shape = tuple(n * count if a == axis else n for a, n in enumerate(sizes))
    value = np.arange(np.prod(shape)).reshape(shape)
    spec = Spec.on(axis - 3, rank=3)
    assert (spec.axis, str(spec), spec.is_copied) == (axis, f"split {axis}", False)
    pieces = [value[part] for part in spec.slices(shape, count)]
    assert all(piece.shape == spec.local(shape, count) == sizes for piece in pieces)
    assert np.array_equal(np.concatenate(pieces, axis), value)
    for same in (COPIED, PARTIAL):
        assert all(np.array_equal(value[part], value) for part in same.slices(shape, count))
    assert (str(COPIED), str(PARTIAL), COPIED.is_copied, PARTIAL.is_copied) == ("copied", "partial sum", True, False)


def test_element_types() -> None:
    assert [(str(f), f.bits, f.in_memory, f.is_integer) for f in ElementType] == [
        ("f16", 16, True, False),
        ("bf16", 16, True, False),
        ("f32", 32, True, False),
        ("fp22", 22, False, False),
        ("e8m15", 24, False, False),
        ("i32", 32, True, True),
    ]
