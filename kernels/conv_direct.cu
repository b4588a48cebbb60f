// types: f32 f64 f16 bf16
// Convolutions without a workspace, for any geometry: see conv_gather.cuh. Where there are few rows, a
// thread computes whole columns instead of a tile.
#include "conv_gather.cuh"

// Few rows: each thread computes ROWS elements of one column, with the weights in shared memory.
template <int ROWS, bool GRADIENT>
INLINE void thin(const Geometry& g, const scalar* source, const scalar* w, const scalar* bias,
                 scalar* out) {
    const int DEPTH = 128;
    __shared__ alignas(16) acc weights[DEPTH][ROWS];
    Turns<GRADIENT> turns(g, ROWS, THREADS);
    for (u64 turn = blockIdx.x; turn < turns.all; turn += gridDim.x) {
        u64 row, residue, group, column, n, j;
        turns.at(turn, g, row, residue, group, column);
        Pass<GRADIENT> p(g, group, residue);
        row *= ROWS;
        column *= THREADS;
        if (column >= g.batch * p.positions) continue;
        divide(column + threadIdx.x, p.positions, n, j);
        const bool exists = n < g.batch;
        const u64 line = n * p.source_channels + p.group * p.channels;
        const scalar* base = source + line * p.source_length;
        i64 start = (i64)j * p.step + p.offset, at = start;
        u64 terms = p.channels * p.taps, t = 0, length = exists ? p.source_length : 0;
        acc sum[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) sum[r] = 0;
        for (u64 first = 0; first < terms; first += DEPTH) {
            int depth = (int)least(DEPTH, terms - first);
            __syncthreads();
            for (int i = threadIdx.x; i < depth * ROWS; i += THREADS) {
                u64 c, tap, m = row + i % ROWS;
                divide(first + i / ROWS, p.taps, c, tap);
                u64 from = p.w_start + m * p.w_row + c * p.w_channel + tap * p.w_tap;
                weights[i / ROWS][i % ROWS] = m < p.rows ? widen(w[from]) : acc(0);
            }
            __syncthreads();
            acc part[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) part[r] = 0;
#pragma unroll 4
            for (int k = 0; k < depth; k++) {
                acc x = 0;
                if ((u64)at < length) x = widen(base[at]);
#pragma unroll
                for (int r = 0; r < ROWS; r++) part[r] += weights[k][r] * x;
                at += p.tap_step;
                if (++t == p.taps) {
                    t = 0;
                    at = start;
                    base += p.source_length;
                }
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) sum[r] += part[r];
        }
        if (exists) {
            u64 channel = p.group * p.rows + row;
            scalar* to = out + (n * p.out_channels + channel) * p.out_length + p.first_position +
                         j * p.position_step;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (row + r >= p.rows) break;
                acc value = sum[r];
                if (bias) value += widen(bias[channel + r]);
                to[r * p.out_length] = narrow<scalar>(value);
            }
        }
    }
}

PASSES(64, 2, tiled, Plain<64>, 64, i32)
PASSES(64_wide, 2, tiled, Plain<64>, 64, i64)
PASSES(128, 1, tiled, Plain<128>, 128, i32)
PASSES(thin_1, 2, thin, 1)
PASSES(thin_4, 2, thin, 4)
PASSES(thin_16, 2, thin, 16)
