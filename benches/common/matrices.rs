//! Sparse matrices of many kinds, built in parallel as compressed rows.

use super::Numbers;
use capgrad::{DType, Float, SparseMatrix};
use clap::ValueEnum;
use rayon::prelude::*;
use serde::Serialize;

/// What the entries of a matrix look like.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// As many entries in each row, anywhere.
    Uniform,
    /// The 5-point stencil on a square grid.
    Laplacian,
    /// A graph whose rows and columns both have heavy-tailed degrees.
    Powerlaw,
    /// 64 diagonals.
    Banded,
    /// Few rows, many columns.
    Wide,
    /// Many rows, few columns.
    Tall,
    /// One full row, and next to nothing elsewhere.
    Onedense,
    /// Entries in one row of a hundred.
    Empty99,
}

/// Rows (and columns) of [`Kind::Uniform`], and entries in each of its rows.
pub fn uniform(scale: f64) -> (usize, usize) {
    let side = scale.sqrt();
    ((268_800.0 / side).ceil() as usize, (1_100.0 / side).ceil() as usize)
}

/// Where the entries of a matrix are.
pub struct Pattern {
    pub rows: usize,
    pub cols: usize,
    offsets: Vec<i64>,
    columns: Vec<i32>,
}

impl Pattern {
    /// `scale` divides the number of entries.
    pub fn new(kind: Kind, scale: f64) -> Pattern {
        let scaled = |size: f64| (size / scale).round().max(1.0) as usize;
        match kind {
            Kind::Uniform => {
                let (size, per_row) = uniform(scale);
                Pattern::uniform(size, per_row)
            }
            Kind::Laplacian => Pattern::laplacian((2_000.0 / scale.sqrt()).ceil() as usize),
            Kind::Powerlaw => Pattern::powerlaw(scaled(4e6), scaled(50e6)),
            Kind::Banded => Pattern::banded(scaled(1e6), 64),
            Kind::Wide => Pattern::random(1_000, scaled(10e6), scaled(20e3)),
            Kind::Tall => Pattern::random(scaled(10e6), 1_000, 2),
            Kind::Onedense => {
                let size = scaled(1e6);
                Pattern::by_row(size, size, |row, columns| match row {
                    _ if row == size / 2 => columns.extend(0..size as i32),
                    _ if row % 1_000 == 0 => Numbers::new(row).ascending(5, size, columns),
                    _ => {}
                })
            }
            Kind::Empty99 => {
                let size = scaled(4e6);
                Pattern::by_row(size, size, |row, columns| {
                    if row % 100 == 37 {
                        Numbers::new(row).ascending(500, size, columns);
                    }
                })
            }
        }
    }

    /// Square, with `per_row` entries in each row.
    pub fn uniform(size: usize, per_row: usize) -> Pattern {
        Pattern::random(size, size, per_row)
    }

    fn random(rows: usize, cols: usize, per_row: usize) -> Pattern {
        Pattern::by_row(rows, cols, |row, columns| {
            Numbers::new(row).ascending(per_row, cols, columns);
        })
    }

    fn laplacian(side: usize) -> Pattern {
        Pattern::by_row(side * side, side * side, |row, columns| {
            let (i, j) = (row / side, row % side);
            let neighbours = [
                (i > 0).then(|| row - side),
                (j > 0).then(|| row - 1),
                Some(row),
                (j + 1 < side).then_some(row + 1),
                (i + 1 < side).then_some(row + side),
            ];
            columns.extend(neighbours.into_iter().flatten().map(|column| column as i32));
        })
    }

    fn banded(size: usize, diagonals: usize) -> Pattern {
        Pattern::by_row(size, size, |row, columns| {
            let first = row.saturating_sub(diagonals / 2);
            columns.extend(first as i32..(row + diagonals - diagonals / 2).min(size) as i32);
        })
    }

