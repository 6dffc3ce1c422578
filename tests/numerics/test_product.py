import exact_model
import numpy as np
import pytest
from hard_operands import FP16_KINDS, fp16_arrays, fp16_of_kind, fp22_arrays
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import NumericsError
from meshwright.numerics import fp22, mxfp7, product
from meshwright.numerics.backend import available


def model_of(blocks_a, blocks_b, start=None, pumped=False):
    """Codes of one product, value by value."""
    rows_a, rows_b = (
        [(row.reshape(-1, 32).tolist(), scales.tolist()) for row, scales in zip(one.q, one.scale, strict=True)]
        for one in (blocks_a, blocks_b)
    )
    resident = np.zeros((len(rows_a), len(rows_b)), dtype=np.uint32) if start is None else start
    return [
        [exact_model.output(*a, *b, start=int(resident[i, j]), pumped=pumped) for j, b in enumerate(rows_b)]
        for i, a in enumerate(rows_a)
    ]


def blocks_of(random, rows, k, scales):
    q = random.choice(np.r_[-64:64, -64, 63, -63, 0], (rows, k)).astype(np.int8)
    return mxfp7.Blocks(q, random.choice(scales, (rows, k // 32)).astype(np.uint8))


@st.composite
def products(draw):
    k = draw(st.integers(1, 130))
    return draw(fp16_arrays(3, k)), draw(fp16_arrays(2, k)), draw(st.none() | fp22_arrays(3, 2))


@given(products(), st.booleans())
def test_hard_bits_multiply_as_the_model_says(operands, pumped):
    a, b, start = operands
    expected = model_of(mxfp7.quantise(a, backend="numpy"), mxfp7.quantise(b, backend="numpy"), start, pumped)
    for name in available():
        codes = product.matmul(a, b, start=start, pumped=pumped, backend=name)
        assert codes.dtype == np.uint32
        assert codes.tolist() == expected
        bits = product.matmul_fp16(a, b, start=start, pumped=pumped, backend=name).view(np.uint16)
        assert bits.tolist() == [[exact_model.drain(code) for code in row] for row in expected]


@pytest.mark.parametrize("pumped", [False, True])
@pytest.mark.parametrize(
    "scales", [np.r_[0:256], np.r_[160:163, 168], np.r_[0, 255, 7, 248]], ids=["any", "near", "ends"]
)
def test_any_blocks_multiply_as_the_model_says(scales, pumped, backend):
    random = np.random.default_rng(11)
    a, b = blocks_of(random, 9, 224, scales), blocks_of(random, 7, 224, scales)
    codes = product.matmul(a, b, pumped=pumped, backend=backend)
    assert codes.tolist() == model_of(a, b, pumped=pumped)


@pytest.mark.parametrize("pumped", [False, True])
def test_the_largest_dot_product(pumped, backend):
    a = mxfp7.Blocks(np.full((8, 96), -64, np.int8), np.full((8, 3), 255, np.uint8))
    b = mxfp7.Blocks(
        np.where(np.arange(17)[:, None] % 2, 63, -64).repeat(96, 1).astype(np.int8), np.full((17, 3), 255, np.uint8)
    )
    assert product.matmul(a, b, pumped=pumped, backend=backend).tolist() == model_of(a, b, pumped=pumped)


@pytest.mark.parametrize("apart", range(11, 16))
def test_a_pumped_pair_is_aligned_until_nothing_is_left(apart, backend):
    # The largest product has 25 bits: shifted by 24 one is left, by 26 none.
    scales = np.array([[7, 7 + 8 * apart, 7 + 8 * apart, 7]], dtype=np.uint8)
    q = np.full((1, 128), -64, np.int8)
    q[:, 32:96] = np.arange(64) % 2
    a = mxfp7.Blocks(q, scales)
    for b in (a, mxfp7.Blocks(np.maximum(-q, -63).clip(-63, 63), scales)):
        assert product.matmul(a, b, pumped=True, backend=backend).tolist() == model_of(a, b, pumped=True)


def test_blocks_that_cancel_leave_plus_zero(backend):
    random = np.random.default_rng(12)
    half_a, half_b = blocks_of(random, 10, 64, np.r_[100:200]), blocks_of(random, 18, 64, np.r_[100:200])
    half_b = mxfp7.Blocks(np.maximum(half_b.q, -63), half_b.scale)
    for order in ((0, 1, 0, 1), (0, 0, 1, 1)):
        # a repeated, b once as it is and once negated.
        blocks = [np.s_[:, 0:32], np.s_[:, 32:64]]
        q_a = np.concatenate([half_a.q[blocks[k]] for k in order], axis=1)
        q_b = np.concatenate(
            [half_b.q[blocks[k]] * (1 if k not in order[:at] else -1) for at, k in enumerate(order)], axis=1
        )
        a, b = mxfp7.Blocks(q_a, half_a.scale[:, order]), mxfp7.Blocks(q_b, half_b.scale[:, order])
        codes = product.matmul(a, b, backend=backend)
        assert codes.tolist() == model_of(a, b)
        assert (codes == 0).mean() > 0.3


def hard_starts(random, codes):
    """Tiles to continue: anything, zero codes with a fraction, the far ends, and nearly the negated product."""
    kinds = [
        random.integers(0, 1 << 22, codes.shape),
        random.integers(0, 2, codes.shape) << 21 | random.integers(0, 1 << 14, codes.shape),
        random.integers(0, 2, codes.shape) << 21 | 127 << 14 | random.integers(0, 1 << 14, codes.shape),
        random.integers(0, 2, codes.shape) << 21 | 1 << 14 | random.integers(0, 1 << 14, codes.shape),
        np.clip((codes & 0x1FFFFF).astype(np.int64) + random.integers(-2, 3, codes.shape), 0, 0x1FFFFF)
        | ~codes & 0x200000,
    ]
    return np.choose(random.integers(0, len(kinds), codes.shape), kinds).astype(np.uint32)


@pytest.mark.parametrize("pumped", [False, True])
@pytest.mark.parametrize("scales", [np.r_[0:256], np.r_[0:16]], ids=["any", "small"])
def test_a_resident_tile_is_continued_as_the_model_says(scales, pumped, backend):
    random = np.random.default_rng(13)
    a, b = blocks_of(random, 33, 32, scales), blocks_of(random, 35, 32, scales)
    start = hard_starts(random, product.matmul(a, b, backend="numpy"))
    before = start.copy()
    codes = product.matmul(a, b, start=start, pumped=pumped, backend=backend)
    assert codes.tolist() == model_of(a, b, start, pumped)
    assert (start == before).all()
    # The corners were really there: +0 out of nonzero operands, and saturation.
    assert 0 in codes or scales[-1] == 255
    assert (codes & 0x1FFFFF == exact_model.LARGEST).any()


def test_a_chained_product_is_the_whole_product(backend):
    a, b = fp16_of_kind("wide", 14, 21, 320), fp16_of_kind("normal", 15, 19, 320)
    whole = product.matmul(a, b, backend=backend)
    for cut in (32, 96, 288):
        first = product.matmul(a[:, :cut], b[:, :cut], backend=backend)
        chained = product.matmul(a[:, cut:], b[:, cut:], start=first, backend=backend)
        np.testing.assert_array_equal(chained, whole)


SIZES = [(1, 1, 1), (4, 4, 32), (7, 16, 64), (6, 8, 96), (13, 33, 100), (64, 48, 257), (1, 200, 31), (90, 1, 320)]


@pytest.mark.parametrize("kind", FP16_KINDS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_backends_agree(size, kind, compiled_backend):
    rows, columns, k = size
    a, b = fp16_of_kind(kind, 16, rows, k), fp16_of_kind(kind, 17, columns, k)
    if kind == "cancelling":
        b = b ^ ((np.arange(k) // 32 % 2) << 15).astype(np.uint16)
    start = hard_starts(np.random.default_rng(18), product.matmul(a, b, backend="numpy"))
    for pumped in (False, True):
        for resident in (None, start):
            expected = product.matmul(a, b, start=resident, pumped=pumped, backend="numpy")
            codes = product.matmul(a, b, start=resident, pumped=pumped, backend=compiled_backend)
            np.testing.assert_array_equal(codes, expected)
    bits = product.matmul_fp16(a, b, backend=compiled_backend).view(np.uint16)
    np.testing.assert_array_equal(bits, product.matmul_fp16(a, b, backend="numpy").view(np.uint16))


@pytest.mark.parametrize("kind", ["normal", "wide", "bits"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_backends_agree_on_long_sums_and_many_tiles(kind, threads, compiled_backend):
    for rows, columns, k in ((9, 17, 4128), (150, 130, 288)):
        a, b = fp16_of_kind(kind, 19, rows, k), fp16_of_kind(kind, 20, columns, k)
        for call in (product.matmul, product.matmul_fp16):
            got = call(a, b, backend=compiled_backend, threads=threads)
            unsigned = f"u{got.itemsize}"
            np.testing.assert_array_equal(got.view(unsigned), call(a, b, backend="numpy").view(unsigned))


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize(
    ("batch_a", "batch_b"),
    [((3,), ()), ((), (2, 3)), ((2, 1), (3,)), ((4, 1, 2), (1, 3, 1)), ((5,), (5,)), ((1,), (1,))],
)
def test_batch_axes_broadcast(batch_a, batch_b, blocked, backend):
    a, b = fp16_of_kind("normal", 21, *batch_a, 5, 70), fp16_of_kind("wide", 22, *batch_b, 6, 70)
    batch = np.broadcast_shapes(batch_a, batch_b)
    wide_a, wide_b = np.broadcast_to(a, (*batch, 5, 70)), np.broadcast_to(b, (*batch, 6, 70))
    start = np.random.default_rng(23).integers(0, 1 << 22, (*batch, 5, 6)).astype(np.uint32)
    operands = (mxfp7.quantise(a, backend=backend), mxfp7.quantise(b, backend=backend)) if blocked else (a, b)
    for resident in (None, start):
        codes = product.matmul(*operands, start=resident, backend=backend)
        bits = product.matmul_fp16(*operands, start=resident, backend=backend)
        assert codes.shape == bits.shape == (*batch, 5, 6)
        for at in np.ndindex(batch):
            one = product.matmul(
                wide_a[at], wide_b[at], start=None if resident is None else resident[at], backend="numpy"
            )
            np.testing.assert_array_equal(codes[at], one)
            np.testing.assert_array_equal(bits[at].view(np.uint16), fp22.drain(one, backend="numpy").view(np.uint16))


@pytest.mark.parametrize("pumped", [False, True])
def test_axes_of_length_zero(pumped, backend):
    def both(a_shape, b_shape, start=None):
        a, b = np.zeros(a_shape, np.float16), np.zeros(b_shape, np.float16)
        codes = product.matmul(a, b, start=start, pumped=pumped, backend=backend)
        bits = product.matmul_fp16(a, b, start=start, pumped=pumped, backend=backend)
        assert bits.shape == codes.shape
        np.testing.assert_array_equal(bits.view(np.uint16), fp22.drain(codes, backend="numpy").view(np.uint16))
        return codes

    assert both((0, 40), (3, 40)).shape == (0, 3)
    assert both((2, 40), (0, 40)).shape == (2, 0)
    assert both((0, 4, 2, 40), (4, 3, 40)).shape == (0, 4, 2, 3)
    assert both((2, 0), (3, 0)).tolist() == [[0] * 3] * 2
    # With K = 0 nothing is added to the tile, not even what would clean a zero code up.
    start = np.array([[0x2000FF, 63 << 14, 127 << 14]] * 2, dtype=np.uint32)
    kept = both((2, 0), (3, 0), start)
    assert kept.tolist() == start.tolist()
    assert not np.shares_memory(kept, start)
    # With K > 0 and zero operands +0 is added, which does.
    assert both((2, 1), (3, 1), start).tolist() == [[0, 63 << 14, 127 << 14]] * 2


def test_strided_values_and_mixed_operands(backend):
    a, b = fp16_of_kind("normal", 24, 14, 150), fp16_of_kind("normal", 25, 80, 12)
    expected = product.matmul(np.ascontiguousarray(a[::2, 10:90]), np.ascontiguousarray(b.T), backend="numpy")
    left, right = a.view(np.float16)[::2, 10:90], b.T
    a.flags.writeable = b.flags.writeable = False
    np.testing.assert_array_equal(product.matmul(left, right, backend=backend), expected)
    np.testing.assert_array_equal(product.matmul(mxfp7.quantise(left), right, backend=backend), expected)
    np.testing.assert_array_equal(product.matmul(left, mxfp7.quantise(right), backend=backend), expected)
    bits = product.matmul_fp16(left, mxfp7.quantise(right), backend=backend)
    np.testing.assert_array_equal(bits.view(np.uint16), fp22.drain(expected, backend="numpy").view(np.uint16))


def test_plain_matrices_are_multiplied_and_refused_as_all_others_are(backend):
    a, b = fp16_of_kind("normal", 26, 14, 150), fp16_of_kind("normal", 27, 12, 150)
    expected = fp22.drain(product.matmul(a, b, backend="numpy"), backend="numpy")
    a.flags.writeable = b.flags.writeable = False
    wide = np.zeros((14, 151), np.uint16)
    wide[:, 1:] = a
    for left in (a, a.view(np.float16), wide[:, 1:], np.asfortranarray(a), a[None], np.ma.masked_array(a)):
        result = product.matmul_fp16(left, b.view(np.float16), backend=backend)
        assert result.dtype == np.float16
        assert result.flags.c_contiguous
        assert result.flags.writeable
        np.testing.assert_array_equal(result.reshape(14, 12).view(np.uint16), expected.view(np.uint16))
    with pytest.raises(NumericsError, match="`a` is >f2"):
        product.matmul_fp16(a.view(np.float16).astype(">f2"), b, backend=backend)
    if backend != "numpy":
        with pytest.raises(NumericsError, match="threads=0: must be at least 1"):
            product.matmul_fp16(a, b, backend=backend, threads=0)


A, B = np.zeros((2, 40), np.float16), np.zeros((3, 40), np.float16)


@pytest.mark.parametrize("call", [product.matmul, product.matmul_fp16])
@pytest.mark.parametrize(
    ("a", "b", "start", "message"),
    [
        (
            A.astype(np.float32),
            B,
            None,
            "`a` is float32[2, 40]; needed are fp16 values (float16) or their bits (uint16): "
            "a.astype(np.float16) rounds to fp16",
        ),
        (A, B[0], None, "`b` is float16[40]; needed are rows by K, batch axes in front: b[None, :] is one row"),
        (
            A,
            B[:, :32],
            None,
            "`a` is float16[2, 40], `b` is float16[3, 32]: the last axes are the contraction and differ, 40 and 32",
        ),
        (
            A,
            B.T,
            None,
            "`a` is float16[2, 40], `b` is float16[40, 3]: the last axes are the contraction and differ, 40 and 3; "
            "`b` is stored [N, K]: for the product a @ b of linear algebra hand in b.T",
        ),
        (
            mxfp7.quantise(A),
            B[:, :32],
            None,
            "`a` is Blocks[2, 64], `b` is float16[3, 32]: the last axes are the contraction and differ, 64 and 32",
        ),
        (
            np.zeros((2, 2, 40), np.float16),
            np.zeros((3, 3, 40), np.float16),
            None,
            "`a` is float16[2, 2, 40], `b` is float16[3, 3, 40]: the batch axes [2] and [3] don't broadcast; an axis "
            "must be equal on both sides, 1, or missing",
        ),
        (
            A,
            B,
            np.zeros((3, 2), np.uint32),
            "`start` is uint32[3, 2], the product is [2, 3]: every output continues its own resident code",
        ),
        (
            A,
            B,
            np.zeros((2, 3)),
            "`start` is float64[2, 3]; needed are FP22 codes as uint32: fp22.encode(start) makes codes of real values",
        ),
    ],
)
def test_refusals(call, a, b, start, message, backend):
    with pytest.raises(NumericsError) as refused:
        call(a, b, start=start, backend=backend)
    assert str(refused.value) == f"product.{call.__name__}: {message}"
