// What every kernel file shares: number types, conversions, wide loads, reductions over a block,
// strided grids and random numbers by position. Needs no other header, so that any CUDA compiler
// builds it. A file is built once for each type that its first line names, with SCALAR defined.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;
struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};
// Raw elements of 2, 4 and 8 bytes, for what only moves them.
typedef u16 b16;
typedef u32 b32;
typedef u64 b64;

#ifndef SCALAR
#define SCALAR f32
#endif
typedef SCALAR scalar;

// The type that sums of `T` are kept in.
template <class T> struct Sum {
    typedef f32 type;
};
template <> struct Sum<f64> {
    typedef f64 type;
};
template <> struct Sum<i32> {
    typedef i64 type;
};
template <> struct Sum<i64> {
    typedef i64 type;
};
typedef Sum<scalar>::type acc;

#define KERNEL extern "C" __global__ void
#define INLINE static __device__ __forceinline__

// ---- conversions: to the type of sums (or any wider one), and back with one rounding

INLINE f32 widen(f32 x) { return x; }
INLINE f64 widen(f64 x) { return x; }
INLINE i64 widen(i32 x) { return x; }
INLINE i64 widen(i64 x) { return x; }
INLINE f32 widen(f16 x) {
    f32 y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
INLINE f32 widen(bf16 x) { return __int_as_float((u32)x.bits << 16); }

INLINE void assign(f32& y, f32 x) { y = x; }
INLINE void assign(f64& y, f32 x) { y = x; }
INLINE void assign(f16& y, f32 x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
// Round to nearest even on the bits: compute capability 7.5 has no instruction for it.
INLINE void assign(bf16& y, f32 x) {
    u32 bits = __float_as_int(x);
    u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    y.bits = (bits & 0x7fffffffu) > 0x7f800000u ? (u16)((bits >> 16) | 0x40u) : (u16)rounded;
}
INLINE void assign(f32& y, f64 x) { y = (f32)x; }
INLINE void assign(f64& y, f64 x) { y = x; }
INLINE void assign(f16& y, f64 x) { asm("cvt.rn.f16.f64 %0, %1;" : "=h"(y.bits) : "d"(x)); }
// By way of f32 rounded to odd, so that the second rounding is the only one that counts.
INLINE void assign(bf16& y, f64 x) {
    f32 cut = __double2float_rz(x);
    u32 bits = __float_as_int(cut);
    if ((f64)cut != x && (bits & 0x7fffffffu) < 0x7f800000u) bits |= 1u;
    assign(y, __int_as_float(bits));
}
INLINE void assign(i32& y, i64 x) { y = (i32)x; }
INLINE void assign(i64& y, i64 x) { y = x; }

template <class T, class S> INLINE T narrow(S x) {
    T y;
    assign(y, x);
    return y;
}

// ---- wide loads: `N` neighbours as one access of up to 16 bytes. The address must be aligned to it.

template <class T, int N> struct alignas(sizeof(T) * N) Pack {
    T at[N];
};
template <class T> struct Wide {
    static const int N = 16 / sizeof(T);
    typedef Pack<T, N> type;
};

// ---- strided grids: every kernel loops, so any size works under any grid

INLINE u64 thread_index() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
INLINE u64 thread_count() { return (u64)gridDim.x * blockDim.x; }

// ---- spaces of several axes that up to three operands are read over: `Layout` of layout.rs

#define MOST_AXES 8
struct Layout {
    u64 elements;
    u32 rank;
    // Whether the indices and offsets fit 32 bits, and divisions are products.
    u32 narrow;
    // Outermost first.
    u64 extents[MOST_AXES];
    u64 strides[3][MOST_AXES];
    u32 multipliers[MOST_AXES];
    u32 shifts[MOST_AXES];
};

// How a kernel takes one: read where it lies, also by an index that only the run knows.
#define LAYOUT const __grid_constant__ Layout

// Where element `index` of the space is in each of the first `N` operands.
template <int N> INLINE void locate(const Layout& layout, u64 index, u64 (&at)[N]) {
    if (layout.narrow) {
        u32 left = (u32)index, sums[N];
#pragma unroll
        for (int k = 0; k < N; ++k) sums[k] = 0;
#pragma unroll 1
        for (int axis = (int)layout.rank - 1; axis > 0; --axis) {
            u32 quotient = (__umulhi(left, layout.multipliers[axis]) + left) >> layout.shifts[axis];
            u32 rest = left - quotient * (u32)layout.extents[axis];
#pragma unroll
            for (int k = 0; k < N; ++k) sums[k] += rest * (u32)layout.strides[k][axis];
            left = quotient;
        }
#pragma unroll
        for (int k = 0; k < N; ++k) at[k] = sums[k] + left * (u32)layout.strides[k][0];
    } else {
        u64 left = index;
#pragma unroll
        for (int k = 0; k < N; ++k) at[k] = 0;
#pragma unroll 1
        for (int axis = (int)layout.rank - 1; axis > 0; --axis) {
            u64 quotient = left / layout.extents[axis];
            u64 rest = left - quotient * layout.extents[axis];
#pragma unroll
            for (int k = 0; k < N; ++k) at[k] += rest * layout.strides[k][axis];
            left = quotient;
        }
#pragma unroll
        for (int k = 0; k < N; ++k) at[k] += left * layout.strides[k][0];
    }
}

// ---- reductions; the order is fixed by the launch, so results repeat bitwise

template <class T> INLINE T warp_sum(T value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

template <class T> INLINE T warp_max(T value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
        T other = __shfl_xor_sync(0xffffffffu, value, offset);
        // NaN wins, as it does on the CPU.
        value = (other > value || other != other) ? other : value;
    }
    return value;
}

// The sum over the block, in every thread. `blockDim.x` is a multiple of 32 and at most 1024; all
// threads take part.
template <class T> INLINE T block_sum(T value) {
    __shared__ T parts[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
    value = warp_sum(value);
    __syncthreads();
    if (lane == 0) parts[warp] = value;
    __syncthreads();
    return warp_sum(lane < warps ? parts[lane] : T(0));
}

template <class T> INLINE T block_max(T value) {
    __shared__ T parts[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
    value = warp_max(value);
    __syncthreads();
    if (lane == 0) parts[warp] = value;
    __syncthreads();
    return warp_max(parts[lane < warps ? lane : 0]);
}
