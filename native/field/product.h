// Products of matrices modulo 2^61 - 1.
//
// A residue is three limbs of 21, 21 and 19 bits: a polynomial of degree 2 in 2^21. Its values at 0, 1, 2, one half
// (times 4) and infinity have at most 24 bits; the five sums of their products over the contraction fix the five
// coefficients of the product polynomial, and with them the residue: five multiplications of small numbers, whose sums
// need no reduction, in the place of one of large numbers.
#pragma once

#include "modular.h"

namespace meshwright::field {

constexpr int kPoints = 5;
// Contraction elements at a time: packed operands then stay near the core. A sum of this many products at one point is
// below 2^(2 * 23.7 + 8), so that more than 2^8 such parts could be added before a word overflows.
constexpr std::size_t kDepth = 256;
constexpr std::size_t kMostParts = 256;
constexpr std::size_t kRows = 4, kColumns = 4;

struct Values {
  Word at[kPoints];
};

constexpr Values evaluate(Word x) {
  constexpr Word kLimb = (Word(1) << 21) - 1;
  const Word l0 = x & kLimb, l1 = (x >> 21) & kLimb, l2 = x >> 42;
  return {{l0, l0 + l1 + l2, l0 + 2 * l1 + 4 * l2, 4 * l0 + 2 * l1 + l2, l2}};
}

// What each of the five sums counts in the residue: the interpolation (a division by 2 and by 6 is a product here) and
// the powers of 2^21, of which the third is 4 and the fourth 2^23.
constexpr Values weights() {
  constexpr Word kBase = Word(1) << 21, kHalf = Word(1) << 60;
  constexpr Word kTwelfth = inverse(12);
  constexpr Word u = mul(add(kBase, 4), kHalf), v = sub(Word(1) << 42, u), t = mul(sub(4, kBase), kTwelfth);
  constexpr Word one = add(u, mul(5, v)), two = sub(t, mul(v, kHalf)), half = sub(negate(t), mul(v, kHalf));
  constexpr Word zero = sub(sub(sub(1, one), two), mul(16, half));
  constexpr Word infinity = sub(sub(sub(Word(1) << 23, one), mul(16, two)), half);
  return {{zero, one, two, half, infinity}};
}

constexpr Word interpolate(const Word* sums, std::size_t stride) {
  constexpr Values kWeights = weights();
  Word total = 0;
  for (int p = 0; p < kPoints; ++p) total = add(total, mul(reduce(sums[p * stride]), kWeights.at[p]));
  return total;
}

// One instruction set. Packed operands are [point][row][depth], depth padded with zeros to a multiple of kPad.
constexpr std::size_t kPad = 8;

struct Kernels {
  // Evaluates `rows` x `depth` residues at `source` (rows `pitch` apart, consecutive along the contraction).
  void (*pack)(Word* packed, const Word* source, std::size_t rows, std::size_t depth, std::ptrdiff_t pitch);
  // sums[i * pitch + j] += the product of rows i of a and j of b at one point, over `padded` elements; i and j are
  // below kRows and kColumns.
  void (*tile)(Word* sums, std::size_t pitch, const Word* a, const Word* b, std::size_t padded);
};

const Kernels& scalar_kernels();
#ifdef MESHWRIGHT_X86
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
#endif

// T products a[a_index[t]] @ b[b_index[t]].T. Pitches count words: between blocks, and between rows; elements along the
// contraction are consecutive.
struct Request {
  const Word* a;
  const Word* b;
  const std::int64_t* a_index;
  const std::int64_t* b_index;
  const Word* start;  // [T, m, n] or null
  Word* out;          // [T, m, n]
  std::size_t count, m, n, k;
  std::ptrdiff_t a_block, a_row, b_block, b_row;
};

void product(const Request& request, const Kernels& kernels, int threads);

}  // namespace meshwright::field
