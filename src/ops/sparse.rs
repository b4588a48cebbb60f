//! Products of a sparse matrix with a dense tensor. The product with a constant matrix saves
//! nothing of the dense side: its gradient needs the matrix alone, which is resident already.

use crate::device::spec::{DenseLayout, SparseProduct, SparseSpec};
use crate::device::{Query, Ranking};
use crate::error::{Error, Result};
use crate::plan::{Plan, PlannedCall, preview};
use crate::shape::Shape;
use crate::sparse::SparseMatrix;
use crate::tape::{Backward, Rule, Saved, Var};
use crate::tensor::{Tensor, require_alike};
use std::sync::Arc;

/// The dense operand of a product with `a`, checked.
#[derive(Clone, Copy)]
pub(crate) struct Dense {
    pub(crate) layout: DenseLayout,
    pub(crate) width: usize,
}

impl Dense {
    pub(crate) fn check(
        op: &'static str,
        a: &SparseMatrix,
        x: &Tensor,
        layout: DenseLayout,
    ) -> Result<Dense> {
        require_alike(op, &a.stored().values, x)?;
        let (length, width) = match (layout, x.dims()) {
            (DenseLayout::Columns, &[length, width]) => (length, width),
            (DenseLayout::Rows, &[width, length]) => (length, width),
            _ => return Err(Error::shape(op, &[x.shape()], "expected a matrix")),
        };
        if length != a.cols() {
            let reason = format!(
                "the {}×{} matrix needs dense vectors of length {}",
                a.rows(),
                a.cols(),
                a.cols()
            );
            return Err(Error::shape(op, &[x.shape()], reason));
        }
        Ok(Dense { layout, width })
    }
}

pub(crate) fn dense_shape(layout: DenseLayout, length: usize, width: usize) -> [usize; 2] {
    match layout {
        DenseLayout::Columns => [length, width],
        DenseLayout::Rows => [width, length],
    }
}

/// Which product of the stored matrix multiplies by `a` (or by its transpose).
fn product_of(a: &SparseMatrix, transposed: bool) -> SparseProduct {
    if a.is_symmetric() || a.is_transposed() == transposed {
        SparseProduct::Forward
    } else {
        SparseProduct::Transposed
    }
}

/// What has come in of input `i`'s gradient, for a product of `like`'s dtype and device to be added
/// to it. Not where candidates are measured: each is timed by several runs into the result, which
/// would add as many products. There the tape adds.
fn take_sum(cx: &mut Backward<'_>, i: usize, shape: &[usize], like: &Tensor) -> Option<Tensor> {
    match like.device().ranking() {
        Ranking::Predicted => cx.take_sum(i, shape, like),
        Ranking::Measured => None,
    }
}

/// Where a product goes.
pub(crate) enum Target {
    /// To a new tensor.
    New,
    /// It is added to this one.
    Sum(Tensor),
    /// Over what is in this one.
    Over(Tensor),
}

impl From<Option<Tensor>> for Target {
    fn from(sum: Option<Tensor>) -> Target {
        sum.map_or(Target::New, Target::Sum)
    }
}

/// `a·x`, or `aᵀ·x`, under `cap` or the one in force. `values` replace the stored ones.
#[allow(clippy::too_many_arguments)]
pub(crate) fn multiply(
    op: &'static str,
    a: &SparseMatrix,
    values: Option<&Tensor>,
    transposed: bool,
    dense: &Dense,
    x: &Tensor,
    target: impl Into<Target>,
    cap: Option<u64>,
) -> Result<Tensor> {
    // Symmetry and the transposed copy are those of the stored values.
    let product = match values {
        Some(_) if a.is_transposed() == transposed => SparseProduct::Forward,
        Some(_) => SparseProduct::Transposed,
        None => product_of(a, transposed),
    };
    let transpose = a.stored_transpose().filter(|_| values.is_none());
    let target = target.into();
    let spec = SparseSpec {
        transpose: transpose.map(|transpose| transpose.spec),
        values_apart: values.is_some(),
        accumulate: matches!(target, Target::Sum(_)),
        ..a.spec(product, dense.layout, dense.width)
    };
    let length = if transposed { a.cols() } else { a.rows() };
    let shape = dense_shape(dense.layout, length, dense.width);
    let out = match target {
        Target::Sum(out) | Target::Over(out) => out,
        Target::New => Tensor::result(op, shape, x.dtype(), x.device())?,
    };
    let stored = a.stored();
    let mut operands = stored.arrays(values.unwrap_or(&stored.values));
    if let Some(transpose) = transpose {
        operands.extend(transpose.arrays(&transpose.values));
    }
    operands.push(x);
    let query = Query::Sparse(spec, x.dtype());
    PlannedCall { op, query, cap, operands: &operands, out: &out }.run()?;
    Ok(out)
}

