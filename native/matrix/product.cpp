#include "product.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "fp22.h"
#include "parallel.h"

namespace meshwright {
namespace {

// Threads pay from about 100 microseconds of work on.
constexpr std::size_t kWorthAThread = std::size_t{1} << 22;  // multiply-adds
// Rows of A that stay in the second-level cache while the columns of B pass by.
constexpr std::size_t kRowBlockBytes = 448 * 1024;

std::size_t ceil_div(std::size_t value, std::size_t by) { return (value + by - 1) / by; }

// Uninitialised memory on a 64-byte boundary. A thread keeps the pieces of one product for the next: fresh pages would
// cost a small product more than a tenth of its time.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : bytes_(std::max<std::size_t>(bytes, kAlignment)) {
    for (Piece& piece : kept().pieces) {
      if (bytes_ >= kSmallestKept && piece.data && piece.bytes >= bytes_ && piece.bytes <= 2 * bytes_) {
        data_ = piece.data;
        bytes_ = piece.bytes;
        piece.data = nullptr;
        return;
      }
    }
    data_ = static_cast<std::uint8_t*>(::operator new(bytes_, std::align_val_t{kAlignment}));
  }
  ~Buffer() {
    if (bytes_ >= kSmallestKept && bytes_ <= kLargestKept) {
      for (Piece& piece : kept().pieces) {
        if (piece.data) continue;
        piece = {data_, bytes_};
        return;
      }
    }
    release(data_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::uint8_t* data() const { return data_; }

 private:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kSmallestKept = std::size_t{1} << 14;  // malloc keeps smaller ones itself
  static constexpr std::size_t kLargestKept = std::size_t{1} << 20;
  static void release(std::uint8_t* data) { ::operator delete(data, std::align_val_t{kAlignment}); }

  struct Piece {
    std::uint8_t* data = nullptr;
    std::size_t bytes = 0;
  };
  struct Kept {
    Piece pieces[4];
    ~Kept() {
      for (const Piece& piece : pieces) release(piece.data);
    }
  };
  static Kept& kept() {
    thread_local Kept pieces;
    return pieces;
  }

  std::uint8_t* data_;
  std::size_t bytes_;
};

// Which batch entries the products use, each once, in a dense numbering.
struct Used {
  std::vector<std::size_t> entries;      // dense number -> batch entry
  std::vector<std::size_t> number;       // batch entry -> dense number

  Used(const std::int64_t* index, std::size_t count, std::size_t batch) : number(batch, SIZE_MAX) {
    for (std::size_t t = 0; t < count; ++t) {
      const auto entry = static_cast<std::size_t>(index[t]);
      if (number[entry] == SIZE_MAX) {
        number[entry] = entries.size();
        entries.push_back(entry);
      }
    }
  }
};

// Rows [first, first + count) of a matrix out of entries, side by side.
void collect_rows(const Operand& operand, std::size_t matrix, std::size_t first, std::size_t count, std::int8_t* q,
                  std::uint8_t* scale) {
  const std::size_t blocks = operand.blocks;
  const Entry* entries = operand.entries + matrix * (operand.rows / kEntryRows) * blocks;
  for (std::size_t row = first; row < first + count; ++row, q += blocks * kBlock, scale += blocks) {
    const Entry* group = entries + row / kEntryRows * blocks;
    const std::size_t inside = row % kEntryRows;
    for (std::size_t k = 0; k < blocks; ++k) {
      std::memcpy(q + k * kBlock, group[k].q + inside * kBlock, kBlock);
      scale[k] = group[k].scale[inside];
    }
  }
}

// Quantised rows [first, first + count) of one entry: those of the caller, or brought into `q` and `scale`.
QuantisedRow quantised_rows(const Kernels& kernels, const Operand& operand, std::size_t entry, std::size_t first,
                            std::size_t count, std::int8_t* q, std::uint8_t* scale) {
  const std::size_t row = entry * operand.rows + first;
  const std::size_t width = operand.blocks * kBlock;
  if (operand.q) return {operand.q + row * width, operand.scale + row * operand.blocks};
  if (operand.entries) {
    collect_rows(operand, entry, first, count, q, scale);
    return {q, scale};
  }
  for (std::size_t i = 0; i < count; ++i) {
    kernels.quantise_row(operand.fp16 + (row + i) * operand.k, operand.k, q + i * width, scale + i * operand.blocks);
  }
  return {q, scale};
}

// Blocks of one pass over K: equal passes, each of at least tile.least_blocks blocks.
std::size_t pass_of(const TileKernel& tile, std::size_t blocks) {
  return ceil_div(blocks, ceil_div(blocks, tile.pass_blocks));
}

std::size_t padded_blocks(const TileKernel& tile, std::size_t blocks) {
  std::size_t padded = std::max(blocks, tile.least_blocks);
  // The last pass may be shorter than the others.
  while (padded % pass_of(tile, padded) != 0 && padded % pass_of(tile, padded) < tile.least_blocks) ++padded;
  return padded;
}

// All used entries of one operand, packed panel after panel.
class Packed {
 public:
  Packed(const Kernels& kernels, const Packing& packing, const Operand& operand, const Used& used, unsigned threads)
      : panels_(ceil_div(operand.rows, packing.rows)),
        panel_bytes_(ceil_div(packing.block_bytes * padded_blocks(*kernels.tile, operand.blocks), 64) * 64),
        buffer_(used.entries.size() * panels_ * panel_bytes_) {
    const std::size_t width = operand.blocks * kBlock;
    parallel_for(threads, used.entries.size() * panels_, [&](std::size_t i) {
      const std::size_t first = (i % panels_) * packing.rows;
      const std::size_t count = std::min(packing.rows, operand.rows - first);
      // The quantised rows of one panel are used at once, so they needn't leave the first-level cache.
      const Buffer scratch(operand.q ? 0 : packing.rows * (width + operand.blocks));
      auto* q = reinterpret_cast<std::int8_t*>(scratch.data());
      const QuantisedRow rows = quantised_rows(kernels, operand, used.entries[i / panels_], first, count, q,
                                               scratch.data() + (operand.q ? 0 : packing.rows * width));
      std::uint8_t* panel = buffer_.data() + i * panel_bytes_;
      packing.pack(rows.q, width, rows.scale, operand.blocks, count, operand.blocks, panel);
      const std::size_t packed = packing.block_bytes * operand.blocks;
      std::memset(panel + packed, 0, panel_bytes_ - packed);
    });
  }

  std::size_t panels() const { return panels_; }
  std::size_t panel_bytes() const { return panel_bytes_; }
  const std::uint8_t* panel(std::size_t number, std::size_t i) const {
    return buffer_.data() + (number * panels_ + i) * panel_bytes_;
  }

 private:
  std::size_t panels_;
  std::size_t panel_bytes_;
  Buffer buffer_;
};

// Some row panels of A times one column panel of B.
struct Strip {
  const TileKernel& tile;
  const Products& products;
  std::size_t product;
  std::size_t first_row, rows;
  std::size_t first_column, columns;

  std::size_t offset(std::size_t row) const {
    return (product * products.a.rows + first_row + row) * products.b.rows + first_column;
  }

  void open(float* values) const {
    if (!products.start) return;
    tile.from_codes(products.start + offset(0), products.b.rows, rows, columns, values);
  }

  void multiply(const Packed& a, std::size_t a_number, const std::uint8_t* b_panel, float* values) const {
    const std::size_t padded = padded_blocks(tile, products.a.blocks);
    const std::size_t step = pass_of(tile, padded);
    const std::size_t first_panel = first_row / tile.a.rows;
    const std::size_t panels = ceil_div(rows, tile.a.rows);
    for (std::size_t k = 0; k < padded; k += step) {
      tile.run(a.panel(a_number, first_panel) + k * tile.a.block_bytes, a.panel_bytes(), panels,
               b_panel + k * tile.b.block_bytes, std::min(step, padded - k), values, k > 0 || products.start);
    }
  }

  void close(const float* values) const {
    if (products.tiles.out) {
      close_tiles(values);
    } else if (products.fp16) {
      tile.to_fp16(values, rows, columns, products.fp16 + offset(0), products.b.rows);
    } else {
      tile.to_codes(values, rows, columns, products.codes + offset(0), products.b.rows);
    }
    if (products.start) redo_saturated();
  }

  void close_tiles(const float* values) const {
    const std::size_t width = tile.b.rows;
    const Buffer buffer(rows * width * sizeof(std::uint16_t));
    auto* drained = reinterpret_cast<std::uint16_t*>(buffer.data());
    tile.to_fp16(values, rows, columns, drained, width);
    for (std::size_t row = 0; row < rows;) {
      // Rows of one row of sub-tiles: where a sub-tile lies is found once for all of them.
      const std::size_t inside = (first_row + row) % kEntryRows;
      const std::size_t count = std::min(kEntryRows - inside, rows - row);
      for (std::size_t column = 0; column < columns; column += 4) {
        std::uint16_t* out = products.tiles.at(product, first_row + row, first_column + column);
        const std::uint16_t* in = drained + row * width + column;
        for (std::size_t i = 0; i < count; ++i) std::memcpy(out + 4 * i, in + i * width, 4 * sizeof *drained);
      }
      row += count;
    }
  }

  // In float32 the sums neither flush nor saturate, which is exact but for one kind of starting code:
  //  - a sum of a starting value and block values is zero or at least 2^-61 (a nonzero block value is a multiple of
  //    2^-46, hence at least that; cancelling it takes an accumulator of exponent -47 or more, whose unit is 2^-61
  //    or more), and FP22 reaches down to 2^-62;
  //  - block values are below 2^41, less than half a unit of any accumulator from 2^57 on, so they never carry one
  //    up to 2^64; but a starting code that is there already (E = 127) becomes the all-ones code at its first add.
  void redo_saturated() const {
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t column = 0; column < columns; ++column) {
        const std::uint32_t code = products.start[offset(row) + column];
        if (((code >> 14) & 127) != 127) continue;
        const std::size_t blocks = products.a.blocks;
        const auto a_entry = static_cast<std::size_t>(products.a_index[product]);
        const auto b_entry = static_cast<std::size_t>(products.b_index[product]);
        const std::size_t a_row = a_entry * products.a.rows + first_row + row;
        const std::size_t b_row = b_entry * products.b.rows + first_column + column;
        products.codes[offset(row) + column] = scalar_product(
            {products.a.q + a_row * blocks * kBlock, products.a.scale + a_row * blocks},
            {products.b.q + b_row * blocks * kBlock, products.b.scale + b_row * blocks}, blocks, code);
      }
    }
  }
};

