//! A sparse matrix whose rows are divided among the ranks.

use super::collective::Collective;
use super::communicator::Communicator;
use crate::device::spec::{DenseLayout, Window};
use crate::error::Result;
use crate::memory::{Purpose, PurposeGuard};
use crate::ops::sparse::{Dense, Target, dense_shape, multiply};
use crate::sparse::SparseMatrix;
use crate::tape::{Backward, Rule, Var, backward_guards};
use crate::tensor::Tensor;
use std::ops::Range;
use std::sync::Arc;

/// Rows that come together: their part of a result begins where wide accesses may.
const TOGETHER: usize = 8;

/// Cuts rows into one contiguous range for each of `ranks`, with about as many entries each. Where a row
/// count says how many entries each row has, a rank can build its own rows and no others.
///
/// ```
/// let rows = capgrad::balanced_rows(&[100, 1, 1, 1, 1, 1, 1, 1, 90, 10], 2);
/// assert_eq!(rows, [0..8, 8..10]);
/// ```
///
/// Ranges begin at multiples of 8 rows; some may be empty. No ranks give no ranges.
pub fn balanced_rows(row_entries: &[usize], ranks: usize) -> Vec<Range<usize>> {
    let total: u128 = row_entries.iter().map(|&entries| entries as u128).sum();
    let rows = row_entries.len();
    let mut ends = Vec::with_capacity(ranks);
    let (mut row, mut entries) = (0, 0u128);
    for rank in 1..=ranks {
        let share = total * rank as u128 / ranks.max(1) as u128;
        // A block of rows belongs to the rank that most of it lies in.
        while row < rows {
            let end = (row + TOGETHER).min(rows);
            let block: u128 = row_entries[row..end].iter().map(|&entries| entries as u128).sum();
            if rank < ranks && entries + block / 2 > share {
                break;
            }
            if rank < ranks && block == 0 && entries >= share {
                break;
            }
            entries += block;
            row = end;
        }
        ends.push(row);
    }
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(ends.iter().copied()).map(|(start, end)| start..end).collect()
}

/// A constant matrix too large for one device, whose rows are divided among the ranks: each holds its own,
/// and those alone. Products are as with the whole [`SparseMatrix`]: every rank gives the same `x` and gets
/// the whole result, which is gathered; in the backward pass every rank has the same gradient of the result
/// (all compute the same loss of it), takes its rows' part, and the parts of `Aᵀ·G` are added up over the
/// ranks. Both are one operation on the tape.
///
/// ```
/// use capgrad::{Communicator, Device, RowSplitMatrix, SparseMatrix, Tape, Tensor};
/// # fn main() -> capgrad::Result<()> {
/// // Of [[2, 3], [0, 4]] each of two ranks has a row.
/// let ranks = Communicator::in_process(2)?;
/// std::thread::scope(|scope| {
///     for own in &ranks {
///         scope.spawn(move || of_rank(own).unwrap());
///     }
/// });
/// # Ok(()) }
/// fn of_rank(own: &Communicator) -> capgrad::Result<()> {
///     let rows = match own.rank() {
///         0 => SparseMatrix::from_coo(1, 2, &[0, 0], &[0, 1], &[2.0f64, 3.0])?,
///         _ => SparseMatrix::from_coo(1, 2, &[0], &[1], &[4.0f64])?,
///     };
///     let a = RowSplitMatrix::new(rows, own)?;
///     let tape = Tape::new();
///     let x = Tensor::from_vec(vec![1.0, 10.0], [1, 2], &Device::cpu())?;
///     let x = tape.variable(x)?;
///     let y = a.apply(&x)?;
///     assert_eq!(y.tensor().to_vec::<f64>()?, [32.0, 40.0]);
///     let grads = y.sum()?.backward()?;
///     assert_eq!(grads.get(&x).unwrap().to_vec::<f64>()?, [2.0, 7.0]);
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct RowSplitMatrix(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    own: SparseMatrix,
    communicator: Communicator,
    /// Where each rank's rows begin, and where the last one's end.
    starts: Vec<usize>,
    nnz: usize,
}

