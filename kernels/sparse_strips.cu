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

// Pieces whose entries are on their way while those before are added up.
// Twice as many need twice the registers.
#define BATCH (sizeof(acc) == 8 ? 2 : 4)

// Rows of a warp's turn, 32, of which lane i knows where the piece of row i lies.
struct Turn {
    u32 begin, end, rows;
};

INLINE Turn turn_of(const Matrix& m, const Part& p, u64 strip, u64 base, u32 lane) {
    const u32* marks = m.pieces + strip * m.rows;
    Turn t;
    t.begin = t.end = 0;
    t.rows = base >= p.row_end ? 0 : p.row_end - base < 32 ? (u32)(p.row_end - base) : 32;
    if (lane < t.rows) {
        t.begin = marks[base + lane] & 0x3fffffffu;
        t.end = marks[base + lane + 1] & 0x3fffffffu;
    }
    return t;
}

// Fills shared memory with a strip of x, and zeros after it.
INLINE void load_strip(const Matrix& m, u64 strip, const scalar* x, u64 step, acc* strip_x) {
    const scalar* source = x + strip * m.strip * step;
    const u32 columns = (u32)columns_of_strip(m, strip), all = (u32)m.strip + 1;
    // Several loads at a time: one after the other they would take longer than the entries.
    for (u32 first = threadIdx.x; first < all; first += 8 * blockDim.x) {
        acc some[8];
#pragma unroll
        for (u32 t = 0; t < 8; ++t) {
            u32 i = first + t * blockDim.x;
            some[t] = i < columns ? (acc)widen(source[i * step]) : acc(0);
        }
#pragma unroll
        for (u32 t = 0; t < 8; ++t) {
            u32 i = first + t * blockDim.x;
            if (i < all) strip_x[i] = some[t];
        }
    }
}

