// Convolutions as products whose operands are gathered straight from the tensors while tiles are
// computed. The gradient for the input of a strided convolution is taken apart by residues of the
// position, each of which is a convolution with stride 1, so that nothing is multiplied by the zeros
// between outputs. The engine that multiplies is a parameter: `Plain` of conv.cuh, or `Tensor`.
#pragma once
#include "conv.cuh"

// One of the convolutions that a pass consists of: in group `group`, rows m and columns (n, j) with
// `out[m, (n, j)] = Σ_(c, t) w[m·w_row + c·w_channel + t·w_tap] · source[n, c, j + ...]`. Positions
// of the result are `first_position + j·position_step`.
template <bool GRADIENT> struct Pass {
    u64 rows, channels, source_channels, source_length, out_channels, out_length;
    u64 group, first_position, position_step, positions;
    u64 taps, w_start, w_row, w_channel, w_tap;
    // Element of the source that meets (j, t): j·step + t·tap_step + offset.
    i64 step, tap_step, offset;

    __device__ __forceinline__ Pass(const Geometry& g, u64 group_, u64 residue) {
        u64 ci = g.in_channels / g.groups, co = g.out_channels / g.groups;
        group = group_;
        if (GRADIENT) {
            u64 first = first_tap(g, residue);
            rows = ci;
            channels = co;
            source_channels = g.out_channels;
            source_length = g.out_length;
            out_channels = g.in_channels;
            out_length = g.in_length;
            first_position = residue;
            position_step = g.stride;
            positions = ceil_div(g.in_length - residue, g.stride);
            taps = first < g.kernel ? (g.kernel - 1 - first) / g.period + 1 : 0;
            w_start = group * co * ci * g.kernel + first;
            w_row = g.kernel;
            w_channel = ci * g.kernel;
            w_tap = g.period;
            step = 1;
            tap_step = -(i64)g.shift;
            offset = first < g.kernel ? first_output(g, residue, first) : 0;
        } else {
            rows = co;
            channels = ci;
            source_channels = g.in_channels;
            source_length = g.in_length;
            out_channels = g.out_channels;
            out_length = g.out_length;
            first_position = 0;
            position_step = 1;
            positions = g.out_length;
            taps = g.kernel;
            w_start = group * co * ci * g.kernel;
            w_row = ci * g.kernel;
            w_channel = g.kernel;
            w_tap = 1;
            step = (i64)g.stride;
            tap_step = (i64)g.dilation;
            offset = -(i64)g.pad_left;
        }
    }
};

// Rows of the weights, along (c, t). `I` is a type that holds every offset.
template <int SIDE, class I> struct Weights {
    static const bool ALONG_SUM = true;
    typedef Carry<SIDE, true> C;
    const scalar* base;
    I offset, term, terms, t, taps, skip, step, wrap, apart;
    u32 valid;

    template <class P>
    __device__ __forceinline__ Weights(const P& p, const scalar* w, u64 first_row) {
        u64 row = first_row + C::line(), c, tap;
        divide(C::term(), p.taps, c, tap);
        base = w + p.w_start + row * p.w_row;
        offset = (I)(c * p.w_channel + tap * p.w_tap);
        t = (I)tap;
        taps = (I)p.taps;
        term = C::term();
        terms = (I)(p.channels * p.taps);
        divide(Tile<SIDE>::DEPTH, p.taps, c, tap);
        skip = (I)tap;
        step = (I)(c * p.w_channel + tap * p.w_tap);
        wrap = (I)(p.w_channel - p.taps * p.w_tap);
        apart = (I)(C::APART * p.w_row);
        valid = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) valid |= (u32)(row + i * C::APART < p.rows) << i;
    }

    __device__ __forceinline__ void next(acc (&to)[EACH]) {
        const scalar* at = base + offset;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            to[i] = 0;
            if (term < terms && (valid >> i & 1)) to[i] = widen(at[i * apart]);
        }
        term += Tile<SIDE>::DEPTH;
        t += skip;
        offset += step;
        if (t >= taps) {
            t -= taps;
            offset += wrap;
        }
    }
};

