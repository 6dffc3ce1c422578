// What a program does to the state of a cluster, without any number: which entries are where, what is multiplied by
// what, and what is drained to where.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "program.h"

namespace meshwright::cluster {

// An L1 entry by name: slot of the segment it is of, times 256, plus its place there. kNever: nothing ever filled it.
using Name = std::int32_t;
constexpr Name kNever = -1;

// Entries that the last sweep may still read, of a side and bank: first, one past the last; both 0 for none.
struct Busy {
  std::int32_t start, stop;
};

// Sweeps over one grid of sub-tiles that continue each other and that wait until somebody looks at the tiles.
struct Layer {
  int prior;       // its number among the layers there were before, or -1
  bool changed;    // of those: whether a sweep was added
  bool complete;   // it opens its tiles, and `a` and `b` name all its entries: it can be multiplied
  bool drained;    // somebody has looked at it since its last sweep
  std::size_t gm, gn, blocks;
  std::vector<Name> a, b;  // [sweeps][groups][blocks of the sweep], and [sweeps][columns][blocks]
  std::vector<std::size_t> sweeps;  // K blocks of each
  std::int64_t chain;  // its number among the chains of the plan, or -1

  std::size_t count() const { return gm * gn; }
};

struct State {
  std::size_t entries;
  std::vector<Name> l1;            // [side][bank][entry]
  std::array<Busy, 4> busy;        // [side][bank]
  std::size_t opened;              // sub-tiles that were ever opened, the first ones
  std::vector<Layer> layers;       // each covers less than the one before
};

// A product that is drained: a grid, K blocks, and which of the plan's operands.
struct Chain {
  std::size_t gm, gn, blocks, a, b;
};
struct Drained {
  std::size_t step, chain;
};

struct Plan {
  std::size_t done = 0;            // steps that it covers: none of them has a fault or needs what only the cluster has
  std::int64_t last_l1 = -1;       // the last of them that uses L1, and that uses the tiles
  std::int64_t last_tiles = -1;
  std::vector<Chain> chains;
  std::vector<Drained> drains;
  std::vector<std::vector<Name>> operands;  // each once: [groups][blocks]
};

// The plan of the first `limit` steps at most; `state` is what it is after them. slots: of each of the program's fills,
// the slot of the segment that it leaves in L1.
Plan plan(const Program& program, std::size_t limit, const std::vector<std::int32_t>& slots, State& state);

// The entries of a layer's operand in order (group, K block).
std::vector<Name> in_order(const Layer& layer, const std::vector<Name>& names, std::size_t groups);

}  // namespace meshwright::cluster