impl SparseMatrix {
    /// `A·X` for `x [cols, n]`, to `[rows, n]`: a dense vector a column. The gradient for `x` is
    /// `Aᵀ·G`, from the same resident matrix.
    ///
    /// ```
    /// use capgrad::{Device, SparseMatrix, Tensor};
    /// # fn main() -> capgrad::Result<()> {
    /// let a = SparseMatrix::from_coo(1, 2, &[0, 0], &[0, 1], &[2.0f64, 3.0])?;
    /// let x = Tensor::from_vec(vec![1.0, 10.0, 100.0, 1000.0], [2, 2], &Device::cpu())?;
    /// assert_eq!(a.matmul(&x.into())?.tensor().to_vec::<f64>()?, [302.0, 3020.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DTypeMismatch`], [`Error::DeviceMismatch`];
    /// [`Error::MemoryLimit`].
    pub fn matmul(&self, x: &Var) -> Result<Var> {
        self.constant_product("sparse matmul", DenseLayout::Columns, x)
    }

    /// `A` applied to every row of `x [b, cols]`, to `[b, rows]`: batch first, with no transposes
    /// around it.
    ///
    /// # Errors
    /// As [`SparseMatrix::matmul`].
    pub fn apply(&self, x: &Var) -> Result<Var> {
        self.constant_product("sparse apply", DenseLayout::Rows, x)
    }

    /// [`SparseMatrix::matmul`] with `values [nnz]` in place of the stored ones, in their order,
    /// and with a gradient for them: the product `G·Xᵀ` sampled at the pattern, O(nnz).
    ///
    /// ```
    /// use capgrad::{Device, SparseMatrix, Tape, Tensor};
    /// # fn main() -> capgrad::Result<()> {
    /// let a = SparseMatrix::from_coo(1, 2, &[0, 0], &[0, 1], &[2.0f64, 3.0])?;
    /// let tape = Tape::new();
    /// let values = tape.variable(a.values()?)?;
    /// let x = tape.constant(Tensor::from_vec(vec![5.0, 7.0], [2, 1], &Device::cpu())?);
    /// let grads = a.matmul_values(&values, &x)?.sum()?.backward()?;
    /// assert_eq!(grads.get(&values).unwrap().to_vec::<f64>()?, [5.0, 7.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`SparseMatrix::matmul`], and [`Error::Shape`] for another number of values.
    pub fn matmul_values(&self, values: &Var, x: &Var) -> Result<Var> {
        self.trainable_product("sparse matmul_values", DenseLayout::Columns, values, x)
    }

    /// [`SparseMatrix::apply`] with `values [nnz]` in place of the stored ones, and with a gradient
    /// for them.
    ///
    /// # Errors
    /// As [`SparseMatrix::matmul_values`].
    pub fn apply_values(&self, values: &Var, x: &Var) -> Result<Var> {
        self.trainable_product("sparse apply_values", DenseLayout::Rows, values, x)
    }

    /// The plans of [`SparseMatrix::apply`] for `width` dense vectors and of its gradient, as they would run
    /// now.
    ///
    /// ```
    /// use capgrad::SparseMatrix;
    /// # fn main() -> capgrad::Result<()> {
    /// let a = SparseMatrix::from_coo(2, 2, &[0, 1], &[1, 0], &[2.0f32, 3.0])?;
    /// for plan in a.plan(8)? {
    ///     println!("{plan}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::WorkspaceCap`].
    pub fn plan(&self, width: usize) -> Result<Vec<Arc<Plan>>> {
        self.plans("sparse apply", DenseLayout::Rows, width)
    }

    /// The plans of [`SparseMatrix::matmul`] for `width` dense vectors and of its gradient.
    ///
    /// # Errors
    /// As [`SparseMatrix::plan`].
    pub fn plan_matmul(&self, width: usize) -> Result<Vec<Arc<Plan>>> {
        self.plans("sparse matmul", DenseLayout::Columns, width)
    }

