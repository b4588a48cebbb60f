// types: f32 f16 bf16
// oldest: sm_90a
// Convolutions on the tensor cores of compute capability 9.0: see conv_warpgroup.cuh. f32 is rounded to TF32.
#include "conv_warpgroup.cuh"

#define GATHER(N, BLOCKS)                                                                          \
    KERNEL __launch_bounds__(COMPUTING + COPYING, 1)                                               \
        gather_##N##_##BLOCKS(const __grid_constant__ Gather g, const scalar* source,              \
                              const scalar* weights, const scalar* bias, scalar* out) {            \
        gather<N, BLOCKS, 1>(g, source, weights, bias, out);                                       \
    }
GATHER(64, 2)
GATHER(128, 1)
GATHER(128, 2)
GATHER(256, 1)

#define PREPARE(N)                                                                                 \
    KERNEL __launch_bounds__(256)                                                                  \
        prepare_##N(const __grid_constant__ Gather g, const scalar* w, scalar* out) {              \
        prepare<N, 1>(g, w, out);                                                                  \
    }
PREPARE(64)
PREPARE(128)
PREPARE(256)
