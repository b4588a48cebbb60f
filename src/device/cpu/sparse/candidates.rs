//! The algorithms that there are for a product, with their exact workspace and predicted time.
//!
//! Each is offered whole, so that a plan can say what it would have taken, and, where the whole is
//! over the cap, in the largest split that fits. One without workspace is always among them.

use super::code;
use super::cost::Cost;
use crate::device::spec::{DenseLayout, SparseProduct, SparseSpec};
use crate::dtype::DType;
use crate::plan::Candidate;
use std::borrow::Cow;

/// Vectors at a time in a workspace: two cache lines of f32; more gains nothing.
const BLOCK: usize = 32;

/// Every candidate for `spec`. `threads` has a part in the predicted times only. Empty for a dtype
/// that does not compute.
pub(crate) fn candidates(
    spec: &SparseSpec,
    dtype: DType,
    threads: usize,
    cap: u64,
) -> Vec<Candidate> {
    if !dtype.is_float() {
        return Vec::new();
    }
    let offer = Offer {
        spec: *spec,
        size: dtype.size(),
        sum_size: dtype.size().max(4),
        cap,
        cost: Cost {
            nnz: spec.nnz as f64,
            width: spec.width as f64,
            size: dtype.size() as f64,
            threads: threads.max(1) as f64,
        },
        list: Vec::new(),
    };
    match spec.product {
        SparseProduct::Forward => {
            offer.by_rows(spec.rows, spec.cols, code::ROWS, code::ROWS_INTERLEAVED)
        }
        SparseProduct::Transposed => offer.transposed(),
        SparseProduct::Sampled => offer.sampled(),
    }
}

struct Offer {
    spec: SparseSpec,
    size: usize,
    sum_size: usize,
    cap: u64,
    cost: Cost,
    list: Vec<Candidate>,
}

impl Offer {
    fn push(&mut self, code: u32, bytes: u64, params: [usize; 4], split: String, seconds: f64) {
        let name = match code {
            code::ROWS => "row-parallel",
            code::ROWS_INTERLEAVED => "row-parallel, vectors interleaved",
            code::STORED => "stored transpose",
            code::STORED_INTERLEAVED => "stored transpose, vectors interleaved",
            code::COLUMN_RANGES => "column ranges",
            code::COLUMN_STRIPS => "column strips on the stack",
            code::COLUMNS_BUFFERED => "column ranges, buffered sums",
            code::PRIVATE => "private accumulators",
            code::SAMPLED => "sampled",
            _ => "sampled, vectors interleaved",
        };
        self.list.push(Candidate {
            name: Cow::Borrowed(name),
            split,
            workspace: bytes,
            seconds,
            deterministic: true,
            code,
            params,
        });
    }

    /// Whether vectors lie one after the other, so that bringing them together can pay.
    fn apart(&self) -> bool {
        self.spec.layout == DenseLayout::Rows && self.spec.width > 1
    }

    fn vectors(&self, block: usize) -> String {
        if block >= self.spec.width { String::new() } else { format!("{block} vectors at a time") }
    }

    /// The block sizes to offer for a buffer of `bytes` a vector: the best, and the largest that
    /// fits the cap where the best does not.
    fn blocks(&self, bytes: u64, least: usize) -> impl Iterator<Item = usize> + use<> {
        let best = self.spec.width.clamp(1, BLOCK);
        let cap = self.cap;
        let fits = move |block: &usize| bytes.saturating_mul(*block as u64) <= cap;
        let smaller = if fits(&best) {
            None
        } else {
            [16, 8, 4, 2, 1].into_iter().filter(|&b| b < best && b >= least).find(fits)
        };
        std::iter::once(best).chain(smaller)
    }

