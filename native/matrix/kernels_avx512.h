// The files of the AVX-512 kernels among themselves.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace meshwright {

extern const TileKernel kTileAvx512;

void avx512_quantise_row(const std::uint16_t* x, std::size_t k, std::int8_t* q, std::uint8_t* scale);
void avx512_to_codes(const float* values, std::size_t rows, std::size_t columns, std::uint32_t* codes,
                    std::size_t stride);
void avx512_to_fp16(const float* values, std::size_t rows, std::size_t columns, std::uint16_t* out,
                    std::size_t stride);
void avx512_from_codes(const std::uint32_t* codes, std::size_t stride, std::size_t rows, std::size_t columns,
                      float* values);

void avx512_pack_a(const std::int8_t* q, std::size_t q_stride, const std::uint8_t* scale, std::size_t scale_stride,
                   std::size_t count, std::size_t blocks, std::uint8_t* panel);
void avx512_pack_b(const std::int8_t* q, std::size_t q_stride, const std::uint8_t* scale, std::size_t scale_stride,
                   std::size_t count, std::size_t blocks, std::uint8_t* panel);

namespace {

constexpr int kRows = 7;
constexpr int kColumns = 16;
constexpr int kGroups = 8;  // dwords of four bytes in a row of a block

// A panel, a block: 7 rows of 32 bytes; 7 scales; 7 corrections.
constexpr std::size_t kAScale = kRows * 32;
constexpr std::size_t kACorrection = kAScale + kRows * 4;
constexpr std::size_t kABlockBytes = 288;
static_assert(kACorrection + kRows * 4 <= kABlockBytes);
// B panel, a block: 8 vectors of 16 dwords, each four K values b + 64 of one column; 16 scales; 16 scales times 513.
constexpr std::size_t kBScale = kGroups * 64;
constexpr std::size_t kBScale513 = kBScale + 64;
constexpr std::size_t kBBlockBytes = kBScale513 + 64;

// 1.5 * 2^23: adding an integer within +-2^22 to this bit pattern adds the same integer to the float it spells.
constexpr float kMagic = 12582912.0f;
constexpr int kMagicBits = 0x4B400000;

}  // namespace
}  // namespace meshwright
