// What is done to residues one by one, and to rows of them.
#pragma once

#include "modular.h"

namespace meshwright::field {

// Operands: `step` is 1, or 0 for the same word everywhere.
struct Operand {
  const Word* words;
  std::size_t step;
};

struct Keys {
  Word words[4];
};

// Numbers whose place in the order is their own: their residues in ascending order, and they themselves.
struct Constants {
  const Word* residues;
  const double* numbers;
  std::size_t count;
};

// The order of these is known to meshwright/evaluate/field_numbers.py, which passes them as integers.
enum Op { kAdd, kSub, kMul, kMultiplyAdd, kInverse, kHash };

void apply(Op op, Word* out, const Operand* operands, std::size_t count, const Keys& keys, int threads);
// A float64 for every residue: random, one to one, of the opposite sign for the opposite residue.
void order_names(double* out, const Word* x, std::size_t count, const Keys& keys, const Constants& constants,
                 int threads);
// Residue number first + i of the sequence of `keys`, for i below `count`.
void generate(Word* out, Word first, std::size_t count, const Keys& keys, int threads);
void sum_rows(Word* out, const Word* x, std::size_t rows, std::size_t length, int threads);
bool all_reduced(const Word* x, std::size_t count, int threads);

}  // namespace meshwright::field
