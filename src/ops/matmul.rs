//! Matrix products, and the affine map of a linear layer.

use super::conv1d::check_operands;
use crate::device::Query;
use crate::device::spec::{GemmSpec, Strided};
use crate::error::{Error, Result};
use crate::plan::PlannedCall;
use crate::tape::{Backward, Rule, Saved, Var};
use crate::tensor::{Tensor, require_alike, require_float};

/// A matrix operand: a tensor, its extents as `[batch, rows, columns]`, and whether it is read
/// transposed.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    tensor: &'a Tensor,
    batch: usize,
    rows: usize,
    cols: usize,
    transposed: bool,
}

impl<'a> Matrix<'a> {
    /// The last two extents are the matrix, all before them the batch.
    fn of(tensor: &'a Tensor) -> Matrix<'a> {
        let dims = tensor.dims();
        let (batch, matrix) = dims.split_at(dims.len() - 2);
        let (rows, cols) = (matrix[0], matrix[1]);
        Matrix { tensor, batch: batch.iter().product(), rows, cols, transposed: false }
    }

    fn of_size(tensor: &'a Tensor, batch: usize, rows: usize, cols: usize) -> Matrix<'a> {
        Matrix { tensor, batch, rows, cols, transposed: false }
    }

    fn transposed(self) -> Matrix<'a> {
        Matrix { rows: self.cols, cols: self.rows, transposed: !self.transposed, ..self }
    }

    fn strides(&self, batch: usize) -> Strided {
        let (row, col) = if self.transposed { (1, self.rows) } else { (self.cols, 1) };
        let repeated = self.batch == 1 && batch != 1;
        Strided { batch: if repeated { 0 } else { self.rows * self.cols }, row, col }
    }
}

/// `out = a·b (+ bias)`, a matrix of batch 1 repeated as often as needed.
fn product(
    op: &'static str,
    a: Matrix<'_>,
    b: Matrix<'_>,
    bias: Option<&Tensor>,
    out: &Tensor,
) -> Result<()> {
    let batch = if a.batch == 1 { b.batch } else { a.batch };
    let spec = GemmSpec {
        batch,
        m: a.rows,
        n: b.cols,
        k: a.cols,
        a: a.strides(batch),
        b: b.strides(batch),
    };
    let mut operands = vec![a.tensor, b.tensor];
    operands.extend(bias);
    let query = Query::Gemm(spec, out.dtype());
    PlannedCall { op, query, cap: None, operands: &operands, out }.run()
}

impl Var {
    /// Matrix product. `[m, k]·[k, n]`, `[b, m, k]·[b, k, n]`, or one of the two with a batch and
    /// the other without, which is then used for every matrix of the batch.
    ///
    /// ```
    /// use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let a = Var::from(Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2], &Device::cpu())?);
    /// let b = Var::from(Tensor::from_vec(vec![1.0f32, 10.0], [2, 1], &Device::cpu())?);
    /// assert_eq!(a.matmul(&b)?.tensor().to_vec::<f32>()?, [21.0, 43.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for ranks other than 2 and 3, inner extents or batches that differ;
    /// [`Error::DType`], [`Error::DTypeMismatch`], [`Error::DeviceMismatch`].
    pub fn matmul(&self, other: &Var) -> Result<Var> {
        const OP: &str = "matmul";
        require_float(OP, self.dtype())?;
        require_alike(OP, self.tensor(), other.tensor())?;
        let shapes = [self.shape(), other.shape()];
        if shapes.iter().any(|shape| !(2..=3).contains(&shape.rank())) {
            return Err(Error::shape(OP, &shapes, "both operands must have rank 2 or 3"));
        }
        let (a, b) = (Matrix::of(self.tensor()), Matrix::of(other.tensor()));
        if a.cols != b.rows {
            let reason = "the first's columns must be as many as the second's rows";
            return Err(Error::shape(OP, &shapes, reason));
        }
        if self.shape().rank() == 3 && other.shape().rank() == 3 && a.batch != b.batch {
            return Err(Error::shape(OP, &shapes, "the batches must be equal"));
        }
        let out_shape = match (self.shape().rank(), other.shape().rank()) {
            (2, 2) => vec![a.rows, b.cols],
            (3, _) => vec![a.batch, a.rows, b.cols],
            _ => vec![b.batch, a.rows, b.cols],
        };
        let out = Tensor::result(OP, out_shape, self.dtype(), self.device())?;
        if self.shape().rank() == 3 && other.shape().rank() == 2 {
            // One tall matrix instead of many small ones.
            let rows = a.batch * a.rows;
            product(OP, Matrix::of_size(self.tensor(), 1, rows, a.cols), b, None, &out)?;
        } else {
            product(OP, a, b, None, &out)?;
        }
        Var::record(OP, out, &[self, other], |_| MatmulRule {
            a: other.requires_grad().then(|| Saved::new(OP, self.tensor())),
            b: self.requires_grad().then(|| Saved::new(OP, other.tensor())),
            a_shape: self.dims().into(),
            b_shape: other.dims().into(),
        })
    }

