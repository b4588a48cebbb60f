// Copies from global to shared memory that a thread does not wait for. Compute capability 8.0 and later.
#pragma once
#include "capgrad.cuh"

INLINE u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// BYTES (4 or 16) from global memory, or zeros unless `exists`.
template <int BYTES> INLINE void copy_async(u32 to, const void* from, bool exists) {
    const u32 bytes = exists ? BYTES : 0;
    if (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes)
                     : "memory");
    }
}
INLINE void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> INLINE void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
