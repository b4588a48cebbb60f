// types: f32 f64 f16 bf16
// Products with a matrix in column strips, one vector at a time: the strip's part of the dense side
// lies in shared memory, so that global memory is only read along the matrix. Four entries are read
// at once; what pads a piece has the column one past the strip's last, where a zero lies.
#include "sparse.cuh"

extern __shared__ __align__(16) unsigned char shared_bytes[];

// What a block has: rows [row, row_end) of strips [strip, strip_end).
struct Part {
    u64 row, row_end, strip, strip_end;
};

INLINE u64 share(u64 all, u64 parts) { return (all + parts - 1) / parts; }

INLINE Part part(const Matrix& m) {
    Part p;
    u64 rows = share(m.rows, gridDim.x), strips = share(m.strips, gridDim.y);
    p.row = blockIdx.x * rows;
    p.row_end = p.row + rows < m.rows ? p.row + rows : m.rows;
    p.strip = blockIdx.y * strips;
    p.strip_end = p.strip + strips < m.strips ? p.strip + strips : m.strips;
    return p;
}

INLINE u64 columns_of_strip(const Matrix& m, u64 strip) {
    u64 left = m.cols - strip * m.strip;
    return left < m.strip ? left : m.strip;
}

typedef Pack<u16, 4> Columns4;
typedef Pack<scalar, 4> Values4;

INLINE Columns4 columns4(const Matrix& m, u64 at) {
    return reinterpret_cast<const Columns4*>(m.columns)[at];
}
INLINE Values4 values4(const Matrix& m, u64 at) {
    return reinterpret_cast<const Values4*>(m.values)[at];
}

INLINE acc dot4(const Columns4& c, const Values4& v, const acc* x) {
    acc sum = 0;
#pragma unroll
    for (int t = 0; t < 4; ++t) sum += (acc)widen(v.at[t]) * x[c.at[t]];
    return sum;
}

// Grid: parts of the rows, groups of strips, vectors. Sums go to y, or with `partial` to [groups, n,
// rows] there. A warp has 32 rows at a time, whose entries it goes through row by row.
KERNEL __launch_bounds__(1024) strips_forward(const Matrix m, const scalar* x, u64 x_apart, scalar* y,
                                              u64 y_apart, u64 n, u32 add, acc* partial) {
    acc* strip_x = reinterpret_cast<acc*>(shared_bytes);
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const Part p = part(m);
    for (u64 v = blockIdx.z; v < n; v += gridDim.z) {
        for (u64 strip = p.strip; strip < p.strip_end; ++strip) {
            const scalar* source = x + v * x_apart + strip * m.strip;
            u64 columns = columns_of_strip(m, strip);
            __syncthreads();
            for (u64 i = threadIdx.x; i < m.strip + 1; i += blockDim.x)
                strip_x[i] = i < columns ? (acc)widen(source[i]) : acc(0);
            __syncthreads();
            const u32* marks = m.pieces + strip * m.rows;
            for (u64 base = p.row + warp * 32; base < p.row_end; base += warps * 32) {
                u64 row = base + lane;
                u32 begin = 0, end = 0;
                if (row < p.row_end) {
                    begin = marks[row] & 0x3fffffffu;
                    end = marks[row + 1] & 0x3fffffffu;
                }
                u32 left = p.row_end - base < 32 ? (u32)(p.row_end - base) : 32;
                acc mine = 0;
                for (u32 i = 0; i < left; ++i) {
                    u64 from = __shfl_sync(EVERY, begin, i), to = __shfl_sync(EVERY, end, i);
                    u64 a = from + lane, b = a + 32;
                    acc sum = 0;
                    // The loads of both rounds before the sums of either.
                    if (b < to) {
                        Columns4 ca = columns4(m, a), cb = columns4(m, b);
                        Values4 va = values4(m, a), vb = values4(m, b);
                        sum = dot4(ca, va, strip_x) + dot4(cb, vb, strip_x);
                    } else if (a < to) {
                        sum = dot4(columns4(m, a), values4(m, a), strip_x);
                    }
                    for (u64 k = a + 64; k < to; k += 32)
                        sum += dot4(columns4(m, k), values4(m, k), strip_x);
                    sum = warp_sum(sum);
                    if (lane == i) mine = sum;
                }
                if (row < p.row_end) {
                    // Of several strips the first one puts, the others add.
                    u32 adds = strip != p.strip;
                    if (partial) {
                        acc* at = partial + (blockIdx.y * n + v) * m.rows + row;
                        *at = adds ? *at + mine : mine;
                    } else {
                        put(y + v * y_apart + row, mine, add | adds);
                    }
                }
            }
        }
    }
}