void multiply_tiles(const Kernels& kernels, const Products& p) {
  const TileKernel& tile = *kernels.tile;
  const Used a_used(p.a_index, p.count, p.a.batch);
  const Used b_used(p.b_index, p.count, p.b.batch);
  const std::size_t work = p.count * p.a.rows * p.b.rows * p.a.blocks * kBlock;
  const unsigned threads = work < kWorthAThread ? 1 : p.threads;
  const Packed a(kernels, tile.a, p.a, a_used, threads);
  const Packed b(kernels, tile.b, p.b, b_used, threads);

  std::size_t block_panels = std::max<std::size_t>(kRowBlockBytes / a.panel_bytes(), 1);
  // Equal row blocks rather than a small one at the end.
  block_panels = ceil_div(a.panels(), ceil_div(a.panels(), block_panels));
  const std::size_t row_blocks = ceil_div(a.panels(), block_panels);
  parallel_for(threads, p.count * row_blocks * b.panels(), [&](std::size_t i) {
    const std::size_t column_panel = i % b.panels();
    const std::size_t first_panel = i / b.panels() % row_blocks * block_panels;
    const std::size_t product = i / b.panels() / row_blocks;
    const std::size_t panels = std::min(block_panels, a.panels() - first_panel);
    const std::size_t first_row = first_panel * tile.a.rows;
    const std::size_t first_column = column_panel * tile.b.rows;
    const Strip strip{tile, p, product,
                      first_row, std::min(panels * tile.a.rows, p.a.rows - first_row),
                      first_column, std::min(tile.b.rows, p.b.rows - first_column)};
    const Buffer buffer(panels * tile.a.rows * tile.b.rows * sizeof(float));
    auto* values = reinterpret_cast<float*>(buffer.data());
    if (p.start) std::memset(values, 0, panels * tile.a.rows * tile.b.rows * sizeof(float));
    strip.open(values);
    strip.multiply(a, a_used.number[static_cast<std::size_t>(p.a_index[product])],
                   b.panel(b_used.number[static_cast<std::size_t>(p.b_index[product])], column_panel), values);
    strip.close(values);
  });
}

