// types: f32 f64 f16 bf16
// Convolutions with few channels a group, first of all depthwise ones. They are bound by memory:
// each row is read once into shared memory or through the cache, and written once. Stride 1
// slides a window of registers along the row; what else there is reads through the cache. The
// gradient for the weights takes a block for each pair of an output and an input channel, and
// serves any number of groups.
#include "conv.cuh"

extern __shared__ Pack<u8, 16> dynamic_shared[];

// Output positions of one thread.
static const int QUAD = 4;

// Stride 1, dilation 1. `lanes` threads (a power of two) share a row and have 4·lanes positions of
// it at a time; a block has 256/lanes rows. In the forward pass row (n, o) of the result comes
// from row (n, o / m) of the input; as a gradient row (n, c) comes from rows (n, c·m + q) of `dy`
// with the taps in reverse, so that both are sums over taps going up.
template <bool GRADIENT>
INLINE void slide(const Geometry& g, const scalar* source, const scalar* w, const scalar* bias,
                  scalar* out, u32 lanes) {
    const u32 kernel = (u32)g.kernel, across = lanes * QUAD, per_block = THREADS / lanes;
    // A row with what its last thread reaches, in whole quads; and the taps, with a quad of zeros
    // before and at least three zeros after them.
    const u32 width = across + (kernel + 6) / QUAD * QUAD, taps = (kernel + 6) / QUAD * QUAD + QUAD;
    const u32 lane = threadIdx.x % lanes, line = threadIdx.x / lanes;
    acc* row = (acc*)dynamic_shared + line * (width + taps);
    acc* weights = row + width;
    const u64 multiplier = g.out_channels / g.groups;
    const u64 channels = GRADIENT ? g.in_channels : g.out_channels;
    const u64 source_channels = GRADIENT ? g.out_channels : g.in_channels;
    const u64 length = GRADIENT ? g.in_length : g.out_length;
    const u64 source_length = GRADIENT ? g.out_length : g.in_length;
    const u64 sources = GRADIENT ? multiplier : 1;
    const i64 offset = GRADIENT ? (i64)g.pad_left - (i64)(g.kernel - 1) : -(i64)g.pad_left;
    const u64 rows = g.batch * channels, stretches = ceil_div(length, across);
    const u64 turns = ceil_div(rows, per_block) * stretches;
    for (u64 turn = blockIdx.x; turn < turns; turn += gridDim.x) {
        u64 first, stretch, n, channel;
        divide(turn, stretches, first, stretch);
        const u64 at = first * per_block + line, begin = stretch * across;
        const bool exists = at < rows;
        divide(exists ? at : 0, channels, n, channel);
        acc sum[QUAD] = {0, 0, 0, 0};
        for (u64 q = 0; q < sources; q++) {
            u64 from, unused;
            if (GRADIENT) {
                from = channel * multiplier + q;
            } else {
                divide(channel, multiplier, from, unused);
            }
            const scalar* x = source + (n * source_channels + from) * source_length;
            const scalar* taps_of = w + (GRADIENT ? from : channel) * g.kernel;
            __syncthreads();
            const i64 start = (i64)begin + offset;
#pragma unroll 4
            for (u32 i = lane; i < width; i += lanes) {
                i64 position = start + i;
                bool inside = exists && (u64)position < source_length;
                row[i] = inside ? widen(x[position]) : acc(0);
            }
            for (u32 i = lane; i < taps; i += lanes) {
                u32 tap = i - QUAD;
                bool inside = i >= QUAD && tap < kernel;
                weights[i] = inside ? widen(taps_of[GRADIENT ? kernel - 1 - tap : tap]) : acc(0);
            }
            __syncthreads();
            // Element e of quad p of the window meets position r by tap 4·p + e - r.
            acc low[QUAD], high[QUAD], window[QUAD];
            fetch(weights, low);
            for (u32 p = 0; p * QUAD < kernel + QUAD - 1; p++) {
                fetch(weights + (p + 1) * QUAD, high);
                fetch(row + (lane + p) * QUAD, window);
                auto meet = [&](bool all) {
#pragma unroll
                    for (int e = 0; e < QUAD; e++)
#pragma unroll
                        for (int r = 0; r < QUAD; r++)
                            if (all || p * QUAD + e - r < kernel)
                                sum[r] += window[e] * (e >= r ? high[e - r] : low[QUAD + e - r]);
                };
                // Taps that there are not must not meet what is not finite.
                if (p > 0 && (p + 1) * QUAD <= kernel) {
                    meet(true);
                } else {
                    meet(false);
                }
#pragma unroll
                for (int e = 0; e < QUAD; e++) low[e] = high[e];
            }
        }
        acc extra = bias && exists ? widen(bias[channel]) : acc(0);
        __syncthreads();
#pragma unroll
        for (int r = 0; r < QUAD; r++) row[lane * QUAD + r] = sum[r] + extra;
        __syncthreads();
        if (exists) {
            scalar* to = out + at * length + begin;
            const u32 count = (u32)least(across, length - begin);
            for (u32 i = lane; i < count; i += lanes) to[i] = narrow<scalar>(row[i]);
        }
    }
}