// What becomes of a strip's sums: put into y, added to it by atomics, or kept as [parts, n, cols].
#define DIRECT 0
#define ATOMIC 1
#define PARTIAL 2

INLINE void flush(const Matrix& m, u64 strip, const acc* strip_y, u64 v, u64 n, void* y, u64 y_apart,
                  u32 how, u32 add) {
    u64 columns = columns_of_strip(m, strip), first = strip * m.strip;
    for (u64 i = threadIdx.x; i < columns; i += blockDim.x) {
        if (how == DIRECT)
            put(reinterpret_cast<scalar*>(y) + v * y_apart + first + i, strip_y[i], add);
        else if (how == ATOMIC)
            atomicAdd(reinterpret_cast<acc*>(y) + v * y_apart + first + i, strip_y[i]);
        else
            reinterpret_cast<acc*>(y)[(blockIdx.x * n + v) * m.cols + first + i] = strip_y[i];
    }
}

// The same way back: warps add to the strip's part of y with shared atomics.
KERNEL __launch_bounds__(1024) strips_transposed(const Matrix m, const scalar* g, u64 g_apart,
                                                 void* y, u64 y_apart, u64 n, u32 how, u32 add) {
    acc* strip_y = reinterpret_cast<acc*>(shared_bytes);
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const Part p = part(m);
    for (u64 v = blockIdx.z; v < n; v += gridDim.z) {
        for (u64 strip = p.strip; strip < p.strip_end; ++strip) {
            __syncthreads();
            for (u64 i = threadIdx.x; i < m.strip + 1; i += blockDim.x) strip_y[i] = 0;
            __syncthreads();
            const u32* marks = m.pieces + strip * m.rows;
            for (u64 base = p.row + warp * 32; base < p.row_end; base += warps * 32) {
                u64 row = base + lane;
                u32 begin = 0, end = 0;
                acc of_row = 0;
                if (row < p.row_end) {
                    begin = marks[row] & 0x3fffffffu;
                    end = marks[row + 1] & 0x3fffffffu;
                    of_row = (acc)widen(g[v * g_apart + row]);
                }
                u32 left = p.row_end - base < 32 ? (u32)(p.row_end - base) : 32;
                for (u32 i = 0; i < left; ++i) {
                    u64 from = __shfl_sync(EVERY, begin, i), to = __shfl_sync(EVERY, end, i);
                    acc factor = __shfl_sync(EVERY, of_row, i);
#pragma unroll 2
                    for (u64 k = from + lane; k < to; k += 32) {
                        Columns4 c = columns4(m, k);
                        Values4 values = values4(m, k);
#pragma unroll
                        for (int t = 0; t < 4; ++t)
                            atomicAdd(strip_y + c.at[t], factor * (acc)widen(values.at[t]));
                    }
                }
            }
            __syncthreads();
            flush(m, strip, strip_y, v, n, y, y_apart, how, add);
        }
    }
}

// Rows of a batch whose entries are on their way while those before are added.
#define BATCH 8

