// Sums over any axes of what one of several expressions gives for each element. Along runs that are
// summed, neighbouring threads share a sum; along columns that are kept, neighbours have a sum each.
// Where there are few results, each is cut into chunks, whose sums a last kernel adds up in order. A
// few neighbours at a time are added up as they are, and then in f64. Each expression has a file of
// its own, as the driver compiles whole files.
#pragma once
#include "terms.cuh"

static const u32 THREADS = 256;

// ---- results

// Where sums go: scaled into the result (added to what is there, where the axes need more launches
// than one), or as they are to the partial sums of a chunk.
struct Results {
    scalar* out;
    f64* partials;
    f64 scale;
    u64 count, chunks;
    u32 more, unused;

    __device__ __forceinline__ void write(u64 output, f64 sum) const {
        sum *= scale;
        if (more) sum += (f64)widen(out[output]);
        out[output] = narrow<scalar>(sum);
    }
    __device__ __forceinline__ void give(u64 output, u64 chunk, f64 sum) const {
        if (chunks == 1)
            write(output, sum);
        else
            partials[chunk * count + output] = sum;
    }
};

// ---- rows: the innermost axis is summed

// A run of the innermost axis, cut into pieces; a chunk is `items` pieces of runs.
struct Runs {
    u64 length, strides[3], pieces, piece, items, total;
    u32 lanes, wide;
};

template <class E> struct Batch {
    static const int N = E::K == 1 ? 4 : 2;
};

template <class E, int C>
INLINE void some(const E& e, const u64 (&base)[E::K], const u64 (&strides)[3], u64 first, u64 step,
                 u64 end, f64& sum) {
    u64 at[C][E::K];
#pragma unroll
    for (int j = 0; j < C; ++j) {
        u64 i = first + j * step;
        i = i < end ? i : first;
#pragma unroll
        for (int k = 0; k < E::K; ++k) at[j][k] = base[k] + i * strides[k];
    }
    acc v[C], part = 0;
    e.each(at, v);
#pragma unroll
    for (int j = 0; j < C; ++j) part += first + j * step < end ? v[j] : acc(0);
    sum += (f64)part;
}

// What one thread of a group adds up of a piece.
template <class E>
INLINE void piece_sum(const E& e, const u64 (&base)[E::K], const Runs& runs, u64 start, u64 end,
                      u32 lane, u32 lanes, f64& sum) {
    if (E::WIDE && runs.wide) {
        const int C = Batch<E>::N;
        u64 packs = (end - start) / PACK;
        for (u64 first = lane; first < packs; first += (u64)lanes * C) {
            acc v[C][PACK], part = 0;
#pragma unroll
            for (int j = 0; j < C; ++j) {
                u64 pack = first + j * lanes;
                u64 at[E::K];
#pragma unroll
                for (int k = 0; k < E::K; ++k)
                    at[k] = base[k] + (start + (pack < packs ? pack : first) * PACK) * runs.strides[k];
                e.pack(at, runs.strides, v[j]);
            }
#pragma unroll
            for (int j = 0; j < C; ++j)
                if (first + j * lanes < packs)
#pragma unroll
                    for (int i = 0; i < PACK; ++i) part += v[j][i];
            sum += (f64)part;
        }
        start += packs * PACK;
    }
    for (u64 first = start + lane; first < end; first += (u64)lanes * 4)
        some<E, 4>(e, base, runs.strides, first, lanes, end, sum);
}

