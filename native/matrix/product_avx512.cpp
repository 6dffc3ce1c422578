// The exact FP22 product with AVX-512 VNNI: seven rows by sixteen columns in registers.
//
// FP22 values are held as float32: E7 fits in its exponent and M14 in its fraction. One block of 32 K values is worth
// eight dot instructions, four that make the block value, and thirteen that add it to the accumulator by the machine's
// rule. product.cpp says why nothing on this path flushes or saturates.
#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels.h"
#include "kernels_avx512.h"
#include "schedule_avx512.h"

#define MW_INLINE inline __attribute__((always_inline))

namespace meshwright {
namespace {

constexpr std::size_t kPassBlocks = 32;  // 20 KiB of B and 9 KiB of A, in a first-level cache of 32

alignas(64) constexpr std::uint8_t kZeroBlock[kABlockBytes] = {};

MW_INLINE __m512i bits(__m512 v) { return _mm512_castps_si512(v); }
MW_INLINE __m512 value(__m512i v) { return _mm512_castsi512_ps(v); }
MW_INLINE __m512 broadcast(const std::uint8_t* at) { return _mm512_set1_ps(*reinterpret_cast<const float*>(at)); }

// Operands of the range instruction (the result keeps its own sign) and a table of the ternary one, x | (y & z).
constexpr int kSmallerMagnitude = 0b0110;
constexpr int kLargerMagnitude = 0b0111;
constexpr int kFirstOrBoth = 0xF8;
constexpr float kAnchor = 512.25f;  // 512 * (1 + 2^-11)

// What one row of the tile has in flight. A new block may overwrite a member only when the block before has read it
// for the last time; schedule_avx512.h checks that it is so.
struct Row {
  __m512i sum;                        // kMagic + sum over a * (b + 64), as an integer and as a float
  __m512 dot_sa, g, v;                // block value
  __m512 large, small, power, kept;   // aligning
  __mmask16 lost;
  __m512 s, e, t;                     // rounding
  __m512 acc;
};

// Step `Step` of the value of a block and its addition. `a` and `b` are the block's place in the panels.
template <int Step>
MW_INLINE void step(Row& r, int row, const std::uint8_t* a, const std::uint8_t* b) {
  // ---- The block value: dot * sa * sb, rounded to 15 bits, nearest even.
  if constexpr (Step == 0) {
    // dot * sa. The correction is -(kMagic + 64 * sum(a)) * sa, so the sum is exactly dot * sa: |dot| <= 32 * 64 * 64
    // has 18 bits and sa has four. |sum over a * (b + 64)| <= 32 * 64 * 127 < 2^22 keeps the magic number's exponent.
    r.dot_sa = _mm512_fmadd_ps(value(r.sum), broadcast(a + kAScale + 4 * row), broadcast(a + kACorrection + 4 * row));
  } else if constexpr (Step == 1) {
    // Dekker's splitting of x = dot * sa * sb, which has 25 bits. Let U be the unit of its first 15 bits. g = 513 x is
    // rounded at U, or at 2 U where it has one exponent more than 512 x,
    r.g = _mm512_mul_ps(r.dot_sa, _mm512_load_ps(b + kBScale513));
  } else if constexpr (Step == 2) {
    // and then x - g, which is about -512 x, at U. So g and that make x rounded at U. Where x is halfway between two
    // multiples, so is 513 x, since 512 x is an even multiple; and both g and the difference are rounded to even ones.
    r.v = _mm512_fmsub_ps(r.dot_sa, _mm512_load_ps(b + kBScale), r.g);
  } else if constexpr (Step == 3) {
    r.v = _mm512_add_ps(r.g, r.v);  // exact; zero is +0
  }
  // ---- Aligning the smaller operand: what is below u = 2^(E_large - 22) goes, and is remembered.
  else if constexpr (Step == 4) {
    r.large = _mm512_range_ps(r.acc, r.v, kLargerMagnitude);
  } else if constexpr (Step == 5) {
    // Of two equal magnitudes with opposite signs the one instruction takes the positive value, this the negative one.
    r.small = _mm512_range_ps(r.acc, r.v, kSmallerMagnitude);
  } else if constexpr (Step == 6) {
    r.power = value(_mm512_and_si512(bits(r.large), _mm512_set1_epi32(0x7F800000)));
  } else if constexpr (Step == 7) {
    r.power = _mm512_add_ps(r.power, r.power);  // 2^(E_large + 1)
  } else if constexpr (Step == 8) {
    const __m512i sign = _mm512_set1_epi32(INT32_MIN);
    r.power = value(_mm512_ternarylogic_epi32(bits(r.power), bits(r.small), sign, kFirstOrBoth));
  } else if constexpr (Step == 9) {
    // Beyond 2^(E_large + 1), on the side of small's sign, the unit is u: rounding toward zero is the rule's
    // truncation. |small| < 2^(E_large + 1), so the sum never reaches the next binade.
    r.kept = _mm512_add_round_ps(r.small, r.power, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  } else if constexpr (Step == 10) {
    r.kept = _mm512_sub_ps(r.kept, r.power);  // exact
  } else if constexpr (Step == 11) {
    r.lost = _mm512_cmp_ps_mask(r.kept, r.small, _CMP_NEQ_OQ);
  }
  // ---- Adding, and rounding to 15 bits with the lost bits below the last one, upwards of it.
  else if constexpr (Step == 12) {
    r.s = _mm512_add_ps(r.large, r.kept);  // exact: multiples of u that are below 2^24 u together
  } else if constexpr (Step == 13) {
    r.e = value(_mm512_and_si512(bits(r.s), _mm512_set1_epi32(static_cast<int>(0xFF800000u))));
  } else if constexpr (Step == 14) {
    // +-2^E, or 2^E * (1 + 2^-23) where a bit was lost.
    r.e = value(_mm512_mask_add_epi32(bits(r.e), r.lost, bits(r.e), _mm512_set1_epi32(1)));
  } else if constexpr (Step == 15) {
    // Let U = 2^(E - 14), the unit of 15 bits. e * kAnchor is (2^23 + 2^12) U, an even multiple, and s is below 2^15 U:
    // their sum is rounded at U, ties to even. Where a bit was lost, e * kAnchor has (1 + 2^-11) U on top. Those
    // 2^-11 U take no s, a multiple of 2^-9 U, up to a tie, but make a tie more than one, which the machine rounds up,
    // after a subtraction too.
    r.t = _mm512_fmadd_ps(r.e, _mm512_set1_ps(kAnchor), r.s);
  } else if constexpr (Step == 16) {
    // m U with 2^14 <= m <= 2^15, or zero, which is +0; it is exact. Where a bit was lost, the exact difference is
    // m U - 2^-11 U. Floats next to m U are at least 2^-10 U away, and m U is even, so it is the nearest even one.
    r.acc = _mm512_fnmadd_ps(r.e, _mm512_set1_ps(kAnchor), r.t);
  }
}

struct Block {
  const std::uint8_t* a;
  const std::uint8_t* b;
};

struct State {
  Row rows[kRows];
  __m512i b[kGroups];
  Block lap[kLaps];  // the newest block, the one before, ...
  float* finished;   // tile of the panel whose last block is in flight
  float* next;       // tile of the panel that follows
  __mmask16 opened;
};

// Event `I` of the schedule. `SinceSwitch` is how many blocks of the present panel came before this one.
template <std::size_t I, int SinceSwitch, int FirstLap>
MW_INLINE void happen(State& state) {
  constexpr Event event = kSchedule[I];
  if constexpr (event.kind == Event::load_b) {
    if constexpr (FirstLap == 0) state.b[event.index] = _mm512_load_si512(state.lap[0].b + 64 * event.index);
  } else if constexpr (event.lap >= FirstLap) {
    Row& row = state.rows[event.row];
    const Block& block = state.lap[event.lap];
    if constexpr (event.kind == Event::dot) {
      const auto* quad = reinterpret_cast<const int*>(block.a + 32 * event.row + 4 * event.index);
      if constexpr (event.index == 0) row.sum = _mm512_set1_epi32(kMagicBits);
      row.sum = _mm512_dpbusd_epi32(row.sum, state.b[event.index], _mm512_set1_epi32(*quad));
    } else {
      step<event.index>(row, event.row, block.a, block.b);
      // This was the last block of the panel before: its row leaves the register and the new panel's enters.
      if constexpr (event.index == kSteps - 1 && event.lap == SinceSwitch + 1) {
        _mm512_storeu_ps(state.finished + kColumns * event.row, row.acc);
        row.acc = _mm512_maskz_loadu_ps(state.opened, state.next + kColumns * event.row);
      }
    }
  }
}

template <int SinceSwitch, int FirstLap, std::size_t... I>
MW_INLINE void all_events(State& state, std::index_sequence<I...>) {
  (happen<I, SinceSwitch, FirstLap>(state), ...);
}

constexpr int kLongAgo = 99;  // no event belongs to the panel before

// One turn of the pipeline, which takes in one block, or only drains the events of lap `FirstLap` and later.
template <int SinceSwitch, int FirstLap = 0>
MW_INLINE void turn(State& state) {
  all_events<SinceSwitch, FirstLap>(state, std::make_index_sequence<kSchedule.size()>{});
  state.lap[2] = state.lap[1];
  state.lap[1] = state.lap[0];
}

// Calls f with every constant below N: a loop's variable would keep the registers it indexes in memory.
template <typename F, int... I>
MW_INLINE void for_each(std::integer_sequence<int, I...>, const F& f) {
  (f(std::integral_constant<int, I>{}), ...);
}
template <int N, typename F>
MW_INLINE void for_each(const F& f) {
  for_each(std::make_integer_sequence<int, N>{}, f);
}

// Before the first block there are as many blocks of zeros in flight as there are laps, whose values are +0, and every
// member holds what such a block would have left in it.
MW_INLINE void start(State& state, const std::uint8_t* b) {
  state.lap[0] = state.lap[1] = state.lap[2] = {kZeroBlock, b};
  for_each<kGroups>([&](auto g) { state.b[g] = _mm512_load_si512(b + 64 * g); });
  for_each<kRows>([&](auto i) {
    Row& r = state.rows[i];
    r.acc = _mm512_maskz_loadu_ps(state.opened, state.next + kColumns * i);
    r.sum = _mm512_set1_epi32(kMagicBits);
    r.dot_sa = r.g = r.v = r.small = r.power = r.kept = _mm512_setzero_ps();
    r.lost = 0;
    r.large = r.s = r.acc;
    for_each<3>([&](auto n) { step<13 + n>(r, i, nullptr, nullptr); });
  });
}

void run(const std::uint8_t* a, std::size_t a_stride, std::size_t panels, const std::uint8_t* b, std::size_t blocks,
         float* values, bool opened) {
  State state;
  state.opened = opened ? 0xFFFF : 0;
  state.finished = state.next = values;
  start(state, b);
  for (std::size_t panel = 0; panel < panels; ++panel, a += a_stride) {
    state.lap[0] = {a, b};
    turn<0>(state);
    state.lap[0] = {a + kABlockBytes, b + kBBlockBytes};
    turn<1>(state);
    for (std::size_t k = 2; k < blocks; ++k) {
      state.lap[0] = {a + k * kABlockBytes, b + k * kBBlockBytes};
      turn<kLongAgo>(state);
    }
    state.finished = state.next;
    state.next += kRows * kColumns;
  }
  turn<kLongAgo, 1>(state);
  turn<kLongAgo, 2>(state);
  for_each<kRows>([&](auto i) { _mm512_storeu_ps(state.finished + kColumns * i, state.rows[i].acc); });
}

}  // namespace

const TileKernel kTileAvx512{{kRows, kABlockBytes, avx512_pack_a},
                             {kColumns, kBBlockBytes, avx512_pack_b},
                             kPassBlocks,
                             2,
                             run,
                             avx512_to_codes,
                             avx512_to_fp16,
                             avx512_from_codes};

}  // namespace meshwright
