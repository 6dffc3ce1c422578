// The MXFP7 quantiser and the elementwise kernels with AVX2.
#include <immintrin.h>

#include "fp22_loops.h"
#include "kernels_avx2.h"
#include "quantise_block.h"

namespace meshwright {
namespace {

inline std::uint32_t peak_of(__m256i low, __m256i high) {
  const __m256i half = _mm256_max_epu16(low, high);
  const __m128i quarter = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  // The processor finds a minimum in one instruction; the complement of the magnitudes makes it the maximum.
  const __m128i least = _mm_minpos_epu16(_mm_xor_si128(quarter, _mm_set1_epi16(-1)));
  return static_cast<std::uint32_t>(~_mm_cvtsi128_si32(least)) & 0xFFFFu;
}

// Sixteen signed results in words; the rule and its bounds are spelled out in quantise_avx512.cpp.
inline __m256i quantised(__m256i x, __m256i magnitude, __m256i reciprocal, __m256i shift_base) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i field = _mm256_srli_epi16(magnitude, 10);
  const __m256i subnormal = _mm256_cmpeq_epi16(field, zero);
  const __m256i exponent = _mm256_max_epu16(field, _mm256_set1_epi16(1));
  const __m256i fraction = _mm256_and_si256(magnitude, _mm256_set1_epi16(1023));
  const __m256i significand =
      _mm256_or_si256(fraction, _mm256_andnot_si256(subnormal, _mm256_set1_epi16(1024)));
  const __m256i top = _mm256_mulhi_epu16(_mm256_add_epi16(significand, significand), reciprocal);
  // There is no variable shift of words. `top` is below 2^8, so top >> s is the high byte of top * 2^(8 - s), with
  // the power looked up byte by byte: 256, which doesn't fit a byte, is 128 doubled; from s = 9 on it is zero.
  const __m256i shift = _mm256_min_epu16(_mm256_sub_epi16(shift_base, exponent), _mm256_set1_epi16(15));
  const __m256i halves = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(static_cast<char>(128), 64, 32, 16, 8, 4, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0));
  const __m256i index = _mm256_or_si256(shift, _mm256_set1_epi16(static_cast<short>(0x8000)));  // high byte: zero
  const __m256i power = _mm256_shuffle_epi8(halves, index);
  // s = 8 has no power of its own in the table of halves (2^-1): top >> 8 is zero, as is the table's entry.
  const __m256i shifted = _mm256_srli_epi16(_mm256_mullo_epi16(top, power), 7);
  const __m256i rounded = _mm256_avg_epu16(shifted, zero);
  const __m256i capped = _mm256_min_epu16(rounded, _mm256_set1_epi16(63));
  // The sign of x, with zero counted as positive: x | 1 is never zero.
  return _mm256_sign_epi16(capped, _mm256_or_si256(x, _mm256_set1_epi16(1)));
}

inline void quantise_block(const std::uint16_t* x, std::int8_t* q, std::uint8_t* scale) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 16));
  const __m256i magnitude_mask = _mm256_set1_epi16(0x7FFF);
  const __m256i low_magnitude = _mm256_and_si256(low, magnitude_mask);
  const __m256i high_magnitude = _mm256_and_si256(high, magnitude_mask);
  const BlockScale chosen = block_scale(peak_of(low_magnitude, high_magnitude));
  *scale = chosen.field;
  const __m256i reciprocal = _mm256_set1_epi16(static_cast<short>(chosen.reciprocal));
  const __m256i shift_base = _mm256_set1_epi16(static_cast<short>(21 + chosen.exponent));
  const __m256i packed = _mm256_packs_epi16(quantised(low, low_magnitude, reciprocal, shift_base),
                                            quantised(high, high_magnitude, reciprocal, shift_base));
  // The pack works within 128-bit halves.
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_permute4x64_epi64(packed, 0xD8));
}

// Drained values. What would be a subnormal number is a zero with its sign; that is decided once the value is rounded
// to 11 bits. Nothing is larger than 65504.
inline __m128i fp16_of(__m256 values) {
  const __m256 sign = _mm256_set1_ps(-0.0f), largest = _mm256_set1_ps(65504.0f);
  const __m256 normal =
      _mm256_cmp_ps(_mm256_andnot_ps(sign, values), _mm256_set1_ps(kLeastNormalFp16), _CMP_GE_OQ);
  const __m256 kept = _mm256_and_ps(values, _mm256_or_ps(normal, sign));
  const __m256 capped = _mm256_max_ps(_mm256_min_ps(kept, largest), _mm256_xor_ps(largest, sign));
  return _mm256_cvtps_ph(capped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

}  // namespace

void avx2_quantise_row(const std::uint16_t* x, std::size_t k, std::int8_t* q, std::uint8_t* scale) {
  std::size_t start = 0;
  for (; start + kBlock <= k; start += kBlock) quantise_block(x + start, q + start, scale++);
  if (start < k) {
    std::uint16_t block[kBlock] = {};
    __builtin_memcpy(block, x + start, (k - start) * sizeof(std::uint16_t));
    quantise_block(block, q + start, scale);
  }
}

void avx2_to_codes(const float* values, std::size_t rows, std::size_t columns, std::uint32_t* codes,
                  std::size_t stride) {
  rows_to_codes<kColumns>(values, rows, columns, codes, stride);
}
void avx2_to_fp16(const float* values, std::size_t rows, std::size_t columns, std::uint16_t* out,
                  std::size_t stride) {
  for (std::size_t row = 0; row < rows; ++row, values += kColumns, out += stride) {
    const __m128i first = fp16_of(_mm256_load_ps(values)), second = fp16_of(_mm256_load_ps(values + 8));
    if (columns == kColumns) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out), first);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 8), second);
    } else {
      std::uint16_t converted[kColumns];
      _mm_storeu_si128(reinterpret_cast<__m128i*>(converted), first);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(converted + 8), second);
      __builtin_memcpy(out, converted, columns * sizeof(std::uint16_t));
    }
  }
}
void avx2_from_codes(const std::uint32_t* codes, std::size_t stride, std::size_t rows, std::size_t columns,
                    float* values) {
  rows_from_codes<kColumns>(codes, stride, rows, columns, values);
}

const Kernels& avx2_kernels() {
  static const Kernels kernels{Isa::avx2, avx2_quantise_row, loop_add, loop_drain, &kTileAvx2};
  return kernels;
}

}  // namespace meshwright
