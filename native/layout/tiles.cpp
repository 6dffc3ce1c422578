#include <algorithm>
#include <cstring>

#include "layout.h"

namespace meshwright::layout {
namespace {

// A line: one row of the matrix in one row of tiles, that is inner_columns runs, tile_rows * run_bytes apart in the
// image and side by side in the matrix. visit(offset of its first run in the image, row, first byte of the row).
//
// Whichever side is written is written in its own order, so that fresh memory is touched from front to back.
template <bool ToImage, class Visit>
void for_each_line(const Tiling& t, const Visit& visit) {
  const std::size_t strip = t.inner_columns * t.tile_rows * t.run_bytes;
  const auto line = [&](std::size_t outer, std::size_t column, std::size_t inner, std::size_t row) {
    const std::size_t offset = ((outer * t.outer_columns + column) * t.inner_rows + inner) * strip;
    visit(offset + row * t.run_bytes, (outer * t.inner_rows + inner) * t.tile_rows + row,
          column * t.inner_columns * t.run_bytes);
  };
  for (std::size_t outer = 0; outer < t.outer_rows; ++outer) {
    if constexpr (ToImage) {
      for (std::size_t column = 0; column < t.outer_columns; ++column)
        for (std::size_t inner = 0; inner < t.inner_rows; ++inner)
          for (std::size_t row = 0; row < t.tile_rows; ++row) line(outer, column, inner, row);
    } else {
      for (std::size_t inner = 0; inner < t.inner_rows; ++inner)
        for (std::size_t row = 0; row < t.tile_rows; ++row)
          for (std::size_t column = 0; column < t.outer_columns; ++column) line(outer, column, inner, row);
    }
  }
}

// Sizes are known to the compiler, so that each copy is a few moves.
template <std::size_t Rows, std::size_t Run, bool ToImage>
void copy_runs(std::uint8_t* image, std::uint8_t* matrix, std::size_t runs) {
  for (std::size_t run = 0; run < runs; ++run, image += Rows * Run, matrix += Run) {
    if constexpr (ToImage) {
      std::memcpy(image, matrix, Run);
    } else {
      std::memcpy(matrix, image, Run);
    }
  }
}

using Runs = void (*)(std::uint8_t*, std::uint8_t*, std::size_t);

template <bool ToImage>
Runs runs_of(const Tiling& t) {
  if (t.tile_rows == 4 && t.run_bytes == 64) return copy_runs<4, 64, ToImage>;    // operand image
  if (t.tile_rows == 4 && t.run_bytes == 8) return copy_runs<4, 8, ToImage>;      // drained result
  if (t.tile_rows == 1 && t.run_bytes == 128) return copy_runs<1, 128, ToImage>;  // quantised entries
  return nullptr;
}

// Runs that the matrix ends in or before, or any run of a size that has no copy of its own.
template <bool ToImage>
void copy_cut(std::uint8_t* image, std::uint8_t* matrix, std::size_t there, std::size_t runs, const Tiling& t) {
  for (; runs != 0; --runs, image += t.tile_rows * t.run_bytes) {
    const std::size_t bytes = std::min(t.run_bytes, there);
    if constexpr (ToImage) {
      if (bytes != 0) std::memcpy(image, matrix, bytes);
      std::memset(image + bytes, 0, t.run_bytes - bytes);
    } else if (bytes != 0) {
      std::memcpy(matrix, image, bytes);
    }
    matrix += bytes;
    there -= bytes;
  }
}

template <bool ToImage>
void copy(std::uint8_t* image, std::uint8_t* matrix, const Matrix& shape, const Tiling& t) {
  const Runs whole = runs_of<ToImage>(t);
  for_each_line<ToImage>(t, [&](std::size_t offset, std::size_t row, std::size_t byte) {
    const std::size_t there = row < shape.rows && byte < shape.row_bytes ? shape.row_bytes - byte : 0;
    std::uint8_t* const from = there == 0 ? matrix : matrix + row * shape.row_bytes + byte;
    const std::size_t fit = whole == nullptr ? 0 : std::min(t.inner_columns, there / t.run_bytes);
    if (fit != 0) whole(image + offset, from, fit);
    if (fit != t.inner_columns)
      copy_cut<ToImage>(image + offset + fit * t.tile_rows * t.run_bytes, from + fit * t.run_bytes,
                        there - fit * t.run_bytes, t.inner_columns - fit, t);
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
