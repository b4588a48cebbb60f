//! Stochastic gradient descent.

use super::state::{Parameters, check};
use crate::device::spec::Update;
use crate::error::{Error, Result};
use crate::tape::{Gradients, Parameter};

/// What [`Sgd`] is to do.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SgdOptions {
    /// Learning rate.
    pub rate: f64,
    /// Momentum; with 0 no state is kept.
    pub momentum: f64,
    /// Weight decay, added to the gradient.
    pub weight_decay: f64,
    /// Nesterov's form of the momentum.
    pub nesterov: bool,
}

impl Default for SgdOptions {
    fn default() -> Self {
        SgdOptions { rate: 1e-2, momentum: 0.0, weight_decay: 0.0, nesterov: false }
    }
}

/// Stochastic gradient descent with momentum (Sutskever, Martens, Dahl and Hinton 2013, in the form
/// that PyTorch uses): `v ← μ·v + g + λ·p`, `p ← p - η·v`.
///
/// ```
/// use capgrad::{Device, Parameter, Sgd, Tape, Tensor, optim::SgdOptions};
/// # fn main() -> capgrad::Result<()> {
/// let p = Parameter::new("p", Tensor::from_vec(vec![3.0f64], [1], &Device::cpu())?)?;
/// let mut sgd = Sgd::new([p.clone()], SgdOptions { rate: 0.5, ..Default::default() })?;
/// let tape = Tape::new();
/// sgd.step(&tape.parameter(&p).square()?.sum()?.backward()?)?;
/// assert_eq!(p.tensor().item()?, 0.0);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Sgd {
    parameters: Parameters,
    options: SgdOptions,
}

impl Sgd {
    /// An optimiser of these parameters.
    ///
    /// # Errors
    /// [`Error::Argument`] for numbers that are negative or not finite, and for Nesterov's form
    /// without momentum.
    pub fn new(
        parameters: impl IntoIterator<Item = Parameter>,
        options: SgdOptions,
    ) -> Result<Sgd> {
        check("sgd", "rate", options.rate)?;
        check("sgd", "momentum", options.momentum)?;
        check("sgd", "weight_decay", options.weight_decay)?;
        if options.nesterov && options.momentum == 0.0 {
            let reason = "Nesterov's form needs a momentum";
            return Err(Error::argument("sgd", "momentum", 0.0, reason));
        }
        Ok(Sgd { parameters: Parameters::new(parameters), options })
    }

    /// Updates every parameter that has a gradient, in place.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`] when the state is allocated; nothing has changed then.
    pub fn step(&mut self, gradients: &Gradients) -> Result<()> {
        let SgdOptions { rate, momentum, weight_decay: decay, nesterov } = self.options;
        let states = usize::from(momentum != 0.0);
        self.parameters.step("sgd", gradients, states, |_| Update::Sgd {
            rate,
            momentum,
            decay,
            nesterov,
        })
    }

    /// Another learning rate from the next step on.
    ///
    /// # Errors
    /// [`Error::Argument`] where it is negative or not finite.
    pub fn set_rate(&mut self, rate: f64) -> Result<()> {
        check("sgd", "rate", rate)?;
        self.options.rate = rate;
        Ok(())
    }

    /// The parameters, each once.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.parameters.iter()
    }
}
