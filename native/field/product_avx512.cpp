// The product kernels on 8 words at a time: a product and its addition are one instruction (AVX-512 IFMA), since the
// product of two values at a point has at most 48 bits.
#include <immintrin.h>

#include "product.h"

namespace meshwright::field {
namespace {

using Vector = __m512i;

void pack_vector(Word* packed, std::size_t point, Vector x) {
  const Vector limb = _mm512_set1_epi64((1 << 21) - 1);
  const Vector l0 = _mm512_and_si512(x, limb), l1 = _mm512_and_si512(_mm512_srli_epi64(x, 21), limb);
  const Vector l2 = _mm512_srli_epi64(x, 42), twice = _mm512_add_epi64(l1, l1);
  _mm512_store_si512(packed, l0);
  _mm512_store_si512(packed + point, _mm512_add_epi64(_mm512_add_epi64(l0, l1), l2));
  _mm512_store_si512(packed + 2 * point, _mm512_add_epi64(_mm512_add_epi64(l0, twice), _mm512_slli_epi64(l2, 2)));
  _mm512_store_si512(packed + 3 * point, _mm512_add_epi64(_mm512_add_epi64(_mm512_slli_epi64(l0, 2), twice), l2));
  _mm512_store_si512(packed + 4 * point, l2);
}

void pack(Word* packed, const Word* source, std::size_t rows, std::size_t depth, std::ptrdiff_t pitch) {
  const std::size_t padded = (depth + kPad - 1) / kPad * kPad;
  for (std::size_t row = 0; row < rows; ++row, source += pitch, packed += padded) {
    std::size_t k = 0;
    for (; k + 8 <= depth; k += 8) pack_vector(packed + k, rows * padded, _mm512_loadu_si512(source + k));
    if (k < padded) {
      const __mmask8 inside = __mmask8((1u << (depth - k)) - 1);
      pack_vector(packed + k, rows * padded, _mm512_maskz_loadu_epi64(inside, source + k));
    }
  }
}

// Lane i of the result is the sum of lanes of x[i], for eight of them.
Vector sums_of(const Vector* x) {
  Vector pairs[4];
  for (int i = 0; i < 4; ++i) {
    const Vector &p = x[2 * i], &q = x[2 * i + 1];
    pairs[i] = _mm512_add_epi64(_mm512_unpacklo_epi64(p, q), _mm512_unpackhi_epi64(p, q));
  }
  Vector fours[2];
  for (int i = 0; i < 2; ++i) {
    const Vector &p = pairs[2 * i], &q = pairs[2 * i + 1];
    fours[i] = _mm512_add_epi64(_mm512_shuffle_i64x2(p, q, 0x88), _mm512_shuffle_i64x2(p, q, 0xDD));
  }
  const Vector even = _mm512_shuffle_i64x2(fours[0], fours[1], 0x88);
  const Vector odd = _mm512_shuffle_i64x2(fours[0], fours[1], 0xDD);
  return _mm512_add_epi64(even, odd);
}

void tile(Word* sums, std::size_t pitch, const Word* a, const Word* b, std::size_t padded) {
  Vector x[kRows * kColumns];
  for (auto& sum : x) sum = _mm512_setzero_si512();
  for (std::size_t k = 0; k < padded; k += 8) {
    Vector other[kColumns];
    for (std::size_t j = 0; j < kColumns; ++j) other[j] = _mm512_load_si512(b + j * padded + k);
    for (std::size_t i = 0; i < kRows; ++i) {
      const Vector row = _mm512_load_si512(a + i * padded + k);
      for (std::size_t j = 0; j < kColumns; ++j) {
        x[i * kColumns + j] = _mm512_madd52lo_epu64(x[i * kColumns + j], row, other[j]);
      }
    }
  }
  for (std::size_t i = 0; i < kRows; i += 2) {
    const Vector both = sums_of(x + i * kColumns);
    auto* first = reinterpret_cast<__m256i*>(sums + i * pitch);
    auto* second = reinterpret_cast<__m256i*>(sums + (i + 1) * pitch);
    _mm256_store_si256(first, _mm256_add_epi64(_mm256_load_si256(first), _mm512_castsi512_si256(both)));
    _mm256_store_si256(second, _mm256_add_epi64(_mm256_load_si256(second), _mm512_extracti64x4_epi64(both, 1)));
  }
}

}  // namespace

const Kernels& avx512_kernels() {
  static const Kernels kernels = {pack, tile};
  return kernels;
}

}  // namespace meshwright::field
