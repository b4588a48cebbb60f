// Rows of neighbouring numbers that a group of threads works on together: a few lanes of a warp for
// short rows, a block for longer ones, both with the whole row in registers; and a block that streams
// for rows of any length. For softmax, cross-entropy and layer normalisation.
#pragma once
#include "capgrad.cuh"

// Numbers in 16 bytes, and numbers of a row that a thread holds.
static const int PACK = Wide<scalar>::N;
static const int HELD = 16;
// Threads of a block that holds a row, and of one that streams, at most.
#define HOLDERS 512
#define STREAMERS 1024

INLINE acc infinity() { return (acc)__int_as_float(0x7f800000); }

template <bool BLOCK> struct Group {
    u32 lane, lanes;

    template <class T> __device__ __forceinline__ T sum(T value) const {
        if constexpr (BLOCK) {
            return block_sum(value);
        } else {
            for (u32 offset = lanes >> 1; offset > 0; offset >>= 1)
                value += __shfl_xor_sync(0xffffffffu, value, offset);
            return value;
        }
    }

    // Of numbers that are not NaN.
    template <class T> __device__ __forceinline__ T max(T value) const {
        if constexpr (BLOCK) {
            return block_max(value);
        } else {
            for (u32 offset = lanes >> 1; offset > 0; offset >>= 1) {
                T other = __shfl_xor_sync(0xffffffffu, value, offset);
                value = other > value ? other : value;
            }
            return value;
        }
    }
};

// Calls `f(group, row, active)` for every row. All threads of a warp go round equally often, as they
// shuffle together: some with a row past the end, which they must not touch.
template <bool BLOCK, class F> INLINE void each_row(u64 rows, u32 lanes, F f) {
    if constexpr (BLOCK) {
        Group<BLOCK> group = {threadIdx.x, blockDim.x};
        for (u64 row = blockIdx.x; row < rows; row += gridDim.x) f(group, row, true);
    } else {
        Group<BLOCK> group = {threadIdx.x & (lanes - 1), lanes};
        u32 shift = __ffs(lanes) - 1;
        u64 own = (threadIdx.x & 31) >> shift, groups = thread_count() >> shift;
        for (u64 first = (thread_index() & ~31ull) >> shift; first < rows; first += groups)
            f(group, first + own, first + own < rows);
    }
}

// How a row of `n` numbers lies in the registers of its group: in packs where it is aligned to them.
struct Spread {
    u32 n, lane, lanes;
    bool wide;

    __device__ __forceinline__ u32 at(int j) const {
        return wide ? ((j / PACK) * lanes + lane) * PACK + j % PACK : j * lanes + lane;
    }
};

INLINE void fetch(const scalar* x, const Spread& s, acc filler, acc (&v)[HELD]) {
    if (s.wide) {
        typedef Wide<scalar>::type Packed;
#pragma unroll
        for (int k = 0; k < HELD / PACK; ++k) {
            u32 pack = k * s.lanes + s.lane;
            if (pack * PACK < s.n) {
                Packed packed = reinterpret_cast<const Packed*>(x)[pack];
#pragma unroll
                for (int i = 0; i < PACK; ++i) v[k * PACK + i] = widen(packed.at[i]);
            } else {
#pragma unroll
                for (int i = 0; i < PACK; ++i) v[k * PACK + i] = filler;
            }
        }
    } else {
#pragma unroll
        for (int j = 0; j < HELD; ++j) {
            u32 at = j * s.lanes + s.lane;
            v[j] = at < s.n ? widen(x[at]) : filler;
        }
    }
}

INLINE void put(scalar* out, const Spread& s, const acc (&v)[HELD]) {
    if (s.wide) {
        typedef Wide<scalar>::type Packed;
#pragma unroll
        for (int k = 0; k < HELD / PACK; ++k) {
            u32 pack = k * s.lanes + s.lane;
            if (pack * PACK < s.n) {
                Packed packed;
#pragma unroll
                for (int i = 0; i < PACK; ++i) packed.at[i] = narrow<scalar>(v[k * PACK + i]);
                reinterpret_cast<Packed*>(out)[pack] = packed;
            }
        }
    } else {
#pragma unroll
        for (int j = 0; j < HELD; ++j) {
            u32 at = j * s.lanes + s.lane;
            if (at < s.n) out[at] = narrow<scalar>(v[j]);
        }
    }
}