impl RowSplitMatrix {
    /// The matrix that all ranks' rows make, in the order of the ranks; `own` has as many columns
    /// everywhere, and may have no rows.
    ///
    /// # Errors
    /// [`Error::Communication`](crate::Error::Communication) where the ranks' rows differ in length or
    /// dtype, or a rank does not come.
    pub fn new(own: SparseMatrix, communicator: &Communicator) -> Result<RowSplitMatrix> {
        let op = "row-split matrix";
        let (ranks, rank) = (communicator.world_size(), communicator.rank());
        let mut numbers = vec![0.0; 4 * ranks];
        let said = [own.rows(), own.cols(), own.nnz(), own.dtype() as usize];
        for (at, value) in said.into_iter().enumerate() {
            numbers[at * ranks + rank] = value as f64;
        }
        let numbers = communicator.sum(&numbers)?;
        let of = |at: usize| &numbers[at * ranks..(at + 1) * ranks];
        let other = (0..ranks).find(|&other| of(1)[other] != of(1)[0] || of(3)[other] != of(3)[0]);
        if let Some(other) = other {
            let reason = format!(
                "rank {other} has rows of {} columns, rank 0 of {}, or another dtype",
                of(1)[other],
                of(1)[0]
            );
            return Err(communicator.failed(op, reason));
        }
        let mut starts = vec![0];
        for &rows in of(0) {
            starts.push(starts.last().copied().unwrap_or(0) + rows as usize);
        }
        let nnz = of(2).iter().sum::<f64>() as usize;
        let communicator = communicator.clone();
        Ok(RowSplitMatrix(Arc::new(Inner { own, communicator, starts, nnz })))
    }

    /// Rows of the whole matrix.
    pub fn rows(&self) -> usize {
        self.0.starts.last().copied().unwrap_or(0)
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.0.own.cols()
    }

    /// Entries of the whole matrix.
    pub fn nnz(&self) -> usize {
        self.0.nnz
    }

    /// The rows that this rank holds.
    pub fn own_rows(&self) -> Range<usize> {
        let rank = self.0.communicator.rank();
        self.0.starts[rank]..self.0.starts[rank + 1]
    }

    /// Those rows, as a matrix.
    pub fn own(&self) -> &SparseMatrix {
        &self.0.own
    }

    /// `A·X` for `x [cols, n]`, the same on every rank, to `[rows, n]` on every rank.
    ///
    /// # Errors
    /// As [`SparseMatrix::matmul`], and [`Error::Communication`](crate::Error::Communication).
    pub fn matmul(&self, x: &Var) -> Result<Var> {
        self.product("row-split matmul", DenseLayout::Columns, x)
    }

    /// `A` applied to every row of `x [b, cols]`, the same on every rank, to `[b, rows]` on every rank.
    ///
    /// # Errors
    /// As [`RowSplitMatrix::matmul`].
    pub fn apply(&self, x: &Var) -> Result<Var> {
        self.product("row-split apply", DenseLayout::Rows, x)
    }

    fn product(&self, op: &'static str, layout: DenseLayout, x: &Var) -> Result<Var> {
        let own = Dense::check(op, &self.0.own, x.tensor(), layout)
            .and_then(|dense| Ok((dense, self.own_part(op, &dense, &x.tensor().dense()?)?)));
        let ((dense, out), _) = self.0.communicator.agree(op, own, &[])?;
        self.gather(op, &dense, &out)?;
        let rule = |_: &Tensor| SplitRule { op, a: self.clone(), dense };
        Var::record(op, out, &[x], rule)
    }

    /// The whole result, with this rank's part in its place.
    fn own_part(&self, op: &'static str, dense: &Dense, x: &Tensor) -> Result<Tensor> {
        let shape = dense_shape(dense.layout, self.rows(), dense.width);
        let out = Tensor::result(op, shape, x.dtype(), x.device())?;
        self.each_part(op, dense, |samples, part, cap| {
            let dense = Dense { width: samples.len(), ..*dense };
            let x = if dense.layout == DenseLayout::Rows {
                x.rows(samples.start, samples.len())
            } else {
                x.clone()
            };
            match part {
                Part::Within => {
                    let to = self.within(&out, dense.layout, samples.start);
                    multiply(op, self.own(), None, false, &dense, &x, Target::Over(to), cap)?;
                }
                Part::Apart(part) => {
                    let target = Target::Over(part.clone());
                    multiply(op, self.own(), None, false, &dense, &x, target, cap)?;
                    self.move_part(&out, samples, part, true)?;
                }
            }
            Ok(())
        })?;
        Ok(out)
    }

    /// `Aᵀ·G` of this rank's rows.
    fn own_gradient(&self, op: &'static str, dense: &Dense, dy: &Tensor) -> Result<Tensor> {
        let shape = dense_shape(dense.layout, self.cols(), dense.width);
        let dx = Tensor::result(op, shape, dy.dtype(), dy.device())?;
        self.each_part(op, dense, |samples, part, cap| {
            let dense = Dense { width: samples.len(), ..*dense };
            let to = if dense.layout == DenseLayout::Rows {
                dx.rows(samples.start, samples.len())
            } else {
                dx.clone()
            };
            let from = match part {
                Part::Within => self.within(dy, dense.layout, samples.start),
                Part::Apart(part) => {
                    self.move_part(dy, samples, part, false)?;
                    part.clone()
                }
            };
            multiply(op, self.own(), None, true, &dense, &from, Target::Over(to), cap)?;
            Ok(())
        })?;
        Ok(dx)
    }

