//! Constant and trainable sparse matrices: built and checked once, resident once, and multiplied
//! with dense tensors without ever being cloned, transposed or sorted again.

pub(crate) mod assemble;
mod matrix;

pub use assemble::{BuildError, EntryMap, Index, Offsets};
pub use matrix::{SparseMatrix, SparseOptions, StoredTranspose};
