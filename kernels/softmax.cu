// types: f32 f64 f16 bf16
// Softmax along an axis, its logarithm, and their gradients: rows where the axis is the last, columns
// that threads walk down side by side elsewhere.
#include "rows.cuh"

INLINE acc rest(u32 log_, acc sum) { return log_ ? log(sum) : acc(1) / sum; }

INLINE acc finish(u32 log_, acc x, acc largest, acc rest) {
    return log_ ? (x - largest) - rest : exp(x - largest) * rest;
}

template <bool BLOCK>
INLINE void softmax_held(const scalar* x, scalar* out, u64 rows, u32 n, u32 lanes, u32 wide, u32 log_) {
    each_row<BLOCK>(rows, lanes, [&](const Group<BLOCK>& group, u64 row, bool active) {
        Spread spread = {active ? n : 0, group.lane, group.lanes, wide != 0};
        acc v[HELD], largest, sum;
        fetch(x + row * n, spread, -infinity(), v);
        held_statistics(group, v, largest, sum);
        acc left = rest(log_, sum);
#pragma unroll
        for (int j = 0; j < HELD; ++j) v[j] = finish(log_, v[j], largest, left);
        put(out + row * n, spread, v);
    });
}

KERNEL __launch_bounds__(256)
softmax_short(const scalar* x, scalar* out, u64 rows, u32 n, u32 lanes, u32 wide, u32 log_) {
    softmax_held<false>(x, out, rows, n, lanes, wide, log_);
}

KERNEL __launch_bounds__(HOLDERS)
softmax_row(const scalar* x, scalar* out, u64 rows, u32 n, u32 lanes, u32 wide, u32 log_) {
    softmax_held<true>(x, out, rows, n, lanes, wide, log_);
}

KERNEL __launch_bounds__(STREAMERS)
softmax_long(const scalar* x, scalar* out, u64 rows, u64 n, u32 log_) {
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const scalar* from = x + row * n;
        scalar* to = out + row * n;
        u64 head = unaligned(from, n, (u64)to - (u64)from);
        Statistics all = row_statistics(from, n, head);
        acc left = rest(log_, (acc)all.sum);
        stream(n, head, [&](u64 at, int count) {
            acc v[PACK];
            load(from + at, count, v);
            EACH(i, count) v[i] = finish(log_, v[i], all.largest, left);
            store(to + at, count, v);
        });
    }
}

// ---- the gradient

// Probabilities that a rounded `y` stands for add up to one only nearly: see the CPU's.
INLINE acc probability(u32 log_, acc y) { return log_ ? exp(y) : y; }

INLINE acc term(u32 log_, acc y, acc dy) { return log_ ? dy : y * dy; }

INLINE acc gradient(u32 log_, acc y, acc dy, acc mean) {
    return log_ ? dy - exp(y) * mean : y * (dy - mean);
}

template <bool BLOCK>
INLINE void gradient_held(const scalar* y, const scalar* dy, scalar* out, u64 rows, u32 n, u32 lanes,
                          u32 wide, u32 log_) {
    each_row<BLOCK>(rows, lanes, [&](const Group<BLOCK>& group, u64 row, bool active) {
        Spread spread = {active ? n : 0, group.lane, group.lanes, wide != 0};
        acc a[HELD], b[HELD];
        // Nothing: e^-∞ is 0, as 0 is; and 0·0.
        fetch(y + row * n, spread, log_ ? -infinity() : acc(0), a);
        fetch(dy + row * n, spread, acc(0), b);
        acc sum = 0, whole = 0;
#pragma unroll
        for (int j = 0; j < HELD; ++j) {
            sum += term(log_, a[j], b[j]);
            whole += probability(log_, a[j]);
        }
        acc mean = group.sum(sum);
        mean /= group.sum(whole);
#pragma unroll
        for (int j = 0; j < HELD; ++j) a[j] = gradient(log_, a[j], b[j], mean);
        put(out + row * n, spread, a);
    });
}

KERNEL __launch_bounds__(256)
softmax_gradient_short(const scalar* y, const scalar* dy, scalar* out, u64 rows, u32 n, u32 lanes,
                       u32 wide, u32 log_) {
    gradient_held<false>(y, dy, out, rows, n, lanes, wide, log_);
}

KERNEL __launch_bounds__(HOLDERS)
softmax_gradient_row(const scalar* y, const scalar* dy, scalar* out, u64 rows, u32 n, u32 lanes,
                     u32 wide, u32 log_) {
    gradient_held<true>(y, dy, out, rows, n, lanes, wide, log_);
}