    fn plans(&self, op: &'static str, layout: DenseLayout, width: usize) -> Result<Vec<Arc<Plan>>> {
        [false, true]
            .into_iter()
            .map(|transposed| {
                let product = product_of(self, transposed);
                let spec = self.spec(product, layout, width);
                preview(self.device(), op, Query::Sparse(spec, self.dtype()), None)
            })
            .collect()
    }

    fn constant_product(&self, op: &'static str, layout: DenseLayout, x: &Var) -> Result<Var> {
        let dense = Dense::check(op, self, x.tensor(), layout)?;
        let out = multiply(op, self, None, false, &dense, x.tensor(), None, None)?;
        Var::record(op, out, &[x], |_| ConstantRule {
            op,
            a: self.clone(),
            dense,
            values: Saved::new(op, &self.stored().values),
        })
    }

    fn trainable_product(
        &self,
        op: &'static str,
        layout: DenseLayout,
        values: &Var,
        x: &Var,
    ) -> Result<Var> {
        let expected = Shape::from([self.nnz()]);
        if values.tensor().shape() != &expected {
            let reason = format!("`values` must have one for each of the {} entries", self.nnz());
            return Err(Error::shape(op, &[values.tensor().shape()], reason));
        }
        require_alike(op, &self.stored().values, values.tensor())?;
        let dense = Dense::check(op, self, x.tensor(), layout)?;
        let out = multiply(op, self, Some(values.tensor()), false, &dense, x.tensor(), None, None)?;
        Var::record(op, out, &[values, x], |_| TrainableRule {
            op,
            a: self.clone(),
            dense,
            values: x.requires_grad().then(|| Saved::new(op, values.tensor())),
            x: values.requires_grad().then(|| Saved::new(op, x.tensor())),
        })
    }
}

struct ConstantRule {
    op: &'static str,
    a: SparseMatrix,
    dense: Dense,
    /// Shared with the matrix; here to notice a change.
    values: Saved,
}

impl Rule for ConstantRule {
    fn name(&self) -> &'static str {
        self.op
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        self.values.take(cx)?;
        let (op, a, dense) = (self.op, &self.a, &self.dense);
        let sum = take_sum(cx, 0, &dense_shape(dense.layout, a.cols(), dense.width), &dy);
        let dx = multiply(op, a, None, true, dense, &dy.dense()?, sum, None)?;
        drop(dy);
        cx.give(0, dx)
    }
}

struct TrainableRule {
    op: &'static str,
    a: SparseMatrix,
    dense: Dense,
    values: Option<Saved>,
    x: Option<Saved>,
}

impl Rule for TrainableRule {
    fn name(&self) -> &'static str {
        self.op
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let (op, a, dense) = (self.op, &self.a, &self.dense);
        let dy = dy.dense()?;
        if let Some(x) = self.x.as_mut().filter(|_| cx.needs(0)) {
            let x = x.take(cx)?;
            let sum = take_sum(cx, 0, &[a.nnz()], &dy);
            let spec = SparseSpec {
                transpose: None,
                accumulate: sum.is_some(),
                ..a.spec(SparseProduct::Sampled, dense.layout, dense.width)
            };
            let out = match sum {
                Some(sum) => sum,
                None => Tensor::result(op, [a.nnz()], dy.dtype(), dy.device())?,
            };
            // Row and column of an entry change places in a transposed view.
            let (by_row, by_col) = if a.is_transposed() { (&x, &dy) } else { (&dy, &x) };
            let stored = a.stored();
            let mut operands = stored.arrays(&stored.values);
            operands.extend([by_row, by_col]);
            let query = Query::Sparse(spec, dy.dtype());
            PlannedCall { op, query, cap: None, operands: &operands, out: &out }.run()?;
            cx.give(0, out)?;
        }
        if let Some(values) = self.values.as_mut().filter(|_| cx.needs(1)) {
            let values = values.take(cx)?;
            let sum = take_sum(cx, 1, &dense_shape(dense.layout, a.cols(), dense.width), &dy);
            let dx = multiply(op, a, Some(&values), true, dense, &dy, sum, None)?;
            drop((values, dy));
            cx.give(1, dx)?;
        }
        Ok(())
    }
}
