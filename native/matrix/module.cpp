#include <nanobind/nanobind.h>

NB_MODULE(_matrix, m) { m.doc() = "compiled kernels: matrix"; }
