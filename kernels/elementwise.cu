// types: f32 f64 f16 bf16
// Functions of one and two operands and the gradient of the former, element by element.
#include "functions.cuh"
#include "tiles.cuh"

KERNEL unary_map(const scalar* x, scalar* out, LAYOUT layout, u32 packed, int code, f64 p0, f64 p1) {
    FOR_EACH_TILE(number, layout) {
        Tile<1, FLAT> tile(layout, packed, number);
        scalar raw[PER_THREAD];
        acc value[PER_THREAD];
        tile.load(0, x, raw);
        widen_each(raw, value);
        unary(code, value, (acc)p0, (acc)p1);
        narrow_each(value, raw);
        tile.store(out, raw);
    }
}

KERNEL unary_gradient_map(const scalar* saved, const scalar* dy, scalar* out, LAYOUT layout,
                          u32 packed, int code, f64 p0, f64 p1) {
    FOR_EACH_TILE(number, layout) {
        Tile<2, FLAT> tile(layout, packed, number);
        scalar raw[PER_THREAD], raw_dy[PER_THREAD];
        acc value[PER_THREAD], slope[PER_THREAD];
        tile.load(0, saved, raw);
        tile.load(1, dy, raw_dy);
        widen_each(raw, value);
        widen_each(raw_dy, slope);
        unary_gradient(code, value, slope, (acc)p0, (acc)p1);
        narrow_each(value, raw);
        tile.store(out, raw);
    }
}

template <Kind KIND>
INLINE void map_pairs(const scalar* a, const scalar* b, scalar* out, const Layout& layout,
                      u32 packed, int code, acc p) {
    FOR_EACH_TILE(number, layout) {
        Tile<2, KIND> tile(layout, packed, number);
        scalar raw_a[PER_THREAD], raw_b[PER_THREAD];
        acc left[PER_THREAD], right[PER_THREAD];
        tile.load(0, a, raw_a);
        tile.load(1, b, raw_b);
        widen_each(raw_a, left);
        widen_each(raw_b, right);
        binary(code, left, right, p);
        narrow_each(left, raw_a);
        tile.store(out, raw_a);
    }
}

KERNEL binary_map(const scalar* a, const scalar* b, scalar* out, LAYOUT layout, u32 packed, int code,
                  f64 p) {
    map_pairs<STRIDED>(a, b, out, layout, packed, code, (acc)p);
}

// Fewer registers, so more loads in flight, for what is most frequent.
KERNEL binary_flat(const scalar* a, const scalar* b, scalar* out, LAYOUT layout, u32 packed,
                   int code, f64 p) {
    map_pairs<FLAT>(a, b, out, layout, packed, code, (acc)p);
}
