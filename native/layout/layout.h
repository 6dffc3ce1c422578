// Memory layouts of the card: matrices cut into tiles, and accumulator words as links carry them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace meshwright::layout {

// Index order of an image: (outer row, outer column, inner row, inner column, rows of a tile, bytes of its row).
struct Tiling {
  std::size_t outer_rows, outer_columns;
  std::size_t inner_rows, inner_columns;
  std::size_t tile_rows;
  std::size_t run_bytes;  // of one row of a tile
};

// A row-major matrix, in bytes. The image's tiles may reach past it.
struct Matrix {
  std::size_t rows;
  std::size_t row_bytes;
};

// Past the matrix the image is zero.
void pack_tiles(const std::uint8_t* matrix, std::uint8_t* image, const Matrix& shape, const Tiling& tiling);
// What of the image lies past the matrix is passed over.
void unpack_tiles(const std::uint8_t* image, std::uint8_t* matrix, const Matrix& shape, const Tiling& tiling);

// Codes of 22 bits in a matrix of (4 * gm) x (4 * gn), and 64 bytes for each 4 x 4. False where a code has more bits.
bool pack_accumulator(const std::uint32_t* codes, std::uint8_t* image, std::size_t gm, std::size_t gn);
// False where bits past a sub-tile's 352 are set.
bool unpack_accumulator(const std::uint8_t* image, std::uint32_t* codes, std::size_t gm, std::size_t gn);

}  // namespace meshwright::layout
