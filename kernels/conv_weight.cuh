// The gradient of a convolution for its weights as a product: rows o, columns (c, k), sums over (n, l).
// Both operands are gathered straight from the tensors while tiles are computed. Few tiles of long
// sums are split along the sum; the partial results are added in a fixed order.
#pragma once
#include "conv.cuh"

// Rows of `dy`, along (n, l).
template <int SIDE, class I> struct Outputs {
    static const bool ALONG_SUM = true;
    typedef Carry<SIDE, true> C;
    const scalar* at;
    I l, length, skip, apart;
    i64 step, wrap;
    u64 term, end;
    u32 valid;

    __device__ __forceinline__ Outputs(const Geometry& g, const scalar* dy, u64 group,
                                       u64 first_row, u64 first_term, u64 end_) {
        u64 rows = g.out_channels / g.groups, row = first_row + C::line(), n, at_l;
        term = first_term + C::term();
        end = end_;
        divide(term, g.out_length, n, at_l);
        at = dy + (n * g.out_channels + group * rows + row) * g.out_length + at_l;
        l = (I)at_l;
        length = (I)g.out_length;
        divide(Tile<SIDE>::DEPTH, g.out_length, n, at_l);
        skip = (I)at_l;
        step = (i64)(n * g.out_channels * g.out_length + at_l);
        wrap = (i64)(g.out_channels * g.out_length - g.out_length);
        apart = (I)(C::APART * g.out_length);
        valid = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) valid |= (u32)(row + i * C::APART < rows) << i;
    }

    __device__ __forceinline__ void next(acc (&to)[EACH]) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            to[i] = 0;
            if (term < end && (valid >> i & 1)) to[i] = widen(at[i * apart]);
        }
        term += Tile<SIDE>::DEPTH;
        l += skip;
        at += step;
        if (l >= length) {
            l -= length;
            at += wrap;
        }
    }
};

// Columns (c, k) of the unfolded input, along (n, l).
template <int SIDE, class I> struct Inputs {
    static const bool ALONG_SUM = true;
    typedef Carry<SIDE, true> C;
    typedef typename Unsigned<I>::type U;
    const scalar* sample;
    // `at` is l·stride; a column adds its tap to it, and in memory its channel too.
    I at, limit, skip, length, back, tap[EACH], column[EACH];
    i64 step, wrap;
    u64 term, end;
    u32 valid;

    __device__ __forceinline__ Inputs(const Geometry& g, const scalar* x, u64 group,
                                      u64 first_column, u64 first_term, u64 end_) {
        u64 channels = g.in_channels / g.groups, n, l;
        term = first_term + C::term();
        end = end_;
        divide(term, g.out_length, n, l);
        sample = x + (n * g.in_channels + group * channels) * g.in_length;
        at = (I)(l * g.stride);
        limit = (I)(g.out_length * g.stride);
        length = (I)g.in_length;
        divide(Tile<SIDE>::DEPTH, g.out_length, n, l);
        skip = (I)(l * g.stride);
        back = limit;
        step = (i64)(n * g.in_channels * g.in_length);
        wrap = (i64)(g.in_channels * g.in_length);
        valid = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            u64 index = first_column + C::line() + i * C::APART, c, k;
            divide(index, g.kernel, c, k);
            valid |= (u32)(c < channels) << i;
            tap[i] = (I)((i64)(k * g.dilation) - (i64)g.pad_left);
            column[i] = (I)(c * g.in_length) + tap[i];
        }
    }

    __device__ __forceinline__ void next(acc (&to)[EACH]) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            to[i] = 0;
            if (term < end && (valid >> i & 1) && (U)(at + tap[i]) < (U)length)
                to[i] = widen(sample[at + column[i]]);
        }
        term += Tile<SIDE>::DEPTH;
        at += skip;
        sample += step;
        if (at >= limit) {
            at -= back;
            sample += wrap;
        }
    }
};

// To the result, or to one of the partial results.
struct Sums {
    acc* partial;
    scalar* out;
    u64 rows, columns, first_row, first_column;
    u64 at;
    bool exists;

    __device__ __forceinline__ void column(int i) {
        at = first_row * columns + first_column + i;
        exists = first_column + i < columns;
    }
    __device__ __forceinline__ void put(int row, acc value) {
        if (!exists || first_row + row >= rows) return;
        if (partial) {
            partial[at + row * columns] = value;
        } else {
            out[at + row * columns] = narrow<scalar>(value);
        }
    }
};

// `partial` holds `splits` results; null where there is one split, which is written to `out`.
template <class Engine, int SIDE, class I>
INLINE void weight_gradient(const Geometry& g, const scalar* x, const scalar* dy, scalar* out,
                            acc* partial, u64 splits) {
    __shared__ alignas(16) acc shared[Engine::WORDS];
    const u64 rows = g.out_channels / g.groups, columns = g.in_channels / g.groups * g.kernel;
    const u64 row_tiles = ceil_div(rows, SIDE), column_tiles = ceil_div(columns, SIDE);
    const u64 terms = g.batch * g.out_length, part = rows * columns;
    const u64 steps = ceil_div(ceil_div(terms, Engine::DEPTH), splits);
    const u64 all = row_tiles * column_tiles * g.groups * splits;
    for (u64 turn = blockIdx.x; turn < all; turn += gridDim.x) {
        u64 rest, row, column, group, split;
        divide(turn, row_tiles, rest, row);
        divide(rest, column_tiles, rest, column);
        divide(rest, g.groups, split, group);
        row *= SIDE;
        column *= SIDE;
        u64 first = least(split * steps * Engine::DEPTH, terms);
        u64 end = least(first + steps * Engine::DEPTH, terms);
        Engine engine;
        Outputs<SIDE, I> a(g, dy, group, row, first, end);
        Inputs<SIDE, I> b(g, x, group, column, first, end);
        engine.multiply(a, b, ceil_div(end - first, Engine::DEPTH), shared);
        acc* to = partial ? partial + (split * g.groups + group) * part : 0;
        Sums sums = {to, out + group * part, rows, columns, row, column, 0, false};
        engine.drain(shared, sums);
    }
}

#define WEIGHT_GRADIENT(NAME, BLOCKS, ...)                                                         \
    KERNEL __launch_bounds__(256, BLOCKS)                                                          \
        weight_##NAME(const Geometry g, const scalar* x, const scalar* dy, scalar* out,            \
                      acc* partial, u64 splits) {                                                  \
        weight_gradient<__VA_ARGS__>(g, x, dy, out, partial, splits);                              \
    }
