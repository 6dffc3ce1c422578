#include "kernels.h"

namespace meshwright {

const Kernels* kernels_for(Isa isa) {
  if (!supports(isa)) return nullptr;
  switch (isa) {
    case Isa::scalar:
      return &scalar_kernels();
#if defined(MESHWRIGHT_X86_KERNELS)
    case Isa::avx2:
      return &avx2_kernels();
    case Isa::avx512:
      return &avx512_kernels();
#endif
    default:
      return nullptr;
  }
}

}  // namespace meshwright
