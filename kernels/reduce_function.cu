// types: f32 f64 f16 bf16
// Sums over axes of a function of two operands.
#include "reduce.cuh"

KERNELS(function, Function)
