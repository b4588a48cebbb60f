//! What a recording has seen: what was alive at the peak, by operation and scope, the largest pieces, each
//! workspace with its plan, and the timeline.

use super::pass::Pass;
use super::purpose::Purpose;
use super::timeline::Timeline;

/// What a recording has seen, from [`Device::set_recording`](crate::Device::set_recording) (or the last
/// [`Device::reset_peak`](crate::Device::reset_peak)) on. Bytes throughout.
///
/// ```
/// use capgrad::{DType, Device, Purpose, Tensor};
/// # fn main() -> capgrad::Result<()> {
/// let device = Device::new_cpu(Default::default())?;
/// device.set_recording(true);
/// let x = Tensor::ones([1024], DType::F32, &device)?;
/// drop(Tensor::ones([256], DType::F32, &device)?);
/// let recorded = device.report().recorded.unwrap();
/// assert_eq!((recorded.peak, recorded.alive_at_peak[0].bytes), (5120, 4096));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Recorded {
    /// Whether it holds all there was: a recording ends by itself after 2²⁰ events.
    pub complete: bool,
    /// Most live bytes at one moment.
    pub peak: u64,
    /// What was alive at that moment, alike pieces together, those first that are the most together. What was live before
    /// the recording is there by purpose, with the operation `before the recording`.
    pub alive_at_peak: Vec<Allocations>,
    /// What each operation took in each pass, the largest workspace or share first.
    pub operations: Vec<OperationReport>,
    /// The largest single pieces.
    pub largest: Vec<Allocations>,
    /// Each workspace with the algorithm that took it, the largest first.
    pub workspaces: Vec<WorkspaceReport>,
    /// Live bytes after every event.
    pub timeline: Timeline,
}

/// Allocations of memory that the same operation took, each of the same size.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Allocations {
    /// The operation that took them.
    pub op: String,
    /// In which pass.
    pub pass: Option<Pass>,
    /// The scope that was open, as its path; empty outside of scopes.
    pub scope: String,
    /// What they are for.
    pub purpose: Purpose,
    /// Bytes of each.
    pub bytes: u64,
    /// How many.
    pub count: u64,
}

/// What one operation took in one pass.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct OperationReport {
    /// In which pass.
    pub pass: Pass,
    /// The operation.
    pub op: String,
    /// Allocations taken.
    pub allocations: u64,
    /// Bytes of all of them together, those that were given back included.
    pub taken: u64,
    /// The most of them that was live at one moment.
    pub own_peak: u64,
    /// The most that the whole device held when this operation took a piece.
    pub peak: u64,
    /// Its largest workspace.
    pub workspace: u64,
}

/// A workspace and the algorithm that took it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct WorkspaceReport {
    /// In which pass.
    pub pass: Pass,
    /// The planned operation with its sizes, as its [`Plan`](crate::Plan) prints it.
    pub operation: String,
    /// The algorithm.
    pub algorithm: String,
    /// Bytes.
    pub bytes: u64,
    /// How many times it was taken.
    pub count: u64,
}
