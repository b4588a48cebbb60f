// types: i32 i64
// The smallest and the largest element of an index, but for those that are ignored: a pair for every
// block.
#include "capgrad.cuh"

INLINE void widen_range(i64& low, i64& high, i64 other_low, i64 other_high) {
    low = other_low < low ? other_low : low;
    high = other_high > high ? other_high : high;
}

INLINE void warp_range(i64& low, i64& high) {
    for (int offset = 16; offset > 0; offset >>= 1) {
        i64 other_low = __shfl_xor_sync(0xffffffffu, low, offset);
        i64 other_high = __shfl_xor_sync(0xffffffffu, high, offset);
        widen_range(low, high, other_low, other_high);
    }
}

KERNEL index_range(const scalar* index, u64 count, u32 ignores, i64 ignore, i64* ranges) {
    __shared__ i64 lows[32], highs[32];
    i64 low = 0x7fffffffffffffffll, high = -low - 1;
#pragma unroll 4
    for (u64 i = thread_index(); i < count; i += thread_count()) {
        i64 value = widen(index[i]);
        if (!(ignores && value == ignore)) widen_range(low, high, value, value);
    }
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    warp_range(low, high);
    if (lane == 0) {
        lows[warp] = low;
        highs[warp] = high;
    }
    __syncthreads();
    if (warp == 0) {
        low = lows[lane < warps ? lane : 0];
        high = highs[lane < warps ? lane : 0];
        warp_range(low, high);
        if (lane == 0) {
            ranges[2 * blockIdx.x] = low;
            ranges[2 * blockIdx.x + 1] = high;
        }
    }
}
