import itertools

import exact_model
import numpy as np
import pytest
from hard_operands import FP16_KINDS, fp16_arrays, fp16_of_kind
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import NumericsError
from meshwright.numerics import mxfp7
from meshwright.numerics.backend import available


def model_of(bits):
    rows = [exact_model.quantise_row(row) for row in bits.reshape(-1, bits.shape[-1]).tolist()]
    q = np.array([[*itertools.chain(*blocks)] for blocks, _ in rows]).reshape(*bits.shape[:-1], -1)
    return q, np.array([scales for _, scales in rows]).reshape(*bits.shape[:-1], -1)


@given(st.integers(1, 70).flatmap(lambda k: fp16_arrays(3, k)))
def test_hard_bits_are_quantised_as_the_model_says(bits):
    q, scale = model_of(bits)
    for name in available():
        blocks = mxfp7.quantise(bits, backend=name)
        assert blocks.q.dtype == np.int8
        assert blocks.scale.dtype == np.uint8
        np.testing.assert_array_equal(blocks.q, q)
        np.testing.assert_array_equal(blocks.scale, scale)


@pytest.mark.parametrize("kind", FP16_KINDS)
def test_every_kind_of_value_is_quantised_as_the_model_says(kind, backend):
    bits = fp16_of_kind(kind, 7, 40, 96)
    q, scale = model_of(bits)
    blocks = mxfp7.quantise(bits, backend=backend)
    np.testing.assert_array_equal(blocks.q, q)
    np.testing.assert_array_equal(blocks.scale, scale)


def test_every_fp16_pattern_as_peak_and_as_element(backend):
    alone = np.zeros((1 << 16, 32), dtype=np.uint16)
    alone[:, 5] = np.arange(1 << 16)
    beside = alone.copy()
    beside[:, 9] = 0x4A37
    for bits in (alone, beside):
        blocks, sample = mxfp7.quantise(bits, backend=backend), slice(None, None, 13)
        q, scale = model_of(bits[sample])
        np.testing.assert_array_equal(blocks.q[sample], q)
        np.testing.assert_array_equal(blocks.scale[sample], scale)
        twin = mxfp7.quantise(bits, backend="numpy")
        np.testing.assert_array_equal(blocks.q, twin.q)
        np.testing.assert_array_equal(blocks.scale, twin.scale)


@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (2, 0, 5), (0,), (7,), (2, 3, 4, 33)])
def test_empty_and_odd_shapes(shape, backend):
    bits = fp16_of_kind("normal", 1, *shape)
    blocks = mxfp7.quantise(bits, backend=backend)
    assert blocks.shape == (*shape[:-1], -(-shape[-1] // 32) * 32)
    assert blocks.scale.shape == (*shape[:-1], -(-shape[-1] // 32))
    if bits.size:
        np.testing.assert_array_equal(blocks.q, model_of(bits)[0])


def test_float16_values_strided_views_and_threads_give_the_same_blocks(backend):
    bits = fp16_of_kind("wide", 3, 65, 130)
    expected = mxfp7.quantise(np.ascontiguousarray(bits[::2, 1:98]), backend="numpy")
    for threads in (1, 2, 3):
        got = mxfp7.quantise(bits.view(np.float16)[::2, 1:98], backend=backend, threads=threads)
        np.testing.assert_array_equal(got.q, expected.q)
        np.testing.assert_array_equal(got.scale, expected.scale)


def test_dequantise_is_element_times_scale():
    blocks = mxfp7.Blocks(np.arange(-32, 32, dtype=np.int8).reshape(1, 64), np.array([[160, 0]], dtype=np.uint8))
    values = mxfp7.dequantise(blocks)
    np.testing.assert_array_equal(values[0, :32], np.arange(-32, 0))
    np.testing.assert_array_equal(values[0, 32:], np.arange(0, 32) * 2.0**-20)
    exact = mxfp7.dequantise(mxfp7.quantise(np.array([1.0, -0.5, 0.25], dtype=np.float16)))
    assert abs(exact[0] - 1.0) <= 1 / 63


def test_packed_words_come_back():
    random = np.random.default_rng(5)
    blocks = mxfp7.Blocks(
        random.integers(-64, 64, (12, 96)).astype(np.int8), random.integers(0, 256, (12, 3)).astype(np.uint8)
    )
    words = mxfp7.pack_words(blocks)
    assert words.shape == (3, 3, 4, 32)
    again = mxfp7.unpack_words(words)
    np.testing.assert_array_equal(again.q, blocks.q)
    np.testing.assert_array_equal(again.scale, blocks.scale)
    words[1, 2, 3, 0] ^= 1
    with pytest.raises(NumericsError, match="words of group 1, block 2 carry different scales"):
        mxfp7.unpack_words(words)


def test_a_packed_word_bit_by_bit():
    q, scale = np.zeros((4, 32), dtype=np.int8), np.array([[1], [2], [3], [4]], dtype=np.uint8)
    q[3, 7] = -1  # the lowest 7 bits behind the scales of word 0
    q[0, 24] = -64  # the top bits of word 3
    words = mxfp7.pack_words(mxfp7.Blocks(q, scale))[0, 0]
    assert words[:, :4].tolist() == [[4, 3, 2, 1]] * 4
    assert words[0, 4:].tolist() == [0x7F] + [0] * 27
    assert words[3, 4:].tolist() == [0] * 27 + [0x80]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: mxfp7.quantise(np.zeros((2, 32))),
            "quantise: `x` is float64[2, 32]; needed are fp16 values (float16) or their bits (uint16): "
            "x.astype(np.float16) rounds to fp16",
        ),
        (lambda: mxfp7.quantise(np.float16(1)), "quantise: `x` is float16[]; it needs an axis to block: x[None]"),
        (
            lambda: mxfp7.Blocks(np.zeros((2, 33), np.int8), np.zeros((2, 2), np.uint8)),
            "Blocks: got q int8[2, 33] and scale uint8[2, 2]; the last axis of q must be whole blocks of 32: "
            "mxfp7.quantise(x) pads with zeros",
        ),
        (
            lambda: mxfp7.Blocks(np.zeros((2, 64), np.int8), np.zeros((2, 1), np.uint8)),
            "Blocks: got q int8[2, 64] and scale uint8[2, 1]; scale needs the shape of q with K // 32 as last axis",
        ),
        (
            lambda: mxfp7.Blocks(np.zeros((2, 64), np.int16), np.zeros((2, 2), np.uint8)),
            "Blocks: got q int16[2, 64] and scale uint8[2, 2]; needed are q int8 and scale uint8",
        ),
        (
            lambda: mxfp7.Blocks(np.full((1, 32), 64, np.int8), np.zeros((1, 1), np.uint8)),
            "Blocks: q has elements from 64 to 64; 7 bits hold -64 to 63",
        ),
        (
            lambda: mxfp7.pack_words(mxfp7.quantise(np.zeros((6, 32), np.uint16))),
            "pack_words: blocks of shape [6, 32]; an entry is four rows by 32, so needed are two axes and rows in "
            "fours: pad the rows with zeros before quantise",
        ),
        (
            lambda: mxfp7.unpack_words(np.zeros((1, 4, 32), np.uint8)),
            "unpack_words: got uint8[1, 4, 32]; needed is uint8[groups, blocks, 4, 32]",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(NumericsError) as refused:
        call()
    assert str(refused.value) == message
