// Positions of samples, one after another, in strips: what a tile of a convolution reads of its source,
// laid out so that a tap is a shift. A tile's positions may lie in several samples; each sample has a
// segment of every strip, with zeros where the convolution pads.
#pragma once
#include "copies.cuh"

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
    // Goes through positions: where tap 0 of one lies, and then of one that is `by` further.
    struct Walk {
        u32 position, column;
        // What the next and every later sample's columns are further apart than positions are.
        i32 jump, later;

        __device__ __forceinline__ void go(const Strips& s, u32 by) {
            position += by;
            column += by * s.step;
            while (position >= s.positions) {
                position -= s.positions;
                column += jump;
                jump = later;
            }
        }
    };
    __device__ __forceinline__ Walk walk(const Strips& s, u32 index) const {
        const u32 q = position + index, more = q / s.positions;
        const i32 apart = (i32)(s.positions * s.step);
        const i32 first = (i32)width - others + begins - apart, later = (i32)full - apart;
        return {q - more * s.positions, column(s, index), more > 0 ? later : first, later};
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

// What is not asynchronous is over at once.
template <int BYTES> INLINE void copy_pack(scalar* to, const scalar* from, bool exists) {
    if (BYTES >= 4) {
        copy_async<(BYTES < 4 ? 4 : BYTES)>(shared_address(to), from, exists);
    } else {
        scalar zero = {};
        *to = exists ? *from : zero;
    }
}

// Channels of strips, by COUNT threads of which this is one: `packs` says where the packs of one lie in the
// source. Channels from `exist` on are zeros.
template <int BYTES, int COUNT>
INLINE void copy_strips(const Strips& s, scalar* strips, const scalar* source, const i32* packs, u32 columns,
                        u32 exist, u32 thread) {
    const int PACK = BYTES / sizeof(scalar);
    for (u32 p = thread & 31; p * PACK < columns; p += 32) {
        const i32 offset = packs[p];
        const scalar* from = source + offset + (u64)(thread >> 5) * s.length;
        scalar* to = strips + p * PACK + (thread >> 5) * s.pitch;
#pragma unroll 4
        for (u32 c = thread >> 5; c < s.chunk; c += COUNT / 32) {
            const bool exists = offset >= 0 && c < exist;
            copy_pack<BYTES>(to, exists ? from : source, exists);
            from += (u64)(COUNT / 32) * s.length;
            to += (COUNT / 32) * s.pitch;
        }
    }
}

// The same of whole samples, whose channels are columns.
template <int BYTES, int COUNT>
INLINE void copy_samples(const Strips& s, scalar* strips, const scalar* source, const i32* packs,
                         u32 columns, u32 exist, u32 thread) {
    const int PACK = BYTES / sizeof(scalar);
    const u32 sample = s.chunk * s.length, least = exist < s.chunk ? exist * s.length : sample;
#pragma unroll 4
    for (u32 p = thread; p * PACK < columns; p += COUNT) {
        const i32 offset = packs[p];
        const bool exists = offset >= 0 && (least == sample || p * PACK % sample < least);
        copy_pack<BYTES>(strips + p * PACK, exists ? source + offset : source, exists);
    }
}

// Brings a chunk of strips: `source` is where its first channel begins in the first sample, of which group
// and sample have `exist` more.
template <int COUNT>
INLINE void bring(const Strips& s, scalar* strips, const scalar* source, const i32* packs, u32 columns,
                  u32 exist, u32 thread) {
    const u32 bytes = s.pack * sizeof(scalar);
    if (s.whole) {
        if (bytes == 16) {
            copy_samples<16, COUNT>(s, strips, source, packs, columns, exist, thread);
        } else if (bytes == 4) {
            copy_samples<4, COUNT>(s, strips, source, packs, columns, exist, thread);
        } else {
            copy_samples<2, COUNT>(s, strips, source, packs, columns, exist, thread);
        }
    } else if (bytes == 16) {
        copy_strips<16, COUNT>(s, strips, source, packs, columns, exist, thread);
    } else if (bytes == 4) {
        copy_strips<4, COUNT>(s, strips, source, packs, columns, exist, thread);
    } else {
        copy_strips<2, COUNT>(s, strips, source, packs, columns, exist, thread);
    }
}
