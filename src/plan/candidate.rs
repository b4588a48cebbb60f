//! One algorithm for one operation on one shape, with the workspace it needs.

use std::borrow::Cow;
use std::fmt;

/// One algorithm that a device offers for one operation on one shape.
///
/// A device builds these; the planner filters and ranks them; the device runs the one that was
/// taken. `code` and `params` are the device's own: it reads them back when it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// What the plan prints, for example `unfold + gemm`.
    pub name: Cow<'static, str>,
    /// How the problem is split, for example `576 columns at a time`; empty for a whole problem.
    pub split: String,
    /// Workspace in bytes: all that the algorithm takes beside its operands and its result.
    pub workspace: u64,
    /// Predicted time in seconds.
    pub seconds: f64,
    /// Whether the result is bitwise the same at every run.
    pub deterministic: bool,
    /// Which algorithm, in the device's own numbering.
    pub(crate) code: u32,
    /// The algorithm's own parameters (block sizes, chunk lengths).
    pub(crate) params: [usize; 4],
}

impl Candidate {
    /// The name of one that stands for all, of an operation that a profile does not have.
    pub(crate) const UNKNOWN: &'static str = "not in the profile";
}

/// The name, and how the problem is split.
impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let comma = if self.split.is_empty() { "" } else { ", " };
        f.pad(&format!("{}{comma}{}", self.name, self.split))
    }
}
