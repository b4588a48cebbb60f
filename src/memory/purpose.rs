//! What memory is for. New tensors take the purpose that is current on their thread.

use super::bytes::format_bytes;
use crate::context;
use std::fmt;
use std::ops::{Index, IndexMut};

/// What a piece of memory is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Purpose {
    /// Trainable tensors.
    Parameter,
    /// Results of operations, whether or not a gradient rule keeps them.
    Activation,
    /// Gradients, from `backward`.
    Gradient,
    /// State that an optimiser keeps.
    Optimiser,
    /// Sparse matrices.
    Sparse,
    /// What an operation takes beside its operands and its result.
    Workspace,
    /// Tensors that the caller makes: data, labels, constants.
    Other,
}

impl Purpose {
    /// Every purpose, in the order of reports.
    pub const ALL: [Purpose; 7] = [
        Purpose::Parameter,
        Purpose::Activation,
        Purpose::Gradient,
        Purpose::Optimiser,
        Purpose::Sparse,
        Purpose::Workspace,
        Purpose::Other,
    ];

    /// The name that reports print.
    pub const fn name(self) -> &'static str {
        match self {
            Purpose::Parameter => "parameter",
            Purpose::Activation => "activation",
            Purpose::Gradient => "gradient",
            Purpose::Optimiser => "optimiser",
            Purpose::Sparse => "sparse",
            Purpose::Workspace => "workspace",
            Purpose::Other => "other",
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Bytes, by purpose.
///
/// ```
/// use capgrad::{DType, Device, Purpose, Tensor};
/// # fn main() -> capgrad::Result<()> {
/// let device = Device::new_cpu(Default::default())?;
/// let data = Tensor::zeros([3, 5], DType::F32, &device)?;
/// assert_eq!(device.report().live[Purpose::Other], 60);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ByPurpose([u64; 7]);

impl ByPurpose {
    /// Bytes of all purposes together.
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes))
    }

    /// The purposes that have bytes, the largest first, for messages.
    pub(crate) fn listed(&self) -> String {
        let mut held: Vec<Purpose> =
            Purpose::ALL.into_iter().filter(|&purpose| self[purpose] > 0).collect();
        held.sort_by_key(|&purpose| std::cmp::Reverse(self[purpose]));
        let parts: Vec<String> =
            held.into_iter().map(|p| format!("{p} {}", format_bytes(self[p]))).collect();
        if parts.is_empty() { "nothing".into() } else { parts.join(", ") }
    }
}

/// As a map from the purposes' names.
#[cfg(feature = "serde")]
impl serde::Serialize for ByPurpose {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Purpose::ALL.iter().map(|&purpose| (purpose, self[purpose])))
    }
}

impl Index<Purpose> for ByPurpose {
    type Output = u64;
    fn index(&self, purpose: Purpose) -> &u64 {
        &self.0[purpose as usize]
    }
}

impl IndexMut<Purpose> for ByPurpose {
    fn index_mut(&mut self, purpose: Purpose) -> &mut u64 {
        &mut self.0[purpose as usize]
    }
}

/// The purpose of what is allocated now on this thread.
pub(crate) fn current_purpose() -> Purpose {
    context::with(|context| context.purpose)
}

/// Sets the current thread's purpose until it is dropped.
pub(crate) struct PurposeGuard(Purpose);

impl PurposeGuard {
    pub(crate) fn new(purpose: Purpose) -> Self {
        PurposeGuard(context::with(|context| std::mem::replace(&mut context.purpose, purpose)))
    }

    /// Results of operations are activations, unless something more special is going on.
    pub(crate) fn for_results() -> Self {
        let purpose = match current_purpose() {
            Purpose::Other => Purpose::Activation,
            special => special,
        };
        PurposeGuard::new(purpose)
    }
}

impl Drop for PurposeGuard {
    fn drop(&mut self) {
        context::with(|context| context.purpose = self.0);
    }
}
