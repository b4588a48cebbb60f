//! Several processes as one run: the ranks' communicator, gradients that are averaged over them while the
//! backward pass goes on, and a sparse matrix whose rows are divided among them.

mod buckets;
mod collective;
mod communicator;
mod data_parallel;
mod environment;
mod in_process;
#[cfg_attr(not(any(feature = "nccl", test)), allow(dead_code))]
mod rendezvous;
mod row_split;

pub(crate) use collective::Transport;
#[cfg(feature = "nccl")]
pub(crate) use collective::{Collective, Ongoing};
pub use collective::{Pending, ReduceOp};
pub use communicator::Communicator;
pub use data_parallel::{DataParallel, ParallelStep};
pub use environment::Rendezvous;
#[cfg(feature = "nccl")]
pub(crate) use rendezvous::Group;
pub use row_split::{RowSplitMatrix, balanced_rows};
