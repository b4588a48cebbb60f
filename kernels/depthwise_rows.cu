// types: f32 f16 bf16
// Depthwise convolutions of stride and dilation 1 over rows that wide loads can read: each thread has eight
// neighbouring positions, reads what they reach into registers, and meets it with taps that stay there for
// all samples. The same for the gradient for weights, with a sum for each tap. Nothing goes through shared
// memory; what neighbours read twice comes from the cache.
#include "conv.cuh"

// How a pass reads its source. Windows begin at multiples of four in the source: `shift` is how many
// elements before its first tap a window begins.
struct Rows {
    u64 batch;
    // Channels of a result and of its source, and results of each of these.
    u32 channels, sources, multiplier;
    u32 length, source_length;
    // Where the window of position 0 begins.
    i32 offset;
    u32 kernel, shift, reversed;
    // Threads that share a row, a power of two.
    u32 lanes;
    // Each block has a channel, or a pair of channels, and a piece of the samples.
    u32 pieces;
    // Of a gradient for weights: channels of a group, and results of it.
    u32 inputs, outputs;
};

static const int BLOCK = 128, EIGHT = 8;
typedef Pack<scalar, 4> Four;

// Element `at` of a row and the three after it; zeros outside. Rows are multiples of four long.
INLINE void read_four(f32* to, const scalar* row, i32 at, u32 length, bool exists) {
    if (exists && (u32)at < length) {
        const Four values = *(const Four*)(row + at);
#pragma unroll
        for (int i = 0; i < 4; i++) to[i] = widen(values.at[i]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) to[i] = 0;
    }
}

// The stretches of rows that a block goes through.
struct Stretches {
    u32 lane, line, lines, across, stretches;
    u64 first, end;

    __device__ __forceinline__ Stretches(const Rows& g, u64 piece) {
        lane = threadIdx.x & (g.lanes - 1);
        line = threadIdx.x / g.lanes;
        lines = BLOCK / g.lanes;
        across = g.lanes * EIGHT;
        stretches = (g.length + across - 1) / across;
        const u64 passes = ceil_div(g.batch, lines) * stretches, share = ceil_div(passes, g.pieces);
        first = piece * share;
        end = least(first + share, passes);
    }
    // The sample of this thread in a pass, and its first position.
    __device__ __forceinline__ u64 sample(u64 pass, u32& position) const {
        u64 rows, stretch;
        divide(pass, stretches, rows, stretch);
        position = (u32)stretch * across + lane * EIGHT;
        return rows * lines + line;
    }
};

template <int TAPS>
INLINE void convolve(const Rows& g, const scalar* source, const scalar* w, const scalar* bias, scalar* out) {
    for (u64 turn = blockIdx.x; turn < (u64)g.channels * g.pieces; turn += gridDim.x) {
        u64 piece, channel;
        divide(turn, g.channels, piece, channel);
        const u32 from = (u32)channel / g.multiplier;
        f32 taps[TAPS];
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
            const u32 tap = k - g.shift;
            const u32 at = g.reversed ? g.kernel - 1 - tap : tap;
            taps[k] = tap < g.kernel ? widen(w[channel * g.kernel + at]) : 0.0f;
        }
        const f32 extra = bias ? widen(bias[channel]) : 0.0f;
        const Stretches stretches(g, piece);
        for (u64 pass = stretches.first; pass < stretches.end; pass++) {
            u32 l;
            const u64 n = stretches.sample(pass, l);
            const bool exists = n < g.batch && l < g.length;
            const scalar* row = source + (n * g.sources + from) * g.source_length;
            f32 window[EIGHT + TAPS];
#pragma unroll
            for (int i = 0; i < EIGHT + TAPS; i += 4)
                read_four(window + i, row, (i32)l + g.offset + i, g.source_length, exists);
            f32 sum[EIGHT];
#pragma unroll
            for (int i = 0; i < EIGHT; i++) sum[i] = extra;
            // Taps that there are not must not meet what is not finite. Kernels of half as many have fewer.
#pragma unroll
            for (int k = 0; k < TAPS; k++)
                if ((k >= 3 && k < TAPS / 2) || k - g.shift < g.kernel) {
#pragma unroll
                    for (int i = 0; i < EIGHT; i++) sum[i] += taps[k] * window[i + k];
                }
            scalar* to = out + (n * g.channels + channel) * g.length;
            if (sizeof(scalar) == 4) {
                // Two threads write the halves of 32 bytes at once: sectors are whole.
                const bool odd = threadIdx.x & 1;
                Four mine, other;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const f32 given = __shfl_xor_sync(0xffffffffu, odd ? sum[i] : sum[4 + i], 1);
                    mine.at[i] = narrow<scalar>(odd ? given : sum[i]);
                    other.at[i] = narrow<scalar>(odd ? sum[4 + i] : given);
                }
                const u32 first = odd ? l - 4 : l, second = odd ? l + 4 : l + EIGHT;
                if (n < g.batch && first < g.length) *(Four*)(to + first) = mine;
                if (n < g.batch && second < g.length) *(Four*)(to + second) = other;
            } else {
                Pack<scalar, EIGHT> all;
#pragma unroll
                for (int i = 0; i < EIGHT; i++) all.at[i] = narrow<scalar>(sum[i]);
                if (exists && g.length % EIGHT == 0) {
                    *(Pack<scalar, EIGHT>*)(to + l) = all;
                } else if (exists) {
#pragma unroll
                    for (int i = 0; i < EIGHT; i += 4) {
                        const Four four = {{all.at[i], all.at[i + 1], all.at[i + 2], all.at[i + 3]}};
                        if (l + i < g.length) *(Four*)(to + l + i) = four;
                    }
                }
            }
        }
    }
}

