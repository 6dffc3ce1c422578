// The Python face of the matrix kernels. Callers hand in C-contiguous arrays of the exact types; everything that
// could be wrong with the shapes is checked here, because a kernel that believes a wrong one writes past an array.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel.h"
#include "product.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace meshwright {
namespace {

template <typename T, int Dimensions>
using In = nb::ndarray<const T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;
template <typename T, int Dimensions>
using Out = nb::ndarray<T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;
using Indices = In<std::int64_t, 1>;

constexpr std::size_t kElementsAPiece = std::size_t{1} << 16;

void require(bool condition, const char* message) {
  if (!condition) throw nb::value_error(message);
}

struct Name {
  Isa isa;
  const char* name;
};
constexpr Name kNames[] = {{Isa::scalar, "scalar"}, {Isa::avx2, "avx2"}, {Isa::avx512, "avx512"}};

std::vector<std::string> supported() {
  std::vector<std::string> names;
  for (const Name& entry : kNames) {
    if (kernels_for(entry.isa)) names.emplace_back(entry.name);
  }
  return names;
}

const Kernels& kernels_of(const std::string& isa) {
  for (const Name& entry : kNames) {
    if (isa != entry.name) continue;
    if (const Kernels* kernels = kernels_for(entry.isa)) return *kernels;
    throw nb::value_error(("this processor cannot run the " + isa + " kernels").c_str());
  }
  throw nb::value_error(("unknown instruction set '" + isa + "': scalar, avx2 or avx512").c_str());
}

unsigned threads_of(int threads) {
  require(threads >= 1, "threads must be at least 1");
  return static_cast<unsigned>(threads);
}

std::size_t blocks_of(std::size_t k) { return (k + kBlock - 1) / kBlock; }

void quantise(const std::string& isa, In<std::uint16_t, 2> x, Out<std::int8_t, 2> q, Out<std::uint8_t, 2> scale,
              int threads) {
  const Kernels& kernels = kernels_of(isa);
  const unsigned workers = threads_of(threads);
  const std::size_t rows = x.shape(0), k = x.shape(1), blocks = blocks_of(k);
  require(q.shape(0) == rows && q.shape(1) == blocks * kBlock, "q must be [rows, K rounded up to 32]");
  require(scale.shape(0) == rows && scale.shape(1) == blocks, "scale must be [rows, blocks of 32]");
  const nb::gil_scoped_release unlocked;
  const std::size_t piece_rows = std::max<std::size_t>(kElementsAPiece / std::max<std::size_t>(k, 1), 1);
  parallel_for(workers, (rows + piece_rows - 1) / piece_rows, [&](std::size_t piece) {
    for (std::size_t row = piece * piece_rows; row < std::min(rows, (piece + 1) * piece_rows); ++row) {
      kernels.quantise_row(x.data() + row * k, k, q.data() + row * blocks * kBlock, scale.data() + row * blocks);
    }
  });
}

Operand quantised_operand(const In<std::int8_t, 3>& q, const In<std::uint8_t, 3>& scale) {
  const std::size_t blocks = scale.shape(2);
  require(q.shape(2) == blocks * kBlock && q.shape(0) == scale.shape(0) && q.shape(1) == scale.shape(1),
          "quantised values must be [batch, rows, blocks * 32] and scale fields [batch, rows, blocks]");
  return {q.shape(0), q.shape(1), blocks * kBlock, blocks, nullptr, q.data(), scale.data()};
}

Operand fp16_operand(const In<std::uint16_t, 3>& x) {
  return {x.shape(0), x.shape(1), x.shape(2), blocks_of(x.shape(2)), x.data(), nullptr, nullptr};
}

void check_indices(const Indices& index, std::size_t count, std::size_t batch) {
  require(index.shape(0) == count, "a_index and b_index need one entry a product");
  for (std::size_t t = 0; t < count; ++t) {
    require(index.data()[t] >= 0 && static_cast<std::size_t>(index.data()[t]) < batch,
            "a batch index is outside its operand");
  }
}

template <typename Result>
Products products_of(const Operand& a, const Operand& b, const Indices& a_index, const Indices& b_index,
                     const Result& out, int threads) {
  require(a.k == b.k, "both operands need the same K");
  require(out.shape(1) == a.rows && out.shape(2) == b.rows, "out must be [products, rows of a, rows of b]");
  check_indices(a_index, out.shape(0), a.batch);
  check_indices(b_index, out.shape(0), b.batch);
  return {a, b, out.shape(0), a_index.data(), b_index.data(), nullptr, nullptr, nullptr, threads_of(threads)};
}

using Start = std::optional<In<std::uint32_t, 3>>;

Products code_products(const In<std::int8_t, 3>& qa, const In<std::uint8_t, 3>& sa, const In<std::int8_t, 3>& qb,
                       const In<std::uint8_t, 3>& sb, const Indices& a_index, const Indices& b_index,
                       const Start& start, const Out<std::uint32_t, 3>& out, int threads) {
  Products products =
      products_of(quantised_operand(qa, sa), quantised_operand(qb, sb), a_index, b_index, out, threads);
  products.codes = out.data();
  if (start) {
    for (std::size_t axis = 0; axis < 3; ++axis) {
      require(start->shape(axis) == out.shape(axis), "start must have the shape of out");
    }
    products.start = start->data();
  }
  return products;
}

void matmul(const std::string& isa, In<std::int8_t, 3> qa, In<std::uint8_t, 3> sa, In<std::int8_t, 3> qb,
            In<std::uint8_t, 3> sb, Indices a_index, Indices b_index, Start start, Out<std::uint32_t, 3> out,
            int threads) {
  const Kernels& kernels = kernels_of(isa);
  const Products products = code_products(qa, sa, qb, sb, a_index, b_index, start, out, threads);
  const nb::gil_scoped_release unlocked;
  multiply(kernels, products);
}

void matmul_pumped(const std::string& isa, In<std::int8_t, 3> qa, In<std::uint8_t, 3> sa, In<std::int8_t, 3> qb,
                   In<std::uint8_t, 3> sb, Indices a_index, Indices b_index, Start start, Out<std::uint32_t, 3> out,
                   int threads) {
  kernels_of(isa);  // one code for every instruction set, but a name that isn't one is still refused
  const Products products = code_products(qa, sa, qb, sb, a_index, b_index, start, out, threads);
  const nb::gil_scoped_release unlocked;
  multiply_pumped(products);
}

void matmul_fp16(const std::string& isa, In<std::uint16_t, 3> a, In<std::uint16_t, 3> b, Indices a_index,
                 Indices b_index, Out<std::uint16_t, 3> out, int threads) {
  const Kernels& kernels = kernels_of(isa);
  Products products = products_of(fp16_operand(a), fp16_operand(b), a_index, b_index, out, threads);
  products.fp16 = out.data();
  const nb::gil_scoped_release unlocked;
  multiply(kernels, products);
}

// Entries by name: slot of a segment times 256, plus the entry's number in it.
using EntryNames = In<std::int32_t, 3>;

struct Segments {
  std::vector<Entry> first;
  std::vector<std::size_t> count;

