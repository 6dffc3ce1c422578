// The lane on float32 vectors, written once over a wrapper `V` of an instruction set (simd_avx2.h, simd_avx512.h).
//
// The processor rounds toward zero meanwhile and takes subnormals for zeros (`enter`). A float32 operation then gives
// the top 24 bits of the exact result, which settle the machine's rounding to 16 except in a few patterns of the low
// bits, for zeros, and for specials; a vector with one of those lanes goes through `exact`, the whole rule in float64.
// Everything is in an unnamed namespace, so that no function compiled for this instruction set serves another.
#pragma once

#include <immintrin.h>

#include "kernels.h"

namespace meshwright::lane {
namespace {

template <class V>
struct Simd {
  using F = typename V::F;
  using I = typename V::I;
  using M = typename V::M;
  using D = typename V::D;

  static I set(Bits value) { return V::set(int(value)); }
  static I magnitude(I x) { return V::and_(x, set(~kSign)); }
  static I sign(I x) { return V::and_(x, set(kSign)); }
  static I flip(I x) { return V::xor_(x, set(kSign)); }
  static M is_nan(I mag) { return V::greater(mag, set(kInfinity)); }
  static M is_zero(I mag) { return V::greater(set(kSmallest), mag); }

  // To 16 bits of significand: nearest even of a 24-bit one; the other where the sticky bit is known to be set.
  static I round_even(I x) {
    const I odd = V::and_(V::template shift_right<8>(x), set(1));
    return V::and_(V::add(V::add(x, set(0x7F)), odd), set(~0xFFu));
  }
  static I round_up(I x) { return V::and_(V::add(x, set(0x80)), set(~0xFFu)); }

  static I canonical(I x) {
    const I mag = magnitude(x);
    return V::select(is_nan(mag), set(kNan), V::keep_unless(is_zero(mag), x));
  }

  // Half a vector of a*b + c by the machine's rule, for finite operands. The product is exact. `magnet` has the
  // product's unit, so adding and subtracting it truncates c to the window; see the numpy twin for the rule.
  static D exact_half(D a, D b, D c) {
    const D product = V::mul(a, b);
    const D scale = V::mul(V::power(a), V::power(b));  // the product's unit is 2^-30 of this
    const D magnet = V::or_(V::mul(scale, V::set(0x1p22)), V::sign(c));
    const D aligned = V::sub(V::add(magnet, c), magnet);
    const auto lost = V::either(V::differ(aligned, c), V::equal(c, V::set(0.0)));
    D result = V::round_to_16(V::set_lowest_where(lost, V::add(product, aligned)));
    const auto kept = V::either(V::not_below(V::abs(c), V::mul(scale, V::set(0x1p18))),
                                V::equal(scale, V::set(0.0)));
    result = V::select(kept, c, result);
    const auto over = V::not_below(V::abs(result), V::set(0x1p128));
    return V::select(over, V::or_(V::set(__builtin_inf()), V::sign(result)), result);
  }

  // Out of line: the loops that call it stay short.
  __attribute__((noinline)) static I exact(I a, I b, I c) {
    const F x = V::as_float(a), y = V::as_float(b), z = V::as_float(c);
    I result = V::as_int(V::join(exact_half(V::low(x), V::low(y), V::low(z)),
                                 exact_half(V::high(x), V::high(y), V::high(z))));
    result = V::select(is_zero(magnitude(result)), sign(result), result);
    const I infinity = set(kInfinity);
    const M finite = V::both(V::both(V::greater(infinity, magnitude(a)), V::greater(infinity, magnitude(b))),
                             V::greater(infinity, magnitude(c)));
    result = V::select(finite, result, V::as_int(V::fma(x, y, z)));
    return V::select(is_nan(magnitude(result)), set(kNan), result);
  }

