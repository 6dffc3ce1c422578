// Straight-line lane programs over broadcast arrays, and reductions over rows.
#pragma once

#include <vector>

#include "kernels.h"

namespace meshwright::lane {

struct Instruction {
  int op, dst, a, b, c;
  int predicate;  // slot of the predicate under which dst is written, or -1
  bool when;
};

// One input over the iteration shape: bytes to step along each axis, 0 where it is broadcast.
struct Operand {
  const char* data;
  int format, slot;
  std::vector<std::ptrdiff_t> strides;
};

// One output, contiguous in iteration order.
struct Result {
  char* data;
  int format, slot;
};

struct Plan {
  std::vector<Instruction> instructions;
  std::vector<Bits> constants;  // the first slots
  std::vector<Operand> inputs;
  std::vector<Result> outputs;
  std::vector<std::size_t> shape;  // at least one axis
  int slots;                       // the last one is scratch
};

// Runs the plan on `threads` threads. Returns for each input the excess bits found (see LoadKernel).
std::vector<Bits> execute(const Plan& plan, const Kernels& kernels, Tables tables, int threads);

enum Reduction { kSum, kMaximum, kMinimum, kSumSquares, kDot, kExpSum };

struct Rows {
  int kind, format;
  const char *x, *y;        // [rows, length], y for kDot only
  Bits *totals, *leaves;    // [rows], [rows, length] codes; leaves for kExpSum only
  std::size_t rows, length;  // length a multiple of 16
};

// Excess bits of x and of y.
std::vector<Bits> reduce(const Rows& rows, const Kernels& kernels, Tables tables, int threads);

}  // namespace meshwright::lane
