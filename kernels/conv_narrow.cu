// types: f32 f16 bf16
// oldest: sm_80
// Convolutions with few terms and rows a group: see conv_narrow.cuh. f32 is rounded to TF32.
#include "conv_narrow.cuh"

#define GATHER(ROWS, STEPS)                                                                        \
    KERNEL __launch_bounds__(NARROW)                                                               \
        narrow_gather_##ROWS##_##STEPS(const __grid_constant__ Narrow g, const scalar* source,     \
                                       const scalar* w, const scalar* bias, scalar* out) {         \
        narrow_gather<ROWS, STEPS, 1>(g, source, w, bias, out);                                     \
    }
GATHER(1, 2)
GATHER(1, 4)
GATHER(1, 8)
GATHER(2, 4)
GATHER(2, 8)
GATHER(4, 2)
GATHER(4, 4)

#define WEIGHT(ROWS, LINES)                                                                        \
    KERNEL __launch_bounds__(NARROW)                                                               \
        narrow_weight_##ROWS##_##LINES(const __grid_constant__ Narrow g, const scalar* x,          \
                                       const scalar* dy, scalar* out, f32* partial) {              \
        narrow_weight<ROWS, LINES, 1>(g, x, dy, out, partial);                                      \
    }
WEIGHT(1, 4)
WEIGHT(1, 8)
WEIGHT(2, 4)
WEIGHT(2, 8)
WEIGHT(4, 4)
