// The Python module: checks nothing that meshwright/targets/ktpu/layout.py has checked, and lets go of the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>

#include <array>

#include "layout.h"

namespace nb = nanobind;

namespace meshwright::layout {
namespace {

// Arrays travel as addresses; the caller keeps them alive.
using Address = std::uintptr_t;

Tiling tiling_of(const std::array<std::size_t, 6>& t) { return {t[0], t[1], t[2], t[3], t[4], t[5]}; }

void run_pack_tiles(Address matrix, Address image, std::array<std::size_t, 2> shape,
                    const std::array<std::size_t, 6>& tiling) {
  const nb::gil_scoped_release release;
  pack_tiles(reinterpret_cast<const std::uint8_t*>(matrix), reinterpret_cast<std::uint8_t*>(image),
             {shape[0], shape[1]}, tiling_of(tiling));
}

void run_unpack_tiles(Address image, Address matrix, std::array<std::size_t, 2> shape,
                      const std::array<std::size_t, 6>& tiling) {
  const nb::gil_scoped_release release;
  unpack_tiles(reinterpret_cast<const std::uint8_t*>(image), reinterpret_cast<std::uint8_t*>(matrix),
               {shape[0], shape[1]}, tiling_of(tiling));
}

bool run_pack_accumulator(Address codes, Address image, std::size_t gm, std::size_t gn) {
  const nb::gil_scoped_release release;
  return pack_accumulator(reinterpret_cast<const std::uint32_t*>(codes), reinterpret_cast<std::uint8_t*>(image), gm, gn);
}

bool run_unpack_accumulator(Address image, Address codes, std::size_t gm, std::size_t gn) {
  const nb::gil_scoped_release release;
  return unpack_accumulator(reinterpret_cast<const std::uint8_t*>(image), reinterpret_cast<std::uint32_t*>(codes), gm,
                            gn);
}

}  // namespace
}  // namespace meshwright::layout

NB_MODULE(_layout, m) {
  using namespace meshwright::layout;
  m.doc() = "Compiled memory layouts of the ktpu card.";
  m.def("pack_tiles", &run_pack_tiles, nb::arg("matrix"), nb::arg("image"), nb::arg("shape"), nb::arg("tiling"));
  m.def("unpack_tiles", &run_unpack_tiles, nb::arg("image"), nb::arg("matrix"), nb::arg("shape"), nb::arg("tiling"));
  m.def("pack_accumulator", &run_pack_accumulator, nb::arg("codes"), nb::arg("image"), nb::arg("gm"), nb::arg("gn"));
  m.def("unpack_accumulator", &run_unpack_accumulator, nb::arg("image"), nb::arg("codes"), nb::arg("gm"),
        nb::arg("gn"));
}
