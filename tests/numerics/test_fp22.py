from fractions import Fraction

import exact_model
import numpy as np
import pytest
from hard_operands import fp22_arrays, hard_code_pairs
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import NumericsError
from meshwright.numerics import fp22
from meshwright.numerics.backend import available

EVERY_CODE = np.arange(1 << 22, dtype=np.uint32)


@given(fp22_arrays(64), fp22_arrays(64))
def test_hard_codes_add_as_the_model_says(tile, peer):
    expected = [exact_model.add(t, p) for t, p in zip(tile.tolist(), peer.tolist(), strict=True)]
    for name in available():
        assert fp22.add(tile, peer, backend=name).tolist() == expected


def test_neighbouring_codes_add_as_the_model_says(backend):
    tile, peer = hard_code_pairs(1, 40_000)
    expected = [exact_model.add(t, p) for t, p in zip(tile.tolist(), peer.tolist(), strict=True)]
    np.testing.assert_array_equal(fp22.add(tile, peer, backend=backend), expected)
    np.testing.assert_array_equal(fp22.add(peer, tile, backend=backend), expected)


def test_a_million_additions_agree_between_backends(compiled_backend):
    tile, peer = hard_code_pairs(2, 1_000_003)
    expected = fp22.add(tile, peer, backend="numpy")
    for threads in (1, 3):
        np.testing.assert_array_equal(fp22.add(tile, peer, backend=compiled_backend, threads=threads), expected)


@pytest.mark.parametrize(
    ("tile", "peer", "result"),
    [
        (0x2000FF, 0x000001, 0),  # two zeros, whatever their other bits
        (0x2000FF, 63 << 14 | 5, 63 << 14 | 5),  # one zero: the other unchanged
        (127 << 14 | 5, 0x2000FF, 127 << 14 | 5),  # ... even at E = 127
        (127 << 14 | 5, 63 << 14, 127 << 14 | 0x3FFF),  # a sum with E = 127 saturates
        (126 << 14 | 0x3FFF, 126 << 14 | 0x3FFF, 127 << 14 | 0x3FFF),
        (1 << 21 | 127 << 14 | 1, 127 << 14 | 2, 113 << 14),  # 127 is an ordinary exponent to start from
        (5 << 14 | 1, 1 << 21 | 5 << 14, 0),  # below the smallest: +0
        (1 << 21 | 5 << 14 | 1, 5 << 14, 0),  # ... whatever the sign
        (1 << 21 | 70 << 14 | 77, 70 << 14 | 77, 0),  # exact cancellation: +0
        # 2^0 + 2^-15 exactly between two codes: to even; with a bit below the guard bits lost: up.
        (63 << 14, 48 << 14, 63 << 14),
        (63 << 14 | 1, 48 << 14, 63 << 14 | 2),
        (63 << 14, 48 << 14 | 1, 63 << 14 | 1),
        # Subtracting 2^-15 (1 + 2^-14) truncates to 2^-15; the tie that leaves rounds up, where IEEE rounds down.
        (63 << 14 | 1, 1 << 21 | 48 << 14 | 1, 63 << 14 | 1),
        (63 << 14 | 1, 1 << 21 | 48 << 14, 63 << 14),
    ],
)
def test_corners_of_the_addition(tile, peer, result, backend):
    assert exact_model.add(tile, peer) == result
    assert fp22.add(np.array([tile], np.uint32), np.array([peer], np.uint32), backend=backend).tolist() == [result]


def test_every_code_drains_as_the_model_says(backend):
    bits = fp22.drain(EVERY_CODE, backend=backend, threads=2).view(np.uint16)
    some = EVERY_CODE[::37].tolist()
    assert bits[::37].tolist() == [exact_model.drain(code) for code in some]
    np.testing.assert_array_equal(bits, fp22.drain(EVERY_CODE, backend="numpy").view(np.uint16))


def test_every_code_decodes_and_encodes_back():
    values = fp22.decode(EVERY_CODE)
    zero = EVERY_CODE >> 14 & 127 == 0
    assert not values[zero].any()
    assert not np.signbit(values[zero]).any()
    np.testing.assert_array_equal(fp22.encode(values), np.where(zero, 0, EVERY_CODE))
    for code in EVERY_CODE[:: 1 << 9].tolist():
        assert exact_model.to_fraction(code) == values[code]


@given(st.lists(st.one_of(st.floats(allow_nan=False), st.floats(-(2.0**-60), 2.0**-60), st.floats(-16, 16))))
def test_encoding_is_to_the_nearest_code(values):
    for value, code in zip(values, fp22.encode(values).tolist(), strict=True):
        if abs(value) < 2.0**-62 * (1 - 2.0**-16):
            assert code == 0
        elif abs(value) >= 2.0**65 - 2.0**50:
            assert code == (value < 0) << 21 | exact_model.LARGEST
        else:
            magnitude = Fraction(abs(value))
            candidates = [(code & 0x1FFFFF) + step for step in (-1, 0, 1)]
            # Nearest first; of two at the same distance the even one.
            candidates.sort(key=lambda near: (abs(exact_model.to_fraction(near & 0x1FFFFF) - magnitude), near & 1))
            assert code == (value < 0) << 21 | candidates[0]


