// What the interpreter and the reductions need from one instruction set: a function for each opcode and format.
//
// A lane value is held as the float32 pattern that its E8M15 code is the top 24 bits of: code << 8.
#pragma once

#include <cstddef>
#include <cstdint>

namespace meshwright::lane {

using Bits = std::uint32_t;

// The order of these two is known to meshwright/numerics/lane_instructions.py, which passes them as integers.
enum Op {
  kMov, kNeg, kAbs, kAdd, kSub, kMul, kFma, kFnma, kMax, kMin, kSel, kExp2, kLog2, kInv, kRsqrt,
  kRoundFp16, kRoundFp32, kLt, kGt, kEq, kOps
};
enum Format { kFp16, kFp32, kE8, kFp22, kBool, kFormats };

// Banks of the coefficient tables, int32[5][3][32]: see meshwright/numerics/twin/lane_functions.py.
enum Bank { kBankExp2, kBankLog2, kBankInv, kBankRsqrt, kBankRsqrtOdd };
using Tables = const std::int32_t*;
inline Tables coefficients(Tables tables, int bank, int order) { return tables + (bank * 3 + order) * 32; }

constexpr Bits kSign = 0x80000000u, kInfinity = 0x7F800000u, kNan = 0x7FC00000u, kSmallest = 0x00800000u,
               kOne = 0x3F800000u;

// Buffers are 64-byte aligned and hold a multiple of kPad elements, so that kernels may work on whole vectors.
constexpr std::size_t kPad = 32;
inline std::size_t padded(std::size_t n) { return (n + kPad - 1) / kPad * kPad; }

// Opcodes read the slots that they need; dst may be one of them. Comparisons write all ones or all zeros.
using OpKernel = void (*)(Bits* dst, const Bits* a, const Bits* b, const Bits* c, std::size_t n, Tables tables);
// Reads and writes exactly n elements; the result has a bit set where an element had bits that no code has.
using LoadKernel = Bits (*)(Bits* dst, const void* src, std::size_t n);
using StoreKernel = void (*)(void* dst, const Bits* src, std::size_t n);

struct Kernels {
  OpKernel op[kOps];
  LoadKernel load[kFormats];    // none for kBool
  StoreKernel store[kFormats];  // none for kFp22
  // even[i] = src[2i], odd[i] = src[2i + 1], for i below n.
  void (*deinterleave)(Bits* even, Bits* odd, const Bits* src, std::size_t n);
  // dst = src where the predicate equals `when`.
  void (*merge)(Bits* dst, const Bits* src, const Bits* predicate, bool when, std::size_t n);
  // Every use of the functions above lies between enter and leave, which set and restore how this thread rounds.
  unsigned (*enter)();
  void (*leave)(unsigned state);
};

const Kernels& scalar_kernels();
#ifdef MESHWRIGHT_X86
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
#endif

inline std::size_t element_size(int format) { return format == kFp16 ? 2 : format == kBool ? 1 : 4; }

}  // namespace meshwright::lane
