// Panels of quantised rows in the layout of the AVX2 tile (kernels_avx2.h).
#include <immintrin.h>

#include <cstdint>

#include "kernels_avx2.h"

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

// Eight columns of a block: vector `g` of them gets the bytes 4 g to 4 g + 3 of each column.
inline void transpose(const __m256i z[8], __m256i groups[8]) {
  __m256i u[8], w[8];
  for (int i = 0; i < 8; i += 2) {
    u[i] = _mm256_unpacklo_epi32(z[i], z[i + 1]);
    u[i + 1] = _mm256_unpackhi_epi32(z[i], z[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    w[i] = _mm256_unpacklo_epi64(u[i], u[i + 2]);
    w[i + 1] = _mm256_unpackhi_epi64(u[i], u[i + 2]);
    w[i + 2] = _mm256_unpacklo_epi64(u[i + 1], u[i + 3]);
    w[i + 3] = _mm256_unpackhi_epi64(u[i + 1], u[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    groups[i] = _mm256_permute2x128_si256(w[i], w[i + 4], 0x20);
    groups[i + 4] = _mm256_permute2x128_si256(w[i], w[i + 4], 0x31);
  }
}

}  // namespace

void avx2_pack_a(const std::int8_t* q, std::size_t q_stride, const std::uint8_t* scale, std::size_t scale_stride,
                 std::size_t count, std::size_t blocks, std::uint8_t* panel) {
  for (std::size_t k = 0; k < blocks; ++k, panel += kABlockBytes) {
    float* scales = reinterpret_cast<float*>(panel + kAScale);
    for (std::size_t r = 0; r < kRows; ++r) {
      __m256i row = _mm256_setzero_si256();
      float row_scale = 0;
      if (r < count) {
        row = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + r * q_stride + k * kBlock));
        row_scale = scale_of(scale[r * scale_stride + k]);
      }
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(panel + 32 * r), _mm256_sub_epi8(_mm256_set1_epi8(64), row));
      scales[r] = -row_scale;
    }
  }
}

void avx2_pack_b(const std::int8_t* q, std::size_t q_stride, const std::uint8_t* scale, std::size_t scale_stride,
                 std::size_t count, std::size_t blocks, std::uint8_t* panel) {
  for (std::size_t k = 0; k < blocks; ++k, panel += kBBlockBytes) {
    for (std::size_t side = 0; side < 2; ++side) {
      alignas(32) float scales[8];
      __m256i z[8], groups[8];
      for (std::size_t i = 0; i < 8; ++i) {
        const std::size_t row = 8 * side + i;
        z[i] = row < count ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + row * q_stride + k * kBlock))
                           : _mm256_setzero_si256();
        scales[i] = row < count ? scale_of(scale[row * scale_stride + k]) : 0.0f;
      }
      transpose(z, groups);
      std::uint8_t* at = panel + 32 * side;
      const auto store = [&](std::size_t offset, __m256i v) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(at + offset), v);
      };
      for (std::size_t half = 0; half < 2; ++half) {
        __m256i opening = _mm256_setzero_si256();
        for (std::size_t g = 4 * half; g < 4 * half + 4; ++g) {
          store(64 * g, groups[g]);
          opening = _mm256_sub_epi16(opening, _mm256_maddubs_epi16(_mm256_set1_epi8(64), groups[g]));
        }
        store(kBOpening + 64 * half, opening);
      }
      const __m256 s = _mm256_load_ps(scales);
      store(kBScale, _mm256_castps_si256(s));
      store(kBScale513, _mm256_castps_si256(_mm256_mul_ps(s, _mm256_set1_ps(513.0f))));
    }
  }
}

}  // namespace meshwright
