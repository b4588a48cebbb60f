// Forward passes, and gradients for inputs, on the tensor cores of compute capability 9.0: tiles of
// positions times output channels. The source is read into strips as it lies, once for all taps; the
// weights come in the order in which the products take them, which `prepare` gives them.
#pragma once
#include "conv_strips.cuh"

// How the sums are cut up, and where results go.
struct Gather {
    Strips strips;
    // Channels of a result, in a group.
    u32 rows;
    // Stages that a chunk of strips takes, and how many chunks a launch adds up.
    u32 stages, chunks;
    u32 out_length, first_position, position_step;
    // The weights: elements from one row, channel and tap to the next, and where tap 0 is.
    u64 w_group, w_row, w_channel;
    i64 w_first, w_tap;
    // The tiles of rows that a launch covers.
    u32 first_tile, tiles;
    // Whether positions 2i and 2i + 1 of results can be written at once.
    u32 pairs;
    // The first of the chunks. If that is not 0, sums are added to the results of a launch before.
    u32 first_chunk;
};

// Places for stages, most of which are on their way.
static const int PLACES = 6;

// Weights in vectors: of a tile's N rows after another, of a stage's vectors, of all stages. Each value is
// PARTS that add up to it.
template <int N, int PARTS>
INLINE void prepare(const Gather& g, const scalar* w, scalar* out) {
    const u32 stages = g.stages * g.chunks, chunk = g.strips.chunk;
    const u64 all = (u64)g.strips.groups * g.tiles * stages * 4 * N;
    for (u64 at = thread_index(); at < all; at += thread_count()) {
        const u32 row = at % N, vector = at / N % 4;
        const u64 rest = at / (4 * N);
        const u32 stage = rest % stages, tile = rest / stages % g.tiles, group = rest / stages / g.tiles;
        const u32 first = stage % g.stages * STAGE + vector * VECTOR, o = (g.first_tile + tile) * N + row;
        const scalar* from = w + group * g.w_group + o * g.w_row;
        Pack<scalar, VECTOR> values[PARTS];
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            const u32 tap = (first + i) / chunk;
            const u32 c = (g.first_chunk + stage / g.stages) * chunk + (first + i) % chunk;
            scalar value = {};
            if (o < g.rows && tap < g.strips.taps && c < g.strips.channels)
                value = from[c * g.w_channel + (u64)(g.w_first + tap * g.w_tap)];
            if (PARTS > 1) {
                split(value, values[0].at[i], values[PARTS - 1].at[i]);
            } else {
                values[0].at[i] = rounded(value);
            }
        }
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const u64 to = (rest * PARTS + part) * 4 * N + vector * N + row;
            *(Pack<scalar, VECTOR>*)(out + to * VECTOR) = values[part];
        }
    }
}