KERNEL __launch_bounds__(STREAMERS)
softmax_gradient_long(const scalar* y, const scalar* dy, scalar* out, u64 rows, u64 n, u32 log_) {
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const scalar *own = y + row * n, *given = dy + row * n;
        scalar* to = out + row * n;
        u64 others = ((u64)to - (u64)own) | ((u64)given - (u64)own);
        u64 head = unaligned(own, n, others);
        f64 sum = 0, whole = 0;
        stream(n, head, [&](u64 at, int count) {
            acc a[PACK], b[PACK], part = 0, mass = 0;
            load(own + at, count, a);
            load(given + at, count, b);
            EACH(i, count) {
                part += term(log_, a[i], b[i]);
                mass += probability(log_, a[i]);
            }
            sum += (f64)part;
            whole += (f64)mass;
        });
        sum = block_sum(sum);
        whole = block_sum(whole);
        acc mean = (acc)(sum / whole);
        stream(n, head, [&](u64 at, int count) {
            acc a[PACK], b[PACK];
            load(own + at, count, a);
            load(given + at, count, b);
            EACH(i, count) a[i] = gradient(log_, a[i], b[i], mean);
            store(to + at, count, a);
        });
    }
}

// ---- columns: `width` side by side in a block, each walked down by several threads

static const u32 THREADS = 256;
static const int STEPS = 4;

// Calls `f(first, column)` with where each of the block's columns begins; all threads take part.
template <class F> INLINE void each_column(u64 outer, u64 n, u64 inner, u32 width, F f) {
    u64 columns = outer * inner;
    for (u64 tile = blockIdx.x; tile * width < columns; tile += gridDim.x) {
        u64 column = tile * width + threadIdx.x % width;
        bool active = column < columns;
        u64 row = active ? column / inner : 0;
        f(active ? row * n * inner + (column - row * inner) : 0, active);
    }
}

KERNEL __launch_bounds__(THREADS)
softmax_columns(const scalar* x, scalar* out, u64 outer, u64 n, u64 inner, u32 width, u32 log_) {
    __shared__ acc largests[THREADS];
    __shared__ f64 sums[THREADS];
    u32 part = threadIdx.x / width, parts = THREADS / width, own = threadIdx.x % width;
    each_column(outer, n, inner, width, [&](u64 first, bool active) {
        const scalar* from = x + first;
        scalar* to = out + first;
        u64 count = active ? n : 0;
        Statistics mine = no_statistics();
        for (u64 i = part; i < count; i += parts * STEPS) {
            acc v[STEPS];
#pragma unroll
            for (int k = 0; k < STEPS; ++k) {
                u64 at = i + k * parts;
                v[k] = at < count ? widen(from[at * inner]) : -infinity();
            }
            mine.add(v, STEPS);
        }
        __syncthreads();
        largests[threadIdx.x] = mine.largest;
        __syncthreads();
        acc largest = largests[own];
        for (u32 k = 1; k < parts; ++k) {
            acc other = largests[k * width + own];
            largest = other > largest ? other : largest;
        }
        sums[threadIdx.x] = mine.share(largest);
        __syncthreads();
        f64 sum = 0;
        for (u32 k = 0; k < parts; ++k) sum += sums[k * width + own];
        acc left = rest(log_, (acc)sum);
#pragma unroll 4
        for (u64 i = part; i < count; i += parts)
            to[i * inner] = narrow<scalar>(finish(log_, widen(from[i * inner]), largest, left));
    });
}

KERNEL __launch_bounds__(THREADS)
softmax_gradient_columns(const scalar* y, const scalar* dy, scalar* out, u64 outer, u64 n, u64 inner,
                         u32 width, u32 log_) {
    __shared__ f64 sums[THREADS], wholes[THREADS];
    u32 part = threadIdx.x / width, parts = THREADS / width, own = threadIdx.x % width;
    each_column(outer, n, inner, width, [&](u64 first, bool active) {
        const scalar *saved = y + first, *given = dy + first;
        scalar* to = out + first;
        u64 count = active ? n : 0;
        f64 sum = 0, whole = 0;
        for (u64 i = part; i < count; i += parts * STEPS) {
            acc piece = 0, mass = 0;
#pragma unroll
            for (int k = 0; k < STEPS; ++k) {
                u64 at = i + k * parts;
                if (at < count) {
                    acc a = widen(saved[at * inner]), b = widen(given[at * inner]);
                    piece += term(log_, a, b);
                    mass += probability(log_, a);
                }
            }
            sum += (f64)piece;
            whole += (f64)mass;
        }
        __syncthreads();
        sums[threadIdx.x] = sum;
        wholes[threadIdx.x] = whole;
        __syncthreads();
        sum = whole = 0;
        for (u32 k = 0; k < parts; ++k) {
            sum += sums[k * width + own];
            whole += wholes[k * width + own];
        }
        acc mean = (acc)(sum / whole);
#pragma unroll 4
        for (u64 i = part; i < count; i += parts) {
            acc a = widen(saved[i * inner]), b = widen(given[i * inner]);
            to[i * inner] = narrow<scalar>(gradient(log_, a, b, mean));
        }
    });
}
