"""Memory layouts: positions by formulas written here, both backends, ragged shapes, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.numerics import mxfp7
from meshwright.targets.ktpu import layout as layouts
from meshwright.targets.ktpu.layout import (
    AccumulatorLayout,
    FlatLayout,
    Layout,
    LayoutError,
    OperandLayout,
    QuantisedLayout,
    ResultLayout,
)

GOLDEN = Path(__file__).parents[1] / "golden"
BACKENDS = ("numpy", "scalar") if layouts._module() is not None else ("numpy",)
backends = pytest.mark.parametrize("backend", BACKENDS)


def bits(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 1 << 16, shape, dtype=np.uint16)


def up(value, multiple):
    return -(-value // multiple) * multiple


def operand_byte(layout, i, j):
    """(row tile, K chunk, group, block, 4, 32), spelt out."""
    chunks = up(layout.k, 32 * layout.blocks) // (32 * layout.blocks)
    row_tile, group, row = i // (4 * layout.groups), i // 4 % layout.groups, i % 4
    chunk, block, k = j // (32 * layout.blocks), j // 32 % layout.blocks, j % 32
    entry = ((row_tile * chunks + chunk) * layout.groups + group) * layout.blocks + block
    return entry * 256 + row * 64 + k * 2


def result_byte(layout, i, j):
    """(gi, gj, gm, gn, 4, 4), spelt out."""
    (_, columns), (gm, gn) = layout.grid, layout.tile
    instance = i // (4 * gm) * columns + j // (4 * gn)
    tile = instance * gm * gn + i // 4 % gm * gn + j // 4 % gn
    return tile * 32 + i % 4 * 8 + j % 4 * 2


small = st.integers(1, 5)
operands = st.builds(OperandLayout, st.integers(1, 50), st.integers(1, 200), small, small)
results = st.builds(
    ResultLayout.over, st.integers(1, 70), st.integers(1, 70), st.tuples(st.integers(1, 5), st.integers(1, 5))
)
flats = st.builds(FlatLayout, st.integers(1, 20), st.integers(1, 20))
half_layouts = st.one_of(operands, results, flats)


def check_positions(layout, byte_of, backend):
    x = bits(layout.shape)
    image = layout.pack(x, backend=backend)
    expected = np.zeros(layout.nbytes // 2, np.uint16)
    for i in range(layout.shape[0]):
        for j in range(layout.shape[1]):
            byte = byte_of(layout, i, j)
            expected[byte // 2] = x[i, j]
            assert layout.bit(i, j) == 8 * byte
    assert np.array_equal(image.view(np.uint16), expected)


@backends
@given(layout=operands)
@settings(max_examples=25, deadline=None)
def test_operand_positions_and_zero_padding(backend, layout):
    check_positions(layout, operand_byte, backend)


@backends
@given(layout=results)
@settings(max_examples=25, deadline=None)
def test_result_positions_and_zero_padding(backend, layout):
    check_positions(layout, result_byte, backend)


@backends
@given(layout=flats)
@settings(max_examples=15, deadline=None)
def test_flat_positions(backend, layout):
    check_positions(layout, lambda flat, i, j: (i * flat.columns + j) * 2, backend)


@backends
@given(layout=half_layouts, seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_unpack_gives_back_what_pack_took(backend, layout, seed):
    x = bits(layout.shape, seed)
    image = layout.pack(x.view(np.float16), backend=backend)
    assert image.dtype == np.uint8
    assert image.size == layout.nbytes
    for form in (image, image.tobytes(), bytearray(image), memoryview(image)):
        back = layout.unpack(form, backend=backend)
        assert back.dtype == np.float16
        assert np.array_equal(back.view(np.uint16), x)


@given(layout=half_layouts, seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_backends_agree_on_any_image(layout, seed):
    image = np.random.default_rng(seed).integers(0, 256, layout.nbytes, dtype=np.uint8)
    numpy, *others = (layout.unpack(image, backend=backend).view(np.uint16) for backend in BACKENDS)
    for other in others:
        assert np.array_equal(numpy, other)


@backends
def test_a_strided_matrix_is_taken_as_it_reads(backend):
    x = bits((64, 20))[:, ::2].T
    layout = OperandLayout(10, 64, 1, 1)
    assert np.array_equal(layout.pack(x, backend=backend), layout.pack(x.copy(), backend=backend))


def test_one_fill_streams_one_run():
    layout = OperandLayout(40, 300, groups=2, blocks=3)
    assert layout.fill_bytes == 2 * 3 * 256
    for tile in range(5):
        for chunk in range(4):
            assert layout.fill_offset(tile, chunk) == operand_byte(layout, tile * 8, chunk * 96)
    with pytest.raises(LayoutError, match=r"^OperandLayout: run \(0, 4\) is outside \(5, 4\)$"):
        layout.fill_offset(0, 4)


def test_one_instance_drains_one_run():
    layout = ResultLayout.over(30, 50, (2, 3))
    assert (layout.grid, layout.padded, layout.instance_bytes) == ((4, 5), (32, 60), 192)
    for i in range(4):
        for j in range(5):
            assert layout.instance_offset(i, j) == (i * 5 + j) * 192 == result_byte(layout, i * 8, j * 12)
    with pytest.raises(LayoutError, match=r"^ResultLayout: instance \(4, 0\) is outside \(4, 5\)$"):
        layout.instance_offset(4, 0)


def test_a_grid_may_have_more_instances_than_the_result_needs():
    layout = ResultLayout(4, 4, grid=(2, 2), tile=(1, 1))
    x = bits((4, 4))
    image = layout.pack(x).view(np.uint16)
    assert np.array_equal(image, np.concatenate([x.reshape(-1), np.zeros(48, np.uint16)]))


@backends
def test_a_full_bank_of_a_real_size(backend):
    layout = OperandLayout(129, 1000, groups=16, blocks=8)
    x = bits(layout.shape)
    whole = np.zeros((up(129, 64), up(1000, 256)), np.uint16)
    whole[:129, :1000] = x
    expected = whole.reshape(3, 16, 4, 4, 8, 32).transpose(0, 3, 1, 4, 2, 5)
    image = layout.pack(x, backend=backend)
    assert np.array_equal(image.view(np.uint16), expected.reshape(-1))
    assert np.array_equal(layout.unpack(image, backend=backend).view(np.uint16), x)


# Quantised entries.


@backends
@given(st.tuples(small, small), st.tuples(small, small))
@settings(max_examples=25, deadline=None)
def test_quantised_entries_lie_where_their_values_would(backend, tile, outer):
    (groups, blocks), (rows, columns) = tile, outer
    layout = QuantisedLayout(groups * rows, blocks * columns, groups, blocks)
    words = np.random.default_rng(0).integers(0, 256, layout.shape, dtype=np.uint8)
    image = layout.pack(words, backend=backend)
    wide = OperandLayout(4 * groups * rows, 32 * blocks * columns, groups, blocks)
    for i in range(groups * rows):
        for j in range(blocks * columns):
            byte = operand_byte(wide, 4 * i, 32 * j) // 2
            assert layout.bit(i, j) == 8 * byte
            assert np.array_equal(image[byte : byte + 128], words[i, j].reshape(-1))
    assert np.array_equal(layout.unpack(image, backend=backend), words)


@backends
def test_golden_entries_are_laid_out(backend):
    golden = np.load(GOLDEN / "quantise.npz")
    words = mxfp7.pack_words(mxfp7.quantise(golden["x_fp16_bits"]))
    assert np.array_equal(words[:, 0], golden["packed_words_a"])
    layout = QuantisedLayout(len(words), 1, groups=9, blocks=1)
    assert np.array_equal(layout.pack(words, backend=backend), golden["packed_words_a"].reshape(-1))


def test_quantised_entries_have_no_padding():
    zeros = mxfp7.pack_words(mxfp7.quantise(np.zeros((4, 32), np.float16)))
    assert zeros.any()  # so that zero bytes would not be entries of zeros
    with pytest.raises(LayoutError) as refused:
        QuantisedLayout(3, 2, groups=2, blocks=2)
    assert str(refused.value) == (
        "QuantisedLayout: 3 x 2 entries are not whole tiles of 2 x 2; pad the operand with zeros before mxfp7.quantise"
    )


# Accumulator words.


def link_order(codes):
    """Sub-tile by sub-tile: element (i, j) at bit 22 * (4 * i + j) of a number, in two granules of 32 bytes."""
    image = b""
    for g in range(codes.shape[0] // 4):
        for h in range(codes.shape[1] // 4):
            tile = codes[4 * g : 4 * g + 4, 4 * h : 4 * h + 4]
            number = sum(int(tile[i, j]) << 22 * (4 * i + j) for i in range(4) for j in range(4))
            low, high = number & (1 << 256) - 1, number >> 256
            assert high < 1 << 96
            image += low.to_bytes(32, "little") + high.to_bytes(32, "little")
    return image


@backends
@given(gm=small, gn=small, seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_accumulator_words_in_link_order(backend, gm, gn, seed):
    layout = AccumulatorLayout(gm, gn)
    codes = np.random.default_rng(seed).integers(0, 1 << 22, layout.shape, dtype=np.uint32)
    image = layout.pack(codes, backend=backend)
    assert image.tobytes() == link_order(codes)
    assert np.array_equal(layout.unpack(image, backend=backend), codes)
    whole = int.from_bytes(image.tobytes(), "little")
    for i, j in np.ndindex(layout.shape):
        assert whole >> layout.bit(i, j) & (1 << 22) - 1 == codes[i, j]


@backends
def test_golden_accumulator_codes_survive_the_link(backend):
    tiles = np.load(GOLDEN / "crossmesh.npz")["add_tile_fp22"].astype(np.uint32)
    codes = tiles.reshape(-1)[: tiles.size // 16 * 16].reshape(-1, 4)
    layout = AccumulatorLayout(len(codes) // 4, 1)
    assert layout.pack(codes, backend=backend).tobytes() == link_order(codes)
    assert np.array_equal(layout.unpack(layout.pack(codes, backend=backend), backend=backend), codes)


@backends
@pytest.mark.parametrize("place", [(0, 0), (3, 3), (7, 11)])
def test_a_code_of_23_bits_is_refused(backend, place):
    codes = np.full((8, 12), (1 << 22) - 1, np.uint32)
    layout = AccumulatorLayout(2, 3)
    layout.pack(codes, backend=backend)
    codes[place] = 1 << 22
    with pytest.raises(LayoutError, match=r"^AccumulatorLayout: code 0x400000 has more than the 22 bits of FP22$"):
        layout.pack(codes, backend=backend)


@backends
@pytest.mark.parametrize("byte", [44, 47, 48, 63, 108, 127])
def test_bits_past_a_sub_tile_are_refused(backend, byte):
    layout = AccumulatorLayout(1, 2)
    image = layout.pack(np.full((4, 8), (1 << 22) - 1, np.uint32), backend=backend)
    image[byte] = 128
    with pytest.raises(LayoutError) as refused:
        layout.unpack(image, backend=backend)
    assert str(refused.value) == (
        "AccumulatorLayout: bits are set past the 352 of a sub-tile; these are no accumulator words"
    )


# Refusals that all share.


@pytest.mark.parametrize(
    ("layout", "array", "message"),
    [
        (
            OperandLayout(4, 32, 1, 1),
            np.zeros((4, 31), np.float16),
            "OperandLayout: got float16[4, 31]; it is for float16 or uint16[4, 32]",
        ),
        (
            ResultLayout.over(4, 4, (1, 1)),
            np.zeros((4, 4), np.float32),
            "ResultLayout: got float32[4, 4]; it is for float16 or uint16[4, 4]",
        ),
        (FlatLayout(2, 3), np.zeros(6, np.uint16), "FlatLayout: got uint16[6]; it is for float16 or uint16[2, 3]"),
        (
            AccumulatorLayout(1, 1),
            np.zeros((4, 4), np.int32),
            "AccumulatorLayout: got int32[4, 4]; it is for uint32[4, 4]",
        ),
        (
            QuantisedLayout(1, 1, 1, 1),
            np.zeros((1, 1, 4, 32), np.int8),
            "QuantisedLayout: got int8[1, 1, 4, 32]; it is for uint8[1, 1, 4, 32]",
        ),
    ],
)
def test_another_matrix_is_refused(layout, array, message):
    with pytest.raises(LayoutError) as refused:
        layout.pack(array)
    assert str(refused.value) == message


LAYOUTS: list[Layout] = [
    OperandLayout(5, 33, 2, 1),
    ResultLayout.over(5, 5, (1, 1)),
    FlatLayout(2, 3),
    AccumulatorLayout(1, 1),
    QuantisedLayout(1, 1, 1, 1),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: type(layout).__name__)
@pytest.mark.parametrize("more", [-1, 1])
def test_an_image_of_another_size_is_refused(layout, more):
    layout.unpack(bytes(layout.nbytes))
    with pytest.raises(LayoutError) as refused:
        layout.unpack(bytes(layout.nbytes + more))
    assert str(refused.value) == (
        f"{type(layout).__name__}: an image of {layout.nbytes + more} bytes; this layout's has {layout.nbytes}"
    )


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: type(layout).__name__)
def test_a_place_outside_is_refused(layout):
    rows, columns = layout.shape[:2]
    layout.bit(rows - 1, columns - 1)
    for place in ((rows, 0), (0, columns), (-1, 0)):
        with pytest.raises(LayoutError, match=rf" \({place[0]}, {place[1]}\) is outside \({rows}, {columns}\)$"):
            layout.bit(*place)


def test_a_result_larger_than_its_grid_is_refused():
    ResultLayout(32, 60, (4, 5), (2, 3))
    with pytest.raises(LayoutError) as refused:
        ResultLayout(33, 60, (4, 5), (2, 3))
    assert str(refused.value) == "ResultLayout: 33 x 60 elements; 4 x 5 instances of 2 x 3 sub-tiles have 32 x 60"


@pytest.mark.parametrize(
    "make",
    [
        lambda: OperandLayout(4, 32, 0, 1),
        lambda: ResultLayout(4, 4, (0, 1), (1, 1)),
        lambda: ResultLayout.over(4, 4, (0, 1)),
        lambda: FlatLayout(0, 1),
        lambda: AccumulatorLayout(1, 0),
        lambda: QuantisedLayout(1, 1, 1, -1),
    ],
)
def test_sizes_below_one_are_refused(make):
    with pytest.raises(LayoutError, match=r"each is 1 at least$"):
        make()
