// types: f32 f64 f16 bf16
// Products with the rows of a sparse matrix: each row's sum over its entries, `y = A·x`.
#include "sparse.cuh"

// One vector after the other; `lanes` neighbours share a row.
template <int FORM>
INLINE void rows_one(const Matrix& m, const scalar* x, Side sx, scalar* y, Side sy, u64 n, u32 lanes,
                     u32 add) {
    const u32 lane = threadIdx.x & 31, inside = lane & (lanes - 1), group = lane / lanes;
    const u64 at_once = 32 / lanes, warp = thread_index() >> 5, warps = thread_count() >> 5;
    for (u64 v = blockIdx.y; v < n; v += gridDim.y) {
        const scalar* xv = x + v * sx.apart;
        for (u64 base = m.row_begin + warp * at_once; base < m.row_end; base += warps * at_once) {
            u64 row = base + group;
            Total total = no_terms();
            if (row < m.row_end) {
                u64 before = 0;
                for (u64 strip = 0; strip < (FORM == ROWS ? 1 : m.strips); ++strip) {
                    Segment s = segment<FORM>(m, row, strip, before);
                    before += s.end - s.begin;
                    for (u64 k = s.begin + inside; k < s.end;) {
                        u64 end = stretch_end(k, s.end, lanes);
                        acc part = 0;
#pragma unroll 4
                        for (; k < end; k += lanes)
                            part += value_of(m, s, k) *
                                    (acc)widen(xv[(u64)column_of<FORM>(m, s, k) * sx.step]);
                        add_stretch(total, part);
                    }
                }
            }
            acc sum = finished(total);
            for (u32 offset = lanes / 2; offset > 0; offset >>= 1)
                sum += __shfl_xor_sync(EVERY, sum, offset);
            if (inside == 0 && row < m.row_end) put(y + row * sy.step + v * sy.apart, sum, add);
        }
    }
}

KERNEL rows_one_csr(const Matrix m, const scalar* x, const Side sx, scalar* y, const Side sy, u64 n,
                    u32 lanes, u32 add) {
    rows_one<ROWS>(m, x, sx, y, sy, n, lanes, add);
}
KERNEL rows_one_tiled(const Matrix m, const scalar* x, const Side sx, scalar* y, const Side sy,
                      u64 n, u32 lanes, u32 add) {
    rows_one<TILED>(m, x, sx, y, sy, n, lanes, add);
}
KERNEL rows_one_apart(const Matrix m, const scalar* x, const Side sx, scalar* y, const Side sy,
                      u64 n, u32 lanes, u32 add) {
    rows_one<APART>(m, x, sx, y, sy, n, lanes, add);
}

// Adds the entries of a segment, of vectors `j .. j+V`: the groups of `lanes` lanes of a warp take
// entries in turn, the lanes of a group neighbouring vectors.
template <int FORM, int V>
INLINE void gather(const Matrix& m, const Segment& s, const scalar* x, u64 ldx, u64 j, bool active,
                   u32 lanes, acc (&sum)[V]) {
    const u32 lane = threadIdx.x & 31, group = lane / lanes, groups = 32 / lanes;
    Total total[V] = {};
    for (u64 begin = s.begin; begin < s.end;) {
        const u64 end = stretch_end(begin, s.end, groups);
        acc part[V] = {};
        for (; begin < end; begin += 32) {
            u32 left = end - begin < 32 ? (u32)(end - begin) : 32;
            u32 column = 0;
            acc value = 0;
            if (lane < left) {
                column = column_of<FORM>(m, s, begin + lane);
                value = value_of(m, s, begin + lane);
            }
#pragma unroll 4
            for (u32 i = 0; i < left; i += groups) {
                u32 source = i + group;
                u32 c = __shfl_sync(EVERY, column, source & 31);
                acc a = __shfl_sync(EVERY, value, source & 31);
                if (source < left && active) {
                    Pack<scalar, V> pack =
                        *reinterpret_cast<const Pack<scalar, V>*>(x + (u64)c * ldx + j);
#pragma unroll
                    for (int t = 0; t < V; ++t) part[t] += a * (acc)widen(pack.at[t]);
                }
            }
        }
#pragma unroll
        for (int t = 0; t < V; ++t) add_stretch(total[t], part[t]);
    }
#pragma unroll
    for (int t = 0; t < V; ++t) sum[t] += finished(total[t]);
#pragma unroll
    for (int t = 0; t < V; ++t)
        for (u32 offset = lanes; offset < 32; offset <<= 1)
            sum[t] += __shfl_xor_sync(EVERY, sum[t], offset);
}