// `out` has a sum for each tap of each pair of channels; with pieces, `partial` has them of each.
template <int TAPS>
INLINE void correlate(const Rows& g, const scalar* x, const scalar* dy, scalar* out, f32* partial) {
    // Each thread's sums in turn; the odd pitch keeps threads in different banks.
    __shared__ f32 sums[BLOCK * (TAPS + 1)];
    f32* own = sums + threadIdx.x * (TAPS + 1);
    const u64 pairs = (u64)g.channels * g.inputs;
    for (u64 turn = blockIdx.x; turn < pairs * g.pieces; turn += gridDim.x) {
        u64 piece, pair, o, c;
        divide(turn, pairs, piece, pair);
        divide(pair, g.inputs, o, c);
        const u32 from = (u32)o / g.outputs * g.inputs + (u32)c;
        f32 sum[TAPS];
#pragma unroll
        for (int k = 0; k < TAPS; k++) sum[k] = own[k] = 0;
        u32 since = 0;
        const Stretches stretches(g, piece);
        for (u64 pass = stretches.first; pass < stretches.end; pass++) {
            u32 l;
            const u64 n = stretches.sample(pass, l);
            const bool exists = n < g.batch && l < g.length;
            const scalar* row = x + (n * g.sources + from) * g.source_length;
            const scalar* gradient = dy + (n * g.channels + o) * g.length;
            f32 d[EIGHT], window[EIGHT + TAPS];
#pragma unroll
            for (int i = 0; i < EIGHT; i += 4) read_four(d + i, gradient, (i32)l + i, g.length, exists);
#pragma unroll
            for (int i = 0; i < EIGHT + TAPS; i += 4)
                read_four(window + i, row, (i32)l + g.offset + i, g.source_length, exists);
            // Nor must positions.
            const bool both = l + 4 < g.length;
#pragma unroll
            for (int k = 0; k < TAPS; k++)
#pragma unroll
                for (int i = 0; i < EIGHT; i++)
                    if (i < 4 || both) sum[k] += d[i] * window[i + k];
            // Stretches of 256 terms are added up apart, so that rounding errors stay small.
            if (++since == 32) {
                since = 0;
#pragma unroll
                for (int k = 0; k < TAPS; k++) {
                    own[k] += sum[k];
                    sum[k] = 0;
                }
            }
        }
#pragma unroll
        for (int k = 0; k < TAPS; k++) own[k] += sum[k];
        __syncthreads();
        const u32 lane = threadIdx.x & 31;
        for (u32 k = threadIdx.x >> 5; k < g.kernel; k += BLOCK / 32) {
            f32 total = 0;
#pragma unroll
            for (int i = 0; i < BLOCK; i += 32) total += sums[(lane + i) * (TAPS + 1) + k + g.shift];
            total = warp_sum(total);
            const u64 to = pair * g.kernel + k;
            if (lane > 0) continue;
            if (partial) {
                partial[piece * pairs * g.kernel + to] = total;
            } else {
                out[to] = narrow<scalar>(total);
            }
        }
        __syncthreads();
    }
}

// Blocks that a multiprocessor should hold: they hide the time that memory takes.
#define RESIDENT(TAPS) (TAPS > 32 ? 2 : TAPS > 16 ? 4 : 6)
#define ROWS(TAPS)                                                                                 \
    KERNEL __launch_bounds__(128, RESIDENT(TAPS)) rows_convolve_##TAPS(                            \
        const Rows g, const scalar* source, const scalar* w, const scalar* bias, scalar* out) {    \
        convolve<TAPS>(g, source, w, bias, out);                                                   \
    }                                                                                              \
    KERNEL __launch_bounds__(128, RESIDENT(TAPS)) rows_correlate_##TAPS(                           \
        const Rows g, const scalar* x, const scalar* dy, scalar* out, f32* partial) {              \
        correlate<TAPS>(g, x, dy, out, partial);                                                   \
    }

ROWS(4)
ROWS(8)
ROWS(16)
ROWS(32)
ROWS(48)
