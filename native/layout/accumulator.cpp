#include <cstring>

#include "layout.h"

namespace meshwright::layout {
namespace {

constexpr std::size_t kTileBytes = 64;
constexpr std::size_t kRowBytes = 11;  // four codes of 22 bits: element (i, j) at bit 22 * (4 * i + j)
constexpr std::size_t kUsedBytes = 4 * kRowBytes;
constexpr std::uint32_t kCode = (1u << 22) - 1;

// Element (row, column) of a processor whose words are little-endian is what the link carries as it is.
void pack_row(const std::uint32_t* codes, std::uint8_t* place) {
  const std::uint64_t c[4] = {codes[0], codes[1], codes[2], codes[3]};
  const std::uint64_t low = c[0] | c[1] << 22 | c[2] << 44;
  const std::uint32_t high = std::uint32_t(c[2] >> 20 | c[3] << 2);
  std::memcpy(place, &low, 8);
  // A byte more than the row has; the next row, or the padding, is written over it.
  std::memcpy(place + 8, &high, 4);
}

void unpack_row(const std::uint8_t* place, std::uint32_t* codes) {
  std::uint64_t low;
  std::uint32_t high;
  std::memcpy(&low, place, 8);
  std::memcpy(&high, place + 8, 4);
  codes[0] = std::uint32_t(low) & kCode;
  codes[1] = std::uint32_t(low >> 22) & kCode;
  codes[2] = (std::uint32_t(low >> 44) | high << 20) & kCode;
  codes[3] = high >> 2 & kCode;
}

}  // namespace

bool pack_accumulator(const std::uint32_t* codes, std::uint8_t* image, std::size_t gm, std::size_t gn) {
  const std::size_t pitch = 4 * gn;
  std::uint32_t seen = 0;
  for (std::size_t g = 0; g < gm; ++g)
    for (std::size_t h = 0; h < gn; ++h, image += kTileBytes) {
      const std::uint32_t* const tile = codes + 4 * g * pitch + 4 * h;
      for (std::size_t row = 0; row < 4; ++row) {
        const std::uint32_t* const from = tile + row * pitch;
        seen |= from[0] | from[1] | from[2] | from[3];
        pack_row(from, image + row * kRowBytes);
      }
      std::memset(image + kUsedBytes, 0, kTileBytes - kUsedBytes);
    }
  return seen <= kCode;
}

bool unpack_accumulator(const std::uint8_t* image, std::uint32_t* codes, std::size_t gm, std::size_t gn) {
  const std::size_t pitch = 4 * gn;
  std::uint64_t extra = 0;
  for (std::size_t g = 0; g < gm; ++g)
    for (std::size_t h = 0; h < gn; ++h, image += kTileBytes) {
      std::uint32_t* const tile = codes + 4 * g * pitch + 4 * h;
      for (std::size_t row = 0; row < 4; ++row) unpack_row(image + row * kRowBytes, tile + row * pitch);
      std::uint64_t rest[2];
      std::uint32_t first;
      std::memcpy(&first, image + kUsedBytes, 4);
      std::memcpy(rest, image + kUsedBytes + 4, 16);
      extra |= first | rest[0] | rest[1];
    }
  return extra == 0;
}

}  // namespace meshwright::layout
