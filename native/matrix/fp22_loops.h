// Branch-free loops over FP22 codes and values, for compilers to vectorise. FP22 values are held in float32: E7 fits
// in its exponent, M14 in the top 14 of its 23 fraction bits.
// In an anonymous namespace, because files with different instruction sets include it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace meshwright {
namespace {

constexpr std::uint32_t kLoopSign = 1u << 21;
constexpr std::uint32_t kLoopExponent = 127u << 14;
constexpr std::uint32_t kLoopMagnitude = kLoopSign - 1;
constexpr std::uint32_t kBiasShift = 64;  // float32's bias 127 less FP22's 63

inline float float_of(std::uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

// E = 0 is +0 whatever the sign and M say.
inline std::uint32_t value_bits(std::uint32_t code) {
  const std::uint32_t bits =
      ((code & kLoopSign) << 10) | (((code & kLoopMagnitude) << 9) + (kBiasShift << 23));
  return (code & kLoopExponent) ? bits : 0;
}

// A value between 2^-62 and the largest FP22 value, or zero.
inline std::uint32_t code_of(std::uint32_t bits) {
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t code = ((bits >> 10) & kLoopSign) | ((magnitude >> 9) - (kBiasShift << 14));
  return magnitude ? code : 0;
}

constexpr float kLeastNormalFp16 = 0x1p-14f - 0x1p-26f;  // the least that makes 2^-14 when it is rounded to 11 bits

inline std::uint32_t drained(std::uint32_t code) {
  const std::uint32_t magnitude = code & kLoopMagnitude;
  const std::uint32_t sign = (code & kLoopSign) >> 6;
  // Nearest even on the four bits that go; a carry runs on into the exponent, as it should.
  const std::uint32_t rounded = (magnitude + 7 + ((magnitude >> 4) & 1)) >> 4;
  const std::uint32_t finite = rounded < (79u << 10) ? rounded - (48u << 10) : 0x7BFFu;
  return sign | (rounded < (49u << 10) ? 0 : finite);
}

// How much of a value with these magnitude bits stays above the guard bits of one whose exponent is that of
// `larger` (all 23 fraction bits set, so that the subtraction can't borrow): the mask to cut it with.
inline std::uint32_t guard_mask(std::uint32_t larger, std::uint32_t magnitude) {
  const std::uint32_t distance = (larger - magnitude) >> 23;
  // Eight guard bits below 15 significant ones make a unit 2^(E - 22), bit `distance + 1` of the fraction.
  return ~1u << (distance > 22 ? 30 : distance);
}

// The accumulator's add of two values, before it flushes or saturates.
inline std::uint32_t sum_bits(std::uint32_t a, std::uint32_t b) {
  const std::uint32_t a_magnitude = a & 0x7FFFFFFFu;
  const std::uint32_t b_magnitude = b & 0x7FFFFFFFu;
  const std::uint32_t larger = (a_magnitude > b_magnitude ? a_magnitude : b_magnitude) | 0x7FFFFFu;
  // For the larger of the two the mask takes fraction bit 0 only, which is zero.
  const std::uint32_t a_kept = a & guard_mask(larger, a_magnitude);
  const std::uint32_t b_kept = b & guard_mask(larger, b_magnitude);
  const std::uint32_t lost = ((a ^ a_kept) | (b ^ b_kept)) ? 1 : 0;
  // Exact: a multiple of 2^(E - 22) below 2^(E + 2). Its fraction bit 0 is free unless it is a multiple of twice
  // that, or nothing was lost; either way setting it says "a little more than this" and no more.
  const std::uint32_t s = bits_of(float_of(a_kept) + float_of(b_kept)) | lost;
  // Nearest even at 15 bits: next to +-2^(E + 9) float32's own unit is 2^(E - 14).
  const float anchor = float_of((s & 0xFF800000u) + (9u << 23));
  const float rounded = (float_of(s) + anchor) - anchor;
  return bits_of(rounded);
}

inline std::uint32_t added(std::uint32_t tile, std::uint32_t peer) {
  const std::uint32_t sum = sum_bits(value_bits(tile), value_bits(peer));
  const std::uint32_t magnitude = sum & 0x7FFFFFFFu;
  const std::uint32_t sign = (sum >> 10) & kLoopSign;
  std::uint32_t code = sign | ((magnitude >> 9) - (kBiasShift << 14));
  code = magnitude < ((kBiasShift + 1) << 23) ? 0 : code;
  code = magnitude >= ((kBiasShift + 127) << 23) ? (sign | kLoopMagnitude) : code;
  // One zero leaves the other as it is, all-ones exponent and all; two zeros are +0.
  const bool tile_zero = (tile & kLoopExponent) == 0;
  const bool peer_zero = (peer & kLoopExponent) == 0;
  code = peer_zero ? tile : code;
  code = tile_zero ? peer : code;
  return tile_zero && peer_zero ? 0 : code;
}

void loop_add(const std::uint32_t* tile, const std::uint32_t* peer, std::uint32_t* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = added(tile[i], peer[i]);
}

void loop_drain(const std::uint32_t* codes, std::uint16_t* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<std::uint16_t>(drained(codes[i]));
}

// Rows of `Width` values become codes in rows `stride` apart, `columns` of them. A few rows at a time, in one loop
// that is long enough to be worth vectors whatever their width, and then copied to where they belong.
template <int Width>
void rows_to_codes(const float* values, std::size_t rows, std::size_t columns, std::uint32_t* codes,
                   std::size_t stride) {
  constexpr std::size_t kRowsAtOnce = 16;
  std::uint32_t converted[kRowsAtOnce * Width];
  while (rows > 0) {
    const std::size_t count = rows < kRowsAtOnce ? rows : kRowsAtOnce;
    for (std::size_t i = 0; i < count * Width; ++i) converted[i] = code_of(bits_of(values[i]));
    for (std::size_t row = 0; row < count; ++row, codes += stride) {
      const std::uint32_t* from = converted + row * Width;
      if (columns == Width) {
        __builtin_memcpy(codes, from, Width * sizeof(std::uint32_t));
      } else {
        for (std::size_t i = 0; i < columns; ++i) codes[i] = from[i];
      }
    }
    values += count * Width;
    rows -= count;
  }
}

template <int Width>
void rows_from_codes(const std::uint32_t* codes, std::size_t stride, std::size_t rows, std::size_t columns,
                     float* values) {
  for (std::size_t row = 0; row < rows; ++row, codes += stride, values += Width) {
    for (std::size_t i = 0; i < columns; ++i) values[i] = float_of(value_bits(codes[i]));
  }
}

}  // namespace
}  // namespace meshwright
