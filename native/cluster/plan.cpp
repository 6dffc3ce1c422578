#include "plan.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

namespace meshwright::cluster {
namespace {

constexpr std::size_t kMostBlocks = 256;  // K blocks that wait; the cluster multiplies what is longer piece by piece
constexpr std::size_t kMostLayers = 8;

std::size_t bank_of(std::size_t side, std::size_t bank) { return 2 * side + bank; }

// Gives each operand a number, equal ones the same.
class Operands {
 public:
  explicit Operands(std::vector<std::vector<Name>>& found) : found_(found) {}

  std::size_t number(std::vector<Name> names, std::size_t groups) {
    std::uint64_t hash = groups;
    for (const Name name : names) hash = (hash ^ static_cast<std::uint32_t>(name)) * 0x9E3779B97F4A7C15u ^ hash >> 29;
    for (auto [at, end] = numbers_.equal_range(hash); at != end; ++at) {
      if (groups_[at->second] == groups && found_[at->second] == names) return at->second;
    }
    numbers_.emplace(hash, found_.size());
    groups_.push_back(groups);
    found_.push_back(std::move(names));
    return found_.size() - 1;
  }

 private:
  std::vector<std::vector<Name>>& found_;
  std::vector<std::size_t> groups_;
  std::unordered_multimap<std::uint64_t, std::size_t> numbers_;
};

class Planner {
 public:
  Planner(const std::vector<std::int32_t>& slots, State& state)
      : slots_(slots), state_(state), operands_(plan_.operands) {}

  bool take(const Step& step) {
    switch (step.opcode()) {
      case kFill:
        return fill(step);
      case kGemm:
        return gemm(step);
      default:
        return drain(step);
    }
  }

  Plan run(const Program& program, std::size_t limit) {
    const std::size_t count = std::min(limit, program.steps.size());
    while (plan_.done < count && take(program.steps[plan_.done])) ++plan_.done;
    return std::move(plan_);
  }

 private:
  bool fill(const Step& step) {
    const std::size_t which = bank_of(step.count(sel), step.count(fbank));
    const std::size_t first = step.count(eoff), count = step.count(n);
    const auto start = static_cast<std::size_t>(state_.busy[which].start);
    const auto stop = static_cast<std::size_t>(state_.busy[which].stop);
    if (first < stop && start < first + count) return false;
    Name* entries = state_.l1.data() + which * state_.entries + first;
    const Name name = slots_[step.fill] << 8;
    for (std::size_t i = 0; i < count; ++i) entries[i] = name + static_cast<Name>(i);
    plan_.last_l1 = static_cast<std::int64_t>(plan_.done);
    return true;
  }

  const Name* operand(std::size_t side, std::size_t bank, std::size_t first, std::size_t count) const {
    if (first + count > state_.entries) return nullptr;
    const Name* names = state_.l1.data() + bank_of(side, bank) * state_.entries + first;
    return std::find(names, names + count, kNever) == names + count ? names : nullptr;
  }

  bool gemm(const Step& step) {
    const std::size_t rows = step.count(gm), columns = step.count(gn), blocks = step.count(nk);
    const Name* a = operand(0, step.count(abank), step.count(aoff), rows * blocks);
    const Name* b = operand(1, step.count(bbank), step.count(boff), columns * blocks);
    if (!a || !b || !(step.field[acc] ? continues(rows, columns) : opens(rows, columns))) return false;
    Layer& top = state_.layers.back();
    top.a.insert(top.a.end(), a, a + rows * blocks);
    top.b.insert(top.b.end(), b, b + columns * blocks);
    top.sweeps.push_back(blocks);
    top.blocks += blocks;
    state_.busy = {};
    state_.busy[bank_of(0, step.count(abank))] = {static_cast<std::int32_t>(step.field[aoff]),
                                                  static_cast<std::int32_t>(step.field[aoff] + rows * blocks)};
    state_.busy[bank_of(1, step.count(bbank))] = {static_cast<std::int32_t>(step.field[boff]),
                                                  static_cast<std::int32_t>(step.field[boff] + columns * blocks)};
    plan_.last_l1 = plan_.last_tiles = static_cast<std::int64_t>(plan_.done);
    return true;
  }

  // A sweep goes on with what waits. Whatever was looked at in between is for the cluster to multiply first.
  bool continues(std::size_t rows, std::size_t columns) {
    if (state_.layers.empty()) return false;
    Layer& top = state_.layers.back();
    if (!top.complete || top.drained || top.gm != rows || top.gn != columns || top.blocks >= kMostBlocks) return false;
    top.changed = true;
    return true;
  }

  // A sweep overwrites the tiles of what waits; what it covers whole is never needed any more.
  bool opens(std::size_t rows, std::size_t columns) {
    std::vector<Layer>& layers = state_.layers;
    const std::size_t covering = rows * columns;
    std::size_t left = layers.size();
    while (left && layers[left - 1].count() <= covering) --left;
    if (left == kMostLayers) return false;
    layers.resize(left);
    layers.push_back({-1, true, true, false, rows, columns, 0, {}, {}, {}, -1});
    state_.opened = std::max(state_.opened, covering);
    return true;
  }

  bool drain(const Step& step) {
    if (state_.layers.empty()) return false;
    Layer& top = state_.layers.back();
    if (!top.complete || step.count(n) > top.count()) return false;
    if (top.chain < 0) {
      const std::size_t a = operands_.number(in_order(top, top.a, top.gm), top.gm);
      const std::size_t b = operands_.number(in_order(top, top.b, top.gn), top.gn);
      top.chain = static_cast<std::int64_t>(plan_.chains.size());
      plan_.chains.push_back({top.gm, top.gn, top.blocks, a, b});
    }
    plan_.drains.push_back({plan_.done, static_cast<std::size_t>(top.chain)});
    top.drained = true;
    state_.busy = {};
    plan_.last_tiles = static_cast<std::int64_t>(plan_.done);
    return true;
  }

  const std::vector<std::int32_t>& slots_;
  State& state_;
  Plan plan_;
  Operands operands_;
};

}  // namespace

std::vector<Name> in_order(const Layer& layer, const std::vector<Name>& names, std::size_t groups) {
  if (layer.sweeps.size() == 1) return names;
  std::vector<Name> ordered(groups * layer.blocks);
  const Name* from = names.data();
  std::size_t before = 0;
  for (const std::size_t blocks : layer.sweeps) {
    for (std::size_t group = 0; group < groups; ++group, from += blocks) {
      std::memcpy(ordered.data() + group * layer.blocks + before, from, blocks * sizeof *from);
    }
    before += blocks;
  }
  return ordered;
}

Plan plan(const Program& program, std::size_t limit, const std::vector<std::int32_t>& slots, State& state) {
  return Planner(slots, state).run(program, limit);
}

}  // namespace meshwright::cluster
