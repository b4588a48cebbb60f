// Positions of samples, one after another, in strips: what a tile of a convolution reads of its source,
// laid out so that a tap is a shift. A tile's positions may lie in several samples; each sample has a
// segment of every strip, with zeros where the convolution pads.
#pragma once
#include "warpgroup.cuh"

// Threads that compute, and after them those that copy.
static const u32 COMPUTING = 256;
static const int COPYING = 128;

// A pass as a convolution of stride `step` whose taps go forward: what the host makes of any pass.
// Position q of a sample reads the source at q·step + tap·tap_step + offset.
struct Strips {
    u64 batch;
    u32 groups;
    // Of the source, in a group.
    u32 channels;
    u32 length, positions;
    u32 step, taps, tap_step;
    i32 offset;
    // Elements from one channel of a strip to the next, how many columns are used at most, and elements
    // that are copied at once.
    u32 pitch, width, pack;
    // Channels that are in strips at a time, and how many times that is in shared memory.
    u32 chunk, buffers;
    // Whether samples are copied whole, channels after another as they lie: one tap, and no padding.
    u32 whole;
};

// Where positions first, first + 1, … lie in strips. Segments begin at multiples of `pack` in the source,
// so that packs are whole.
struct Segments {
    // The sample of the first position, and which of its positions that is.
    u64 sample;
    u32 position;
    // Where the segments begin in the source: that of the first sample, and those of others.
    i32 begins, others;
    // How long they are.
    u32 width, full;

    __device__ __forceinline__ Segments(const Strips& s, u64 first) {
        if (first >> 32) {
            sample = first / s.positions;
            position = (u32)(first - sample * s.positions);
        } else {
            const u32 n = (u32)first / s.positions;
            sample = n;
            position = (u32)first - n * s.positions;
        }
        if (s.whole) {
            begins = others = 0;
            width = full = s.chunk * s.length;
            return;
        }
        begins = down((i32)(position * s.step) + s.offset, s.pack);
        others = down(s.offset, s.pack);
        i32 end = (i32)((s.positions - 1) * s.step + (s.taps - 1) * s.tap_step) + s.offset + 1;
        width = (u32)-down(begins - end, s.pack);
        full = (u32)-down(others - end, s.pack);
    }
    static __device__ __forceinline__ i32 down(i32 x, u32 pack) { return x & -(i32)pack; }

    // The column that tap 0 of the `index`-th position reads.
    __device__ __forceinline__ u32 column(const Strips& s, u32 index) const {
        u32 q = position + index;
        if (q < s.positions) return (u32)((i32)(q * s.step) + s.offset - begins);
        q -= s.positions;
        u32 more = q / s.positions;
        q -= more * s.positions;
        return width + more * full + (u32)((i32)(q * s.step) + s.offset - others);
    }
    // Columns up to the last that `count` positions read.
    __device__ __forceinline__ u32 used(const Strips& s, u32 count) const {
        if (s.whole) return ((position + count - 1) / s.positions + 1) * full;
        const u32 columns = column(s, count - 1) + (s.taps - 1) * s.tap_step + 1;
        return (columns + s.pack - 1) & ~(s.pack - 1);
    }
    // Where the pack that a column begins lies in the source, from the first sample on; -1 where there is
    // nothing.
    __device__ __forceinline__ i32 source(const Strips& s, u32 column) const {
        u32 more = 0;
        i32 at = begins + (i32)column;
        if (column >= width) {
            more = (column - width) / full;
            at = others + (i32)(column - width - more * full);
            more++;
        }
        const u32 end = s.whole ? full : s.length;
        const bool exists = sample + more < s.batch && at >= 0 && at < (i32)end;
        return exists ? (i32)(more * s.groups * s.channels * s.length) + at : -1;
    }
};