@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(-(2**17), 2**17), st.integers(-(2**31), 2**31 - 1), st.sampled_from([0, 1, -1])),
            st.integers(0, 255),
            st.integers(0, 255),
        ),
        min_size=1,
        max_size=60,
    ),
    st.one_of(st.just(40), st.integers(0, 255)),
)
def test_block_values_are_what_the_model_says(blocks, anchor):
    dots, scale_a, scale_b = (np.array(column) for column in zip(*blocks, strict=True))
    codes = fp22.block_value(dots.astype(np.int32), scale_a.astype(np.uint8), scale_b.astype(np.uint8), anchor=anchor)
    expected = [exact_model.block_value(*block, anchor) for block in blocks]
    assert codes.tolist() == expected
    opened = [exact_model.add(0, code) for code in expected]
    assert fp22.open_tile(codes).tolist() == opened


def test_a_wrapped_exponent_opens_as_zero():
    # 1 * 8 * 8 * 2^(20 + 20 - 6 - 103) has E = 0.
    arrays = np.array([1], np.int32), np.array([160], np.uint8), np.array([160], np.uint8)
    codes = fp22.block_value(*arrays, anchor=103)
    assert codes.tolist() == [0]
    negative = fp22.block_value(-3 * arrays[0], *arrays[1:], anchor=104)
    assert negative.tolist() == [1 << 21 | 0x2000]
    assert fp22.open_tile(negative).tolist() == [0]
    assert fp22.block_value(*arrays, anchor=104).tolist() == [127 << 14]


def test_shapes_broadcast_and_may_be_empty(backend):
    tile, peer = hard_code_pairs(4, 12)
    column = fp22.add(tile[:, None], peer[None, :5], backend=backend)
    assert column.shape == (12, 5)
    assert column[3, 2] == exact_model.add(int(tile[3]), int(peer[2]))
    assert fp22.add(tile[:0], peer[:1], backend=backend).shape == (0,)
    assert fp22.drain(tile[:0].reshape(0, 3), backend=backend).shape == (0, 3)
    assert fp22.drain(tile.reshape(3, 4).T, backend=backend).shape == (4, 3)
    single = fp22.add(np.uint32(63 << 14), np.uint32(127 << 14), backend=backend)
    assert single.shape == ()
    assert single == 127 << 14 | 0x3FFF
    assert fp22.drain(single, backend=backend).shape == ()
    assert fp22.decode(fp22.open_tile(fp22.encode(1.5))) == 1.5
    values = fp22.block_value(np.ones((4, 4), np.int32), np.full((4, 1), 160, np.uint8), np.full(4, 160, np.uint8))
    assert values.shape == (4, 4)


def test_operands_are_left_alone(backend):
    tile, peer = hard_code_pairs(5, 100)
    before = tile.copy(), peer.copy()
    tile.flags.writeable = peer.flags.writeable = False
    fp22.add(tile, peer, backend=backend)
    fp22.drain(tile, backend=backend)
    assert (tile == before[0]).all()
    assert (peer == before[1]).all()


CODES = np.zeros((2, 3), np.uint32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: fp22.add(CODES.astype(np.float64), CODES),
            "fp22.add: `tile` is float64[2, 3]; needed are FP22 codes as uint32: fp22.encode(tile) makes codes of "
            "real values",
        ),
        (
            lambda: fp22.add(CODES, CODES + np.uint32(1 << 22)),
            "fp22.add: `peer` holds 0x400000; an FP22 code has 22 bits",
        ),
        (
            lambda: fp22.add(CODES, CODES.T),
            "fp22.add: `tile` uint32[2, 3], `peer` uint32[3, 2]: these shapes don't broadcast to one",
        ),
        (
            lambda: fp22.drain(CODES.astype(np.int32)),
            "fp22.drain: `codes` is int32[2, 3]; needed are FP22 codes as uint32: fp22.encode(codes) makes codes of "
            "real values",
        ),
        (lambda: fp22.encode([1.0, np.nan]), "fp22.encode: `values` float64[2] has NaN; FP22 has no NaN"),
        (
            lambda: fp22.block_value(np.ones(2, np.int64), np.ones(2, np.uint8), np.ones(2, np.uint8)),
            "fp22.block_value: `dot` int64[2], `scale_a` uint8[2], `scale_b` uint8[2]; needed are int32, "
            "uint8 and uint8",
        ),
        (
            lambda: fp22.block_value(np.ones(2, np.int32), np.ones(2, np.uint8), np.ones(2, np.uint8), anchor=256),
            "fp22.block_value: anchor=256; the field has 8 bits: 0 to 255",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(NumericsError) as refused:
        call()
    assert str(refused.value) == message