template <class E, bool BLOCK>
INLINE void reduce_rows(const Operands& o, const Layout& kept, const Layout& outer, const Runs& runs,
                        const Results& results) {
    E e = {o};
    u64 units = results.count * results.chunks;
    each_row<BLOCK>(units, runs.lanes, [&](const Group<BLOCK>& group, u64 unit, bool active) {
        u64 output = results.chunks == 1 ? unit : unit / results.chunks;
        u64 chunk = unit - output * results.chunks;
        f64 sum = 0;
        if (active) {
            u64 own[E::K];
            locate(kept, output, own);
            u64 item = chunk * runs.items;
            u64 last = item + runs.items < runs.total ? item + runs.items : runs.total;
            for (; item < last; ++item) {
                u64 run = runs.pieces == 1 ? item : item / runs.pieces;
                u64 start = (item - run * runs.pieces) * runs.piece;
                u64 end = start + runs.piece < runs.length ? start + runs.piece : runs.length;
                u64 base[E::K];
                locate(outer, run, base);
#pragma unroll
                for (int k = 0; k < E::K; ++k) base[k] += own[k];
                piece_sum(e, base, runs, start, end, group.lane, group.lanes, sum);
            }
        }
        sum = group.sum(sum);
        if (active && group.lane == 0) results.give(output, chunk, sum);
    });
}

// ---- columns: the innermost axis is kept, or summed and short

// `columns` kept columns, each a short run of `run` elements that are summed too. A block takes `tile`
// columns at `threads` threads, times as many as fit, which share the `rows` of a chunk.
struct Columns {
    u64 columns, run, column_strides[3], run_strides[3], tile, tiles, blocks, rows, chunk_rows;
    u32 threads, parts;
};

// Rows that a thread has in flight.
static const int DEEP = 4;

template <class E, bool WIDE>
INLINE void reduce_columns(const Operands& o, const Layout& kept, const Layout& outer,
                           const Columns& c, const Results& results) {
    const int V = WIDE ? PACK : 1;
    __shared__ f64 sums[THREADS * V];
    E e = {o};
    u32 own = threadIdx.x % c.threads, part = threadIdx.x / c.threads;
    u32 width = (u32)(c.tile * c.run);
    for (u64 item = blockIdx.x; item < c.blocks; item += gridDim.x) {
        u64 rest = item / c.tiles, tile = item - rest * c.tiles;
        u64 group = rest / results.chunks, chunk = rest - group * results.chunks;
        // The first of the thread's elements within the columns, a run after the other.
        u64 first = tile * c.tile * c.run + (u64)own * V;
        f64 total[V];
#pragma unroll
        for (int i = 0; i < V; ++i) total[i] = 0;
        if (part < c.parts && first < c.columns * c.run) {
            u64 base[E::K], start = chunk * c.chunk_rows;
            u64 end = start + c.chunk_rows < c.rows ? start + c.chunk_rows : c.rows;
            locate(kept, group, base);
            // The steps from one pack to the next: a neighbour's, or none at all.
            u64 steps[3];
            if (WIDE) {
#pragma unroll
                for (int k = 0; k < E::K; ++k) {
                    steps[k] = c.column_strides[k] != 0 || c.run_strides[k] != 0;
                    base[k] += first * steps[k];
                }
            } else {
                u64 column = c.run == 1 ? first : first / c.run;
#pragma unroll
                for (int k = 0; k < E::K; ++k)
                    base[k] += column * c.column_strides[k] +
                               (first - column * c.run) * c.run_strides[k];
            }
            for (u64 row = start + part; row < end; row += (u64)c.parts * DEEP) {
                u64 at[DEEP][E::K];
#pragma unroll
                for (int j = 0; j < DEEP; ++j) {
                    u64 r = row + j * c.parts;
                    r = r < end ? r : row;
                    if (outer.rank <= 1) {
#pragma unroll
                        for (int k = 0; k < E::K; ++k) at[j][k] = base[k] + r * outer.strides[k][0];
                    } else {
                        locate(outer, r, at[j]);
#pragma unroll
                        for (int k = 0; k < E::K; ++k) at[j][k] += base[k];
                    }
                }
                if constexpr (WIDE) {
                    acc v[DEEP][PACK];
#pragma unroll
                    for (int j = 0; j < DEEP; ++j) e.pack(at[j], steps, v[j]);
#pragma unroll
                    for (int i = 0; i < PACK; ++i) {
                        acc piece = 0;
#pragma unroll
                        for (int j = 0; j < DEEP; ++j)
                            piece += row + j * c.parts < end ? v[j][i] : acc(0);
                        total[i] += (f64)piece;
                    }
                } else {
                    acc v[DEEP], piece = 0;
                    e.each(at, v);
#pragma unroll
                    for (int j = 0; j < DEEP; ++j) piece += row + j * c.parts < end ? v[j] : acc(0);
                    total[0] += (f64)piece;
                }
            }
        }
        __syncthreads();
        if (part < c.parts) {
#pragma unroll
            for (int i = 0; i < V; ++i) sums[part * width + own * V + i] = total[i];
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < c.tile; i += blockDim.x) {
            u64 column = tile * c.tile + i;
            if (column >= c.columns) break;
            f64 sum = 0;
            for (u32 p = 0; p < c.parts; ++p)
                for (u32 l = 0; l < c.run; ++l) sum += sums[p * width + i * (u32)c.run + l];
            results.give(group * c.columns + column, chunk, sum);
        }
    }
}

