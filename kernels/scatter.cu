// types: f32 f64 f16 bf16
// Adding at indices along an axis. A line is what lies along the axis; nothing is added from two
// sides, and the terms of a sum keep an order that the launch alone decides.
#include "capgrad.cuh"

// The extents: `n` elements along the axis of the result, `m` along that of the index, which is i64
// where it is wide.
struct Lines {
    u64 outer, n, m, inner, index;
    u64 wide;

    __device__ __forceinline__ u64 target(u64 at) const {
        return wide ? (u64) reinterpret_cast<const i64*>(index)[at]
                    : (u64) reinterpret_cast<const u32*>(index)[at];
    }
    // Where a line begins among the terms and in the result.
    __device__ __forceinline__ void begin(u64 line, u64& from, u64& to) const {
        u64 row = ((line | inner) >> 32) == 0 ? (u64)((u32)line / (u32)inner) : line / inner;
        u64 column = line - row * inner;
        from = row * m * inner + column;
        to = row * n * inner + column;
    }
};

// A thread a line of few terms; the result is zero before. The first of the terms for a target adds
// up all of them.
KERNEL scatter_few(Lines l, const scalar* dy, scalar* out) {
    for (u64 line = thread_index(); line < l.outer * l.inner; line += thread_count()) {
        u64 from, to;
        l.begin(line, from, to);
        for (u64 j = 0; j < l.m; ++j) {
            u64 target = l.target(from + j * l.inner);
            bool done = false;
            for (u64 k = 0; k < j && !done; ++k) done = l.target(from + k * l.inner) == target;
            if (done) continue;
            acc sum = widen(dy[from + j * l.inner]);
            for (u64 k = j + 1; k < l.m; ++k)
                if (l.target(from + k * l.inner) == target) sum += widen(dy[from + k * l.inner]);
            out[to + target * l.inner] = narrow<scalar>(sum);
        }
    }
}

// A thread a line, in place; the result is zero before. For types that sums can be kept in.
KERNEL scatter_in_place(Lines l, const scalar* dy, scalar* out) {
    for (u64 line = thread_index(); line < l.outer * l.inner; line += thread_count()) {
        u64 from, to;
        l.begin(line, from, to);
#pragma unroll 4
        for (u64 j = 0; j < l.m; ++j) {
            scalar* sum = out + to + l.target(from + j * l.inner) * l.inner;
            *sum = narrow<scalar>(widen(*sum) + widen(dy[from + j * l.inner]));
        }
    }
}

static const u32 THREADS = 256;
static const int STEPS = 4;

// A block owns `height` targets of `width` lines: its threads go through all terms of the lines,
// several to a line, each with sums of its own, which are then added up.
KERNEL __launch_bounds__(THREADS)
scatter_owned(Lines l, const scalar* dy, scalar* out, u32 width, u32 height) {
    extern __shared__ f64 sums[];
    u32 parts = THREADS / width;
    // Neighbours in memory go to neighbours among the threads.
    bool along = l.inner == 1;
    u32 own = along ? threadIdx.x / parts : threadIdx.x % width;
    u32 part = along ? threadIdx.x % parts : threadIdx.x / width;
    u64 lines = l.outer * l.inner;
    u64 tiles = (lines + width - 1) / width, bands = (l.n + height - 1) / height;
    for (u64 item = blockIdx.x; item < tiles * bands; item += gridDim.x) {
        u64 band = item / tiles, first = (item - band * tiles) * width, low = band * height;
        __syncthreads();
        for (u32 h = 0; h < height; ++h) sums[h * THREADS + threadIdx.x] = 0;
        if (first + own < lines) {
            u64 from, to;
            l.begin(first + own, from, to);
            for (u64 j = part; j < l.m; j += parts * STEPS) {
                u64 targets[STEPS];
#pragma unroll
                for (int k = 0; k < STEPS; ++k) {
                    u64 at = j + k * parts;
                    targets[k] = at < l.m ? l.target(from + at * l.inner) - low : height;
                }
#pragma unroll
                for (int k = 0; k < STEPS; ++k) {
                    if (targets[k] >= height) continue;
                    f64 value = (f64)widen(dy[from + (j + k * parts) * l.inner]);
                    sums[(u32)targets[k] * THREADS + threadIdx.x] += value;
                }
            }
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < width * height; i += THREADS) {
            u32 h = i / width, line = i - h * width;
            if (first + line >= lines || low + h >= l.n) continue;
            f64 sum = 0;
            for (u32 k = 0; k < parts; ++k)
                sum += sums[h * THREADS + (along ? line * parts + k : k * width + line)];
            u64 from, to;
            l.begin(first + line, from, to);
            out[to + (low + h) * l.inner] = narrow<scalar>(sum);
        }
    }
}
