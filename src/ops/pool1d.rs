//! Pooling along the length of `[N, C, L]`.

use crate::device::spec::{Pool, PoolGeometry};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tape::{Backward, Rule, Saved, Var};
use crate::tensor::{Tensor, require_float};

impl Var {
    /// The largest element of each window: `x [N, C, L] -> y [N, C, L_out]`,
    /// `y[n,c,l] = max_k x[n, c, l·stride + k - padding]` over the `kernel` taps that lie inside
    /// `x`, `L_out = (L + 2·padding - kernel)/stride + 1`, for floats. The gradient goes to the
    /// first of equals; NaN wins. Saves the places of the maxima (i32).
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![1.0, 4.0, 2.0, 3.0], [1, 1, 4], &Device::cpu())?);
    /// assert_eq!(x.max_pool1d(2, 2, 0)?.tensor().to_vec::<f64>()?, [4.0, 3.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] unless `x` is `[N, C, L]` with `L` at least 1 (and below 2³¹);
    /// [`Error::Argument`] for a kernel or stride of 0 and for a padding over half the kernel;
    /// [`Error::KernelTooLong`]; [`Error::DType`] for integers; those of making a tensor.
    pub fn max_pool1d(&self, kernel: usize, stride: usize, padding: usize) -> Result<Var> {
        self.pool("max_pool1d", Pool::Max, kernel, stride, padding)
    }

    /// The mean of each window, as [`Var::max_pool1d`], with padding counted as zeros:
    /// `y[n,c,l] = 1/kernel · Σ_k x[n, c, l·stride + k - padding]`. Saves nothing of `x`.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![1.0, 4.0, 2.0, 3.0], [1, 1, 4], &Device::cpu())?);
    /// assert_eq!(x.avg_pool1d(2, 2, 0)?.tensor().to_vec::<f64>()?, [2.5, 2.5]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::max_pool1d`].
    pub fn avg_pool1d(&self, kernel: usize, stride: usize, padding: usize) -> Result<Var> {
        self.pool("avg_pool1d", Pool::Average, kernel, stride, padding)
    }

    fn pool(
        &self,
        op: &'static str,
        pool: Pool,
        kernel: usize,
        stride: usize,
        padding: usize,
    ) -> Result<Var> {
        require_float(op, self.dtype())?;
        let geometry = self.pool_geometry(op, kernel, stride, padding)?;
        let shape = self.shape().with(2, geometry.out_length);
        let out = Tensor::result(op, &shape, self.dtype(), self.device())?;
        let indices = match pool {
            Pool::Max if Var::records(&[self]) => {
                Some(Tensor::result(op, shape, DType::I32, self.device())?)
            }
            _ => None,
        };
        let backend = self.device().backend();
        backend.pool(pool, &geometry, self.tensor(), &out, indices.as_ref())?;
        Var::record(op, out, &[self], |_| PoolRule {
            op,
            pool,
            geometry,
            shape: self.shape().clone(),
            indices: indices.map(|indices| Saved::new(op, &indices)),
        })
    }

    fn pool_geometry(
        &self,
        op: &'static str,
        kernel: usize,
        stride: usize,
        padding: usize,
    ) -> Result<PoolGeometry> {
        let (rows, in_length) = match *self.dims() {
            // Places of maxima are i32.
            [batch, channels, length] if length > 0 && length <= i32::MAX as usize => {
                (batch * channels, length)
            }
            _ => {
                let reason = "expected [batch, channels, length] with a length of 1 .. 2^31";
                return Err(Error::shape(op, &[self.shape()], reason));
            }
        };
        for (argument, value) in [("kernel", kernel), ("stride", stride)] {
            if value == 0 {
                return Err(Error::argument(op, argument, 0, "expected at least 1"));
            }
        }
        if padding > kernel / 2 {
            let reason = format!("at most half the kernel of {kernel}, so that no window is empty");
            return Err(Error::argument(op, "padding", padding, reason));
        }
        let padded_length = in_length.saturating_add(2 * padding);
        if kernel > padded_length {
            return Err(Error::KernelTooLong {
                op,
                kernel,
                dilation: 1,
                span: kernel,
                padded_length,
            });
        }
        let out_length = (padded_length - kernel) / stride + 1;
        Ok(PoolGeometry { rows, in_length, out_length, kernel, stride, padding })
    }
}

struct PoolRule {
    op: &'static str,
    pool: Pool,
    geometry: PoolGeometry,
    shape: Shape,
    indices: Option<Saved>,
}

impl Rule for PoolRule {
    fn name(&self) -> &'static str {
        self.op
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let indices = self.indices.as_mut().map(|indices| indices.take(cx)).transpose()?;
        let dy = dy.dense()?;
        let dx = Tensor::result(self.op, &self.shape, dy.dtype(), dy.device())?;
        let backend = dx.device().backend();
        backend.pool_gradient(self.pool, &self.geometry, &dy, indices.as_ref(), &dx)?;
        drop((dy, indices));
        cx.give(0, dx)
    }
}
