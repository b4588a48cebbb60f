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
