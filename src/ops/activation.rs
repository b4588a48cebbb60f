//! Activation functions, elementwise.

use crate::device::spec::Unary;
use crate::error::{Error, Result};
use crate::tape::Var;

impl Var {
    /// `max(x, 0)`, elementwise, of any shape and float dtype. The gradient at 0 is 0. Saves its
    /// result only.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![-1.0, 2.0], [2], &Device::cpu())?);
    /// assert_eq!(x.relu()?.tensor().to_vec::<f64>()?, [0.0, 2.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`] for integers; those of making a tensor.
    pub fn relu(&self) -> Result<Var> {
        self.unary("relu", Unary::Relu)
    }

    /// `x` where it is positive, else `slope · x`, elementwise, of any shape and float dtype (Maas,
    /// Hannun and Ng 2013).
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![-1.0, 2.0], [2], &Device::cpu())?);
    /// assert_eq!(x.leaky_relu(0.25)?.tensor().to_vec::<f64>()?, [-0.25, 2.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for a slope that is not finite; as [`Var::relu`].
    pub fn leaky_relu(&self, slope: f64) -> Result<Var> {
        if !slope.is_finite() {
            return Err(Error::argument("leaky_relu", "slope", slope, "expected a finite number"));
        }
        self.unary("leaky_relu", Unary::LeakyRelu(slope))
    }

    /// `x/2 · (1 + erf(x/√2))`, elementwise, of any shape and float dtype (Hendrycks and Gimpel
    /// 2016).
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![1.0], [1], &Device::cpu())?);
    /// assert!((x.gelu()?.item()? - 0.841_344_746_068_543).abs() < 1e-12);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::relu`].
    pub fn gelu(&self) -> Result<Var> {
        self.unary("gelu", Unary::Gelu)
    }

    /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))`, elementwise, of any shape and float dtype:
    /// the approximation of [`Var::gelu`] in the same paper.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![1.0], [1], &Device::cpu())?);
    /// assert!((x.gelu_tanh()?.item()? - x.gelu()?.item()?).abs() < 1e-3);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::relu`].
    pub fn gelu_tanh(&self) -> Result<Var> {
        self.unary("gelu_tanh", Unary::GeluTanh)
    }

    /// `x · sigmoid(x)`, elementwise, of any shape and float dtype; also known as swish.
    ///
    /// ```
    /// # use capgrad::{DType, Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::zeros([1], DType::F64, &Device::cpu())?);
    /// assert_eq!(x.silu()?.item()?, 0.0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::relu`].
    pub fn silu(&self) -> Result<Var> {
        self.unary("silu", Unary::Silu)
    }

    /// `1 / (1 + e⁻ˣ)`, elementwise, of any shape and float dtype. Saves its result only.
    ///
    /// ```
    /// # use capgrad::{DType, Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::zeros([1], DType::F64, &Device::cpu())?);
    /// assert_eq!(x.sigmoid()?.item()?, 0.5);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::relu`].
    pub fn sigmoid(&self) -> Result<Var> {
        self.unary("sigmoid", Unary::Sigmoid)
    }

    /// `tanh x`, elementwise, of any shape and float dtype. Saves its result only.
    ///
    /// ```
    /// # use capgrad::{DType, Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::zeros([1], DType::F64, &Device::cpu())?);
    /// assert_eq!(x.tanh()?.item()?, 0.0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::relu`].
    pub fn tanh(&self) -> Result<Var> {
        self.unary("tanh", Unary::Tanh)
    }
}