// Grid: parts of the rows, groups of strips, vectors. Sums go to y, or with `partial` to [groups, n,
// rows] there. `lanes` lanes have a row's piece, so that a warp has `32 / lanes` rows at a time.
KERNEL __launch_bounds__(512) strips_forward(const Matrix m, const scalar* x, const Side sx, scalar* y,
                                             const Side sy, u64 n, u32 lanes, u32 add, acc* partial) {
    acc* strip_x = reinterpret_cast<acc*>(shared_bytes);
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const u32 inside = lane & (lanes - 1), group = lane / lanes, groups = 32 / lanes;
    const Part p = part(m);
    for (u64 v = blockIdx.z; v < n; v += gridDim.z) {
        for (u64 strip = p.strip; strip < p.strip_end; ++strip) {
            __syncthreads();
            load_strip(m, strip, x + v * sx.apart, sx.step, strip_x);
            __syncthreads();
            for (u64 base = p.row + warp * 32; base < p.row_end; base += warps * 32) {
                Turn turn = turn_of(m, p, strip, base, lane);
                acc mine = 0;
                for (u32 step = 0; step < lanes; step += BATCH) {
                    Columns4 c[BATCH];
                    Values4 w[BATCH];
                    u32 at[BATCH], to[BATCH];
#pragma unroll
                    for (int i = 0; i < BATCH; ++i) {
                        u32 row = ((step + i) * groups + group) & 31;
                        at[i] = __shfl_sync(EVERY, turn.begin, row) + inside;
                        to[i] = __shfl_sync(EVERY, turn.end, row);
                        if (at[i] < to[i]) {
                            c[i] = columns4(m, at[i]);
                            w[i] = values4(m, at[i]);
                        }
                    }
#pragma unroll
                    for (int i = 0; i < BATCH; ++i) {
                        acc sum = at[i] < to[i] ? dot4(c[i], w[i], strip_x) : acc(0);
                        for (u32 k = at[i] + lanes; k < to[i]; k += lanes)
                            sum += dot4(columns4(m, k), values4(m, k), strip_x);
                        __syncwarp();
                        for (u32 offset = lanes / 2; offset > 0; offset >>= 1)
                            sum += __shfl_xor_sync(EVERY, sum, offset);
                        // To the lane that has the row's number.
                        sum = __shfl_sync(EVERY, sum, (lane & (groups - 1)) * lanes);
                        if (lane / groups == step + i) mine = sum;
                    }
                }
                if (lane < turn.rows) {
                    u64 row = base + lane;
                    // Of several strips the first one puts, the others add.
                    u32 adds = strip != p.strip;
                    if (partial) {
                        acc* at = partial + (blockIdx.y * n + v) * m.rows + row;
                        *at = adds ? *at + mine : mine;
                    } else {
                        put(y + v * sy.apart + row * sy.step, mine, add | adds);
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

INLINE void flush(const Matrix& m, u64 strip, const acc* strip_y, u64 v, u64 n, void* y, Side sy,
                  u32 how, u32 add) {
    u64 columns = columns_of_strip(m, strip), first = strip * m.strip;
    for (u64 i = threadIdx.x; i < columns; i += blockDim.x) {
        u64 at = v * sy.apart + (first + i) * sy.step;
        if (how == DIRECT)
            put(reinterpret_cast<scalar*>(y) + at, strip_y[i], add);
        else if (how == ATOMIC)
            atomicAdd(reinterpret_cast<acc*>(y) + at, strip_y[i]);
        else
            reinterpret_cast<acc*>(y)[(blockIdx.x * n + v) * m.cols + first + i] = strip_y[i];
    }
}

INLINE void clear_strip(const Matrix& m, acc* strip_y) {
    for (u32 i = threadIdx.x; i < (u32)m.strip + 1; i += blockDim.x) strip_y[i] = 0;
}

// The same way back: warps add to the strip's part of y with shared atomics.
KERNEL __launch_bounds__(512) strips_transposed(const Matrix m, const scalar* g, const Side sg, void* y,
                                                const Side sy, u64 n, u32 lanes, u32 how, u32 add) {
    acc* strip_y = reinterpret_cast<acc*>(shared_bytes);
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const u32 inside = lane & (lanes - 1), group = lane / lanes, groups = 32 / lanes;
    const Part p = part(m);
    for (u64 v = blockIdx.z; v < n; v += gridDim.z) {
        for (u64 strip = p.strip; strip < p.strip_end; ++strip) {
            __syncthreads();
            clear_strip(m, strip_y);
            __syncthreads();
            for (u64 base = p.row + warp * 32; base < p.row_end; base += warps * 32) {
                Turn turn = turn_of(m, p, strip, base, lane);
                acc of_row = 0;
                if (lane < turn.rows)
                    of_row = (acc)widen(g[v * sg.apart + (base + lane) * sg.step]);
                for (u32 step = 0; step < lanes; step += BATCH) {
                    Columns4 c[BATCH];
                    Values4 w[BATCH];
                    u32 at[BATCH], to[BATCH];
#pragma unroll
                    for (int i = 0; i < BATCH; ++i) {
                        u32 row = ((step + i) * groups + group) & 31;
                        at[i] = __shfl_sync(EVERY, turn.begin, row) + inside;
                        to[i] = __shfl_sync(EVERY, turn.end, row);
                        if (at[i] < to[i]) {
                            c[i] = columns4(m, at[i]);
                            w[i] = values4(m, at[i]);
                        }
                    }
#pragma unroll
                    for (int i = 0; i < BATCH; ++i) {
                        u32 row = ((step + i) * groups + group) & 31;
                        acc factor = __shfl_sync(EVERY, of_row, row);
                        for (u32 k = at[i]; k < to[i]; k += lanes) {
                            if (k != at[i]) {
                                c[i] = columns4(m, k);
                                w[i] = values4(m, k);
                            }
#pragma unroll
                            for (int t = 0; t < 4; ++t)
                                atomicAdd(strip_y + c[i].at[t], factor * (acc)widen(w[i].at[t]));
                        }
                        __syncwarp();
                    }
                }
            }
            __syncthreads();
            flush(m, strip, strip_y, v, n, y, sy, how, add);
        }
    }
}

// Rows that are on their way while those before are added; twice as many need twice the registers.
#define AHEAD (sizeof(acc) == 8 ? 4 : 8)

// The entries that a lane has of some rows, and the factors of those rows.
struct Ahead {
    Columns4 c[AHEAD];
    Values4 w[AHEAD];
    acc factor[AHEAD];
};

INLINE void fetch(const Matrix& m, const Turn& turn, acc of_row, u32 first, Ahead& e) {
    const u16 beyond = (u16)m.strip;
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
        u32 at = __shfl_sync(EVERY, turn.begin, first + i) + threadIdx.x;
        bool here = at < __shfl_sync(EVERY, turn.end, first + i);
        e.factor[i] = __shfl_sync(EVERY, of_row, first + i);
        // A lane that has nothing adds zeros beyond the strip, so that none has to branch.
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            e.c[i].at[t] = beyond;
            e.w[i].at[t] = narrow<scalar>(acc(0));
        }
        if (here) {
            e.c[i] = columns4(m, at);
            e.w[i] = values4(m, at);
        }
    }
}

INLINE void add_unit(acc* strip_y, const Columns4& c, const Values4& w, acc factor, u32 beyond) {
    // The columns of a row differ, and beyond the strip each lane has a place of its own.
    acc sums[4];
    u32 at[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
        at[t] = c.at[t] + (c.at[t] == beyond ? threadIdx.x : 0);
        sums[t] = strip_y[at[t]];
    }
#pragma unroll
    for (int t = 0; t < 4; ++t) strip_y[at[t]] = sums[t] + factor * (acc)widen(w.at[t]);
}

// `has_long`: whether a row of the turn has more entries than a warp has lanes for.
INLINE void add_rows(const Matrix& m, const Turn& turn, bool has_long, u32 first, const Ahead& e,
                     acc* strip_y) {
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
        add_unit(strip_y, e.c[i], e.w[i], e.factor[i], (u32)m.strip);
        if (has_long) {
            u32 at = __shfl_sync(EVERY, turn.begin, first + i) + threadIdx.x + 32;
            u32 to = __shfl_sync(EVERY, turn.end, first + i);
            for (; at < to; at += 32)
                add_unit(strip_y, columns4(m, at), values4(m, at), e.factor[i], (u32)m.strip);
        }
        // The next row may have the same columns.
        __syncwarp();
    }
}

// The same without atomics and in one order: a warp, which is a block, adds row after row.
KERNEL __launch_bounds__(32) strips_ordered_tiled(const Matrix m, const scalar* g, const Side sg,
                                                  void* y, const Side sy, u64 n, u32 how, u32 add) {
    acc* strip_y = reinterpret_cast<acc*>(shared_bytes);
    const u32 lane = threadIdx.x;
    const Part p = part(m);
    for (u64 v = blockIdx.z; v < n; v += gridDim.z) {
        const scalar* gv = g + v * sg.apart;
        for (u64 strip = p.strip; strip < p.strip_end; ++strip) {
            __syncwarp();
            clear_strip(m, strip_y);
            __syncwarp();
            Turn turn = turn_of(m, p, strip, p.row, lane);
            acc of_row = lane < turn.rows ? (acc)widen(gv[(p.row + lane) * sg.step]) : acc(0);
            Ahead even, odd;
            fetch(m, turn, of_row, 0, even);
            for (u64 base = p.row; base < p.row_end; base += 32) {
                // Known before they are needed.
                Turn next = turn_of(m, p, strip, base + 32, lane);
                acc of_next =
                    lane < next.rows ? (acc)widen(gv[(base + 32 + lane) * sg.step]) : acc(0);
                bool has_long = __any_sync(EVERY, turn.end - turn.begin > 32);
#pragma unroll
                for (u32 first = 0; first < 32; first += 2 * AHEAD) {
                    fetch(m, turn, of_row, first + AHEAD, odd);
                    add_rows(m, turn, has_long, first, even, strip_y);
                    if (first + 2 * AHEAD < 32)
                        fetch(m, turn, of_row, first + 2 * AHEAD, even);
                    else
                        fetch(m, next, of_next, 0, even);
                    add_rows(m, turn, has_long, first + AHEAD, odd, strip_y);
                }
                turn = next;
                of_row = of_next;
            }
            flush(m, strip, strip_y, v, n, y, sy, how, add);
        }
    }
}

// With values in the order of the rows.
KERNEL __launch_bounds__(32) strips_ordered_apart(const Matrix m, const scalar* g, const Side sg,
                                                  void* y, const Side sy, u64 n, u32 how, u32 add) {
    acc* strip_y = reinterpret_cast<acc*>(shared_bytes);
    const Part p = part(m);
    for (u64 v = blockIdx.z; v < n; v += gridDim.z) {
        for (u64 strip = p.strip; strip < p.strip_end; ++strip) {
            __syncwarp();
            clear_strip(m, strip_y);
            __syncwarp();
            for (u64 row = p.row; row < p.row_end; ++row) {
                Segment s = segment<APART>(m, row, strip, entries_before(m, row, strip));
                acc factor = (acc)widen(g[v * sg.apart + row * sg.step]);
                for (u64 k = s.begin + threadIdx.x; k < s.end; k += 32)
                    strip_y[column_of<APART>(m, s, k) - (u32)s.base] += factor * value_of(m, s, k);
                __syncwarp();
            }
            flush(m, strip, strip_y, v, n, y, sy, how, add);
        }
    }
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
