//! Comparing gradients with finite differences.

use super::node::Tape;
use super::var::Var;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// How [`gradcheck`] compares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradCheck {
    /// Half the distance of the central differences.
    pub step: f64,
    /// Largest relative difference that passes.
    pub relative: f64,
    /// Absolute difference that passes whatever the relative one is: where terms cancel, nothing
    /// else can be asked.
    pub absolute: f64,
}

impl Default for GradCheck {
    fn default() -> Self {
        GradCheck { step: 1e-4, relative: 1e-6, absolute: 1e-8 }
    }
}

/// Compares the gradients that `backward` gives with differences of `f`, for every element of every
/// input. `f` may return any shape; its elements are weighted by fixed numbers so that no two can
/// hide each other's errors. Differences are taken at steps h and h/2 and extrapolated
/// (Richardson), so their error is of order h⁴.
///
/// Returns the largest relative difference among the elements above the absolute bound.
///
/// ```
/// use capgrad::{GradCheck, Device, Tensor, gradcheck};
/// # fn main() -> capgrad::Result<()> {
/// let x = Tensor::from_vec(vec![0.3, -1.2, 2.0], [3], &Device::cpu())?;
/// gradcheck(|x| x[0].tanh()?.mul(&x[0]), &[x], GradCheck::default())?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::GradientMismatch`] at the first element that differs; [`Error::DType`] for inputs that
/// are not f64; those of `f`.
pub fn gradcheck(
    f: impl Fn(&[Var]) -> Result<Var>,
    inputs: &[Tensor],
    options: GradCheck,
) -> Result<f64> {
    let numbers = [("step", options.step), ("relative", options.relative)];
    for (argument, value) in numbers.into_iter().chain([("absolute", options.absolute)]) {
        if !value.is_finite() || value < 0.0 || (argument == "step" && value == 0.0) {
            let reason = "must be finite and not negative, and the step not 0";
            return Err(Error::argument("gradcheck", argument, value, reason));
        }
    }
    for input in inputs {
        if input.dtype() != DType::F64 {
            return Err(Error::DType { op: "gradcheck", got: input.dtype(), expected: "f64" });
        }
    }
    let tape = Tape::new();
    let variables =
        inputs.iter().map(|input| tape.variable(input.clone())).collect::<Result<Vec<_>>>()?;
    let output = f(&variables)?;
    let weights: Vec<f64> = (0..output.tensor().elements()).map(weight).collect();
    let dy = Tensor::from_slice(&weights, output.shape(), output.device())?;
    let gradients = output.backward_with(dy)?;

    let value = |changed: usize, data: &[f64]| -> Result<f64> {
        // Another tape, so that random operations draw the same numbers each time.
        let tape = Tape::new();
        let values = inputs
            .iter()
            .enumerate()
            .map(|(i, input)| {
                if i == changed {
                    let tensor = Tensor::from_slice(data, input.shape(), input.device())?;
                    Ok(tape.constant(tensor))
                } else {
                    Ok(tape.constant(input.clone()))
                }
            })
            .collect::<Result<Vec<_>>>()?;
        let output = f(&values)?.into_tensor().to_vec::<f64>()?;
        Ok(output.iter().zip(&weights).map(|(y, w)| y * w).sum())
    };
    let mut largest = 0f64;
    for (i, input) in inputs.iter().enumerate() {
        let analytic = match gradients.get(&variables[i]) {
            Some(gradient) => gradient.to_vec::<f64>()?,
            None => vec![0.0; input.elements()],
        };
        let mut data = input.to_vec::<f64>()?;
        for (element, &analytic) in analytic.iter().enumerate() {
            let x = data[element];
            let mut difference = |h: f64| -> Result<f64> {
                // The distance that was really taken, after rounding.
                let (low, high) = (x - h, x + h);
                data[element] = high;
                let above = value(i, &data)?;
                data[element] = low;
                let below = value(i, &data)?;
                data[element] = x;
                Ok((above - below) / (high - low))
            };
            let coarse = difference(options.step)?;
            let fine = difference(options.step / 2.0)?;
            let numeric = (4.0 * fine - coarse) / 3.0;
            let error = (analytic - numeric).abs();
            let relative = error / analytic.abs().max(numeric.abs());
            // Comparisons that hold, so that NaN does not pass.
            if error <= options.absolute {
                continue;
            }
            if relative <= options.relative {
                largest = largest.max(relative);
                continue;
            }
            return Err(Error::GradientMismatch { input: i, element, analytic, numeric });
        }
    }
    Ok(largest)
}

/// Irregular weights in [0.5, 1.5): the fractional parts of multiples of the golden ratio.
fn weight(i: usize) -> f64 {
    0.5 + (i as f64 * 0.618_033_988_749_894_9).fract()
}
