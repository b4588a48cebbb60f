// types: b16 b32 b64
// Strided copies: element by element over any axes, in packs of 16 bytes where both sides are runs,
// and through tiles in shared memory where neighbours on one side are far apart on the other.
#include "capgrad.cuh"

// Strides of the layout: of `x`, then of `out`.
KERNEL copy_elements(LAYOUT layout, const scalar* x, scalar* out) {
#pragma unroll 4
    for (u64 i = thread_index(); i < layout.elements; i += thread_count()) {
        u64 at[2];
        locate(layout, i, at);
        out[at[1]] = x[at[0]];
    }
}

// The same, the element a pack.
KERNEL copy_packs(LAYOUT layout, const Wide<scalar>::type* x, Wide<scalar>::type* out) {
#pragma unroll 4
    for (u64 i = thread_index(); i < layout.elements; i += thread_count()) {
        u64 at[2];
        locate(layout, i, at);
        out[at[1]] = x[at[0]];
    }
}

static const u32 THREADS = 256;
// Elements of a tile. Its rows are padded by a word of 4 bytes, so that columns of it are in
// different banks; the shortest rows have 4 elements.
static const u32 AREA_BITS = sizeof(scalar) == 2 ? 12 : 10, AREA = 1 << AREA_BITS;
static const u32 PAD = sizeof(scalar) == 2 ? 2 : 1;

// `out[b.. + i·p_to + j] = x[b.. + i + j·l_from]` for `i < p` and `j < l`, in tiles of `1 << p_bits` by
// what fits the area.
KERNEL __launch_bounds__(THREADS)
copy_tiles(LAYOUT batch, u64 p, u64 p_to, u64 l, u64 l_from, u32 p_bits, const scalar* x,
           scalar* out) {
    __shared__ scalar tile[AREA / 4 * (4 + PAD)];
    u32 l_bits = AREA_BITS - p_bits, height = 1u << p_bits, width = 1u << l_bits;
    u64 p_tiles = (p + height - 1) >> p_bits, l_tiles = (l + width - 1) >> l_bits;
    u64 tiles = p_tiles * l_tiles;
    for (u64 item = blockIdx.x; item < batch.elements * tiles; item += gridDim.x) {
        u64 which = item / tiles, rest = item - which * tiles;
        u64 row = rest / l_tiles, i0 = row << p_bits, j0 = (rest - row * l_tiles) << l_bits;
        u64 at[2];
        locate(batch, which, at);
        const scalar* from = x + at[0] + i0 + j0 * l_from;
        scalar* to = out + at[1] + i0 * p_to + j0;
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < AREA / THREADS; ++k) {
            u32 t = k * THREADS + threadIdx.x, i = t & (height - 1), j = t >> p_bits;
            if (i0 + i < p && j0 + j < l) tile[j * (height + PAD) + i] = from[i + j * l_from];
        }
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < AREA / THREADS; ++k) {
            u32 t = k * THREADS + threadIdx.x, j = t & (width - 1), i = t >> l_bits;
            if (i0 + i < p && j0 + j < l) to[i * p_to + j] = tile[j * (height + PAD) + i];
        }
    }
}
