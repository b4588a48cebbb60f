// How the elementwise kernels walk: each thread takes a few elements of the result at a time, loads
// all that they need before it computes, and strides over the rest. The elements are neighbours
// where every operand can be read by wide loads (`packed`), and a block's width apart elsewhere, so
// that either way a warp's accesses are dense. The result is dense; operands have any strides.
#pragma once
#include "capgrad.cuh"

#define PER_THREAD 4

// The widest access that serves `PER_THREAD` neighbours.
template <class T> struct Chunk {
    static const int N = sizeof(T) * PER_THREAD <= 16 ? PER_THREAD : 16 / sizeof(T);
    typedef Pack<T, N> type;
};

template <class T> INLINE void load_neighbours(const T* from, T (&x)[PER_THREAD]) {
#pragma unroll
    for (int j = 0; j < PER_THREAD; j += Chunk<T>::N) {
        typename Chunk<T>::type chunk = *(const typename Chunk<T>::type*)(from + j);
#pragma unroll
        for (int i = 0; i < Chunk<T>::N; ++i) x[j + i] = chunk.at[i];
    }
}

template <class T> INLINE void store_neighbours(T* to, const T (&x)[PER_THREAD]) {
#pragma unroll
    for (int j = 0; j < PER_THREAD; j += Chunk<T>::N) {
        typename Chunk<T>::type chunk;
#pragma unroll
        for (int i = 0; i < Chunk<T>::N; ++i) chunk.at[i] = x[j + i];
        *(typename Chunk<T>::type*)(to + j) = chunk;
    }
}

// Whether a kernel's layouts may have any number of axes, or at most one.
enum Kind { STRIDED, FLAT };

// The elements that one thread has in hand: `first + j * step`, and where each of `K` operands has
// them. Past the end are copies of the last one, which may be loaded and are not stored.
template <int K, Kind KIND = STRIDED> struct Tile {
    const Layout& layout;
    u64 first;
    u32 step;
    // Neighbours, all of them there.
    bool wide;
    u64 at[PER_THREAD][K];

    __device__ __forceinline__ Tile(const Layout& layout, u32 packed, u64 number)
        : layout(layout) {
        u64 start = number * blockDim.x * PER_THREAD;
        first = start + (packed ? threadIdx.x * PER_THREAD : threadIdx.x);
        step = packed ? 1 : blockDim.x;
        wide = packed && first + PER_THREAD <= layout.elements;
        if (KIND == FLAT) {
#pragma unroll
            for (int k = 0; k < K; ++k) {
                u64 stride = layout.strides[k][0];
#pragma unroll
                for (int j = 0; j < PER_THREAD; ++j)
                    at[j][k] = (inside(j) ? index(j) : layout.elements - 1) * stride;
            }
        } else if (wide) {
            locate<K>(layout, first, at[0]);
        } else if (layout.narrow) {
            locate_each<u32>();
        } else {
            locate_each<u64>();
        }
    }

    __device__ __forceinline__ u64 index(int j) const { return first + (u64)j * step; }
    __device__ __forceinline__ bool inside(int j) const { return index(j) < layout.elements; }

    // `locate` for each element, an axis at a time for all.
    template <class I> __device__ __forceinline__ void locate_each() {
        I left[PER_THREAD], sums[PER_THREAD][K];
#pragma unroll
        for (int j = 0; j < PER_THREAD; ++j) {
            left[j] = (I)(inside(j) ? index(j) : layout.elements - 1);
#pragma unroll
            for (int k = 0; k < K; ++k) sums[j][k] = 0;
        }
#pragma unroll 1
        for (int axis = (int)layout.rank - 1; axis > 0; --axis) {
            I extent = (I)layout.extents[axis];
            u32 multiplier = layout.multipliers[axis], shift = layout.shifts[axis];
#pragma unroll
            for (int j = 0; j < PER_THREAD; ++j) {
                I quotient;
                if (sizeof(I) == 4) {
                    quotient = (__umulhi((u32)left[j], multiplier) + (u32)left[j]) >> shift;
                } else {
                    quotient = left[j] / extent;
                }
                I rest = left[j] - quotient * extent;
#pragma unroll
                for (int k = 0; k < K; ++k) sums[j][k] += rest * (I)layout.strides[k][axis];
                left[j] = quotient;
            }
        }
#pragma unroll
        for (int k = 0; k < K; ++k) {
            I stride = (I)layout.strides[k][0];
#pragma unroll
            for (int j = 0; j < PER_THREAD; ++j) at[j][k] = sums[j][k] + left[j] * stride;
        }
    }

    // Operand `k`, whose first element is at `from`.
    template <class T>
    __device__ __forceinline__ void load(int k, const T* from, T (&x)[PER_THREAD]) const {
        if (!wide) {
#pragma unroll
            for (int j = 0; j < PER_THREAD; ++j) x[j] = from[at[j][k]];
        } else if (layout.strides[k][KIND == FLAT ? 0 : layout.rank - 1] != 0) {
            load_neighbours(from + at[0][k], x);
        } else {
            T one = from[at[0][k]];
#pragma unroll
            for (int j = 0; j < PER_THREAD; ++j) x[j] = one;
        }
    }

    // A dense operand.
    template <class T>
    __device__ __forceinline__ void load_dense(const T* from, T (&x)[PER_THREAD]) const {
        if (wide) {
            load_neighbours(from + first, x);
        } else {
#pragma unroll
            for (int j = 0; j < PER_THREAD; ++j)
                x[j] = from[inside(j) ? index(j) : layout.elements - 1];
        }
    }

    // Into the dense result.
    template <class T> __device__ __forceinline__ void store(T* to, const T (&x)[PER_THREAD]) const {
        if (wide) {
            store_neighbours(to + first, x);
        } else {
#pragma unroll
            for (int j = 0; j < PER_THREAD; ++j)
                if (inside(j)) to[index(j)] = x[j];
        }
    }
};

// The numbers of this block's tiles.
#define FOR_EACH_TILE(NUMBER, LAYOUT_)                                                             \
    for (u64 NUMBER = blockIdx.x; NUMBER * blockDim.x * PER_THREAD < (LAYOUT_).elements;           \
         NUMBER += gridDim.x)

template <class T, class S> INLINE void widen_each(const S (&x)[PER_THREAD], T (&y)[PER_THREAD]) {
#pragma unroll
    for (int j = 0; j < PER_THREAD; ++j) y[j] = widen(x[j]);
}

template <class T, class S> INLINE void narrow_each(const S (&x)[PER_THREAD], T (&y)[PER_THREAD]) {
#pragma unroll
    for (int j = 0; j < PER_THREAD; ++j) y[j] = narrow<T>(x[j]);
}