  Segments(const nb::list& q, const nb::list& scale) {
    require(q.size() == scale.size(), "each segment has values and scale fields");
    for (std::size_t i = 0; i < q.size(); ++i) {
      const auto values = nb::cast<In<std::int8_t, 3>>(q[i], false);
      const auto fields = nb::cast<In<std::uint8_t, 2>>(scale[i], false);
      require(values.shape(1) == kEntryRows && values.shape(2) == kBlock && fields.shape(1) == kEntryRows &&
                  values.shape(0) == fields.shape(0),
              "segments must be [entries, 4, 32] with scale fields [entries, 4]");
      first.push_back({values.data(), fields.data()});
      count.push_back(values.shape(0));
    }
  }

  std::vector<Entry> of(const EntryNames& names) const {
    std::vector<Entry> entries(names.size());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const std::int32_t name = names.data()[i];
      const auto slot = static_cast<std::size_t>(name >> 8), inside = static_cast<std::size_t>(name & 255);
      require(name >= 0 && slot < first.size() && inside < count[slot], "an entry is of no segment");
      entries[i] = {first[slot].q + inside * kEntryRows * kBlock, first[slot].scale + inside * kEntryRows};
    }
    return entries;
  }
};

// Which product each pair [A, B] is, or nothing where not every A goes with every B exactly once.
std::vector<std::size_t> numbers_of_pairs(const Products& p) {
  const std::size_t pairs = p.a.batch * p.b.batch;
  if (p.count != pairs) return {};
  std::vector<std::size_t> numbers(pairs, SIZE_MAX);
  for (std::size_t t = 0; t < p.count; ++t) {
    const auto left = static_cast<std::size_t>(p.a_index[t]), right = static_cast<std::size_t>(p.b_index[t]);
    std::size_t& number = numbers[left * p.b.batch + right];
    if (number != SIZE_MAX) return {};
    number = t;
  }
  return numbers;
}

// One product of all rows with all columns, whose panels have no gaps between the matrices.
void stack(Products& p, const std::vector<std::size_t>& numbers) {
  static constexpr std::int64_t kOnly = 0;
  p.tiles.number = numbers.data();
  p.tiles.across = p.b.batch;
  p.a.rows *= std::exchange(p.a.batch, 1);
  p.b.rows *= std::exchange(p.b.batch, 1);
  p.count = 1;
  p.a_index = p.b_index = &kOnly;
}

