"""The compiled matrix kernels against the RTL's vectors, and every instruction set against the integer rule."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from meshwright.numerics.twin import fp22 as twin_fp22
from meshwright.numerics.twin import mxfp7 as twin_mxfp7
from meshwright.numerics.twin import product as twin_product

native = pytest.importorskip("meshwright.numerics._matrix", reason="the compiled kernels are not built")

GOLDEN = Path(__file__).parents[1] / "golden"
ISAS = native.supported()
WIDE = [isa for isa in ISAS if isa != "scalar"]

Codes = npt.NDArray[np.uint32]


def quantise(isa: str, x: npt.NDArray[np.uint16], threads: int = 1):
    x = np.ascontiguousarray(x)
    blocks = -(-x.shape[1] // 32)
    q = np.full((x.shape[0], blocks * 32), 99, np.int8)
    scale = np.full((x.shape[0], blocks), 255, np.uint8)
    native.quantise(isa, x, q, scale, threads)
    return q, scale


def matmul(isa, qa, sa, qb, sb, start=None, threads=1, function=native.matmul):
    out = np.full((1, qa.shape[0], qb.shape[0]), 0xDEADBEEF, np.uint32)
    zero = np.zeros(1, np.int64)
    begin = None if start is None else np.ascontiguousarray(start)[None]
    function(isa, qa[None], sa[None], qb[None], sb[None], zero, zero, begin, out, threads)
    return out[0]


def matmul_fp16(isa, a, b, threads=1):
    out = np.full((1, a.shape[0], b.shape[0]), 0xDEAD, np.uint16)
    zero = np.zeros(1, np.int64)
    native.matmul_fp16(isa, np.ascontiguousarray(a)[None], np.ascontiguousarray(b)[None], zero, zero, out, threads)
    return out[0]


def add(isa: str, tile: Codes, peer: Codes, threads: int = 1) -> Codes:
    out = np.full(tile.shape, 0xDEADBEEF, np.uint32)
    native.add(isa, tile, peer, out, threads)
    return out


def drain(isa: str, codes: Codes, threads: int = 1) -> npt.NDArray[np.uint16]:
    out = np.full(codes.shape, 0xDEAD, np.uint16)
    native.drain(isa, np.ascontiguousarray(codes), out, threads)
    return out


def golden_cases(name: str, suffix: str) -> list[str]:
    with np.load(GOLDEN / f"{name}.npz") as data:
        return sorted(key.removesuffix(suffix) for key in data.files if key.endswith(suffix))


def test_scalar_kernels_are_always_there():
    assert ISAS[0] == "scalar"
    assert set(ISAS) <= {"scalar", "avx2", "avx512"}


@pytest.mark.parametrize("isa", ISAS)
class TestAgainstRtl:
    def test_quantiser(self, isa):
        with np.load(GOLDEN / "quantise.npz") as data:
            q, scale = quantise(isa, data["x_fp16_bits"])
            np.testing.assert_array_equal(q, data["q"])
            np.testing.assert_array_equal(scale[:, 0], data["scale_field"])

    @pytest.mark.parametrize("case", golden_cases("matmul", "_a"))
    def test_product(self, isa, case):
        with np.load(GOLDEN / "matmul.npz") as data:
            a, b = data[f"{case}_a"], data[f"{case}_b"]
            operands = (*quantise(isa, a), *quantise(isa, b))
            codes = matmul(isa, *operands)
            np.testing.assert_array_equal(codes, data[f"{case}_fp22"])
            np.testing.assert_array_equal(drain(isa, codes.ravel()), data[f"{case}_fp16"].ravel())
            np.testing.assert_array_equal(matmul_fp16(isa, a, b), data[f"{case}_fp16"])
            pumped = matmul(isa, *operands, function=native.matmul_pumped)
            np.testing.assert_array_equal(pumped, data[f"{case}_pumped_fp22"])
            np.testing.assert_array_equal(drain(isa, pumped.ravel()), data[f"{case}_pumped_fp16"].ravel())

    def test_peer_add(self, isa):
        with np.load(GOLDEN / "crossmesh.npz") as data:
            result = add(isa, data["add_tile_fp22"], data["add_peer_fp22"])
            np.testing.assert_array_equal(result, data["add_result_fp22"])
            np.testing.assert_array_equal(drain(isa, result), data["add_result_fp16"])

    @pytest.mark.parametrize("case", golden_cases("matmul_machine", "_a"))
    def test_whole_machine_product(self, isa, case):
        with np.load(GOLDEN / "matmul_machine.npz") as data:
            result = matmul_fp16(isa, data[f"{case}_a"], data[f"{case}_b"])
            np.testing.assert_array_equal(result, data[f"{case}_c"])

    @pytest.mark.parametrize("case", golden_cases("peer_add", "_a"))
    def test_halves_of_k_added_in_the_accumulator(self, isa, case):
        with np.load(GOLDEN / "peer_add.npz") as data:
            a, b = data[f"{case}_a"], data[f"{case}_b"]
            half = a.shape[1] // 2
            halves = [
                matmul(isa, *quantise(isa, a[:, k]), *quantise(isa, b[:, k]))
                for k in (slice(None, half), slice(half, None))
            ]
            joined = add(isa, halves[0].ravel(), halves[1].ravel())
            np.testing.assert_array_equal(drain(isa, joined), data[f"{case}_c_peer_add"].ravel())
            chained = matmul(isa, *quantise(isa, a[:, half:]), *quantise(isa, b[:, half:]), start=halves[0])
            np.testing.assert_array_equal(drain(isa, chained.ravel()), data[f"{case}_c_single"].ravel())


# Operands made of blocks directly, so that every dot product, scale and order of exponents can be had.

KINDS = (
    "random",
    "wide scales",
    "largest",
    "cancelling",
    "powers of two",
    "sparse",
    "descending",
    "ascending",
    "all of -64",
)


def blocks(kind: str, rows: int, count: int, rng: np.random.Generator):
    q = rng.integers(-63, 64, (rows, count, 32))
    exponent, eighths = rng.integers(18, 23, (rows, count)), rng.integers(0, 8, (rows, count))
    if kind == "wide scales":
        exponent = rng.integers(0, 32, (rows, count))
    elif kind == "largest":
        q = np.where(rng.random(q.shape) < 0.97, 63, 62) * rng.choice([-1, 1], (rows, count, 1))
        exponent, eighths = np.full_like(exponent, 31), np.where(rng.random(eighths.shape) < 0.9, 7, eighths)
    elif kind == "cancelling":
        half = -(-count // 2)
        q = np.repeat(q[:, :half], 2, axis=1)[:, :count]
        q[:, 1::2] *= np.sign(rng.integers(-1, 2, q[:, 1::2].shape[:2]))[..., None]
        exponent = np.repeat(exponent[:, :half], 2, axis=1)[:, :count] + rng.integers(-9, 10, exponent.shape)
        eighths = np.repeat(eighths[:, :half], 2, axis=1)[:, :count]
    elif kind == "powers of two":
        q = np.zeros_like(q)
        q[..., 0] = rng.choice([-32, -16, -2, -1, 1, 2, 16, 32], (rows, count))
        q[..., 1] = rng.choice([-1, 0, 0, 1], (rows, count))
        exponent, eighths = rng.integers(8, 24, (rows, count)), np.zeros_like(eighths)
    elif kind == "sparse":
        q *= rng.random((rows, count, 1)) < 0.3
    elif kind == "all of -64":  # no quantiser makes it, but seven bits hold it
        q = np.where(rng.random((rows, count, 1)) < 0.7, -64, rng.choice([-64, 63], q.shape))
    elif kind == "descending":
        exponent = np.broadcast_to(np.clip(31 - np.arange(count), 0, 31), (rows, count))
    elif kind == "ascending":
        exponent = np.broadcast_to(np.clip(np.arange(count), 0, 31), (rows, count))
    scale = (np.clip(exponent, 0, 31) << 3) | eighths
    return np.ascontiguousarray(q.reshape(rows, -1), np.int8), np.ascontiguousarray(scale, np.uint8)


# Rows and columns below, at and past the tiles (7 x 16 and 6 x 8), K of one block up to several passes.
SIZES = ((1, 1, 1), (7, 16, 2), (6, 8, 3), (8, 17, 5), (13, 33, 33), (20, 23, 65), (29, 47, 7), (9, 31, 130))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
def test_every_instruction_set_gives_the_scalar_product(kind, size):
    rows, columns, count = size
    rng = np.random.default_rng([rows, columns, count, KINDS.index(kind)])
    operands = (*blocks(kind, rows, count, rng), *blocks(kind, columns, count, rng))
    start = arbitrary_codes(rng, rows * columns).reshape(rows, columns)
    expected, continued = matmul("scalar", *operands), matmul("scalar", *operands, start=start)
    for isa in WIDE:
        np.testing.assert_array_equal(matmul(isa, *operands), expected, isa)
        np.testing.assert_array_equal(matmul(isa, *operands, start=start), continued, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pumped", [False, True], ids=["plain", "pumped"])
def test_products_equal_the_twin(isa, kind, pumped):
    rng = np.random.default_rng(KINDS.index(kind))
    a, b = blocks(kind, 17, 11, rng), blocks(kind, 21, 11, rng)
    start = arbitrary_codes(rng, 17 * 21).reshape(1, 17, 21)
    zero = np.zeros(1, np.int64)
    function = native.matmul_pumped if pumped else native.matmul
    for begin in (None, start):
        expected = twin_product.matmul(
            (a[0][None], a[1][None]), (b[0][None], b[1][None]), (zero, zero), start=begin, pumped=pumped
        )
        found = matmul(isa, *a, *b, start=None if begin is None else begin[0], function=function)
        np.testing.assert_array_equal(found, expected[0])


@pytest.mark.parametrize("isa", WIDE)
def test_every_dot_and_scale_rounds_once(isa):
    # One block, so the code is the block value itself: dots up to the largest, all 64 pairs of m8, 25-bit products.
    rng = np.random.default_rng(3)
    dots = np.concatenate([rng.integers(-63, 64, (300, 32)), rng.integers(55, 64, (300, 32)), np.full((1, 32), 63)])
    q = np.ascontiguousarray(np.repeat(dots, 8, axis=0), np.int8)
    scale = np.tile(np.arange(8, dtype=np.uint8) + (20 << 3), len(dots))[:, None]
    b_q, b_scale = q[-640:].copy(), np.ascontiguousarray(scale[-640:])
    assert np.max(np.abs(q.astype(int) @ b_q.T.astype(int))) == 32 * 63 * 63
    np.testing.assert_array_equal(matmul(isa, q, scale, b_q, b_scale), matmul("scalar", q, scale, b_q, b_scale))


@pytest.mark.parametrize("isa", WIDE)
def test_the_longest_sums_neither_saturate_nor_flush(isa):
    # product.cpp: a block value is below 2^41, so that no sum of them gets past 2^58, however many there are. An
    # accumulator stops growing where a block is half a unit: here after about 2^15 blocks.
    count = 1 << 16
    for field, limit in ((0xFF, 63 + 58), (0x07, 63 + 58 - 62)):
        q = np.full((2, count * 32), 63, np.int8)
        q[1] = -63
        scale = np.full((2, count), field, np.uint8)
        codes = matmul(isa, q, scale, q, scale)
        np.testing.assert_array_equal(codes, matmul("scalar", q, scale, q, scale))
        assert int(codes.max() & 0x1FFFFF) >> 14 < limit
        assert int(codes.min() & 0x1FFFFF) >> 14 > 17


# Codes that a machine's memory may hold: zeros with leftovers in M, the all-ones code, exponents at both ends.


def arbitrary_codes(rng: np.random.Generator, n: int) -> Codes:
    exponent = rng.choice([0, 1, 2, 16, 17, 18, 40, 60, 62, 63, 64, 100, 103, 104, 105, 125, 126, 127], n)
    mantissa = np.where(
        rng.random(n) < 0.3, rng.choice([0, 1, 0x1FFF, 0x2000, 0x3FFE, 0x3FFF], n), rng.integers(0, 1 << 14, n)
    )
    anything = rng.random(n) < 0.4
    return np.where(
        anything, rng.integers(0, 1 << 22, n), (rng.integers(0, 2, n) << 21) | (exponent << 14) | mantissa
    ).astype(np.uint32)


def adversarial_pairs(rng: np.random.Generator, n: int) -> tuple[Codes, Codes]:
    """Pairs at every distance of exponents, many of which end at or next to a tie, with or without bits lost."""
    exponent = rng.integers(1, 128, n)
    distance = rng.integers(0, 27, n)
    large = np.where(rng.random(n) < 0.3, rng.choice([0, 1, 0x3FFF, 0x2000], n), rng.integers(0, 1 << 14, n))
    # The smaller significand so that after its shift the guard bits spell one half, give or take a little.
    half = ((rng.integers(0, 1 << 7, n) << 9) | 0x80) << np.minimum(distance, 16)
    small = np.where(rng.random(n) < 0.5, (half >> 8) & 0x3FFF, rng.integers(0, 1 << 14, n))
    small = (small + rng.integers(-2, 3, n)) & 0x3FFF
    signs = rng.integers(0, 2, (2, n)) << 21
    first = signs[0] | (exponent << 14) | large
    second = signs[1] | (np.maximum(exponent - distance, 0) << 14) | small
    swap = rng.random(n) < 0.5
    return np.where(swap, second, first).astype(np.uint32), np.where(swap, first, second).astype(np.uint32)


def check_adds(tile: Codes, peer: Codes) -> None:
    expected = add("scalar", tile, peer)
    for isa in WIDE:
        np.testing.assert_array_equal(add(isa, tile, peer), expected, isa)


def test_peer_adds_of_every_pair_of_edges():
    exponents = [0, 1, 2, 3, 8, 9, 10, 15, 16, 17, 22, 23, 24, 25, 63, 104, 118, 125, 126, 127]
    mantissas = [0, 1, 2, 0x1FFF, 0x2000, 0x2001, 0x3FFE, 0x3FFF]
    codes = np.array([s << 21 | e << 14 | m for s in (0, 1) for e in exponents for m in mantissas], np.uint32)
    tile, peer = (np.ascontiguousarray(axis.ravel()) for axis in np.meshgrid(codes, codes))
    check_adds(tile, peer)
    for isa in ISAS:
        np.testing.assert_array_equal(add(isa, tile, peer), twin_fp22.add(tile, peer), isa)


def test_peer_adds():
    rng = np.random.default_rng(5)
    check_adds(*adversarial_pairs(rng, 300_001))
    check_adds(arbitrary_codes(rng, 100_003), arbitrary_codes(rng, 100_003))
    tile, peer = adversarial_pairs(rng, 20_000)
    np.testing.assert_array_equal(add("scalar", tile, peer), twin_fp22.add(tile, peer))


def test_adversarial_pairs_meet_the_corner_that_ieee_rounds_the_other_way():
    """The pairs above are worth something only if many would come out differently under IEEE's nearest even."""
    tile, peer = adversarial_pairs(np.random.default_rng(5), 300_001)
    exact = twin_fp22.decode(tile) + twin_fp22.decode(peer)  # 15-bit numbers up to 26 binades apart: exact in float64
    differs = add("scalar", tile, peer) != twin_fp22.encode(exact)
    assert differs.sum() > 500


