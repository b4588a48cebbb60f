// types: f32 f64 f16 bf16
// Pooling along the last axis, and its gradient. Both run over their result: an output looks at its
// window, an input at the outputs whose windows it is in, so that nothing is added from two sides.
#include "capgrad.cuh"

struct Geometry {
    u64 rows, in_length, out_length, kernel, stride, padding;
};

// Terms that are added up before they join the sum in f64.
static const u64 PIECE = 32;

INLINE u64 least(u64 a, u64 b) { return a < b ? a : b; }

// Division of what mostly fits 32 bits, where it costs a fraction.
INLINE u64 divide(u64 a, u64 b) {
    return ((a | b) >> 32) == 0 ? (u64)((u32)a / (u32)b) : a / b;
}

// The part of an output's window that lies within the input.
INLINE void window(const Geometry& g, u64 position, u64& start, u64& end) {
    u64 first = position * g.stride, last = first + g.kernel;
    end = least(last > g.padding ? last - g.padding : 0, g.in_length);
    start = least(first > g.padding ? first - g.padding : 0, end);
}

KERNEL pool_max(Geometry g, const scalar* x, scalar* out, i32* indices) {
    u64 count = g.rows * g.out_length;
    for (u64 i = thread_index(); i < count; i += thread_count()) {
        u64 row = divide(i, g.out_length), start, end;
        window(g, i - row * g.out_length, start, end);
        const scalar* from = x + row * g.in_length;
        acc best = -(acc)__int_as_float(0x7f800000);
        u64 at = start;
        for (u64 k = start; k < end; ++k) {
            acc value = widen(from[k]);
            if (value > best || value != value) {
                best = value;
                at = k;
                if (value != value) break;
            }
        }
        out[i] = narrow<scalar>(best);
        if (indices) indices[i] = (i32)at;
    }
}

KERNEL pool_average(Geometry g, const scalar* x, scalar* out) {
    u64 count = g.rows * g.out_length;
    for (u64 i = thread_index(); i < count; i += thread_count()) {
        u64 row = divide(i, g.out_length), start, end;
        window(g, i - row * g.out_length, start, end);
        const scalar* from = x + row * g.in_length;
        f64 sum = 0;
        while (start < end) {
            acc part = 0;
            u64 stop = least(start + PIECE, end);
            for (; start < stop; ++start) part += widen(from[start]);
            sum += (f64)part;
        }
        out[i] = narrow<scalar>((acc)sum / (acc)g.kernel);
    }
}

// The outputs whose windows position `at` is in.
INLINE void outputs(const Geometry& g, u64 at, u64& first, u64& last) {
    u64 end = at + g.padding + 1;
    first = end > g.kernel ? divide(end - g.kernel + g.stride - 1, g.stride) : 0;
    last = least(divide(end + g.stride - 1, g.stride), g.out_length);
}

KERNEL pool_max_gradient(Geometry g, const scalar* dy, const i32* indices, scalar* out) {
    u64 count = g.rows * g.in_length;
    for (u64 i = thread_index(); i < count; i += thread_count()) {
        u64 row = divide(i, g.in_length), at = i - row * g.in_length, o, last;
        outputs(g, at, o, last);
        const scalar* given = dy + row * g.out_length;
        const i32* chosen = indices + row * g.out_length;
        f64 sum = 0;
        while (o < last) {
            acc part = 0;
            u64 stop = least(o + PIECE, last);
            for (; o < stop; ++o)
                if ((u64)(u32)chosen[o] == at) part += widen(given[o]);
            sum += (f64)part;
        }
        out[i] = narrow<scalar>((acc)sum);
    }
}

KERNEL pool_average_gradient(Geometry g, const scalar* dy, scalar* out) {
    u64 count = g.rows * g.in_length;
    for (u64 i = thread_index(); i < count; i += thread_count()) {
        u64 row = divide(i, g.in_length), o, last;
        outputs(g, i - row * g.in_length, o, last);
        const scalar* given = dy + row * g.out_length;
        f64 sum = 0;
        while (o < last) {
            acc part = 0;
            u64 stop = least(o + PIECE, last);
            for (; o < stop; ++o) part += widen(given[o]);
            sum += (f64)part;
        }
        out[i] = narrow<scalar>((acc)sum / (acc)g.kernel);
    }
}
