// The lane in plain C++ and integers only: any processor, and the second opinion on the vectorised kernels.
#include "kernels.h"

namespace meshwright::lane {
namespace {

using U64 = std::uint64_t;
using I64 = std::int64_t;

struct Value {
  Bits bits;
  explicit Value(Bits b) : bits(b) {}
  Bits sign() const { return bits & kSign; }
  int exponent() const { return int(bits >> 23 & 0xFF); }
  Bits mantissa() const { return bits >> 8 & 0x7FFF; }
  U64 significand() const { return 0x8000u | mantissa(); }
  bool zero() const { return exponent() == 0; }
  bool infinite() const { return exponent() == 255 && mantissa() == 0; }
  bool nan() const { return exponent() == 255 && mantissa() != 0; }
};

int bit_length(U64 value) {
#if defined(__GNUC__) || defined(__clang__)
  return value ? 64 - __builtin_clzll(value) : 0;
#else
  int length = 0;
  for (; value; value >>= 1) ++length;
  return length;
#endif
}

// value without its low `dropped` >= 1 bits, to nearest even; `lost` stands for bits already cut off below.
U64 round_even(U64 value, int dropped, bool lost) {
  const U64 kept = value >> dropped;
  const bool guard = value >> (dropped - 1) & 1;
  const bool below = lost || (value & ((U64{1} << (dropped - 1)) - 1));
  return kept + (guard && (below || (kept & 1)));
}

// The lane value nearest value * 2^unit: overflow to infinity, underflow to a zero of the sign, 0 to +0.
Bits pack(Bits sign, U64 value, int unit, bool lost = false) {
  if (!value) return 0;
  const int length = bit_length(value), dropped = length - 16;
  U64 significand = dropped > 0 ? round_even(value, dropped, lost) : value << -dropped;
  const int carry = int(significand >> 16);
  significand >>= carry;
  const int exponent = length - 1 + unit + 127 + carry;
  if (exponent >= 255) return sign | kInfinity;
  if (exponent <= 0) return sign;
  return sign | Bits(exponent) << 23 | Bits(significand & 0x7FFF) << 8;
}

Bits canonical(Bits bits) {
  const Value x(bits);
  return x.zero() ? 0 : x.nan() ? kNan : bits;
}

Bits fma(Bits a, Bits b, Bits c) {
  const Value x(a), y(b), z(c);
  const Bits sign = x.sign() ^ y.sign();
  if (x.nan() || y.nan() || z.nan()) return kNan;
  if (x.infinite() || y.infinite()) {
    const bool invalid = x.zero() || y.zero() || (z.infinite() && z.sign() != sign);
    return invalid ? kNan : sign | kInfinity;
  }
  if (z.infinite()) return c;
  const int shift = x.exponent() + y.exponent() - z.exponent() - 110;
  if (x.zero() || y.zero() || (shift < 0 && !z.zero())) return z.zero() ? z.sign() : c;
  const I64 product = I64(x.significand() * y.significand());
  I64 addend = 0;
  bool lost = true;  // a zero addend still shifts its implicit one out
  if (!z.zero()) {
    const U64 placed = z.significand() << 32;
    const int reach = shift < 48 ? shift : 48;
    addend = I64(placed >> reach);
    lost = U64(addend) << reach != placed;
  }
  const I64 total = product + (sign == z.sign() ? addend : -addend);
  const int unit = x.exponent() + y.exponent() - 284;
  return total < 0 ? pack(sign ^ kSign, U64(-total), unit, lost) : pack(sign, U64(total), unit, lost);
}

I64 order(Bits bits) {
  const Value x(bits);
  const I64 magnitude = x.zero() ? 0 : I64(bits & ~kSign);
  return x.sign() ? -magnitude : magnitude;
}
bool ordered(Bits a, Bits b) { return !Value(a).nan() && !Value(b).nan(); }
bool less(Bits a, Bits b) { return ordered(a, b) && order(a) < order(b); }
bool equal(Bits a, Bits b) { return ordered(a, b) && order(a) == order(b); }

I64 interpolate(Tables tables, int bank, int index, I64 u) {
  const I64 c0 = coefficients(tables, bank, 0)[index], c1 = coefficients(tables, bank, 1)[index],
            c2 = coefficients(tables, bank, 2)[index];
  const I64 slope = (c2 * u + c1 * 65536 + 32768) >> 16;
  return (slope * u + c0 * 65536 + 32768) >> 16;
}

constexpr I64 kUnit = 1 << 20;

Bits exp2(Bits a, Tables tables) {
  const Value x(a);
  if (x.nan()) return kNan;
  if (x.exponent() >= 135) return x.sign() ? 0 : kInfinity;
  I64 fixed = 0;
  if (!x.zero()) {
    const int shift = x.exponent() - 142 + 17;
    if (shift >= 0) {
      fixed = I64(x.significand()) << shift;
    } else if (shift > -40) {
      fixed = I64(x.significand() + (U64{1} << (-shift - 1))) >> -shift;
    }
    if (x.sign()) fixed = -fixed;
  }
  const int index = int(fixed >> 12 & 31);
  const I64 u = fixed & 4095;
  const int whole = int(((fixed >> 17) + 128) & 255) - 128;
  return pack(0, U64(kUnit + (index || u ? interpolate(tables, kBankExp2, index, u) : 0)), whole - 20);
}

Bits log2(Bits a, Tables tables) {
  const Value x(a);
  if (x.zero()) return kSign | kInfinity;
  if (x.nan() || x.sign()) return kNan;
  if (x.infinite()) return a;
  const int m = int(x.mantissa());
  const I64 value = (x.exponent() - 127) * kUnit + (m ? interpolate(tables, kBankLog2, m >> 10, (m & 1023) << 2) : 0);
  return value < 0 ? pack(kSign, U64(-value), -20) : pack(0, U64(value), -20);
}

Bits inv(Bits a, Tables tables) {
  const Value x(a);
  if (x.nan()) return kNan;
  if (x.zero()) return x.sign() | kInfinity;
  if (x.infinite()) return x.sign();
  const int m = int(x.mantissa());
  const I64 value = m ? interpolate(tables, kBankInv, m >> 10, (m & 1023) << 2) : kUnit;
  return pack(x.sign(), U64(value), 127 - 20 - x.exponent());
}

Bits rsqrt(Bits a, Tables tables) {
  const Value x(a);
  if (x.zero()) return kInfinity;
  if (x.nan() || x.sign()) return kNan;
  if (x.infinite()) return 0;
  const int m = int(x.mantissa());
  const bool odd = !(x.exponent() & 1);  // the bias is odd
  const I64 value = odd || m ? interpolate(tables, odd ? kBankRsqrtOdd : kBankRsqrt, m >> 10, (m & 1023) << 2) : kUnit;
  const int power = x.exponent() - 127 - odd;
  return pack(0, U64(value), -20 - power / 2);
}

std::uint16_t to_fp16(Bits bits) {
  const Value x(bits);
  const Bits sign = x.sign() >> 16;
  if (x.nan()) return std::uint16_t(sign | 0x7E00 | x.mantissa() >> 5);
  if (x.infinite()) return std::uint16_t(sign | 0x7C00);
  if (x.zero()) return std::uint16_t(sign);
  const int exponent = x.exponent() - 112;
  const int dropped = exponent >= 1 ? 5 : 6 - exponent < 40 ? 6 - exponent : 40;
  const U64 base = exponent >= 1 ? U64(exponent - 1) << 10 : 0;
  const U64 rounded = base + round_even(x.significand(), dropped, false);
  return std::uint16_t(sign | (rounded < 0x7BFF ? rounded : 0x7BFF));
}

Bits from_fp16(std::uint16_t half) {
  const Bits sign = Bits(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 31) return sign | kInfinity | fraction << 13;
  if (exponent) return sign | (exponent + 112) << 23 | fraction << 13;
  if (!fraction) return sign;
  return sign | pack(0, fraction, -24);
}

Bits from_fp32(Bits bits) {
  const Bits magnitude = bits & ~kSign;
  if (magnitude < kSmallest) return bits & kSign;
  if (magnitude > kInfinity) return (bits & ~0xFFu) | 0x400000;
  return (bits & kSign) | Bits(round_even(magnitude, 8, false)) << 8;
}

Bits to_fp32(Bits bits) { return Value(bits).zero() ? bits & kSign : bits; }

Bits from_fp22(Bits code) {
  const Bits sign = (code >> 21 & 1) << 31, exponent = code >> 14 & 0x7F, mantissa = code & 0x3FFF;
  return exponent ? sign | (exponent == 127 ? 255 : exponent + 64) << 23 | mantissa << 9 : sign;
}

template <class Function>
inline void each(std::size_t n, Function function) {
  for (std::size_t i = 0; i < n; ++i) function(i);
}

template <class Function>
Bits load(Bits* dst, const void* src, std::size_t n, Function convert) {
  Bits excess = 0;
  for (std::size_t i = 0; i < n; ++i) dst[i] = convert(static_cast<const Bits*>(src)[i], excess);
  return excess;
}

#define LANE_OP(expression) \
  [](Bits* dst, [[maybe_unused]] const Bits* a, [[maybe_unused]] const Bits* b, [[maybe_unused]] const Bits* c, \
     std::size_t n, [[maybe_unused]] Tables t) { each(n, [&](std::size_t i) { dst[i] = (expression); }); }

const Kernels kKernels = {
    {
        LANE_OP(canonical(a[i])),
        LANE_OP(canonical(a[i] ^ kSign)),
        LANE_OP(canonical(a[i] & ~kSign)),
        LANE_OP(fma(a[i], kOne, c[i])),
        LANE_OP(fma(a[i], kOne, c[i] ^ kSign)),
        LANE_OP(fma(a[i], b[i], 0)),
        LANE_OP(fma(a[i], b[i], c[i])),
        LANE_OP(fma(a[i] ^ kSign, b[i], c[i])),
        LANE_OP(canonical(less(a[i], b[i]) ? b[i] : a[i])),
        LANE_OP(canonical(less(b[i], a[i]) ? b[i] : a[i])),
        LANE_OP(canonical(c[i] & ~kSign ? a[i] : b[i])),
        LANE_OP(exp2(a[i], t)),
        LANE_OP(log2(a[i], t)),
        LANE_OP(inv(a[i], t)),
        LANE_OP(rsqrt(a[i], t)),
        LANE_OP(from_fp16(to_fp16(a[i]))),
        LANE_OP(from_fp32(to_fp32(a[i]))),
        LANE_OP(less(a[i], b[i]) ? ~Bits{0} : 0),
        LANE_OP(less(b[i], a[i]) ? ~Bits{0} : 0),
        LANE_OP(equal(a[i], b[i]) ? ~Bits{0} : 0),
    },
    {
        [](Bits* dst, const void* src, std::size_t n) {
          each(n, [&](std::size_t i) { dst[i] = from_fp16(static_cast<const std::uint16_t*>(src)[i]); });
          return Bits{0};
        },
        [](Bits* dst, const void* src, std::size_t n) {
          return load(dst, src, n, [](Bits x, Bits&) { return from_fp32(x); });
        },
        [](Bits* dst, const void* src, std::size_t n) {
          return load(dst, src, n, [](Bits x, Bits& excess) { return excess |= x >> 24, x << 8; });
        },
        [](Bits* dst, const void* src, std::size_t n) {
          return load(dst, src, n, [](Bits x, Bits& excess) { return excess |= x >> 22, from_fp22(x); });
        },
        nullptr,
    },
    {
        [](void* dst, const Bits* src, std::size_t n) {
          each(n, [&](std::size_t i) { static_cast<std::uint16_t*>(dst)[i] = to_fp16(src[i]); });
        },
        [](void* dst, const Bits* src, std::size_t n) {
          each(n, [&](std::size_t i) { static_cast<Bits*>(dst)[i] = to_fp32(src[i]); });
        },
        [](void* dst, const Bits* src, std::size_t n) {
          each(n, [&](std::size_t i) { static_cast<Bits*>(dst)[i] = src[i] >> 8; });
        },
        nullptr,
        [](void* dst, const Bits* src, std::size_t n) {
          each(n, [&](std::size_t i) { static_cast<std::uint8_t*>(dst)[i] = src[i] & 1; });
        },
    },
    [](Bits* even, Bits* odd, const Bits* src, std::size_t n) {
      each(n, [&](std::size_t i) { even[i] = src[2 * i], odd[i] = src[2 * i + 1]; });
    },
    [](Bits* dst, const Bits* src, const Bits* predicate, bool when, std::size_t n) {
      each(n, [&](std::size_t i) { dst[i] = (predicate[i] != 0) == when ? src[i] : dst[i]; });
    },
    [] { return 0u; },
    [](unsigned) {},
};

}  // namespace

const Kernels& scalar_kernels() { return kKernels; }

}  // namespace meshwright::lane