// A warp a row; vectors lie side by side in x, `ldx` elements between its rows, of which blocks of
// `V * lanes` are taken at a time.
template <int FORM, int V>
INLINE void rows_wide(const Matrix& m, const scalar* x, u64 ldx, scalar* y, Side sy, u64 n, u32 lanes,
                      u32 add) {
    const u32 lane = threadIdx.x & 31, group = lane / lanes, inside = lane & (lanes - 1);
    const u64 warp = thread_index() >> 5, warps = thread_count() >> 5;
    for (u64 block = blockIdx.y; block * lanes * V < n; block += gridDim.y) {
        const u64 j = (block * lanes + inside) * V;
        for (u64 row = m.row_begin + warp; row < m.row_end; row += warps) {
            acc sum[V] = {};
            u64 before = 0;
            for (u64 strip = 0; strip < (FORM == ROWS ? 1 : m.strips); ++strip) {
                Segment s = segment<FORM>(m, row, strip, before);
                before += s.end - s.begin;
                acc part[V] = {};
                gather<FORM, V>(m, s, x, ldx, j, j < n, lanes, part);
#pragma unroll
                for (int t = 0; t < V; ++t) sum[t] += part[t];
            }
            if (group == 0 && j < n)
#pragma unroll
                for (int t = 0; t < V; ++t) put(y + row * sy.step + (j + t) * sy.apart, sum[t], add);
        }
    }
}

// For short rows: `lanes` lanes a row, each of which goes through all of its entries.
template <int V>
INLINE void rows_short(const Matrix& m, const scalar* x, u64 ldx, scalar* y, Side sy, u64 n,
                       u32 lanes, u32 add) {
    const u64 inside = threadIdx.x & (lanes - 1);
    const u64 first = thread_index() / lanes, groups = thread_count() / lanes;
    for (u64 block = blockIdx.y; block * lanes * V < n; block += gridDim.y) {
        const u64 j = (block * lanes + inside) * V;
        if (j >= n) continue;
        for (u64 row = m.row_begin + first; row < m.row_end; row += groups) {
            Segment s = segment<ROWS>(m, row, 0, 0);
            Total total[V] = {};
            for (u64 k = s.begin; k < s.end;) {
                const u64 end = stretch_end(k, s.end, 1);
                acc part[V] = {};
#pragma unroll 4
                for (; k < end; ++k) {
                    u64 c = column_of<ROWS>(m, s, k);
                    acc a = value_of(m, s, k);
                    Pack<scalar, V> pack =
                        *reinterpret_cast<const Pack<scalar, V>*>(x + c * ldx + j);
#pragma unroll
                    for (int t = 0; t < V; ++t) part[t] += a * (acc)widen(pack.at[t]);
                }
#pragma unroll
                for (int t = 0; t < V; ++t) add_stretch(total[t], part[t]);
            }
#pragma unroll
            for (int t = 0; t < V; ++t)
                put(y + row * sy.step + (j + t) * sy.apart, finished(total[t]), add);
        }
    }
}

