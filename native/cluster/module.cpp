// The Python face of the cluster's plans. Shapes and bounds are checked here; what fields and figures mean is the
// caller's, meshwright/simulator/batch.py.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace meshwright::cluster {
namespace {

template <typename T, int Dimensions>
using In = nb::ndarray<const T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;
using L1 = nb::ndarray<Name, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Names = nb::ndarray<nb::numpy, Name, nb::ndim<1>>;

void require(bool condition, const char* message) {
  if (!condition) throw nb::value_error(message);
}

Layout layout_of(const In<std::int32_t, 2>& fields, const In<std::uint64_t, 2>& reserved) {
  require(fields.shape(0) == kFields && fields.shape(1) == 4, "fields must be [fields, 4]");
  require(reserved.shape(0) == kOpcodes && reserved.shape(1) == 4, "reserved must be [opcodes, 4]");
  Layout layout{};
  for (std::size_t field = 0; field < kFields; ++field) {
    const std::int32_t* row = fields.data() + 4 * field;
    for (int part = 0; part < 4; part += 2) {
      require(row[part] >= 0 && row[part + 1] >= 0 && row[part + 1] < 64 && row[part] + row[part + 1] <= 256,
              "a field is outside its word");
    }
    require(row[1] + row[3] <= 64, "a field is wider than 64 bits");
    layout.fields[field] = {row[0], row[1], row[2], row[3]};
  }
  std::memcpy(layout.reserved.data(), reserved.data(), sizeof layout.reserved);
  return layout;
}

// tiles, entries, longest fill, anchor, mesh, lowest bit and width of the mesh field, bytes of the memory.
using FigureTuple = std::array<std::uint64_t, 8>;

Figures figures_of(const FigureTuple& f) {
  require(f[1] >= 1 && f[2] <= 256, "a fill is of 256 entries at most");
  require(f[5] + f[6] < 64, "the mesh field leaves an address of 64 bits");
  return {f[0], f[1], f[2], f[3], f[4], static_cast<int>(f[5]), static_cast<int>(f[6]), f[7]};
}

// Grid, K blocks, whether it is complete and was drained.
using Waiting = std::tuple<std::size_t, std::size_t, std::size_t, bool, bool>;

std::vector<Name> names_of(const std::optional<In<Name, 1>>& names, std::size_t count) {
  require(names && names->shape(0) == count, "the last layer's operands must be [groups * blocks]");
  return {names->data(), names->data() + count};
}

Names array_of(std::vector<Name> names) {
  auto held = std::make_unique<std::vector<Name>>(std::move(names));
  Name* data = held->data();
  const std::size_t size = held->size();
  const nb::capsule owner(held.release(), [](void* p) noexcept { delete static_cast<std::vector<Name>*>(p); });
  return Names(data, {size}, owner);
}

struct Compiled {
  Figures figures;
  Program program;
};

Compiled compile(In<std::uint64_t, 2> words, In<std::int32_t, 2> fields, In<std::uint64_t, 2> reserved,
                 const FigureTuple& figures) {
  require(words.shape(1) == 4, "words must be [n, 4]");
  Compiled compiled{figures_of(figures), {}};
  const auto* first = reinterpret_cast<const Word*>(words.data());
  compiled.program = decode(first, words.shape(0), layout_of(fields, reserved), compiled.figures);
  return compiled;
}

nb::list fills_of(const Compiled& compiled) {
  nb::list found;
  for (const Source& source : compiled.program.fills) {
    found.append(nb::make_tuple(source.address, source.entries, source.prequantised, source.first));
  }
  return found;
}

nb::object plan_of(const Compiled& compiled, std::size_t limit, const std::vector<std::int32_t>& slots, L1 l1,
                   const std::array<std::int32_t, 8>& busy, std::size_t opened, const std::vector<Waiting>& layers,
                   std::optional<In<Name, 1>> a, std::optional<In<Name, 1>> b) {
  State state{compiled.figures.entries, {}, {}, opened, {}};
  require(l1.shape(0) == 4 && l1.shape(1) == state.entries, "l1 must be [sides * banks, entries]");
  require(slots.size() == compiled.program.fills.size(), "each fill needs a slot");
  for (const std::int32_t slot : slots) require(slot >= 0 && slot < 1 << 23, "a slot is outside the names of entries");
  state.l1.assign(l1.data(), l1.data() + l1.size());
  for (std::size_t i = 0; i < state.busy.size(); ++i) state.busy[i] = {busy[2 * i], busy[2 * i + 1]};
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto& [rows, columns, blocks, complete, drained] = layers[i];
    Layer layer{static_cast<int>(i), false, complete, drained, rows, columns, blocks, {}, {}, {blocks}, -1};
    if (complete && i + 1 == layers.size()) {
      layer.a = names_of(a, rows * blocks);
      layer.b = names_of(b, columns * blocks);
    }
    state.layers.push_back(std::move(layer));
  }
  Plan made;
  {
    const nb::gil_scoped_release unlocked;
    made = plan(compiled.program, limit, slots, state);
  }
  std::copy(state.l1.begin(), state.l1.end(), l1.data());
  nb::list now_busy, now_layers, chains, drains, operands;
  for (const Busy& one : state.busy) now_busy.append(nb::make_tuple(one.start, one.stop));
  for (Layer& layer : state.layers) {
    nb::object left = nb::none(), right = nb::none();
    if (layer.changed) {
      left = nb::cast(array_of(in_order(layer, layer.a, layer.gm)));
      right = nb::cast(array_of(in_order(layer, layer.b, layer.gn)));
    }
    now_layers.append(nb::make_tuple(layer.prior, layer.drained, layer.gm, layer.gn, layer.blocks, left, right));
  }
  for (const Chain& chain : made.chains) {
    chains.append(nb::make_tuple(chain.gm, chain.gn, chain.blocks, chain.a, chain.b));
  }
  for (const Drained& drained : made.drains) {
    const Step& step = compiled.program.steps[drained.step];
    drains.append(nb::make_tuple(drained.step, step.field[addr], step.field[n], drained.chain));
  }
  for (std::vector<Name>& names : made.operands) operands.append(nb::cast(array_of(std::move(names))));
  return nb::make_tuple(made.done, made.last_l1, made.last_tiles, state.opened, now_busy, now_layers, chains, drains,
                        operands);
}

}  // namespace
}  // namespace meshwright::cluster

NB_MODULE(_cluster, m) {
  using namespace meshwright::cluster;
  m.doc() = "Programs of a cluster, planned as a whole.";
  nb::list names;
  for (const char* name : kFieldNames) names.append(nb::str(name));
  m.attr("FIELDS") = nb::tuple(names);
  nb::class_<Compiled>(m, "Program", "A prefix of a cluster's queue that has no fault that the words alone show.")
      .def_prop_ro("count", [](const Compiled& c) { return c.program.steps.size(); })
      .def_prop_ro("fills", &fills_of)
      .def("plan", &plan_of, "limit"_a, "slots"_a, "l1"_a.noconvert(), "busy"_a, "opened"_a, "layers"_a,
           "a"_a.noconvert().none(), "b"_a.noconvert().none());
  m.def("decode", &compile, "words"_a.noconvert(), "fields"_a.noconvert(), "reserved"_a.noconvert(), "figures"_a);
}