void matmul_entries(const std::string& isa, const nb::list& q, const nb::list& scale, EntryNames a, EntryNames b,
                    Indices a_index, Indices b_index, Out<std::uint16_t, 4> out, int threads) {
  const Kernels& kernels = kernels_of(isa);
  const Segments segments(q, scale);
  const std::vector<Entry> a_entries = segments.of(a), b_entries = segments.of(b);
  const std::size_t gm = a.shape(1), gn = b.shape(1), blocks = a.shape(2), count = out.shape(0);
  require(b.shape(2) == blocks, "both operands need the same K");
  require(out.shape(1) == gm * gn && out.shape(2) == kEntryRows && out.shape(3) == 4, "out must be [T, gm * gn, 4, 4]");
  check_indices(a_index, count, a.shape(0));
  check_indices(b_index, count, b.shape(0));
  const auto operand = [&](const EntryNames& names, const std::vector<Entry>& entries) {
    return Operand{names.shape(0), names.shape(1) * kEntryRows, blocks * kBlock, blocks, nullptr, nullptr, nullptr,
                   entries.data()};
  };
  Products products{operand(a, a_entries), operand(b, b_entries), count,   a_index.data(),
                    b_index.data(),        nullptr,               nullptr, nullptr,
                    threads_of(threads),   {out.data(), gm, gn, nullptr, 0}};
  const nb::gil_scoped_release unlocked;
  const std::vector<std::size_t> numbers = numbers_of_pairs(products);
  if (!numbers.empty()) stack(products, numbers);
  multiply(kernels, products);
}

template <typename Body>
void in_pieces(std::size_t n, unsigned threads, const Body& body) {
  parallel_for(threads, (n + kElementsAPiece - 1) / kElementsAPiece, [&](std::size_t piece) {
    const std::size_t first = piece * kElementsAPiece;
    body(first, std::min(kElementsAPiece, n - first));
  });
}

void add(const std::string& isa, In<std::uint32_t, 1> tile, In<std::uint32_t, 1> peer, Out<std::uint32_t, 1> out,
         int threads) {
  const Kernels& kernels = kernels_of(isa);
  const unsigned workers = threads_of(threads);
  require(tile.shape(0) == out.shape(0) && peer.shape(0) == out.shape(0), "tile, peer and out differ in length");
  const nb::gil_scoped_release unlocked;
  in_pieces(out.shape(0), workers, [&](std::size_t first, std::size_t n) {
    kernels.add(tile.data() + first, peer.data() + first, out.data() + first, n);
  });
}

void drain(const std::string& isa, In<std::uint32_t, 1> codes, Out<std::uint16_t, 1> out, int threads) {
  const Kernels& kernels = kernels_of(isa);
  const unsigned workers = threads_of(threads);
  require(codes.shape(0) == out.shape(0), "codes and out differ in length");
  const nb::gil_scoped_release unlocked;
  in_pieces(out.shape(0), workers, [&](std::size_t first, std::size_t n) {
    kernels.drain(codes.data() + first, out.data() + first, n);
  });
}

}  // namespace
}  // namespace meshwright

NB_MODULE(_matrix, m) {
  using namespace meshwright;
  m.doc() = "Compiled kernels of the matrix unit: MXFP7 quantiser, exact FP22 product, peer add, drain.";
  m.def("supported", &supported, "Names of the kernels that this processor runs, slowest first.");
  m.def("quantise", &quantise, "isa"_a, "x"_a.noconvert(), "q"_a.noconvert(), "scale"_a.noconvert(), "threads"_a);
  m.def("matmul", &matmul, "isa"_a, "qa"_a.noconvert(), "sa"_a.noconvert(), "qb"_a.noconvert(), "sb"_a.noconvert(),
        "a_index"_a.noconvert(), "b_index"_a.noconvert(), "start"_a.noconvert().none(), "out"_a.noconvert(),
        "threads"_a);
  m.def("matmul_pumped", &matmul_pumped, "isa"_a, "qa"_a.noconvert(), "sa"_a.noconvert(), "qb"_a.noconvert(),
        "sb"_a.noconvert(), "a_index"_a.noconvert(), "b_index"_a.noconvert(), "start"_a.noconvert().none(),
        "out"_a.noconvert(), "threads"_a);
  m.def("matmul_fp16", &matmul_fp16, "isa"_a, "a"_a.noconvert(), "b"_a.noconvert(), "a_index"_a.noconvert(),
        "b_index"_a.noconvert(), "out"_a.noconvert(), "threads"_a);
  m.def("matmul_entries", &matmul_entries, "isa"_a, "q"_a, "scale"_a, "a"_a.noconvert(), "b"_a.noconvert(),
        "a_index"_a.noconvert(), "b_index"_a.noconvert(), "out"_a.noconvert(), "threads"_a);
  m.def("add", &add, "isa"_a, "tile"_a.noconvert(), "peer"_a.noconvert(), "out"_a.noconvert(), "threads"_a);
  m.def("drain", &drain, "isa"_a, "codes"_a.noconvert(), "out"_a.noconvert(), "threads"_a);
}
