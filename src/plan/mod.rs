//! The heart: which algorithm runs, under which workspace cap, and why the others do not.
//!
//! An operation that has more than one algorithm asks its device for [`Candidate`]s, the planner
//! drops those over the cap in force, ranks the rest, and keeps the [`Plan`] by shape.

pub(crate) mod candidate;
mod cap;
mod execute;
mod measured;
mod planner;
mod table;

pub use candidate::Candidate;
pub use cap::{CapGuard, Tf32Guard};
pub(crate) use execute::{PlannedCall, preview};
pub(crate) use planner::Planner;
pub use planner::{Plan, Verdict, Weighed};
