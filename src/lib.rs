//! 1-d convolution and sparse × dense products with automatic differentiation, whose peak memory
//! the caller sets instead of discovering.
//!
//! ```
//! use capgrad::{Conv1d, DType, Device, MIB, Tape, Tensor};
//!
//! # fn main() -> capgrad::Result<()> {
//! let device = Device::best()?; // the fastest device there is
//! device.set_workspace_cap(64 * MIB);
//!
//! let conv = Conv1d::builder(576, 1024, 1).build(&device)?;
//! let x = Tensor::rand([40, 576, 11], DType::F32, &device)?;
//!
//! let tape = Tape::new();
//! let loss = conv.forward(&tape.constant(x))?.mean()?;
//! let grads = loss.backward()?; // takes the recorded step with it
//! assert_eq!(grads.parameter(conv.weight()).unwrap().dims(), [1024, 576, 1]);
//!
//! println!("{}", device.report()); // where every byte was, and when
//! for plan in conv.plan([40, 576, 11])? {
//!     println!("{plan}"); // which algorithms were weighed, taken, rejected, and why
//! }
//! # Ok(()) }
//! ```
//!
//! # What to hold on to
//!
//! - A [`Device`] has a *workspace cap* (the most that one operation may take beside its operands
//!   and its result) and a *memory limit* (the most that all of it may hold). Neither is exceeded:
//!   algorithms over the cap are not run, and a request over the limit is an [`Error`] with the
//!   numbers in it, after which everything is as it was.
//! - A [`Tensor`] is contiguous numbers on one device. A [`Var`] is a tensor that may have a place
//!   on a [`Tape`]; all operations are methods of it. Make one tape a step: `backward` takes what
//!   was recorded, and a dropped tape lets go of the rest.
//! - A [`Parameter`] outlives tapes; [`optim`] changes it in place, [`nn`] has layers made of them.
//! - A [`SparseMatrix`] is resident once. Its products, forward and backward, neither clone nor
//!   transpose nor sort it.
//! - A [`Plan`] says which algorithms were weighed for an operation, with the workspace of each, and
//!   why all but one were not taken. [`Device::report`] says where the bytes were.
//!
//! # What it does not do
//!
//! It has 1-d convolutions and no 2-d ones, no recurrent
//! layers, no higher derivatives. It reads and writes no files.
#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

mod context;
mod device;
mod distributed;
mod dtype;
mod error;
mod memory;
mod ops;
mod plan;
mod shape;
mod sparse;
mod tape;
mod tensor;

pub mod nn;
pub mod optim;

pub use device::{
    ConvGeometry, ConvPass, CpuOptions, CudaOptions, DEFAULT_WORKSPACE_CAP, Device, Fit, Ranking,
};
pub use distributed::{
    Communicator, DataParallel, ParallelStep, Pending, ReduceOp, Rendezvous, RowSplitMatrix,
    balanced_rows,
};
pub use dtype::{DType, Element, Float, Real};
pub use error::{Error, Result};
pub use half::{bf16, f16};
pub use memory::{
    Allocations, ByPurpose, DriverMemory, Fault, GIB, KIB, LimitGuard, MIB, OperationReport, Pass,
    Phase, Purpose, Recorded, Report, Reports, Scope, ScopeReport, Timeline, WorkspaceReport,
    format_bytes, parse_bytes,
};
pub use nn::{Conv1d, ConvTranspose1d, LayerNorm, Linear};
pub use ops::{
    Conv1dOptions, ConvTranspose1dOptions, CrossEntropyOptions, Padding, Reduction, cat, stack,
};
pub use optim::{Adam, AdamW, Sgd};
pub use plan::{Candidate, CapGuard, Plan, Tf32Guard, Verdict, Weighed};
pub use shape::Shape;
pub use sparse::{
    BuildError, EntryMap, Index, Offsets, SparseForm, SparseLayout, SparseMatrix, SparseOptions,
    StoredTranspose,
};
pub use tape::{
    Function, GradCheck, Gradients, NoGrad, Parameter, Saves, Tape, Var, checkpoint, gradcheck,
    no_grad,
};
pub use tensor::Tensor;

/// The README's examples run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
