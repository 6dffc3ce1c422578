// Panels of quantised rows in the layout of the AVX-512 tile (kernels_avx512.h).
#include <immintrin.h>

#include <cstdint>

#include "kernels_avx512.h"

namespace meshwright {
namespace {

// Scale 2^es * m8 / 8 of a field {es + 20, m8 - 8}: es + 20 becomes the exponent with bias 127 - 20, m8 - 8 the top
// three fraction bits.
inline float scale_of(std::uint8_t field) {
  const std::uint32_t pattern = (static_cast<std::uint32_t>(field) << 20) + (107u << 23);
  float scale;
  __builtin_memcpy(&scale, &pattern, sizeof scale);
  return scale;
}

}  // namespace

void avx512_pack_a(const std::int8_t* q, std::size_t q_stride, const std::uint8_t* scale, std::size_t scale_stride,
                   std::size_t count, std::size_t blocks, std::uint8_t* panel) {
  const __m256i ones = _mm256_set1_epi8(1);
  for (std::size_t k = 0; k < blocks; ++k, panel += kABlockBytes) {
    float* scales = reinterpret_cast<float*>(panel + kAScale);
    float* corrections = reinterpret_cast<float*>(panel + kACorrection);
    for (std::size_t r = 0; r < kRows; ++r) {
      __m256i row = _mm256_setzero_si256();
      float row_scale = 0;
      if (r < count) {
        row = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + r * q_stride + k * kBlock));
        row_scale = scale_of(scale[r * scale_stride + k]);
      }
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(panel + 32 * r), row);
      const __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), ones, row);
      __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
      sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
      sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1));
      scales[r] = row_scale;
      // Exact: 1.5 * 2^23 + 64 * sum is a multiple of 64 below 2^24 (18 bits), and a scale has four.
      corrections[r] = -(kMagic + 64.0f * static_cast<float>(_mm_cvtsi128_si32(sum))) * row_scale;
    }
  }
}

void avx512_pack_b(const std::int8_t* q, std::size_t q_stride, const std::uint8_t* scale, std::size_t scale_stride,
                   std::size_t count, std::size_t blocks, std::uint8_t* panel) {
  for (std::size_t k = 0; k < blocks; ++k, panel += kBBlockBytes) {
    __m512i z[8];
    alignas(64) float scales[kColumns];
    for (std::size_t i = 0; i < kColumns; ++i) scales[i] = i < count ? scale_of(scale[i * scale_stride + k]) : 0.0f;
    for (std::size_t i = 0; i < 8; ++i) {
      const auto load = [&](std::size_t row) {
        return row < count ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + row * q_stride + k * kBlock))
                           : _mm256_setzero_si256();
      };
      z[i] = _mm512_inserti64x4(_mm512_castsi256_si512(load(i)), load(i + 8), 1);
    }
    // Two transpositions of 8x8 dwords side by side, one in each half of the registers.
    __m512i u[8], w[8];
    for (int i = 0; i < 8; i += 2) {
      u[i] = _mm512_unpacklo_epi32(z[i], z[i + 1]);
      u[i + 1] = _mm512_unpackhi_epi32(z[i], z[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      w[i] = _mm512_unpacklo_epi64(u[i], u[i + 2]);
      w[i + 1] = _mm512_unpackhi_epi64(u[i], u[i + 2]);
      w[i + 2] = _mm512_unpacklo_epi64(u[i + 1], u[i + 3]);
      w[i + 3] = _mm512_unpackhi_epi64(u[i + 1], u[i + 3]);
    }
    const __m512i low = _mm512_set_epi64(13, 12, 5, 4, 9, 8, 1, 0);
    const __m512i high = _mm512_set_epi64(15, 14, 7, 6, 11, 10, 3, 2);
    const __m512i bias = _mm512_set1_epi8(64);
    for (int i = 0; i < 4; ++i) {
      const __m512i first = _mm512_permutex2var_epi64(w[i], low, w[i + 4]);
      const __m512i second = _mm512_permutex2var_epi64(w[i], high, w[i + 4]);
      _mm512_store_si512(panel + 64 * i, _mm512_add_epi8(first, bias));
      _mm512_store_si512(panel + 64 * (i + 4), _mm512_add_epi8(second, bias));
    }
    const __m512 s = _mm512_load_ps(scales);
    _mm512_store_ps(panel + kBScale, s);
    _mm512_store_ps(panel + kBScale513, _mm512_mul_ps(s, _mm512_set1_ps(513.0f)));
  }
}

}  // namespace meshwright
