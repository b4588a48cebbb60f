// types: f32 f64 f16 bf16
// Sums over axes of the gradient of a choice.
#include "reduce.cuh"

KERNELS(chosen, Chosen)
