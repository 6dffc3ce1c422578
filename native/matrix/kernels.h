// What one instruction set offers to the rest of the matrix kernels, as a table of plain functions.
// Every file of kernels is compiled with its own flags and reached through such a table only, so that no inline
// function compiled for a wide processor can be linked into code that a narrow one runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../common/cpu.h"

namespace meshwright {

constexpr std::size_t kBlock = 32;  // consecutive K values that share one scale

// Panels of quantised rows, laid out for one tile kernel. All strides are in bytes, panels start 64-byte aligned.
struct Packing {
  std::size_t rows;         // rows of the operand in one panel
  std::size_t block_bytes;  // one block of 32 K values of those rows, scales included
  // `count` <= rows rows of `q` (row stride `q_stride`) and of their scale fields become one panel; missing rows
  // become zeros with scale zero, whose block values are +0.
  void (*pack)(const std::int8_t* q, std::size_t q_stride, const std::uint8_t* scale, std::size_t scale_stride,
               std::size_t count, std::size_t blocks, std::uint8_t* panel);
};

// A register tile, run over several panels of A in a row. It adds `blocks` blocks of every A panel times one B panel
// into `values`, FP22 values held as float32, panel after panel, row-major in `a.rows` rows and `b.rows` columns. Where
// they are not `opened` the values begin at +0. At least `least_blocks` blocks: packing pads with blocks of zeros.
struct TileKernel {
  Packing a;
  Packing b;
  std::size_t pass_blocks;  // blocks of K that keep both panels in the first-level cache
  std::size_t least_blocks;
  void (*run)(const std::uint8_t* a, std::size_t a_stride, std::size_t panels, const std::uint8_t* b,
              std::size_t blocks, float* values, bool opened);
  // `rows` rows of values (of b.rows columns, `columns` of them wanted) to and from rows `stride` elements apart.
  void (*to_codes)(const float* values, std::size_t rows, std::size_t columns, std::uint32_t* codes,
                   std::size_t stride);
  void (*to_fp16)(const float* values, std::size_t rows, std::size_t columns, std::uint16_t* out, std::size_t stride);
  void (*from_codes)(const std::uint32_t* codes, std::size_t stride, std::size_t rows, std::size_t columns,
                     float* values);
};

struct Kernels {
  Isa isa;
  // One row of `k` fp16 bit patterns to ceil(k / 32) blocks; the last one is padded with zeros.
  void (*quantise_row)(const std::uint16_t* x, std::size_t k, std::int8_t* q, std::uint8_t* scale);
  void (*add)(const std::uint32_t* tile, const std::uint32_t* peer, std::uint32_t* out, std::size_t n);
  void (*drain)(const std::uint32_t* codes, std::uint16_t* out, std::size_t n);
  const TileKernel* tile;  // null: the scalar product
};

const Kernels& scalar_kernels();
#if defined(MESHWRIGHT_X86_KERNELS)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
#endif

// The table of an instruction set, or null where it is not compiled in or this processor lacks it.
const Kernels* kernels_for(Isa isa);

}  // namespace meshwright