// ---- streaming

// Elements before `x` is aligned to a pack; all of them where `others` (the differences of the other
// operands' addresses to this one) never are aligned at the same place.
INLINE u64 unaligned(const scalar* x, u64 n, u64 others) {
    if (others % 16 != 0) return n;
    u64 head = (16 - (u64)x % 16) % 16 / sizeof(scalar);
    return head < n ? head : n;
}

// A block walks a row: `f(position, count)` for `count` neighbours, 1 or a pack, which then is aligned.
// The count is a constant wherever `f` is inlined.
template <class F> INLINE void stream(u64 n, u64 head, F f) {
    u32 lane = threadIdx.x, lanes = blockDim.x;
    u64 packs = (n - head) / PACK;
    for (u64 pack = lane; pack < packs; pack += lanes) f(head + pack * PACK, PACK);
    // Both ends together, so that `f` is there twice and not three times.
    u64 ends = n - packs * PACK;
    for (u64 i = lane; i < ends; i += lanes) f(i < head ? i : i + packs * PACK, 1);
}

INLINE void load(const scalar* x, int count, acc (&v)[PACK]) {
    if (count == PACK) {
        Wide<scalar>::type packed = *reinterpret_cast<const Wide<scalar>::type*>(x);
#pragma unroll
        for (int i = 0; i < PACK; ++i) v[i] = widen(packed.at[i]);
    } else {
        v[0] = widen(x[0]);
    }
}

INLINE void store(scalar* out, int count, const acc (&v)[PACK]) {
    if (count == PACK) {
        Wide<scalar>::type packed;
#pragma unroll
        for (int i = 0; i < PACK; ++i) packed.at[i] = narrow<scalar>(v[i]);
        *reinterpret_cast<Wide<scalar>::type*>(out) = packed;
    } else {
        out[0] = narrow<scalar>(v[0]);
    }
}

// Loops over the numbers of a piece of a stream.
#define EACH(i, count) _Pragma("unroll") for (int i = 0; i < PACK; ++i) if (i < (count))

// ---- softmax's statistics in one pass: the largest number and the sum of `e^(x - largest)`. NaN is
// never the largest, and makes the sum NaN.

struct Statistics {
    acc largest;
    f64 sum;

    template <int C> __device__ __forceinline__ void add(const acc (&v)[C], int count) {
        acc most = largest;
#pragma unroll
        for (int i = 0; i < C; ++i)
            if (i < count) most = v[i] > most ? v[i] : most;
        if (most != largest) {
            sum *= (f64)exp(largest - most);
            largest = most;
        }
        acc part = 0;
        // Without the exception, -∞ where nothing larger has been met yet would count as NaN.
#pragma unroll
        for (int i = 0; i < C; ++i)
            if (i < count) part += v[i] == -infinity() ? acc(0) : exp(v[i] - most);
        sum += (f64)part;
    }

    // What the sum is times, once the largest of all is known.
    __device__ __forceinline__ f64 share(acc most) const {
        return largest == most ? sum : sum * (f64)exp(largest - most);
    }
};

INLINE Statistics no_statistics() {
    Statistics s = {-infinity(), 0.0};
    return s;
}

// Those of a row that a block streams, in every thread.
INLINE Statistics row_statistics(const scalar* x, u64 n, u64 head) {
    Statistics own = no_statistics();
    stream(n, head, [&](u64 at, int count) {
        acc v[PACK];
        load(x + at, count, v);
        own.add(v, count);
    });
    Statistics all;
    all.largest = block_max(own.largest);
    all.sum = block_sum(own.share(all.largest));
    return all;
}

// Those of a row that a group holds; what lies past its end is -∞.
template <bool BLOCK>
INLINE void held_statistics(const Group<BLOCK>& group, const acc (&v)[HELD], acc& largest, acc& sum) {
    largest = -infinity();
#pragma unroll
    for (int j = 0; j < HELD; ++j) largest = v[j] > largest ? v[j] : largest;
    largest = group.max(largest);
    sum = 0;
#pragma unroll
    for (int j = 0; j < HELD; ++j) sum += exp(v[j] - largest);
    sum = group.sum(sum);
}
