//! What sums add up, each with kernels of its own, and the arguments of these as `kernels/reduce.cuh`
//! and `kernels/terms.cuh` declare them.

use super::super::kernels::{self, Kernel};

/// What is added up: its kernels.
#[derive(Debug)]
pub(in super::super) struct Terms {
    pub(super) short: Kernel,
    pub(super) long: Kernel,
    pub(super) columns: Kernel,
    pub(super) packs: Kernel,
    pub(super) each: Kernel,
    /// Whether its kernels take neighbours as packs.
    pub(super) wide: bool,
}

/// The elements of a tensor.
pub(in super::super) const STORED: Terms = Terms {
    short: kernels::REDUCE_SHORT_STORED,
    long: kernels::REDUCE_LONG_STORED,
    columns: kernels::REDUCE_COLUMNS_STORED,
    packs: kernels::REDUCE_PACKS_STORED,
    each: kernels::REDUCE_EACH_STORED,
    wide: true,
};
/// A function of two operands.
pub(in super::super) const FUNCTION: Terms = Terms {
    short: kernels::REDUCE_SHORT_FUNCTION,
    long: kernels::REDUCE_LONG_FUNCTION,
    columns: kernels::REDUCE_COLUMNS_FUNCTION,
    packs: kernels::REDUCE_PACKS_FUNCTION,
    each: kernels::REDUCE_EACH_FUNCTION,
    wide: true,
};
/// The gradient of one: of both operands and what is given.
pub(in super::super) const GRADIENT: Terms = Terms {
    short: kernels::REDUCE_SHORT_GRADIENT,
    long: kernels::REDUCE_LONG_GRADIENT,
    columns: kernels::REDUCE_COLUMNS_GRADIENT,
    packs: kernels::REDUCE_PACKS_GRADIENT,
    each: kernels::REDUCE_EACH_GRADIENT,
    wide: true,
};
/// What is given, where a mask chose a side.
pub(in super::super) const CHOSEN: Terms = Terms {
    short: kernels::REDUCE_SHORT_CHOSEN,
    long: kernels::REDUCE_LONG_CHOSEN,
    columns: kernels::REDUCE_COLUMNS_CHOSEN,
    packs: kernels::REDUCE_PACKS_CHOSEN,
    each: kernels::REDUCE_EACH_CHOSEN,
    wide: false,
};

/// Addresses of the operands, and which function of them.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct Operands {
    pub(super) address: [u64; 3],
    pub(super) parameter: f64,
    pub(super) code: i32,
    pub(super) side: i32,
}

/// Where sums go.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct Results {
    pub(super) out: u64,
    pub(super) partials: u64,
    pub(super) scale: f64,
    pub(super) count: u64,
    pub(super) chunks: u64,
    pub(super) more: u32,
    pub(super) unused: u32,
}

/// Runs of the innermost axis, and what a group of threads takes of them.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct Runs {
    pub(super) length: u64,
    pub(super) strides: [u64; 3],
    pub(super) pieces: u64,
    pub(super) piece: u64,
    pub(super) items: u64,
    pub(super) total: u64,
    pub(super) lanes: u32,
    pub(super) wide: u32,
}

/// Kept columns, and what a block takes of them.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct Columns {
    pub(super) columns: u64,
    pub(super) run: u64,
    pub(super) column_strides: [u64; 3],
    pub(super) run_strides: [u64; 3],
    pub(super) tile: u64,
    pub(super) tiles: u64,
    pub(super) blocks: u64,
    pub(super) rows: u64,
    pub(super) chunk_rows: u64,
    pub(super) threads: u32,
    pub(super) parts: u32,
}