    fn by_rows(mut self, rows: usize, cols: usize, plain: u32, together: u32) -> Vec<Candidate> {
        let seconds = self.cost.rows(rows, cols, self.apart());
        self.push(plain, 0, [0; 4], String::new(), seconds);
        if self.apart() {
            let bytes = product(&[cols, self.size]);
            for block in self.blocks(bytes, 2) {
                let workspace = bytes.saturating_mul(block as u64);
                let seconds = self.cost.rows_interleaved(rows, cols, block);
                let split = self.vectors(block);
                self.push(together, workspace, [block, 0, 0, 0], split, seconds);
            }
        }
        self.list
    }

    fn transposed(mut self) -> Vec<Candidate> {
        let (rows, cols) = (self.spec.rows, self.spec.cols);
        let half = self.size < self.sum_size;
        if half {
            let seconds = self.cost.column_strips(rows, cols);
            self.push(code::COLUMN_STRIPS, 0, [0; 4], String::new(), seconds);
        } else {
            let seconds = self.cost.column_ranges(rows, cols, self.apart());
            self.push(code::COLUMN_RANGES, 0, [0; 4], String::new(), seconds);
        }
        let bytes = product(&[cols, self.sum_size]);
        if half || self.apart() {
            for block in self.blocks(bytes, if half { 1 } else { 2 }) {
                let workspace = bytes.saturating_mul(block as u64);
                let seconds = self.cost.columns_buffered(rows, cols, block);
                let split = self.vectors(block);
                self.push(code::COLUMNS_BUFFERED, workspace, [block, 0, 0, 0], split, seconds);
            }
        }
        self.private(bytes);
        if self.spec.transpose.is_some() {
            self.by_rows(cols, rows, code::STORED, code::STORED_INTERLEAVED)
        } else {
            self.list
        }
    }

    fn private(&mut self, bytes: u64) {
        if self.spec.nnz == 0 || self.spec.cols == 0 || self.spec.width == 0 {
            return;
        }
        let best = self.spec.width.min(BLOCK);
        let workspace = |pieces: usize, block: usize| {
            bytes.saturating_mul(pieces as u64).saturating_mul(block as u64)
        };
        let mut offers = vec![(32, best), (8, best)];
        if workspace(8, best) > self.cap {
            offers.extend(
                [(4, best), (2, best), (8, 8), (4, 8), (2, 8), (4, 1), (2, 1)]
                    .into_iter()
                    .filter(|&(_, block)| block <= best)
                    .find(|&(pieces, block)| workspace(pieces, block) <= self.cap),
            );
        }
        for (pieces, block) in offers {
            let mut split = format!("{pieces} pieces");
            if block < self.spec.width {
                split = format!("{split}, {}", self.vectors(block));
            }
            let seconds = self.cost.private(self.spec.rows, self.spec.cols, pieces, block);
            let params = [pieces, block, 0, 0];
            self.push(code::PRIVATE, workspace(pieces, block), params, split, seconds);
        }
    }

    fn sampled(mut self) -> Vec<Candidate> {
        let (rows, cols) = (self.spec.rows, self.spec.cols);
        let seconds = self.cost.sampled(cols, self.apart());
        self.push(code::SAMPLED, 0, [0; 4], String::new(), seconds);
        if self.apart() {
            let bytes = product(&[rows.saturating_add(cols), self.size]);
            // Halves would be rounded between the blocks, so they are taken whole or not at all.
            let whole = self.spec.width;
            let blocks: Vec<usize> = if self.size < self.sum_size {
                vec![whole]
            } else {
                self.blocks(bytes, 2).collect()
            };
            for block in blocks {
                let workspace = bytes.saturating_mul(block as u64);
                let seconds = self.cost.sampled_interleaved(rows, cols, block);
                let split = self.vectors(block);
                self.push(code::SAMPLED_INTERLEAVED, workspace, [block, 0, 0, 0], split, seconds);
            }
        }
        self.list
    }
}

/// A product of sizes that saturates: a candidate over 2⁶⁴ bytes is over any cap.
fn product(sizes: &[usize]) -> u64 {
    sizes.iter().fold(1, |bytes: u64, &size| bytes.saturating_mul(size as u64))
}