  static I add(I a, I c) {
    const F x = V::as_float(a), z = V::as_float(c);
    const F sum = V::add(x, z);
    // Rounded toward zero, the sum gives back c only if it was exact.
    const M inexact = V::differ(V::sub(sum, x), z);
    const I bits = V::or_where(inexact, V::as_int(sum), set(1));
    // Just below a tie, the part of c that left the window may have been what brought it below.
    const M below_tie = V::both(inexact, V::equal(V::and_(bits, set(0xFF)), set(0x7F)));
    if (V::any(V::either(V::abnormal(bits), below_tie))) return exact(a, set(kOne), c);
    return round_even(bits);
  }

  static I mul(I a, I b) {
    const I bits = V::as_int(V::mul(V::as_float(a), V::as_float(b)));
    const I rounded = round_up(bits);  // up: the zero addend's sticky bit
    const M abnormal = V::abnormal(bits);
    if (!V::any(abnormal)) return rounded;
    const M zero = V::either(is_zero(magnitude(a)), is_zero(magnitude(b)));
    const M settled = V::both(zero, is_zero(magnitude(bits)));
    if (V::any(V::both(abnormal, V::negate(settled)))) return exact(a, b, set(0));
    return V::keep_unless(zero, rounded);
  }

  static I fma(I a, I b, I c) {
    const I bits = V::as_int(V::fma(V::as_float(a), V::as_float(b), V::as_float(c)));
    // Low bits 0x7F or 0x80: a tie, or just below one. All ones above a clear guard bit: a product taken off a power
    // of two that the machine may return as it is.
    const M tie = V::equal(V::and_(V::add(bits, set(1)), set(0xFE)), set(0x80));
    const M ones = V::equal(V::and_(bits, set(0x7FFF80)), set(0x7FFF00));
    if (V::any(V::either(V::abnormal(bits), V::either(tie, ones)))) return exact(a, b, c);
    return round_up(bits);
  }

  static M less(I a, I b) { return V::less(V::as_float(a), V::as_float(b)); }

  // c2 u fits in 32 bits; slope u does as an unsigned number in the banks that rise, as a signed one in those that fall.
  template <bool kRises>
  static I interpolate(Tables tables, int bank, I index, I u) {
    const I c0 = V::lookup(coefficients(tables, bank, 0), index), c1 = V::lookup(coefficients(tables, bank, 1), index),
            c2 = V::lookup(coefficients(tables, bank, 2), index);
    const I half = set(0x8000);
    const I slope = V::add(c1, V::template shift_right_signed<16>(V::add(V::mul(c2, u), half)));
    const I product = V::add(V::mul(slope, u), half);
    return V::add(c0, kRises ? V::template shift_right<16>(product) : V::template shift_right_signed<16>(product));
  }

  static I exponent(I mag) { return V::template shift_right<23>(mag); }
  static I scaled(I bits, I power) { return V::add(bits, V::template shift_left<23>(power)); }

  static I exp2(I a, Tables tables) {
    const I mag = magnitude(a);
    const M far = V::greater(mag, set(0x437FFFFFu));  // 256 and on
    const I near = V::keep_unless(far, mag);
    const F scaled_up = V::mul(V::as_float(near), V::set_float(0x1p17f));
    const I positive = V::truncate(V::add(scaled_up, V::set_float(0.5f)));
    const M negative = V::greater(set(0), a);
    const I fixed = V::select(negative, V::sub(set(0), positive), positive);
    const I index = V::and_(V::template shift_right<12>(fixed), set(31)), u = V::and_(fixed, set(4095));
    const M whole = V::equal(V::and_(fixed, set(0x1FFFF)), set(0));
    const I fraction = V::keep_unless(whole, interpolate<true>(tables, kBankExp2, index, u));
    const I power = V::template shift_right_signed<24>(V::template shift_left<7>(fixed));
    const I bits = round_even(V::as_int(V::to_float(V::add(fraction, set(1u << 20)))));
    const M under = V::greater(set(1), V::add(power, V::sub(exponent(bits), set(20))));
    I result = V::keep_unless(under, scaled(bits, V::sub(power, set(20))));
    result = V::select(far, V::keep_unless(negative, set(kInfinity)), result);
    return V::select(is_nan(mag), set(kNan), result);
  }

