// Rounding to TF32, to the nearest. Compute capability 8.0 and later.
#pragma once
#include "capgrad.cuh"

INLINE u32 as_tf32(f32 x) {
    u32 y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

// A number as tensor cores take it: halves of either kind are TF32 numbers as they are.
INLINE f32 rounded(f32 x) { return __int_as_float(as_tf32(x)); }
INLINE f16 rounded(f16 x) { return x; }
INLINE bf16 rounded(bf16 x) { return x; }

// A value as the sum of two that products take. What is not finite is the second, and the first 0: it then
// meets the first part of the other operand only, which has its sign. So is what rounding makes infinite.
INLINE void split(f32 x, f32& first, f32& rest) {
    const f32 high = rounded(x), low = x - high;
    const bool finite = fabsf(low) <= 3.402823466e38f;
    first = finite ? high : 0.0f;
    rest = finite ? rounded(low) : x;
}
INLINE void split(f16 x, f16& first, f16& rest) { first = x; }
INLINE void split(bf16 x, bf16& first, bf16& rest) { first = x; }
