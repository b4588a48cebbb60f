// What the kernels of convolutions and matrix products share: division of indices, the taps that a
// strided gradient meets, the sum of partial results, and the square tiles in which products are
// computed. A tile is described by two loaders, which gather its operands from wherever they lie,
// and by a writer, which knows where its elements go.
#pragma once
#include "capgrad.cuh"

// The sizes of a convolution. `period` is the distance of two taps that meet the same position of
// a strided gradient, and `shift` how far apart along the output they meet it.
struct Geometry {
    u64 batch, in_channels, out_channels, in_length, out_length, kernel, stride, dilation, groups;
    u64 pad_left, period, shift;
};

// The unsigned type of a type of offsets: one comparison then finds what is below 0, too.
template <class I> struct Unsigned {
    typedef u32 type;
};
template <> struct Unsigned<i64> {
    typedef u64 type;
};

INLINE u64 ceil_div(u64 a, u64 b) { return (a + b - 1) / b; }
INLINE u64 least(u64 a, u64 b) { return a < b ? a : b; }

// 64-bit division costs several times what 32-bit division does, and is rarely needed.
INLINE void divide(u64 a, u64 b, u64& quotient, u64& rest) {
    if (((a | b) >> 32) == 0) {
        u32 q = (u32)a / (u32)b;
        quotient = q;
        rest = (u32)a - q * (u32)b;
    } else {
        u64 q = a / b;
        rest = a - q * b;
        quotient = q;
    }
}

// The first tap that meets position `l` of the input: `l + pad_left - tap·dilation` is a multiple
// of the stride. `kernel` where there is none.
INLINE u64 first_tap(const Geometry& g, u64 l) {
    if (g.stride == 1) return 0;
    u64 at = l + g.pad_left, wanted, reach = 0, step, unused;
    divide(at, g.stride, unused, wanted);
    divide(g.dilation, g.stride, unused, step);
    u64 limit = least(g.kernel, g.period);
    for (u64 tap = 0; tap < limit; tap++) {
        if (reach == wanted) return tap;
        reach += step;
        if (reach >= g.stride) reach -= g.stride;
    }
    return g.kernel;
}

// Where along the output position `l` meets its first tap; may lie outside.
INLINE i64 first_output(const Geometry& g, u64 l, u64 tap) {
    i64 distance = (i64)(l + g.pad_left) - (i64)(tap * g.dilation);
    return g.stride == 1 ? distance : distance / (i64)g.stride;
}

// `extra` added to an element, or to each of a pack.
template <class T> INLINE T plus(T x, acc extra) { return narrow<T>(widen(x) + extra); }
template <class T, int N> INLINE Pack<T, N> plus(Pack<T, N> x, acc extra) {
#pragma unroll
    for (int i = 0; i < N; i++) x.at[i] = narrow<T>(widen(x.at[i]) + extra);
    return x;
}

// ---- partial results

// Element e of `out` is the sum of `partial[s·elements + e]` over s, plus `bias[e % period]`. A
// block of 256 threads takes 32 elements at a time, eight threads each, so that many partial
// results of few elements are not added one after another.
template <class T>
INLINE void add_partial_results(const acc* partial, u64 splits, u64 elements, const T* bias,
                                u64 period, T* out) {
    __shared__ acc sums[8][32];
    u32 lane = threadIdx.x & 31, part = threadIdx.x >> 5;
    for (u64 first = (u64)blockIdx.x * 32; first < elements; first += (u64)gridDim.x * 32) {
        u64 e = first + lane;
        acc sum = 0;
        if (e < elements) {
#pragma unroll 4
            for (u64 s = part; s < splits; s += 8) sum += partial[s * elements + e];
        }
        sums[part][lane] = sum;
        __syncthreads();
        if (part == 0 && e < elements) {
            acc total = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) total += sums[i][lane];
            if (bias) {
                u64 row, at;
                divide(e, period, row, at);
                total += widen(bias[at]);
            }
            out[e] = narrow<T>(total);
        }
        __syncthreads();
    }
}