KERNEL __launch_bounds__(256) depthwise_slide(const Geometry g, const scalar* x, const scalar* w,
                                              const scalar* bias, scalar* y, u32 lanes) {
    slide<false>(g, x, w, bias, y, lanes);
}
KERNEL __launch_bounds__(256) depthwise_slide_gradient(const Geometry g, const scalar* dy,
                                                       const scalar* w, scalar* dx, u32 lanes) {
    slide<true>(g, dy, w, 0, dx, lanes);
}

// Any stride and dilation.
KERNEL __launch_bounds__(256) depthwise_forward(const Geometry g, const scalar* x, const scalar* w,
                                                const scalar* bias, scalar* y) {
    const u64 multiplier = g.out_channels / g.groups;
    const u64 all = g.batch * g.out_channels * g.out_length;
    for (u64 i = thread_index(); i < all; i += thread_count()) {
        u64 row, l, n, o, c, unused;
        divide(i, g.out_length, row, l);
        divide(row, g.out_channels, n, o);
        divide(o, multiplier, c, unused);
        const scalar* from = x + (n * g.in_channels + c) * g.in_length;
        const scalar* taps = w + o * g.kernel;
        i64 at = (i64)(l * g.stride) - (i64)g.pad_left;
        acc sum = 0;
#pragma unroll 4
        for (u64 k = 0; k < g.kernel; k++) {
            if ((u64)at < g.in_length) sum += widen(from[at]) * widen(taps[k]);
            at += (i64)g.dilation;
        }
        if (bias) sum += widen(bias[o]);
        y[i] = narrow<scalar>(sum);
    }
}

KERNEL __launch_bounds__(256) depthwise_gradient(const Geometry g, const scalar* dy,
                                                 const scalar* w, scalar* dx) {
    const u64 multiplier = g.out_channels / g.groups;
    const u64 all = g.batch * g.in_channels * g.in_length;
    for (u64 i = thread_index(); i < all; i += thread_count()) {
        u64 row, l, n, c;
        divide(i, g.in_length, row, l);
        divide(row, g.in_channels, n, c);
        const u64 first = first_tap(g, l);
        const i64 start = first < g.kernel ? first_output(g, l, first) : 0;
        acc sum = 0;
        for (u64 q = 0; q < multiplier; q++) {
            const u64 o = c * multiplier + q;
            const scalar* from = dy + (n * g.out_channels + o) * g.out_length;
            const scalar* taps = w + o * g.kernel;
            i64 at = start;
#pragma unroll 4
            for (u64 k = first; k < g.kernel; k += g.period) {
                if ((u64)at < g.out_length) sum += widen(from[at]) * widen(taps[k]);
                at -= (i64)g.shift;
            }
        }
        dx[i] = narrow<scalar>(sum);
    }
}

