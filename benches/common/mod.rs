//! What the benches share: the named shapes, random data, and lines of JSON.
#![allow(dead_code)] // Each bench uses its part.

pub mod matrices;

use capgrad::{Conv1dOptions, DType, Device, Padding, SparseMatrix, Tensor};
use std::fs::File;
use std::io::Write;

/// Deterministic numbers (SplitMix64, Steele, Lea and Flood 2014).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.next() % choices.len() as u64) as usize]
    }

    /// Between `low` and `high`, evenly in the logarithm.
    pub fn scale(&mut self, low: f64, high: f64) -> usize {
        let unit = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        (low * (high / low).powf(unit)).round() as usize
    }
}

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
pub const DEPTHWISE: ConvShape =
    ConvShape { groups: 576, ..ConvShape::new("depthwise 25x576x64 k7", 25, [576, 576], 64, 7) };

/// A square matrix with `per_row` entries in each row, at pseudo-random columns within `reach` of the
/// diagonal (anywhere, if that is at least its size).
pub fn random_matrix(size: usize, per_row: usize, reach: usize) -> capgrad::Result<SparseMatrix> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 33
    };
    let mut col_indices = Vec::with_capacity(size * per_row);
    let mut values = Vec::with_capacity(size * per_row);
    for row in 0..size {
        let first = row.saturating_sub(reach).min(size.saturating_sub(2 * reach));
        let columns = (2 * reach).min(size);
        for part in 0..per_row {
            // One entry in each of as many equal parts, so that columns ascend.
            let (from, to) = (part * columns / per_row, (part + 1) * columns / per_row);
            col_indices.push((first + from + next() as usize % (to - from)) as i32);
            values.push(next() as f32 / (1u64 << 31) as f32 - 0.5);
        }
    }
    let row_offsets: Vec<i64> = (0..=size).map(|row| (row * per_row) as i64).collect();
    SparseMatrix::from_csr_owned(size, size, row_offsets, col_indices, values)
}

/// Where lines of JSON go: the standard output, and a file if one is named.
pub struct Lines(Option<File>);

impl Lines {
    pub fn new(path: Option<&str>) -> std::io::Result<Lines> {
        path.map(File::create).transpose().map(Lines)
    }

    pub fn line(&mut self, value: &serde_json::Value) -> std::io::Result<()> {
        println!("{value}");
        match &mut self.0 {
            Some(file) => writeln!(file, "{value}"),
            None => Ok(()),
        }
    }
}

/// The middle one. Sorts them.
pub fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    let middle = times.len() / 2;
    if times.len() % 2 == 1 { times[middle] } else { (times[middle - 1] + times[middle]) / 2.0 }
}

/// What each plan of a device takes, in words.
pub fn taken(device: &Device) -> Vec<String> {
    let describe = |plan: &capgrad::Plan| {
        let candidate = plan.taken();
        let (name, split) = (&candidate.name, &candidate.split);
        let split = if split.is_empty() { "".into() } else { format!(", {split}") };
        format!("{}: {name}{split}; {} bytes", plan.operation(), candidate.workspace)
    };
    let mut taken: Vec<String> = device.plans().iter().map(|plan| describe(plan)).collect();
    taken.sort();
    taken
}