// Copies by the threads that copy; what is not asynchronous is over at once.
template <int BYTES> INLINE void copy_pack(scalar* to, const scalar* from, bool exists) {
    if (BYTES >= 4) {
        copy_async<(BYTES < 4 ? 4 : BYTES)>(shared_address(to), from, exists);
    } else {
        scalar zero = {};
        *to = exists ? *from : zero;
    }
}

// Channels of strips: `packs` says where the packs of one lie in the source. Channels from `exist` on are
// zeros.
template <int BYTES>
INLINE void copy_strips(const Strips& s, scalar* strips, const scalar* source, const i32* packs, u32 columns,
                        u32 exist) {
    const int PACK = BYTES / sizeof(scalar);
    const u32 thread = threadIdx.x - COMPUTING;
    for (u32 p = thread & 31; p * PACK < columns; p += 32) {
        const i32 offset = packs[p];
        const scalar* from = source + offset + (u64)(thread >> 5) * s.length;
        scalar* to = strips + p * PACK + (thread >> 5) * s.pitch;
#pragma unroll 4
        for (u32 c = thread >> 5; c < s.chunk; c += COPYING / 32) {
            const bool exists = offset >= 0 && c < exist;
            copy_pack<BYTES>(to, exists ? from : source, exists);
            from += (u64)(COPYING / 32) * s.length;
            to += (COPYING / 32) * s.pitch;
        }
    }
}

// The same of whole samples, whose channels are columns.
template <int BYTES>
INLINE void copy_samples(const Strips& s, scalar* strips, const scalar* source, const i32* packs,
                         u32 columns, u32 exist) {
    const int PACK = BYTES / sizeof(scalar);
    const u32 sample = s.chunk * s.length, least = exist < s.chunk ? exist * s.length : sample;
#pragma unroll 4
    for (u32 p = threadIdx.x - COMPUTING; p * PACK < columns; p += COPYING) {
        const i32 offset = packs[p];
        const bool exists = offset >= 0 && (least == sample || p * PACK % sample < least);
        copy_pack<BYTES>(strips + p * PACK, exists ? source + offset : source, exists);
    }
}

// Brings a chunk of strips: `source` is where its first channel begins in the first sample, of which group
// and sample have `exist` more.
INLINE void bring(const Strips& s, scalar* strips, const scalar* source, const i32* packs, u32 columns,
                  u32 exist) {
    const u32 bytes = s.pack * sizeof(scalar);
    if (s.whole) {
        if (bytes == 16) {
            copy_samples<16>(s, strips, source, packs, columns, exist);
        } else if (bytes == 4) {
            copy_samples<4>(s, strips, source, packs, columns, exist);
        } else {
            copy_samples<2>(s, strips, source, packs, columns, exist);
        }
    } else if (bytes == 16) {
        copy_strips<16>(s, strips, source, packs, columns, exist);
    } else if (bytes == 4) {
        copy_strips<4>(s, strips, source, packs, columns, exist);
    } else {
        copy_strips<2>(s, strips, source, packs, columns, exist);
    }
}

// Rows g and g + 8 of a left operand, and one product's terms, from strips: `low` and `high` are the rows'
// places, and `terms` where the terms lie from there. The values are PARTS words that add up to them.
template <int PARTS>
INLINE void fragment(u32 (&to)[PARTS][4], const scalar* strips, const i32* terms, i32 low, i32 high) {
    const int t = threadIdx.x & 3;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (sizeof(scalar) == 4) {
            const i32 at = terms[half * 4 + t];
#pragma unroll
            for (int row = 0; row < 2; row++) {
                const f32 value = widen(strips[at + (row ? high : low)]);
                if (PARTS > 1) {
                    f32 first, rest;
                    split(value, first, rest);
                    to[0][half * 2 + row] = __float_as_int(first);
                    to[PARTS - 1][half * 2 + row] = __float_as_int(rest);
                } else {
                    to[0][half * 2 + row] = as_tf32(value);
                }
            }
        } else {
            const i32 first = terms[half * 8 + 2 * t], second = terms[half * 8 + 2 * t + 1];
            const u16* s = (const u16*)strips;
            to[0][half * 2] = s[first + low] | (u32)s[second + low] << 16;
            to[0][half * 2 + 1] = s[first + high] | (u32)s[second + high] << 16;
        }
    }
}

