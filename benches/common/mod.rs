//! What the benches share: the named shapes, random data, and the plain matrix product and plain
//! reads that the crate's own work is held against.
#![allow(dead_code)] // Each bench uses its part.

use capgrad::{Conv1dOptions, DType, Device, Padding, SparseMatrix, Tensor};
use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, Par};

/// One convolution. The padding keeps the length.
pub struct ConvShape {
    pub name: &'static str,
    pub batch: usize,
    pub channels: [usize; 2],
    pub length: usize,
    pub kernel: usize,
    pub dilation: usize,
    pub groups: usize,
}

impl ConvShape {
    const fn new(
        name: &'static str,
        batch: usize,
        channels: [usize; 2],
        length: usize,
        kernel: usize,
    ) -> ConvShape {
        ConvShape { name, batch, channels, length, kernel, dilation: 1, groups: 1 }
    }

    /// Multiplications and additions of one pass.
    pub fn flops(&self) -> u64 {
        let [inputs, outputs] = self.channels;
        let products = self.batch * outputs * self.length * inputs / self.groups * self.kernel;
        2 * products as u64
    }

    pub fn options(&self) -> Conv1dOptions {
        Conv1dOptions {
            dilation: self.dilation,
            groups: self.groups,
            padding: Padding::Same,
            ..Default::default()
        }
    }

    /// Random input, weight and output gradient.
    pub fn data(&self, device: &Device) -> capgrad::Result<[Tensor; 3]> {
        let [inputs, outputs] = self.channels;
        Ok([
            Tensor::randn([self.batch, inputs, self.length], DType::F32, device)?,
            Tensor::randn([outputs, inputs / self.groups, self.kernel], DType::F32, device)?,
            Tensor::randn([self.batch, outputs, self.length], DType::F32, device)?,
        ])
    }

    /// Rows, columns and depth of the plain products that do the same work as the three passes:
    /// forward, weight gradient, input gradient.
    pub fn products(&self) -> [[usize; 3]; 3] {
        let [inputs, outputs] = self.channels;
        let (columns, taps) = (self.batch * self.length, self.kernel);
        [
            [outputs, columns, inputs * taps],
            [outputs, inputs * taps, columns],
            [inputs, columns, outputs * taps],
        ]
    }
}

/// The shapes of the layers that the crate was written for, with batches for two cores.
pub const SHAPES: [ConvShape; 6] = [
    ConvShape::new("pointwise 200x576-1024x11 k1", 200, [576, 1024], 11, 1),
    ConvShape::new("25x576-1024x64 k3", 25, [576, 1024], 64, 3),
    ConvShape::new("25x576-1024x64 k5", 25, [576, 1024], 64, 5),
    ConvShape::new("25x576-1024x64 k31", 25, [576, 1024], 64, 31),
    ConvShape::new("1x512-512x4096 k3", 1, [512, 512], 4096, 3),
    ConvShape { dilation: 2, ..ConvShape::new("25x576-1024x64 k9 d2", 25, [576, 1024], 64, 9) },
];

/// One channel a group: bound by memory.
pub const DEPTHWISE: ConvShape = ConvShape {
    groups: 576,
    ..ConvShape::new("depthwise 25x576x64 k7", 25, [576, 576], 64, 7)
};

/// Operands of a plain product, with random numbers.
pub struct Product {
    a: Mat<f32>,
    b: Mat<f32>,
    c: Mat<f32>,
}

impl Product {
    pub fn new([rows, columns, depth]: [usize; 3]) -> Product {
        let random = |rows, columns, seed: usize| {
            Mat::from_fn(rows, columns, |i, j| {
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

/// A square matrix with `per_row` entries in each row at pseudo-random columns.
pub fn random_matrix(size: usize, per_row: usize) -> capgrad::Result<SparseMatrix> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 33
    };
    let mut col_indices = Vec::with_capacity(size * per_row);
    let mut values = Vec::with_capacity(size * per_row);
    for _ in 0..size {
        for part in 0..per_row {
            // One entry in each of as many equal parts, so that columns ascend.
            let (from, to) = (part * size / per_row, (part + 1) * size / per_row);
            col_indices.push((from + next() as usize % (to - from)) as i32);
            values.push(next() as f32 / (1u64 << 31) as f32 - 0.5);
        }
    }
    let row_offsets: Vec<i64> = (0..=size).map(|row| (row * per_row) as i64).collect();
    SparseMatrix::from_csr_owned(size, size, row_offsets, col_indices, values)
}
