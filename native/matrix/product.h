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

// One operand, `batch` matrices of `rows` rows: either fp16 bit patterns of `k` values, or quantised blocks.
struct Operand {
  std::size_t batch;
  std::size_t rows;
  std::size_t k;                      // values a row in fp16
  std::size_t blocks;                 // blocks a row
  const std::uint16_t* fp16;          // [batch, rows, k], or null
  const std::int8_t* q;               // [batch, rows, blocks * 32], or null
  const std::uint8_t* scale;          // [batch, rows, blocks], or null
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
};

void multiply(const Kernels& kernels, const Products& products);
void multiply_pumped(const Products& products);

}  // namespace meshwright
