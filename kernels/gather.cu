// types: b16 b32 b64
// Reading at indices along an axis.
#include "capgrad.cuh"

INLINE u64 divide(u64 a, u64 b) {
    return ((a | b) >> 32) == 0 ? (u64)((u32)a / (u32)b) : a / b;
}

// `n` and `m` elements along the axis of `x` and of the index, which is i64 where it is wide.
KERNEL gather(const scalar* x, const void* index, u32 wide, u64 n, u64 m, u64 inner, u64 count,
              scalar* out) {
#pragma unroll 2
    for (u64 i = thread_index(); i < count; i += thread_count()) {
        u64 row = inner == 1 ? i : divide(i, inner);
        u64 outer = m == 1 ? row : divide(row, m);
        u64 at = wide ? (u64) reinterpret_cast<const i64*>(index)[i]
                      : (u64) reinterpret_cast<const u32*>(index)[i];
        out[i] = x[(outer * n + at) * inner + (i - row * inner)];
    }
}
