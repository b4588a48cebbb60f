// types: f32 f64 f16 bf16
// The gradient of a convolution for its weights, for any geometry: see conv_weight.cuh.
#include "conv_weight.cuh"

WEIGHT_GRADIENT(64, 2, Plain<64>, 64, i32)
WEIGHT_GRADIENT(64_wide, 2, Plain<64>, 64, i64)
WEIGHT_GRADIENT(128, 1, Plain<128>, 128, i32)

KERNEL __launch_bounds__(256) add_partials(const acc* partial, u64 splits, u64 elements,
                                           scalar* out) {
    add_partial_results<scalar>(partial, splits, elements, 0, 1, out);
}
