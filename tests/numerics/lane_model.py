"""The vector lane one value at a time, in exact fractions: slow, and written apart from the numpy twin."""

import math
from fractions import Fraction
from pathlib import Path

import numpy as np

NAN, INFINITY, SIGN = 0x7FC000, 0x7F8000, 0x800000


def golden(name):
    """Arrays of tests/golden/NAME.npz."""
    with np.load(Path(__file__).parent.parent / "golden" / f"{name}.npz") as arrays:
        return dict(arrays)


def fields(code):
    return code >> 23, code >> 15 & 255, code & 0x7FFF


def is_nan(code):
    return code & 0x7FFFFF > INFINITY


def is_infinite(code):
    return code & 0x7FFFFF == INFINITY


def number(code):
    """The value of a finite code."""
    sign, exponent, mantissa = fields(code)
    magnitude = Fraction(0x8000 | mantissa) * Fraction(2) ** (exponent - 142) if exponent else Fraction(0)
    return -magnitude if sign else magnitude


def nearest_even(value):
    """A non-negative fraction to an integer."""
    whole, rest = divmod(value, 1)
    return int(whole) + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1))


def encode(value, sign=0):
    """Nearest code, ties to even; overflow to infinity, underflow to a zero of the value's sign; 0 takes `sign`."""
    if value == 0:
        return sign << 23
    top = (value < 0) << 23
    value = abs(value)
    power = value.numerator.bit_length() - value.denominator.bit_length()
    power -= Fraction(2) ** power > value
    significand = nearest_even(value / Fraction(2) ** (power - 15))
    if significand == 0x10000:
        significand, power = 0x8000, power + 1
    if power > 127:
        return top | INFINITY
    return top | (power + 127) << 15 | significand & 0x7FFF if power >= -126 else top


def fma(a, b, c):
    if is_nan(a) or is_nan(b) or is_nan(c):
        return NAN
    sign = (a ^ b) & SIGN
    if is_infinite(a) or is_infinite(b):
        finite_zero = (not is_infinite(a) and number(a) == 0) or (not is_infinite(b) and number(b) == 0)
        return NAN if finite_zero or (is_infinite(c) and c & SIGN != sign) else sign | INFINITY
    if is_infinite(c):
        return c
    addend, product = number(c), number(a) * number(b)
    if product == 0:
        return c if addend else c & SIGN
    # The window: 2^30 or more of the product's units hold the product, below 2^48 the addend.
    unit = Fraction(2) ** ((a >> 15 & 255) + (b >> 15 & 255) - 284)
    if addend and Fraction(2) ** ((c >> 15 & 255) - 127) >= unit * 2**48:
        return c
    kept = math.trunc(addend / unit) * unit
    total = product + kept
    if kept != addend or addend == 0:
        # The sticky bit pushes away from zero by less than any unit, whatever the sign of what was lost.
        total += (unit if total > 0 else -unit) / 2
    return encode(total)


def canonical(code):
    if is_nan(code):
        return NAN
    return code if code >> 15 & 255 else 0


def less(a, b):
    if is_nan(a) or is_nan(b):
        return False

    def key(code):
        return (-math.inf if code & SIGN else math.inf) if is_infinite(code) else number(code)

    return key(a) < key(b)


def quadratics(function):
    """Coefficients of 32 segments, by Newton's divided differences in float64: far from any tie, so the same."""
    nodes = [0.5 + math.cos((2 * j + 1) * math.pi / 6) / 2 for j in range(3)]
    rows = []
    for segment in range(32):
        values = [function((segment + x) / 32) for x in nodes]
        first = (values[1] - values[0]) / (nodes[1] - nodes[0])
        second = ((values[2] - values[1]) / (nodes[2] - nodes[1]) - first) / (nodes[2] - nodes[0])
        c1 = first - second * (nodes[0] + nodes[1])
        c0 = values[0] - first * nodes[0] + second * nodes[0] * nodes[1]
        rows.append((round(c0 * 2**20), round(c1 * 2**24), round(second * 2**28)))
    return rows


TABLES = {
    "exp2": quadratics(lambda f: 2**f - 1),
    "log2": quadratics(lambda f: math.log2(1 + f)),
    "inv": quadratics(lambda f: 1 / (1 + f)),
    "rsqrt": quadratics(lambda f: 1 / math.sqrt(1 + f)),
    "rsqrt_odd": quadratics(lambda f: 1 / math.sqrt(2 * (1 + f))),
}