// The scalar product needs both operands quantised in memory.
struct QuantisedOperand {
  Buffer q;
  Buffer scale;
  Operand operand;

  QuantisedOperand(const Kernels& kernels, const Operand& from, unsigned threads)
      : q(from.q ? 0 : from.batch * from.rows * from.blocks * kBlock),
        scale(from.q ? 0 : from.batch * from.rows * from.blocks),
        operand(from) {
    if (from.q) return;
    operand.q = reinterpret_cast<std::int8_t*>(q.data());
    operand.scale = scale.data();
    parallel_for(threads, from.batch * from.rows, [&](std::size_t row) {
      quantised_rows(kernels, from, row / from.rows, row % from.rows, 1,
                     reinterpret_cast<std::int8_t*>(q.data()) + row * from.blocks * kBlock,
                     scale.data() + row * from.blocks);
    });
  }
};

template <typename Element>
void multiply_elements(const Kernels& kernels, const Products& p, const Element& element) {
  const std::size_t work = p.count * p.a.rows * p.b.rows * p.a.blocks * kBlock;
  const unsigned threads = work < kWorthAThread / 16 ? 1 : p.threads;
  const QuantisedOperand quantised_a(kernels, p.a, threads);
  const QuantisedOperand quantised_b(kernels, p.b, threads);
  const Operand& a = quantised_a.operand;
  const Operand& b = quantised_b.operand;
  parallel_for(threads, p.count * a.rows, [&](std::size_t i) {
    const std::size_t a_row = static_cast<std::size_t>(p.a_index[i / a.rows]) * a.rows + i % a.rows;
    const QuantisedRow row{a.q + a_row * a.blocks * kBlock, a.scale + a_row * a.blocks};
    for (std::size_t column = 0; column < b.rows; ++column) {
      const std::size_t b_row = static_cast<std::size_t>(p.b_index[i / a.rows]) * b.rows + column;
      const std::size_t at = i * b.rows + column;
      const std::uint32_t code = element(row, {b.q + b_row * b.blocks * kBlock, b.scale + b_row * b.blocks},
                                         p.start ? p.start[at] : 0);
      if (p.tiles.out) {
        *p.tiles.at(i / a.rows, i % a.rows, column) = fp22_drain(code);
      } else if (p.fp16) {
        p.fp16[at] = fp22_drain(code);
      } else {
        p.codes[at] = code;
      }
    }
  });
}

}  // namespace

void multiply(const Kernels& kernels, const Products& p) {
  const std::size_t blocks = p.a.blocks;
  if (blocks > 0 && kernels.tile) return multiply_tiles(kernels, p);
  multiply_elements(kernels, p, [blocks](const QuantisedRow& a, const QuantisedRow& b, std::uint32_t start) {
    return scalar_product(a, b, blocks, start);
  });
}

void multiply_pumped(const Products& p) {
  const std::size_t blocks = p.a.blocks;
  multiply_elements(scalar_kernels(), p, [blocks](const QuantisedRow& a, const QuantisedRow& b, std::uint32_t start) {
    return scalar_product_pumped(a, b, blocks, start);
  });
}

}  // namespace meshwright
