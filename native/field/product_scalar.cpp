// The product kernels in portable C++; the others have to give the same words.
#include "product.h"

namespace meshwright::field {
namespace {

void pack(Word* packed, const Word* source, std::size_t rows, std::size_t depth, std::ptrdiff_t pitch) {
  const std::size_t padded = (depth + kPad - 1) / kPad * kPad;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t k = 0; k < padded; ++k) {
      const Values values = k < depth ? evaluate(source[std::ptrdiff_t(row) * pitch + std::ptrdiff_t(k)]) : Values{};
      for (int p = 0; p < kPoints; ++p) packed[(p * rows + row) * padded + k] = values.at[p];
    }
  }
}

void tile(Word* sums, std::size_t pitch, const Word* a, const Word* b, std::size_t padded) {
  for (std::size_t i = 0; i < kRows; ++i) {
    for (std::size_t j = 0; j < kColumns; ++j) {
      Word sum = 0;
      for (std::size_t k = 0; k < padded; ++k) sum += a[i * padded + k] * b[j * padded + k];
      sums[i * pitch + j] += sum;
    }
  }
}

}  // namespace

const Kernels& scalar_kernels() {
  static const Kernels kernels = {pack, tile};
  return kernels;
}

}  // namespace meshwright::field
