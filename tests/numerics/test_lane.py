import lane_model
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from meshwright.errors import NumericsError
from meshwright.numerics import lane
from meshwright.numerics.backend import available
from meshwright.numerics.lane_instructions import COMPARISONS, SLOTS
from meshwright.numerics.twin.lane_functions import BANKS, exact_coefficients, tables

ARITHMETIC = [op for op in SLOTS if op not in COMPARISONS and not op.startswith("round")]
SPECIALS = [0, 0x800000, 0x7F8000, 0xFF8000, 0x7FC000, 0x7F8001, 0xFFFFFF, 0x3F8000, 0xBF8000]
EDGES = [0x7F7FFF, 0xFF7FFF, 0x008000, 0x808000, 0x008001, 0x001234, 0x807FFF, 0x007FFF, 0x3F8001, 0x3FFFFF]


def codes():
    """E8M15 codes: any, specials, middling exponents, significands of few bits or nearly all ones."""
    few = st.builds(lambda bits, shift: bits << shift & 0x7FFF, st.integers(0, 15), st.integers(0, 14))
    mantissas = st.one_of(st.integers(0, 0x7FFF), few, few.map(lambda m: m ^ 0x7FFF))
    exponents = st.one_of(st.integers(110, 145), st.integers(0, 255))
    made = st.builds(lambda s, e, m: s << 23 | e << 15 | m, st.integers(0, 1), exponents, mantissas)
    return st.one_of(made, st.sampled_from(SPECIALS + EDGES))


def code_arrays(*shape):
    return arrays(np.uint32, shape, elements=codes())


def hard_operands(seed, count):
    """a, b, c with c often near -a*b, or that far below and above the product: cancellation, both corners, ties."""
    random = np.random.default_rng(seed)

    def some():
        few = (random.integers(0, 16, count) << random.integers(0, 12, count)) & 0x7FFF
        mantissa = np.choose(random.integers(0, 3, count), [few, few ^ 0x7FFF, random.integers(0, 1 << 15, count)])
        exponent = np.choose(
            random.integers(0, 4, count), [random.integers(110, 145, count)] * 3 + [random.integers(0, 256, count)]
        )
        made = random.integers(0, 2, count) << 23 | exponent << 15 | mantissa
        special = random.choice(SPECIALS + EDGES, count)
        return np.where(random.random(count) < 0.07, special, made).astype(np.uint32)

    a, b, c = some(), some(), some()
    product = lane.mul(a, b, backend="numpy").astype(np.int64) ^ 0x800000
    near = product + random.integers(-2, 3, count)
    apart = product + (random.integers(-50, 51, count) << 15) + (random.integers(0, 2, count) << 23)
    c = np.select([random.random(count) < 0.3, random.random(count) < 0.5], [near, apart], c)
    return a, b, (c & 0xFFFFFF).astype(np.uint32)


@pytest.mark.parametrize("op", ARITHMETIC)
def test_opcodes_give_the_vectors_of_the_rtl(op, backend):
    vectors = lane_model.golden("vector_alu")
    a, b, c, out = (vectors[f"{op.upper()}_{name}"] for name in ("a", "b", "c", "out"))
    np.testing.assert_array_equal(lane.apply(op, a, b, c, backend=backend), out)


@pytest.mark.parametrize("op", COMPARISONS)
def test_comparisons_give_the_vectors_of_the_rtl(op, backend):
    vectors = lane_model.golden("vector_alu")
    a, b, holds = (vectors[f"CMP{op.upper()}_{name}"] for name in ("a", "b", "pred"))
    np.testing.assert_array_equal(lane.compare(op, a, b, backend=backend), holds.astype(bool))


def test_conversions_give_the_vectors_of_the_rtl(backend):
    vectors = lane_model.golden("vector_convert")
    e8, acc22 = vectors["e8"].astype(np.uint32), vectors["acc22"].astype(np.uint32)
    np.testing.assert_array_equal(lane.from_fp16(vectors["f16"], backend=backend), vectors["f16_to_e8"])
    np.testing.assert_array_equal(lane.from_fp32(vectors["f32"], backend=backend), vectors["f32_to_e8"])
    np.testing.assert_array_equal(lane.from_fp22(acc22, backend=backend), vectors["acc22_to_e8"])
    np.testing.assert_array_equal(lane.to_fp16(e8, backend=backend).view(np.uint16), vectors["e8_to_f16"])
    np.testing.assert_array_equal(lane.to_fp32(e8, backend=backend).view(np.uint32), vectors["e8_to_f32"])