// The sums of a warpgroup: BLOCKS times 64 rows, N columns, of values in PARTS.
template <int N, int BLOCKS, int PARTS> struct Sums {
    f32 sums[BLOCKS][N / 2];
    // Of values in parts, sums of more than STRETCH stages are added up apart, so that rounding errors stay
    // small.
    f32 kept[PARTS > 1 ? BLOCKS : 1][PARTS > 1 ? N / 2 : 1];
    u32 since;
    static const u32 STRETCH = 8;

    __device__ __forceinline__ void clear() {
        since = 0;
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                sums[b][i] = 0;
                if (PARTS > 1) kept[b][i] = 0;
            }
    }

    // Adds a stage: its strips, where its terms lie in them, the rows' places there; and the right
    // operand, `apart` bytes from vector to vector and `part` from part to part. Calls `over` when the
    // products before are.
    template <class Over>
    __device__ __forceinline__ void add(const scalar* strips, const i32* terms, const i32 (&low)[BLOCKS],
                                        const i32 (&high)[BLOCKS], u32 right, u32 apart, u32 part, Over over) {
        const u64 described = describe(right, apart);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            u32 left[BLOCKS][PARTS][4];
#pragma unroll
            for (int b = 0; b < BLOCKS; b++)
                fragment(left[b], strips, terms + k * STAGE / 2, low[b], high[b]);
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) hold(sums[b]);
            begin_products();
            const u64 step = described + k * (2 * apart >> 4);
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                if (PARTS > 1) {
                    Products<N>::add(sums[b], left[b][PARTS - 1], step);
                    Products<N>::add(sums[b], left[b][0], step + (part >> 4));
                }
                Products<N>::add(sums[b], left[b][0], step);
            }
            close_products();
            await_products<1>();
            if (k == 0) over();
        }
        if (PARTS > 1 && ++since == STRETCH) {
            since = 0;
            await_products<0>();
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                hold(sums[b]);
#pragma unroll
                for (int i = 0; i < N / 2; i++) {
                    kept[b][i] += sums[b][i];
                    sums[b][i] = 0;
                }
            }
        }
    }

    __device__ __forceinline__ void finish() {
        await_products<0>();
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            hold(sums[b]);
            if (PARTS > 1)
#pragma unroll
                for (int i = 0; i < N / 2; i++) sums[b][i] += kept[b][i];
        }
    }

    // Hands row g (or g + 8 where `half` is 1) of a block to `put(column, sum)`.
    template <class Put> __device__ __forceinline__ void row(int block, int half, Put put) const {
        const u32 first = 2 * (threadIdx.x & 3);
#pragma unroll
        for (int i = 0; i < N / 4; i++)
            put(first + i / 2 * 8 + i % 2, sums[block][i / 2 * 4 + half * 2 + i % 2]);
    }

    // The same with rows two by two: `put(column, sum of the even row, sum of the odd row)`. A thread whose
    // row is even has half of the columns of both, and that of the odd row the others.
    template <class Put> __device__ __forceinline__ void rows(int block, int half, Put put) const {
        const u32 odd = (threadIdx.x >> 2) & 1, first = 2 * (threadIdx.x & 3) + odd;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const f32 left = sums[block][j * 4 + half * 2], right = sums[block][j * 4 + half * 2 + 1];
            const f32 other = __shfl_xor_sync(0xffffffffu, odd ? left : right, 4);
            put(first + j * 8, odd ? other : left, odd ? right : other);
        }
    }
};

// The first row that this thread has in the first block of its warpgroup.
template <int BLOCKS> INLINE u32 own_row() {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    return (warp >> 2) * 64 * BLOCKS + (warp & 3) * 16 + (lane >> 2);
}
