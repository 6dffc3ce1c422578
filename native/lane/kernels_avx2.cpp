// The lane on 8 float32 at a time; masks are vectors of all ones and all zeros.
#include "simd_kernels.h"

namespace meshwright::lane {
namespace {

struct Avx2 {
  using F = __m256;
  using I = __m256i;
  using D = __m256d;
  using H = __m128i;
  struct M {
    I bits;
  };
  struct Q {
    D bits;
  };
  static constexpr std::size_t kWidth = 8;

  static I load(const Bits* p) { return _mm256_load_si256(reinterpret_cast<const I*>(p)); }
  static void store(Bits* p, I x) { _mm256_store_si256(reinterpret_cast<I*>(p), x); }
  static I load_unaligned(const Bits* p) { return _mm256_loadu_si256(reinterpret_cast<const I*>(p)); }
  static void store_unaligned(Bits* p, I x) { _mm256_storeu_si256(reinterpret_cast<I*>(p), x); }
  static H load_half(const std::uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const H*>(p)); }
  static void store_half(std::uint16_t* p, H x) { _mm_storeu_si128(reinterpret_cast<H*>(p), x); }

  static I set(int x) { return _mm256_set1_epi32(x); }
  static F set_float(float x) { return _mm256_set1_ps(x); }
  static F as_float(I x) { return _mm256_castsi256_ps(x); }
  static I as_int(F x) { return _mm256_castps_si256(x); }
  static I and_(I x, I y) { return _mm256_and_si256(x, y); }
  static I or_(I x, I y) { return _mm256_or_si256(x, y); }
  static I xor_(I x, I y) { return _mm256_xor_si256(x, y); }
  static I add(I x, I y) { return _mm256_add_epi32(x, y); }
  static I sub(I x, I y) { return _mm256_sub_epi32(x, y); }
  static I mul(I x, I y) { return _mm256_mullo_epi32(x, y); }
  template <int k> static I shift_left(I x) { return _mm256_slli_epi32(x, k); }
  template <int k> static I shift_right(I x) { return _mm256_srli_epi32(x, k); }
  template <int k> static I shift_right_signed(I x) { return _mm256_srai_epi32(x, k); }

  static M equal(I x, I y) { return {_mm256_cmpeq_epi32(x, y)}; }
  static M greater(I x, I y) { return {_mm256_cmpgt_epi32(x, y)}; }
  static M less(F x, F y) { return {as_int(_mm256_cmp_ps(x, y, _CMP_LT_OQ))}; }
  static M equal_float(F x, F y) { return {as_int(_mm256_cmp_ps(x, y, _CMP_EQ_OQ))}; }
  static M differ(F x, F y) { return {as_int(_mm256_cmp_ps(x, y, _CMP_NEQ_UQ))}; }
  // Zero, subnormal, infinite or NaN: magnitude - 2^23 is at least 0x7F000000, compared as unsigned.
  static M abnormal(I x) {
    const I mag = and_(x, set(0x7FFFFFFF));
    return greater(add(mag, set(int(0x7F800000u))), set(int(0xFEFFFFFFu)));
  }
  static M both(M x, M y) { return {and_(x.bits, y.bits)}; }
  static M either(M x, M y) { return {or_(x.bits, y.bits)}; }
  static M negate(M x) { return {xor_(x.bits, set(-1))}; }
  static bool any(M x) { return !_mm256_testz_si256(x.bits, x.bits); }
  static I select(M m, I yes, I no) { return _mm256_blendv_epi8(no, yes, m.bits); }
  static I keep_unless(M m, I x) { return _mm256_andnot_si256(m.bits, x); }
  static I or_where(M m, I x, I y) { return or_(x, and_(m.bits, y)); }
  static I spread(M m) { return m.bits; }

  static F add(F x, F y) { return _mm256_add_ps(x, y); }
  static F sub(F x, F y) { return _mm256_sub_ps(x, y); }
  static F mul(F x, F y) { return _mm256_mul_ps(x, y); }
  static F fma(F x, F y, F z) { return _mm256_fmadd_ps(x, y, z); }
  static F to_float(I x) { return _mm256_cvtepi32_ps(x); }
  static I truncate(F x) { return _mm256_cvttps_epi32(x); }

  static I lookup(Tables table, I index) { return _mm256_i32gather_epi32(table, index, 4); }

  static D low(F x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
  static D high(F x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }
  static F join(D x, D y) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(x)), _mm256_cvtpd_ps(y), 1);
  }
  static D set(double x) { return _mm256_set1_pd(x); }
  static D add(D x, D y) { return _mm256_add_pd(x, y); }
  static D sub(D x, D y) { return _mm256_sub_pd(x, y); }
  static D mul(D x, D y) { return _mm256_mul_pd(x, y); }
  static D or_(D x, D y) { return _mm256_or_pd(x, y); }
  static D bits(D x, long long mask) {
    return _mm256_and_pd(x, _mm256_castsi256_pd(_mm256_set1_epi64x(mask)));
  }
  static D power(D x) { return bits(x, 0x7FF0000000000000LL); }
  static D abs(D x) { return bits(x, 0x7FFFFFFFFFFFFFFFLL); }
  static D sign(D x) { return bits(x, -0x7FFFFFFFFFFFFFFFLL - 1); }
  static Q equal(D x, D y) { return {_mm256_cmp_pd(x, y, _CMP_EQ_OQ)}; }
  static Q differ(D x, D y) { return {_mm256_cmp_pd(x, y, _CMP_NEQ_UQ)}; }
  static Q not_below(D x, D y) { return {_mm256_cmp_pd(x, y, _CMP_GE_OQ)}; }
  static Q either(Q x, Q y) { return {or_(x.bits, y.bits)}; }
  static D select(Q m, D yes, D no) { return _mm256_blendv_pd(no, yes, m.bits); }
  static D set_lowest_where(Q m, D x) {
    return or_(x, _mm256_and_pd(m.bits, _mm256_castsi256_pd(_mm256_set1_epi64x(1))));
  }
  // Nearest even at 16 bits of significand.
  static D round_to_16(D x) {
    const I whole = _mm256_castpd_si256(x);
    const I odd = _mm256_and_si256(_mm256_srli_epi64(whole, 37), _mm256_set1_epi64x(1));
    const I up = _mm256_add_epi64(_mm256_add_epi64(whole, _mm256_set1_epi64x((1LL << 36) - 1)), odd);
    return bits(_mm256_castsi256_pd(up), -(1LL << 37));
  }

  static I widen(H x) { return _mm256_cvtepu16_epi32(x); }
  static F half_to_float(H x) { return _mm256_cvtph_ps(x); }
  static H float_to_half(F x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }

  static void unzip(I& first, I& second) {
    const F x = as_float(first), y = as_float(second);
    const F even = _mm256_shuffle_ps(x, y, 0x88), odd = _mm256_shuffle_ps(x, y, 0xDD);
    first = _mm256_permute4x64_epi64(as_int(even), 0xD8);
    second = _mm256_permute4x64_epi64(as_int(odd), 0xD8);
  }
};

}  // namespace

const Kernels& avx2_kernels() {
  static const Kernels kernels = make_kernels<Avx2>();
  return kernels;
}

}  // namespace meshwright::lane
