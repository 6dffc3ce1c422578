// The loops around the kernels: which thread does which part of which product, and in what order operands are packed.
#include "product.h"

#include <algorithm>
#include <vector>

#include "parallel.h"

namespace meshwright::field {
namespace {

constexpr std::size_t kMostRows = 32, kMostColumns = 128;

std::size_t tiles(std::size_t count, std::size_t size) { return (count + size - 1) / size; }

// 64-byte aligned words.
class Scratch {
 public:
  explicit Scratch(std::size_t words) : storage_(words + 8), base_(storage_.data()) {
    while (reinterpret_cast<std::uintptr_t>(base_) % 64) ++base_;
  }
  Word* data() { return base_; }

 private:
  std::vector<Word> storage_;
  Word* base_;
};

// One part of one product: rows [i0, i1) and columns [j0, j1).
class Part {
 public:
  Part(const Request& request, const Kernels& kernels)
      : request_(request),
        kernels_(kernels),
        a_(kPoints * kMostRows * kDepth),
        b_(kPoints * kColumns * kDepth),
        sums_(kPoints * kMostRows * kMostColumns) {}

  void run(std::size_t t, std::size_t i0, std::size_t i1, std::size_t j0, std::size_t j1) {
    const Word* a = request_.a + request_.a_index[t] * request_.a_block + std::ptrdiff_t(i0) * request_.a_row;
    const Word* b = request_.b + request_.b_index[t] * request_.b_block + std::ptrdiff_t(j0) * request_.b_row;
    rows_ = i1 - i0, columns_ = j1 - j0;
    std::fill_n(sums_.data(), kPoints * kMostRows * kMostColumns, 0);
    std::size_t parts = 0;
    for (std::size_t k = 0; k < request_.k; k += kDepth) {
      if (parts++ == kMostParts) settle(), parts = 1;
      accumulate(a + k, b + k, std::min(kDepth, request_.k - k));
    }
    const std::size_t at = (t * request_.m + i0) * request_.n + j0;
    for (std::size_t i = 0; i < rows_; ++i) {
      for (std::size_t j = 0; j < columns_; ++j) {
        const std::size_t place = at + i * request_.n + j;
        const Word sum = interpolate(sums_.data() + i * kMostColumns + j, kMostRows * kMostColumns);
        request_.out[place] = request_.start ? add(sum, reduce(request_.start[place])) : sum;
      }
    }
  }

 private:
  void accumulate(const Word* a, const Word* b, std::size_t depth) {
    const std::size_t padded = tiles(depth, kPad) * kPad;
    const std::size_t a_point = tiles(rows_, kRows) * kRows * padded, b_point = kColumns * padded;
    pack(a_.data(), a, rows_, a_point / padded, depth, request_.a_row);
    for (std::size_t j = 0; j < columns_; j += kColumns) {
      pack(b_.data(), b + std::ptrdiff_t(j) * request_.b_row, std::min(kColumns, columns_ - j), kColumns, depth,
           request_.b_row);
      for (int point = 0; point < kPoints; ++point) {
        Word* sums = sums_.data() + point * kMostRows * kMostColumns + j;
        for (std::size_t i = 0; i < rows_; i += kRows) {
          kernels_.tile(sums + i * kMostColumns, kMostColumns, a_.data() + point * a_point + i * padded,
                        b_.data() + point * b_point, padded);
        }
      }
    }
  }

  // Rows past the operand's last are zeros: a tile always is whole.
  void pack(Word* packed, const Word* source, std::size_t rows, std::size_t whole, std::size_t depth,
            std::ptrdiff_t pitch) {
    const std::size_t padded = tiles(depth, kPad) * kPad;
    if (rows == whole) return kernels_.pack(packed, source, rows, depth, pitch);
    std::fill_n(packed, kPoints * whole * padded, 0);
    Scratch some(kPoints * rows * padded);
    kernels_.pack(some.data(), source, rows, depth, pitch);
    for (int point = 0; point < kPoints; ++point) {
      std::copy_n(some.data() + point * rows * padded, rows * padded, packed + point * whole * padded);
    }
  }

  void settle() {
    std::transform(sums_.data(), sums_.data() + kPoints * kMostRows * kMostColumns, sums_.data(), reduce);
  }

  const Request& request_;
  const Kernels& kernels_;
  Scratch a_, b_, sums_;
  std::size_t rows_ = 0, columns_ = 0;
};

}  // namespace

void product(const Request& request, const Kernels& kernels, int threads) {
  const std::size_t across = tiles(request.n, kMostColumns), down = tiles(request.m, kMostRows);
  const std::size_t parts = request.count * across * down;
  // A thread's share of the parts begins anew every so often, so that an idle thread finds work.
  const std::size_t grain = std::max<std::size_t>(1, parts / (std::size_t(threads) * 8));
  parallel(tiles(parts, grain), threads, [&](std::size_t share) {
    Part part(request, kernels);
    for (std::size_t at = share * grain; at < std::min(parts, (share + 1) * grain); ++at) {
      const std::size_t t = at / (across * down), i = at / across % down * kMostRows, j = at % across * kMostColumns;
      part.run(t, i, std::min(request.m, i + kMostRows), j, std::min(request.n, j + kMostColumns));
    }
  });
}

}  // namespace meshwright::field