// For each (output channel o, channel c of its group) and TAPS taps at a time, a block sums over a
// share of (n, l). `partial` holds `splits` results; null where there is one split.
template <int TAPS>
INLINE void pair_gradient(const Geometry& g, const scalar* x, const scalar* dy, scalar* out,
                          acc* partial, u64 splits) {
    const u64 channels = g.in_channels / g.groups, outputs = g.out_channels / g.groups;
    const u64 pieces = ceil_div(g.kernel, TAPS), pairs = g.out_channels * channels;
    const u64 terms = g.batch * g.out_length, share = ceil_div(terms, splits);
    u64 n_step, l_step;
    divide(THREADS, g.out_length, n_step, l_step);
    for (u64 turn = blockIdx.x; turn < pairs * pieces * splits; turn += gridDim.x) {
        u64 rest, piece, pair, split, o, c, group, unused, n, l;
        divide(turn, pieces, rest, piece);
        divide(rest, pairs, split, pair);
        divide(pair, channels, o, c);
        divide(o, outputs, group, unused);
        const u64 first_k = piece * TAPS, end = least((split + 1) * share, terms);
        const int taps = (int)least(TAPS, g.kernel - first_k);
        u64 term = split * share + threadIdx.x;
        divide(term, g.out_length, n, l);
        const scalar* dy_at = dy + (n * g.out_channels + o) * g.out_length;
        const scalar* x_at = x + (n * g.in_channels + group * channels + c) * g.in_length;
        const i64 offset = (i64)(first_k * g.dilation) - (i64)g.pad_left;
        acc sum[TAPS];
        // Where a stretch of 256 terms a thread goes, so that rounding errors stay small.
        acc kept[TAPS];
#pragma unroll
        for (int k = 0; k < TAPS; k++) sum[k] = kept[k] = 0;
        u32 since = 0;
        for (; term < end; term += THREADS) {
            const acc d = widen(dy_at[l]);
            i64 at = (i64)(l * g.stride) + offset;
#pragma unroll
            for (int k = 0; k < TAPS; k++) {
                if (k < taps && (u64)at < g.in_length) sum[k] += d * widen(x_at[at]);
                at += (i64)g.dilation;
            }
            l += l_step;
            u64 samples = n_step;
            if (l >= g.out_length) {
                l -= g.out_length;
                samples++;
            }
            if (samples) {
                dy_at += samples * g.out_channels * g.out_length;
                x_at += samples * g.in_channels * g.in_length;
            }
            if (++since == 256) {
                since = 0;
#pragma unroll
                for (int k = 0; k < TAPS; k++) {
                    kept[k] += sum[k];
                    sum[k] = 0;
                }
            }
        }
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
            acc total = block_sum(sum[k] + kept[k]);
            if (threadIdx.x == 0 && k < taps) {
                u64 to = pair * g.kernel + first_k + k;
                if (partial) {
                    partial[split * pairs * g.kernel + to] = total;
                } else {
                    out[to] = narrow<scalar>(total);
                }
            }
        }
    }
}

#define PAIRS(NAME, TAPS)                                                                          \
    KERNEL __launch_bounds__(256) depthwise_weight_##NAME(                                         \
        const Geometry g, const scalar* x, const scalar* dy, scalar* out, acc* partial,            \
        u64 splits) {                                                                              \
        pair_gradient<TAPS>(g, x, dy, out, partial, splits);                                       \
    }

PAIRS(1, 1)
PAIRS(4, 4)
PAIRS(8, 8)
PAIRS(16, 16)
PAIRS(32, 32)

