// types: f32 f64 f16 bf16
// Cross-entropy of rows of logits with labels, and its gradient, without the softmax being stored.
// Every block adds up the losses of its rows; a second kernel adds up the blocks.
#include "rows.cuh"

struct Labels {
    u64 address;
    i64 ignore;
    // Whether they are i64, and whether one of them stands for rows that do not count.
    u32 wide, ignores;

    __device__ __forceinline__ i64 at(u64 row) const {
        return wide ? reinterpret_cast<const i64*>(address)[row]
                    : (i64) reinterpret_cast<const i32*>(address)[row];
    }
    __device__ __forceinline__ bool ignored(i64 label) const { return ignores && label == ignore; }
};

INLINE f64 loss(const scalar* x, i64 label, acc largest, acc sum) {
    return (f64)log(sum) - ((f64)widen(x[label]) - (f64)largest);
}

template <bool BLOCK>
INLINE void forward_held(const scalar* x, const Labels& labels, f64* partials, u64 rows, u32 n,
                         u32 lanes, u32 wide) {
    f64 total = 0;
    each_row<BLOCK>(rows, lanes, [&](const Group<BLOCK>& group, u64 row, bool active) {
        i64 label = active ? labels.at(row) : 0;
        active = active && !labels.ignored(label);
        Spread spread = {active ? n : 0, group.lane, group.lanes, wide != 0};
        acc v[HELD], largest, sum;
        fetch(x + row * n, spread, -infinity(), v);
        held_statistics(group, v, largest, sum);
        if (active && group.lane == 0) total += loss(x + row * n, label, largest, sum);
    });
    total = block_sum(total);
    if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

KERNEL __launch_bounds__(256)
cross_entropy_short(const scalar* x, Labels labels, f64* partials, u64 rows, u32 n, u32 lanes,
                    u32 wide) {
    forward_held<false>(x, labels, partials, rows, n, lanes, wide);
}

KERNEL __launch_bounds__(HOLDERS)
cross_entropy_row(const scalar* x, Labels labels, f64* partials, u64 rows, u32 n, u32 lanes,
                  u32 wide) {
    forward_held<true>(x, labels, partials, rows, n, lanes, wide);
}

KERNEL __launch_bounds__(STREAMERS)
cross_entropy_long(const scalar* x, Labels labels, f64* partials, u64 rows, u64 n) {
    f64 total = 0;
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        i64 label = labels.at(row);
        if (labels.ignored(label)) continue;
        const scalar* from = x + row * n;
        Statistics all = row_statistics(from, n, unaligned(from, n, 0));
        if (threadIdx.x == 0) total += loss(from, label, all.largest, (acc)all.sum);
    }
    if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

KERNEL __launch_bounds__(256)
cross_entropy_finish(const f64* partials, u32 count, f64 scale, scalar* out) {
    f64 total = 0;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) total += partials[i];
    total = block_sum(total);
    if (threadIdx.x == 0) out[0] = narrow<scalar>(scale * total);
}

// ---- the gradient

// The label's element is lessened before the rounding to a half, which would cost the digits that
// cancel here.
INLINE acc gradient(acc x, acc largest, acc factor, bool hot, acc scale) {
    acc y = exp(x - largest) * factor;
    return hot ? y - scale : y;
}

template <bool BLOCK>
INLINE void gradient_held(const scalar* x, const Labels& labels, f64 scale, const scalar* dy,
                          scalar* out, u64 rows, u32 n, u32 lanes, u32 wide) {
    acc times = (acc)(scale * (f64)widen(dy[0]));
    each_row<BLOCK>(rows, lanes, [&](const Group<BLOCK>& group, u64 row, bool active) {
        i64 label = active ? labels.at(row) : 0;
        bool ignored = labels.ignored(label);
        Spread spread = {active ? n : 0, group.lane, group.lanes, wide != 0};
        acc v[HELD], largest, sum;
        fetch(x + row * n, spread, -infinity(), v);
        held_statistics(group, v, largest, sum);
        acc factor = times / sum;
#pragma unroll
        for (int j = 0; j < HELD; ++j) {
            acc y = gradient(v[j], largest, factor, spread.at(j) == (u64)label, times);
            v[j] = ignored ? acc(0) : y;
        }
        put(out + row * n, spread, v);
    });
}

KERNEL __launch_bounds__(256)
cross_entropy_gradient_short(const scalar* x, Labels labels, f64 scale, const scalar* dy, scalar* out,
                             u64 rows, u32 n, u32 lanes, u32 wide) {
    gradient_held<false>(x, labels, scale, dy, out, rows, n, lanes, wide);
}

KERNEL __launch_bounds__(HOLDERS)
cross_entropy_gradient_row(const scalar* x, Labels labels, f64 scale, const scalar* dy, scalar* out,
                           u64 rows, u32 n, u32 lanes, u32 wide) {
    gradient_held<true>(x, labels, scale, dy, out, rows, n, lanes, wide);
}

INLINE void gradient_stream(const scalar* from, scalar* to, u64 n, i64 label, bool ignored, acc times) {
    u64 head = unaligned(from, n, (u64)to - (u64)from);
    Statistics all = no_statistics();
    if (!ignored) all = row_statistics(from, n, head);
    acc factor = times / (acc)all.sum;
    stream(n, head, [&](u64 at, int count) {
        acc v[PACK];
        load(from + at, count, v);
        EACH(i, count) {
            acc y = gradient(v[i], all.largest, factor, at + i == (u64)label, times);
            v[i] = ignored ? acc(0) : y;
        }
        store(to + at, count, v);
    });
}

KERNEL __launch_bounds__(STREAMERS)
cross_entropy_gradient_long(const scalar* x, Labels labels, f64 scale, const scalar* dy, scalar* out,
                            u64 rows, u64 n) {
    acc times = (acc)(scale * (f64)widen(dy[0]));
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        i64 label = labels.at(row);
        gradient_stream(x + row * n, out + row * n, n, label, labels.ignored(label), times);
    }
}
