"""The number formats once more, one value at a time in Python integers: slow, and plain enough to be read as the rule.

Nothing here is shared with the package: it is what the numpy twins are held against.
"""

from fractions import Fraction

RECIPROCAL = {8: 4096, 9: 3641, 10: 3277, 11: 2979, 12: 2731, 13: 2520, 14: 2341, 15: 2185}
LARGEST = 127 << 14 | 0x3FFF


def fp16_parts(bits):
    field, fraction = bits >> 10 & 31, bits & 1023
    return (fraction, 1) if field == 0 else (1024 + fraction, field)


def quantise_block(block):
    """32 fp16 bit patterns to 32 elements and the scale field."""
    peak = max(bits & 0x7FFF for bits in block)
    if peak == 0:
        return [0] * 32, 20 << 3
    significand, exponent = fp16_parts(peak)
    while significand < 1024:
        significand, exponent = significand * 2, exponent - 1
    m8, es = -(-significand // 126), exponent - 21
    if m8 == 16:
        m8, es = 8, es + 1
    elif m8 == 17:
        m8, es = 9, es + 1
    es = min(max(es, -20), 11)
    elements = []
    for bits in block:
        significand, exponent = fp16_parts(bits)
        product, shift = significand * RECIPROCAL[m8], 37 + es - exponent
        magnitude = 0 if shift >= 24 else min((product >> shift) + (product >> (shift - 1) & 1), 63)
        elements.append(-magnitude if bits >> 15 else magnitude)
    return elements, es + 20 << 3 | m8 - 8


def quantise_row(row):
    row = list(row) + [0] * (-len(row) % 32)
    blocks = [quantise_block(row[k : k + 32]) for k in range(0, len(row), 32)]
    return [block[0] for block in blocks], [block[1] for block in blocks]


def to_fraction(code):
    sign, exponent, fraction = code >> 21, code >> 14 & 127, code & 0x3FFF
    if exponent == 0:
        return Fraction(0)
    return (-1) ** sign * Fraction(16384 + fraction) * Fraction(2) ** (exponent - 63 - 14)


def rounded_code(negative, magnitude, scale, sticky=False, wrap=False):
    """The code of `magnitude * 2^scale`, to 15 bits; a tie with `sticky` counts as above the middle."""
    if magnitude == 0:
        return 0
    exponent = magnitude.bit_length() - 1 + scale + 63
    drop = magnitude.bit_length() - 15
    if drop <= 0:
        kept = magnitude << -drop
    else:
        kept, rest, half = magnitude >> drop, magnitude & (1 << drop) - 1, 1 << (drop - 1)
        if rest > half or (rest == half and (sticky or kept & 1)):
            kept += 1
        if kept == 1 << 15:
            kept, exponent = kept >> 1, exponent + 1
    if wrap:
        exponent &= 127
    elif exponent <= 0:
        return 0
    elif exponent >= 127:
        return negative << 21 | LARGEST
    return negative << 21 | exponent << 14 | kept & 0x3FFF


def block_value(dot, scale_a, scale_b, anchor=40):
    product = dot * ((scale_a & 7) + 8) * ((scale_b & 7) + 8)
    return rounded_code(product < 0, abs(product), (scale_a >> 3) + (scale_b >> 3) - 6 - anchor, wrap=True)


def add(first, second):
    zero_first, zero_second = first >> 14 & 127 == 0, second >> 14 & 127 == 0
    if zero_first or zero_second:
        return 0 if zero_first and zero_second else second if zero_first else first
    larger, smaller = sorted((first, second), key=lambda code: code & 0x1FFFFF, reverse=True)
    high, low = ((16384 + (code & 0x3FFF)) << 8 for code in (larger, smaller))
    exponent = larger >> 14 & 127
    shift = min(exponent - (smaller >> 14 & 127), 23)
    lost, low = (low & (1 << shift) - 1) != 0, low >> shift
    total = high - low if (first ^ second) >> 21 else high + low
    return rounded_code(larger >> 21, total, exponent - 63 - 22, sticky=lost)


def drain(code):
    sign, exponent, fraction = code >> 21, code >> 14 & 127, code & 0x3FFF
    kept, rest = fraction >> 4, fraction & 15
    kept += rest > 8 or (rest == 8 and kept & 1)
    field = exponent - 48 + (kept >> 10)
    if field <= 0:
        return sign << 15
    return sign << 15 | (0x7BFF if field >= 31 else field << 10 | kept & 1023)


def merged_value(dots, scales_a, scales_b):
    """Two blocks merged before rounding, as in the pumped variant."""
    exponents = [(a >> 3) + (b >> 3) for a, b in zip(scales_a, scales_b, strict=True)]
    total = 0
    for dot, a, b, exponent in zip(dots, scales_a, scales_b, exponents, strict=True):
        product = dot * ((a & 7) + 8) * ((b & 7) + 8)
        aligned = abs(product) >> min(max(exponents) - exponent, 30)
        total += -aligned if product < 0 else aligned
    return rounded_code(total < 0, abs(total), max(exponents) - 46)


def output(blocks_a, scales_a, blocks_b, scales_b, start=0, pumped=False):
    """One output: rows of blocks of elements, their scales, and the code that is continued."""
    dots = [sum(x * y for x, y in zip(a, b, strict=True)) for a, b in zip(blocks_a, blocks_b, strict=True)]
    code = start
    for k in range(0, len(dots), 2 if pumped else 1):
        if pumped and k + 1 < len(dots):
            value = merged_value(dots[k : k + 2], scales_a[k : k + 2], scales_b[k : k + 2])
        else:
            value = block_value(dots[k], scales_a[k], scales_b[k])
        code = add(code, value)
    return code
