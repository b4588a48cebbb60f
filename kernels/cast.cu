// types: f32 f64 f16 bf16 i32 i64
// Conversions from one type to every other: floats round to nearest; integers truncate, saturate,
// and take NaN for 0.
#include "tiles.cuh"

// Floats, rounded once (a large i64 on its way to a half twice, by way of f64).
template <class T> struct To {
    template <class S> static __device__ __forceinline__ T from(S x) { return narrow<T>(widen(x)); }
    static __device__ __forceinline__ T from(i32 x) { return narrow<T>((f64)x); }
    static __device__ __forceinline__ T from(i64 x) { return narrow<T>((f64)x); }
};
template <> struct To<f32> {
    template <class S> static __device__ __forceinline__ f32 from(S x) { return (f32)widen(x); }
};

template <> struct To<i64> {
    static __device__ __forceinline__ i64 from(i32 x) { return x; }
    static __device__ __forceinline__ i64 from(i64 x) { return x; }
    template <class S> static __device__ __forceinline__ i64 from(S x) {
        f64 y = (f64)widen(x);
        if (y != y) return 0;
        if (y >= 9223372036854775808.0) return 0x7fffffffffffffffll;
        if (y <= -9223372036854775808.0) return (i64)0x8000000000000000ull;
        return (i64)y;
    }
};
template <> struct To<i32> {
    template <class S> static __device__ __forceinline__ i32 from(S x) {
        i64 y = To<i64>::from(x);
        return y > 2147483647ll ? 2147483647 : y < -2147483648ll ? (i32)0x80000000u : (i32)y;
    }
};

template <class T> INLINE void convert(const scalar* x, T* out, const Layout& layout, u32 packed) {
    FOR_EACH_TILE(number, layout) {
        Tile<1, FLAT> tile(layout, packed, number);
        scalar raw[PER_THREAD];
        T value[PER_THREAD];
        tile.load(0, x, raw);
#pragma unroll
        for (int j = 0; j < PER_THREAD; ++j) value[j] = To<T>::from(raw[j]);
        tile.store(out, value);
    }
}

#define CAST(T)                                                                                    \
    KERNEL cast_##T(const scalar* x, T* out, LAYOUT layout, u32 packed) {                          \
        convert(x, out, layout, packed);                                                           \
    }
CAST(f32)
CAST(f64)
CAST(f16)
CAST(bf16)
CAST(i32)
CAST(i64)
