//! The kernels by name, and the PTX that holds them. `kernels/<family>.cu` is built once for each
//! type of element; newer variants lie beside the plain file, which loads everywhere.

/// A kernel file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Family(&'static str);

/// One kernel of a family.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Kernel {
    pub(super) family: Family,
    pub(super) name: &'static str,
}

impl Family {
    pub(super) const fn name(self) -> &'static str {
        self.0
    }

    /// The PTX for elements of `scalar` that a chip of compute capability `chip` (75 is 7.5) may
    /// take, the newest first.
    pub(super) fn variants(self, scalar: &str, chip: u32) -> Vec<&'static str> {
        let mut found: Vec<(u32, &'static str)> = PTX
            .iter()
            .filter(|file| file.family == self.0 && file.scalar == scalar && file.runs_on(chip))
            .map(|file| (file.chip, file.text))
            .collect();
        found.sort_by_key(|&(chip, _)| std::cmp::Reverse(chip));
        found.into_iter().map(|(_, text)| text).collect()
    }
}

/// One file of `kernels/ptx`.
struct Ptx {
    family: &'static str,
    scalar: &'static str,
    /// The oldest chip that takes it.
    chip: u32,
    /// Whether no other does: its instructions are that chip's own.
    only: bool,
    text: &'static str,
}

impl Ptx {
    fn runs_on(&self, chip: u32) -> bool {
        if self.only { chip == self.chip } else { chip >= self.chip }
    }
}

include!(concat!(env!("OUT_DIR"), "/ptx.rs"));

macro_rules! kernels {
    ($($family:literal { $($constant:ident = $name:literal),* $(,)? })*) => {
        $($(
            pub(super) const $constant: Kernel = Kernel { family: Family($family), name: $name };
        )*)*

        /// All of them.
        #[cfg(test)]
        const ALL: &[Kernel] = &[$($($constant,)*)*];
    };
}

