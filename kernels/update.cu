// types: f32 f64 f16 bf16
// Optimiser steps: each reads parameter, gradient and state once and writes what changes. State is
// kept in the type of sums. The layout is that of the gradient, which may be one number for all.
#include "tiles.cuh"

KERNEL sgd(scalar* parameter, const scalar* gradient, LAYOUT layout, u32 packed, f64 rate,
           f64 decay) {
    FOR_EACH_TILE(number, layout) {
        Tile<1, FLAT> tile(layout, packed, number);
        scalar raw_p[PER_THREAD], raw_g[PER_THREAD];
        tile.load_dense(parameter, raw_p);
        tile.load(0, gradient, raw_g);
#pragma unroll
        for (int j = 0; j < PER_THREAD; ++j) {
            acc p = widen(raw_p[j]), g = widen(raw_g[j]);
            raw_p[j] = narrow<scalar>(p - (acc)rate * (g + (acc)decay * p));
        }
        tile.store(parameter, raw_p);
    }
}

KERNEL momentum(scalar* parameter, const scalar* gradient, LAYOUT layout, u32 packed, acc* state,
                f64 rate, f64 momentum, f64 decay, u32 nesterov) {
    FOR_EACH_TILE(number, layout) {
        Tile<1, FLAT> tile(layout, packed, number);
        scalar raw_p[PER_THREAD], raw_g[PER_THREAD];
        acc v[PER_THREAD];
        tile.load_dense(parameter, raw_p);
        tile.load(0, gradient, raw_g);
        tile.load_dense(state, v);
#pragma unroll
        for (int j = 0; j < PER_THREAD; ++j) {
            acc p = widen(raw_p[j]);
            acc g = widen(raw_g[j]) + (acc)decay * p;
            v[j] = (acc)momentum * v[j] + g;
            acc step = nesterov ? g + (acc)momentum * v[j] : v[j];
            raw_p[j] = narrow<scalar>(p - (acc)rate * step);
        }
        tile.store(parameter, raw_p);
        tile.store(state, v);
    }
}

// The factors as update.rs makes them: `shrink` is what decoupled decay leaves of a parameter, and
// `size` and `root` hold the corrections of the two moments.
struct Adam {
    f64 shrink, decay, new1, new2, beta2, epsilon, size, root;
};

KERNEL adam(scalar* parameter, const scalar* gradient, LAYOUT layout, u32 packed, acc* first,
            acc* second, Adam by) {
    acc shrink = by.shrink, decay = by.decay, new1 = by.new1, new2 = by.new2, beta2 = by.beta2;
    acc epsilon = by.epsilon, size = by.size, root = by.root;
    FOR_EACH_TILE(number, layout) {
        Tile<1, FLAT> tile(layout, packed, number);
        scalar raw_p[PER_THREAD], raw_g[PER_THREAD];
        acc m[PER_THREAD], v[PER_THREAD];
        tile.load_dense(parameter, raw_p);
        tile.load(0, gradient, raw_g);
        tile.load_dense(first, m);
        tile.load_dense(second, v);
#pragma unroll
        for (int j = 0; j < PER_THREAD; ++j) {
            acc p = widen(raw_p[j]);
            acc g = widen(raw_g[j]) + decay * p;
            m[j] += new1 * (g - m[j]);
            v[j] = beta2 * v[j] + new2 * g * g;
            acc denominator = sqrt(v[j]) * root + epsilon;
            raw_p[j] = narrow<scalar>(p * shrink - size * m[j] / denominator);
        }
        tile.store(parameter, raw_p);
        tile.store(first, m);
        tile.store(second, v);
    }
}