    /// Degrees of rows fall off as `d^-2.2`; the column of rank r is drawn in proportion to
    /// `r^-0.6`. Entries that meet are one, so there are somewhat fewer than asked for.
    fn powerlaw(size: usize, entries: usize) -> Pattern {
        let most = (size / 8).max(1);
        let degree = |row: usize, least: f64| {
            let drawn = least * Numbers::new(row).unit().powf(-1.0 / 1.2);
            (drawn as usize).min(most)
        };
        // The mean of what is cut off and rounded is found by trying.
        let mut least = entries as f64 / size as f64 / 6.0;
        for _ in 0..3 {
            let total: usize = (0..size).into_par_iter().map(|row| degree(row, least)).sum();
            least *= entries as f64 / total.max(1) as f64;
        }
        Pattern::by_row(size, size, |row, columns| {
            let mut numbers = Numbers::new(row ^ 1 << 40);
            for _ in 0..degree(row, least) {
                let rank = (size as f64 * numbers.unit().powf(2.5)) as u64;
                // A prime that no size is a multiple of: ranks go to columns one to one.
                columns.push((rank * 2_654_435_761 % size as u64) as i32);
            }
            columns.sort_unstable();
            columns.dedup();
        })
    }

    /// `fill` adds the ascending columns of a row to a list, which is empty.
    fn by_row(rows: usize, cols: usize, fill: impl Fn(usize, &mut Vec<i32>) + Sync) -> Pattern {
        let block = (rows / 256).clamp(1, 4096);
        let blocks: Vec<(Vec<i64>, Vec<i32>)> = (0..rows.div_ceil(block))
            .into_par_iter()
            .map(|index| {
                let (mut ends, mut all, mut columns) = (Vec::new(), Vec::new(), Vec::new());
                for row in index * block..((index + 1) * block).min(rows) {
                    columns.clear();
                    fill(row, &mut columns);
                    all.extend_from_slice(&columns);
                    ends.push(all.len() as i64);
                }
                (ends, all)
            })
            .collect();
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        for (ends, _) in &blocks {
            let before = offsets[offsets.len() - 1];
            offsets.extend(ends.iter().map(|end| before + end));
        }
        let mut columns = vec![0; offsets[rows] as usize];
        let mut rest = &mut columns[..];
        let mut parts = Vec::with_capacity(blocks.len());
        for (_, all) in &blocks {
            let (part, after) = rest.split_at_mut(all.len());
            parts.push((part, all));
            rest = after;
        }
        parts.into_par_iter().for_each(|(part, all)| part.copy_from_slice(all));
        Pattern { rows, cols, offsets, columns }
    }

    /// A matrix on the CPU with random values on [-0.5, 0.5).
    pub fn matrix(&self, dtype: DType) -> capgrad::Result<SparseMatrix> {
        match dtype {
            DType::F64 => self.of_type::<f64>(),
            DType::F16 => self.of_type::<capgrad::f16>(),
            DType::BF16 => self.of_type::<capgrad::bf16>(),
            _ => self.of_type::<f32>(),
        }
    }

    fn of_type<T: Float>(&self) -> capgrad::Result<SparseMatrix> {
        let value = |entry| T::from_f64(Numbers::new(entry).unit() - 0.5);
        let values: Vec<T> = (0..self.columns.len()).into_par_iter().map(value).collect();
        let (offsets, columns) = (self.offsets.clone(), self.columns.clone());
        SparseMatrix::from_csr_owned(self.rows, self.cols, offsets, columns, values)
    }
}

impl Numbers {
    /// Those that a row or an entry has for itself.
    fn new(seed: usize) -> Numbers {
        Numbers((seed as u64).wrapping_mul(0xd134_2543_de82_ef95))
    }

    /// On (0, 1).
    fn unit(&mut self) -> f64 {
        ((self.next() >> 12) as f64 + 0.5) / (1u64 << 52) as f64
    }

    /// Adds `count` distinct numbers below `below` (all of them, if that is fewer), ascending.
    fn ascending(&mut self, count: usize, below: usize, out: &mut Vec<i32>) {
        let count = count.min(below);
        let first = out.len();
        // Numbers that may meet become distinct ones once each has its rank added.
        let range = (below - count + 1) as u64;
        out.extend((0..count).map(|_| (((self.next() >> 32) * range) >> 32) as i32));
        out[first..].sort_unstable();
        out[first..].iter_mut().zip(0..).for_each(|(column, rank)| *column += rank);
    }
}
