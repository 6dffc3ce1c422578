// The exact FP22 product with AVX-512 VNNI: seven rows by sixteen columns in registers.
//
// FP22 values are held as float32 (E7 fits in its 8 exponent bits, M14 in its 23 fraction bits), and one block of 32
// K values is worth eight dot instructions, five instructions that make the block value, and thirteen that add it to
// the accumulator by the machine's rule. product.cpp says why nothing on this path flushes or saturates.
#include <immintrin.h>

#include <cstdint>
#include <utility>

#include "kernels.h"
#include "kernels_avx512.h"

#define MW_INLINE inline __attribute__((always_inline))

namespace meshwright {
namespace {

constexpr int kRows = 7;
constexpr int kColumns = 16;
constexpr int kGroups = 8;  // dwords of 4 bytes a block
// A panel, a block: 7 rows of 32 bytes; 7 scales; 7 corrections. B panel: 8 vectors of 16 dwords, each one four K
// values of one column, as b + 64; 16 scales; 16 scales times 512.
constexpr std::size_t kABlockBytes = 288;
constexpr std::size_t kAScale = kRows * 32;
constexpr std::size_t kACorrection = kAScale + kRows * 4;
constexpr std::size_t kBBlockBytes = 640;
constexpr std::size_t kBScale = kGroups * 64;
constexpr std::size_t kBScale512 = kBScale + 64;
constexpr std::size_t kPassBlocks = 32;  // 20 KiB of B and 9 KiB of A

// 1.5 * 2^23: adding an integer below 2^22 to this bit pattern adds the same integer to the float it spells.
constexpr float kMagic = 12582912.0f;
constexpr int kMagicBits = 0x4B400000;
constexpr int kSignAndExponent = static_cast<int>(0xFF800000u);

alignas(64) constexpr std::uint8_t kZeroBlock[kABlockBytes] = {};

MW_INLINE __m512i bits(__m512 v) { return _mm512_castps_si512(v); }
MW_INLINE __m512 value(__m512i v) { return _mm512_castsi512_ps(v); }
MW_INLINE __m512 broadcast(const std::uint8_t* at) {
  return _mm512_set1_ps(*reinterpret_cast<const float*>(at));
}

// What one row of the tile has in flight.
struct Row {
  __m512i sum;      // kMagic + sum over a * (b + 64), as an integer and as a float
  __m512 p1, c, v;  // block value
  __m512 large, small, c3, kept, s, e;
  __mmask16 lost;
  __m512 acc;
};

constexpr int kSteps = 18;

template <int Step>
MW_INLINE void step(Row& r, const std::uint8_t* a, int row, const std::uint8_t* b) {
  const __m512 k512 = _mm512_set1_ps(512.0f);
  if constexpr (Step == 0) {
    r.p1 = _mm512_fmadd_ps(value(r.sum), broadcast(a + kAScale + 4 * row), broadcast(a + kACorrection + 4 * row));
  } else if constexpr (Step == 1) {
    r.c = _mm512_mul_ps(r.p1, _mm512_load_ps(b + kBScale512));
  } else if constexpr (Step == 2) {
    r.c = value(_mm512_and_si512(bits(r.c), _mm512_set1_epi32(kSignAndExponent)));
  } else if constexpr (Step == 3) {
    r.v = _mm512_fmadd_ps(r.p1, _mm512_load_ps(b + kBScale), r.c);
  } else if constexpr (Step == 4) {
    r.v = _mm512_sub_ps(r.v, r.c);
  } else if constexpr (Step == 5) {
    r.large = _mm512_range_ps(r.acc, r.v, 7);
  } else if constexpr (Step == 6) {
    r.small = value(_mm512_ternarylogic_epi32(bits(r.acc), bits(r.v), bits(r.large), 0x96));
  } else if constexpr (Step == 7) {
    r.c3 = value(_mm512_and_si512(bits(r.large), _mm512_set1_epi32(0x7F800000)));
  } else if constexpr (Step == 8) {
    r.c3 = value(_mm512_add_epi32(bits(r.c3), _mm512_set1_epi32(0x00800000)));
  } else if constexpr (Step == 9) {
    r.c3 = value(_mm512_ternarylogic_epi32(bits(r.c3), bits(r.small), _mm512_set1_epi32(0x7FFFFFFF), 0xE4));
  } else if constexpr (Step == 10) {
    r.kept = _mm512_add_round_ps(r.small, r.c3, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  } else if constexpr (Step == 11) {
    r.kept = _mm512_sub_ps(r.kept, r.c3);
  } else if constexpr (Step == 12) {
    r.lost = _mm512_cmp_ps_mask(r.kept, r.small, _CMP_NEQ_UQ);
  } else if constexpr (Step == 13) {
    r.s = _mm512_add_ps(r.large, r.kept);
  } else if constexpr (Step == 14) {
    r.s = value(_mm512_mask_or_epi32(bits(r.s), r.lost, bits(r.s), _mm512_set1_epi32(1)));
  } else if constexpr (Step == 15) {
    r.e = value(_mm512_and_si512(bits(r.s), _mm512_set1_epi32(kSignAndExponent)));
  } else if constexpr (Step == 16) {
    r.s = _mm512_fmadd_ps(r.e, k512, r.s);
  } else if constexpr (Step == 17) {
    r.acc = _mm512_fnmadd_ps(r.e, k512, r.s);
  }
}

template <int First, int Last>
MW_INLINE void steps(Row& r, const std::uint8_t* a, int row, const std::uint8_t* b) {
  if constexpr (First < Last) {
    step<First>(r, a, row, b);
    steps<First + 1, Last>(r, a, row, b);
  }
}

struct Blocks {
  const std::uint8_t* a;
  const std::uint8_t* b;
};

// Dot group G of row R of the new block, and behind it a share of the epilogues of the three rows before.
template <int R, int G>
MW_INLINE void dot_and_steps(Row (&rows)[kRows], const __m512i (&b)[kGroups], const Blocks& now, const Blocks& before) {
  const __m512i quad = _mm512_set1_epi32(*reinterpret_cast<const int*>(now.a + 32 * R + 4 * G));
  constexpr int r1 = (R + 6) % 7, r2 = (R + 5) % 7, r3 = (R + 4) % 7;
  const Blocks& at1 = R < 1 ? before : now;
  if constexpr (G == 0) {
    rows[R].sum = _mm512_dpbusd_epi32(_mm512_set1_epi32(kMagicBits), b[G], quad);
  } else {
    rows[R].sum = _mm512_dpbusd_epi32(rows[R].sum, b[G], quad);
  }
  if constexpr (G < 6) {
    step<12 + G>(rows[r3], nullptr, r3, nullptr);
    step<6 + G>(rows[r2], nullptr, r2, nullptr);
    step<G>(rows[r1], at1.a, r1, at1.b);
  }
}

template <int R, int... G>
MW_INLINE void slot(Row (&rows)[kRows], const __m512i (&b)[kGroups], const Blocks& now, const Blocks& before,
                    std::integer_sequence<int, G...>) {
  (dot_and_steps<R, G>(rows, b, now, before), ...);
}

template <int... R>
MW_INLINE void block(Row (&rows)[kRows], const Blocks& now, const Blocks& before, std::integer_sequence<int, R...>) {
  __m512i b[kGroups];
  for (int g = 0; g < kGroups; ++g) b[g] = _mm512_load_si512(now.b + 64 * g);
  (slot<R>(rows, b, now, before, std::make_integer_sequence<int, kGroups>{}), ...);
}

void run(const std::uint8_t* a, const std::uint8_t* b, std::size_t blocks, float* tile, bool opened) {
  Row rows[kRows];
  for (int r = 0; r < kRows; ++r) {
    rows[r].acc = opened ? _mm512_loadu_ps(tile + kColumns * r) : _mm512_setzero_ps();
    rows[r].sum = _mm512_set1_epi32(kMagicBits);
    rows[r].large = rows[r].acc;
    rows[r].v = rows[r].small = rows[r].kept = _mm512_setzero_ps();
  }
  Blocks before{kZeroBlock, b};
  for (std::size_t k = 0; k < blocks; ++k) {
    const Blocks now{a + k * kABlockBytes, b + k * kBBlockBytes};
    block(rows, now, before, std::make_integer_sequence<int, kRows>{});
    before = now;
  }
  steps<12, kSteps>(rows[4], nullptr, 4, nullptr);
  steps<6, kSteps>(rows[5], nullptr, 5, nullptr);
  steps<0, kSteps>(rows[6], before.a, 6, before.b);
  for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(tile + kColumns * r, rows[r].acc);
}

// Scale 2^es * m8 / 8 of a field {es + 20, m8 - 8}: es + 20 becomes the exponent with bias 127 - 20, m8 - 8 the top
// three fraction bits.
MW_INLINE float scale_of(std::uint8_t field) {
  const std::uint32_t pattern = (static_cast<std::uint32_t>(field) << 20) + (107u << 23);
  float scale;
  __builtin_memcpy(&scale, &pattern, sizeof scale);
  return scale;
}

void pack_a(const std::int8_t* q, std::size_t q_stride, const std::uint8_t* scale, std::size_t scale_stride,
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

void pack_b(const std::int8_t* q, std::size_t q_stride, const std::uint8_t* scale, std::size_t scale_stride,
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
    _mm512_store_ps(panel + kBScale512, _mm512_mul_ps(s, _mm512_set1_ps(512.0f)));
  }
}

}  // namespace

const TileKernel kTileAvx512{{kRows, kABlockBytes, pack_a}, {kColumns, kBBlockBytes, pack_b}, kPassBlocks, run,
                             avx512_values_to_codes, avx512_codes_to_values, avx512_values_to_fp16};

}  // namespace meshwright
