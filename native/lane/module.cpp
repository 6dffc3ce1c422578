#include <nanobind/nanobind.h>

NB_MODULE(_lane, m) { m.doc() = "compiled kernels: lane"; }
