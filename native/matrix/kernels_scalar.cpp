// The portable kernels: integers only, the rules written out. Compilers vectorise the inner loops where they can.
#include <algorithm>
#include <cstring>

#include "fp22.h"
#include "kernels.h"
#include "quantise_block.h"
#include "product.h"

namespace meshwright {
namespace {

void quantise_row(const std::uint16_t* x, std::size_t k, std::int8_t* q, std::uint8_t* scale) {
  for (std::size_t start = 0; start < k; start += kBlock, q += kBlock) {
    std::uint16_t block[kBlock] = {};
    std::memcpy(block, x + start, std::min(kBlock, k - start) * sizeof(std::uint16_t));
    std::uint32_t peak = 0;
    for (std::uint16_t value : block) peak = std::max<std::uint32_t>(peak, value & 0x7FFFu);
    const BlockScale chosen = block_scale(peak);
    *scale++ = chosen.field;
    for (std::size_t i = 0; i < kBlock; ++i) {
      const std::uint32_t bits = block[i];
      const std::uint32_t field = (bits >> 10) & 31;
      const std::uint32_t significand = field ? 1024 + (bits & 1023) : bits & 1023;
      const int element_exponent = field ? static_cast<int>(field) : 1;
      // 16 <= shift (see block_scale) and the product is below 2^23, so a shift past 24 leaves zero, as the rule
      // says; capping it keeps the shift defined.
      const int shift = std::min(37 + chosen.exponent - element_exponent, 31);
      const std::uint32_t product = significand * chosen.reciprocal;
      const std::uint32_t rounded = std::min<std::uint32_t>(((product >> (shift - 1)) + 1) >> 1, 63);
      q[i] = static_cast<std::int8_t>((bits & 0x8000u) ? -static_cast<int>(rounded) : static_cast<int>(rounded));
    }
  }
}

void add(const std::uint32_t* tile, const std::uint32_t* peer, std::uint32_t* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = fp22_add(tile[i], peer[i]);
}

void drain(const std::uint32_t* codes, std::uint16_t* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = fp22_drain(codes[i]);
}

std::int32_t dot(const std::int8_t* a, const std::int8_t* b) {
  std::int32_t sum = 0;
  for (std::size_t i = 0; i < kBlock; ++i) sum += a[i] * b[i];
  return sum;
}

struct Block {
  std::int32_t value;  // dot * m8a * m8b
  int x;               // weight of one: 2^x
};

Block block_of(const QuantisedRow& a, const QuantisedRow& b, std::size_t k) {
  const std::uint8_t sa = a.scale[k];
  const std::uint8_t sb = b.scale[k];
  return {dot(a.q + k * kBlock, b.q + k * kBlock) * field_m8(sa) * field_m8(sb),
          field_exponent(sa) + field_exponent(sb) - kStandardAnchor - 6};
}

}  // namespace

std::uint32_t scalar_product(const QuantisedRow& a, const QuantisedRow& b, std::size_t blocks, std::uint32_t start) {
  for (std::size_t k = 0; k < blocks; ++k) {
    const Block block = block_of(a, b, k);
    start = fp22_add(start, fp22_from_integer(block.value, block.x));
  }
  return start;
}

std::uint32_t scalar_product_pumped(const QuantisedRow& a, const QuantisedRow& b, std::size_t blocks,
                                    std::uint32_t start) {
  std::size_t k = 0;
  for (; k + 1 < blocks; k += 2) {
    Block low = block_of(a, b, k);
    Block high = block_of(a, b, k + 1);
    const int x = std::max(low.x, high.x);
    // The shift truncates the magnitude and nothing remembers what it dropped.
    const auto aligned = [x](const Block& block) {
      const int shift = std::min(x - block.x, 30);
      return block.value < 0 ? -(-block.value >> shift) : block.value >> shift;
    };
    start = fp22_add(start, fp22_from_integer(aligned(low) + aligned(high), x));
  }
  if (k < blocks) {
    const Block block = block_of(a, b, k);
    start = fp22_add(start, fp22_from_integer(block.value, block.x));
  }
  return start;
}

const Kernels& scalar_kernels() {
  static const Kernels kernels{Isa::scalar, quantise_row, add, drain, nullptr};
  return kernels;
}

}  // namespace meshwright