  static I mantissa_index(I a) { return V::and_(V::template shift_right<18>(a), set(31)); }
  static I mantissa_position(I a) { return V::and_(V::template shift_right<6>(a), set(0xFFC)); }
  static M mantissa_zero(I a) { return V::equal(V::and_(a, set(0x7FFF00)), set(0)); }

  static I log2(I a, Tables tables) {
    const I mag = magnitude(a);
    const I table = interpolate<true>(tables, kBankLog2, mantissa_index(a), mantissa_position(a));
    const I power = V::sub(exponent(mag), set(127));
    const I value = V::add(V::template shift_left<20>(power), V::keep_unless(mantissa_zero(a), table));
    const M negative = V::greater(set(0), value);
    const I size = V::select(negative, V::sub(set(0), value), value);
    const F number = V::to_float(size);  // up to 28 bits, rounded toward zero
    const M exact = V::equal(V::truncate(number), size);
    const I bits = round_even(V::or_where(V::negate(exact), V::as_int(number), set(1)));
    I result = V::keep_unless(V::equal(size, set(0)), V::sub(bits, set(20u << 23)));
    result = V::or_where(negative, result, set(kSign));
    result = V::select(V::equal(mag, set(kInfinity)), set(kInfinity), result);
    result = V::select(V::either(V::greater(set(0), a), is_nan(mag)), set(kNan), result);
    return V::select(is_zero(mag), set(kSign | kInfinity), result);
  }

  static I inv(I a, Tables tables) {
    const I mag = magnitude(a);
    const I table = interpolate<false>(tables, kBankInv, mantissa_index(a), mantissa_position(a));
    const I value = V::select(mantissa_zero(a), set(1u << 20), table);
    const I bits = round_even(V::as_int(V::to_float(value)));
    const I power = V::sub(set(107), exponent(mag));
    const M under = V::greater(set(1), V::add(power, exponent(bits)));
    I result = V::keep_unless(under, scaled(bits, power));
    result = V::select(is_zero(mag), set(kInfinity), result);
    result = V::or_(V::keep_unless(V::equal(mag, set(kInfinity)), result), sign(a));
    return V::select(is_nan(mag), set(kNan), result);
  }

  static I rsqrt(I a, Tables tables) {
    const I mag = magnitude(a), index = mantissa_index(a), u = mantissa_position(a);
    const I table = interpolate<false>(tables, kBankRsqrt, index, u);
    const I even = V::select(mantissa_zero(a), set(1u << 20), table);
    const I odd = interpolate<false>(tables, kBankRsqrtOdd, index, u);
    const I power = V::sub(exponent(mag), set(127));
    const M is_odd = V::equal(V::and_(power, set(1)), set(1));
    const I bits = round_even(V::as_int(V::to_float(V::select(is_odd, odd, even))));
    I result = scaled(bits, V::sub(set(Bits(-20)), V::template shift_right_signed<1>(power)));
    result = V::keep_unless(V::equal(mag, set(kInfinity)), result);
    result = V::select(V::either(V::greater(set(0), a), is_nan(mag)), set(kNan), result);
    return V::select(is_zero(mag), set(kInfinity), result);
  }