// The same without atomics and in one order: a block adds row after row, whose columns differ. Two
// warps, so that waiting for each other costs little.
template <int FORM>
INLINE void strips_ordered(const Matrix& m, const scalar* g, u64 g_apart, void* y, u64 y_apart, u64 n,
                           u32 how, u32 add) {
    acc* strip_y = reinterpret_cast<acc*>(shared_bytes);
    const Part p = part(m);
    for (u64 v = blockIdx.z; v < n; v += gridDim.z) {
        const scalar* gv = g + v * g_apart;
        for (u64 strip = p.strip; strip < p.strip_end; ++strip) {
            __syncthreads();
            for (u64 i = threadIdx.x; i < m.strip + 1; i += blockDim.x) strip_y[i] = 0;
            __syncthreads();
            const u32* marks = m.pieces + strip * m.rows;
            if (FORM == APART) {
                for (u64 row = p.row; row < p.row_end; ++row) {
                    Segment s = segment<APART>(m, row, strip, entries_before(m, row, strip));
                    acc factor = (acc)widen(gv[row]);
                    for (u64 k = s.begin + threadIdx.x; k < s.end; k += blockDim.x)
                        strip_y[column_of<APART>(m, s, k) - (u32)s.base] += factor * value_of(m, s, k);
                    __syncthreads();
                }
            } else {
                Columns4 c[2][BATCH];
                Values4 w[2][BATCH];
                acc factor[2][BATCH];
                u32 begin[2][BATCH], end[2][BATCH];
                auto load = [&](int half, u64 first) {
#pragma unroll
                    for (int i = 0; i < BATCH; ++i) {
                        u64 row = first + i;
                        begin[half][i] = end[half][i] = 0;
                        if (row < p.row_end) {
                            begin[half][i] = marks[row] & 0x3fffffffu;
                            end[half][i] = marks[row + 1] & 0x3fffffffu;
                            factor[half][i] = (acc)widen(gv[row]);
                        }
                        u32 at = begin[half][i] + threadIdx.x;
                        if (at < end[half][i]) {
                            c[half][i] = columns4(m, at);
                            w[half][i] = values4(m, at);
                        }
                    }
                };
                auto run = [&](int half) {
#pragma unroll
                    for (int i = 0; i < BATCH; ++i) {
                        u32 at = begin[half][i] + threadIdx.x;
                        if (at < end[half][i]) {
                            acc sums[4];
#pragma unroll
                            for (int t = 0; t < 4; ++t) sums[t] = strip_y[c[half][i].at[t]];
#pragma unroll
                            for (int t = 0; t < 4; ++t)
                                strip_y[c[half][i].at[t]] =
                                    sums[t] + factor[half][i] * (acc)widen(w[half][i].at[t]);
                        }
                        for (at += blockDim.x; at < end[half][i]; at += blockDim.x) {
                            Columns4 more = columns4(m, at);
                            Values4 values = values4(m, at);
#pragma unroll
                            for (int t = 0; t < 4; ++t)
                                strip_y[more.at[t]] += factor[half][i] * (acc)widen(values.at[t]);
                        }
                        // Even a row without entries here, so that all threads meet.
                        __syncthreads();
                    }
                };
                load(0, p.row);
                for (u64 first = p.row; first < p.row_end; first += 2 * BATCH) {
                    load(1, first + BATCH);
                    run(0);
                    load(0, first + 2 * BATCH);
                    run(1);
                }
            }
            __syncthreads();
            flush(m, strip, strip_y, v, n, y, y_apart, how, add);
        }
    }
}

KERNEL __launch_bounds__(64) strips_ordered_tiled(const Matrix m, const scalar* g, u64 g_apart, void* y,
                                                  u64 y_apart, u64 n, u32 how, u32 add) {
    strips_ordered<TILED>(m, g, g_apart, y, y_apart, n, how, add);
}
KERNEL __launch_bounds__(64) strips_ordered_apart(const Matrix m, const scalar* g, u64 g_apart, void* y,
                                                  u64 y_apart, u64 n, u32 how, u32 add) {
    strips_ordered<APART>(m, g, g_apart, y, y_apart, n, how, add);
}

