// What sums over axes add up: expressions that give the numbers of a few elements at a time, one by one
// or as packs of neighbours.
#pragma once
#include "functions.cuh"
#include "rows.cuh"

// Up to three operands, for each of which positions are given.
struct Operands {
    u64 address[3];
    f64 parameter;
    i32 code, side;

    template <class T> __device__ __forceinline__ const T* get(int k) const {
        return reinterpret_cast<const T*>(address[k]);
    }
};

template <int C, int K>
INLINE void pick(const scalar* x, const u64 (&at)[C][K], int k, acc (&v)[C]) {
#pragma unroll
    for (int j = 0; j < C; ++j) v[j] = widen(x[at[j][k]]);
}

// A pack of neighbours, or of one that stretches.
INLINE void pick_pack(const scalar* x, u64 at, u64 step, acc (&v)[PACK]) {
    if (step != 0) {
        load(x + at, PACK, v);
    } else {
        acc one = widen(x[at]);
#pragma unroll
        for (int i = 0; i < PACK; ++i) v[i] = one;
    }
}

struct Stored {
    static const int K = 1;
    static const bool WIDE = true;
    const Operands& o;

    template <int C>
    __device__ __forceinline__ void each(const u64 (&at)[C][K], acc (&v)[C]) const {
        pick(o.get<scalar>(0), at, 0, v);
    }
    __device__ __forceinline__ void pack(const u64 (&at)[K], const u64 (&step)[3],
                                         acc (&v)[PACK]) const {
        pick_pack(o.get<scalar>(0), at[0], step[0], v);
    }
};

struct Function {
    static const int K = 2;
    static const bool WIDE = true;
    const Operands& o;

    template <int C>
    __device__ __forceinline__ void each(const u64 (&at)[C][K], acc (&v)[C]) const {
        acc b[C];
        pick(o.get<scalar>(0), at, 0, v);
        pick(o.get<scalar>(1), at, 1, b);
        binary(o.code, v, b, (acc)o.parameter);
    }
    __device__ __forceinline__ void pack(const u64 (&at)[K], const u64 (&step)[3],
                                         acc (&v)[PACK]) const {
        acc b[PACK];
        pick_pack(o.get<scalar>(0), at[0], step[0], v);
        pick_pack(o.get<scalar>(1), at[1], step[1], b);
        binary(o.code, v, b, (acc)o.parameter);
    }
};

struct Gradient {
    static const int K = 3;
    static const bool WIDE = true;
    const Operands& o;

    template <int C>
    __device__ __forceinline__ void each(const u64 (&at)[C][K], acc (&v)[C]) const {
        acc b[C], dy[C];
        pick(o.get<scalar>(0), at, 0, v);
        pick(o.get<scalar>(1), at, 1, b);
        pick(o.get<scalar>(2), at, 2, dy);
        binary_gradient(o.code, o.side, v, b, dy, (acc)o.parameter);
    }
    __device__ __forceinline__ void pack(const u64 (&at)[K], const u64 (&step)[3],
                                         acc (&v)[PACK]) const {
        acc b[PACK], dy[PACK];
        pick_pack(o.get<scalar>(0), at[0], step[0], v);
        pick_pack(o.get<scalar>(1), at[1], step[1], b);
        pick_pack(o.get<scalar>(2), at[2], step[2], dy);
        binary_gradient(o.code, o.side, v, b, dy, (acc)o.parameter);
    }
};

struct Chosen {
    static const int K = 2;
    static const bool WIDE = false;
    const Operands& o;

    template <int C>
    __device__ __forceinline__ void each(const u64 (&at)[C][K], acc (&v)[C]) const {
        pick(o.get<scalar>(1), at, 1, v);
#pragma unroll
        for (int j = 0; j < C; ++j)
            if ((o.get<i32>(0)[at[j][0]] != 0) != (o.side == LEFT)) v[j] = 0;
    }
    __device__ __forceinline__ void pack(const u64 (&)[K], const u64 (&)[3], acc (&)[PACK]) const {}
};