// The same with stride 1, dilation 1 and at most TAPS taps. `lanes` threads (a power of two) share a row and
// have EIGHT neighbouring positions each, so that they read TAPS + 7 numbers for 8·TAPS products; a block
// has 256/lanes rows at a time.
template <int TAPS>
INLINE void slide_weight(const Geometry& g, const scalar* x, const scalar* dy, scalar* out, acc* partial,
                         u64 splits, u32 lanes) {
    const int EIGHT = 8, VECTOR = Wide<scalar>::N < EIGHT ? Wide<scalar>::N : EIGHT;
    const u32 across = lanes * EIGHT, lines = THREADS / lanes;
    const u32 lane = threadIdx.x % lanes, line = threadIdx.x / lanes;
    // Every eighth number is followed by a gap, so that threads read from different banks.
    const u32 span = across + TAPS - 1, pitch = span + span / EIGHT + 1;
    acc* sums = (acc*)dynamic_shared;
    acc* row = sums + line * pitch;
    const u64 channels = g.in_channels / g.groups, outputs = g.out_channels / g.groups;
    const u64 pairs = g.out_channels * channels, stretches = ceil_div(g.out_length, across);
    const u64 passes = ceil_div(g.batch, lines) * stretches, share = ceil_div(passes, splits);
    const bool aligned = (g.out_length * sizeof(scalar) | (u64)dy) % (VECTOR * sizeof(scalar)) == 0;
    for (u64 turn = blockIdx.x; turn < pairs * splits; turn += gridDim.x) {
        u64 split, pair, o, c, group, unused;
        divide(turn, pairs, split, pair);
        divide(pair, channels, o, c);
        divide(o, outputs, group, unused);
        acc sum[TAPS];
        // As in `pair_gradient`.
        acc kept[TAPS];
#pragma unroll
        for (int k = 0; k < TAPS; k++) sum[k] = kept[k] = 0;
        u32 since = 0;
        for (u64 pass = split * share; pass < least((split + 1) * share, passes); pass++) {
            u64 rows, stretch;
            divide(pass, stretches, rows, stretch);
            const u64 n = rows * lines + line, begin = stretch * across;
            const bool exists = n < g.batch;
            const scalar* from = x + (n * g.in_channels + group * channels + c) * g.in_length;
            const i64 start = (i64)begin - (i64)g.pad_left;
            __syncthreads();
#pragma unroll 4
            for (u32 i = lane; i < span; i += lanes) {
                const i64 at = start + i;
                const bool inside = exists && (u64)at < g.in_length;
                row[i + i / EIGHT] = inside ? widen(from[at]) : acc(0);
            }
            const u64 l = begin + lane * EIGHT;
            const scalar* gradient = dy + (n * g.out_channels + o) * g.out_length + l;
            acc d[EIGHT];
            if (aligned && exists && l + EIGHT <= g.out_length) {
#pragma unroll
                for (int i = 0; i < EIGHT; i += VECTOR) {
                    const Pack<scalar, VECTOR> values = *(const Pack<scalar, VECTOR>*)(gradient + i);
#pragma unroll
                    for (int j = 0; j < VECTOR; j++) d[i + j] = widen(values.at[j]);
                }
            } else {
#pragma unroll
                for (int i = 0; i < EIGHT; i++)
                    d[i] = exists && l + i < g.out_length ? widen(gradient[i]) : acc(0);
            }
            __syncthreads();
            const acc* window = row + lane * (EIGHT + 1);
            const u32 count = !exists || l >= g.out_length ? 0 : (u32)least(EIGHT, g.out_length - l);
            auto meet = [&](bool all) {
#pragma unroll
                for (int j = 0; j < TAPS + EIGHT - 1; j++) {
                    const acc value = window[j + j / EIGHT];
#pragma unroll
                    for (int i = 0; i < EIGHT; i++)
                        if (j >= i && j - i < TAPS && (all || i < count)) sum[j - i] += d[i] * value;
                }
            };
            // Positions that there are not must not meet what is not finite.
            if (count == EIGHT) {
                meet(true);
            } else {
                meet(false);
            }
            if (++since == 32) {
                since = 0;
#pragma unroll
                for (int k = 0; k < TAPS; k++) {
                    kept[k] += sum[k];
                    sum[k] = 0;
                }
            }
        }
        // Each thread's sums, and then those of TAPS threads, are added up in turn.
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TAPS; k++) sums[threadIdx.x * (TAPS + 1) + k] = sum[k] + kept[k];
        __syncthreads();
        const u32 k = threadIdx.x % TAPS, part = threadIdx.x / TAPS;
        acc total = 0;
#pragma unroll 8
        for (int i = 0; i < TAPS; i++) total += sums[(part * TAPS + i) * (TAPS + 1) + k];
        __syncthreads();
        sums[threadIdx.x] = total;
        __syncthreads();
        if (part == 0 && k < g.kernel) {
            for (u32 i = 1; i < THREADS / TAPS; i++) total += sums[i * TAPS + k];
            const u64 to = pair * g.kernel + k;
            if (partial) {
                partial[split * pairs * g.kernel + to] = total;
            } else {
                out[to] = narrow<scalar>(total);
            }
        }
    }
}

#define SLIDE_WEIGHT(TAPS)                                                                         \
    KERNEL __launch_bounds__(256) depthwise_slide_weight_##TAPS(                                   \
        const Geometry g, const scalar* x, const scalar* dy, scalar* out, acc* partial,            \
        u64 splits, u32 lanes) {                                                                   \
        slide_weight<TAPS>(g, x, dy, out, partial, splits, lanes);                                 \
    }

SLIDE_WEIGHT(4)
SLIDE_WEIGHT(8)
SLIDE_WEIGHT(16)
SLIDE_WEIGHT(32)

KERNEL __launch_bounds__(256) depthwise_add_partials(const acc* partial, u64 splits, u64 elements,
                                                     scalar* out) {
    add_partial_results<scalar>(partial, splits, elements, 0, 1, out);
}
