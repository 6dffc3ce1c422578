// The MXFP7 quantiser and the elementwise kernels with AVX2.
#include <immintrin.h>

#include "fp22_loops.h"
#include "kernels_avx2.h"
#include "quantise_block.h"

namespace meshwright {
namespace {

// Of twice the magnitudes, the largest magnitude.
inline std::uint32_t peak_of(__m256i low, __m256i high) {
  const __m256i half = _mm256_max_epu16(low, high);
  const __m128i quarter = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  // The processor finds a minimum in one instruction; the complement of the magnitudes makes it the maximum.
  const __m128i least = _mm_minpos_epu16(_mm_xor_si128(quarter, _mm_set1_epi16(-1)));
  return (static_cast<std::uint32_t>(~_mm_cvtsi128_si32(least)) & 0xFFFFu) >> 1;
}

// Sixteen magnitudes before they are capped; the rule and its bounds are spelled out in quantise_avx512.cpp.
// `last_shift` is the shift of an element whose exponent field is 0 or 1.
inline __m256i rounded(__m256i twice_magnitude, __m256i reciprocal, __m256i last_shift) {
  // How far the exponent field is above 1, where it is. What is left of the magnitude without that is the significand.
  const __m256i above = _mm256_subs_epu16(_mm256_srli_epi16(twice_magnitude, 11), _mm256_set1_epi16(1));
  const __m256i twice_significand = _mm256_sub_epi16(twice_magnitude, _mm256_slli_epi16(above, 11));
  const __m256i top = _mm256_mulhi_epu16(twice_significand, reciprocal);
  // There is no variable shift of words. `top` is below 2^8, so top >> s is top * 2^(7 - s) >> 7, with the power looked
  // up by the low byte; from s = 8 on it is zero. Indices past the table need their top bit set, and so does the high
  // byte, whose shift is zero.
  const __m256i powers = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(static_cast<char>(128), 64, 32, 16, 8, 4, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0));
  const __m256i index =
      _mm256_adds_epu8(_mm256_sub_epi16(last_shift, above), _mm256_set1_epi16(static_cast<short>(0x8070)));
  const __m256i product = _mm256_mullo_epi16(top, _mm256_shuffle_epi8(powers, index));
  return _mm256_avg_epu16(_mm256_srli_epi16(product, 7), _mm256_setzero_si256());
}

inline void quantise_block(const std::uint16_t* x, std::int8_t* q, std::uint8_t* scale) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 16));
  const __m256i twice_low = _mm256_add_epi16(low, low), twice_high = _mm256_add_epi16(high, high);
  const BlockScale chosen = block_scale(peak_of(twice_low, twice_high));
  *scale = chosen.field;
  const __m256i reciprocal = _mm256_set1_epi16(static_cast<short>(chosen.reciprocal));
  const __m256i last_shift = _mm256_set1_epi16(static_cast<short>(20 + chosen.exponent));
  const __m256i magnitudes = _mm256_min_epu8(_mm256_packus_epi16(rounded(twice_low, reciprocal, last_shift),
                                                                 rounded(twice_high, reciprocal, last_shift)),
                                             _mm256_set1_epi8(63));
  // Where x is zero, so is its magnitude.
  const __m256i values = _mm256_sign_epi8(magnitudes, _mm256_packs_epi16(low, high));
  // The packs work within 128-bit halves.
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_permute4x64_epi64(values, 0xD8));
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
