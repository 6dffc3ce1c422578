// The exact FP22 product with AVX2: rows of eight columns, dots by pairs of bytes.
//
// The block value and the add are those of product_avx512.cpp, FP22 values held as float32. Without a directed
// rounding mode the smaller operand of the add is cut with a mask instead.
#include <immintrin.h>

#include <cstdint>

#include "kernels.h"
#include "kernels_avx2.h"

#define MW_INLINE inline __attribute__((always_inline))

namespace meshwright {
namespace {

constexpr int kRows = 6;
constexpr int kColumns = 8;
constexpr int kGroups = 8;
// A panel, a block: 6 rows of 32 bytes a + 64; 6 scales; 6 times -kMagic * scale. B panel: 8 vectors of 8 dwords, each
// four K values of one column; 8 openings of the integer sum; 8 scales; 8 scales times 512.
constexpr std::size_t kAScale = kRows * 32;
constexpr std::size_t kACorrection = kAScale + kRows * 4;
constexpr std::size_t kABlockBytes = kACorrection + kRows * 4;
constexpr std::size_t kBOpening = kGroups * 32;
constexpr std::size_t kBScale = kBOpening + 32;
constexpr std::size_t kBScale512 = kBScale + 32;
constexpr std::size_t kBBlockBytes = kBScale512 + 32;
constexpr std::size_t kPassBlocks = 64;  // 22 KiB of B

constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23, see product_avx512.cpp
constexpr int kMagicBits = 0x4B400000;
constexpr int kSignAndExponent = static_cast<int>(0xFF800000u);

MW_INLINE __m256i bits(__m256 v) { return _mm256_castps_si256(v); }
MW_INLINE __m256 value(__m256i v) { return _mm256_castsi256_ps(v); }
MW_INLINE __m256i load(const std::uint8_t* at) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(at)); }
MW_INLINE __m256 load_floats(const std::uint8_t* at) { return value(load(at)); }
MW_INLINE __m256 broadcast(const std::uint8_t* at) { return _mm256_broadcast_ss(reinterpret_cast<const float*>(at)); }

// kMagicBits + dot.
MW_INLINE __m256i dot(const std::uint8_t* a_row, const std::uint8_t* b) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum = load(b + kBOpening);
  for (int g = 0; g < kGroups; g += 2) {
    // a + 64 is at most 127 and |b| at most 63: a sum of two products is within 16002, of four within 32004.
    const auto pairs = [&](int group) {
      const __m256i quad = _mm256_set1_epi32(*reinterpret_cast<const int*>(a_row + 4 * group));
      return _mm256_maddubs_epi16(quad, load(b + 32 * group));
    };
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_add_epi16(pairs(g), pairs(g + 1)), ones));
  }
  return sum;
}

// The value of a block, rounded to 15 bits: product_avx512.cpp has the argument.
MW_INLINE __m256 block_value(__m256i sum, const std::uint8_t* a, int row, const std::uint8_t* b) {
  const __m256 p1 = _mm256_fmadd_ps(value(sum), broadcast(a + kAScale + 4 * row), broadcast(a + kACorrection + 4 * row));
  const __m256 p = _mm256_mul_ps(p1, load_floats(b + kBScale512));
  const __m256 c = value(_mm256_and_si256(bits(p), _mm256_set1_epi32(kSignAndExponent)));
  return _mm256_sub_ps(_mm256_fmadd_ps(p1, load_floats(b + kBScale), c), c);
}

