// types: f32 f64 f16 bf16
// Layer normalisation and its gradients. Means are taken of the differences from the row's first
// number and subtracted in two parts, so that rows far from zero keep their digits, and variances in
// a second pass over the row.
#include "rows.cuh"

// A row's mean, as a number and what rounding left of it, and the reciprocal of its deviation.
struct Moments {
    acc mean, rest, rstd;

    __device__ __forceinline__ acc centred(acc x) const { return (x - mean) - rest; }
    __device__ __forceinline__ acc normalised(acc x) const { return centred(x) * rstd; }

    // From the sum of the differences from `first`.
    __device__ __forceinline__ void set_mean(acc first, f64 differences, u64 n) {
        f64 exact = (f64)first + differences / (f64)n;
        mean = (acc)exact;
        rest = (acc)(exact - (f64)mean);
    }
    // What rounding took from a mean that was kept is found again where it is not small beside the
    // deviation.
    __device__ __forceinline__ bool far() const { return fabs(mean * rstd) > acc(4); }
    __device__ __forceinline__ void set_rest(acc first, f64 differences, u64 n) {
        rest = (acc)(((f64)first - (f64)mean) + differences / (f64)n);
    }
    __device__ __forceinline__ void set_rstd(acc squares, u64 n, f64 epsilon) {
        rstd = acc(1) / sqrt(squares / (acc)n + (acc)epsilon);
    }
};

template <bool BLOCK>
INLINE acc differences(const Group<BLOCK>& group, const acc (&v)[HELD], acc first) {
    acc sum = 0;
#pragma unroll
    for (int j = 0; j < HELD; ++j) sum += v[j] - first;
    return group.sum(sum);
}

template <bool BLOCK>
INLINE void forward_held(const scalar* x, const scalar* weight, const scalar* bias, f64 epsilon,
                         scalar* out, acc* mean, acc* rstd, u64 rows, u32 n, u32 lanes, u32 wide) {
    each_row<BLOCK>(rows, lanes, [&](const Group<BLOCK>& group, u64 row, bool active) {
        Spread spread = {active ? n : 0, group.lane, group.lanes, wide != 0};
        acc v[HELD], other[HELD];
        acc first = active ? widen(x[row * n]) : acc(0);
        fetch(x + row * n, spread, first, v);
        Moments m;
        m.set_mean(first, (f64)differences(group, v, first), n);
        acc squares = 0;
#pragma unroll
        for (int j = 0; j < HELD; ++j) {
            v[j] = m.centred(v[j]);
            if (spread.at(j) < spread.n) squares += v[j] * v[j];
        }
        m.set_rstd(group.sum(squares), n, epsilon);
        if (active && group.lane == 0) {
            mean[row] = m.mean;
            rstd[row] = m.rstd;
        }
#pragma unroll
        for (int j = 0; j < HELD; ++j) v[j] *= m.rstd;
        if (weight) {
            fetch(weight, spread, acc(1), other);
#pragma unroll
            for (int j = 0; j < HELD; ++j) v[j] *= other[j];
        }
        if (bias) {
            fetch(bias, spread, acc(0), other);
#pragma unroll
            for (int j = 0; j < HELD; ++j) v[j] += other[j];
        }
        put(out + row * n, spread, v);
    });
}

KERNEL __launch_bounds__(256)
layer_norm_short(const scalar* x, const scalar* weight, const scalar* bias, f64 epsilon, scalar* out,
                 acc* mean, acc* rstd, u64 rows, u32 n, u32 lanes, u32 wide) {
    forward_held<false>(x, weight, bias, epsilon, out, mean, rstd, rows, n, lanes, wide);
}

KERNEL __launch_bounds__(HOLDERS)
layer_norm_row(const scalar* x, const scalar* weight, const scalar* bias, f64 epsilon, scalar* out,
               acc* mean, acc* rstd, u64 rows, u32 n, u32 lanes, u32 wide) {
    forward_held<true>(x, weight, bias, epsilon, out, mean, rstd, rows, n, lanes, wide);
}

// The sum of a streamed row's differences from `first`, in every thread.
INLINE f64 streamed_differences(const scalar* x, u64 n, u64 head, acc first) {
    f64 sum = 0;
    stream(n, head, [&](u64 at, int count) {
        acc v[PACK], part = 0;
        load(x + at, count, v);
        EACH(i, count) part += v[i] - first;
        sum += (f64)part;
    });
    return block_sum(sum);
}

