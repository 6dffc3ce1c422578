// The exact FP22 product with AVX-512 VNNI: seven rows by sixteen columns in registers.
//
// FP22 values are held as float32: E7 fits in its exponent and M14 in its fraction. One block of 32 K values is worth
// eight dot instructions, five that make the block value, and fourteen that add it to the accumulator by the machine's
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
MW_INLINE __m512i sign_and_exponent() { return _mm512_set1_epi32(static_cast<int>(0xFF800000u)); }

// Operands of the range instruction (the result keeps its own sign) and a table of the ternary one, x | (y & z).
constexpr int kSmallerMagnitude = 0b0110;
constexpr int kLargerMagnitude = 0b0111;
constexpr int kFirstOrBoth = 0xF8;

// What one row of the tile has in flight. A new block may overwrite a member only when the block before has read it
// for the last time; schedule_avx512.h checks that it is so.
struct Row {
  __m512i sum;                        // kMagic + sum over a * (b + 64), as an integer and as a float
  __m512 dot_sa, anchor, v;           // block value
  __m512 large, small, power, kept;   // aligning
  __m512 s, e, t;                     // rounding
  __m512 acc;
};

// Step `Step` of the value of a block and its addition. `a` and `b` are the block's place in the panels.
template <int Step>
MW_INLINE void step(Row& r, int row, const std::uint8_t* a, const std::uint8_t* b) {
  // ---- The block value: dot * sa * sb, rounded to 15 bits, nearest even.
  if constexpr (Step == 0) {
    // dot * sa. The correction is -(kMagic + 64 * sum(a)) * sa, so the sum is exactly dot * sa: |dot| <= 32 * 63 * 63
    // has 17 bits and sa has four. |sum over a * (b + 64)| <= 32 * 63 * 127 < 2^22 keeps the magic number's exponent.
    r.dot_sa = _mm512_fmadd_ps(value(r.sum), broadcast(a + kAScale + 4 * row), broadcast(a + kACorrection + 4 * row));
  } else if constexpr (Step == 1) {
    // 512 * dot * sa * sb, wanted for its exponent alone. The product is an integer of at most 25 bits times a power
    // of two, and below 2^25 - 1 (127008 * 225 = 28576800): up to 2^24 it is exact, and beyond, rounding it to 24 bits
    // can't carry it to 2^25.
    r.anchor = _mm512_mul_ps(r.dot_sa, _mm512_load_ps(b + kBScale512));
  } else if constexpr (Step == 2) {
    // +-2^(E + 9), or zero.
    r.anchor = value(_mm512_and_si512(bits(r.anchor), sign_and_exponent()));
  } else if constexpr (Step == 3) {
    // One rounding of the exact product plus the anchor. Between 2^(E + 9) and 2^(E + 10) float32's unit is 2^(E - 14):
    // that of 15 bits.
    r.v = _mm512_fmadd_ps(r.dot_sa, _mm512_load_ps(b + kBScale), r.anchor);
  } else if constexpr (Step == 4) {
    r.v = _mm512_sub_ps(r.v, r.anchor);  // exact
  }
  // ---- Aligning the smaller operand: what is below 2^(E_large - 22) goes, and is remembered.
  else if constexpr (Step == 5) {
    r.large = _mm512_range_ps(r.acc, r.v, kLargerMagnitude);
  } else if constexpr (Step == 6) {
    // Of two equal magnitudes with opposite signs the one instruction takes the positive value, this the negative one.
    r.small = _mm512_range_ps(r.acc, r.v, kSmallerMagnitude);
  } else if constexpr (Step == 7) {
    r.power = value(_mm512_and_si512(bits(r.large), _mm512_set1_epi32(0x7F800000)));
  } else if constexpr (Step == 8) {
    r.power = _mm512_add_ps(r.power, r.power);  // 2^(E_large + 1)
  } else if constexpr (Step == 9) {
    const __m512i sign = _mm512_set1_epi32(INT32_MIN);
    r.power = value(_mm512_ternarylogic_epi32(bits(r.power), bits(r.small), sign, kFirstOrBoth));
  } else if constexpr (Step == 10) {
    // Beyond 2^(E_large + 1), on the side of small's sign, the unit is 2^(E_large - 22): rounding toward zero is the
    // rule's truncation. |small| < 2^(E_large + 1), so the sum never reaches the next binade.
    r.kept = _mm512_add_round_ps(r.small, r.power, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  } else if constexpr (Step == 11) {
    r.kept = _mm512_sub_ps(r.kept, r.power);  // exact
  } else if constexpr (Step == 12) {
    // One where a bit was lost, else zero.
    const __m512i lost = _mm512_xor_si512(bits(r.kept), bits(r.small));
    r.small = value(_mm512_min_epu32(lost, _mm512_set1_epi32(1)));
  }
  // ---- Adding, and rounding to 15 bits with the lost bits below the last one, upwards of it.
  else if constexpr (Step == 13) {
    // Exact: multiples of 2^(E_large - 22) that are below 2^(E_large + 2) together.
    r.s = _mm512_add_ps(r.large, r.kept);
  } else if constexpr (Step == 14) {
    // Bits are lost only from nine binades apart on, so s is in large's binade or a neighbour. Its fraction bit 0 weighs
    // a half or a quarter of the unit 2^(E_large - 22) that s is a multiple of, and setting it says "a little more"; or,
    // after a carry, it weighs that unit, and setting it can't reach or leave a tie other than upwards, since ties are
    // even multiples. So a tie becomes more than a tie, which the machine rounds up, after a subtraction too.
    r.s = value(_mm512_or_si512(bits(r.s), bits(r.small)));
  } else if constexpr (Step == 15) {
    r.e = value(_mm512_and_si512(bits(r.s), sign_and_exponent()));
  } else if constexpr (Step == 16) {
    r.t = _mm512_fmadd_ps(r.e, _mm512_set1_ps(512.0f), r.s);  // to 15 bits, as in step 3
  } else if constexpr (Step == 17) {
    r.acc = _mm512_fnmadd_ps(r.e, _mm512_set1_ps(512.0f), r.t);  // exact; zero is +0
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
    r.dot_sa = r.anchor = r.v = r.small = r.power = r.kept = _mm512_setzero_ps();
    r.large = r.s = r.acc;
    step<15>(r, i, nullptr, nullptr);
    step<16>(r, i, nullptr, nullptr);
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