    /// Calls `f` for ranges of samples (all at once where a rank's part of a dense operand is contiguous).
    /// Elsewhere the part is copied, as many samples at a time as the cap allows, and one by one in place
    /// where it allows none; the product has what is left of the cap.
    fn each_part(
        &self,
        op: &'static str,
        dense: &Dense,
        mut f: impl FnMut(Range<usize>, Part<'_>, Option<u64>) -> Result<()>,
    ) -> Result<()> {
        let own = self.own();
        if dense.width == 0 {
            return Ok(());
        }
        if dense.layout == DenseLayout::Columns || dense.width <= 1 || own.rows() == self.rows() {
            return f(0..dense.width, Part::Within, None);
        }
        let device = own.device();
        let cap = device.workspace_cap().unwrap_or(u64::MAX);
        // Half of it, so that the product is not left without.
        let sample = (own.rows() * own.dtype().size()) as u64;
        let most = usize::try_from(cap / 2 / sample.max(1)).unwrap_or(usize::MAX).min(dense.width);
        if most < 2 {
            return (0..dense.width).try_for_each(|at| f(at..at + 1, Part::Within, None));
        }
        let part = {
            let _purpose = PurposeGuard::new(Purpose::Workspace);
            Tensor::empty(op, [most, own.rows()], own.dtype(), device)?
        };
        let left = device.workspace_cap().map(|cap| cap - part.bytes() as u64);
        for start in (0..dense.width).step_by(most) {
            let count = most.min(dense.width - start);
            f(start..start + count, Part::Apart(&part.rows(0, count)), left)?;
        }
        Ok(())
    }

    /// This rank's part of a whole dense operand or result, from sample `first` on, where it is contiguous.
    fn within(&self, whole: &Tensor, layout: DenseLayout, first: usize) -> Tensor {
        let rows = self.own_rows();
        match layout {
            DenseLayout::Columns => whole.rows(rows.start, rows.len()),
            DenseLayout::Rows if rows.len() == self.rows() => whole.clone(),
            DenseLayout::Rows => whole.flat().rows(first * self.rows() + rows.start, rows.len()),
        }
    }

    /// Copies this rank's part of some samples of `whole [b, rows]` to it, or from it.
    fn move_part(
        &self,
        whole: &Tensor,
        samples: Range<usize>,
        part: &Tensor,
        to_whole: bool,
    ) -> Result<()> {
        let rows = self.own_rows();
        let extents = [samples.len(), rows.len()];
        let there = Window {
            offset: samples.start * self.rows() + rows.start,
            strides: [self.rows(), 1].into_iter().collect(),
        };
        let here = Window { offset: 0, strides: [rows.len(), 1].into_iter().collect() };
        let backend = whole.device().backend();
        if to_whole {
            backend.copy_window(&extents, part, &here, whole, &there)
        } else {
            backend.copy_window(&extents, whole, &there, part, &here)
        }
    }

    /// Brings every rank's part of a result to all.
    fn gather(&self, op: &'static str, dense: &Dense, out: &Tensor) -> Result<()> {
        let flat = out.flat();
        let mut work = Vec::new();
        let (lines, width) = match dense.layout {
            DenseLayout::Columns => (1, dense.width),
            DenseLayout::Rows => (dense.width, 1),
        };
        for line in 0..lines {
            for (root, range) in self.0.starts.windows(2).enumerate() {
                let start = line * self.rows() + range[0] * width;
                let x = flat.rows(start, (range[1] - range[0]) * width);
                work.push(Collective::Broadcast { x, root });
            }
        }
        self.0.communicator.start(op, work, ())?.wait()
    }
}

/// Where a rank's part of some samples is.
enum Part<'a> {
    /// In the whole, contiguous.
    Within,
    /// In a tensor of its own.
    Apart(&'a Tensor),
}

struct SplitRule {
    op: &'static str,
    a: RowSplitMatrix,
    dense: Dense,
}

impl Rule for SplitRule {
    fn name(&self) -> &'static str {
        self.op
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let _guards = backward_guards();
        let (op, communicator) = (self.op, &self.a.0.communicator);
        let own = dy.dense().and_then(|dy| self.a.own_gradient(op, &self.dense, &dy));
        drop(dy);
        let (dx, _) = communicator.agree(op, own, &[])?;
        let work = Collective::AllReduce { x: dx.clone(), by: Default::default() };
        communicator.start(op, vec![work], ())?.wait()?;
        cx.give(0, dx)
    }
}
