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

}  // namespace meshwright
