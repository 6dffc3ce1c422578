// What a block of 32 fp16 values gets for a scale, from the largest magnitude pattern in it.
#pragma once

#include <cstdint>

namespace meshwright {
namespace {

struct BlockScale {
  std::uint8_t field;        // {exponent + 20, m8 - 8}
  int exponent;              // scale = 2^exponent * m8 / 8
  std::uint32_t reciprocal;  // round(2^15 / m8)
};

constexpr std::uint16_t kReciprocal[8] = {4096, 3641, 3277, 2979, 2731, 2520, 2341, 2185};

// `peak` is the unsigned maximum of the 15 magnitude bits. For every element of the block (exponent field e, at
// least 1), 37 + exponent - e >= 16: the chosen exponent is at least ep - 21 >= e - 21 where the peak is normal, and
// where it is subnormal every e is 1 and the clamp at -20 gives 37 - 20 - 1.
inline BlockScale block_scale(std::uint32_t peak) {
  if (peak == 0) return {20 << 3, 0, kReciprocal[0]};
  int exponent = static_cast<int>(peak >> 10);
  std::uint32_t significand = peak & 1023;
  if (exponent) {
    significand += 1024;
  } else {
    exponent = 1;
    while (significand < 1024) {
      significand <<= 1;
      --exponent;
    }
  }
  std::uint32_t m8 = (significand + 125) / 126;  // 9 .. 17
  exponent -= 21;
  if (m8 > 15) {
    m8 = m8 == 16 ? 8 : 9;
    ++exponent;
  }
  if (exponent < -20) exponent = -20;  // 31 - 20 = 11 is the largest there can be
  return {static_cast<std::uint8_t>(((exponent + 20) << 3) | static_cast<int>(m8 - 8)), exponent,
          kReciprocal[m8 - 8]};
}

}  // namespace
}  // namespace meshwright