// Columns of the unfolded source, along (n, j).
template <int SIDE, class I> struct Columns {
    static const bool ALONG_SUM = false;
    typedef Carry<SIDE, false> C;
    typedef typename Unsigned<I>::type U;
    const scalar* base;
    // `row` is where channel c begins, `at` the position in it.
    I row, end, at, length, t, taps, skip, row_step, at_step, wrap;

    template <class P>
    __device__ __forceinline__ Columns(const P& p, const scalar* source, u64 batch, u64 first) {
        u64 n, j, c, tap;
        divide(first + C::line(), p.positions, n, j);
        base = source + (n * p.source_channels + p.group * p.channels) * p.source_length;
        divide(C::term(), p.taps, c, tap);
        row = (I)(c * p.source_length);
        end = n < batch ? (I)(p.channels * p.source_length) : 0;
        length = (I)p.source_length;
        at = (I)((i64)j * p.step + (i64)tap * p.tap_step + p.offset);
        t = (I)tap;
        taps = (I)p.taps;
        divide(C::APART, p.taps, c, tap);
        skip = (I)tap;
        row_step = (I)(c * p.source_length);
        at_step = (I)((i64)tap * p.tap_step);
        wrap = (I)((i64)p.taps * p.tap_step);
    }

    __device__ __forceinline__ void next(acc (&to)[EACH]) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            to[i] = 0;
            if (row < end && (U)at < (U)length) to[i] = widen(base[row + at]);
            t += skip;
            row += row_step;
            at += at_step;
            if (t >= taps) {
                t -= taps;
                at -= wrap;
                row += length;
            }
        }
    }
};

template <class P> struct Results {
    const P& p;
    const scalar* bias;
    scalar* out;
    u64 batch, first_row, first_column;
    scalar* at;

    __device__ __forceinline__ void column(int i) {
        u64 n, j;
        divide(first_column + i, p.positions, n, j);
        u64 channel = n * p.out_channels + p.group * p.rows + first_row;
        at = n < batch ? out + channel * p.out_length + p.first_position + j * p.position_step : 0;
    }
    __device__ __forceinline__ void put(int row, acc value) {
        if (!at || first_row + row >= p.rows) return;
        if (bias) value += widen(bias[p.group * p.rows + first_row + row]);
        at[row * p.out_length] = narrow<scalar>(value);
    }
};

// Where a block's turn lies in the result. Tiles of rows come first, so that blocks that run
// together read the same columns.
template <bool GRADIENT> struct Turns {
    u64 residues, row_tiles, column_tiles, all;

    __device__ __forceinline__ Turns(const Geometry& g, u64 height, u64 width) {
        u64 rows = (GRADIENT ? g.in_channels : g.out_channels) / g.groups;
        u64 positions = GRADIENT ? ceil_div(g.in_length, g.stride) : g.out_length;
        residues = GRADIENT ? least(g.stride, g.in_length) : 1;
        row_tiles = ceil_div(rows, height);
        column_tiles = ceil_div(g.batch * positions, width);
        all = row_tiles * residues * g.groups * column_tiles;
    }
    __device__ __forceinline__ void at(u64 turn, const Geometry& g, u64& row, u64& residue,
                                       u64& group, u64& column) {
        divide(turn, row_tiles, turn, row);
        divide(turn, residues, turn, residue);
        divide(turn, g.groups, column, group);
    }
};

template <class Engine, int SIDE, class I, bool GRADIENT>
INLINE void tiled(const Geometry& g, const scalar* source, const scalar* w, const scalar* bias,
                  scalar* out) {
    __shared__ alignas(16) acc shared[Engine::WORDS];
    Turns<GRADIENT> turns(g, SIDE, SIDE);
    for (u64 turn = blockIdx.x; turn < turns.all; turn += gridDim.x) {
        u64 row, residue, group, column;
        turns.at(turn, g, row, residue, group, column);
        Pass<GRADIENT> p(g, group, residue);
        row *= SIDE;
        column *= SIDE;
        // Later residues may have fewer positions than the first.
        if (column >= g.batch * p.positions) continue;
        u64 steps = ceil_div(p.channels * p.taps, Engine::DEPTH);
        if (p.taps == 0) p.taps = 1;
        Engine engine;
        Weights<SIDE, I> a(p, w, row);
        Columns<SIDE, I> b(p, source, g.batch, column);
        engine.multiply(a, b, steps, shared);
        Results<Pass<GRADIENT>> results = {p, bias, out, g.batch, row, column, 0};
        engine.drain(shared, results);
    }
}

// BLOCKS of them share a multiprocessor.
#define PASSES(NAME, BLOCKS, BODY, ...)                                                            \
    KERNEL __launch_bounds__(256, BLOCKS)                                                          \
        forward_##NAME(const Geometry g, const scalar* x, const scalar* w, const scalar* bias,     \
                       scalar* y) {                                                                \
        BODY<__VA_ARGS__, false>(g, x, w, bias, y);                                                \
    }                                                                                              \
    KERNEL __launch_bounds__(256, BLOCKS)                                                          \
        gradient_##NAME(const Geometry g, const scalar* dy, const scalar* w, const scalar* bias,   \
                        scalar* dx) {                                                              \
        BODY<__VA_ARGS__, true>(g, dy, w, bias, dx);                                               \
    }
