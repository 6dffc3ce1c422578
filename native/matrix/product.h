// The product of batches of quantised matrices, C = A @ B.T, over any table of kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace meshwright {

struct QuantisedRow {
  const std::int8_t* q;
  const std::uint8_t* scale;
};

// One output element, continuing from an FP22 code.
std::uint32_t scalar_product(const QuantisedRow& a, const QuantisedRow& b, std::size_t blocks, std::uint32_t start);
// Blocks 2j and 2j + 1 merged before they are normalised; an odd last block alone.
std::uint32_t scalar_product_pumped(const QuantisedRow& a, const QuantisedRow& b, std::size_t blocks,
                                    std::uint32_t start);

// Four consecutive rows of one block: values [4, 32] and scale fields [4].
struct Entry {
  const std::int8_t* q;
  const std::uint8_t* scale;
};
constexpr std::size_t kEntryRows = 4;

// One operand, `batch` matrices of `rows` rows: fp16 bit patterns of `k` values, quantised blocks, or quantised
// entries that lie anywhere.
struct Operand {
  std::size_t batch;
  std::size_t rows;
  std::size_t k;                      // values a row in fp16
  std::size_t blocks;                 // blocks a row
  const std::uint16_t* fp16;          // [batch, rows, k], or null
  const std::int8_t* q;               // [batch, rows, blocks * 32], or null
  const std::uint8_t* scale;          // [batch, rows, blocks], or null
  const Entry* entries = nullptr;     // [batch, rows / 4, blocks], or null
};

// Drained results in sub-tiles of 4 x 4: [T, gm * gn, 4, 4], sub-tile g * gn + h of each. Both operands are `stacked`,
// one matrix of all rows of A, product after product, and one of all of B, where every A goes with every B once:
// `number` [A, B] then says which of the T a pair is.
struct Tiles {
  std::uint16_t* out;             // null: results are wanted in rows
  std::size_t gm, gn;
  const std::size_t* number;      // null: not stacked
  std::size_t across;             // B

  // Where four columns of a row of product `t` begin.
  std::uint16_t* at(std::size_t t, std::size_t row, std::size_t column) const {
    std::size_t group = row / kEntryRows, across_group = column / kEntryRows;
    if (number) {
      t = number[group / gm * across + across_group / gn];
      group %= gm;
      across_group %= gn;
    }
    return out + ((t * gm + group) * gn + across_group) * 16 + row % kEntryRows * 4 + column % 4;
  }
};

struct Products {
  Operand a;
  Operand b;
  std::size_t count;              // T
  const std::int64_t* a_index;    // [T]
  const std::int64_t* b_index;    // [T]
  const std::uint32_t* start;     // [T, M, N] or null
  std::uint32_t* codes;           // [T, M, N], or null where `fp16` is wanted
  std::uint16_t* fp16;            // [T, M, N], or null
  unsigned threads;
  Tiles tiles{};                  // in place of `codes` and `fp16`
};

void multiply(const Kernels& kernels, const Products& products);
void multiply_pumped(const Products& products);

}  // namespace meshwright
