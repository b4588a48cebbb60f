// types: f32 f16 bf16
// oldest: sm_90a
// Gradients for weights on the tensor cores of compute capability 9.0: see conv_warpgroup_weight.cuh. f32 is
// rounded to TF32.
#include "conv_warpgroup_weight.cuh"

#define WEIGHT(N, BLOCKS)                                                                          \
    KERNEL __launch_bounds__(COMPUTING + COPYING, 1)                                               \
        weight_##N##_##BLOCKS(const __grid_constant__ Gradient g, const scalar* x,                 \
                              const scalar* dy, scalar* out, f32* partial, u32* order) {           \
        weight<N, BLOCKS, 1>(g, x, dy, out, partial, order);                                       \
    }
WEIGHT(64, 2)
WEIGHT(128, 1)
WEIGHT(128, 2)
