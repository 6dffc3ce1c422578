// Instruction words of a cluster, decoded, and what can be said of them without the cluster's state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace meshwright::cluster {

enum Opcode : std::int32_t { kFill = 1, kGemm = 2, kDrain = 3 };
constexpr std::size_t kOpcodes = 3;

// Fields of a word that FILL, GEMM or a DRAIN to memory looks at; `kFieldNames` spells them.
enum Field {
  op, addr, n, sel, acc, gm, gn, nk, anchor, peers, npeer, preq, eoff, aoff, boff, emit, fuse, abank, bbank, fbank,
  dnode,
};
constexpr const char* kFieldNames[] = {
    "op",    "addr", "n",    "sel",  "acc",  "gm",   "gn",   "nk",    "anchor", "peers", "npeer",
    "preq",  "eoff", "aoff", "boff", "emit", "fuse", "abank", "bbank", "fbank",  "dnode"};
constexpr std::size_t kFields = sizeof kFieldNames / sizeof *kFieldNames;

// Where the bits of a field are: its low bits from `low` on, the rest, where there is one, from `upper` on.
struct Bits {
  int low, low_width, upper, upper_width;
};

using Word = std::array<std::uint64_t, 4>;

struct Layout {
  std::array<Bits, kFields> fields;
  std::array<Word, kOpcodes> reserved;  // of each opcode, bits that must be zero
};

// The figures of the cluster and of the memory that it reaches.
struct Figures {
  std::size_t tiles, entries, longest_fill;
  std::uint64_t anchor;
  std::uint64_t mesh;
  int mesh_shift, mesh_bits;
  std::uint64_t dram_bytes;
};

constexpr std::uint64_t kGranule = 32;       // bytes of a memory word and of a sub-tile of fp16
constexpr std::uint64_t kBurst = 256;        // bytes of a burst to memory
constexpr std::uint64_t kEntryBytes = 256;   // of fp16
constexpr std::uint64_t kQuantisedEntryBytes = 128;

struct Step {
  std::array<std::uint64_t, kFields> field;
  std::uint64_t local;  // of FILL and DRAIN: the byte in the mesh's own memory
  std::size_t fill;     // of FILL: which of `fills`
  std::int32_t opcode() const { return static_cast<std::int32_t>(field[op]); }
  std::size_t count(Field which) const { return static_cast<std::size_t>(field[which]); }
};

// A run of memory that FILLs stream, once however often they do. first: number of the first step that does.
struct Source {
  std::uint64_t address, local;
  std::size_t entries;
  bool prequantised;
  std::size_t first;
};

// The longest prefix of some words that have no fault that could be told from the words alone, and that touch nothing
// but their own cluster and their own mesh's memory. A FILL out of memory that a DRAIN before it writes ends it too: that
// is a race. What ends it isn't said: whoever executes the next word by itself finds out.
struct Program {
  std::vector<Step> steps;
  std::vector<Source> fills;
};

Program decode(const Word* words, std::size_t count, const Layout& layout, const Figures& figures);

}  // namespace meshwright::cluster
