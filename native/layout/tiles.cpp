#include <algorithm>
#include <cstring>

#include "layout.h"

namespace meshwright::layout {
namespace {

// Calls visit(offset in the image, first row, first byte of the row) for each run of inner_columns tiles of the image,
// in the image's order, so that one side of every copy is sequential.
template <class Visit>
void for_each_strip(const Tiling& t, const Visit& visit) {
  const std::size_t strip = t.inner_columns * t.tile_rows * t.run_bytes;
  std::size_t offset = 0;
  for (std::size_t outer = 0; outer < t.outer_rows; ++outer)
    for (std::size_t column = 0; column < t.outer_columns; ++column)
      for (std::size_t inner = 0; inner < t.inner_rows; ++inner, offset += strip)
        visit(offset, (outer * t.inner_rows + inner) * t.tile_rows, column * t.inner_columns * t.run_bytes);
}

// Sizes are known to the compiler, so that each copy is a few moves.
template <std::size_t Rows, std::size_t Run, bool ToImage>
void copy_whole(std::uint8_t* image, std::uint8_t* matrix, std::size_t pitch, std::size_t tiles) {
  for (std::size_t tile = 0; tile < tiles; ++tile, image += Rows * Run, matrix += Run)
    for (std::size_t row = 0; row < Rows; ++row) {
      if constexpr (ToImage) {
        std::memcpy(image + row * Run, matrix + row * pitch, Run);
      } else {
        std::memcpy(matrix + row * pitch, image + row * Run, Run);
      }
    }
}

using Whole = void (*)(std::uint8_t*, std::uint8_t*, std::size_t, std::size_t);

template <bool ToImage>
Whole whole_copy(const Tiling& t) {
  if (t.tile_rows == 4 && t.run_bytes == 64) return copy_whole<4, 64, ToImage>;   // operand image
  if (t.tile_rows == 4 && t.run_bytes == 8) return copy_whole<4, 8, ToImage>;     // drained result
  if (t.tile_rows == 1 && t.run_bytes == 128) return copy_whole<1, 128, ToImage>;  // quantised entries
  return nullptr;
}

// Tiles that the matrix ends in, or any tile of sizes that have no copy of their own.
template <bool ToImage>
void copy_cut(std::uint8_t* image, std::uint8_t* matrix, const Matrix& shape, const Tiling& t, std::size_t row,
              std::size_t byte, std::size_t tiles) {
  for (std::size_t tile = 0; tile < tiles; ++tile, byte += t.run_bytes)
    for (std::size_t r = 0; r < t.tile_rows; ++r, image += t.run_bytes) {
      const bool inside = row + r < shape.rows && byte < shape.row_bytes;
      const std::size_t there = inside ? std::min(t.run_bytes, shape.row_bytes - byte) : 0;
      std::uint8_t* const place = inside ? matrix + (row + r) * shape.row_bytes + byte : nullptr;
      if constexpr (ToImage) {
        if (there != 0) std::memcpy(image, place, there);
        std::memset(image + there, 0, t.run_bytes - there);
      } else if (there != 0) {
        std::memcpy(place, image, there);
      }
    }
}

template <bool ToImage>
void copy(std::uint8_t* image, std::uint8_t* matrix, const Matrix& shape, const Tiling& t) {
  const Whole whole = whole_copy<ToImage>(t);
  for_each_strip(t, [&](std::size_t offset, std::size_t row, std::size_t byte) {
    std::size_t fit = 0;
    if (whole != nullptr && row + t.tile_rows <= shape.rows && byte < shape.row_bytes)
      fit = std::min(t.inner_columns, (shape.row_bytes - byte) / t.run_bytes);
    if (fit != 0) whole(image + offset, matrix + row * shape.row_bytes + byte, shape.row_bytes, fit);
    const std::size_t tile_bytes = t.tile_rows * t.run_bytes;
    copy_cut<ToImage>(image + offset + fit * tile_bytes, matrix, shape, t, row, byte + fit * t.run_bytes,
                      t.inner_columns - fit);
  });
}

}  // namespace

void pack_tiles(const std::uint8_t* matrix, std::uint8_t* image, const Matrix& shape, const Tiling& tiling) {
  copy<true>(image, const_cast<std::uint8_t*>(matrix), shape, tiling);
}

void unpack_tiles(const std::uint8_t* image, std::uint8_t* matrix, const Matrix& shape, const Tiling& tiling) {
  copy<false>(const_cast<std::uint8_t*>(image), matrix, shape, tiling);
}

}  // namespace meshwright::layout
