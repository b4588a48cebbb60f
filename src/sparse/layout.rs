//! In which form a matrix is kept on a device: weighed when it moves there, by bytes and by the
//! predicted times of its products.

use super::stored::Stored;
use super::tiled::strip_on;
use crate::device::spec::{DenseLayout, Form, SparseProduct, SparseSpec, StoredSpec};
use crate::device::{Device, Query, Terms};
use crate::memory::format_bytes;
use std::fmt;

/// Whether a second, transposed copy of the matrix is kept for the transposed product.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StoredTranspose {
    /// Where the device has a memory limit that leaves room for it, and it is predicted to be
    /// faster. Without a limit there is one copy.
    #[default]
    Auto,
    /// One copy, always.
    Never,
    /// Two copies.
    Always,
}

/// How the entries of a matrix are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum SparseForm {
    /// As is predicted to be fastest for the products of the width given, within the memory limit.
    #[default]
    Auto,
    /// Compressed rows: 4 bytes an index beside each value. The only form on a CPU, which keeps this
    /// one whatever is asked for.
    Csr,
    /// Strips of columns that fit a GPU's shared memory, with 2 bytes an index.
    Tiled,
    /// Compressed rows in pinned host memory, which products copy to the device in chunks no larger
    /// than half the workspace cap: for a matrix that is larger than the device's limit.
    Streamed,
}

impl SparseForm {
    pub(super) fn of(form: Form) -> SparseForm {
        match form {
            Form::Csr => SparseForm::Csr,
            Form::Tiled { .. } => SparseForm::Tiled,
            Form::Streamed => SparseForm::Streamed,
        }
    }
}

/// How a matrix is laid out when it moves to a device.
///
/// ```
/// use capgrad::{Device, SparseMatrix, SparseOptions, StoredTranspose};
/// # fn main() -> capgrad::Result<()> {
/// let a = SparseMatrix::from_coo(2, 2, &[0, 1], &[1, 0], &[2.0f32, 3.0])?;
/// let options = SparseOptions { stored_transpose: StoredTranspose::Always, ..Default::default() };
/// assert_eq!(a.to_with(&Device::cpu(), options)?.bytes(), 2 * a.bytes());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SparseOptions {
    /// Whether a transposed copy is kept.
    pub stored_transpose: StoredTranspose,
    /// The number of dense vectors that products are expected to have; 1 by default, as
    /// [`SparseMatrix::to`](crate::SparseMatrix::to) takes it. Other numbers work, in a form that may not be
    /// the fastest for them.
    pub width: usize,
    /// How the entries are kept.
    pub form: SparseForm,
}

impl Default for SparseOptions {
    fn default() -> Self {
        SparseOptions { stored_transpose: StoredTranspose::Auto, width: 1, form: SparseForm::Auto }
    }
}

/// How a matrix's form on a device was chosen. Prints as a table.
#[derive(Clone, PartialEq, Debug)]
pub struct SparseLayout {
    pub(super) form: Form,
    pub(super) transpose: Option<Form>,
    matrix: String,
    device: String,
    width: usize,
    /// Each form that was weighed, its bytes (those of the tiled form as estimated), and the
    /// predicted seconds of the two products.
    weighed: Vec<(Form, u64, f64)>,
    reason: &'static str,
}

impl SparseLayout {
    pub(super) fn choose(
        stored: &Stored,
        device: &Device,
        options: SparseOptions,
        symmetric: bool,
    ) -> SparseLayout {
        let forms = Forms { stored, device, width: options.width };
        let mean = |filled: usize| stored.nnz / filled.max(1);
        let mean = mean(stored.spec.filled);
        let strip = strip_on(device, stored.dtype(), stored.cols, mean);
        let streams = device.backend().streams();
        let mut kinds = vec![Form::Csr];
        kinds.extend(strip.map(|strip| Form::Tiled { strip }));
        kinds.extend(streams.then_some(Form::Streamed));
        let weighed: Vec<(Form, u64, f64)> = kinds
            .iter()
            .map(|&form| (form, forms.bytes(form), forms.seconds(form, None)))
            .collect();
        let asked = |form: &Form| SparseForm::of(*form) == options.form;
        // What a step has beside the matrix: a vector and its gradient on each side.
        let size = stored.dtype().size() as u64;
        let vector = 2 * (stored.rows as u64 + stored.cols as u64) * size;
        let sides = vector.saturating_mul(options.width as u64);
        let left = device.meter().left();
        let fits = |&(form, ..): &(Form, u64, f64)| {
            let taken = forms.taken(form);
            form != Form::Streamed
                && (taken == 0 || left.is_none_or(|left| taken.saturating_add(sides) <= left))
        };
        let (form, reason) = if options.form == SparseForm::Auto {
            let best = weighed.iter().filter(|&form| fits(form)).min_by(|a, b| a.2.total_cmp(&b.2));
            match best {
                Some(&(form, ..)) => (form, "the fastest that fits"),
                None if streams => (Form::Streamed, "the limit leaves room for no other"),
                None => (Form::Csr, "the only one of the device"),
            }
        } else {
            match kinds.iter().copied().find(asked) {
                Some(form) => (form, "asked for"),
                None => (Form::Csr, "the only one of the device"),
            }
        };
        let transpose = forms.transpose(form, options.stored_transpose, symmetric);
        SparseLayout {
            form,
            transpose,
            matrix: format!(
                "{} {}×{}, nnz {}",
                stored.dtype(),
                stored.rows,
                stored.cols,
                stored.nnz
            ),
            device: device.name().to_owned(),
            width: options.width,
            weighed,
            reason,
        }
    }
}

