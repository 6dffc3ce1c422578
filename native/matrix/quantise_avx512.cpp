// The MXFP7 quantiser and the elementwise kernels with AVX-512.
#include <immintrin.h>

#include "fp22_loops.h"
#include "kernels_avx512.h"
#include "quantise_block.h"

namespace meshwright {
namespace {

// Unsigned maximum of 32 words.
inline std::uint32_t peak_of(__m512i magnitude) {
  const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(magnitude), _mm512_extracti64x4_epi64(magnitude, 1));
  const __m128i quarter = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  // The processor finds a minimum in one instruction; the complement of the magnitudes makes it the maximum.
  const __m128i least = _mm_minpos_epu16(_mm_xor_si128(quarter, _mm_set1_epi16(-1)));
  return static_cast<std::uint32_t>(~_mm_cvtsi128_si32(least)) & 0xFFFFu;
}

inline void quantise_block(__m512i x, std::int8_t* q, std::uint8_t* scale) {
  const __m512i magnitude = _mm512_and_si512(x, _mm512_set1_epi16(0x7FFF));
  const BlockScale chosen = block_scale(peak_of(magnitude));
  *scale = chosen.field;
  // Exponent field, at least 1, and significand with its leading one where the field isn't zero.
  const __m512i field = _mm512_srli_epi16(magnitude, 10);
  const __mmask32 normal = _mm512_test_epi16_mask(field, field);
  const __m512i exponent = _mm512_max_epu16(field, _mm512_set1_epi16(1));
  const __m512i fraction = _mm512_and_si512(magnitude, _mm512_set1_epi16(1023));
  const __m512i significand = _mm512_mask_add_epi16(fraction, normal, fraction, _mm512_set1_epi16(1024));
  // The rule shifts P = significand * reciprocal right by sh = 37 + es - e >= 16, and adds its bit sh - 1. So only
  // P >> 15 matters, the high half of (2 significand) * reciprocal, which is below 2^8: shift that by sh - 16 and
  // halve with rounding, which is an average with zero. A shift past 15 gives zero here as in the rule.
  const __m512i top = _mm512_mulhi_epu16(_mm512_add_epi16(significand, significand),
                                         _mm512_set1_epi16(static_cast<short>(chosen.reciprocal)));
  const __m512i shift = _mm512_sub_epi16(_mm512_set1_epi16(static_cast<short>(21 + chosen.exponent)), exponent);
  const __m512i rounded = _mm512_avg_epu16(_mm512_srlv_epi16(top, shift), _mm512_setzero_si512());
  const __m512i capped = _mm512_min_epu16(rounded, _mm512_set1_epi16(63));
  const __m512i signed_value =
      _mm512_mask_sub_epi16(capped, _mm512_movepi16_mask(x), _mm512_setzero_si512(), capped);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm512_cvtepi16_epi8(signed_value));
}

// Drained values. What would be a subnormal number is a zero with its sign; that is decided once the value is rounded
// to 11 bits. Nothing is larger than 65504.
inline __m256i fp16_of(__m512 values) {
  const __m512 sign = _mm512_set1_ps(-0.0f), largest = _mm512_set1_ps(65504.0f);
  const __mmask16 tiny =
      _mm512_cmp_ps_mask(_mm512_andnot_ps(sign, values), _mm512_set1_ps(kLeastNormalFp16), _CMP_LT_OQ);
  const __m512 kept = _mm512_mask_and_ps(values, tiny, values, sign);
  const __m512 capped = _mm512_max_ps(_mm512_min_ps(kept, largest), _mm512_xor_ps(largest, sign));
  return _mm512_cvtps_ph(capped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

}  // namespace

void avx512_quantise_row(const std::uint16_t* x, std::size_t k, std::int8_t* q, std::uint8_t* scale) {
  std::size_t start = 0;
  for (; start + kBlock <= k; start += kBlock) quantise_block(_mm512_loadu_si512(x + start), q + start, scale++);
  if (start < k) {
    const auto rest = static_cast<__mmask32>((std::uint64_t{1} << (k - start)) - 1);
    quantise_block(_mm512_maskz_loadu_epi16(rest, x + start), q + start, scale);
  }
}

void avx512_to_codes(const float* values, std::size_t rows, std::size_t columns, std::uint32_t* codes,
                    std::size_t stride) {
  rows_to_codes<kColumns>(values, rows, columns, codes, stride);
}
void avx512_to_fp16(const float* values, std::size_t rows, std::size_t columns, std::uint16_t* out,
                    std::size_t stride) {
  const auto wanted = static_cast<__mmask16>((1u << columns) - 1);
  for (std::size_t row = 0; row < rows; ++row, values += kColumns, out += stride) {
    _mm256_mask_storeu_epi16(out, wanted, fp16_of(_mm512_load_ps(values)));
  }
}
void avx512_from_codes(const std::uint32_t* codes, std::size_t stride, std::size_t rows, std::size_t columns,
                      float* values) {
  rows_from_codes<kColumns>(codes, stride, rows, columns, values);
}

const Kernels& avx512_kernels() {
  static const Kernels kernels{Isa::avx512, avx512_quantise_row, loop_add, loop_drain, &kTileAvx512};
  return kernels;
}

}  // namespace meshwright
