// Convolutions whose groups have few terms and few rows, by warps on tensor cores: the weights of a group
// stay in registers, and each number of the source is read once. Bound by memory where larger tiles would
// mostly multiply zeros. Compute capability 8.0 and later.
#pragma once
#include "strips.cuh"
#include "tf32.cuh"

// Threads of a block.
static const int NARROW = 128;
// Terms of a product.
static const int TERMS = 32 / sizeof(scalar);

// c += a · b for 16 rows, 8 columns, TERMS terms. With g = lane / 4 and t = lane % 4, a thread holds rows g
// and g + 8 of the left operand in words t, then both in words t + 4; columns g of the right one in words t
// and t + 4; and of c columns 2t and 2t + 1 of row g, then of row g + 8.
INLINE void multiply(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#define MULTIPLY(TYPES)                                                                            \
    asm("mma.sync.aligned." TYPES " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                           \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define TYPES_f32 "m16n8k8.row.col.f32.tf32.tf32.f32"
#define TYPES_f16 "m16n8k16.row.col.f32.f16.f16.f32"
#define TYPES_bf16 "m16n8k16.row.col.f32.bf16.bf16.f32"
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
    MULTIPLY(JOIN(TYPES_, SCALAR));
}

// A word of an operand: one f32, or two halves; in PARTS that add up to it.
template <int PARTS> INLINE void word(u32 (&to)[PARTS], f32 first, f32) {
    if (PARTS > 1) {
        f32 high, rest;
        split(first, high, rest);
        to[0] = __float_as_int(high);
        to[PARTS - 1] = __float_as_int(rest);
    } else {
        to[0] = as_tf32(first);
    }
}
template <int PARTS> INLINE void word(u32 (&to)[PARTS], f16 first, f16 second) {
    to[0] = first.bits | (u32)second.bits << 16;
}
template <int PARTS> INLINE void word(u32 (&to)[PARTS], bf16 first, bf16 second) {
    to[0] = first.bits | (u32)second.bits << 16;
}
// The term that the first number of a word is, of a product's: `high` for words t + 4.
INLINE u32 term_of_word(bool high) {
    const u32 t = threadIdx.x & 3, each = 4 / sizeof(scalar);
    return (t + (high ? 4 : 0)) * each;
}

// The sum with both operands in parts: the products of the smaller parts with each other do not count.
template <int PARTS> INLINE void multiply_parts(f32 (&c)[4], const u32 (&a)[PARTS][4], const u32 (&b)[PARTS][2]) {
    if (PARTS > 1) {
        multiply(c, a[PARTS - 1], b[0]);
        multiply(c, a[0], b[PARTS - 1]);
    }
    multiply(c, a[0], b[0]);
}

// Where the packs of a tile lie in the source: by all threads, which then wait for each other.
INLINE void locate_packs(const Strips& s, const Segments& segments, i32* packs, u32 used) {
    for (u32 p = threadIdx.x; p * s.pack < used; p += NARROW) packs[p] = segments.source(s, p * s.pack);
}

struct Narrow {
    Strips strips;
    // Of a result, in a group.
    u32 rows;
    u32 out_length, first_position, position_step;
    // The weights: elements from one row, channel and tap to the next, and where tap 0 is.
    u64 w_group, w_row, w_channel;
    i64 w_first, w_tap;
    // Positions of a tile, and how many blocks share those of a group.
    u32 tile, pieces;
    // Whether positions 2i and 2i + 1 of results can be written at once.
    u32 pairs;
    // Of a gradient for weights: elements of the output's gradient that are copied at once, and from one
    // row of it to the next in shared memory.
    u32 pack, pitch;
    u32 unused;
};

// Forward passes, and gradients for inputs: ROWS times 16 rows of weights, STEPS times TERMS terms. Dynamic
// shared memory: strips of all channels and one of zeros, and a table of where packs come from.
template <int ROWS, int STEPS, int PARTS>
INLINE void narrow_gather(const Narrow& g, const scalar* source, const scalar* w, const scalar* bias, scalar* out) {
    extern __shared__ __align__(128) unsigned char shared[];
    const int EACH = 4 / sizeof(scalar);
    const Strips& s = g.strips;
    scalar* strips = (scalar*)shared;
    i32* packs = (i32*)(strips + (s.chunk + 1) * s.pitch);
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, line = lane >> 2, pair = 2 * (lane & 3);
    const u32 row_tiles = (g.rows + 16 * ROWS - 1) / (16 * ROWS);
    const u64 positions = s.batch * s.positions, tiles = (positions + g.tile - 1) / g.tile;
    const u64 sample = (u64)s.groups * s.channels * s.length;
    const i64 result = (i64)s.groups * g.rows * g.out_length;
    for (u32 i = threadIdx.x; i < s.pitch; i += NARROW) {
        scalar zero = {};
        strips[s.chunk * s.pitch + i] = zero;
    }
    // Where this thread's terms lie in strips.
    i32 terms[STEPS][2][EACH];
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int high = 0; high < 2; high++)
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const u32 term = k * TERMS + term_of_word(high) + e;
                const u32 tap = term / s.chunk, c = term - tap * s.chunk;
                // Terms that there are not meet zeros.
                terms[k][high][e] =
                    tap < s.taps ? (i32)(c * s.pitch + tap * s.tap_step) : (i32)(s.chunk * s.pitch);
            }
    for (u32 turn = blockIdx.x; turn < s.groups * row_tiles * g.pieces; turn += gridDim.x) {
        const u32 group = turn % s.groups, first_row = turn / s.groups % row_tiles * 16 * ROWS;
        const u32 piece = turn / s.groups / row_tiles;
        u32 left[ROWS][STEPS][PARTS][4];
        f32 extra[ROWS][2];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32 row = first_row + r * 16 + half * 8 + line;
                extra[r][half] = bias && row < g.rows ? widen(bias[group * g.rows + row]) : 0.0f;
                const scalar* from = w + group * g.w_group + row * g.w_row + g.w_first;
#pragma unroll
                for (int k = 0; k < STEPS; k++)
#pragma unroll
                    for (int high = 0; high < 2; high++) {
                        scalar values[2] = {};
#pragma unroll
                        for (int e = 0; e < EACH; e++) {
                            const u32 term = k * TERMS + term_of_word(high) + e;
                            const u32 tap = term / s.chunk, c = term - tap * s.chunk;
                            if (row < g.rows && tap < s.taps)
                                values[e] = from[(i64)(c * g.w_channel) + (i64)tap * g.w_tap];
                        }
                        u32 parts[PARTS];
                        word<PARTS>(parts, values[0], values[1]);
#pragma unroll
                        for (int part = 0; part < PARTS; part++)
                            left[r][k][part][high * 2 + half] = parts[part];
                    }
            }
        for (u64 tile = piece; tile < tiles; tile += g.pieces) {
            const u64 first = tile * g.tile;
            const Segments segments(s, first);
            const u32 used = segments.used(s, g.tile);
            __syncthreads();
            locate_packs(s, segments, packs, used);
            __syncthreads();
            bring<NARROW>(s, strips, source + segments.sample * sample + (u64)group * s.channels * s.length,
                          packs, used, s.channels, threadIdx.x);
            close_copies();
            await_copies<0>();
            __syncthreads();
            // A warp's positions are neighbours, so that neither columns nor addresses are divided out again.
            const u32 share = g.tile / (NARROW / 32), begin = warp * share;
            Segments::Walk walk = segments.walk(s, begin + line);
            const u32 ahead = segments.position + begin + pair, more = ahead / s.positions;
            u32 q = ahead - more * s.positions;
            u64 remain = positions - first > begin + pair ? positions - first - begin - pair : 0;
            u32 exist = remain < share ? (u32)remain : share;
            scalar* to = out +
                         (((segments.sample + more) * s.groups + group) * g.rows + first_row + line) * g.out_length +
                         g.first_position + (u64)q * g.position_step;
            for (u32 at = 0; at < share; at += 8) {
                f32 sums[ROWS][4];
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int i = 0; i < 4; i++) sums[r][i] = extra[r][i / 2];
                const scalar* here = strips + walk.column;
#pragma unroll
                for (int k = 0; k < STEPS; k++) {
                    u32 right[PARTS][2];
#pragma unroll
                    for (int high = 0; high < 2; high++) {
                        u32 parts[PARTS];
                        word<PARTS>(parts, here[terms[k][high][0]], here[terms[k][high][EACH - 1]]);
#pragma unroll
                        for (int part = 0; part < PARTS; part++) right[part][high] = parts[part];
                    }
#pragma unroll
                    for (int r = 0; r < ROWS; r++) multiply_parts<PARTS>(sums[r], left[r][k], right);
                }
                walk.go(s, 8);
                // The odd position may be the first of the next sample.
                const bool last = q + 1 >= s.positions;
                const i64 next = last ? result - (i64)q * g.position_step : (i64)g.position_step;
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        if (first_row + r * 16 + half * 8 + line >= g.rows) continue;
                        scalar* put = to + (u64)(r * 16 + half * 8) * g.out_length;
                        const scalar even = narrow<scalar>(sums[r][half * 2]);
                        const scalar odd = narrow<scalar>(sums[r][half * 2 + 1]);
                        if (g.pairs) {
                            if (at < exist) *(Pack<scalar, 2>*)put = {{even, odd}};
                        } else {
                            if (at < exist) *put = even;
                            if (at + 1 < exist) put[next] = odd;
                        }
                    }
                q += 8;
                to += 8 * g.position_step;
                while (q >= s.positions) {
                    q -= s.positions;
                    to += result - (i64)s.positions * g.position_step;
                }
            }
        }
    }
}