    /// `self·weightᵀ + bias`, for `self [.., in]`, `weight [out, in]` and `bias [out]`.
    ///
    /// ```
    /// use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![1.0f32, 2.0], [1, 2], &Device::cpu())?);
    /// let w = Var::from(Tensor::from_vec(vec![3.0f32, 4.0], [1, 2], &Device::cpu())?);
    /// let b = Var::from(Tensor::from_vec(vec![0.5f32], [1], &Device::cpu())?);
    /// assert_eq!(x.linear(&w, Some(&b))?.item()?, 11.5);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`]; [`Error::DType`], [`Error::DTypeMismatch`], [`Error::DeviceMismatch`].
    pub fn linear(&self, weight: &Var, bias: Option<&Var>) -> Result<Var> {
        const OP: &str = "linear";
        let (Some((&features, outer)), &[outputs, inputs]) =
            (self.dims().split_last(), weight.dims())
        else {
            let reason = "expected input [.., in] and weight [out, in]";
            return Err(Error::shape(OP, &[self.shape(), weight.shape()], reason));
        };
        if features != inputs {
            let reason = format!("the input's last extent must be the weight's {inputs}");
            return Err(Error::shape(OP, &[self.shape(), weight.shape()], reason));
        }
        check_operands(OP, self, weight, bias, outputs)?;
        let rows = outer.iter().product();
        let mut shape = outer.to_vec();
        shape.push(outputs);
        let out = Tensor::result(OP, shape, self.dtype(), self.device())?;
        let x = Matrix::of_size(self.tensor(), 1, rows, features);
        product(OP, x, Matrix::of(weight.tensor()).transposed(), bias.map(Var::tensor), &out)?;
        let mut operands = vec![self, weight];
        operands.extend(bias);
        Var::record(OP, out, &operands, |_| LinearRule {
            x: weight.requires_grad().then(|| Saved::new(OP, self.tensor())),
            w: self.requires_grad().then(|| Saved::new(OP, weight.tensor())),
            x_shape: self.dims().into(),
            rows,
            inputs,
            outputs,
        })
    }
}

struct MatmulRule {
    a: Option<Saved>,
    b: Option<Saved>,
    a_shape: Vec<usize>,
    b_shape: Vec<usize>,
}

impl Rule for MatmulRule {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        const OP: &str = "matmul";
        let dy = dy.dense()?;
        if let Some(a) = self.a.as_mut().filter(|_| cx.needs(1)) {
            // db = aᵀ·dy
            let a = a.take(cx)?;
            let db = Tensor::result(OP, &self.b_shape[..], dy.dtype(), dy.device())?;
            if self.a_shape.len() == 3 && self.b_shape.len() == 2 {
                let rows = self.a_shape[0] * self.a_shape[1];
                let a = Matrix::of_size(&a, 1, rows, self.a_shape[2]);
                let dy = Matrix::of_size(&dy, 1, rows, self.b_shape[1]);
                product(OP, a.transposed(), dy, None, &db)?;
            } else {
                product(OP, Matrix::of(&a).transposed(), Matrix::of(&dy), None, &db)?;
            }
            drop(a);
            cx.give(1, db)?;
        }
        if let Some(b) = self.b.as_mut().filter(|_| cx.needs(0)) {
            // da = dy·bᵀ, summed over the batch where a has none
            let b = b.take(cx)?;
            let da = Tensor::result(OP, &self.a_shape[..], dy.dtype(), dy.device())?;
            if self.a_shape.len() == 2 && self.b_shape.len() == 3 {
                sum_of_products(OP, &dy, &b, &da)?;
            } else {
                product(OP, Matrix::of(&dy), Matrix::of(&b).transposed(), None, &da)?;
            }
            drop((b, dy));
            cx.give(0, da)?;
        }
        Ok(())
    }
}

/// `out = Σ_i dy[i]·b[i]ᵀ`, with one temporary of the result's size.
fn sum_of_products(op: &'static str, dy: &Tensor, b: &Tensor, out: &Tensor) -> Result<()> {
    let backend = out.device().backend();
    let batch = dy.shape()[0];
    if batch == 0 {
        return backend.fill(out, 0.0);
    }
    let mut term = None;
    for i in 0..batch {
        let (dy, b) = (dy.rows(i, 1), b.rows(i, 1));
        let (dy, b) = (Matrix::of(&dy), Matrix::of(&b).transposed());
        if i == 0 {
            product(op, dy, b, None, out)?;
            continue;
        }
        if term.is_none() {
            term = Some(Tensor::result(op, out.shape(), out.dtype(), out.device())?);
        }
        if let Some(term) = &term {
            product(op, dy, b, None, term)?;
            backend.accumulate(out, term)?;
        }
    }
    Ok(())
}

struct LinearRule {
    x: Option<Saved>,
    w: Option<Saved>,
    x_shape: Vec<usize>,
    rows: usize,
    inputs: usize,
    outputs: usize,
}

impl Rule for LinearRule {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        const OP: &str = "linear";
        let dy = dy.reshape([self.rows, self.outputs])?.dense()?;
        if cx.needs(2) {
            let db = Tensor::result(OP, [self.outputs], dy.dtype(), dy.device())?;
            dy.device().backend().sum(&dy, &[true, false], 1.0, &db)?;
            cx.give(2, db)?;
        }
        let gradient = Matrix::of_size(&dy, 1, self.rows, self.outputs);
        if let Some(x) = self.x.as_mut().filter(|_| cx.needs(1)) {
            let x = x.take(cx)?;
            let shape = [self.outputs, self.inputs];
            let dw = Tensor::result(OP, shape, dy.dtype(), dy.device())?;
            let x_matrix = Matrix::of_size(&x, 1, self.rows, self.inputs);
            product(OP, gradient.transposed(), x_matrix, None, &dw)?;
            drop(x);
            cx.give(1, dw)?;
        }
        if let Some(w) = self.w.as_mut().filter(|_| cx.needs(0)) {
            let w = w.take(cx)?;
            let dx = Tensor::result(OP, &self.x_shape[..], dy.dtype(), dy.device())?;
            product(OP, gradient, Matrix::of(&w), None, &dx)?;
            drop((w, dy));
            cx.give(0, dx)?;
        }
        Ok(())
    }
}
