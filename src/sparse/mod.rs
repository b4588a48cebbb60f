//! Constant and trainable sparse matrices: built and checked once, resident once, and multiplied
//! with dense tensors without ever being cloned, transposed or sorted again.

pub(crate) mod assemble;
mod layout;
mod matrix;
mod stored;
pub(crate) mod tiled;

pub use assemble::{BuildError, EntryMap, Index, Offsets};
pub use layout::{SparseForm, SparseLayout, SparseOptions, StoredTranspose};
pub use matrix::SparseMatrix;
#[cfg(test)]
pub(crate) use stored::Stored;
