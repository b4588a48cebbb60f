// types: f32
// oldest: sm_90a
// Gradients for weights of f32 on the tensor cores of compute capability 9.0, in two parts: see
// conv_warpgroup_split.cu.
#include "conv_warpgroup_weight.cuh"

#define WEIGHT(N, BLOCKS)                                                                          \
    KERNEL __launch_bounds__(COMPUTING + COPYING, 1)                                               \
        weight_##N##_##BLOCKS(const __grid_constant__ Gradient g, const scalar* x,                 \
                              const scalar* dy, scalar* out, f32* partial, u32* order) {           \
        weight<N, BLOCKS, 2>(g, x, dy, out, partial, order);                                       \
    }
WEIGHT(64, 1)
WEIGHT(128, 1)
