// types: f32 f64 f16 bf16
// What turns convolutions into matrix products: the input unfolded into columns, its adjoint,
// and the exchange of samples and channels, by which short samples become long rows. Results of
// the products get their bias here too, while they are moved.
#include "conv.cuh"

// Where columns lie: row (c, k) begins at `(c·kernel + k)·row_step`, and sample n in it at
// `n·sample_step`. `samples` of the batch are held; `x` and `dx` begin with the first of them.
struct Columns {
    u64 samples, sample_step, row_step;
};

static const int EACH_POSITION = 4;

// Each turn of a block is one row of columns and some positions (n, l). Rows come first, so that
// blocks that run together read the same input.
KERNEL unfold(const Geometry g, const Columns held, const scalar* x, scalar* columns) {
    const u64 positions = held.samples * g.out_length, rows = g.in_channels * g.kernel;
    const u64 stretch = (u64)blockDim.x * EACH_POSITION;
    const u64 turns = rows * ceil_div(positions, stretch);
    for (u64 turn = blockIdx.x; turn < turns; turn += gridDim.x) {
        u64 first, row, c, k;
        divide(turn, rows, first, row);
        divide(row, g.kernel, c, k);
        const i64 offset = (i64)(k * g.dilation) - (i64)g.pad_left;
        const scalar* from = x + c * g.in_length;
        scalar* to = columns + row * held.row_step;
        first = first * stretch + threadIdx.x;
        scalar values[EACH_POSITION];
        u64 targets[EACH_POSITION];
#pragma unroll
        for (int i = 0; i < EACH_POSITION; i++) {
            u64 at = first + i * blockDim.x, n, l;
            divide(at, g.out_length, n, l);
            i64 position = (i64)(l * g.stride) + offset;
            values[i] = narrow<scalar>(acc(0));
            targets[i] = n * held.sample_step + l;
            if (at < positions && (u64)position < g.in_length)
                values[i] = from[n * g.in_channels * g.in_length + position];
        }
#pragma unroll
        for (int i = 0; i < EACH_POSITION; i++)
            if (first + i * blockDim.x < positions) to[targets[i]] = values[i];
    }
}

// The adjoint: each element of `dx` gathers what was made from it.
KERNEL fold(const Geometry g, const Columns held, const scalar* columns, scalar* dx) {
    const u64 positions = held.samples * g.in_length;
    const u64 turns = g.in_channels * ceil_div(positions, blockDim.x);
    for (u64 turn = blockIdx.x; turn < turns; turn += gridDim.x) {
        u64 at, c, n, l;
        divide(turn, g.in_channels, at, c);
        at = at * blockDim.x + threadIdx.x;
        if (at >= positions) continue;
        divide(at, g.in_length, n, l);
        const scalar* from = columns + c * g.kernel * held.row_step + n * held.sample_step;
        u64 tap = first_tap(g, l);
        i64 position = tap < g.kernel ? first_output(g, l, tap) : 0;
        acc sum = 0;
#pragma unroll 4
        for (; tap < g.kernel; tap += g.period) {
            if ((u64)position < g.out_length) sum += widen(from[tap * held.row_step + position]);
            position -= (i64)g.shift;
        }
        dx[(n * g.in_channels + c) * g.in_length + l] = narrow<scalar>(sum);
    }
}

// ---- exchange of the two outer axes: `to[b, a, l] = from[a, b, l] + bias[a]`, in elements or
// packs of them; rows of `from` for one `a` are `from_step` apart, those of `to` for one `b`
// `to_step`.

struct Exchange {
    u64 a, b, length, from_step, to_step;
};

// Long rows: dense accesses either way.
template <class T>
INLINE void exchange(const Exchange& e, const T* from, T* to, const scalar* bias) {
    const u64 across = e.a * e.length, stretch = (u64)blockDim.x * EACH_POSITION;
    const u64 turns = e.b * ceil_div(across, stretch);
    for (u64 turn = blockIdx.x; turn < turns; turn += gridDim.x) {
        u64 first, b;
        divide(turn, e.b, first, b);
        first = first * stretch + threadIdx.x;
        T values[EACH_POSITION];
#pragma unroll
        for (int i = 0; i < EACH_POSITION; i++) {
            u64 at = first + i * blockDim.x, a, l;
            if (at >= across) break;
            divide(at, e.length, a, l);
            values[i] = from[a * e.from_step + b * e.length + l];
            if (bias) values[i] = plus(values[i], widen(bias[a]));
        }
#pragma unroll
        for (int i = 0; i < EACH_POSITION; i++) {
            u64 at = first + i * blockDim.x;
            if (at < across) to[b * e.to_step + at] = values[i];
        }
    }
}

// Short rows: 2^wide_a x 2^wide_b rows of at most 32 elements pass through shared memory, so that
// both sides see runs of many rows.
template <class T>
INLINE void exchange_short(const Exchange& e, const T* from, T* to, const scalar* bias, u32 wide_a,
                           u32 wide_b) {
    __shared__ T tile[16384 / sizeof(T)];
    const u32 length = (u32)e.length;
    const u64 tiles_a = ceil_div(e.a, 1u << wide_a), tiles_b = ceil_div(e.b, 1u << wide_b);
    for (u64 turn = blockIdx.x; turn < tiles_a * tiles_b; turn += gridDim.x) {
        u64 first_a, first_b;
        divide(turn, tiles_b, first_a, first_b);
        first_a <<= wide_a;
        first_b <<= wide_b;
        const u32 as = (u32)least(1u << wide_a, e.a - first_a);
        const u32 bs = (u32)least(1u << wide_b, e.b - first_b);
        const u32 row_in = bs * length, row_out = as * length, count = as * row_in;
        // Odd, against bank conflicts.
        const u32 pitch = row_in | 1;
        const T* source = from + first_a * e.from_step + first_b * e.length;
        T* target = to + first_b * e.to_step + first_a * e.length;
        __syncthreads();
#pragma unroll 4
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            u32 a = i / row_in;
            u32 rest = i - a * row_in;
            tile[a * pitch + rest] = source[a * e.from_step + rest];
        }
        __syncthreads();
#pragma unroll 4
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            u32 b = i / row_out, rest = i - b * row_out, a = rest / length;
            T value = tile[a * pitch + b * length + (rest - a * length)];
            if (bias) value = plus(value, widen(bias[first_a + a]));
            target[b * e.to_step + rest] = value;
        }
    }
}

typedef Wide<scalar>::type wide;

KERNEL exchange_rows(const Exchange e, const scalar* from, scalar* to, const scalar* bias) {
    exchange(e, from, to, bias);
}
KERNEL exchange_rows_wide(const Exchange e, const wide* from, wide* to, const scalar* bias) {
    exchange(e, from, to, bias);
}
KERNEL exchange_short_rows(const Exchange e, const scalar* from, scalar* to, const scalar* bias,
                           u32 wide_a, u32 wide_b) {
    exchange_short(e, from, to, bias, wide_a, wide_b);
}
KERNEL exchange_short_rows_wide(const Exchange e, const wide* from, wide* to, const scalar* bias,
                                u32 wide_a, u32 wide_b) {
    exchange_short(e, from, to, bias, wide_a, wide_b);
}