// Dynamic shared memory: the turns of the places, two tables of biases, the places with weights, strips and
// a channel of zeros as often as they are there, where terms lie, and two tables of where packs come from.
template <int N, int BLOCKS, int PARTS>
INLINE void gather(const Gather& g, const scalar* source, const scalar* weights, const scalar* bias,
                   scalar* out) {
    extern __shared__ __align__(128) unsigned char shared[];
    const int M = 128 * BLOCKS, PART = 64 * N, BYTES = PARTS * PART, TURNS = 128,
              HEAD = TURNS + 2 * N * 4;
    const Strips& s = g.strips;
    const u32 strip = s.whole ? s.width : (s.chunk + 1) * s.pitch;
    const u32 total = g.stages * g.chunks, most_packs = s.width / s.pack;
    scalar* strips = (scalar*)(shared + HEAD + PLACES * BYTES);
    i32* terms = (i32*)(strips + s.buffers * strip);
    i32* tables = terms + g.stages * STAGE;
    f32* all_biases = (f32*)(shared + TURNS);
    const u32 full = shared_address(shared), empty = full + 8 * PLACES, places = full + HEAD;

    for (u32 i = threadIdx.x; i < g.stages * STAGE; i += blockDim.x) {
        const u32 tap = i / s.chunk, c = i % s.chunk;
        // Terms that there are not meet zeros.
        terms[i] = tap < s.taps ? (i32)(c * s.pitch + tap * s.tap_step) : (i32)(s.chunk * s.pitch);
    }
    if (!s.whole)
        for (u32 b = 0; b < s.buffers; b++)
            for (u32 i = threadIdx.x; i < s.pitch; i += blockDim.x) {
                scalar zero = {};
                strips[b * strip + s.chunk * s.pitch + i] = zero;
            }
    if (threadIdx.x < PLACES) {
        begin_turns(full + 8 * threadIdx.x, COPYING + 1);
        begin_turns(empty + 8 * threadIdx.x, COMPUTING / 32);
    }
    show_to_products();
    __syncthreads();

    const u64 positions = s.batch * s.positions, columns = (positions + M - 1) / M;
    const u64 all = columns * s.groups * g.tiles;
    Ring<PLACES> ring = {0, 0};
    u32 buffer = 0;
    if (threadIdx.x >= COMPUTING) {
        fewer_registers<88>();
        const u32 thread = threadIdx.x - COMPUTING;
        const u64 sample = (u64)s.groups * s.channels * s.length;
        i32 *packs = tables, *other = tables + most_packs;
        for (u64 turn = blockIdx.x; turn < all; turn += gridDim.x) {
            const u32 tile = turn % g.tiles, group = turn / g.tiles % s.groups;
            const Segments segments(s, turn / g.tiles / s.groups * M);
            const u32 used = segments.used(s, M);
            for (u32 p = thread; p * s.pack < used; p += COPYING) packs[p] = segments.source(s, p * s.pack);
            asm volatile("bar.sync 1, %0;" ::"n"(COPYING) : "memory");
            const scalar* from = source + segments.sample * sample + (u64)group * s.channels * s.length;
            const unsigned char* right =
                (const unsigned char*)weights + ((u64)group * g.tiles + tile) * total * BYTES;
            for (u32 chunk = 0; chunk < g.chunks; chunk++) {
                for (u32 stage = 0; stage < g.stages; stage++) {
                    await_turn(empty + 8 * ring.place, ring.parity ^ 1);
                    const u32 turns = full + 8 * ring.place;
                    if (thread == 0) {
                        copy_whole(places + ring.place * BYTES, right, BYTES, turns);
                        right += BYTES;
                    }
                    if (stage == 0) {
                        const u32 c = (g.first_chunk + chunk) * s.chunk;
                        bring<COPYING>(s, strips + buffer * strip, from + (u64)c * s.length, packs, used,
                              s.channels - c, thread);
                    }
                    if (s.pack * sizeof(scalar) == 2) {
                        done(turns);
                    } else {
                        done_when_copied(turns);
                    }
                    ring.next();
                }
                if (++buffer == s.buffers) buffer = 0;
            }
            i32* table = packs;
            packs = other;
            other = table;
        }
    } else {
        more_registers<208>();
        const bool first_lane = (threadIdx.x & 31) == 0;
        const u32 own = own_row<BLOCKS>();
        Sums<N, BLOCKS, PARTS> sums;
        u32 which = 0;
        for (u64 turn = blockIdx.x; turn < all; turn += gridDim.x) {
            const u32 tile = turn % g.tiles, group = turn / g.tiles % s.groups;
            const u64 first = turn / g.tiles / s.groups * M;
            i32 low[BLOCKS], high[BLOCKS];
            {
                const Segments segments(s, first);
#pragma unroll
                for (int b = 0; b < BLOCKS; b++) {
                    low[b] = segments.column(s, own + b * 64);
                    high[b] = segments.column(s, own + b * 64 + 8);
                }
            }
            const u32 first_row = (g.first_tile + tile) * N;
            const scalar* extra = bias + group * g.rows + first_row;
            f32* biases = all_biases + which * N;
            which ^= 1;
            if (threadIdx.x < N)
                biases[threadIdx.x] =
                    bias && first_row + threadIdx.x < g.rows ? widen(extra[threadIdx.x]) : 0.0f;
            sums.clear();
            u32 before = PLACES;
            for (u32 chunk = 0; chunk < g.chunks; chunk++) {
                const scalar* here = strips + buffer * strip;
                for (u32 stage = 0; stage < g.stages; stage++) {
                    await_turn(full + 8 * ring.place, ring.parity);
                    sums.add(here, terms + stage * STAGE, low, high, places + ring.place * BYTES, 16 * N, PART,
                             [&]() {
                                 if (before < PLACES && first_lane) done(empty + 8 * before);
                             });
                    before = ring.place;
                    ring.next();
                }
                if (++buffer == s.buffers) buffer = 0;
            }
            sums.finish();
            if (first_lane) done(empty + 8 * before);
            // Both tables of biases are written only when all have passed here since they were read.
            asm volatile("bar.sync 2, %0;" ::"n"(COMPUTING) : "memory");
#pragma unroll
            for (int b = 0; b < BLOCKS; b++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    u64 index = first + own + b * 64 + half * 8;
                    if (g.pairs) index &= ~(u64)1;
                    const bool exists = index < positions;
                    const u64 n = index / s.positions;
                    const u32 q = (u32)(index - n * s.positions);
                    scalar* to = out + ((n * s.groups + group) * g.rows + first_row) * g.out_length +
                                 g.first_position + (u64)q * g.position_step;
                    const u32 rows = exists ? g.rows - first_row : 0;
                    const bool adds = g.first_chunk > 0;
                    if (g.pairs) {
                        sums.rows(b, half, [&](u32 row, f32 even, f32 odd) {
                            if (row >= rows) return;
                            auto& at = *(Pack<scalar, 2>*)(to + (u64)row * g.out_length);
                            even += biases[row];
                            odd += biases[row];
                            if (adds) {
                                const Pack<scalar, 2> before = at;
                                even += widen(before.at[0]);
                                odd += widen(before.at[1]);
                            }
                            at = {narrow<scalar>(even), narrow<scalar>(odd)};
                        });
                    } else {
                        sums.row(b, half, [&](u32 row, f32 value) {
                            if (row >= rows) return;
                            scalar& at = to[(u64)row * g.out_length];
                            value += biases[row];
                            if (adds) value += widen(at);
                            at = narrow<scalar>(value);
                        });
                    }
                }
        }
    }
}