// ---- tiles

// Every tile is computed by 256 threads, and each carries four elements of either operand a step.
static const int THREADS = 256;
static const int EACH = 4;
static const int QUARTER = 64;
// Rows of shared memory are longer by this, against bank conflicts.
static const int PAD = 4;
// Elements of shared memory: the panels of either size of tile, twice, or 64 x 64 results.
static const int SHARED = QUARTER * (QUARTER + PAD);

// A tile of SIDE rows and columns, 64 or 128, DEPTH terms of its sums at a time.
template <int SIDE> struct Tile {
    static const int DEPTH = THREADS * EACH / SIDE;
    static const int PITCH = SIDE + PAD;
    static const int PANEL = DEPTH * PITCH;
    // Each thread has 4 x 4 elements in each 64 x 64 part of the tile.
    static const int PARTS = SIDE / QUARTER;
    static const int OWN = 4 * PARTS;
};

// Which elements of a panel (SIDE lines, DEPTH terms) a thread carries: neighbours along the sum if
// ALONG_SUM, for operands that are contiguous that way, and else neighbouring lines.
template <int SIDE, bool ALONG_SUM> struct Carry {
    static const int DEPTH = Tile<SIDE>::DEPTH;
    // From one element to the next: lines, or terms.
    static const int APART = ALONG_SUM ? THREADS / DEPTH : THREADS / SIDE;
    static __device__ __forceinline__ int line() {
        return ALONG_SUM ? threadIdx.x / DEPTH : threadIdx.x % SIDE;
    }
    static __device__ __forceinline__ int term() {
        return ALONG_SUM ? threadIdx.x % DEPTH : threadIdx.x / SIDE;
    }
};

template <int SIDE, bool ALONG_SUM> INLINE void put(acc* panel, const acc (&values)[EACH]) {
    typedef Carry<SIDE, ALONG_SUM> C;
    acc* at = panel + C::term() * Tile<SIDE>::PITCH + C::line();
#pragma unroll
    for (int i = 0; i < EACH; i++)
        at[i * C::APART * (ALONG_SUM ? 1 : Tile<SIDE>::PITCH)] = values[i];
}

// The first of a thread's four rows and columns within a 64 x 64 part. A warp has 16 rows and 32
// columns, which keeps its reads of shared memory few.
INLINE int own_row() { return ((threadIdx.x >> 6) * 4 + ((threadIdx.x & 31) >> 3)) * 4; }
INLINE int own_column() { return (((threadIdx.x >> 5) & 1) * 8 + (threadIdx.x & 7)) * 4; }

INLINE void fetch(const acc* from, acc* to) {
    const int N = 16 / sizeof(acc);
#pragma unroll
    for (int i = 0; i < 4; i += N) {
        Pack<acc, N> pack = *(const Pack<acc, N>*)(from + i);
#pragma unroll
        for (int j = 0; j < N; j++) to[i + j] = pack.at[j];
    }
}

// Hands a tile to its writer by way of shared memory, so that neighbouring threads hold
// neighbouring columns: `column(i)` says which one the next calls of `put(row, value)` are for.
// `fill(p, q)` writes the results of one 64 x 64 part, in which rows are QUARTER + PAD long.
template <int SIDE, class Writer, class Fill>
INLINE void drain_parts(acc* shared, Writer& writer, Fill fill) {
    const int PITCH = QUARTER + PAD;
    const int x = threadIdx.x % QUARTER, y = threadIdx.x / QUARTER;
#pragma unroll
    for (int q = 0; q < Tile<SIDE>::PARTS; q++) {
        writer.column(q * QUARTER + x);
#pragma unroll
        for (int p = 0; p < Tile<SIDE>::PARTS; p++) {
            __syncthreads();
            fill(p, q);
            __syncthreads();
#pragma unroll 4
            for (int r = y; r < QUARTER; r += THREADS / QUARTER)
                writer.put(p * QUARTER + r, shared[r * PITCH + x]);
        }
    }
}

