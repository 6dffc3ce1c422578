// The Python module: checks nothing that meshwright/evaluate/field_numbers.py has checked, and lets go of the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "../common/cpu.h"
#include "elementwise.h"
#include "product.h"

namespace nb = nanobind;

namespace meshwright::field {
namespace {

using Address = std::uintptr_t;

bool has_ifma() {
#ifdef MESHWRIGHT_X86
  return supports(Isa::avx512) && __builtin_cpu_supports("avx512ifma");
#else
  return false;
#endif
}

const Kernels& kernels_named(const std::string& isa) {
  if (isa == "scalar") return scalar_kernels();
#ifdef MESHWRIGHT_X86
  if (isa == "avx2" && supports(Isa::avx2)) return avx2_kernels();
  if (isa == "avx512" && has_ifma()) return avx512_kernels();
#endif
  throw std::invalid_argument("no field kernels for " + isa + " here");
}

std::vector<std::string> supported() {
  std::vector<std::string> names = {"scalar"};
#ifdef MESHWRIGHT_X86
  if (supports(Isa::avx2)) names.push_back("avx2");
  if (has_ifma()) names.push_back("avx512");
#endif
  return names;
}

Word* words(Address address) { return reinterpret_cast<Word*>(address); }

Keys keys_of(const std::array<Word, 4>& keys) { return {{keys[0], keys[1], keys[2], keys[3]}}; }

// Arrays travel as addresses; the caller keeps them alive.
void run_product(const std::string& isa, Address a, std::array<std::ptrdiff_t, 2> a_pitch, Address b,
                 std::array<std::ptrdiff_t, 2> b_pitch, Address a_index, Address b_index, Address start, Address out,
                 std::array<std::size_t, 4> sizes, int threads) {
  Request request = {};
  request.a = words(a), request.b = words(b), request.start = words(start), request.out = words(out);
  request.a_index = reinterpret_cast<const std::int64_t*>(a_index);
  request.b_index = reinterpret_cast<const std::int64_t*>(b_index);
  request.count = sizes[0], request.m = sizes[1], request.n = sizes[2], request.k = sizes[3];
  request.a_block = a_pitch[0], request.a_row = a_pitch[1];
  request.b_block = b_pitch[0], request.b_row = b_pitch[1];
  const Kernels& kernels = kernels_named(isa);
  nb::gil_scoped_release release;
  product(request, kernels, threads);
}

void run_apply(int op, Address out, const std::vector<std::array<Address, 2>>& operands, std::size_t count,
               const std::array<Word, 4>& keys, int threads) {
  Operand given[3] = {};
  for (std::size_t i = 0; i < operands.size() && i < 3; ++i) given[i] = {words(operands[i][0]), operands[i][1]};
  const nb::gil_scoped_release release;
  apply(Op(op), words(out), given, count, keys_of(keys), threads);
}

void run_order_names(Address out, Address x, std::size_t count, const std::array<Word, 4>& keys, Address residues,
                     Address numbers, std::size_t constants, int threads) {
  const nb::gil_scoped_release release;
  const Constants known = {words(residues), reinterpret_cast<const double*>(numbers), constants};
  order_names(reinterpret_cast<double*>(out), words(x), count, keys_of(keys), known, threads);
}

void run_generate(Address out, Word first, std::size_t count, const std::array<Word, 4>& keys, int threads) {
  const nb::gil_scoped_release release;
  generate(words(out), first, count, keys_of(keys), threads);
}

void run_sum_rows(Address out, Address x, std::size_t rows, std::size_t length, int threads) {
  const nb::gil_scoped_release release;
  sum_rows(words(out), words(x), rows, length, threads);
}

bool run_all_reduced(Address x, std::size_t count, int threads) {
  const nb::gil_scoped_release release;
  return all_reduced(words(x), count, threads);
}

}  // namespace
}  // namespace meshwright::field

NB_MODULE(_field, m) {
  using namespace meshwright::field;
  m.doc() = "Compiled arithmetic modulo 2^61 - 1.";
  m.def("supported", &supported, "Names of the instruction sets that run here, slowest first.");
  m.def("product", &run_product, nb::arg("isa"), nb::arg("a"), nb::arg("a_pitch"), nb::arg("b"), nb::arg("b_pitch"),
        nb::arg("a_index"), nb::arg("b_index"), nb::arg("start"), nb::arg("out"), nb::arg("sizes"),
        nb::arg("threads"));
  m.def("apply", &run_apply, nb::arg("op"), nb::arg("out"), nb::arg("operands"), nb::arg("count"), nb::arg("keys"),
        nb::arg("threads"));
  m.def("order_names", &run_order_names, nb::arg("out"), nb::arg("x"), nb::arg("count"), nb::arg("keys"),
        nb::arg("residues"), nb::arg("numbers"), nb::arg("constants"), nb::arg("threads"));
  m.def("generate", &run_generate, nb::arg("out"), nb::arg("first"), nb::arg("count"), nb::arg("keys"),
        nb::arg("threads"));
  m.def("sum_rows", &run_sum_rows, nb::arg("out"), nb::arg("x"), nb::arg("rows"), nb::arg("length"),
        nb::arg("threads"));
  m.def("all_reduced", &run_all_reduced, nb::arg("x"), nb::arg("count"), nb::arg("threads"));
}
