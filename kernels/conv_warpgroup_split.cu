// types: f32
// oldest: sm_90a
// Convolutions of f32 on the tensor cores of compute capability 9.0: each value is the sum of two in TF32, and
// of their four products the smallest is left out. See conv_warpgroup.cuh and conv_warpgroup_weight.cuh.
#include "conv_warpgroup.cuh"

#define GATHER(N, BLOCKS)                                                                          \
    KERNEL __launch_bounds__(COMPUTING + COPYING, 1)                                               \
        gather_##N##_##BLOCKS(const __grid_constant__ Gather g, const scalar* source,              \
                              const scalar* weights, const scalar* bias, scalar* out) {            \
        gather<N, BLOCKS, 2>(g, source, weights, bias, out);                                       \
    }
GATHER(64, 1)
GATHER(128, 1)

#define PREPARE(N)                                                                                 \
    KERNEL __launch_bounds__(256)                                                                  \
        prepare_##N(const __grid_constant__ Gather g, const scalar* w, scalar* out) {              \
        prepare<N, 2>(g, w, out);                                                                  \
    }
PREPARE(64)
PREPARE(128)
