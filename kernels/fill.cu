// types: b16 b32 b64
// One value everywhere.
#include "capgrad.cuh"

// `packed`: the address is aligned for wide stores.
KERNEL fill(scalar* out, u64 n, u64 bits, u32 packed) {
    const int N = Wide<scalar>::N;
    scalar value = (scalar)bits;
    u64 packs = packed ? n / N : 0;
    Wide<scalar>::type pack;
#pragma unroll
    for (int j = 0; j < N; ++j) pack.at[j] = value;
    for (u64 i = thread_index(); i < packs; i += thread_count()) ((Wide<scalar>::type*)out)[i] = pack;
    for (u64 i = packs * N + thread_index(); i < n; i += thread_count()) out[i] = value;
}
