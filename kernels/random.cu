// types: f32 f64 f16 bf16
// Random numbers by position, as philox.rs draws them: Philox4x32-10 (Salmon, Moraes, Dror and Shaw
// 2011). In f64 and without contraction, so that the numbers are those of every other device.
#include "tiles.cuh"

struct Block {
    u32 a, b, c, d;
};

INLINE Block philox(u64 seed, u64 stream, u64 position) {
    u32 c0 = (u32)position, c1 = (u32)(position >> 32);
    u32 c2 = (u32)stream, c3 = (u32)(stream >> 32);
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
        c0 = (u32)(p1 >> 32) ^ c1 ^ k0;
        c1 = (u32)p1;
        c2 = (u32)(p0 >> 32) ^ c3 ^ k1;
        c3 = (u32)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return Block{c0, c1, c2, c3};
}

// The 53 bits that a number on [0, 1) is made of.
INLINE u64 bits53(u32 high, u32 low) { return (u64)high << 21 | (u64)low >> 11; }

#define ULP53 1.1102230246251565404e-16

// `[low, low + width)`, below `high` after rounding too; `most` is the largest number below 1 that
// the type has.
KERNEL random_uniform(scalar* out, u64 n, u64 seed, u64 stream, f64 low, f64 width, f64 high,
                      f64 most) {
    scalar lowest = narrow<scalar>(low);
    for (u64 i = thread_index(); i < n; i += thread_count()) {
        Block block = philox(seed, stream, i);
        f64 unit = (f64)bits53(block.a, block.b) * ULP53;
        unit = unit < most ? unit : most;
        scalar x = narrow<scalar>(__dadd_rn(low, __dmul_rn(width, unit)));
        out[i] = (f64)widen(x) < high ? x : lowest;
    }
}

// By Box and Muller's transform (1958).
KERNEL random_normal(scalar* out, u64 n, u64 seed, u64 stream, f64 mean, f64 deviation) {
    for (u64 i = thread_index(); i < n; i += thread_count()) {
        Block block = philox(seed, stream, i);
        f64 u = ((f64)bits53(block.a, block.b) + 0.5) * ULP53;
        f64 v = ((f64)bits53(block.c, block.d) + 0.5) * ULP53;
        f64 normal = __dmul_rn(sqrt(-2.0 * log(u)), cos(6.28318530717958647693 * v));
        out[i] = narrow<scalar>(__dadd_rn(mean, __dmul_rn(deviation, normal)));
    }
}

// Keeps element i where the bits of position i are at least `threshold`. A choice, not a product:
// infinite scale and dropped NaN leave zeros.
KERNEL dropout(const scalar* x, scalar* out, LAYOUT layout, u32 packed, u64 seed, u64 stream,
               u64 threshold, f64 scale) {
    FOR_EACH_TILE(number, layout) {
        Tile<1, FLAT> tile(layout, packed, number);
        scalar raw[PER_THREAD];
        tile.load(0, x, raw);
#pragma unroll
        for (int j = 0; j < PER_THREAD; ++j) {
            Block block = philox(seed, stream, tile.index(j));
            bool kept = bits53(block.a, block.b) >= threshold;
            raw[j] = narrow<scalar>(kept ? (acc)(widen(raw[j]) * (acc)scale) : acc(0));
        }
        tile.store(out, raw);
    }
}