KERNEL __launch_bounds__(STREAMERS)
layer_norm_long(const scalar* x, const scalar* weight, const scalar* bias, f64 epsilon, scalar* out,
                acc* mean, acc* rstd, u64 rows, u64 n) {
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const scalar* from = x + row * n;
        scalar* to = out + row * n;
        u64 others = (u64)to - (u64)from;
        if (weight) others |= (u64)weight - (u64)from;
        if (bias) others |= (u64)bias - (u64)from;
        u64 head = unaligned(from, n, others);
        acc first = widen(from[0]);
        Moments m;
        m.set_mean(first, streamed_differences(from, n, head, first), n);
        f64 squares = 0;
        stream(n, head, [&](u64 at, int count) {
            acc v[PACK], part = 0;
            load(from + at, count, v);
            EACH(i, count) part += m.centred(v[i]) * m.centred(v[i]);
            squares += (f64)part;
        });
        m.set_rstd((acc)block_sum(squares), n, epsilon);
        if (threadIdx.x == 0) {
            mean[row] = m.mean;
            rstd[row] = m.rstd;
        }
        stream(n, head, [&](u64 at, int count) {
            acc v[PACK], other[PACK];
            load(from + at, count, v);
            EACH(i, count) v[i] = m.normalised(v[i]);
            if (weight) {
                load(weight + at, count, other);
                EACH(i, count) v[i] *= other[i];
            }
            if (bias) {
                load(bias + at, count, other);
                EACH(i, count) v[i] += other[i];
            }
            store(to + at, count, v);
        });
    }
}

// ---- the gradient of x: `rstd·(g - mean(g) - x̂·mean(g·x̂))` with `g = dy·weight`

template <bool BLOCK>
INLINE void gradient_held(const scalar* x, const scalar* weight, const acc* mean, const acc* rstd,
                          const scalar* dy, scalar* dx, u64 rows, u32 n, u32 lanes, u32 wide) {
    each_row<BLOCK>(rows, lanes, [&](const Group<BLOCK>& group, u64 row, bool active) {
        Spread spread = {active ? n : 0, group.lane, group.lanes, wide != 0};
        acc v[HELD], g[HELD];
        acc first = active ? widen(x[row * n]) : acc(0);
        fetch(x + row * n, spread, first, v);
        fetch(dy + row * n, spread, acc(0), g);
        Moments m = {active ? mean[row] : acc(0), acc(0), active ? rstd[row] : acc(0)};
        // All lanes of a warp shuffle, so all do where one of its rows is far from zero.
        bool far = BLOCK ? m.far() : __any_sync(0xffffffffu, m.far());
        if (far) {
            f64 sum = (f64)differences(group, v, first);
            if (m.far()) m.set_rest(first, sum, n);
        }
        if (weight) {
            acc other[HELD];
            fetch(weight, spread, acc(0), other);
#pragma unroll
            for (int j = 0; j < HELD; ++j) g[j] *= other[j];
        }
        acc sum = 0, product = 0;
#pragma unroll
        for (int j = 0; j < HELD; ++j) {
            v[j] = m.normalised(v[j]);
            if (spread.at(j) < spread.n) {
                sum += g[j];
                product += g[j] * v[j];
            }
        }
        sum = group.sum(sum) / (acc)n;
        product = group.sum(product) / (acc)n;
#pragma unroll
        for (int j = 0; j < HELD; ++j) v[j] = m.rstd * ((g[j] - sum) - v[j] * product);
        put(dx + row * n, spread, v);
    });
}

KERNEL __launch_bounds__(256)
layer_norm_gradient_short(const scalar* x, const scalar* weight, const acc* mean, const acc* rstd,
                          const scalar* dy, scalar* dx, u64 rows, u32 n, u32 lanes, u32 wide) {
    gradient_held<false>(x, weight, mean, rstd, dy, dx, rows, n, lanes, wide);
}

KERNEL __launch_bounds__(HOLDERS)
layer_norm_gradient_row(const scalar* x, const scalar* weight, const acc* mean, const acc* rstd,
                        const scalar* dy, scalar* dx, u64 rows, u32 n, u32 lanes, u32 wide) {
    gradient_held<true>(x, weight, mean, rstd, dy, dx, rows, n, lanes, wide);
}

INLINE void load_weighted(const scalar* dy, const scalar* weight, u64 at, int count, acc (&g)[PACK]) {
    load(dy + at, count, g);
    if (weight) {
        acc other[PACK];
        load(weight + at, count, other);
        EACH(i, count) g[i] *= other[i];
    }
}

