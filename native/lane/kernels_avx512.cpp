// The lane on 16 float32 at a time, with mask registers.
#include "simd_kernels.h"

namespace meshwright::lane {
namespace {

struct Avx512 {
  using F = __m512;
  using I = __m512i;
  using M = __mmask16;
  using D = __m512d;
  using Q = __mmask8;
  using H = __m256i;
  static constexpr std::size_t kWidth = 16;

  static I load(const Bits* p) { return _mm512_load_si512(p); }
  static void store(Bits* p, I x) { _mm512_store_si512(p, x); }
  static I load_unaligned(const Bits* p) { return _mm512_loadu_si512(p); }
  static void store_unaligned(Bits* p, I x) { _mm512_storeu_si512(p, x); }
  static H load_half(const std::uint16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const H*>(p)); }
  static void store_half(std::uint16_t* p, H x) { _mm256_storeu_si256(reinterpret_cast<H*>(p), x); }

  static I set(int x) { return _mm512_set1_epi32(x); }
  static F set_float(float x) { return _mm512_set1_ps(x); }
  static F as_float(I x) { return _mm512_castsi512_ps(x); }
  static I as_int(F x) { return _mm512_castps_si512(x); }
  static I and_(I x, I y) { return _mm512_and_si512(x, y); }
  static I or_(I x, I y) { return _mm512_or_si512(x, y); }
  static I xor_(I x, I y) { return _mm512_xor_si512(x, y); }
  static I add(I x, I y) { return _mm512_add_epi32(x, y); }
  static I sub(I x, I y) { return _mm512_sub_epi32(x, y); }
  static I mul(I x, I y) { return _mm512_mullo_epi32(x, y); }
  template <int k> static I shift_left(I x) { return _mm512_slli_epi32(x, k); }
  template <int k> static I shift_right(I x) { return _mm512_srli_epi32(x, k); }
  template <int k> static I shift_right_signed(I x) { return _mm512_srai_epi32(x, k); }

  static M equal(I x, I y) { return _mm512_cmpeq_epi32_mask(x, y); }
  static M greater(I x, I y) { return _mm512_cmpgt_epi32_mask(x, y); }
  static M less(F x, F y) { return _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ); }
  static M equal_float(F x, F y) { return _mm512_cmp_ps_mask(x, y, _CMP_EQ_OQ); }
  static M differ(F x, F y) { return _mm512_cmp_ps_mask(x, y, _CMP_NEQ_UQ); }
  // Zero, subnormal, infinite or NaN.
  static M abnormal(I x) {
    const I mag = and_(x, set(0x7FFFFFFF));
    return _mm512_cmpge_epu32_mask(sub(mag, set(0x00800000)), set(0x7F000000));
  }
  static M both(M x, M y) { return M(x & y); }
  static M either(M x, M y) { return M(x | y); }
  static M negate(M x) { return M(~x); }
  static bool any(M x) { return x; }
  static I select(M m, I yes, I no) { return _mm512_mask_mov_epi32(no, m, yes); }
  static I keep_unless(M m, I x) { return _mm512_maskz_mov_epi32(M(~m), x); }
  static I or_where(M m, I x, I y) { return _mm512_mask_or_epi32(x, m, x, y); }
  static I spread(M m) { return _mm512_maskz_mov_epi32(m, set(-1)); }

  static F add(F x, F y) { return _mm512_add_ps(x, y); }
  static F sub(F x, F y) { return _mm512_sub_ps(x, y); }
  static F mul(F x, F y) { return _mm512_mul_ps(x, y); }
  static F fma(F x, F y, F z) { return _mm512_fmadd_ps(x, y, z); }
  static F to_float(I x) { return _mm512_cvtepi32_ps(x); }
  static I truncate(F x) { return _mm512_cvttps_epi32(x); }

  // Of 32 entries.
  static I lookup(Tables table, I index) {
    return _mm512_permutex2var_epi32(_mm512_loadu_si512(table), index, _mm512_loadu_si512(table + 16));
  }

  static D low(F x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
  static D high(F x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }
  static F join(D x, D y) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(x)), _mm512_cvtpd_ps(y), 1);
  }
  static D set(double x) { return _mm512_set1_pd(x); }
  static D add(D x, D y) { return _mm512_add_pd(x, y); }
  static D sub(D x, D y) { return _mm512_sub_pd(x, y); }
  static D mul(D x, D y) { return _mm512_mul_pd(x, y); }
  static D or_(D x, D y) { return _mm512_or_pd(x, y); }
  static D bits(D x, long long mask) {
    return _mm512_and_pd(x, _mm512_castsi512_pd(_mm512_set1_epi64(mask)));
  }
  static D power(D x) { return bits(x, 0x7FF0000000000000LL); }
  static D abs(D x) { return bits(x, 0x7FFFFFFFFFFFFFFFLL); }
  static D sign(D x) { return bits(x, -0x7FFFFFFFFFFFFFFFLL - 1); }
  static Q equal(D x, D y) { return _mm512_cmp_pd_mask(x, y, _CMP_EQ_OQ); }
  static Q differ(D x, D y) { return _mm512_cmp_pd_mask(x, y, _CMP_NEQ_UQ); }
  static Q not_below(D x, D y) { return _mm512_cmp_pd_mask(x, y, _CMP_GE_OQ); }
  static Q either(Q x, Q y) { return Q(x | y); }
  static D select(Q m, D yes, D no) { return _mm512_mask_mov_pd(no, m, yes); }
  static D set_lowest_where(Q m, D x) {
    const I whole = _mm512_castpd_si512(x);
    return _mm512_castsi512_pd(_mm512_mask_or_epi64(whole, m, whole, _mm512_set1_epi64(1)));
  }
  // Nearest even at 16 bits of significand.
  static D round_to_16(D x) {
    const I whole = _mm512_castpd_si512(x);
    const I odd = _mm512_and_si512(_mm512_srli_epi64(whole, 37), _mm512_set1_epi64(1));
    const I up = _mm512_add_epi64(_mm512_add_epi64(whole, _mm512_set1_epi64((1LL << 36) - 1)), odd);
    return bits(_mm512_castsi512_pd(up), -(1LL << 37));
  }

  static I widen(H x) { return _mm512_cvtepu16_epi32(x); }
  static F half_to_float(H x) { return _mm512_cvtph_ps(x); }
  static H float_to_half(F x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

  static void unzip(I& first, I& second) {
    const I steps = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const I even = _mm512_permutex2var_epi32(first, steps, second);
    second = _mm512_permutex2var_epi32(first, add(steps, set(1)), second);
    first = even;
  }
};

}  // namespace

const Kernels& avx512_kernels() {
  static const Kernels kernels = make_kernels<Avx512>();
  return kernels;
}

}  // namespace meshwright::lane
