// The exact FP22 product with AVX2: four rows by sixteen columns, dots by pairs of bytes.
//
// FP22 values are held as float32: E7 fits in its exponent and M14 in its fraction. A block of 32 K values costs a
// vector of eight outputs 20 instructions for the dots, five for their value, and sixteen that add it to the
// accumulator by the machine's rule. product.cpp says why nothing on this path flushes or saturates.
#include <immintrin.h>

#include <cstdint>
#include <utility>

#include "kernels.h"
#include "kernels_avx2.h"

#define MW_INLINE inline __attribute__((always_inline))

namespace meshwright {
namespace {

constexpr std::size_t kPassBlocks = 32;  // 24 KiB of B and 5 KiB of A, in a first-level cache of 32

MW_INLINE __m256i bits(__m256 v) { return _mm256_castps_si256(v); }
MW_INLINE __m256 value(__m256i v) { return _mm256_castsi256_ps(v); }
MW_INLINE __m256i load(const void* at) { return _mm256_load_si256(static_cast<const __m256i*>(at)); }
MW_INLINE __m256 load_floats(const void* at) { return value(load(at)); }

// Sixteen registers don't hold all constants. These are reached through a pointer of unknown origin, so that they
// become operands in memory.
struct Constants {
  alignas(32) std::uint32_t magnitude[8], exponent[8], sign_and_exponent[8], minus_22[8], anchor[8], pair_sums[8];
};
#define MW_EIGHT(x) {x, x, x, x, x, x, x, x}
constexpr Constants kConstants{
    MW_EIGHT(0x7FFFFFFF),
    MW_EIGHT(0x7F800000),
    MW_EIGHT(0xFF800000),
    MW_EIGHT(0u - (22u << 23)),
    MW_EIGHT(0x44001000),  // 512 * (1 + 2^-11)
    MW_EIGHT(0x00010001),
};
#undef MW_EIGHT
constexpr std::uint32_t kReciprocalUnit = (2u * 127 + 22) << 23;  // less 2^e: 2^(22 - e)

// GCC makes a comparison with zero of the intrinsic, which the instruction does by itself.
MW_INLINE __m256 choose(__m256 a, __m256 b, __m256i negative) {
  __m256 chosen;
  asm("vblendvps %3, %2, %1, %0" : "=x"(chosen) : "x"(a), "x"(b), "x"(negative));
  return chosen;
}

struct Block {
  const std::uint8_t* a;
  const std::uint8_t* b;
  float* values;  // the accumulators of its tile: the registers hold what is in flight, not these
};

// One of the two vectors of a row, in flight.
struct Vector {
  __m256i dot;  // minus the dots
  __m256 v;     // block value
  __m256i order, exponent, lost;
  __m256 acc, large, small, reciprocal_unit, unit, kept, s, e, g;
};

struct State {
  const Constants* constants;
  __m256i reciprocal_unit;
  __m256i sums[2], first_half[2];  // of the dots that are being made
  Vector vectors[2];
};

constexpr int kSteps = 20;

// Step `Step` of what happens to a vector once it has its dots: five steps make the block value, and fifteen, which
// stand first because they work on the row before, add it to the accumulator.
template <int Step>
MW_INLINE void step(const State& state, Vector& r, float* acc, const float* minus_sa, const std::uint8_t* b) {
  const Constants& constants = *state.constants;
  // ---- Aligning the smaller operand: what is below u = 2^(E_large - 22) goes, and is remembered.
  if constexpr (Step == 0) {
    r.acc = _mm256_load_ps(acc);
    r.order = _mm256_and_si256(bits(r.acc), load(constants.magnitude));
  } else if constexpr (Step == 1) {
    r.order = _mm256_sub_epi32(r.order, _mm256_and_si256(bits(r.v), load(constants.magnitude)));
  } else if constexpr (Step == 2) {
    r.large = choose(r.acc, r.v, r.order);
  } else if constexpr (Step == 3) {
    r.small = choose(r.v, r.acc, r.order);
  } else if constexpr (Step == 4) {
    r.exponent = _mm256_and_si256(bits(r.large), load(constants.exponent));
  } else if constexpr (Step == 5) {
    // 1 / u. Where large is zero this has no meaning, and small is zero.
    r.reciprocal_unit = value(_mm256_sub_epi32(state.reciprocal_unit, r.exponent));
  } else if constexpr (Step == 6) {
    r.small = _mm256_mul_ps(r.small, r.reciprocal_unit);
  } else if constexpr (Step == 7) {
    r.unit = value(_mm256_add_epi32(r.exponent, load(constants.minus_22)));
  } else if constexpr (Step == 8) {
    r.kept = _mm256_round_ps(r.small, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  } else if constexpr (Step == 9) {
    r.lost = bits(_mm256_cmp_ps(r.small, r.kept, _CMP_NEQ_OQ));  // -1 where a bit was lost, else 0
  }
  // ---- Adding, and rounding to 15 bits with the lost bits below the last one, upwards of it.
  else if constexpr (Step == 10) {
    r.s = _mm256_fmadd_ps(r.kept, r.unit, r.large);  // exact: multiples of u that are below 2^24 u together
  } else if constexpr (Step == 11) {
    r.exponent = _mm256_and_si256(bits(r.s), load(constants.sign_and_exponent));
  } else if constexpr (Step == 12) {
    // +-2^E, or 2^E * (1 + 2^-23) where a bit was lost.
    r.e = value(_mm256_sub_epi32(r.exponent, r.lost));
  } else if constexpr (Step == 13) {
    // Let U = 2^(E - 14), the unit of 15 bits. e * anchor is (2^23 + 2^12) U, an even multiple, and s is below 2^15 U:
    // their sum is rounded at U, ties to even. Where a bit was lost, e * anchor has (1 + 2^-11) U on top. Those 2^-11 U
    // take no s, a multiple of 2^-9 U, up to a tie, but make a tie more than one, which the machine rounds up, after a
    // subtraction too.
    r.s = _mm256_fmadd_ps(r.e, load_floats(constants.anchor), r.s);
  } else if constexpr (Step == 14) {
    // m U with 2^14 <= m <= 2^15, or zero, which is +0; it is exact. Where a bit was lost, the exact difference is
    // m U - 2^-11 U. Floats next to m U are at least 2^-10 U away, and m U is even, so it is the nearest even one.
    _mm256_store_ps(acc, _mm256_fnmadd_ps(r.e, load_floats(constants.anchor), r.s));
  }
  // ---- The block value: dot * sa * sb, rounded to 15 bits, nearest even.
  else if constexpr (Step == 15) {
    r.v = _mm256_cvtepi32_ps(r.dot);
  } else if constexpr (Step == 16) {
    r.v = _mm256_mul_ps(r.v, _mm256_broadcast_ss(minus_sa));  // dot * sa, exact: 18 bits and four
  } else if constexpr (Step == 17) {
    // Dekker's splitting of x = dot * sa * sb, which has 25 bits. With U as above, g = 513 x is rounded at U, or at 2 U
    // where it has one exponent more than 512 x,
    r.g = _mm256_mul_ps(r.v, load_floats(b + kBScale513));
  } else if constexpr (Step == 18) {
    // and then x - g, which is about -512 x, at U. So g and that make x rounded at U. Where x is halfway between two
    // multiples, so is 513 x, since 512 x is an even multiple; and both g and the difference are rounded to even ones.
    r.v = _mm256_fmsub_ps(r.v, load_floats(b + kBScale), r.g);
  } else if constexpr (Step == 19) {
    r.v = _mm256_add_ps(r.g, r.v);  // exact; zero is +0
  }
}

// The steps of the two vectors of a row alternate, the second one's a little later.
constexpr int kSecondLater = 1;
struct Order {
  int vector[2 * kSteps], step[2 * kSteps];
};
constexpr Order make_order() {
  Order order{};
  int n = 0;
  for (int time = 0; time < kSteps + kSecondLater; ++time) {
    for (int vector = 0; vector < 2; ++vector) {
      const int step = time - vector * kSecondLater;
      if (step < 0 || step >= kSteps) continue;
      order.vector[n] = vector;
      order.step[n++] = step;
    }
  }
  return order;
}
constexpr Order kOrder = make_order();

// Steps `From` to `To` (exclusive) of `kOrder`, beside the dots of row `Row`: the row before gets its block value, and
// the block value of the row before that is added.
template <int Row, int From, int To>
MW_INLINE void steps(State& state, const Block& now, const Block& before) {
  if constexpr (From < To) {
    constexpr int vector = kOrder.vector[From];
    constexpr int value_row = (Row + kRows - 1) % kRows, add_row = (Row + kRows - 2) % kRows;
    const Block& valued = Row < 1 ? before : now;
    const Block& added = Row < 2 ? before : now;
    step<kOrder.step[From]>(state, state.vectors[vector], added.values + kColumns * add_row + 8 * vector,
                            reinterpret_cast<const float*>(valued.a + kAScale) + value_row, valued.b + 32 * vector);
    steps<Row, From + 1, To>(state, now, before);
  }
}

// Products of the four K values of group `Group`, and some steps. `a` holds 64 - a, so that a sum of sixteen-bit lanes,
// begun at minus 64 times the sum of b, wraps around to minus the sum of eight products. Those are at most
// 8 * 64 * 64 = 2^15, which only minus it can be. Nothing saturates: two products are at most 2 * 128 * 64 = 2^14.
template <int Row, int Group>
MW_INLINE void group(State& state, const Block& now, const Block& before) {
  constexpr int half = Group / 4;
  constexpr int from = 2 * kSteps * Group / kGroups, to = 2 * kSteps * (Group + 1) / kGroups, middle = (from + to) / 2;
  const __m256i quad = _mm256_set1_epi32(*reinterpret_cast<const int*>(now.a + 32 * Row + 4 * Group));
  __m256i products[2];
  for (int i = 0; i < 2; ++i) products[i] = _mm256_maddubs_epi16(quad, load(now.b + 64 * Group + 32 * i));
  steps<Row, from, middle>(state, now, before);
  for (int i = 0; i < 2; ++i) {
    const __m256i sum = Group % 4 == 0 ? load(now.b + kBOpening + 64 * half + 32 * i) : state.sums[i];
    state.sums[i] = _mm256_add_epi16(products[i], sum);
  }
  steps<Row, middle, to>(state, now, before);
  if constexpr (Group % 4 == 3) {
    for (int i = 0; i < 2; ++i) {
      const __m256i wide = _mm256_madd_epi16(state.sums[i], load(state.constants->pair_sums));
      if constexpr (half == 0) {
        state.first_half[i] = wide;
      } else {
        state.vectors[i].dot = _mm256_add_epi32(state.first_half[i], wide);
      }
    }
  }
}

template <int Row, int... Group>
MW_INLINE void row(State& state, const Block& now, const Block& before, std::integer_sequence<int, Group...>) {
  asm volatile("" ::: "memory");  // B is read again for every row: the registers are needed for what is in flight
  (group<Row, Group>(state, now, before), ...);
}

template <int... Row>
MW_INLINE void rows(State& state, const Block& now, const Block& before, std::integer_sequence<int, Row...>) {
  (row<Row>(state, now, before, std::make_integer_sequence<int, kGroups>{}), ...);
}

alignas(32) constexpr std::uint8_t kZeroBlock[kABlockBytes] = {};

// Blocks follow one another from tile to tile without a pause. Before the first and after the last of them a block with
// scales of zero, whose values are +0, passes through a tile that nobody reads.
void run(const std::uint8_t* a, std::size_t a_stride, std::size_t panels, const std::uint8_t* b, std::size_t blocks,
         float* values, bool opened) {
  alignas(32) float nobody[kRows * kColumns] = {};
  constexpr auto all_rows = std::make_integer_sequence<int, kRows>{};
  State state;
  state.constants = &kConstants;
  asm("" : "+r"(state.constants));
  state.reciprocal_unit = _mm256_set1_epi32(static_cast<int>(kReciprocalUnit));
  for (Vector& vector : state.vectors) {
    vector.dot = _mm256_setzero_si256();
    vector.v = _mm256_setzero_ps();
  }
  Block before{kZeroBlock, b, nobody};
  for (std::size_t panel = 0; panel < panels; ++panel, a += a_stride, values += kRows * kColumns) {
    if (!opened) {
      for (int i = 0; i < kRows * kColumns; i += 8) _mm256_store_ps(values + i, _mm256_setzero_ps());
    }
    for (std::size_t k = 0; k < blocks; ++k) {
      const Block now{a + k * kABlockBytes, b + k * kBBlockBytes, values};
      rows(state, now, before, all_rows);
      before = now;
    }
  }
  rows(state, {kZeroBlock, b, nobody}, before, all_rows);
}

}  // namespace

const TileKernel kTileAvx2{{kRows, kABlockBytes, avx2_pack_a},
                           {kColumns, kBBlockBytes, avx2_pack_b},
                           kPassBlocks,
                           1,
                           run,
                           avx2_to_codes,
                           avx2_to_fp16,
                           avx2_from_codes};

}  // namespace meshwright
