// How products by warpgroups take positions from strips, and keep their sums.
#pragma once
#include "strips.cuh"
#include "warpgroup.cuh"

// Threads that compute, and after them those that copy.
static const u32 COMPUTING = 256;
static const int COPYING = 128;

// Rows g and g + 8 of a left operand, and one product's terms, from strips: `low` and `high` are the rows'
// places, and `terms` where the terms lie from there. The values are PARTS words that add up to them.
template <int PARTS>
INLINE void fragment(u32 (&to)[PARTS][4], const scalar* strips, const i32* terms, i32 low, i32 high) {
    const int t = threadIdx.x & 3;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (sizeof(scalar) == 4) {
            const i32 at = terms[half * 4 + t];
#pragma unroll
            for (int row = 0; row < 2; row++) {
                const f32 value = widen(strips[at + (row ? high : low)]);
                if (PARTS > 1) {
                    f32 first, rest;
                    split(value, first, rest);
                    to[0][half * 2 + row] = __float_as_int(first);
                    to[PARTS - 1][half * 2 + row] = __float_as_int(rest);
                } else {
                    to[0][half * 2 + row] = as_tf32(value);
                }
            }
        } else {
            const i32 first = terms[half * 8 + 2 * t], second = terms[half * 8 + 2 * t + 1];
            const u16* s = (const u16*)strips;
            to[0][half * 2] = s[first + low] | (u32)s[second + low] << 16;
            to[0][half * 2 + 1] = s[first + high] | (u32)s[second + high] << 16;
        }
    }
}

// The sums of a warpgroup: BLOCKS times 64 rows, N columns, of values in PARTS.
template <int N, int BLOCKS, int PARTS> struct Sums {
    f32 sums[BLOCKS][N / 2];
    // Of values in parts, sums of more than STRETCH stages are added up apart, so that rounding errors stay
    // small.
    f32 kept[PARTS > 1 ? BLOCKS : 1][PARTS > 1 ? N / 2 : 1];
    u32 since;
    static const u32 STRETCH = 8;

    __device__ __forceinline__ void clear() {
        since = 0;
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                sums[b][i] = 0;
                if (PARTS > 1) kept[b][i] = 0;
            }
    }

    // Adds a stage: its strips, where its terms lie in them, the rows' places there; and the right
    // operand, `apart` bytes from vector to vector and `part` from part to part. Calls `over` when the
    // products before are.
    template <class Over>
    __device__ __forceinline__ void add(const scalar* strips, const i32* terms, const i32 (&low)[BLOCKS],
                                        const i32 (&high)[BLOCKS], u32 right, u32 apart, u32 part, Over over) {
        const u64 described = describe(right, apart);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            u32 left[BLOCKS][PARTS][4];
#pragma unroll
            for (int b = 0; b < BLOCKS; b++)
                fragment(left[b], strips, terms + k * STAGE / 2, low[b], high[b]);
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) hold(sums[b]);
            begin_products();
            const u64 step = described + k * (2 * apart >> 4);
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                if (PARTS > 1) {
                    Products<N>::add(sums[b], left[b][PARTS - 1], step);
                    Products<N>::add(sums[b], left[b][0], step + (part >> 4));
                }
                Products<N>::add(sums[b], left[b][0], step);
            }
            close_products();
            await_products<1>();
            if (k == 0) over();
        }
        if (PARTS > 1 && ++since == STRETCH) {
            since = 0;
            await_products<0>();
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                hold(sums[b]);
#pragma unroll
                for (int i = 0; i < N / 2; i++) {
                    kept[b][i] += sums[b][i];
                    sums[b][i] = 0;
                }
            }
        }
    }

    __device__ __forceinline__ void finish() {
        await_products<0>();
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            hold(sums[b]);
            if (PARTS > 1)
#pragma unroll
                for (int i = 0; i < N / 2; i++) sums[b][i] += kept[b][i];
        }
    }

    // Hands row g (or g + 8 where `half` is 1) of a block to `put(column, sum)`.
    template <class Put> __device__ __forceinline__ void row(int block, int half, Put put) const {
        const u32 first = 2 * (threadIdx.x & 3);
#pragma unroll
        for (int i = 0; i < N / 4; i++)
            put(first + i / 2 * 8 + i % 2, sums[block][i / 2 * 4 + half * 2 + i % 2]);
    }

    // The same with rows two by two: `put(column, sum of the even row, sum of the odd row)`. A thread whose
    // row is even has half of the columns of both, and that of the odd row the others.
    template <class Put> __device__ __forceinline__ void rows(int block, int half, Put put) const {
        const u32 odd = (threadIdx.x >> 2) & 1, first = 2 * (threadIdx.x & 3) + odd;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const f32 left = sums[block][j * 4 + half * 2], right = sums[block][j * 4 + half * 2 + 1];
            const f32 other = __shfl_xor_sync(0xffffffffu, odd ? left : right, 4);
            put(first + j * 8, odd ? other : left, odd ? right : other);
        }
    }
};

// The first row that this thread has in the first block of its warpgroup.
template <int BLOCKS> INLINE u32 own_row() {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    return (warp >> 2) * 64 * BLOCKS + (warp & 3) * 16 + (lane >> 2);
}
