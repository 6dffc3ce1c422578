#include "elementwise.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "parallel.h"

namespace meshwright::field {
namespace {

constexpr std::size_t kGrain = 1 << 14;
constexpr Word kSixty = (Word(1) << 60) - 1;

// Calls work(begin, end) for consecutive pieces of [0, count).
template <class Work>
void ranges(std::size_t count, std::size_t grain, int threads, const Work& work) {
  parallel((count + grain - 1) / grain, threads,
           [&](std::size_t piece) { work(piece * grain, std::min(count, (piece + 1) * grain)); });
}

// A keyed permutation of the 60-bit words.
Word permuted(Word x, const Keys& keys) {
  x ^= keys.words[0] & kSixty;
  x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15u & kSixty;
  x ^= (x >> 30) ^ (keys.words[1] & kSixty);
  x = (x ^ (x >> 31)) * 0x6A09E667F3BCC909u & kSixty;
  return x ^ (x >> 30);
}

double order_name(Word x, const Keys& keys, const Constants& constants) {
  const Word* end = constants.residues + constants.count;
  const Word* found = std::lower_bound(constants.residues, end, x);
  if (found != end && *found == x) return constants.numbers[found - constants.residues];
  if (x == 0) return 0.0;
  const Word opposite = kPrime - x, smaller = std::min(x, opposite);
  const Word sign = (mix(smaller, keys.words[2], keys.words[3]) & 1) ^ Word(x > opposite);
  // Bit patterns of floats are ordered as the floats are; seven eighths of the exponents are in use, and no infinity.
  const Word bits = (sign << 63) | (1 + 7 * permuted(smaller, keys));
  double name;
  std::memcpy(&name, &bits, sizeof name);
  return name;
}

}  // namespace

void apply(Op op, Word* out, const Operand* operands, std::size_t count, const Keys& keys, int threads) {
  const Operand a = operands[0];
  const auto each = [&](std::size_t grain, const auto& one) {
    ranges(count, grain, threads, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) out[i] = one(i);
    });
  };
  const auto at = [&](int operand, std::size_t i) {
    return operands[operand].words[operands[operand].step * i];
  };
  switch (op) {
    case kAdd:
      return each(kGrain, [&](std::size_t i) { return add(at(0, i), at(1, i)); });
    case kSub:
      return each(kGrain, [&](std::size_t i) { return sub(at(0, i), at(1, i)); });
    case kMul:
      return each(kGrain, [&](std::size_t i) { return mul(at(0, i), at(1, i)); });
    case kMultiplyAdd:
      return each(kGrain, [&](std::size_t i) { return add(mul(at(0, i), at(1, i)), at(2, i)); });
    case kInverse: {
      const Word of_zero = reduce(keys.words[0]);
      return each(kGrain / 64, [&](std::size_t i) { return at(0, i) ? inverse(at(0, i)) : of_zero; });
    }
    case kHash:
      return each(kGrain, [&](std::size_t i) { return reduce(mix(a.words[a.step * i], keys.words[0], keys.words[1])); });
  }
}

void order_names(double* out, const Word* x, std::size_t count, const Keys& keys, const Constants& constants,
                 int threads) {
  ranges(count, kGrain, threads, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) out[i] = order_name(x[i], keys, constants);
  });
}

void generate(Word* out, Word first, std::size_t count, const Keys& keys, int threads) {
  ranges(count, kGrain, threads, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) out[i] = reduce(mix(first + i, keys.words[0], keys.words[1]));
  });
}

void sum_rows(Word* out, const Word* x, std::size_t rows, std::size_t length, int threads) {
  ranges(rows, kGrain / (length + 1) + 1, threads, [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; ++row) {
      Word total = 0;
      for (std::size_t i = 0; i < length; ++i) total = add(total, x[row * length + i]);
      out[row] = total;
    }
  });
}

bool all_reduced(const Word* x, std::size_t count, int threads) {
  std::atomic<bool> reduced{true};
  ranges(count, kGrain * 16, threads, [&](std::size_t begin, std::size_t end) {
    bool here = true;
    for (std::size_t i = begin; i < end; ++i) here &= x[i] < kPrime;
    if (!here) reduced = false;
  });
  return reduced;
}

}  // namespace meshwright::field
