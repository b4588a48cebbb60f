// types: f32 f64 f16 bf16 i32 i64
// The index of the largest element along an axis: the first of equals, and NaN above every number.
#include "capgrad.cuh"

struct Best {
    acc value;
    i64 at;
};

INLINE Best none() {
    Best best = {acc(0), -1};
    return best;
}

// Whether `a` comes before `b`. The one without a position is what nothing has been compared with.
INLINE bool beats(const Best& a, const Best& b) {
    if (a.at < 0 || b.at < 0) return b.at < 0 && a.at >= 0;
    bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan || b_nan) return a_nan && (!b_nan || a.at < b.at);
    return a.value > b.value || (a.value == b.value && a.at < b.at);
}

// Takes elements in the order of their positions, so that the first of equals stays.
INLINE void offer(Best& best, acc value, i64 at) {
    if (value > best.value || best.at < 0 || (value != value && best.value == best.value)) {
        best.value = value;
        best.at = at;
    }
}

INLINE Best shuffled(const Best& best, u32 offset) {
    Best other = {__shfl_xor_sync(0xffffffffu, best.value, offset),
                  __shfl_xor_sync(0xffffffffu, best.at, offset)};
    return other;
}

INLINE Best group_best(Best best, u32 lanes) {
    for (u32 offset = lanes >> 1; offset > 0; offset >>= 1) {
        Best other = shuffled(best, offset);
        if (beats(other, best)) best = other;
    }
    return best;
}

INLINE Best row_best(const scalar* x, u64 n, u32 lane, u32 lanes) {
    Best best = none();
#pragma unroll 4
    for (u64 i = lane; i < n; i += lanes) offer(best, widen(x[i]), (i64)i);
    return best;
}

// A row for `lanes` (a power of two) neighbours within a warp.
KERNEL argmax_short(const scalar* x, i64* out, u64 rows, u64 n, u32 lanes) {
    u32 lane = threadIdx.x & (lanes - 1), shift = __ffs(lanes) - 1;
    u64 own = (threadIdx.x & 31) >> shift, groups = thread_count() >> shift;
    for (u64 first = (thread_index() & ~31ull) >> shift; first < rows; first += groups) {
        u64 row = first + own;
        Best best = row_best(x + row * n, row < rows ? n : 0, lane, lanes);
        best = group_best(best, lanes);
        if (row < rows && lane == 0) out[row] = best.at;
    }
}

// The best of the block's, in thread 0.
INLINE Best block_best(Best best) {
    __shared__ Best parts[32];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    best = group_best(best, 32);
    __syncthreads();
    if (lane == 0) parts[warp] = best;
    __syncthreads();
    return warp == 0 ? group_best(lane < warps ? parts[lane] : none(), 32) : none();
}

// A row for a block, or a piece of it: with one piece the result is written, else the best of every
// piece.
KERNEL argmax_long(const scalar* x, i64* out, u64 rows, u64 n, u64 pieces, Best* partials) {
    u64 length = (n + pieces - 1) / pieces;
    for (u64 item = blockIdx.x; item < rows * pieces; item += gridDim.x) {
        u64 row = item / pieces, start = (item - row * pieces) * length;
        u64 count = start >= n ? 0 : n - start < length ? n - start : length;
        Best best = row_best(x + row * n + start, count, threadIdx.x, blockDim.x);
        if (best.at >= 0) best.at += start;
        best = block_best(best);
        if (threadIdx.x == 0) {
            if (pieces == 1)
                out[row] = best.at;
            else
                partials[item] = best;
        }
    }
}

KERNEL argmax_finish(const Best* partials, i64* out, u64 rows, u64 pieces) {
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        Best best = none();
        for (u64 i = threadIdx.x; i < pieces; i += blockDim.x) {
            Best other = partials[row * pieces + i];
            if (beats(other, best)) best = other;
        }
        best = block_best(best);
        if (threadIdx.x == 0) out[row] = best.at;
    }
}

static const u32 THREADS = 256;

// `width` columns side by side in a block, each walked down by the threads that are left.
KERNEL __launch_bounds__(THREADS)
argmax_columns(const scalar* x, i64* out, u64 outer, u64 n, u64 inner, u32 width) {
    __shared__ Best bests[THREADS];
    u32 own = threadIdx.x % width, part = threadIdx.x / width, parts = THREADS / width;
    u64 columns = outer * inner;
    for (u64 tile = blockIdx.x; tile * width < columns; tile += gridDim.x) {
        u64 column = tile * width + own;
        Best best = none();
        if (column < columns) {
            u64 row = column / inner;
            const scalar* from = x + row * n * inner + (column - row * inner);
#pragma unroll 4
            for (u64 i = part; i < n; i += parts) offer(best, widen(from[i * inner]), (i64)i);
        }
        __syncthreads();
        bests[threadIdx.x] = best;
        __syncthreads();
        if (part == 0 && column < columns) {
            for (u32 k = 1; k < parts; ++k)
                if (beats(bests[k * width + own], best)) best = bests[k * width + own];
            out[column] = best.at;
        }
    }
}
