// types: b16 b32 b64
// The choice between two operands, element by element.
#include "tiles.cuh"

KERNEL select(const i32* mask, const scalar* a, const scalar* b, scalar* out, LAYOUT layout,
              u32 packed) {
    FOR_EACH_TILE(number, layout) {
        Tile<3> tile(layout, packed, number);
        i32 chosen[PER_THREAD];
        scalar left[PER_THREAD], right[PER_THREAD];
        tile.load(0, mask, chosen);
        tile.load(1, a, left);
        tile.load(2, b, right);
#pragma unroll
        for (int j = 0; j < PER_THREAD; ++j) left[j] = chosen[j] != 0 ? left[j] : right[j];
        tile.store(out, left);
    }
}
