//! Live bytes over the events of a recording.

use super::purpose::ByPurpose;
#[cfg(feature = "serde")]
use super::purpose::Purpose;

/// Live bytes by purpose after every event of a recording (memory taken, given back, or counted for
/// another purpose), in the order of the events. The same step has the same timeline at every run, a
/// dry one included, since no clock is in it.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Timeline {
    /// The device's name.
    pub device: String,
    /// Whether it holds all there was: a recording ends by itself after 2²⁰ events.
    pub complete: bool,
    /// Live bytes: first what was live when the recording began, then after each event. Serialised as rows
    /// of numbers in the order of [`Purpose::ALL`](crate::Purpose::ALL), since there can be a million.
    #[cfg_attr(feature = "serde", serde(serialize_with = "rows"))]
    pub live: Vec<ByPurpose>,
    /// Where in `live` the peak is.
    pub peak_at: usize,
    /// The caller's scopes.
    pub scopes: Vec<Phase>,
    /// Stretches of forward, backward and optimiser, one after the other.
    pub passes: Vec<Phase>,
    /// The workspace cap in force when the report was made.
    pub workspace_cap: Option<u64>,
    /// The memory limit.
    pub limit: Option<u64>,
}

#[cfg(feature = "serde")]
fn rows<S: serde::Serializer>(live: &[ByPurpose], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(live.iter().map(|live| Purpose::ALL.map(|purpose| live[purpose])))
}

/// A stretch of a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Phase {
    /// A scope's path, or the pass.
    pub name: String,
    /// Index in [`Timeline::live`] at which it begins.
    pub from: usize,
    /// Index at which it ends.
    pub to: usize,
    /// How many scopes are around it.
    pub depth: usize,
}