def quadratic(bank, index, u):
    c0, c1, c2 = TABLES[bank][index]
    slope = (c2 * u + c1 * 2**16 + 2**15) // 2**16
    return Fraction((slope * u + c0 * 2**16 + 2**15) // 2**16, 2**20)


def at_mantissa(bank, code, exactly):
    mantissa = code & 0x7FFF
    return Fraction(exactly) if not mantissa else quadratic(bank, mantissa >> 10, (mantissa & 1023) * 4)


def exp2(a):
    if is_nan(a):
        return NAN
    if is_infinite(a) or abs(number(a)) >= 256:
        return 0 if a & SIGN else INFINITY
    magnitude = math.floor(abs(number(a)) * 2**17 + Fraction(1, 2))
    whole, rest = divmod(-magnitude if a & SIGN else magnitude, 2**17)
    whole = (whole + 128) % 256 - 128
    value = 1 + (quadratic("exp2", rest >> 12, rest & 4095) if rest else 0)
    return encode(value * Fraction(2) ** whole)


def log2(a):
    sign, exponent, _ = fields(a)
    if exponent == 0:
        return SIGN | INFINITY
    if is_nan(a) or sign:
        return NAN
    return a if is_infinite(a) else encode(exponent - 127 + at_mantissa("log2", a, 0))


def inv(a):
    sign, exponent, _ = fields(a)
    if is_nan(a):
        return NAN
    if exponent == 0 or is_infinite(a):
        return sign << 23 | (0 if exponent else INFINITY)
    value = at_mantissa("inv", a, 1) * Fraction(2) ** (127 - exponent)
    return encode(-value if sign else value)


def rsqrt(a):
    sign, exponent, _ = fields(a)
    if exponent == 0:
        return INFINITY
    if is_nan(a) or sign:
        return NAN
    if is_infinite(a):
        return 0
    half, odd = divmod(exponent - 127, 2)
    value = quadratic("rsqrt_odd", (a & 0x7FFF) >> 10, (a & 1023) * 4) if odd else at_mantissa("rsqrt", a, 1)
    return encode(value * Fraction(2) ** -half)


ONE = 0x3F8000
APPLY = {
    "mov": lambda a, b, c: canonical(a),
    "neg": lambda a, b, c: canonical(a ^ SIGN),
    "abs": lambda a, b, c: canonical(a & ~SIGN),
    "add": lambda a, b, c: fma(a, ONE, c),
    "sub": lambda a, b, c: fma(a, ONE, c ^ SIGN),
    "mul": lambda a, b, c: fma(a, b, 0),
    "fma": fma,
    "fnma": lambda a, b, c: fma(a ^ SIGN, b, c),
    "max": lambda a, b, c: canonical(b if less(a, b) else a),
    "min": lambda a, b, c: canonical(b if less(b, a) else a),
    "sel": lambda a, b, c: canonical(a if c & ~SIGN else b),
    "exp2": lambda a, b, c: exp2(a),
    "log2": lambda a, b, c: log2(a),
    "inv": lambda a, b, c: inv(a),
    "rsqrt": lambda a, b, c: rsqrt(a),
}


def apply(op, *operands):
    """An opcode over arrays of codes, value by value."""
    return np.array([APPLY[op](*values) for values in zip(*(x.tolist() for x in operands), strict=True)], np.uint32)


def reduce(kind, x, y):
    """One row: beats pairwise, to 16 rotating accumulators, those pairwise."""
    fold = APPLY[kind if kind in ("max", "min") else "add"]
    leaf = {"sumsq": lambda a, b: fma(a, a, 0), "dot": lambda a, b: fma(a, b, 0), "expsum": lambda a, b: exp2(a)}
    beat = 8 if kind in leaf else 16
    leaves = [leaf.get(kind, lambda a, b: a)(a, b) for a, b in zip(x, y, strict=True)]
    accumulators = [{"max": SIGN | INFINITY, "min": INFINITY}.get(kind, 0)] * 16

    def tree(values):
        if len(values) == 1:
            return values[0]
        left, right = tree(values[: len(values) // 2]), tree(values[len(values) // 2 :])
        return fold(left, right, right)

    for number_, start in enumerate(range(0, len(leaves), beat)):
        total = tree(leaves[start : start + beat])
        accumulators[number_ % 16] = fold(accumulators[number_ % 16], total, total)
    return tree(accumulators)
