// Gradients for weights on the tensor cores of compute capability 9.0: tiles of (channel, tap) times output
// channels, with sums over positions. The input is read into strips as it lies, so that a tap is a shift.
#pragma once
#include "conv_strips.cuh"

// How the sums are cut up.
struct Gradient {
    Strips strips;
    // Output channels of a group.
    u32 rows;
    // Positions that are in strips at a time: the channels in them are those that a tile reaches.
    u32 panel;
    // Elements of the output's gradient that are copied at once.
    u32 pack;
    // Pieces that the positions of all samples are cut into, and panels of each.
    u32 pieces, panels;
};

// Stages that are copied on before one is finished. Places are more, so that neither side waits for the
// other at once.
static const int LATE = 3;

// With `order`, which holds a 0 for each tile and one more, pieces add to the result one after another: the
// order is always the same. Blocks then claim turns as they come to them, so that whoever waits for a piece
// waits for a block that is running, whatever else the device does. Without it there is one piece, or
// `partial` holds the pieces' results.
INLINE void await_order(const u32* order, u32 piece) {
    u32 now;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(order) : "memory");
    } while (now != piece);
}

// Dynamic shared memory: the turns of the places and what they are of, the places with the output's
// gradient, and strips and tables of panels as often as they are there. The tables say where packs of the
// input and of the output's gradient come from, and where positions lie in strips.
template <int N, int BLOCKS, int PARTS>
INLINE void weight(const Gradient& g, const scalar* x, const scalar* dy, scalar* out, f32* partial,
                   u32* order) {
    extern __shared__ __align__(128) unsigned char shared[];
    const int M = 128 * BLOCKS, APART = 16 * N, PART = 4 * APART, BYTES = PARTS * PART;
    const int TURNS = 128, HEAD = 256;
    const int PLACES = BYTES > 8192 ? 6 : 8;
    const int ROWS = COPYING / 4, EACH = N / ROWS;
    const Strips& s = g.strips;
    const u32 strip = s.whole ? s.width : s.chunk * s.pitch, stages = g.panel / STAGE;
    // The turn that a place's stage is of, and the last two that were claimed.
    u64 *numbers = (u64*)(shared + TURNS), *claimed = numbers + PLACES;
    const u64 END = ~(u64)0;
    scalar* strips = (scalar*)(shared + HEAD + PLACES * BYTES);
    i32* tables = (i32*)(strips + s.buffers * strip);
    const u32 most_packs = s.width / s.pack, output_packs = g.panel / g.pack;
    const u32 table = most_packs + output_packs + g.panel;
    const u32 full = shared_address(shared), empty = full + 8 * PLACES, places = full + HEAD;
    if (threadIdx.x < PLACES) {
        begin_turns(full + 8 * threadIdx.x, COPYING);
        begin_turns(empty + 8 * threadIdx.x, COMPUTING / 32);
    }
    __syncthreads();

    const u32 lines = s.channels * s.taps, row_tiles = (lines + M - 1) / M, column_tiles = (g.rows + N - 1) / N;
    const u64 positions = s.batch * s.positions;
    const u64 all = (u64)row_tiles * column_tiles * s.groups * g.pieces;
    // What a turn computes.
    struct Turn {
        u32 line, row, group, piece, panels;
        u64 start;
    };
    auto find = [&](u64 turn) {
        Turn t;
        t.line = turn % row_tiles * M;
        u64 rest = turn / row_tiles;
        t.row = rest % column_tiles * N;
        rest /= column_tiles;
        t.group = rest % s.groups;
        t.piece = rest / s.groups;
        t.start = (u64)t.piece * g.panels * g.panel;
        const u64 left = t.start < positions ? (positions - t.start + g.panel - 1) / g.panel : 0;
        t.panels = left < g.panels ? (u32)left : g.panels;
        return t;
    };
    Ring<PLACES> ring = {0, 0};
    u32 buffer = 0;
    if (threadIdx.x >= COMPUTING) {
        fewer_registers<88>();
        const u32 thread = threadIdx.x - COMPUTING;
        // A warp copies four vectors of eight rows: their sectors are whole, and a vector's rows lie in
        // different banks.
        const u32 vector = (thread & 31) >> 3, first_row = (thread >> 5) * 8 + (thread & 7);
        const u64 sample = (u64)s.groups * s.channels * s.length, result = (u64)s.groups * g.rows * s.positions;
        u32 waiting = 0;
        Ring<PLACES> late = {0, 0};
        // Finishes the oldest stage on its way: others see it as products take it.
        auto finish = [&]() {
            if (sizeof(scalar) == 4) {
                unsigned char* at = shared + HEAD + late.place * BYTES + vector * APART + first_row * 16;
                Pack<scalar, VECTOR> values[EACH];
#pragma unroll
                for (int i = 0; i < EACH; i++) values[i] = *(Pack<scalar, VECTOR>*)(at + i * ROWS * 16);
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    Pack<scalar, VECTOR> whole = values[i], rest = whole;
#pragma unroll
                    for (int j = 0; j < VECTOR; j++) {
                        if (PARTS > 1) {
                            split(values[i].at[j], whole.at[j], rest.at[j]);
                        } else {
                            whole.at[j] = rounded(values[i].at[j]);
                        }
                    }
                    *(Pack<scalar, VECTOR>*)(at + i * ROWS * 16) = whole;
                    if (PARTS > 1) *(Pack<scalar, VECTOR>*)(at + i * ROWS * 16 + PART) = rest;
                }
            }
            done(full + 8 * late.place);
            late.next();
        };
        u32 claims = 0;
        auto claim = [&](u64 before) {
            if (!order) return before + gridDim.x;
            u64& slot = claimed[claims++ & 1];
            if (thread == 0) slot = atomicAdd(order + row_tiles * column_tiles * s.groups, 1u);
            asm volatile("bar.sync 1, %0;" ::"n"(COPYING) : "memory");
            return slot;
        };
        for (u64 number = order ? claim(0) : blockIdx.x; number < all; number = claim(number)) {
            const Turn t = find(number);
            const u32 channel = t.line / s.taps;
            for (u32 panel = 0; panel < t.panels; panel++) {
                const Segments segments(s, t.start + (u64)panel * g.panel);
                i32 *packs = tables + buffer * table, *outputs = packs + most_packs;
                i32* columns = outputs + output_packs;
                const scalar* from =
                    x + segments.sample * sample + ((u64)t.group * s.channels + channel) * s.length;
                const scalar* gradient =
                    dy + segments.sample * result + ((u64)t.group * g.rows + t.row) * s.positions;
                const u32 used = segments.used(s, g.panel);
                for (u32 stage = 0; stage < stages; stage++) {
                    await_turn(empty + 8 * ring.place, ring.parity ^ 1);
                    if (thread == 0) numbers[ring.place] = number;
                    if (stage == 0) {
                        for (u32 p = thread; p * s.pack < used; p += COPYING)
                            packs[p] = segments.source(s, p * s.pack);
                        for (u32 i = thread; i < g.panel; i += COPYING) columns[i] = segments.column(s, i);
                        for (u32 i = thread; i < output_packs; i += COPYING) {
                            const u32 q = segments.position + i * g.pack, more = q / s.positions;
                            const bool exists = segments.sample + more < s.batch;
                            outputs[i] = exists ? (i32)(more * result) + (i32)(q - more * s.positions) : -1;
                        }
                        asm volatile("bar.sync 1, %0;" ::"n"(COPYING) : "memory");
                        bring<COPYING>(s, strips + buffer * strip, from, packs, used, s.channels - channel,
                              thread);
                    }
                    const u32 to = places + ring.place * BYTES, bytes = g.pack * sizeof(scalar);
                    const u32 at = to + vector * APART + first_row * 16;
                    const u32 term = stage * STAGE + vector * VECTOR;
                    const scalar* line = gradient + (u64)first_row * s.positions;
                    const u64 further = (u64)ROWS * s.positions;
                    if (bytes == 16) {
                        const i32 offset = outputs[term / VECTOR];
                        const scalar* from = line + offset;
#pragma unroll
                        for (int i = 0; i < EACH; i++) {
                            const bool exists = offset >= 0 && t.row + first_row + i * ROWS < g.rows;
                            copy_async<16>(at + i * ROWS * 16, exists ? from : dy, exists);
                            from += further;
                        }
                    } else if (bytes == 4) {
#pragma unroll
                        for (int j = 0; j < 4; j++) {
                            const i32 offset = outputs[(term * (u32)sizeof(scalar) >> 2) + j];
                            const scalar* from = line + offset;
#pragma unroll
                            for (int i = 0; i < EACH; i++) {
                                const bool exists = offset >= 0 && t.row + first_row + i * ROWS < g.rows;
                                copy_async<4>(at + i * ROWS * 16 + j * 4, exists ? from : dy, exists);
                                from += further;
                            }
                        }
                    } else {
                        for (int i = 0; i < EACH; i++) {
                            Pack<scalar, VECTOR> values;
#pragma unroll
                            for (int j = 0; j < VECTOR; j++) {
                                const i32 offset = outputs[term + j];
                                scalar value = {};
                                if (offset >= 0 && t.row + first_row + i * ROWS < g.rows)
                                    value = line[i * further + offset];
                                values.at[j] = value;
                            }
                            *(Pack<scalar, VECTOR>*)(shared + (at - full) + i * ROWS * 16) = values;
                        }
                    }
                    close_copies();
                    ring.next();
                    if (waiting == LATE) {
                        await_copies<LATE>();
                        finish();
                    } else {
                        waiting++;
                    }
                }
                if (++buffer == s.buffers) buffer = 0;
            }
        }
        await_turn(empty + 8 * ring.place, ring.parity ^ 1);
        if (thread == 0) numbers[ring.place] = END;
        await_copies<0>();
        for (; waiting > 0; waiting--) finish();
        done(full + 8 * ring.place);
    } else {
        more_registers<208>();
        const bool first_lane = (threadIdx.x & 31) == 0;
        const u32 own = own_row<BLOCKS>();
        Sums<N, BLOCKS, PARTS> sums;
        for (;;) {
            await_turn(full + 8 * ring.place, ring.parity);
            const u64 number = numbers[ring.place];
            if (number == END) break;
            const Turn t = find(number);
            i32 low[BLOCKS], high[BLOCKS];
#pragma unroll
            for (int b = 0; b < BLOCKS; b++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    // Lines that there are not are computed like the first, and not written.
                    u32 line = t.line + own + b * 64 + half * 8;
                    if (line >= lines) line = t.line;
                    const u32 c = line / s.taps;
                    (half ? high[b] : low[b]) =
                        (c - t.line / s.taps) * s.pitch + (line - c * s.taps) * s.tap_step;
                }
            sums.clear();
            u32 before = PLACES;
            const u32 total = t.panels * stages;
            for (u32 at = 0, stage = 0; at < total; at++) {
                await_turn(full + 8 * ring.place, ring.parity);
                // Here, since for those who copy it would wait for all that is on its way.
                show_to_products();
                const i32* columns = tables + buffer * table + most_packs + output_packs;
                sums.add(strips + buffer * strip, columns + stage * STAGE, low, high,
                         places + ring.place * BYTES, APART, PART, [&]() {
                             if (before < PLACES && first_lane) done(empty + 8 * before);
                         });
                before = ring.place;
                ring.next();
                if (++stage == stages) {
                    stage = 0;
                    if (++buffer == s.buffers) buffer = 0;
                }
            }
            sums.finish();
            if (before < PLACES && first_lane) done(empty + 8 * before);
            u32* tile = order + (order ? (t.group * column_tiles + t.row / N) * row_tiles + t.line / M : 0);
            const bool adds = order && t.piece > 0;
            if (adds) await_order(tile, t.piece);

#pragma unroll
            for (int b = 0; b < BLOCKS; b++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const u32 line = t.line + own + b * 64 + half * 8;
                    if (line >= lines) continue;
                    const u64 to = ((u64)t.group * g.rows + t.row) * lines + line;
                    f32* sum = partial + (partial ? (u64)t.piece * s.groups * g.rows * lines + to : 0);
                    sums.row(b, half, [&](u32 row, f32 value) {
                        if (t.row + row >= g.rows) return;
                        if (partial) {
                            sum[(u64)row * lines] = value;
                        } else {
                            scalar& at = out[to + (u64)row * lines];
                            if (adds) value += widen(at);
                            at = narrow<scalar>(value);
                        }
                    });
                }
            if (order) {
                // All have written before the next piece is told.
                __threadfence();
                asm volatile("bar.sync 2, %0;" ::"n"(COMPUTING) : "memory");
                if (threadIdx.x == 0)
                    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(tile), "r"(t.piece + 1)
                                 : "memory");
            }
        }
    }
}
