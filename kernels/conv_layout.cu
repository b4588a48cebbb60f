// types: f32 f64 f16 bf16
// Other layouts of signals and weights, for libraries that want them: channels last instead of
// first, and padding that the library cannot add itself; and the bias, which goes in with the
// last pass over a result where there is one.
#include "conv.cuh"

// `to[n, p, q] = from[n, q + q_shift, p + p_shift] + bias[p]`, zero for what lies outside. Both
// sides are dense; `to` is [batch, p_length, q_length], `from` [batch, from_q, from_p].
struct Transpose {
    u64 batch, p_length, q_length, from_p, from_q;
    i64 p_shift, q_shift;
};

// Tiles of 2^wide_p x 2^wide_q elements, 1024 in all, pass through shared memory, so that either
// side is accessed along its contiguous axis.
KERNEL __launch_bounds__(256) transpose(const Transpose t, const scalar* from, scalar* to,
                                        const scalar* bias, u32 wide_p, u32 wide_q) {
    // Rows longer by one against bank conflicts; at most 1024 rows.
    __shared__ scalar tile[2048];
    const u32 mask_p = (1u << wide_p) - 1, mask_q = (1u << wide_q) - 1, pitch = (1u << wide_p) + 1;
    const u64 tiles_p = ceil_div(t.p_length, mask_p + 1);
    const u64 tiles_q = ceil_div(t.q_length, mask_q + 1);
    for (u64 turn = blockIdx.x; turn < tiles_p * tiles_q * t.batch; turn += gridDim.x) {
        u64 rest, n, first_p, first_q;
        divide(turn, tiles_q, rest, first_q);
        divide(rest, tiles_p, n, first_p);
        first_p <<= wide_p;
        first_q <<= wide_q;
        const scalar* source = from + n * t.from_p * t.from_q;
        scalar* target = to + n * t.p_length * t.q_length;
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < 1024; i += 256) {
            u32 at = i + threadIdx.x, p = at & mask_p, q = at >> wide_p;
            u64 from_p = first_p + p + t.p_shift, from_q = first_q + q + t.q_shift;
            bool inside = from_p < t.from_p && from_q < t.from_q;
            scalar value = narrow<scalar>(acc(0));
            if (inside) value = source[from_q * t.from_p + from_p];
            tile[q * pitch + p] = value;
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < 1024; i += 256) {
            u32 at = i + threadIdx.x, q = at & mask_q, p = at >> wide_q;
            u64 to_p = first_p + p, to_q = first_q + q;
            if (to_p < t.p_length && to_q < t.q_length) {
                scalar value = tile[q * pitch + p];
                if (bias) value = plus(value, widen(bias[to_p]));
                target[to_p * t.q_length + to_q] = value;
            }
        }
    }
}

// `to[row, l] = from[row, l + shift]`, zero for what lies outside.
KERNEL __launch_bounds__(256) pad_rows(const scalar* from, scalar* to, u64 rows, u64 length,
                                       u64 from_length, i64 shift) {
    const u64 all = rows * length;
#pragma unroll 4
    for (u64 i = thread_index(); i < all; i += thread_count()) {
        u64 row, l;
        divide(i, length, row, l);
        u64 at = l + shift;
        to[i] = at < from_length ? from[row * from_length + at] : narrow<scalar>(acc(0));
    }
}

// ---- y[n, c, l] += bias[c]

typedef Wide<scalar>::type wide;

template <class T>
INLINE void biased(T* y, const scalar* bias, u64 rows, u64 channels, u64 length) {
    const u64 all = rows * length;
#pragma unroll 2
    for (u64 i = thread_index(); i < all; i += thread_count()) {
        u64 row, unused, c;
        divide(i, length, row, unused);
        divide(row, channels, unused, c);
        y[i] = plus(y[i], widen(bias[c]));
    }
}

KERNEL add_bias(scalar* y, const scalar* bias, u64 rows, u64 channels, u64 length) {
    biased(y, bias, rows, channels, length);
}
KERNEL add_bias_wide(wide* y, const scalar* bias, u64 rows, u64 channels, u64 length) {
    biased(y, bias, rows, channels, length);
}
