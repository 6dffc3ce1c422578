// The product kernels on 4 words at a time: products of 32-bit halves, added in 64 bits.
#include <immintrin.h>

#include "product.h"

namespace meshwright::field {
namespace {

using Vector = __m256i;

Vector load(const Word* p) { return _mm256_load_si256(reinterpret_cast<const Vector*>(p)); }
void store(Word* p, Vector x) { _mm256_store_si256(reinterpret_cast<Vector*>(p), x); }

void pack_vector(Word* packed, std::size_t point, Vector x) {
  const Vector limb = _mm256_set1_epi64x((1 << 21) - 1);
  const Vector l0 = _mm256_and_si256(x, limb), l1 = _mm256_and_si256(_mm256_srli_epi64(x, 21), limb);
  const Vector l2 = _mm256_srli_epi64(x, 42), twice = _mm256_add_epi64(l1, l1);
  store(packed, l0);
  store(packed + point, _mm256_add_epi64(_mm256_add_epi64(l0, l1), l2));
  store(packed + 2 * point, _mm256_add_epi64(_mm256_add_epi64(l0, twice), _mm256_slli_epi64(l2, 2)));
  store(packed + 3 * point, _mm256_add_epi64(_mm256_add_epi64(_mm256_slli_epi64(l0, 2), twice), l2));
  store(packed + 4 * point, l2);
}

void pack(Word* packed, const Word* source, std::size_t rows, std::size_t depth, std::ptrdiff_t pitch) {
  const std::size_t padded = (depth + kPad - 1) / kPad * kPad;
  for (std::size_t row = 0; row < rows; ++row, source += pitch, packed += padded) {
    std::size_t k = 0;
    for (; k + 4 <= depth; k += 4) {
      pack_vector(packed + k, rows * padded, _mm256_loadu_si256(reinterpret_cast<const Vector*>(source + k)));
    }
    for (; k < padded; k += 4) {
      const Vector left = _mm256_sub_epi64(_mm256_set1_epi64x(std::ptrdiff_t(depth) - std::ptrdiff_t(k)),
                                           _mm256_setr_epi64x(0, 1, 2, 3));
      const Vector inside = _mm256_cmpgt_epi64(left, _mm256_setzero_si256());
      const auto* some = reinterpret_cast<const long long*>(source + k);
      pack_vector(packed + k, rows * padded, _mm256_maskload_epi64(some, inside));
    }
  }
}

// Lane j of the result is the sum of lanes of x[j].
Vector sums_of(const Vector* x) {
  const Vector low = _mm256_add_epi64(_mm256_unpacklo_epi64(x[0], x[1]), _mm256_unpackhi_epi64(x[0], x[1]));
  const Vector high = _mm256_add_epi64(_mm256_unpacklo_epi64(x[2], x[3]), _mm256_unpackhi_epi64(x[2], x[3]));
  return _mm256_add_epi64(_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31));
}

void tile(Word* sums, std::size_t pitch, const Word* a, const Word* b, std::size_t padded) {
  // Two rows at a time: eight sums and what they need fit the sixteen registers.
  for (std::size_t i = 0; i < kRows; i += 2) {
    Vector x[kColumns], y[kColumns];
    for (std::size_t j = 0; j < kColumns; ++j) x[j] = y[j] = _mm256_setzero_si256();
    for (std::size_t k = 0; k < padded; k += 4) {
      const Vector a0 = load(a + i * padded + k), a1 = load(a + (i + 1) * padded + k);
      for (std::size_t j = 0; j < kColumns; ++j) {
        const Vector other = load(b + j * padded + k);
        x[j] = _mm256_add_epi64(x[j], _mm256_mul_epu32(a0, other));
        y[j] = _mm256_add_epi64(y[j], _mm256_mul_epu32(a1, other));
      }
    }
    Word* row = sums + i * pitch;
    store(row, _mm256_add_epi64(load(row), sums_of(x)));
    store(row + pitch, _mm256_add_epi64(load(row + pitch), sums_of(y)));
  }
}

}  // namespace

const Kernels& avx2_kernels() {
  static const Kernels kernels = {pack, tile};
  return kernels;
}

}  // namespace meshwright::field