  // Conversions. fp16 in: the processor's own, but for a NaN, which the machine takes without making it quiet.
  static I from_half(typename V::H half) {
    const I wide = V::widen(half), rest = V::and_(wide, set(0x7FFF));
    const I nan = V::or_(V::or_(V::template shift_left<16>(V::and_(wide, set(0x8000))), set(kInfinity)),
                         V::template shift_left<13>(rest));
    return V::select(V::greater(rest, set(0x7C00)), nan, V::as_int(V::half_to_float(half)));
  }
  static typename V::H to_half(I x) {
    const I mag = magnitude(x), largest = set(0x477FE000u);  // 65504
    const M clamp = V::both(V::greater(mag, largest), V::greater(set(kInfinity), mag));
    return V::float_to_half(V::as_float(V::select(clamp, V::or_(largest, sign(x)), x)));
  }
  static I from_single(I x) {
    const I mag = magnitude(x);
    const I nan = V::or_(V::and_(x, set(~0xFFu)), set(0x400000));
    const I number = V::select(is_zero(mag), sign(x), round_even(x));
    return V::select(is_nan(mag), nan, number);
  }
  static I to_single(I x) { return V::select(is_zero(magnitude(x)), sign(x), x); }
  static I from_accumulator(I code) {
    const I top = V::template shift_left<31>(V::template shift_right<21>(code));
    const I field = V::and_(V::template shift_right<14>(code), set(0x7F));
    const I biased = V::select(V::equal(field, set(127)), set(255), V::add(field, set(64)));
    const I number = V::or_(V::template shift_left<23>(biased),
                            V::template shift_left<9>(V::and_(code, set(0x3FFF))));
    return V::or_(top, V::keep_unless(V::equal(field, set(0)), number));
  }
};

// Whole vectors of each operation over buffers that are padded for it.
template <class V>
struct Loops {
  using S = Simd<V>;
  using I = typename V::I;
  static constexpr std::size_t kWidth = V::kWidth;

  template <class Function>
  static void each(std::size_t n, Function function) {
    for (std::size_t i = 0; i < n; i += kWidth) function(i);
  }

  // Exactly n elements: the tail goes through a vector's worth of memory.
  template <class Element, class Convert>
  static Bits load(Bits* dst, const void* src, std::size_t n, Convert convert) {
    const Element* from = static_cast<const Element*>(src);
    I excess = S::set(0);
    std::size_t i = 0;
    for (; i + kWidth <= n; i += kWidth) V::store_unaligned(dst + i, convert(from + i, excess));
    if (i < n) {
      alignas(64) Element in[kWidth] = {};
      alignas(64) Bits out[kWidth];
      __builtin_memcpy(in, from + i, (n - i) * sizeof(Element));
      V::store_unaligned(out, convert(in, excess));
      __builtin_memcpy(dst + i, out, (n - i) * sizeof(Bits));
    }
    alignas(64) Bits found[kWidth];
    V::store_unaligned(found, excess);
    Bits all = 0;
    for (Bits bits : found) all |= bits;
    return all;
  }

  template <class Element, class Convert>
  static void store(void* dst, const Bits* src, std::size_t n, Convert convert) {
    Element* to = static_cast<Element*>(dst);
    std::size_t i = 0;
    for (; i + kWidth <= n; i += kWidth) convert(to + i, V::load(src + i));
    if (i < n) {
      alignas(64) Element out[kWidth];
      convert(out, V::load(src + i));
      __builtin_memcpy(to + i, out, (n - i) * sizeof(Element));
    }
  }

