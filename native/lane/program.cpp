// The interpreter: a program runs over chunks that stay in the first-level cache, one opcode at a time.
#include "program.h"

#include <cstring>

#include "parallel.h"

namespace meshwright::lane {
namespace {

constexpr std::size_t kCacheElements = 24 * 1024 / sizeof(Bits);
constexpr std::size_t kLargestChunk = 1024, kSmallestChunk = 128;

std::size_t chunk_size(int slots) {
  std::size_t chunk = kLargestChunk;
  while (chunk > kSmallestChunk && chunk * std::size_t(slots) > kCacheElements) chunk /= 2;
  return chunk;
}

// One thread's registers and its place in the iteration.
class Worker {
 public:
  Worker(const Plan& plan, const Kernels& kernels, Tables tables)
      : plan_(plan), kernels_(kernels), tables_(tables), chunk_(chunk_size(plan.slots)),
        scratch_(chunk_ * std::size_t(plan.slots)), excess_(plan.inputs.size()) {
    for (std::size_t i = 0; i < plan.constants.size(); ++i) fill(slot(int(i)), plan.constants[i], chunk_);
    for (std::size_t i = 0; i < plan.inputs.size(); ++i) {
      if (scalar(plan.inputs[i])) load_scalar(i);
    }
  }

  void run(std::size_t begin, std::size_t end) {
    for (std::size_t at = begin; at < end; at += chunk_) run_chunk(at, end - at < chunk_ ? end - at : chunk_);
  }

  const std::vector<Bits>& excess() const { return excess_; }

 private:
  Bits* slot(int index) { return scratch_.data() + std::size_t(index) * chunk_; }

  static void fill(Bits* dst, Bits value, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) dst[i] = value;
  }

  static bool scalar(const Operand& input) {
    for (auto stride : input.strides) {
      if (stride) return false;
    }
    return true;
  }

  void load_scalar(std::size_t index) {
    const Operand& input = plan_.inputs[index];
    Bits value;
    excess_[index] |= kernels_.load[input.format](&value, input.data, 1);
    fill(slot(input.slot), value, chunk_);
  }

  void run_chunk(std::size_t at, std::size_t n) {
    for (std::size_t i = 0; i < plan_.inputs.size(); ++i) {
      if (!scalar(plan_.inputs[i])) load(i, at, n);
    }
    for (const Instruction& step : plan_.instructions) run_instruction(step, n);
    for (const Result& output : plan_.outputs) {
      kernels_.store[output.format](output.data + at * element_size(output.format), slot(output.slot), n);
    }
  }

  void run_instruction(const Instruction& step, std::size_t n) {
    const bool masked = step.predicate >= 0;
    Bits* dst = slot(masked ? plan_.slots - 1 : step.dst);
    kernels_.op[step.op](dst, slot(step.a), slot(step.b), slot(step.c), n, tables_);
    if (masked) kernels_.merge(slot(step.dst), dst, slot(step.predicate), step.when, n);
  }

  // Elements [at, at + n) of the broadcast input, run by run along the last axis.
  void load(std::size_t index, std::size_t at, std::size_t n) {
    const Operand& input = plan_.inputs[index];
    const std::size_t last = plan_.shape.size() - 1, inner = plan_.shape[last];
    std::size_t column = at % inner, row = at / inner;
    Bits* dst = slot(input.slot);
    for (std::size_t done = 0; done < n; column = 0, ++row) {
      const std::size_t left = inner - column, run = left < n - done ? left : n - done;
      const char* source = input.data + row_offset(input, row) + std::ptrdiff_t(column) * input.strides[last];
      excess_[index] |= load_run(dst + done, source, input.format, input.strides[last], run);
      done += run;
    }
  }

  std::ptrdiff_t row_offset(const Operand& input, std::size_t row) const {
    std::ptrdiff_t offset = 0;
    for (std::size_t axis = plan_.shape.size() - 1; axis-- > 0 && row;) {
      offset += std::ptrdiff_t(row % plan_.shape[axis]) * input.strides[axis];
      row /= plan_.shape[axis];
    }
    return offset;
  }

  Bits load_run(Bits* dst, const char* source, int format, std::ptrdiff_t stride, std::size_t n) const {
    const auto load = kernels_.load[format];
    if (stride == std::ptrdiff_t(element_size(format))) return load(dst, source, n);
    if (stride == 0) {
      const Bits excess = load(dst, source, 1);
      fill(dst, dst[0], n);
      return excess;
    }
    Bits excess = 0;
    for (std::size_t i = 0; i < n; ++i) excess |= load(dst + i, source + std::ptrdiff_t(i) * stride, 1);
    return excess;
  }

  const Plan& plan_;
  const Kernels& kernels_;
  Tables tables_;
  std::size_t chunk_;
  Scratch scratch_;
  std::vector<Bits> excess_;
};

}  // namespace

std::vector<Bits> execute(const Plan& plan, const Kernels& kernels, Tables tables, int threads) {
  std::size_t count = 1;
  for (auto extent : plan.shape) count *= extent;
  std::vector<std::vector<Bits>> found(std::size_t(threads > 1 ? threads : 1));
  // A thread is worth starting for some tens of microseconds of work.
  constexpr std::size_t kGrain = 16 * kLargestChunk;
  parallel(count, kGrain, threads, kernels, [&](std::size_t worker, std::size_t begin, std::size_t end) {
    if (begin == end) return;
    Worker state(plan, kernels, tables);
    state.run(begin, end);
    found[worker] = state.excess();
  });
  std::vector<Bits> excess(plan.inputs.size());
  for (const auto& part : found) {
    for (std::size_t i = 0; i < part.size(); ++i) excess[i] |= part[i];
  }
  return excess;
}

}  // namespace meshwright::lane
