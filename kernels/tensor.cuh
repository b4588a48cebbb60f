// The engine that multiplies tiles on tensor cores, in TF32 with sums in f32. Halves of either kind are
// TF32 numbers as they are; f32 is rounded to the nearest. Compute capability 8.0 and later.
#pragma once
#include "conv.cuh"
#include "tf32.cuh"

// c += a·b for 16 x 8 and 8 x 8. With g = lane / 4 and t = lane % 4, a thread holds rows g, g + 8 of a
// at columns t and then t + 4; rows t, t + 4 of b at column g; and of c row g at columns 2t, 2t + 1, then
// row g + 8.
INLINE void multiply_add(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// As `Plain`. The eight warps have half the rows and a quarter of the columns each.
template <int SIDE> struct Tensor {
    // The loaders give so many terms at a time; two of those are a step.
    static const int HALF = Tile<SIDE>::DEPTH;
    static const int DEPTH = 2 * HALF;
    // Eight more than a multiple of 32, so that four terms of eight lines lie in 32 banks.
    static const int PITCH = SIDE + 8;
    static const int PANEL = DEPTH * PITCH;
    static const int WORDS = 4 * PANEL;
    static const int ROWS = SIDE / 2, COLUMNS = SIDE / 4;
    static const int DOWN = ROWS / 16, ACROSS = COLUMNS / 8;
    f32 sum[DOWN][ACROSS][4];

    static __device__ __forceinline__ int warp() { return threadIdx.x >> 5; }
    static __device__ __forceinline__ int group() { return (threadIdx.x & 31) >> 2; }
    static __device__ __forceinline__ int thread() { return threadIdx.x & 3; }

    template <bool ALONG_SUM>
    static __device__ __forceinline__ void put(u32* panel, const acc (&values)[EACH]) {
        typedef Carry<SIDE, ALONG_SUM> C;
        u32* at = panel + C::term() * PITCH + C::line();
#pragma unroll
        for (int i = 0; i < EACH; i++)
            at[i * C::APART * (ALONG_SUM ? 1 : PITCH)] =
                sizeof(scalar) == 2 ? (u32)__float_as_int(values[i]) : as_tf32(values[i]);
    }

    // One panel of each operand.
    __device__ __forceinline__ void step(const u32* as, const u32* bs) {
        const u32* pa = as + thread() * PITCH + (warp() & 1) * ROWS + group();
        const u32* pb = bs + thread() * PITCH + (warp() >> 1) * COLUMNS + group();
#pragma unroll
        for (int k = 0; k < DEPTH; k += 8) {
            u32 a[DOWN][4], b[ACROSS][2];
#pragma unroll
            for (int i = 0; i < DOWN; i++) {
                a[i][0] = pa[k * PITCH + i * 16];
                a[i][1] = pa[k * PITCH + i * 16 + 8];
                a[i][2] = pa[(k + 4) * PITCH + i * 16];
                a[i][3] = pa[(k + 4) * PITCH + i * 16 + 8];
            }
#pragma unroll
            for (int j = 0; j < ACROSS; j++) {
                b[j][0] = pb[k * PITCH + j * 8];
                b[j][1] = pb[(k + 4) * PITCH + j * 8];
            }
#pragma unroll
            for (int i = 0; i < DOWN; i++)
#pragma unroll
                for (int j = 0; j < ACROSS; j++) multiply_add(sum[i][j], a[i], b[j]);
        }
    }

    template <class A, class B>
    __device__ __forceinline__ void multiply(A& a, B& b, u64 steps, acc* shared) {
        // Long sums are kept in stretches of 1024 terms; see `Plain`.
        const u32 STRETCH = 1024 / DEPTH;
        const u32 none = blockDim.z - 1;
        f32 kept[DOWN * ACROSS * 4];
        const bool stretches = steps > STRETCH;
        if (stretches) {
#pragma unroll
            for (int i = 0; i < DOWN * ACROSS * 4; i++) kept[none + i] = 0;
        }
#pragma unroll
        for (int i = 0; i < DOWN * ACROSS * 4; i++) sum[i / (ACROSS * 4)][i / 4 % ACROSS][i % 4] = 0;
        if (steps == 0) return;
        u32 *as = (u32*)shared, *bs = as + 2 * PANEL;
        acc next_a[2][EACH], next_b[2][EACH];
        load(a, b, next_a, next_b);
        // The last tile of this block may still be leaving shared memory.
        __syncthreads();
        store<A, B>(as, bs, next_a, next_b);
        __syncthreads();
        u32 since = 0;
        for (u64 at = 0; at < steps; at++) {
            const int now = (int)(at & 1);
            const bool more = at + 1 < steps;
            if (more) load(a, b, next_a, next_b);
            step(as + now * PANEL, bs + now * PANEL);
            if (more) store<A, B>(as + (now ^ 1) * PANEL, bs + (now ^ 1) * PANEL, next_a, next_b);
            __syncthreads();
            if (stretches && ++since == STRETCH) {
                since = 0;
#pragma unroll
                for (int i = 0; i < DOWN * ACROSS * 4; i++) {
                    f32& own = sum[i / (ACROSS * 4)][i / 4 % ACROSS][i % 4];
                    kept[none + i] += own;
                    own = 0;
                }
            }
        }
        if (stretches) {
#pragma unroll
            for (int i = 0; i < DOWN * ACROSS * 4; i++)
                sum[i / (ACROSS * 4)][i / 4 % ACROSS][i % 4] += kept[none + i];
        }
    }

    template <class A, class B>
    static __device__ __forceinline__ void load(A& a, B& b, acc (&next_a)[2][EACH],
                                                acc (&next_b)[2][EACH]) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            a.next(next_a[half]);
            b.next(next_b[half]);
        }
    }

    template <class A, class B>
    static __device__ __forceinline__ void store(u32* as, u32* bs, const acc (&next_a)[2][EACH],
                                                 const acc (&next_b)[2][EACH]) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            put<A::ALONG_SUM>(as + half * HALF * PITCH, next_a[half]);
            put<B::ALONG_SUM>(bs + half * HALF * PITCH, next_b[half]);
        }
    }

    template <class Writer> __device__ __forceinline__ void drain(acc* shared, Writer& writer) {
        drain_parts<SIDE>(shared, writer, [&](int p, int q) {
            // Where the warp's rows and columns begin in this part of the tile.
            const int row = (warp() & 1) * ROWS - p * QUARTER, column = (warp() >> 1) * COLUMNS - q * QUARTER;
            if (row < 0 || row >= QUARTER || column < 0 || column >= QUARTER) return;
#pragma unroll
            for (int i = 0; i < DOWN; i++)
#pragma unroll
                for (int j = 0; j < ACROSS; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        int r = row + i * 16 + group() + e / 2 * 8;
                        int c = column + j * 8 + thread() * 2 + e % 2;
                        shared[r * (QUARTER + PAD) + c] = sum[i][j][e];
                    }
        });
    }
};