kernels! {
    "gradient" {
        BINARY_GRADIENT_MAP = "binary_gradient_map",
        SELECT_GRADIENT_MAP = "select_gradient_map",
    }
    "reduce" {
        REDUCE_SHORT_STORED = "reduce_short_stored",
        REDUCE_LONG_STORED = "reduce_long_stored",
        REDUCE_COLUMNS_STORED = "reduce_columns_stored",
        REDUCE_PACKS_STORED = "reduce_packs_stored",
        REDUCE_EACH_STORED = "reduce_each_stored",
        REDUCE_FINISH = "reduce_finish",
        REDUCE_FINISH_LONG = "reduce_finish_long",
    }
    "reduce_function" {
        REDUCE_SHORT_FUNCTION = "reduce_short_function",
        REDUCE_LONG_FUNCTION = "reduce_long_function",
        REDUCE_COLUMNS_FUNCTION = "reduce_columns_function",
        REDUCE_PACKS_FUNCTION = "reduce_packs_function",
        REDUCE_EACH_FUNCTION = "reduce_each_function",
    }
    "reduce_gradient" {
        REDUCE_SHORT_GRADIENT = "reduce_short_gradient",
        REDUCE_LONG_GRADIENT = "reduce_long_gradient",
        REDUCE_COLUMNS_GRADIENT = "reduce_columns_gradient",
        REDUCE_PACKS_GRADIENT = "reduce_packs_gradient",
        REDUCE_EACH_GRADIENT = "reduce_each_gradient",
    }
    "reduce_chosen" {
        REDUCE_SHORT_CHOSEN = "reduce_short_chosen",
        REDUCE_LONG_CHOSEN = "reduce_long_chosen",
        REDUCE_COLUMNS_CHOSEN = "reduce_columns_chosen",
        REDUCE_PACKS_CHOSEN = "reduce_packs_chosen",
        REDUCE_EACH_CHOSEN = "reduce_each_chosen",
    }
    "copy" {
        COPY_ELEMENTS = "copy_elements",
        COPY_PACKS = "copy_packs",
        COPY_TILES = "copy_tiles",
    }
    "gather" {
        GATHER = "gather",
    }
    "scatter" {
        SCATTER_FEW = "scatter_few",
        SCATTER_IN_PLACE = "scatter_in_place",
        SCATTER_OWNED = "scatter_owned",
    }
    "index_range" {
        INDEX_RANGE = "index_range",
    }
    "pool" {
        POOL_MAX = "pool_max",
        POOL_AVERAGE = "pool_average",
        POOL_MAX_GRADIENT = "pool_max_gradient",
        POOL_AVERAGE_GRADIENT = "pool_average_gradient",
    }
    "argmax" {
        ARGMAX_SHORT = "argmax_short",
        ARGMAX_LONG = "argmax_long",
        ARGMAX_FINISH = "argmax_finish",
        ARGMAX_COLUMNS = "argmax_columns",
    }
    "norm" {
        LAYER_NORM_SHORT = "layer_norm_short",
        LAYER_NORM_ROW = "layer_norm_row",
        LAYER_NORM_LONG = "layer_norm_long",
        LAYER_NORM_GRADIENT_SHORT = "layer_norm_gradient_short",
        LAYER_NORM_GRADIENT_ROW = "layer_norm_gradient_row",
        LAYER_NORM_GRADIENT_LONG = "layer_norm_gradient_long",
        LAYER_NORM_COLUMNS = "layer_norm_columns",
        LAYER_NORM_FINISH = "layer_norm_finish",
    }
    "softmax" {
        SOFTMAX_SHORT = "softmax_short",
        SOFTMAX_ROW = "softmax_row",
        SOFTMAX_LONG = "softmax_long",
        SOFTMAX_GRADIENT_SHORT = "softmax_gradient_short",
        SOFTMAX_GRADIENT_ROW = "softmax_gradient_row",
        SOFTMAX_GRADIENT_LONG = "softmax_gradient_long",
        SOFTMAX_COLUMNS = "softmax_columns",
        SOFTMAX_GRADIENT_COLUMNS = "softmax_gradient_columns",
    }
    "cross_entropy" {
        CROSS_ENTROPY_SHORT = "cross_entropy_short",
        CROSS_ENTROPY_ROW = "cross_entropy_row",
        CROSS_ENTROPY_LONG = "cross_entropy_long",
        CROSS_ENTROPY_FINISH = "cross_entropy_finish",
        CROSS_ENTROPY_GRADIENT_SHORT = "cross_entropy_gradient_short",
        CROSS_ENTROPY_GRADIENT_ROW = "cross_entropy_gradient_row",
        CROSS_ENTROPY_GRADIENT_LONG = "cross_entropy_gradient_long",
    }
    "cast" {
        CAST_F32 = "cast_f32",
        CAST_F64 = "cast_f64",
        CAST_F16 = "cast_f16",
        CAST_BF16 = "cast_bf16",
        CAST_I32 = "cast_i32",
        CAST_I64 = "cast_i64",
    }
    "compare" { COMPARE = "compare" }
    "elementwise" {
        UNARY = "unary_map",
        UNARY_GRADIENT = "unary_gradient_map",
        BINARY = "binary_map",
        BINARY_FLAT = "binary_flat",
    }
    "fill" { FILL = "fill" }
    "random" {
        RANDOM_UNIFORM = "random_uniform",
        RANDOM_NORMAL = "random_normal",
        DROPOUT = "dropout",
    }
    "select" { SELECT = "select" }
    "conv_direct" {
        CONV_FORWARD_64 = "forward_64",
        CONV_FORWARD_64_WIDE = "forward_64_wide",
        CONV_FORWARD_128 = "forward_128",
        CONV_FORWARD_THIN_1 = "forward_thin_1",
        CONV_FORWARD_THIN_4 = "forward_thin_4",
        CONV_FORWARD_THIN_16 = "forward_thin_16",
        CONV_GRADIENT_64 = "gradient_64",
        CONV_GRADIENT_64_WIDE = "gradient_64_wide",
        CONV_GRADIENT_128 = "gradient_128",
        CONV_GRADIENT_THIN_1 = "gradient_thin_1",
        CONV_GRADIENT_THIN_4 = "gradient_thin_4",
        CONV_GRADIENT_THIN_16 = "gradient_thin_16",
    }
    "conv_weight" {
        CONV_WEIGHT_64 = "weight_64",
        CONV_WEIGHT_64_WIDE = "weight_64_wide",
        CONV_WEIGHT_128 = "weight_128",
        CONV_ADD_PARTIALS = "add_partials",
    }
    "conv_tensor" {
        CONV_FORWARD_TENSOR_64 = "forward_tensor_64",
        CONV_FORWARD_TENSOR_128 = "forward_tensor_128",
        CONV_GRADIENT_TENSOR_64 = "gradient_tensor_64",
        CONV_GRADIENT_TENSOR_128 = "gradient_tensor_128",
        CONV_WEIGHT_TENSOR_64 = "weight_tensor_64",
        CONV_WEIGHT_TENSOR_128 = "weight_tensor_128",
    }
    "conv_warpgroup" {
        GATHER_256_1 = "gather_256_1",
        GATHER_128_2 = "gather_128_2",
        GATHER_128_1 = "gather_128_1",
        GATHER_64_2 = "gather_64_2",
        PREPARE_256 = "prepare_256",
        PREPARE_128 = "prepare_128",
        PREPARE_64 = "prepare_64",
    }
    "conv_warpgroup_split" {
        GATHER_SPLIT_128_1 = "gather_128_1",
        GATHER_SPLIT_64_1 = "gather_64_1",
        PREPARE_SPLIT_128 = "prepare_128",
        PREPARE_SPLIT_64 = "prepare_64",
    }
    "conv_warpgroup_weight" {
        GRADIENT_128_2 = "weight_128_2",
        GRADIENT_128_1 = "weight_128_1",
        GRADIENT_64_2 = "weight_64_2",
    }
    "conv_warpgroup_weight_split" {
        GRADIENT_SPLIT_128_1 = "weight_128_1",
        GRADIENT_SPLIT_64_1 = "weight_64_1",
    }
    "conv_narrow" {
        NARROW_GATHER_1_2 = "narrow_gather_1_2",
        NARROW_GATHER_1_4 = "narrow_gather_1_4",
        NARROW_GATHER_1_8 = "narrow_gather_1_8",
        NARROW_GATHER_2_4 = "narrow_gather_2_4",
        NARROW_GATHER_2_8 = "narrow_gather_2_8",
        NARROW_GATHER_4_2 = "narrow_gather_4_2",
        NARROW_GATHER_4_4 = "narrow_gather_4_4",
        NARROW_WEIGHT_1_4 = "narrow_weight_1_4",
        NARROW_WEIGHT_1_8 = "narrow_weight_1_8",
        NARROW_WEIGHT_2_4 = "narrow_weight_2_4",
        NARROW_WEIGHT_2_8 = "narrow_weight_2_8",
        NARROW_WEIGHT_4_4 = "narrow_weight_4_4",
    }
    "conv_narrow_split" {
        NARROW_GATHER_SPLIT_1_4 = "narrow_gather_1_4",
        NARROW_GATHER_SPLIT_1_8 = "narrow_gather_1_8",
        NARROW_GATHER_SPLIT_2_4 = "narrow_gather_2_4",
        NARROW_GATHER_SPLIT_4_4 = "narrow_gather_4_4",
        NARROW_WEIGHT_SPLIT_1_4 = "narrow_weight_1_4",
        NARROW_WEIGHT_SPLIT_1_8 = "narrow_weight_1_8",
        NARROW_WEIGHT_SPLIT_2_4 = "narrow_weight_2_4",
        NARROW_WEIGHT_SPLIT_4_4 = "narrow_weight_4_4",
    }
    "conv_layout" {
        TRANSPOSE = "transpose",
        PAD_ROWS = "pad_rows",
        ADD_BIAS = "add_bias",
        ADD_BIAS_WIDE = "add_bias_wide",
    }
    "depthwise" {
        DEPTHWISE_SLIDE = "depthwise_slide",
        DEPTHWISE_SLIDE_GRADIENT = "depthwise_slide_gradient",
        DEPTHWISE_FORWARD = "depthwise_forward",
        DEPTHWISE_GRADIENT = "depthwise_gradient",
        DEPTHWISE_WEIGHT_1 = "depthwise_weight_1",
        DEPTHWISE_WEIGHT_4 = "depthwise_weight_4",
        DEPTHWISE_WEIGHT_8 = "depthwise_weight_8",
        DEPTHWISE_WEIGHT_16 = "depthwise_weight_16",
        DEPTHWISE_WEIGHT_32 = "depthwise_weight_32",
        DEPTHWISE_SLIDE_WEIGHT_4 = "depthwise_slide_weight_4",
        DEPTHWISE_SLIDE_WEIGHT_8 = "depthwise_slide_weight_8",
        DEPTHWISE_SLIDE_WEIGHT_16 = "depthwise_slide_weight_16",
        DEPTHWISE_SLIDE_WEIGHT_32 = "depthwise_slide_weight_32",
        DEPTHWISE_ADD_PARTIALS = "depthwise_add_partials",
    }
    "depthwise_rows" {
        ROWS_CONVOLVE_4 = "rows_convolve_4",
        ROWS_CORRELATE_4 = "rows_correlate_4",
        ROWS_CONVOLVE_8 = "rows_convolve_8",
        ROWS_CORRELATE_8 = "rows_correlate_8",
        ROWS_CONVOLVE_16 = "rows_convolve_16",
        ROWS_CORRELATE_16 = "rows_correlate_16",
        ROWS_CONVOLVE_32 = "rows_convolve_32",
        ROWS_CORRELATE_32 = "rows_correlate_32",
        ROWS_CONVOLVE_48 = "rows_convolve_48",
        ROWS_CORRELATE_48 = "rows_correlate_48",
    }
    "gemm" {
        GEMM_RR_64 = "gemm_rr_64",
        GEMM_RC_64 = "gemm_rc_64",
        GEMM_CR_64 = "gemm_cr_64",
        GEMM_CC_64 = "gemm_cc_64",
        GEMM_RR_128 = "gemm_rr_128",
        GEMM_RC_128 = "gemm_rc_128",
        GEMM_CR_128 = "gemm_cr_128",
        GEMM_CC_128 = "gemm_cc_128",
        GEMM_ADD_PARTIALS = "gemm_add_partials",
    }
    "unfold" {
        UNFOLD = "unfold",
        FOLD = "fold",
        EXCHANGE_ROWS = "exchange_rows",
        EXCHANGE_ROWS_WIDE = "exchange_rows_wide",
        EXCHANGE_SHORT_ROWS = "exchange_short_rows",
        EXCHANGE_SHORT_ROWS_WIDE = "exchange_short_rows_wide",
    }
    "sparse_rows" {
        ROWS_ONE_CSR = "rows_one_csr",
        ROWS_ONE_TILED = "rows_one_tiled",
        ROWS_ONE_APART = "rows_one_apart",
        ROWS_WIDE_CSR_1 = "rows_wide_csr_1",
        ROWS_WIDE_CSR_2 = "rows_wide_csr_2",
        ROWS_WIDE_CSR_4 = "rows_wide_csr_4",
        ROWS_WIDE_TILED_1 = "rows_wide_tiled_1",
        ROWS_WIDE_TILED_2 = "rows_wide_tiled_2",
        ROWS_WIDE_TILED_4 = "rows_wide_tiled_4",
        ROWS_WIDE_APART_1 = "rows_wide_apart_1",
        ROWS_WIDE_APART_2 = "rows_wide_apart_2",
        ROWS_WIDE_APART_4 = "rows_wide_apart_4",
        ROWS_SHORT_1 = "rows_short_1",
        ROWS_SHORT_2 = "rows_short_2",
        ROWS_SHORT_4 = "rows_short_4",
        ROWS_SPLIT_1 = "rows_split_1",
        ROWS_SPLIT_2 = "rows_split_2",
        ROWS_SPLIT_4 = "rows_split_4",
        ROWS_JOIN = "rows_join",
    }
    "sparse_scatter" {
        SCATTER_CSR_1 = "scatter_csr_1",
        SCATTER_CSR_2 = "scatter_csr_2",
        SCATTER_CSR_4 = "scatter_csr_4",
        SCATTER_TILED_1 = "scatter_tiled_1",
        SCATTER_TILED_2 = "scatter_tiled_2",
        SCATTER_TILED_4 = "scatter_tiled_4",
        SCATTER_APART_1 = "scatter_apart_1",
        SCATTER_APART_2 = "scatter_apart_2",
        SCATTER_APART_4 = "scatter_apart_4",
        SAMPLED_CSR = "sampled_csr",
        SAMPLED_APART = "sampled_apart",
    }
    "sparse_strips" {
        STRIPS_FORWARD = "strips_forward",
        STRIPS_TRANSPOSED = "strips_transposed",
        STRIPS_ORDERED_TILED = "strips_ordered_tiled",
        STRIPS_ORDERED_APART = "strips_ordered_apart",
        ROWS_ORDERED = "rows_ordered",
        STRIPS_JOIN = "strips_join",
        SUMS_FINISH = "sums_finish",
    }
    "update" { SGD = "sgd", MOMENTUM = "momentum", ADAM = "adam" }
}

#[cfg(test)]
mod tests;