KERNEL __launch_bounds__(STREAMERS)
layer_norm_gradient_long(const scalar* x, const scalar* weight, const acc* mean, const acc* rstd,
                         const scalar* dy, scalar* dx, u64 rows, u64 n) {
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const scalar *from = x + row * n, *given = dy + row * n;
        scalar* to = dx + row * n;
        u64 others = ((u64)to - (u64)from) | ((u64)given - (u64)from);
        if (weight) others |= (u64)weight - (u64)from;
        u64 head = unaligned(from, n, others);
        Moments m = {mean[row], acc(0), rstd[row]};
        if (m.far()) {
            acc first = widen(from[0]);
            m.set_rest(first, streamed_differences(from, n, head, first), n);
        }
        f64 sum = 0, product = 0;
        stream(n, head, [&](u64 at, int count) {
            acc v[PACK], g[PACK], part = 0, both = 0;
            load(from + at, count, v);
            load_weighted(given, weight, at, count, g);
            EACH(i, count) {
                part += g[i];
                both += g[i] * m.normalised(v[i]);
            }
            sum += (f64)part;
            product += (f64)both;
        });
        acc level = (acc)(block_sum(sum) / (f64)n), tilt = (acc)(block_sum(product) / (f64)n);
        stream(n, head, [&](u64 at, int count) {
            acc v[PACK], g[PACK];
            load(from + at, count, v);
            load_weighted(given, weight, at, count, g);
            EACH(i, count) v[i] = m.rstd * ((g[i] - level) - m.normalised(v[i]) * tilt);
            store(to + at, count, v);
        });
    }
}

// ---- the gradients of weight and bias: `Σ dy·x̂` and `Σ dy` over the rows

static const u32 THREADS = 256;
// Rows whose moments a block has at hand.
static const u32 BATCH = 64;

// A block takes `width` columns of a chunk of rows. With one chunk it writes the result, else sums
// of its chunk: those of the weights of all chunks first, then those of the biases.
KERNEL __launch_bounds__(THREADS)
layer_norm_columns(const scalar* x, const acc* mean, const acc* rstd, const scalar* dy, u64 rows,
                   u64 features, u32 width, u64 chunks, u64 chunk_rows, f64* partials,
                   scalar* dweight, scalar* dbias) {
    __shared__ Moments moments[BATCH];
    __shared__ f64 weights[THREADS], biases[THREADS];
    u64 tiles = (features + width - 1) / width;
    u64 chunk = blockIdx.x / tiles;
    u64 column = (blockIdx.x - chunk * tiles) * width + threadIdx.x % width;
    u32 part = threadIdx.x / width, parts = THREADS / width;
    u64 start = chunk * chunk_rows, end = start + chunk_rows < rows ? start + chunk_rows : rows;
    f64 weight = 0, bias = 0;
    for (u64 base = start; base < end; base += BATCH) {
        u32 count = end - base < BATCH ? (u32)(end - base) : BATCH;
        __syncthreads();
        if (threadIdx.x < count)
            moments[threadIdx.x] = {mean[base + threadIdx.x], acc(0), rstd[base + threadIdx.x]};
        __syncthreads();
        for (u32 i = threadIdx.x / 32; i < count; i += THREADS / 32) {
            if (!dweight || !moments[i].far()) continue;
            const scalar* row = x + (base + i) * features;
            acc first = widen(row[0]);
            f64 sum = 0;
            for (u64 at = threadIdx.x % 32; at < features; at += 32)
                sum += (f64)(widen(row[at]) - first);
            sum = warp_sum(sum);
            if (threadIdx.x % 32 == 0) moments[i].set_rest(first, sum, features);
        }
        __syncthreads();
        if (column < features) {
            acc product = 0, level = 0;
            const scalar *own = x + base * features + column, *given = dy + base * features + column;
            if (dweight) {
#pragma unroll 4
                for (u32 i = part; i < count; i += parts) {
                    acc g = widen(given[i * features]);
                    product += g * moments[i].normalised(widen(own[i * features]));
                    level += g;
                }
            } else {
#pragma unroll 4
                for (u32 i = part; i < count; i += parts) level += widen(given[i * features]);
            }
            weight += (f64)product;
            bias += (f64)level;
        }
    }
    weights[threadIdx.x] = weight;
    biases[threadIdx.x] = bias;
    __syncthreads();
    if (part != 0 || column >= features) return;
    for (u32 k = 1; k < parts; ++k) {
        weight += weights[k * width + threadIdx.x];
        bias += biases[k * width + threadIdx.x];
    }
    if (chunks == 1) {
        if (dweight) dweight[column] = narrow<scalar>(weight);
        if (dbias) dbias[column] = narrow<scalar>(bias);
    } else {
        partials[chunk * features + column] = weight;
        partials[(chunks + chunk) * features + column] = bias;
    }
}

KERNEL layer_norm_finish(const f64* partials, u64 chunks, u64 features, scalar* dweight,
                         scalar* dbias) {
    for (u64 column = thread_index(); column < features; column += thread_count()) {
        f64 weight = 0, bias = 0;
        for (u64 chunk = 0; chunk < chunks; ++chunk) {
            weight += partials[chunk * features + column];
            bias += partials[(chunks + chunk) * features + column];
        }
        if (dweight) dweight[column] = narrow<scalar>(weight);
        if (dbias) dbias[column] = narrow<scalar>(bias);
    }
}
