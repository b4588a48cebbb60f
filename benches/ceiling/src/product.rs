//! A plain matrix product by the fastest library that was found for it.

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, Par};

/// Operands of a plain product, with random numbers.
pub struct Product {
    a: Mat<f32>,
    b: Mat<f32>,
    c: Mat<f32>,
}

impl Product {
    pub fn new([rows, columns, depth]: [usize; 3]) -> Product {
        let random = |rows, columns, seed: usize| {
            Mat::from_fn(rows, columns, |i: usize, j: usize| {
                let hash = (i * 7919 + j * 104_729 + seed).wrapping_mul(2_654_435_761) >> 7;
                (hash % 2048) as f32 / 1024.0 - 1.0
            })
        };
        Product {
            a: random(rows, depth, 1),
            b: random(depth, columns, 2),
            c: Mat::zeros(rows, columns),
        }
    }

    pub fn run(&mut self) {
        let (c, a, b) = (self.c.as_mut(), self.a.as_ref(), self.b.as_ref());
        matmul(c, Accum::Replace, a, b, 1.0, Par::rayon(0));
    }

    /// The same product in this many blocks of columns, one after another.
    pub fn run_in_chunks(&mut self, chunks: usize) {
        let columns = self.b.ncols();
        for chunk in 0..chunks {
            let (from, to) = (chunk * columns / chunks, (chunk + 1) * columns / chunks);
            let c = self.c.as_mut().get_mut(.., from..to);
            let b = self.b.as_ref().get(.., from..to);
            matmul(c, Accum::Replace, self.a.as_ref(), b, 1.0, Par::rayon(0));
        }
    }
}
