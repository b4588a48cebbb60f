// types: f32 f64 f16 bf16
// The gradients of two-operand functions where no operand was stretched, element by element. Where
// one was, reduce.cu adds the same numbers up.
#include "functions.cuh"
#include "tiles.cuh"

KERNEL binary_gradient_map(const scalar* a, const scalar* b, const scalar* dy, scalar* out,
                           LAYOUT layout, u32 packed, int code, int side, f64 p) {
    FOR_EACH_TILE(number, layout) {
        Tile<3> tile(layout, packed, number);
        scalar raw_a[PER_THREAD], raw_b[PER_THREAD], raw_dy[PER_THREAD];
        acc left[PER_THREAD], right[PER_THREAD], slope[PER_THREAD];
        tile.load(0, a, raw_a);
        tile.load(1, b, raw_b);
        tile.load(2, dy, raw_dy);
        widen_each(raw_a, left);
        widen_each(raw_b, right);
        widen_each(raw_dy, slope);
        binary_gradient(code, side, left, right, slope, (acc)p);
        narrow_each(left, raw_a);
        tile.store(out, raw_a);
    }
}

KERNEL select_gradient_map(const i32* mask, const scalar* dy, scalar* out, LAYOUT layout, u32 packed,
                           int side) {
    FOR_EACH_TILE(number, layout) {
        Tile<2> tile(layout, packed, number);
        i32 chosen[PER_THREAD];
        scalar value[PER_THREAD];
        tile.load(0, mask, chosen);
        tile.load(1, dy, value);
#pragma unroll
        for (int j = 0; j < PER_THREAD; ++j)
            if ((chosen[j] != 0) != (side == 0)) value[j] = narrow<scalar>(acc(0));
        tile.store(out, value);
    }
}
