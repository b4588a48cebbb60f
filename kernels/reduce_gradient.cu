// types: f32 f64 f16 bf16
// Sums over axes of the gradient of a function of two operands.
#include "reduce.cuh"

KERNELS(gradient, Gradient)
