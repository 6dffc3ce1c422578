"""Inputs that number formats find hard: strategies for hypothesis, and larger arrays from a seed."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

_FP16_HARD = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x7FFF, 0xFFFF]
_FP16_PEAKS = [1135, 1259, 1260, 1261, 1512, 1513, 1637, 1638, 1889, 1890, 1891, 2015, 2016, 2017, 2047]


def fp16_bits():
    """fp16 bit patterns: any, specials, field 31, subnormals, significands at which a scale changes."""
    at_boundary = st.builds(
        lambda field, significand, sign: sign << 15 | field << 10 | significand - 1024,
        st.integers(1, 31),
        st.sampled_from(_FP16_PEAKS),
        st.integers(0, 1),
    )
    return st.one_of(
        st.integers(0, 0xFFFF),
        st.sampled_from(_FP16_HARD),
        st.integers(0x7C00, 0x7FFF),
        st.integers(0, 0x3FF),
        at_boundary,
    )


def fp16_arrays(*shape):
    return arrays(np.uint16, shape, elements=fp16_bits())


def fp22_codes():
    """FP22 codes: any, the ends of the range, zero codes with a fraction, fractions around ties."""
    exponents = st.one_of(st.integers(0, 127), st.sampled_from([0, 1, 2, 15, 16, 23, 24, 125, 126, 127]))
    fractions = st.one_of(
        st.integers(0, 0x3FFF), st.sampled_from([0, 1, 2, 3, 7, 8, 9, 0x1FFF, 0x2000, 0x3FFE, 0x3FFF])
    )
    return st.builds(lambda s, e, m: s << 21 | e << 14 | m, st.integers(0, 1), exponents, fractions)


def fp22_arrays(*shape):
    return arrays(np.uint32, shape, elements=fp22_codes())


def hard_code_pairs(seed, count):
    """Pairs of codes near each other in exponent: cancellation, ties with and without dropped bits, both ends."""
    random = np.random.default_rng(seed)
    exponent = random.choice(np.r_[0:128, 0:4, 0:4, 123:128, 123:128], count)
    distance = random.choice(np.r_[0:26, 0:4, 7:18, 13:17], count)
    fractions = np.r_[0, 1, 2, 3, 0x1FFF, 0x2000, 0x2001, 0x3FFE, 0x3FFF, 1 << np.arange(14)]
    tile_fraction, peer_fraction = (
        np.where(random.random(count) < 0.5, random.choice(fractions, count), random.integers(0, 1 << 14, count))
        for _ in range(2)
    )
    peer_fraction = np.where(
        random.random(count) < 0.15, np.clip(tile_fraction + random.integers(-2, 3, count), 0, 0x3FFF), peer_fraction
    )
    signs = random.integers(0, 2, (2, count))
    tile = signs[0] << 21 | exponent << 14 | tile_fraction
    peer = signs[1] << 21 | np.maximum(exponent - distance, 0) << 14 | peer_fraction
    swap = random.random(count) < 0.5
    return np.where(swap, peer, tile).astype(np.uint32), np.where(swap, tile, peer).astype(np.uint32)


FP16_KINDS = ("normal", "wide", "bits", "field 31", "tiny", "sparse", "cancelling", "largest")


def fp16_of_kind(kind, seed, *shape):
    """fp16 bits `shape`, of one of `FP16_KINDS`."""
    random = np.random.default_rng([seed, FP16_KINDS.index(kind)])
    values = random.standard_normal(shape)
    sign = (random.integers(0, 2, shape) << 15).astype(np.uint16)
    match kind:
        case "wide":
            values = np.ldexp(values, random.integers(-24, 14, shape)).clip(-65504, 65504)
        case "bits":
            return random.integers(0, 1 << 16, shape).astype(np.uint16)
        case "field 31":
            return random.integers(0x7800, 0x8000, shape).astype(np.uint16) | sign
        case "tiny":
            return random.integers(0, 0x800, shape).astype(np.uint16) | sign
        case "sparse":
            values = np.where(random.random(shape) < 0.03, values, 0)
        case "cancelling":
            # Every second block repeats the one before it with the other sign (of one operand only: see the caller).
            values = np.repeat(values[..., ::32], 32, axis=-1)[..., : shape[-1]] * random.choice([1, -1, 1.25], shape)
        case "largest":
            return np.full(shape, 0x7BFF, dtype=np.uint16) | sign
        case _:
            pass
    return values.astype(np.float16).view(np.uint16)