struct Forms<'a> {
    stored: &'a Stored,
    device: &'a Device,
    width: usize,
}

impl Forms<'_> {
    fn bytes(&self, form: Form) -> u64 {
        let stored = self.stored;
        form.bytes(stored.rows, stored.cols, stored.nnz, stored.dtype())
    }

    /// Bytes of the device that a copy takes: none, where it is there already or stays on the host.
    fn taken(&self, form: Form) -> u64 {
        let here = self.stored.device() == self.device && self.stored.spec.form == form;
        if here || form == Form::Streamed { 0 } else { self.bytes(form) }
    }

    /// Seconds of the fastest algorithms for both products.
    fn seconds(&self, form: Form, transpose: Option<StoredSpec>) -> f64 {
        let both = [SparseProduct::Forward, SparseProduct::Transposed];
        both.map(|product| self.fastest(product, form, transpose)).iter().sum()
    }

    fn fastest(&self, product: SparseProduct, form: Form, transpose: Option<StoredSpec>) -> f64 {
        let spec = self.stored.product(product, DenseLayout::Rows, self.width, transpose);
        let stored = StoredSpec { form, ..spec.stored };
        let query = Query::Sparse(SparseSpec { stored, ..spec }, self.stored.dtype());
        let cap = self.device.workspace_cap().unwrap_or(u64::MAX);
        let terms = Terms { cap, allow_tf32: self.device.allow_tf32() };
        let candidates = self.device.candidates(&query, terms);
        let deterministic = self.device.deterministic();
        let fits = candidates.iter().filter(|candidate| {
            candidate.workspace <= cap && (candidate.deterministic || !deterministic)
        });
        fits.map(|candidate| candidate.seconds).fold(f64::INFINITY, f64::min)
    }

    /// The form of the transposed copy, where there is to be one.
    fn transpose(&self, form: Form, asked: StoredTranspose, symmetric: bool) -> Option<Form> {
        let stored = self.stored;
        let copy = match form {
            Form::Tiled { .. } => {
                let mean = stored.nnz / stored.cols.min(stored.nnz).max(1);
                let strip = strip_on(self.device, stored.dtype(), stored.rows, mean);
                strip.map_or(Form::Csr, |strip| Form::Tiled { strip })
            }
            other => other,
        };
        let wanted = match asked {
            StoredTranspose::Never => false,
            StoredTranspose::Always => true,
            StoredTranspose::Auto => {
                let bytes = copy.bytes(stored.cols, stored.rows, stored.nnz, stored.dtype());
                // Beside the matrix itself, and as much again stays free for the step.
                let left = self.device.meter().left();
                let room =
                    left.is_some_and(|left| left.saturating_sub(self.taken(form)) / 2 >= bytes);
                // Its rows are not known before it is made; they are taken to be alike.
                let filled = stored.cols.min(stored.nnz);
                let longest = stored.nnz.div_ceil(stored.cols.max(1));
                let spec = StoredSpec { form: copy, longest, filled, ..stored.spec };
                let product = SparseProduct::Transposed;
                room && self.fastest(product, form, Some(spec)) < self.fastest(product, form, None)
            }
        };
        (wanted && !symmetric).then_some(copy)
    }
}

impl fmt::Display for SparseLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} on {}, for {} vectors", self.matrix, self.device, self.width)?;
        writeln!(f, "  {:<28} {:>12} {:>24}", "form", "bytes", "predicted ms, both ways")?;
        for &(form, bytes, seconds) in &self.weighed {
            let name = match form {
                Form::Csr => "compressed rows".to_owned(),
                Form::Tiled { strip } => format!("tiled, strips of {strip}"),
                Form::Streamed => "streamed from the host".to_owned(),
            };
            let verdict =
                if form == self.form { format!("taken: {}", self.reason) } else { String::new() };
            let bytes = format_bytes(bytes);
            writeln!(f, "  {name:<28} {bytes:>12} {:>24.3}  {verdict}", seconds * 1e3)?;
        }
        match self.transpose {
            Some(_) => writeln!(f, "  with a transposed copy"),
            None => writeln!(f, "  one copy"),
        }
    }
}