MW_INLINE __m256 add(__m256 acc, __m256 v) {
  const __m256i magnitude_mask = _mm256_set1_epi32(0x7FFFFFFF);
  const __m256i acc_magnitude = _mm256_and_si256(bits(acc), magnitude_mask);
  const __m256i v_magnitude = _mm256_and_si256(bits(v), magnitude_mask);
  const __m256i v_larger = _mm256_cmpgt_epi32(v_magnitude, acc_magnitude);
  const __m256 large = _mm256_blendv_ps(acc, v, value(v_larger));
  const __m256i small = _mm256_xor_si256(_mm256_xor_si256(bits(acc), bits(v)), bits(large));
  // Eight guard bits: the smaller operand keeps what is at or above 2^(E_large - 22), which is bit (distance + 1) of
  // its fraction. Setting the larger one's fraction keeps the subtraction from borrowing. From a distance of 23 on,
  // the mask cuts into the exponent as well: what it leaves is no larger than the smaller operand, which is then
  // below 2^(E_large - 22), and too little to matter beside `large` (half a unit of 15 bits is 2^(E_large - 16) at
  // least) other than by being lost.
  const __m256i large_full = _mm256_or_si256(_mm256_max_epi32(acc_magnitude, v_magnitude), _mm256_set1_epi32(0x7FFFFF));
  const __m256i distance = _mm256_srli_epi32(_mm256_sub_epi32(large_full, _mm256_min_epi32(acc_magnitude, v_magnitude)), 23);
  const __m256i mask = _mm256_sllv_epi32(_mm256_set1_epi32(-2), distance);
  const __m256i kept = _mm256_and_si256(small, mask);
  const __m256i lost = _mm256_min_epu32(_mm256_andnot_si256(mask, small), _mm256_set1_epi32(1));
  const __m256 exact = _mm256_add_ps(large, value(kept));
  const __m256i s = _mm256_or_si256(bits(exact), lost);
  const __m256 e = value(_mm256_add_epi32(_mm256_and_si256(s, _mm256_set1_epi32(kSignAndExponent)),
                                          _mm256_set1_epi32(9 << 23)));
  return _mm256_sub_ps(_mm256_add_ps(value(s), e), e);
}

void run(const std::uint8_t* a, std::size_t a_stride, std::size_t panels, const std::uint8_t* b, std::size_t blocks,
         float* values, bool opened) {
  for (std::size_t panel = 0; panel < panels; ++panel, a += a_stride, values += kRows * kColumns) {
    __m256 acc[kRows];
    for (int r = 0; r < kRows; ++r) acc[r] = opened ? _mm256_loadu_ps(values + kColumns * r) : _mm256_setzero_ps();
    const std::uint8_t* a_block = a;
    const std::uint8_t* b_block = b;
    for (std::size_t k = 0; k < blocks; ++k, a_block += kABlockBytes, b_block += kBBlockBytes) {
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        acc[r] = add(acc[r], block_value(dot(a_block + 32 * r, b_block), a_block, r, b_block));
      }
    }
    for (int r = 0; r < kRows; ++r) _mm256_storeu_ps(values + kColumns * r, acc[r]);
  }
}

MW_INLINE float scale_of(std::uint8_t field) {
  const std::uint32_t pattern = (static_cast<std::uint32_t>(field) << 20) + (107u << 23);
  float scale;
  __builtin_memcpy(&scale, &pattern, sizeof scale);
  return scale;
}

MW_INLINE int sum_of(__m256i bytes) {
  const __m256i words = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
  const __m256i sums = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1));
  return _mm_cvtsi128_si32(sum);
}

void pack_a(const std::int8_t* q, std::size_t q_stride, const std::uint8_t* scale, std::size_t scale_stride,
            std::size_t count, std::size_t blocks, std::uint8_t* panel) {
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
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(panel + 32 * r), _mm256_add_epi8(row, _mm256_set1_epi8(64)));
      scales[r] = row_scale;
      corrections[r] = -kMagic * row_scale;
    }
  }
}

void pack_b(const std::int8_t* q, std::size_t q_stride, const std::uint8_t* scale, std::size_t scale_stride,
            std::size_t count, std::size_t blocks, std::uint8_t* panel) {
  for (std::size_t k = 0; k < blocks; ++k, panel += kBBlockBytes) {
    __m256i z[8], u[8], w[8];
    int* opening = reinterpret_cast<int*>(panel + kBOpening);
    float* scales = reinterpret_cast<float*>(panel + kBScale);
    float* scales512 = reinterpret_cast<float*>(panel + kBScale512);
    for (std::size_t i = 0; i < 8; ++i) {
      z[i] = i < count ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + i * q_stride + k * kBlock))
                       : _mm256_setzero_si256();
      opening[i] = kMagicBits - 64 * sum_of(z[i]);
      scales[i] = i < count ? scale_of(scale[i * scale_stride + k]) : 0.0f;
      scales512[i] = scales[i] * 512.0f;
    }
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
      const auto store = [&](int group, __m256i v) { _mm256_store_si256(reinterpret_cast<__m256i*>(panel + 32 * group), v); };
      store(i, _mm256_permute2x128_si256(w[i], w[i + 4], 0x20));
      store(i + 4, _mm256_permute2x128_si256(w[i], w[i + 4], 0x31));
    }
  }
}

}  // namespace

const TileKernel kTileAvx2{{kRows, kABlockBytes, pack_a}, {kColumns, kBBlockBytes, pack_b}, kPassBlocks, 1, run,
                           avx2_values_to_codes, avx2_codes_to_values, avx2_values_to_fp16};

}  // namespace meshwright
