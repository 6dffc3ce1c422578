// The Python module: checks nothing that meshwright/numerics/lane_program.py has checked, and lets go of the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "../common/cpu.h"
#include "program.h"

namespace nb = nanobind;

namespace meshwright::lane {
namespace {

using Coefficients = nb::ndarray<const std::int32_t, nb::shape<5, 3, 32>, nb::c_contig, nb::device::cpu>;
using Steps = nb::ndarray<const std::int32_t, nb::shape<-1, 7>, nb::c_contig, nb::device::cpu>;

const Kernels& kernels_named(const std::string& isa) {
  if (isa == "scalar") return scalar_kernels();
#ifdef MESHWRIGHT_X86
  if (isa == "avx2" && supports(Isa::avx2)) return avx2_kernels();
  if (isa == "avx512" && supports(Isa::avx512)) return avx512_kernels();
#endif
  throw std::invalid_argument("no lane kernels for " + isa + " here");
}

std::vector<std::string> supported() {
  std::vector<std::string> names = {"scalar"};
#ifdef MESHWRIGHT_X86
  if (supports(Isa::avx2)) names.push_back("avx2");
  if (supports(Isa::avx512)) names.push_back("avx512");
#endif
  return names;
}

// Arrays travel as addresses; the caller keeps them alive.
std::vector<Bits> execute_program(const std::string& isa, Steps steps, std::vector<Bits> constants, nb::list inputs,
                                  nb::list outputs, std::vector<std::size_t> shape, int slots,
                                  Coefficients tables, int threads) {
  Plan plan;
  for (std::size_t i = 0; i < steps.shape(0); ++i) {
    const std::int32_t* s = steps.data() + 7 * i;
    plan.instructions.push_back({s[0], s[1], s[2], s[3], s[4], s[5], s[6] != 0});
  }
  plan.constants = std::move(constants);
  for (nb::handle input : inputs) {
    nb::tuple item = nb::cast<nb::tuple>(input);
    plan.inputs.push_back({reinterpret_cast<const char*>(nb::cast<std::uintptr_t>(item[0])), nb::cast<int>(item[1]),
                           nb::cast<int>(item[2]), nb::cast<std::vector<std::ptrdiff_t>>(item[3])});
  }
  for (nb::handle output : outputs) {
    nb::tuple item = nb::cast<nb::tuple>(output);
    plan.outputs.push_back({reinterpret_cast<char*>(nb::cast<std::uintptr_t>(item[0])), nb::cast<int>(item[1]),
                            nb::cast<int>(item[2])});
  }
  plan.shape = std::move(shape);
  plan.slots = slots;
  const Kernels& kernels = kernels_named(isa);
  nb::gil_scoped_release release;
  return execute(plan, kernels, tables.data(), threads);
}

std::vector<Bits> reduce_rows(const std::string& isa, int kind, int format, std::uintptr_t x, std::uintptr_t y,
                              std::uintptr_t totals, std::uintptr_t leaves, std::size_t rows, std::size_t length,
                              Coefficients tables, int threads) {
  const Rows request = {kind, format, reinterpret_cast<const char*>(x), reinterpret_cast<const char*>(y),
                        reinterpret_cast<Bits*>(totals), reinterpret_cast<Bits*>(leaves), rows, length};
  const Kernels& kernels = kernels_named(isa);
  nb::gil_scoped_release release;
  return reduce(request, kernels, tables.data(), threads);
}

}  // namespace
}  // namespace meshwright::lane

NB_MODULE(_lane, m) {
  using namespace meshwright::lane;
  m.doc() = "Compiled kernels of the E8M15 vector lane.";
  m.def("supported", &supported, "Names of the instruction sets that run here, slowest first.");
  m.def("execute", &execute_program, nb::arg("isa"), nb::arg("steps"), nb::arg("constants"), nb::arg("inputs"),
        nb::arg("outputs"), nb::arg("shape"), nb::arg("slots"), nb::arg("tables"), nb::arg("threads"));
  m.def("reduce", &reduce_rows, nb::arg("isa"), nb::arg("kind"), nb::arg("format"), nb::arg("x"), nb::arg("y"),
        nb::arg("totals"), nb::arg("leaves"), nb::arg("rows"), nb::arg("length"), nb::arg("tables"),
        nb::arg("threads"));
}
