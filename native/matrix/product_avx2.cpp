// The exact FP22 product with AVX2: six rows by eight columns, dots by pairs of bytes.
//
// The block value and the add are those of product_avx512.cpp, FP22 values held as float32. Without a directed
// rounding mode the smaller operand of the add is cut with a mask instead.
#include <immintrin.h>

#include <cstdint>
#include <utility>

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
static_assert(kRows == 6, "run_tile finishes three pairs");
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

// Two rows at a time, so that what is loaded of B serves twice.
struct Sums {
  __m256i x, y;
};

// kMagicBits + dot of two rows that follow one another.
MW_INLINE Sums dots(const std::uint8_t* a, const std::uint8_t* b) {
  const __m256i ones = _mm256_set1_epi16(1);
  Sums sums{load(b + kBOpening), load(b + kBOpening)};
  for (int g = 0; g < kGroups; g += 2) {
    const __m256i b0 = load(b + 32 * g), b1 = load(b + 32 * g + 32);
    // a + 64 is at most 127 and |b| at most 63: a sum of two products is within 16002, of four within 32004.
    const auto four_products = [&](int row) {
      const auto quad = [&](int group) {
        return _mm256_set1_epi32(*reinterpret_cast<const int*>(a + 32 * row + 4 * group));
      };
      return _mm256_add_epi16(_mm256_maddubs_epi16(quad(g), b0), _mm256_maddubs_epi16(quad(g + 1), b1));
    };
    sums.x = _mm256_add_epi32(sums.x, _mm256_madd_epi16(four_products(0), ones));
    sums.y = _mm256_add_epi32(sums.y, _mm256_madd_epi16(four_products(1), ones));
  }
  return sums;
}

// The work on a row comes in stages, so that those of different rows can be issued side by side.
struct Aligned {
  __m256 large, kept;
  __m256i lost;
};

// The value of a block, rounded to 15 bits: product_avx512.cpp has the argument.
MW_INLINE __m256 block_value(__m256i sum, const std::uint8_t* a, int row, const std::uint8_t* b) {
  const __m256 sa = broadcast(a + kAScale + 4 * row), correction = broadcast(a + kACorrection + 4 * row);
  const __m256 p1 = _mm256_fmadd_ps(value(sum), sa, correction);
  const __m256 p = _mm256_mul_ps(p1, load_floats(b + kBScale512));
  const __m256 c = value(_mm256_and_si256(bits(p), _mm256_set1_epi32(kSignAndExponent)));
  return _mm256_sub_ps(_mm256_fmadd_ps(p1, load_floats(b + kBScale), c), c);
}

// Eight guard bits: the smaller operand keeps what is at or above 2^(E_large - 22), which is bit (distance + 1) of its
// fraction. Setting the larger one's fraction keeps the subtraction from borrowing. From a distance of 23 on, the mask
// cuts into the exponent as well: what it leaves is no larger than the smaller operand, which is then below
// 2^(E_large - 22), and too little to matter beside `large` (half a unit of 15 bits is 2^(E_large - 16) at least)
// other than by being lost.
MW_INLINE Aligned align(__m256 acc, __m256 v) {
  const __m256i magnitude_mask = _mm256_set1_epi32(0x7FFFFFFF);
  const __m256i acc_magnitude = _mm256_and_si256(bits(acc), magnitude_mask);
  const __m256i v_magnitude = _mm256_and_si256(bits(v), magnitude_mask);
  const __m256 v_larger = value(_mm256_cmpgt_epi32(v_magnitude, acc_magnitude));
  const __m256i small = bits(_mm256_blendv_ps(v, acc, v_larger));
  const __m256i large_full = _mm256_or_si256(_mm256_max_epi32(acc_magnitude, v_magnitude), _mm256_set1_epi32(0x7FFFFF));
  const __m256i distance =
      _mm256_srli_epi32(_mm256_sub_epi32(large_full, _mm256_min_epi32(acc_magnitude, v_magnitude)), 23);
  const __m256i mask = _mm256_sllv_epi32(_mm256_set1_epi32(-2), distance);
  return {_mm256_blendv_ps(acc, v, v_larger), value(_mm256_and_si256(small, mask)),
          _mm256_min_epu32(_mm256_andnot_si256(mask, small), _mm256_set1_epi32(1))};
}

// The sum, which is exact in 24 bits, and its rounding to 15.
MW_INLINE __m256 round(const Aligned& x) {
  const __m256 s = value(_mm256_or_si256(bits(_mm256_add_ps(x.large, x.kept)), x.lost));
  const __m256 e = value(_mm256_and_si256(bits(s), _mm256_set1_epi32(kSignAndExponent)));
  const __m256 k512 = _mm256_set1_ps(512.0f);
  return _mm256_fnmadd_ps(e, k512, _mm256_fmadd_ps(e, k512, s));
}