@pytest.mark.parametrize("op", ARITHMETIC)
@given(a=code_arrays(48), b=code_arrays(48), c=code_arrays(48))
@settings(max_examples=15)
def test_hard_codes_as_the_model_says(op, a, b, c):
    expected = lane_model.apply(op, a, b, c)
    for name in available():
        np.testing.assert_array_equal(lane.apply(op, a, b, c, backend=name), expected, name)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma", "fnma"])
def test_cancellations_and_corners_as_the_model_says(op):
    a, b, c = hard_operands(1, 6000)
    expected = lane_model.apply(op, a, b, c)
    for name in available():
        np.testing.assert_array_equal(lane.apply(op, a, b, c, backend=name), expected, name)


@pytest.mark.parametrize("op", [*ARITHMETIC, *COMPARISONS])
def test_many_operands_agree_between_backends(op, compiled_backend):
    a, b, c = hard_operands(2, 150_001)
    if op in COMPARISONS:
        found, expected = (lane.compare(op, a, b, backend=name) for name in (compiled_backend, "numpy"))
    else:
        found, expected = (lane.apply(op, a, b, c, backend=name) for name in (compiled_backend, "numpy"))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("op", ["exp2", "log2", "inv", "rsqrt"])
def test_table_functions_agree_between_backends_on_every_code(op, compiled_backend):
    every = np.arange(1 << 24, dtype=np.uint32).reshape(1 << 9, 1 << 15)
    # Every code in the exponents where the function does something of its own, and a seventh of the others.
    part = every[np.r_[0:512:7, 100:136, 255:268, 356:392]].reshape(-1)
    found, expected = (lane.apply(op, part, backend=name) for name in (compiled_backend, "numpy"))
    np.testing.assert_array_equal(found, expected)


ONE_AND_A_BIT = 0x3F8001
HALF_UNIT = (127 - 16) << 15


@pytest.mark.parametrize(
    ("op", "a", "b", "c", "result"),
    [
        ("add", 0x3F8000, 0, HALF_UNIT, 0x3F8000),  # 1 + 2^-16, a tie: to even
        ("add", ONE_AND_A_BIT, 0, HALF_UNIT, 0x3F8002),
        # Taking off half a unit and a bit that leaves the window: IEEE goes down, the machine sees a tie and goes up.
        ("sub", ONE_AND_A_BIT, 0, HALF_UNIT | 1, ONE_AND_A_BIT),
        ("sub", ONE_AND_A_BIT, 0, HALF_UNIT, 0x3F8000),
        ("mul", 0x3F8003, 0x3FC000, 0, 0x3FC005),  # 1.5 * (1 + 3 * 2^-15), a tie, away from zero
        ("mul", 0x3F8001, 0x3FC000, 0, 0x3FC002),
        ("fma", 0x3F8001, 0x3FC000, 0x800000, 0x3FC002),
        ("mul", 0x808000, 0x3F0000, 0, 0x800000),  # underflow: a zero of the sign
        ("mul", 0x800000, 0x3F8000, 0, 0),  # a zero operand: the addend, +0
        ("mul", 0x00FFFF, 0x3F7FFF, 0, 0x00FFFE),
        ("mul", 0x00FFFF, 0x3F0000, 0, 0x000000),
        ("mul", 0x3F7FFF, 0x008000, 0, 0),  # a hair below the smallest number: not rounded up to it
        ("fma", 0, 0x7F0000, 0x800000, 0x800000),
        ("sub", 0, 0, 0, 0x800000),  # +0 - +0 is -0
        ("sub", ONE_AND_A_BIT, 0, ONE_AND_A_BIT, 0),
        # The product, nearly 4, against a power of two beyond the window: the addend itself, not the code below it.
        ("fnma", 0x3FFFFF, 0x3FFFFF, (127 + 18) << 15, (127 + 18) << 15),
        ("fma", 0x7F8000, 0, 0x3F8000, 0x7FC000),
        ("max", 0x7FC001, 0x3F8000, 0, 0x7FC000),  # a NaN in a stays, in b it is passed over
        ("max", 0x3F8000, 0x7FC001, 0, 0x3F8000),
        ("min", 0x800000, 0, 0, 0),
        ("neg", 0, 0, 0, 0),
        ("mov", 0x801234, 0, 0, 0),
        ("sel", 0x3F8000, 0x400000, 0x800000, 0x400000),
        ("exp2", 0x430000, 0, 0, 0),  # 2^128 wraps to 2^-128, which underflows
        ("exp2", 0x430200, 0, 0, 0x008000),  # 2^130 to 2^-126
        ("exp2", 0x438000, 0, 0, 0x7F8000),  # from 256 on there is no wrapping
        ("exp2", 0xC38000, 0, 0, 0),
        ("exp2", 0xC30100, 0, 0, 0x7F0000),
        ("rsqrt", 0x800000, 0, 0, 0x7F8000),
        ("log2", 0x800000, 0, 0, 0xFF8000),
        ("log2", 0xBF8000, 0, 0, 0x7FC000),
        ("inv", 0x800000, 0, 0, 0xFF8000),
    ],
)
def test_corners(op, a, b, c, result, backend):
    assert lane_model.APPLY[op](a, b, c) == result
    operands = (np.full(37, code, np.uint32) for code in (a, b, c))
    assert set(lane.apply(op, *operands, backend=backend).tolist()) == {result}