@pytest.mark.parametrize("isa", WIDE)
def test_the_product_adds_as_peers_do(isa):
    """Blocks whose values are given codes: the product's own add, in registers, against the peer add."""
    rng = np.random.default_rng(11)
    for count in (1, 3):
        a, b = blocks("wide scales", 64, count, rng), blocks("wide scales", 80, count, rng)
        start = arbitrary_codes(rng, 64 * 80)
        expected = start
        for k in range(count):
            cut = slice(32 * k, 32 * k + 32)
            operands = [
                np.ascontiguousarray(x) for x in (a[0][:, cut], a[1][:, k : k + 1], b[0][:, cut], b[1][:, k : k + 1])
            ]
            expected = add("scalar", expected, matmul("scalar", *operands).ravel())
        np.testing.assert_array_equal(matmul(isa, *a, *b, start=start.reshape(64, 80)).ravel(), expected)


@pytest.mark.long
def test_ten_million_adds_and_products():
    rng = np.random.default_rng(17)
    for _ in range(10):
        check_adds(*adversarial_pairs(rng, 1_000_000))
        check_adds(arbitrary_codes(rng, 200_000), arbitrary_codes(rng, 200_000))
    for kind in KINDS:
        operands = (*blocks(kind, 300, 70, rng), *blocks(kind, 280, 70, rng))
        expected = matmul("scalar", *operands, threads=2)
        for isa in WIDE:
            np.testing.assert_array_equal(matmul(isa, *operands), expected, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_drain_of_every_code(isa):
    codes = np.arange(1 << 22, dtype=np.uint32)
    np.testing.assert_array_equal(drain(isa, codes), twin_fp22.drain(codes))


@pytest.mark.parametrize("isa", WIDE)
@pytest.mark.parametrize("exponent", [-29, 1], ids=["next to subnormal", "next to overflow"])
def test_products_are_drained_as_codes_are(isa, exponent):
    """The one pass drains what it has in registers: every rounding at both ends of fp16, against the integer rule."""
    rng = np.random.default_rng(23)
    # With a 63 in it a block of integers is its own elements, so that a product is an integer of about 32 * 40 * 25.
    a, b = rng.integers(18, 63, (301, 32)), rng.integers(0, 51, (407, 32))
    a[:, 0], b[:, 1] = 63, 63
    a *= rng.choice([-1, 1], (301, 1))
    bits = [
        (x * 2.0**power).astype(np.float16).view(np.uint16)
        for x, power in ((a, exponent // 2), (b, exponent - exponent // 2))
    ]
    codes = matmul("scalar", *quantise("scalar", bits[0]), *quantise("scalar", bits[1]))
    dots, found = (a @ b.T).ravel(), twin_fp22.decode(codes.ravel())
    exact = np.abs(dots) < 2**15
    np.testing.assert_array_equal(found[exact], dots[exact] * 2.0**exponent)
    # 2^15 - 8 is halfway between two numbers of 11 bits, the larger of which is 2^15: 2^-14, or what fp16 lacks.
    assert set(range(2**15 - 12, 2**15 + 4)) <= set(np.abs(dots))
    expected = drain("scalar", codes.ravel()).reshape(codes.shape)
    np.testing.assert_array_equal(matmul_fp16(isa, *bits), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("k", [1, 31, 32, 33, 95, 256])
def test_quantiser_equals_the_twin(isa, k):
    rng = np.random.default_rng(k)
    # Any pattern at all (exponent field 31 is an ordinary one), narrow ranges, subnormals only, zeros.
    x = rng.integers(0, 1 << 16, (400, k))
    x[100:200] = (x[100:200] & 0x83FF) | (rng.integers(0, 29, (100, 1)) + rng.integers(0, 3, (100, k))) << 10
    x[200:300] &= 0x83FF
    x[300:] &= np.where(rng.random((100, k)) < 0.8, 0x8000, 0xFFFF)
    x = x.astype(np.uint16)
    padded = np.zeros((400, -(-k // 32) * 32), np.uint16)
    padded[:, :k] = x
    for found, expected in zip(quantise(isa, x, threads=2), twin_mxfp7.quantise(padded), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("isa", ISAS)
def test_every_significand_as_the_peak(isa):
    """All 2^15 magnitudes as the largest of a block, next to every smaller exponent."""
    peak = np.arange(1 << 15, dtype=np.uint16)
    x = np.minimum(np.arange(32) << 10 | 0x155, peak[:, None]) | np.where(np.arange(32) % 2, 0x8000, 0)
    x[:, 31] = peak
    x = x.astype(np.uint16)
    for found, expected in zip(quantise(isa, x), twin_mxfp7.quantise(x), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("isa", ISAS)
def test_batches_pair_entries_by_index_on_any_number_of_threads(isa):
    rng = np.random.default_rng(2)
    a = rng.normal(size=(3, 60, 200)).astype(np.float16).view(np.uint16)
    b = rng.normal(size=(4, 75, 200)).astype(np.float16).view(np.uint16)
    a_index, b_index = np.array([2, 0, 2, 2, 1, 0, 2]), np.array([1, 3, 1, 0, 3, 3, 2])
    expected = np.stack([matmul_fp16("scalar", a[i], b[j]) for i, j in zip(a_index, b_index, strict=True)])
    qa, sa = (part.reshape(3, 60, -1) for part in quantise(isa, a.reshape(180, 200)))
    qb, sb = (part.reshape(4, 75, -1) for part in quantise(isa, b.reshape(300, 200)))
    for threads in (1, 2, 5):
        out = np.zeros((7, 60, 75), np.uint16)
        native.matmul_fp16(isa, a, b, a_index, b_index, out, threads)
        np.testing.assert_array_equal(out, expected)
        codes = np.zeros((7, 60, 75), np.uint32)
        native.matmul(isa, qa, sa, qb, sb, a_index, b_index, None, codes, threads)
        np.testing.assert_array_equal(drain(isa, codes.ravel(), threads), expected.ravel())


@pytest.mark.parametrize("isa", ISAS)
def test_no_blocks_leave_the_tile_as_it_was(isa):
    start = arbitrary_codes(np.random.default_rng(1), 12).reshape(3, 4)
    empty = (
        np.zeros((3, 0), np.int8),
        np.zeros((3, 0), np.uint8),
        np.zeros((4, 0), np.int8),
        np.zeros((4, 0), np.uint8),
    )
    np.testing.assert_array_equal(matmul(isa, *empty, start=start), start)
    np.testing.assert_array_equal(matmul(isa, *empty), np.zeros((3, 4)))


def test_shapes_that_would_write_past_an_array_are_refused():
    q, scale = np.zeros((1, 4, 64), np.int8), np.zeros((1, 4, 2), np.uint8)
    zero, out = np.zeros(1, np.int64), np.zeros((1, 4, 4), np.uint32)
    good = {"qa": q, "sa": scale, "qb": q, "sb": scale, "a_index": zero, "b_index": zero, "start": None, "out": out}
    native.matmul("scalar", **good, threads=1)
    for name, bad, message in (
        ("qb", q[:, :, :32].copy(), "blocks"),
        ("sa", scale[:, :, :1].copy(), "blocks"),
        ("out", out[:, :3].copy(), "out must be"),
        ("start", out[:, :3].copy(), "start must have the shape of out"),
        ("a_index", zero + 1, "outside its operand"),
        ("b_index", zero - 1, "outside its operand"),
        ("a_index", np.zeros(2, np.int64), "one entry a product"),
    ):
        with pytest.raises(ValueError, match=message):
            native.matmul("scalar", **{**good, name: bad}, threads=1)
    with pytest.raises(ValueError, match="threads must be at least 1"):
        native.matmul("scalar", **good, threads=0)
    with pytest.raises(ValueError, match="unknown instruction set 'sse'"):
        native.matmul("sse", **good, threads=1)
    with pytest.raises(ValueError, match="K rounded up to 32"):
        native.quantise("scalar", np.zeros((2, 33), np.uint16), np.zeros((2, 33), np.int8), scale[0, :2], 1)
    with pytest.raises(TypeError):
        native.drain("scalar", np.zeros(4, np.int64), np.zeros(4, np.uint16), 1)
