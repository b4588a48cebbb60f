// types: f32 f64 f16 bf16 i32 i64
// Comparisons; the codes are those of `comparison_code` in compare.rs.
#include "tiles.cuh"

KERNEL compare(const scalar* a, const scalar* b, i32* out, LAYOUT layout, u32 packed, int code) {
    FOR_EACH_TILE(number, layout) {
        Tile<2> tile(layout, packed, number);
        scalar raw_a[PER_THREAD], raw_b[PER_THREAD];
        i32 holds[PER_THREAD];
        tile.load(0, a, raw_a);
        tile.load(1, b, raw_b);
#pragma unroll
        for (int j = 0; j < PER_THREAD; ++j) {
            acc left = widen(raw_a[j]), right = widen(raw_b[j]);
            // All three are false where one is NaN, as is every comparison but `≠`.
            bool equal = left == right, less = left < right, greater = left > right;
            holds[j] = code == 0   ? equal
                       : code == 1 ? !equal
                       : code == 2 ? less
                       : code == 3 ? (less || equal)
                       : code == 4 ? greater
                                   : (greater || equal);
        }
        tile.store(out, holds);
    }
}