@pytest.mark.parametrize(("bank", "name"), list(enumerate(BANKS)))
def test_tables_come_from_the_formula_with_room_to_spare(bank, name):
    np.testing.assert_array_equal(tables()[bank].T, lane_model.TABLES[name])
    from_tie = [abs(abs(float(c) % 1) - 0.5) for row in exact_coefficients(name) for c in row]
    assert min(from_tie) > 3e-4


OCTAVE = np.arange(1 << 15, dtype=np.uint32)


@pytest.mark.parametrize(
    ("op", "exponent", "truth", "bound"),
    [
        *(("exp2", exponent, np.exp2, 0.534) for exponent in (126, 127, 128, 132)),
        ("exp2", 124, np.exp2, 0.619),  # rounding the argument to 17 fraction bits adds to it
        *(("inv", exponent, lambda x: 1 / x, 0.592) for exponent in (3, 126, 127, 128, 250)),
        *(("rsqrt", exponent, lambda x: 1 / np.sqrt(x), 0.568) for exponent in (2, 3, 126, 127, 128)),
        *(("log2", exponent, np.log2, 0.5411) for exponent in (5, 120, 128, 133, 250)),
    ],
)
def test_table_functions_are_within_a_stated_part_of_a_unit(op, exponent, truth, bound, backend):
    codes = OCTAVE | np.uint32(exponent << 15)
    exact = truth(lane.decode(codes))
    unit = np.exp2(np.floor(np.log2(np.abs(exact))) - 15)
    errors = np.abs(lane.decode(lane.apply(op, codes, backend=backend)) - exact) / unit
    assert errors.max() < bound


def test_log2_near_1_is_as_exact_as_20_fraction_bits_allow():
    below, above = (OCTAVE | np.uint32(exponent << 15) for exponent in (126, 127))
    errors = [np.abs(lane.decode(lane.apply("log2", x)) - np.log2(lane.decode(x))) for x in (below, above)]
    assert max(error.max() for error in errors) < 0.571 * 2.0**-16
    assert errors[1][:1024].max() < 2.0**-19


@pytest.mark.parametrize(("op", "result"), [("exp2", 0x3F8000), ("log2", 0), ("inv", 0x3F8000), ("rsqrt", 0x3F8000)])
def test_table_functions_are_exact_at_powers_of_two(op, result, backend):
    assert lane.apply(op, [[np.uint32(0 if op == "exp2" else 0x3F8000)]], backend=backend).tolist() == [[result]]


def test_every_fp16_goes_in_exactly_and_comes_back(backend):
    bits = np.arange(1 << 16, dtype=np.uint16)
    codes = lane.from_fp16(bits, backend=backend)
    number = bits & 0x7FFF <= 0x7C00
    np.testing.assert_array_equal(lane.decode(codes)[number], bits[number].view(np.float16).astype(np.float64))
    expected = np.where(number, bits, bits | 0x200)
    np.testing.assert_array_equal(lane.to_fp16(codes, backend=backend).view(np.uint16), expected)
    np.testing.assert_array_equal(lane.from_fp16(bits.view(np.float16), backend=backend), codes)


