//! Constant and trainable sparse matrices: built and checked once, resident once, and multiplied
//! with dense tensors without ever being cloned, transposed or sorted again.

/// Runs an expression with `T` as the Rust type of a float dtype.
macro_rules! by_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            crate::DType::F64 => {
                type $t = f64;
                $body
            }
            crate::DType::F16 => {
                type $t = half::f16;
                $body
            }
            crate::DType::BF16 => {
                type $t = half::bf16;
                $body
            }
            _ => {
                type $t = f32;
                $body
            }
        }
    };
}

pub(crate) mod assemble;
mod layout;
mod matrix;
mod outline;
mod stored;
pub(crate) mod tiled;

pub use assemble::{BuildError, EntryMap, Index, Offsets};
pub use layout::{SparseForm, SparseLayout, SparseOptions, StoredTranspose};
pub use matrix::SparseMatrix;
#[cfg(test)]
pub(crate) use stored::Stored;
