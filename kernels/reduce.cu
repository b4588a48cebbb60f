// types: f32 f64 f16 bf16
// Sums over axes of a tensor, and what adds up the chunks of all sums.
#include "reduce.cuh"

KERNELS(stored, Stored)

template <bool BLOCK> INLINE void finish(const Results& results, u32 lanes) {
    each_row<BLOCK>(results.count, lanes, [&](const Group<BLOCK>& group, u64 output, bool active) {
        f64 sum = 0;
        if (active) {
#pragma unroll 8
            for (u64 chunk = group.lane; chunk < results.chunks; chunk += group.lanes)
                sum += results.partials[chunk * results.count + output];
        }
        sum = group.sum(sum);
        if (active && group.lane == 0) results.write(output, sum);
    });
}

KERNEL __launch_bounds__(THREADS)
reduce_finish(const __grid_constant__ Results results, u32 lanes) {
    finish<false>(results, lanes);
}

KERNEL __launch_bounds__(THREADS)
reduce_finish_long(const __grid_constant__ Results results, u32 lanes) {
    finish<true>(results, lanes);
}