def test_codes_round_to_fp16_as_numpy_rounds_but_for_overflow(backend):
    codes = np.arange(0, 1 << 24, 3, dtype=np.uint32)
    codes = codes[(codes & 0x7FFFFF) <= 0x7F8000]
    with np.errstate(over="ignore"):
        expected = lane.decode(codes).astype(np.float16)
    finite = (codes & 0x7FFFFF) < 0x7F8000
    expected = np.where(finite, np.clip(expected, -65504, 65504), expected)
    np.testing.assert_array_equal(lane.to_fp16(codes, backend=backend).view(np.uint16), expected.view(np.uint16))


@given(st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=70))
def test_float32_rounds_to_the_nearest_code(bits):
    values = np.array(bits, np.uint32)
    numbers = [float(x) for x in values.view(np.float32)]
    expected = [
        lane_model.encode(lane_model.Fraction(x), pattern >> 31) if np.isfinite(x) else pattern >> 8 | quiet
        for x, pattern in zip(numbers, bits, strict=True)
        for quiet in (0x4000 * bool(np.isnan(x)),)
    ]
    subnormal = (values & 0x7F800000) == 0
    expected = np.where(subnormal, values >> 31 << 23, expected)
    for name in available():
        np.testing.assert_array_equal(lane.from_fp32(values, backend=name), expected, name)


def test_immediates_are_truncated():
    assert lane.immediate(1.4426950408889634) == 0x3FB8AA
    assert lane.immediate(-1.4426950408889634) == 0xBFB8AA
    assert lane.immediate(1 + 2**-15 - 2**-23) == 0x3F8000


def test_shorthands_name_the_slots_of_the_machine():
    x, y, z = (np.uint32(lane.immediate(value)) for value in (3.0, 5.0, 0.5))
    assert lane.decode(lane.add(x, y)) == 8
    assert lane.decode(lane.sub(x, y)) == -2
    assert lane.decode(lane.mul(x, y)) == 15
    assert lane.decode(lane.fma(x, y, z)) == 15.5


def test_operands_broadcast(backend):
    row, column = np.full((1, 5), 0x3F8000, np.uint32), np.full((7, 1), 0x400000, np.uint32)
    assert lane.add(row, column, backend=backend).tolist() == [[0x404000] * 5] * 7
    assert lane.apply("mul", np.empty((0, 3), np.uint32), np.uint32(0), backend=backend).shape == (0, 3)


def refusal(call):
    with pytest.raises(NumericsError) as caught:
        call()
    return str(caught.value)


def test_refusals():
    one = np.uint32(0x3F8000)
    assert refusal(lambda: lane.apply("pow", one)) == (
        "lane.apply: no opcode 'pow'; opcodes: mov, neg, abs, add, sub, mul, fma, fnma, max, min, sel, exp2, log2, "
        "inv, rsqrt, round_fp16, round_fp32; comparisons: lane.compare"
    )
    assert refusal(lambda: lane.apply("add", one, one)) == "lane.apply: add reads slots a, c; slot c was not given"
    assert refusal(lambda: lane.compare("ge", one, one)) == (
        "lane.compare: no comparison 'ge'; comparisons: lt, gt, eq"
    )
    assert refusal(lambda: lane.add(np.float32([1, 2]), one)) == (
        "lane program: input 0 is float32[2]; its format e8 takes uint32"
    )
    assert refusal(lambda: lane.add(np.zeros(3, np.uint32), np.zeros(4, np.uint32))) == (
        "lane program: inputs of shapes (3,), (4,) don't broadcast to one shape"
    )


def test_codes_of_more_than_24_bits_are_refused(backend):
    codes = np.zeros(1000, np.uint32)
    codes[777] = 1 << 24
    assert refusal(lambda: lane.mul(np.zeros(1000, np.uint32), codes, backend=backend)) == (
        "lane program: input 1: codes of format e8 have 24 bits, and some here have more"
    )
    assert refusal(lambda: lane.from_fp22(np.uint32([1 << 22]), backend=backend)) == (
        "lane program: input 0: codes of format fp22 have 22 bits, and some here have more"
    )