// A warp has `chunk` entries, whatever their rows. Sums of rows that are cut go to `carry`, [chunks,
// 2, n]: of the row that began before the chunk, and of the one that goes on after it. The others
// are put into y, where rows without entries have been seen to.
template <int V>
INLINE void rows_split(const Matrix& m, const scalar* x, u64 ldx, scalar* y, Side sy, u64 n,
                       u32 lanes, u32 add, u64 chunk, acc* carry) {
    const u32 lane = threadIdx.x & 31, group = lane / lanes, inside = lane & (lanes - 1);
    const u64 warp = thread_index() >> 5, warps = thread_count() >> 5;
    for (u64 block = blockIdx.y; block * lanes * V < n; block += gridDim.y) {
        const u64 j = (block * lanes + inside) * V;
        for (u64 w = warp; m.first + w * chunk < m.last; w += warps) {
            u64 from = m.first + w * chunk;
            u64 to = from + chunk < m.last ? from + chunk : m.last;
            walk<ROWS>(m, from, to, [&](const Segment& s) {
                acc sum[V] = {};
                gather<ROWS, V>(m, s, x, ldx, j, j < n, lanes, sum);
                if (group != 0 || j >= n) return;
                bool head = row_offset(m, s.row) < from, tail = row_offset(m, s.row + 1) > to;
#pragma unroll
                for (int t = 0; t < V; ++t) {
                    if (head || tail)
                        carry[(w * 2 + (head ? 0 : 1)) * n + j + t] = sum[t];
                    else
                        put(y + s.row * sy.step + (j + t) * sy.apart, sum[t], add);
                }
            });
        }
    }
}

// The sums of the rows that `rows_split` cut: a warp has a chunk in which such a row begins.
KERNEL rows_join(const Matrix m, scalar* y, const Side sy, u64 n, u32 add, u64 chunk,
                 const acc* carry) {
    const u32 lane = threadIdx.x & 31;
    const u64 warp = thread_index() >> 5, warps = thread_count() >> 5;
    for (u64 w = warp; m.first + (w + 1) * chunk < m.last; w += warps) {
        u64 from = m.first + w * chunk, to = from + chunk;
        u64 row = line_of<ROWS>(m, to - 1, m.row_begin, m.row_end);
        u64 end = row_offset(m, row + 1);
        if (end <= to || row_offset(m, row) < from) continue;
        // Chunks after this one that hold a part of the row.
        u64 heads = (end - 1 - m.first) / chunk - w;
        const acc* head = carry + (w + 1) * 2 * n;
        if (heads <= 8) {
            for (u64 j = lane; j < n; j += 32) {
                acc sum = carry[(w * 2 + 1) * n + j];
                for (u64 h = 0; h < heads; ++h) sum += head[h * 2 * n + j];
                put(y + row * sy.step + j * sy.apart, sum, add);
            }
        } else {
            for (u64 j = 0; j < n; ++j) {
                acc sum = 0;
                for (u64 h = lane; h < heads; h += 32) sum += head[h * 2 * n + j];
                sum = warp_sum(sum) + carry[(w * 2 + 1) * n + j];
                if (lane == 0) put(y + row * sy.step + j * sy.apart, sum, add);
            }
        }
    }
}

#define WIDE(form, name, V)                                                                        \
    KERNEL rows_wide_##name##_##V(const Matrix m, const scalar* x, u64 ldx, scalar* y,             \
                                  const Side sy, u64 n, u32 lanes, u32 add) {                      \
        rows_wide<form, V>(m, x, ldx, y, sy, n, lanes, add);                                       \
    }
#define EACH(V)                                                                                    \
    WIDE(ROWS, csr, V)                                                                             \
    WIDE(TILED, tiled, V)                                                                          \
    WIDE(APART, apart, V)                                                                          \
    KERNEL rows_short_##V(const Matrix m, const scalar* x, u64 ldx, scalar* y, const Side sy,      \
                          u64 n, u32 lanes, u32 add) {                                             \
        rows_short<V>(m, x, ldx, y, sy, n, lanes, add);                                            \
    }                                                                                              \
    KERNEL rows_split_##V(const Matrix m, const scalar* x, u64 ldx, scalar* y, const Side sy,      \
                          u64 n, u32 lanes, u32 add, u64 chunk, acc* carry) {                      \
        rows_split<V>(m, x, ldx, y, sy, n, lanes, add, chunk, carry);                              \
    }
EACH(1)
EACH(2)
EACH(4)