struct Block {
  const std::uint8_t* a;
  const std::uint8_t* b;
};

constexpr int kPairs = kRows / 2;

// Three pairs of rows in flight: one has its sums, one its values, one is aligned.
struct State {
  Sums sums;
  __m256 v[2];
  Aligned aligned[2];
  __m256 acc[kRows];
};

// The dots of pair P, the block values of the pair before, and so on. Their chains don't depend on each other, and
// each is about as long as the processor takes to issue all four.
template <int P>
MW_INLINE void slot(State& state, const Block& now, const Block& before) {
  constexpr int p1 = (P + kPairs - 1) % kPairs, p2 = (P + kPairs - 2) % kPairs, p3 = (P + 2 * kPairs - 3) % kPairs;
  const Block& at1 = P < 1 ? before : now;
  state.acc[2 * p3] = round(state.aligned[0]);
  state.acc[2 * p3 + 1] = round(state.aligned[1]);
  state.aligned[0] = align(state.acc[2 * p2], state.v[0]);
  state.aligned[1] = align(state.acc[2 * p2 + 1], state.v[1]);
  state.v[0] = block_value(state.sums.x, at1.a, 2 * p1, at1.b);
  state.v[1] = block_value(state.sums.y, at1.a, 2 * p1 + 1, at1.b);
  state.sums = dots(now.a + 64 * P, now.b);
}

template <int... P>
MW_INLINE void slots(State& state, const Block& now, const Block& before, std::integer_sequence<int, P...>) {
  (slot<P>(state, now, before), ...);
}

alignas(32) constexpr std::uint8_t kZeroBlock[kABlockBytes] = {};

// One tile. Before its first block a block of zeros is in flight, whose values are +0 and leave everything as it is.
MW_INLINE void run_tile(const std::uint8_t* a, const std::uint8_t* b, std::size_t blocks, float* values, bool opened) {
  constexpr int first = kRows - 6, second = kRows - 4, third = kRows - 2;  // rows of the pairs in flight between blocks
  const __m256 zero = _mm256_setzero_ps();
  const __m256i magic = _mm256_set1_epi32(kMagicBits);
  State state;
  for (int r = 0; r < kRows; ++r) state.acc[r] = opened ? _mm256_loadu_ps(values + kColumns * r) : zero;
  state.sums = {magic, magic};
  state.v[0] = state.v[1] = zero;
  state.aligned[0] = {state.acc[first], zero, _mm256_setzero_si256()};
  state.aligned[1] = {state.acc[first + 1], zero, _mm256_setzero_si256()};
  Block before{kZeroBlock, b};
  for (std::size_t k = 0; k < blocks; ++k) {
    const Block now{a + k * kABlockBytes, b + k * kBBlockBytes};
    slots(state, now, before, std::make_integer_sequence<int, kPairs>{});
    before = now;
  }
  const __m256 x = block_value(state.sums.x, before.a, third, before.b);
  const __m256 y = block_value(state.sums.y, before.a, third + 1, before.b);
  state.acc[first] = round(state.aligned[0]);
  state.acc[first + 1] = round(state.aligned[1]);
  state.acc[second] = round(align(state.acc[second], state.v[0]));
  state.acc[second + 1] = round(align(state.acc[second + 1], state.v[1]));
  state.acc[third] = round(align(state.acc[third], x));
  state.acc[third + 1] = round(align(state.acc[third + 1], y));
  for (int r = 0; r < kRows; ++r) _mm256_storeu_ps(values + kColumns * r, state.acc[r]);
}

void run(const std::uint8_t* a, std::size_t a_stride, std::size_t panels, const std::uint8_t* b, std::size_t blocks,
         float* values, bool opened) {
  for (std::size_t panel = 0; panel < panels; ++panel) {
    run_tile(a + panel * a_stride, b, blocks, values + panel * kRows * kColumns, opened);
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
      const auto store = [&](int group, __m256i v) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(panel + 32 * group), v);
      };
      store(i, _mm256_permute2x128_si256(w[i], w[i + 4], 0x20));
      store(i + 4, _mm256_permute2x128_si256(w[i], w[i + 4], 0x31));
    }
  }
}

}  // namespace

const TileKernel kTileAvx2{{kRows, kABlockBytes, pack_a}, {kColumns, kBBlockBytes, pack_b}, kPassBlocks, 1, run,
                           avx2_to_codes, avx2_to_fp16, avx2_from_codes};

}  // namespace meshwright
