#include "program.h"

#include <algorithm>
#include <unordered_map>

namespace meshwright::cluster {
namespace {

std::uint64_t run_of_bits(const Word& word, int low, int width) {
  if (width == 0) return 0;
  const int limb = low / 64, shift = low % 64;
  std::uint64_t value = word[static_cast<std::size_t>(limb)] >> shift;
  if (shift + width > 64) value |= word[static_cast<std::size_t>(limb) + 1] << (64 - shift);
  return value & ((std::uint64_t{1} << width) - 1);
}

std::uint64_t value_of(const Word& word, const Bits& bits) {
  const std::uint64_t low = run_of_bits(word, bits.low, bits.low_width);
  return low | run_of_bits(word, bits.upper, bits.upper_width) << bits.low_width;
}

struct Span {
  std::uint64_t start, stop;
};

// Bytes that the drains so far write. Most fills are outside their bounds, which is seen at a glance.
class Drained {
 public:
  void add(Span span) {
    bounds_ = spans_.empty() ? span : Span{std::min(bounds_.start, span.start), std::max(bounds_.stop, span.stop)};
    spans_.push_back(span);
  }
  bool overlaps(Span span) const {
    if (spans_.empty() || !meet(span, bounds_)) return false;
    return std::any_of(spans_.begin(), spans_.end(), [&](const Span& other) { return meet(span, other); });
  }

 private:
  static bool meet(const Span& x, const Span& y) { return x.start < y.stop && y.start < x.stop; }
  std::vector<Span> spans_;
  Span bounds_{0, 0};
};

struct Key {
  std::uint64_t address, what;
  bool operator==(const Key& other) const { return address == other.address && what == other.what; }
};
struct Hash {
  std::size_t operator()(const Key& key) const {
    return static_cast<std::size_t>((key.address ^ key.what << 40) * 0x9E3779B97F4A7C15u >> 16);
  }
};

class Decoder {
 public:
  Decoder(const Layout& layout, const Figures& figures, std::size_t count) : layout_(layout), figures_(figures) {
    program_.steps.reserve(count);
  }

  bool take(const Word& word) {
    Step step{};
    step.field[op] = value_of(word, layout_.fields[op]);
    if (step.field[op] < 1 || step.field[op] > kOpcodes) return false;
    const Word& reserved = layout_.reserved[step.field[op] - 1];
    for (std::size_t limb = 0; limb < word.size(); ++limb) {
      if (word[limb] & reserved[limb]) return false;
    }
    for (std::size_t field = addr; field < kFields; ++field) step.field[field] = value_of(word, layout_.fields[field]);
    const bool taken = step.opcode() == kFill ? fill(step) : step.opcode() == kGemm ? gemm(step) : drain(step);
    if (taken) program_.steps.push_back(step);
    return taken;
  }

  Program&& program() { return std::move(program_); }

 private:
  // The place of an address in the mesh's own memory, if all `bytes` from there on are.
  bool place(std::uint64_t address, std::uint64_t bytes, std::uint64_t align, std::uint64_t* local) const {
    const int top = figures_.mesh_shift + figures_.mesh_bits;
    *local = address & ((std::uint64_t{1} << figures_.mesh_shift) - 1);
    return address >> figures_.mesh_shift == figures_.mesh && address >> top == 0 && address % align == 0 &&
           *local + bytes <= figures_.dram_bytes;
  }

  bool fill(Step& step) {
    const std::uint64_t count = step.field[n], first = step.field[eoff];
    if (step.field[peers] || step.field[npeer] || count < 1 || count > figures_.longest_fill) return false;
    if (first + count > figures_.entries || step.field[sel] > 1 || step.field[fbank] > 1) return false;
    const std::uint64_t bytes = count * (step.field[preq] ? kQuantisedEntryBytes : kEntryBytes);
    if (!place(step.field[addr], bytes, kGranule, &step.local)) return false;
    if (drained_.overlaps({step.local, step.local + bytes})) return false;
    const Key key{step.field[addr], count << 1 | step.field[preq]};
    const auto [found, fresh] = numbers_.try_emplace(key, program_.fills.size());
    step.fill = found->second;
    if (fresh) {
      program_.fills.push_back({step.field[addr], step.local, static_cast<std::size_t>(count), step.field[preq] != 0,
                                program_.steps.size()});
    }
    return true;
  }

  bool gemm(const Step& step) const {
    if (step.field[emit] || step.field[fuse] || step.field[abank] > 1 || step.field[bbank] > 1) return false;
    const std::uint64_t count = step.field[gm] * step.field[gn];
    return count && step.field[nk] && count <= figures_.tiles && step.field[anchor] == figures_.anchor;
  }

  bool drain(Step& step) {
    const std::uint64_t count = step.field[n];
    if (step.field[emit] || step.field[fuse] || step.field[dnode] || count < 1 || count > figures_.tiles) return false;
    const std::uint64_t bytes = (count * kGranule + kBurst - 1) / kBurst * kBurst;
    if (!place(step.field[addr], bytes, kBurst, &step.local)) return false;
    drained_.add({step.local, step.local + bytes});
    return true;
  }

  const Layout& layout_;
  const Figures& figures_;
  Program program_;
  Drained drained_;
  std::unordered_map<Key, std::size_t, Hash> numbers_;
};

}  // namespace

Program decode(const Word* words, std::size_t count, const Layout& layout, const Figures& figures) {
  Decoder decoder(layout, figures, count);
  for (std::size_t i = 0; i < count && decoder.take(words[i]); ++i) {
  }
  return decoder.program();
}

}  // namespace meshwright::cluster
