// The files of the AVX2 kernels among themselves.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace meshwright {

extern const TileKernel kTileAvx2;

void avx2_quantise_row(const std::uint16_t* x, std::size_t k, std::int8_t* q, std::uint8_t* scale);
void avx2_to_codes(const float* values, std::size_t rows, std::size_t columns, std::uint32_t* codes,
                  std::size_t stride);
void avx2_to_fp16(const float* values, std::size_t rows, std::size_t columns, std::uint16_t* out,
                  std::size_t stride);
void avx2_from_codes(const std::uint32_t* codes, std::size_t stride, std::size_t rows, std::size_t columns,
                    float* values);

void avx2_pack_a(const std::int8_t* q, std::size_t q_stride, const std::uint8_t* scale, std::size_t scale_stride,
                 std::size_t count, std::size_t blocks, std::uint8_t* panel);
void avx2_pack_b(const std::int8_t* q, std::size_t q_stride, const std::uint8_t* scale, std::size_t scale_stride,
                 std::size_t count, std::size_t blocks, std::uint8_t* panel);

namespace {

constexpr int kRows = 4;
constexpr int kColumns = 16;
constexpr int kGroups = 8;  // dwords of four bytes in a row of a block

// A panel, a block: 4 rows of 32 bytes 64 - a; 4 scales, negative.
constexpr std::size_t kAScale = kRows * 32;
constexpr std::size_t kABlockBytes = kAScale + kRows * 4;
// B panel, a block, everything in two vectors of eight columns: 8 times dwords of four K values of a column; 2 times
// the openings of the sums, sixteen-bit lanes of -64 * (sum of the b that come to the lane in half a block); scales;
// scales times 513.
constexpr std::size_t kBOpening = kGroups * 64;
constexpr std::size_t kBScale = kBOpening + 2 * 64;
constexpr std::size_t kBScale513 = kBScale + 64;
constexpr std::size_t kBBlockBytes = kBScale513 + 64;

}  // namespace
}  // namespace meshwright