// ---- a thread for each of many results of few terms

template <class E>
INLINE void reduce_each(const Operands& o, const Layout& kept, const Layout& reduced,
                        const Results& results) {
    E e = {o};
    for (u64 output = thread_index(); output < results.count; output += thread_count()) {
        u64 own[E::K];
        locate(kept, output, own);
        f64 sum = 0;
        for (u64 row = 0; row < reduced.elements; row += DEEP) {
            u64 at[DEEP][E::K];
#pragma unroll
            for (int j = 0; j < DEEP; ++j) {
                u64 r = row + j < reduced.elements ? row + j : row;
                locate(reduced, r, at[j]);
#pragma unroll
                for (int k = 0; k < E::K; ++k) at[j][k] += own[k];
            }
            acc v[DEEP], piece = 0;
            e.each(at, v);
#pragma unroll
            for (int j = 0; j < DEEP; ++j) piece += row + j < reduced.elements ? v[j] : acc(0);
            sum += (f64)piece;
        }
        results.write(output, sum);
    }
}

#define KERNELS(NAME, E)                                                                           \
    KERNEL __launch_bounds__(THREADS) reduce_short_##NAME(                                         \
        const __grid_constant__ Operands o, LAYOUT kept, LAYOUT outer,                             \
        const __grid_constant__ Runs runs, const __grid_constant__ Results results) {              \
        reduce_rows<E, false>(o, kept, outer, runs, results);                                      \
    }                                                                                              \
    KERNEL __launch_bounds__(THREADS) reduce_long_##NAME(                                          \
        const __grid_constant__ Operands o, LAYOUT kept, LAYOUT outer,                             \
        const __grid_constant__ Runs runs, const __grid_constant__ Results results) {              \
        reduce_rows<E, true>(o, kept, outer, runs, results);                                       \
    }                                                                                              \
    KERNEL __launch_bounds__(THREADS) reduce_columns_##NAME(                                       \
        const __grid_constant__ Operands o, LAYOUT kept, LAYOUT outer,                             \
        const __grid_constant__ Columns columns, const __grid_constant__ Results results) {        \
        reduce_columns<E, false>(o, kept, outer, columns, results);                                \
    }                                                                                              \
    KERNEL __launch_bounds__(THREADS) reduce_packs_##NAME(                                         \
        const __grid_constant__ Operands o, LAYOUT kept, LAYOUT outer,                             \
        const __grid_constant__ Columns columns, const __grid_constant__ Results results) {        \
        reduce_columns<E, E::WIDE>(o, kept, outer, columns, results);                              \
    }                                                                                              \
    KERNEL __launch_bounds__(THREADS) reduce_each_##NAME(                                          \
        const __grid_constant__ Operands o, LAYOUT kept, LAYOUT reduced,                           \
        const __grid_constant__ Results results) {                                                 \
        reduce_each<E>(o, kept, reduced, results);                                                 \
    }
