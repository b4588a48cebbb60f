//! What optimisers share: the parameters, and the state tensors of those that had a gradient.

use crate::device::spec::Update;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::{Pass, PassGuard, Purpose, PurposeGuard};
use crate::tape::{Gradients, Parameter};
use crate::tensor::{Tensor, require_same};
use std::fmt;

pub(super) struct Parameters {
    entries: Vec<Entry>,
}

struct Entry {
    parameter: Parameter,
    state: Vec<Tensor>,
    /// Updates so far.
    steps: u64,
}

impl Parameters {
    /// A parameter that is named twice is updated once.
    pub(super) fn new(parameters: impl IntoIterator<Item = Parameter>) -> Parameters {
        let mut entries: Vec<Entry> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for parameter in parameters {
            if seen.insert(parameter.id()) {
                entries.push(Entry { parameter, state: Vec::new(), steps: 0 });
            }
        }
        Parameters { entries }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Parameter> {
        self.entries.iter().map(|entry| &entry.parameter)
    }

    /// Updates every parameter that has a gradient; `update` is given how many updates the
    /// parameter will then have had. Everything is checked and allocated first.
    pub(super) fn step(
        &mut self,
        op: &'static str,
        gradients: &Gradients,
        states: usize,
        update: impl Fn(u64) -> Update,
    ) -> Result<()> {
        let _pass = PassGuard::new(Pass::Optimiser);
        let mut ready = Vec::new();
        for (i, entry) in self.entries.iter().enumerate() {
            let Some(gradient) = gradients.parameter(&entry.parameter) else { continue };
            let tensor = entry.parameter.tensor();
            require_same(op, tensor, gradient)?;
            if !entry.parameter.trainable() {
                continue;
            }
            // A gradient that is the parameter's own memory would be read while it changes.
            let gradient = if gradient.shares_storage(tensor) {
                let copy = Tensor::empty(op, tensor.shape(), tensor.dtype(), tensor.device())?;
                copy.copy_from(gradient)?;
                copy
            } else {
                gradient.clone()
            };
            let fresh =
                if entry.state.len() < states { zeros(op, tensor, states)? } else { vec![] };
            ready.push((i, gradient, fresh));
        }
        if ready.is_empty() && !self.entries.is_empty() {
            // Right for an optimiser whose parameters took no part; in a dry run more likely one that was
            // made elsewhere, whose state would be missing from the peak.
            gradients.note_bound("an optimiser found none of its parameters among the gradients");
        }
        for (i, gradient, fresh) in ready {
            let entry = &mut self.entries[i];
            if !fresh.is_empty() {
                entry.state = fresh;
            }
            let tensor = entry.parameter.tensor();
            let state: Vec<&Tensor> = entry.state.iter().take(states).collect();
            tensor.device().backend().update(update(entry.steps + 1), tensor, &gradient, &state)?;
            tensor.note_change();
            entry.steps += 1;
        }
        Ok(())
    }
}

/// State in the type that sums are kept in: a half has too few digits for a running mean.
fn zeros(op: &'static str, like: &Tensor, count: usize) -> Result<Vec<Tensor>> {
    let _purpose = PurposeGuard::new(Purpose::Optimiser);
    let dtype = if like.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    (0..count).map(|_| Tensor::filled(op, like.shape(), 0.0, dtype, like.device())).collect()
}

impl fmt::Debug for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A number that must be finite and not negative.
pub(super) fn check(op: &'static str, argument: &'static str, value: f64) -> Result<()> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(Error::argument(op, argument, value, "must be finite and not negative"))
}

/// A number over 0: a gradient that has always been 0 would otherwise be divided by it.
pub(super) fn check_positive(op: &'static str, argument: &'static str, value: f64) -> Result<()> {
    check(op, argument, value)?;
    if value > 0.0 {
        return Ok(());
    }
    Err(Error::argument(op, argument, value, "must be over 0"))
}

/// A number in [0, 1).
pub(super) fn check_decay(op: &'static str, argument: &'static str, value: f64) -> Result<()> {
    if (0.0..1.0).contains(&value) {
        return Ok(());
    }
    Err(Error::argument(op, argument, value, "must be in [0, 1)"))
}
