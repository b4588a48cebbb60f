// types: f32 f64 f16 bf16
// variants: sm_90
// Products with the columns of a sparse matrix, `y = Aᵀ·g`, added up in place by atomics, and the
// sampled product, `out[entry] = Σ g[row] · x[column]`. Every warp has `chunk` entries, whatever
// their rows.
#include "sparse.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define VECTOR_ATOMICS 1
#else
#define VECTOR_ATOMICS 0
#endif

// `V` neighbours at once where the chip can.
template <int V> INLINE void add_to(f32* y, const f32 (&terms)[V]) {
    if (VECTOR_ATOMICS && V == 4) {
        asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(y), "f"(terms[0]),
                     "f"(terms[1 % V]), "f"(terms[2 % V]), "f"(terms[3 % V])
                     : "memory");
    } else if (VECTOR_ATOMICS && V == 2) {
        asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(y), "f"(terms[0]),
                     "f"(terms[1 % V])
                     : "memory");
    } else {
#pragma unroll
        for (int t = 0; t < V; ++t) atomicAdd(y + t, terms[t]);
    }
}
template <int V> INLINE void add_to(f64* y, const f64 (&terms)[V]) {
#pragma unroll
    for (int t = 0; t < V; ++t) atomicAdd(y + t, terms[t]);
}

// With V = 1 vectors may lie in any way in y; with more they lie side by side.
template <int FORM, int V>
INLINE void scatter(const Matrix& m, const scalar* g, Side sg, acc* y, Side sy, u64 n, u32 lanes,
                    u64 chunk) {
    const u32 lane = threadIdx.x & 31, group = lane / lanes, inside = lane & (lanes - 1);
    const u32 groups = 32 / lanes;
    const u64 warp = thread_index() >> 5, warps = thread_count() >> 5;
    for (u64 block = blockIdx.y; block * lanes * V < n; block += gridDim.y) {
        const u64 j = (block * lanes + inside) * V;
        const bool active = j < n;
        for (u64 w = warp; m.first + w * chunk < m.last; w += warps) {
            u64 from = m.first + w * chunk;
            u64 to = from + chunk < m.last ? from + chunk : m.last;
            walk<FORM>(m, from, to, [&](const Segment& s) {
                acc of_row[V] = {};
                if (active)
#pragma unroll
                    for (int t = 0; t < V; ++t)
                        of_row[t] = (acc)widen(g[s.row * sg.step + (j + t) * sg.apart]);
                for (u64 begin = s.begin; begin < s.end; begin += 32) {
                    u32 left = s.end - begin < 32 ? (u32)(s.end - begin) : 32;
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
                            acc terms[V];
#pragma unroll
                            for (int t = 0; t < V; ++t) terms[t] = a * of_row[t];
                            add_to<V>(y + (u64)c * sy.step + j * sy.apart, terms);
                        }
                    }
                }
            });
        }
    }
}

// `lanes` lanes an entry, which share its vectors.
template <int FORM>
INLINE void sampled(const Matrix& m, const scalar* g, Side sg, const scalar* x, Side sx, scalar* out,
                    u64 n, u32 lanes, u64 chunk, u32 add) {
    const u32 lane = threadIdx.x & 31, group = lane / lanes, inside = lane & (lanes - 1);
    const u32 groups = 32 / lanes;
    const u64 warp = thread_index() >> 5, warps = thread_count() >> 5;
    for (u64 w = warp; m.first + w * chunk < m.last; w += warps) {
        u64 from = m.first + w * chunk;
        u64 to = from + chunk < m.last ? from + chunk : m.last;
        walk<FORM>(m, from, to, [&](const Segment& s) {
            const scalar* row = g + s.row * sg.step;
            for (u64 begin = s.begin; begin < s.end; begin += groups) {
                u64 entry = begin + group;
                bool holds = entry < s.end;
                Total total = no_terms();
                if (holds) {
                    const scalar* column = x + (u64)column_of<FORM>(m, s, entry) * sx.step;
                    for (u64 j = inside; j < n;) {
                        const u64 end = stretch_end(j, n, lanes);
                        acc part = 0;
#pragma unroll 4
                        for (; j < end; j += lanes)
                            part += (acc)widen(row[j * sg.apart]) * (acc)widen(column[j * sx.apart]);
                        add_stretch(total, part);
                    }
                }
                acc sum = finished(total);
                for (u32 offset = lanes / 2; offset > 0; offset >>= 1)
                    sum += __shfl_xor_sync(EVERY, sum, offset);
                if (holds && inside == 0) put(out + entry + s.shift, sum, add);
            }
        });
    }
}

KERNEL sampled_csr(const Matrix m, const scalar* g, const Side sg, const scalar* x, const Side sx,
                   scalar* out, u64 n, u32 lanes, u64 chunk, u32 add) {
    sampled<ROWS>(m, g, sg, x, sx, out, n, lanes, chunk, add);
}
KERNEL sampled_apart(const Matrix m, const scalar* g, const Side sg, const scalar* x, const Side sx,
                     scalar* out, u64 n, u32 lanes, u64 chunk, u32 add) {
    sampled<APART>(m, g, sg, x, sx, out, n, lanes, chunk, add);
}

#define SCATTER(form, name, V)                                                                     \
    KERNEL scatter_##name##_##V(const Matrix m, const scalar* g, const Side sg, acc* y,            \
                                const Side sy, u64 n, u32 lanes, u64 chunk) {                      \
        scatter<form, V>(m, g, sg, y, sy, n, lanes, chunk);                                        \
    }
#define EACH(V)                                                                                    \
    SCATTER(ROWS, csr, V)                                                                          \
    SCATTER(TILED, tiled, V)                                                                       \
    SCATTER(APART, apart, V)
EACH(1)
EACH(2)
EACH(4)
