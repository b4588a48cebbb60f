//! A naive sparse matrix in f64: a list of entries, in which places may repeat.

use super::{Kind, Numbers};
use capgrad::{Device, SparseForm};

/// The forms in which a device keeps a matrix.
pub fn forms(device: &Device) -> &'static [SparseForm] {
    match Kind::of(device) {
        Kind::Cpu => &[SparseForm::Csr],
        Kind::Cuda => &[SparseForm::Csr, SparseForm::Tiled, SparseForm::Streamed],
    }
}

/// Entries `(row, column, value)`; those at one place add up.
#[derive(Clone, Debug)]
pub struct Entries {
    pub rows: usize,
    pub cols: usize,
    pub i: Vec<usize>,
    pub j: Vec<usize>,
    pub values: Vec<f64>,
}

impl Entries {
    /// `nnz` entries of sixteenths at random places.
    pub fn random(rows: usize, cols: usize, nnz: usize, numbers: &mut Numbers) -> Entries {
        let nnz = if rows * cols == 0 { 0 } else { nnz };
        Entries {
            rows,
            cols,
            i: (0..nnz).map(|_| numbers.below(rows)).collect(),
            j: (0..nnz).map(|_| numbers.below(cols)).collect(),
            values: numbers.sixteenths(nnz),
        }
    }

    pub fn transposed(&self) -> Entries {
        Entries {
            rows: self.cols,
            cols: self.rows,
            i: self.j.clone(),
            j: self.i.clone(),
            values: self.values.clone(),
        }
    }

    fn each(&self) -> impl Iterator<Item = (usize, usize, f64)> + '_ {
        (0..self.values.len()).map(|e| (self.i[e], self.j[e], self.values[e]))
    }

    /// `A·X` for `x [cols, width]`, row-major.
    pub fn times(&self, x: &[f64], width: usize) -> Vec<f64> {
        let mut out = vec![0.0; self.rows * width];
        for (i, j, value) in self.each() {
            for v in 0..width {
                out[i * width + v] += value * x[j * width + v];
            }
        }
        out
    }

    /// The gradient of each value: `Σ_v dy[i,v]·x[j,v]`.
    pub fn value_gradients(&self, x: &[f64], dy: &[f64], width: usize) -> Vec<f64> {
        let dot = |(i, j, _): (usize, usize, f64)| {
            (0..width).map(|v| dy[i * width + v] * x[j * width + v]).sum()
        };
        self.each().map(dot).collect()
    }

    pub fn dense(&self) -> Vec<f64> {
        let mut out = vec![0.0; self.rows * self.cols];
        for (i, j, value) in self.each() {
            out[i * self.cols + j] += value;
        }
        out
    }
}

/// `x [rows, cols]` as `[cols, rows]`.
pub fn transposed(x: &[f64], rows: usize, cols: usize) -> Vec<f64> {
    (0..rows * cols).map(|e| x[e % rows * cols + e / rows]).collect()
}
