// Which kernels this processor can run, asked of the processor itself and never of the compiler's flags.
#pragma once

namespace meshwright {

enum class Isa { scalar = 0, avx2 = 1, avx512 = 2 };

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
// __builtin_cpu_supports also asks the operating system (XGETBV) whether it saves the wide registers.
inline bool supports(Isa isa) {
  __builtin_cpu_init();
  switch (isa) {
    case Isa::scalar:
      return true;
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
    case Isa::avx512:
      return supports(Isa::avx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") &&
             __builtin_cpu_supports("avx512vbmi");
  }
  return false;
}
#else
inline bool supports(Isa isa) { return isa == Isa::scalar; }
#endif

}  // namespace meshwright