// The same for compressed rows: a warp a block, `range` columns in shared memory. Grid: parts of the
// rows, ranges of columns, vectors.
KERNEL __launch_bounds__(32) rows_ordered(const Matrix m, const scalar* g, u64 g_apart, u64 g_step,
                                          void* y, u64 y_apart, u64 y_step, u64 n, u64 range, u32 how,
                                          u32 add) {
    acc* range_y = reinterpret_cast<acc*>(shared_bytes);
    const u32 lane = threadIdx.x;
    const u32* columns = reinterpret_cast<const u32*>(m.columns);
    u64 rows = share(m.row_end - m.row_begin, gridDim.x);
    u64 row_begin = m.row_begin + blockIdx.x * rows;
    u64 row_end = row_begin + rows < m.row_end ? row_begin + rows : m.row_end;
    for (u64 v = blockIdx.z; v < n; v += gridDim.z) {
        for (u64 first = blockIdx.y * range; first < m.cols; first += gridDim.y * range) {
            u64 last = first + range < m.cols ? first + range : m.cols;
            __syncwarp();
            for (u64 i = lane; i < last - first; i += 32) range_y[i] = 0;
            __syncwarp();
            for (u64 base = row_begin; base < row_end; base += 32) {
                // Each lane finds where the range begins in one of the rows.
                u64 row = base + lane, from = 0, to = 0;
                acc of_row = 0;
                if (row < row_end) {
                    Segment s = segment<ROWS>(m, row, 0, 0);
                    from = s.begin;
                    to = s.end < s.begin ? s.begin : s.end;
                    u64 high = to;
                    while (from < high) {
                        u64 middle = from + (high - from) / 2;
                        if (columns[middle] < first)
                            from = middle + 1;
                        else
                            high = middle;
                    }
                    if (from < to && columns[from] < last)
                        of_row = (acc)widen(g[v * g_apart + row * g_step]);
                    else
                        to = from;
                }
                u32 filled = __ballot_sync(EVERY, from < to);
                while (filled) {
                    u32 i = __ffs(filled) - 1;
                    filled &= filled - 1;
                    u64 begin = __shfl_sync(EVERY, from, i), end = __shfl_sync(EVERY, to, i);
                    acc factor = __shfl_sync(EVERY, of_row, i);
                    for (u64 k = begin + lane; k < end; k += 32) {
                        u32 column = columns[k];
                        if (column >= last) break;
                        range_y[column - first] += factor * (acc)widen(m.values[k]);
                    }
                    __syncwarp();
                }
            }
            for (u64 i = lane; i < last - first; i += 32) {
                u64 at = v * y_apart + (first + i) * y_step;
                if (how == DIRECT)
                    put(reinterpret_cast<scalar*>(y) + at, range_y[i], add);
                else if (how == ATOMIC)
                    // One block has the range: only sums that are kept in another type.
                    reinterpret_cast<acc*>(y)[at] += range_y[i];
                else
                    reinterpret_cast<acc*>(y)[(blockIdx.x * n + v) * m.cols + first + i] = range_y[i];
            }
        }
    }
}

// `out[index, v] = Σ_p partial[p, v, index]`.
KERNEL strips_join(const acc* partial, u64 parts, u64 length, u64 n, scalar* out, u64 step, u64 apart,
                   u32 add) {
    for (u64 i = thread_index(); i < length * n; i += thread_count()) {
        u64 v = i / length, index = i - v * length;
        acc sum = 0;
#pragma unroll 4
        for (u64 p = 0; p < parts; ++p) sum += partial[p * n * length + i];
        put(out + index * step + v * apart, sum, add);
    }
}

// `out[index, v] = sums[index, v]`, of which each index has `ld` elements, by tiles of 32 x 32.
KERNEL __launch_bounds__(256) sums_finish(const acc* sums, u64 length, u64 ld, u64 n, scalar* out,
                                          u64 step, u64 apart, u32 add) {
    __shared__ acc tile[32][33];
    const u32 a = threadIdx.x & 31, b = threadIdx.x >> 5;
    const u64 across = share(n, 32), tiles = share(length, 32) * across;
    for (u64 turn = blockIdx.x; turn < tiles; turn += gridDim.x) {
        u64 first = turn / across * 32, vector = turn % across * 32;
        __syncthreads();
        for (u32 i = b; i < 32; i += 8)
            if (first + i < length && vector + a < n) tile[i][a] = sums[(first + i) * ld + vector + a];
        __syncthreads();
        for (u32 i = b; i < 32; i += 8) {
            // The contiguous axis of the result goes along the lanes.
            u32 index = step == 1 ? a : i, v = step == 1 ? i : a;
            if (first + index < length && vector + v < n)
                put(out + (first + index) * step + (vector + v) * apart, tile[index][v], add);
        }
    }
}