// Gradients for weights: ROWS times 16 output channels, LINES times 8 taps of channels, with sums over
// positions. `partial` holds the pieces' sums where there are several. Dynamic shared memory: strips of the
// input and of the output's gradient, where positions lie in the former, and where packs come from.
template <int ROWS, int LINES, int PARTS>
INLINE void narrow_weight(const Narrow& g, const scalar* x, const scalar* dy, scalar* out, f32* partial) {
    extern __shared__ __align__(128) unsigned char shared[];
    const int EACH = 4 / sizeof(scalar);
    // Of values in parts, sums of more products are added up apart, so that rounding errors stay small.
    const u32 STRETCH = 16;
    const Strips& s = g.strips;
    scalar *strips = (scalar*)shared, *gradient = strips + s.chunk * s.pitch;
    i32* columns = (i32*)(gradient + 16 * ROWS * g.pitch);
    i32 *packs = columns + g.tile, *outputs = packs + s.width / s.pack;
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, line = lane >> 2;
    const u32 lines = s.channels * s.taps;
    const u32 row_tiles = (g.rows + 16 * ROWS - 1) / (16 * ROWS), line_tiles = (lines + 8 * LINES - 1) / (8 * LINES);
    const u64 positions = s.batch * s.positions, tiles = (positions + g.tile - 1) / g.tile;
    const u64 sample = (u64)s.groups * s.channels * s.length, result = (u64)s.groups * g.rows * s.positions;
    // The output's gradient, as a source without padding.
    Strips y = s;
    y.channels = g.rows;
    y.length = s.positions;
    y.step = y.taps = 1;
    y.offset = 0;
    y.pitch = g.pitch;
    y.pack = g.pack;
    y.chunk = 16 * ROWS;
    for (u32 turn = blockIdx.x; turn < s.groups * row_tiles * line_tiles * g.pieces; turn += gridDim.x) {
        u32 rest = turn;
        const u32 group = rest % s.groups;
        rest /= s.groups;
        const u32 first_row = rest % row_tiles * 16 * ROWS;
        rest /= row_tiles;
        const u32 first_line = rest % line_tiles * 8 * LINES, piece = rest / line_tiles;
        const u32 channel = first_line / s.taps;
        i32 places[LINES];
#pragma unroll
        for (int j = 0; j < LINES; j++) {
            // Lines that there are not are computed like the first, and not written.
            u32 at = first_line + j * 8 + line;
            if (at >= lines) at = first_line;
            const u32 c = at / s.taps;
            places[j] = (c - channel) * s.pitch + (at - c * s.taps) * s.tap_step;
        }
        f32 sums[ROWS][LINES][4], kept[PARTS > 1 ? ROWS : 1][PARTS > 1 ? LINES : 1][4];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int j = 0; j < LINES; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    sums[r][j][i] = 0;
                    if (PARTS > 1) kept[r][j][i] = 0;
                }
        u32 since = 0;
        for (u64 tile = piece; tile < tiles; tile += g.pieces) {
            const Segments segments(s, tile * g.tile), over(y, tile * g.tile);
            const u32 used = segments.used(s, g.tile);
            __syncthreads();
            locate_packs(s, segments, packs, used);
            locate_packs(y, over, outputs, g.tile);
            for (u32 i = threadIdx.x; i < g.tile; i += NARROW) columns[i] = segments.column(s, i);
            __syncthreads();
            bring<NARROW>(s, strips,
                          x + segments.sample * sample + ((u64)group * s.channels + channel) * s.length, packs,
                          used, s.channels - channel, threadIdx.x);
            bring<NARROW>(y, gradient,
                          dy + over.sample * result + ((u64)group * g.rows + first_row) * s.positions, outputs,
                          g.tile, g.rows - first_row, threadIdx.x);
            close_copies();
            await_copies<0>();
            __syncthreads();
            for (u32 at = warp * TERMS; at < g.tile; at += NARROW / 32 * TERMS) {
                u32 left[ROWS][PARTS][4];
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const scalar* from =
                            gradient + (r * 16 + i % 2 * 8 + line) * g.pitch + at + term_of_word(i / 2);
                        u32 parts[PARTS];
                        word<PARTS>(parts, from[0], from[EACH - 1]);
#pragma unroll
                        for (int part = 0; part < PARTS; part++) left[r][part][i] = parts[part];
                    }
                i32 column[2][2];
#pragma unroll
                for (int high = 0; high < 2; high++)
#pragma unroll
                    for (int e = 0; e < EACH; e++) column[high][e] = columns[at + term_of_word(high) + e];
#pragma unroll
                for (int j = 0; j < LINES; j++) {
                    u32 right[PARTS][2];
#pragma unroll
                    for (int high = 0; high < 2; high++) {
                        const scalar* from = strips + places[j];
                        u32 parts[PARTS];
                        word<PARTS>(parts, from[column[high][0]], from[column[high][EACH - 1]]);
#pragma unroll
                        for (int part = 0; part < PARTS; part++) right[part][high] = parts[part];
                    }
#pragma unroll
                    for (int r = 0; r < ROWS; r++) multiply_parts<PARTS>(sums[r][j], left[r], right);
                }
                if (PARTS > 1 && ++since == STRETCH) {
                    since = 0;
#pragma unroll
                    for (int r = 0; r < ROWS; r++)
#pragma unroll
                        for (int j = 0; j < LINES; j++)
#pragma unroll
                            for (int i = 0; i < 4; i++) {
                                kept[r][j][i] += sums[r][j][i];
                                sums[r][j][i] = 0;
                            }
                }
            }
        }
        // The warps' sums, one after another.
        f32* total = (f32*)shared;
        const u32 across = 8 * LINES + 1;
        for (u32 turn_of = 0; turn_of < NARROW / 32; turn_of++) {
            __syncthreads();
            if (warp != turn_of) continue;
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int j = 0; j < LINES; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        f32& at = total[(r * 16 + i / 2 * 8 + line) * across + j * 8 + 2 * (lane & 3) + i % 2];
                        const f32 own = sums[r][j][i] + (PARTS > 1 ? kept[r][j][i] : 0.0f);
                        at = turn_of > 0 ? at + own : own;
                    }
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < 16 * ROWS * 8 * LINES; i += NARROW) {
            const u32 row = i / (8 * LINES), at = i - row * 8 * LINES;
            if (first_row + row >= g.rows || first_line + at >= lines) continue;
            const u64 to = ((u64)group * g.rows + first_row + row) * lines + first_line + at;
            const f32 sum = total[row * across + at];
            if (partial) {
                partial[(u64)piece * s.groups * g.rows * lines + to] = sum;
            } else {
                out[to] = narrow<scalar>(sum);
            }
        }
        __syncthreads();
    }
}