// The engine that multiplies tiles on the plain units. `multiply` sums `steps` panels, of DEPTH terms, of
// the product of two operands; they are double-buffered: the next one is on its way from memory while
// one is multiplied. It needs WORDS elements of shared memory.
template <int SIDE> struct Plain {
    typedef Tile<SIDE> T;
    static const int DEPTH = T::DEPTH;
    static const int WORDS = SHARED;
    acc sum[T::OWN][T::OWN];

    template <class A, class B>
    __device__ __forceinline__ void multiply(A& a, B& b, u64 steps, acc* shared) {
        // Long sums of f32 are kept in stretches of 1024 terms, so that rounding errors stay small. In
        // memory on purpose, for it is seldom used and registers are dear: the compiler must not know
        // that `none` is 0.
        const u32 STRETCH = sizeof(acc) == 4 ? 1024 / T::DEPTH : 0;
        const u32 none = blockDim.z - 1;
        acc kept[T::OWN * T::OWN];
        const bool stretches = STRETCH != 0 && steps > STRETCH;
        if (stretches) {
#pragma unroll
            for (int i = 0; i < T::OWN * T::OWN; i++) kept[none + i] = 0;
        }
#pragma unroll
        for (int i = 0; i < T::OWN; i++)
#pragma unroll
            for (int j = 0; j < T::OWN; j++) sum[i][j] = 0;
        if (steps == 0) return;
        acc *as = shared, *bs = shared + 2 * T::PANEL;
        const int row = own_row(), column = own_column();
        acc next_a[EACH], next_b[EACH];
        a.next(next_a);
        b.next(next_b);
        // The last tile of this block may still be leaving shared memory.
        __syncthreads();
        put<SIDE, A::ALONG_SUM>(as, next_a);
        put<SIDE, B::ALONG_SUM>(bs, next_b);
        __syncthreads();
        u32 since = 0;
        for (u64 step = 0; step < steps; step++) {
            const int now = (int)(step & 1);
            const bool more = step + 1 < steps;
            if (more) {
                a.next(next_a);
                b.next(next_b);
            }
            const acc *pa = as + now * T::PANEL + row, *pb = bs + now * T::PANEL + column;
#pragma unroll 8
            for (int k = 0; k < T::DEPTH; k++) {
                acc va[T::OWN], vb[T::OWN];
#pragma unroll
                for (int p = 0; p < T::PARTS; p++) {
                    fetch(pa + k * T::PITCH + p * QUARTER, va + 4 * p);
                    fetch(pb + k * T::PITCH + p * QUARTER, vb + 4 * p);
                }
#pragma unroll
                for (int i = 0; i < T::OWN; i++)
#pragma unroll
                    for (int j = 0; j < T::OWN; j++) sum[i][j] += va[i] * vb[j];
            }
            if (more) {
                put<SIDE, A::ALONG_SUM>(as + (now ^ 1) * T::PANEL, next_a);
                put<SIDE, B::ALONG_SUM>(bs + (now ^ 1) * T::PANEL, next_b);
            }
            __syncthreads();
            if (stretches && ++since == STRETCH) {
                since = 0;
#pragma unroll
                for (int i = 0; i < T::OWN; i++)
#pragma unroll
                    for (int j = 0; j < T::OWN; j++) {
                        kept[none + i * T::OWN + j] += sum[i][j];
                        sum[i][j] = 0;
                    }
            }
        }
        if (stretches) {
#pragma unroll
            for (int i = 0; i < T::OWN; i++)
#pragma unroll
                for (int j = 0; j < T::OWN; j++) sum[i][j] += kept[none + i * T::OWN + j];
        }
    }

    template <class Writer> __device__ __forceinline__ void drain(acc* shared, Writer& writer) {
        const int row = own_row(), column = own_column();
        drain_parts<SIDE>(shared, writer, [&](int p, int q) {
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    shared[(row + i) * (QUARTER + PAD) + column + j] = sum[4 * p + i][4 * q + j];
        });
    }
};
