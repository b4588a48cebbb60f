//! Adam and AdamW.

use super::state::{Parameters, check, check_decay, check_positive};
use crate::device::spec::Update;
use crate::error::Result;
use crate::tape::{Gradients, Parameter};

/// What [`Adam`] or [`AdamW`] is to do.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AdamOptions {
    /// Learning rate η.
    pub rate: f64,
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Weight decay λ: added to the gradient by [`Adam`], taken from the parameter by [`AdamW`].
    pub weight_decay: f64,
}

impl Default for AdamOptions {
    /// The papers' numbers: η 10⁻³, β 0.9 and 0.999, ε 10⁻⁸, no decay.
    fn default() -> Self {
        AdamOptions { rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 }
    }
}

#[derive(Debug)]
struct Common {
    op: &'static str,
    parameters: Parameters,
    options: AdamOptions,
    decoupled: bool,
}

impl Common {
    fn new(
        op: &'static str,
        parameters: impl IntoIterator<Item = Parameter>,
        options: AdamOptions,
        decoupled: bool,
    ) -> Result<Common> {
        check(op, "rate", options.rate)?;
        check_decay(op, "beta1", options.beta1)?;
        check_decay(op, "beta2", options.beta2)?;
        check_positive(op, "epsilon", options.epsilon)?;
        check(op, "weight_decay", options.weight_decay)?;
        Ok(Common { op, parameters: Parameters::new(parameters), options, decoupled })
    }

    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        let AdamOptions { rate, beta1, beta2, epsilon, weight_decay: decay } = self.options;
        let decoupled = self.decoupled;
        self.parameters.step(self.op, gradients, 2, |step| Update::Adam {
            rate,
            beta1,
            beta2,
            epsilon,
            decay,
            decoupled,
            correction1: 1.0 - beta1.powf(step as f64),
            correction2: 1.0 - beta2.powf(step as f64),
        })
    }

    fn set_rate(&mut self, rate: f64) -> Result<()> {
        check(self.op, "rate", rate)?;
        self.options.rate = rate;
        Ok(())
    }
}

macro_rules! optimiser {
    ($(#[$doc:meta])* $name:ident, $op:literal, $decoupled:literal) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(Common);

        impl $name {
            /// An optimiser of these parameters.
            ///
            /// # Errors
            /// [`Error::Argument`](crate::Error::Argument) for numbers that are negative or not finite, an ε of 0, and decays
            /// outside `[0, 1)`.
            pub fn new(
                parameters: impl IntoIterator<Item = Parameter>,
                options: AdamOptions,
            ) -> Result<$name> {
                Common::new($op, parameters, options, $decoupled).map($name)
            }

            /// Updates every parameter that has a gradient, in place. Two moments a parameter are
            /// kept, in f32 for the halves.
            ///
            /// # Errors
            /// [`Error::MemoryLimit`](crate::Error::MemoryLimit) when the state is allocated; nothing has changed then.
            pub fn step(&mut self, gradients: &Gradients) -> Result<()> {
                self.0.step(gradients)
            }

            /// Another learning rate from the next step on.
            ///
            /// # Errors
            /// [`Error::Argument`](crate::Error::Argument) where it is negative or not finite.
            pub fn set_rate(&mut self, rate: f64) -> Result<()> {
                self.0.set_rate(rate)
            }

            /// The parameters, each once.
            pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
                self.0.parameters.iter()
            }
        }
    };
}

optimiser! {
    /// Adam (Kingma and Ba 2015), weight decay added to the gradient.
    ///
    /// ```
    /// use capgrad::{Adam, Device, Parameter, Tape, Tensor, optim::AdamOptions};
    /// # fn main() -> capgrad::Result<()> {
    /// let p = Parameter::new("p", Tensor::from_vec(vec![3.0f64], [1], &Device::cpu())?)?;
    /// let mut adam = Adam::new([p.clone()], AdamOptions { rate: 0.5, ..Default::default() })?;
    /// let tape = Tape::new();
    /// adam.step(&tape.parameter(&p).square()?.sum()?.backward()?)?;
    /// // The first step is the rate times the gradient's sign, but for ε.
    /// assert!((p.tensor().item()? - 2.5).abs() < 1e-8);
    /// # Ok(()) }
    /// ```
    Adam, "adam", false
}

optimiser! {
    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019): `p ← p - η·λ·p` beside Adam's
    /// step.
    ///
    /// ```
    /// use capgrad::{AdamW, Device, Parameter, Tape, Tensor, optim::AdamOptions};
    /// # fn main() -> capgrad::Result<()> {
    /// let p = Parameter::new("p", Tensor::from_vec(vec![3.0f64], [1], &Device::cpu())?)?;
    /// let options = AdamOptions { rate: 0.5, weight_decay: 0.1, ..Default::default() };
    /// let mut adam = AdamW::new([p.clone()], options)?;
    /// let tape = Tape::new();
    /// adam.step(&tape.parameter(&p).square()?.sum()?.backward()?)?;
    /// assert!((p.tensor().item()? - (3.0 - 0.5 * 0.1 * 3.0 - 0.5)).abs() < 1e-8);
    /// # Ok(()) }
    /// ```
    AdamW, "adamw", true
}
