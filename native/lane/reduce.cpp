// Reductions over rows, in the machine's order: pairwise within a beat, beats to 16 rotating accumulators, pairwise
// over those. A pairwise level is one opcode over the even and the odd elements, of as many rows as fit in a block.
#include <cstring>

#include "parallel.h"
#include "program.h"

namespace meshwright::lane {
namespace {

constexpr std::size_t kAccumulators = 16, kBlock = 2048;

struct Kind {
  int fold;
  Bits identity;
  std::size_t beat;
};

Kind describe(int kind) {
  switch (kind) {
    case kMaximum: return {kMax, kSign | kInfinity, 16};
    case kMinimum: return {kMin, kInfinity, 16};
    case kSum: return {kAdd, 0, 16};
    default: return {kAdd, 0, 8};
  }
}

class Reducer {
 public:
  Reducer(const Rows& rows, const Kernels& kernels, Tables tables)
      : rows_(rows), kernels_(kernels), tables_(tables), kind_(describe(rows.kind)),
        piece_(rows.length < kAccumulators * kind_.beat ? rows.length : kAccumulators * kind_.beat),
        block_rows_(kBlock / piece_), values_(kBlock), others_(kBlock), even_(kBlock), odd_(kBlock),
        accumulators_(padded(block_rows_ * kAccumulators)) {}

  void run(std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; row += block_rows_) {
      run_block(row, end - row < block_rows_ ? end - row : block_rows_);
    }
  }

  Bits excess_x = 0, excess_y = 0;

 private:
  void run_block(std::size_t row, std::size_t count) {
    Bits* accumulators = accumulators_.data();
    for (std::size_t i = 0; i < count * kAccumulators; ++i) accumulators[i] = kind_.identity;
    for (std::size_t at = 0; at < rows_.length; at += piece_) {
      const std::size_t width = rows_.length - at < piece_ ? rows_.length - at : piece_;
      load_leaves(row, count, at, width);
      halve(count * width, kind_.beat);
      accumulate(count, width / kind_.beat);
    }
    std::memcpy(values_.data(), accumulators, count * kAccumulators * sizeof(Bits));
    halve(count * kAccumulators, kAccumulators);
    kernels_.store[kE8](rows_.totals + row, values_.data(), count);
  }

  void load_leaves(std::size_t row, std::size_t count, std::size_t at, std::size_t width) {
    Bits* values = values_.data();
    excess_x |= gather(values, rows_.x, row, count, at, width);
    const std::size_t n = count * width;
    if (rows_.kind == kDot) excess_y |= gather(others_.data(), rows_.y, row, count, at, width);
    if (rows_.kind == kDot) kernels_.op[kMul](values, values, others_.data(), values, n, tables_);
    if (rows_.kind == kSumSquares) kernels_.op[kMul](values, values, values, values, n, tables_);
    if (rows_.kind == kExpSum) {
      kernels_.op[kExp2](values, values, values, values, n, tables_);
      for (std::size_t r = 0; r < count; ++r) {
        kernels_.store[kE8](rows_.leaves + (row + r) * rows_.length + at, values + r * width, width);
      }
    }
  }

  Bits gather(Bits* dst, const char* source, std::size_t row, std::size_t count, std::size_t at, std::size_t width) {
    const std::size_t size = element_size(rows_.format);
    const auto load = kernels_.load[rows_.format];
    if (width == rows_.length) return load(dst, source + row * width * size, count * width);
    Bits excess = 0;
    for (std::size_t r = 0; r < count; ++r) {
      excess |= load(dst + r * width, source + ((row + r) * rows_.length + at) * size, width);
    }
    return excess;
  }

  // Folds neighbours of the n values in place until each group of `group` is one value.
  void halve(std::size_t n, std::size_t group) {
    for (; group > 1; group /= 2) {
      n /= 2;
      kernels_.deinterleave(even_.data(), odd_.data(), values_.data(), n);
      fold(values_.data(), even_.data(), odd_.data(), n);
    }
  }

  // The first operand is the earlier one; a comparison reads slots a and b, an addition a and c.
  void fold(Bits* dst, const Bits* first, const Bits* second, std::size_t n) {
    kernels_.op[kind_.fold](dst, first, second, second, n, tables_);
  }

  void accumulate(std::size_t count, std::size_t width) {
    Bits *accumulators = accumulators_.data(), *present = even_.data();
    if (width == kAccumulators) return fold(accumulators, accumulators, values_.data(), count * width);
    for (std::size_t r = 0; r < count; ++r) {
      std::memcpy(present + r * width, accumulators + r * kAccumulators, width * sizeof(Bits));
    }
    fold(present, present, values_.data(), count * width);
    for (std::size_t r = 0; r < count; ++r) {
      std::memcpy(accumulators + r * kAccumulators, present + r * width, width * sizeof(Bits));
    }
  }

  const Rows& rows_;
  const Kernels& kernels_;
  Tables tables_;
  Kind kind_;
  std::size_t piece_, block_rows_;
  Scratch values_, others_, even_, odd_, accumulators_;
};

}  // namespace

std::vector<Bits> reduce(const Rows& rows, const Kernels& kernels, Tables tables, int threads) {
  std::vector<Bits> x(std::size_t(threads > 1 ? threads : 1)), y(x.size());
  const std::size_t grain = 16384 / rows.length + 1;
  parallel(rows.rows, grain, threads, kernels, [&](std::size_t worker, std::size_t begin, std::size_t end) {
    Reducer reducer(rows, kernels, tables);
    reducer.run(begin, end);
    x[worker] = reducer.excess_x, y[worker] = reducer.excess_y;
  });
  Bits excess_x = 0, excess_y = 0;
  for (Bits bits : x) excess_x |= bits;
  for (Bits bits : y) excess_y |= bits;
  return {excess_x, excess_y};
}

}  // namespace meshwright::lane