  // MXCSR: exceptions masked, round toward zero, subnormals flushed on the way in and out.
  static unsigned enter() {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(0x1F80u | 0x6000u | 0x8000u | 0x0040u);
    return before;
  }
  static void leave(unsigned state) { _mm_setcsr(state); }
};

#define LANE_OP(expression)                                                                                        \
  [](Bits* dst, [[maybe_unused]] const Bits* pa, [[maybe_unused]] const Bits* pb, [[maybe_unused]] const Bits* pc, \
     std::size_t n, [[maybe_unused]] Tables t) {                                                                   \
    L::each(n, [&](std::size_t i) {                                                                                \
      [[maybe_unused]] const I a = V::load(pa + i), b = V::load(pb + i), c = V::load(pc + i);                      \
      V::store(dst + i, (expression));                                                                             \
    });                                                                                                            \
  }

template <class V>
Kernels make_kernels() {
  using S = Simd<V>;
  using L = Loops<V>;
  using I = typename V::I;
  return {
      {
          LANE_OP(S::canonical(a)),
          LANE_OP(S::canonical(S::flip(a))),
          LANE_OP(S::canonical(S::magnitude(a))),
          LANE_OP(S::add(a, c)),
          LANE_OP(S::add(a, S::flip(c))),
          LANE_OP(S::mul(a, b)),
          LANE_OP(S::fma(a, b, c)),
          LANE_OP(S::fma(S::flip(a), b, c)),
          LANE_OP(S::canonical(V::select(S::less(a, b), b, a))),
          LANE_OP(S::canonical(V::select(S::less(b, a), b, a))),
          LANE_OP(S::canonical(V::select(V::equal(S::magnitude(c), S::set(0)), b, a))),
          LANE_OP(S::exp2(a, t)),
          LANE_OP(S::log2(a, t)),
          LANE_OP(S::inv(a, t)),
          LANE_OP(S::rsqrt(a, t)),
          LANE_OP(S::from_half(S::to_half(a))),
          LANE_OP(S::from_single(S::to_single(a))),
          LANE_OP(V::spread(S::less(a, b))),
          LANE_OP(V::spread(S::less(b, a))),
          LANE_OP(V::spread(V::equal_float(V::as_float(a), V::as_float(b)))),
      },
      {
          [](Bits* dst, const void* src, std::size_t n) {
            return L::template load<std::uint16_t>(
                dst, src, n, [](const std::uint16_t* p, I&) { return S::from_half(V::load_half(p)); });
          },
          [](Bits* dst, const void* src, std::size_t n) {
            return L::template load<Bits>(dst, src, n,
                                          [](const Bits* p, I&) { return S::from_single(V::load_unaligned(p)); });
          },
          [](Bits* dst, const void* src, std::size_t n) {
            return L::template load<Bits>(dst, src, n, [](const Bits* p, I& excess) {
              const I code = V::load_unaligned(p);
              excess = V::or_(excess, V::template shift_right<24>(code));
              return V::template shift_left<8>(code);
            });
          },
          [](Bits* dst, const void* src, std::size_t n) {
            return L::template load<Bits>(dst, src, n, [](const Bits* p, I& excess) {
              const I code = V::load_unaligned(p);
              excess = V::or_(excess, V::template shift_right<22>(code));
              return S::from_accumulator(code);
            });
          },
          nullptr,
      },
      {
          [](void* dst, const Bits* src, std::size_t n) {
            L::template store<std::uint16_t>(dst, src, n,
                                             [](std::uint16_t* p, I x) { V::store_half(p, S::to_half(x)); });
          },
          [](void* dst, const Bits* src, std::size_t n) {
            L::template store<Bits>(dst, src, n, [](Bits* p, I x) { V::store_unaligned(p, S::to_single(x)); });
          },
          [](void* dst, const Bits* src, std::size_t n) {
            L::template store<Bits>(dst, src, n,
                                    [](Bits* p, I x) { V::store_unaligned(p, V::template shift_right<8>(x)); });
          },
          nullptr,
          [](void* dst, const Bits* src, std::size_t n) {
            for (std::size_t i = 0; i < n; ++i) static_cast<std::uint8_t*>(dst)[i] = src[i] & 1;
          },
      },
      [](Bits* even, Bits* odd, const Bits* src, std::size_t n) {
        L::each(n, [&](std::size_t i) {
          I first = V::load(src + 2 * i), second = V::load(src + 2 * i + L::kWidth);
          V::unzip(first, second);
          V::store(even + i, first);
          V::store(odd + i, second);
        });
      },
      [](Bits* dst, const Bits* src, const Bits* predicate, bool when, std::size_t n) {
        const I all = S::set(when ? ~Bits{0} : 0);
        L::each(n, [&](std::size_t i) {
          V::store(dst + i, V::select(V::equal(V::load(predicate + i), all), V::load(src + i), V::load(dst + i)));
        });
      },
      &L::enter,
      &L::leave,
  };
}

#undef LANE_OP

}  // namespace
}  // namespace meshwright::lane
