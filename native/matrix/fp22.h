// FP22, the accumulator's format {sign bit 21, E7 bits 20:14, M14}, in integers: the rule itself, bit by bit.
// The wide kernels hold FP22 values in float32 instead; tests compare them with this file.
// Everything is in an anonymous namespace, because files with different instruction sets include it.
#pragma once

#include <cstdint>

namespace meshwright {
namespace {

constexpr std::uint32_t kFp22Sign = 1u << 21;
constexpr std::uint32_t kFp22Magnitude = kFp22Sign - 1;
constexpr std::uint32_t kFp22Saturated = (127u << 14) | 0x3FFFu;
constexpr int kFp22Bias = 63;
constexpr int kStandardAnchor = 40;

inline int highest_bit(std::uint32_t value) {
#if defined(__GNUC__) || defined(__clang__)
  return 31 - __builtin_clz(value);
#else
  int bit = 0;
  while (value >>= 1) ++bit;
  return bit;
#endif
}

// value * 2^x with value an integer: 15 significant bits, nearest even. E outside 1..126 cannot occur with the
// standard anchor (-46 <= x <= 16 and value < 2^25), nor after a merge of two blocks (value < 2^26).
inline std::uint32_t fp22_from_integer(std::int32_t value, int x) {
  if (value == 0) return 0;
  const std::uint32_t sign = value < 0 ? kFp22Sign : 0;
  std::uint32_t magnitude = value < 0 ? 0u - static_cast<std::uint32_t>(value) : static_cast<std::uint32_t>(value);
  const int top = highest_bit(magnitude);
  int exponent = top + x + kFp22Bias;
  if (top <= 14) {
    magnitude <<= 14 - top;
  } else {
    const int drop = top - 14;
    const std::uint32_t rest = magnitude & ((1u << drop) - 1);
    const std::uint32_t half = 1u << (drop - 1);
    magnitude >>= drop;
    if (rest > half || (rest == half && (magnitude & 1))) ++magnitude;
    if (magnitude >> 15) {
      magnitude >>= 1;
      ++exponent;
    }
  }
  return sign | (static_cast<std::uint32_t>(exponent) << 14) | (magnitude & 0x3FFFu);
}

// The accumulator's add. E = 0 is zero whatever M says.
inline std::uint32_t fp22_add(std::uint32_t a, std::uint32_t b) {
  const bool a_zero = ((a >> 14) & 127) == 0;
  const bool b_zero = ((b >> 14) & 127) == 0;
  if (a_zero || b_zero) return a_zero && b_zero ? 0 : (a_zero ? b : a);
  if ((a & kFp22Magnitude) < (b & kFp22Magnitude)) {
    const std::uint32_t swap = a;
    a = b;
    b = swap;
  }
  int exponent = static_cast<int>((a >> 14) & 127);
  const int distance = exponent - static_cast<int>((b >> 14) & 127);
  const int shift = distance < 23 ? distance : 23;
  const std::uint32_t large = ((a & 0x3FFFu) | 0x4000u) << 8;  // 8 guard bits
  const std::uint32_t small_full = ((b & 0x3FFFu) | 0x4000u) << 8;
  const std::uint32_t small = small_full >> shift;
  const bool lost = (small << shift) != small_full;
  const std::uint32_t sum = ((a ^ b) & kFp22Sign) ? large - small : large + small;
  if (sum == 0) return 0;
  const int top = highest_bit(sum);  // 22 where nothing moved
  exponent += top - 22;
  // 15 bits stay. A carry (top = 23) leaves 9 bits below them, cancellation shifts zeros in.
  const std::uint32_t aligned = sum << (23 - top);
  std::uint32_t kept = aligned >> 9;
  const bool guard = (aligned >> 8) & 1;
  const bool lower = (aligned & 0xFFu) != 0;
  // The sticky bit counts upwards after a subtraction too: that is the machine's rule and not IEEE's.
  if (guard && (lower || lost || (kept & 1))) ++kept;
  if (kept >> 15) {
    kept >>= 1;
    ++exponent;
  }
  if (exponent <= 0) return 0;
  const std::uint32_t sign = a & kFp22Sign;
  if (exponent >= 127) return sign | kFp22Saturated;
  return sign | (static_cast<std::uint32_t>(exponent) << 14) | (kept & 0x3FFFu);
}

// Saturating fp16 without subnormals.
inline std::uint16_t fp22_drain(std::uint32_t code) {
  const std::uint32_t sign = (code & kFp22Sign) ? 0x8000u : 0u;
  const int exponent = static_cast<int>((code >> 14) & 127);
  const std::uint32_t mantissa = code & 0x3FFFu;
  std::uint32_t kept = mantissa >> 4;
  const std::uint32_t rest = mantissa & 15;
  if (rest > 8 || (rest == 8 && (kept & 1))) ++kept;
  const int out = exponent - 48 + static_cast<int>(kept >> 10);
  if (exponent == 0 || out <= 0) return static_cast<std::uint16_t>(sign);
  if (out >= 31) return static_cast<std::uint16_t>(sign | 0x7BFFu);
  return static_cast<std::uint16_t>(sign | (static_cast<std::uint32_t>(out) << 10) | (kept & 0x3FFu));
}

// Scale field {es + 20, m8 - 8}.
inline int field_exponent(std::uint8_t field) { return field >> 3; }
inline int field_m8(std::uint8_t field) { return (field & 7) + 8; }

}  // namespace
}  // namespace meshwright
