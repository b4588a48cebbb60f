//! The two workloads, as the examples share them: a pointwise convolution, and an autoencoder whose
//! fields a constant sparse operator measures.
#![allow(dead_code)] // Each example uses some of it.

use capgrad::optim::AdamOptions;
use capgrad::{
    Adam, Conv1d, ConvTranspose1d, DType, Device, Padding, Parameter, SparseMatrix, SparseOptions,
    StoredTranspose, Tape, Tensor, Var,
};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use std::str::FromStr;

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Workload {
    /// A Conv1d, 576 to 1024 channels, of one tap and length 11.
    Conv,
    /// An autoencoder through a constant sparse operator.
    Sparse,
}

/// A model, its optimiser and its data on one device.
pub struct Training {
    device: Device,
    model: Model,
    adam: Adam,
    x: Tensor,
}

enum Model {
    Conv(Conv1d),
    Sparse(Box<Autoencoder>, SparseMatrix),
}

impl Training {
    /// The convolution, of so many samples.
    pub fn conv(device: &Device, batch: usize) -> capgrad::Result<Training> {
        let conv = Conv1d::builder(576, 1024, 1).build(device)?;
        let x = Tensor::rand([batch, 576, 11], DType::F32, device)?;
        let adam = Adam::new(conv.parameters(), AdamOptions::default())?;
        Ok(Training { device: device.clone(), model: Model::Conv(conv), adam, x })
    }

    /// The autoencoder, of so many fields of positions that can be halved twice. The operator moves to
    /// the device, in one copy.
    pub fn sparse(
        device: &Device,
        operator: &SparseMatrix,
        grid: Grid,
        batch: usize,
    ) -> capgrad::Result<Training> {
        // In the form for one field: that for as many as fill the memory would leave the matrix on the
        // host.
        let options =
            SparseOptions { stored_transpose: StoredTranspose::Never, ..Default::default() };
        let operator = operator.to_with(device, options)?;
        let model = Autoencoder::new(grid.channels, device)?;
        let adam = Adam::new(model.parameters(), AdamOptions::default())?;
        let x = Tensor::rand([batch, grid.channels, grid.positions], DType::F32, device)?;
        Ok(Training {
            device: device.clone(),
            model: Model::Sparse(model.into(), operator),
            adam,
            x,
        })
    }

    /// One step, its parts as scopes; the loss.
    pub fn step(&mut self) -> capgrad::Result<f64> {
        let tape = Tape::new();
        let scope = self.device.scope("forward");
        let x = tape.constant(self.x.clone());
        let y = match &self.model {
            Model::Conv(conv) => conv.forward(&x)?,
            Model::Sparse(model, operator) => operator.apply(&model.forward(&x)?.flatten(1)?)?,
        };
        let loss = y.square()?.mean()?;
        drop((x, y));
        let value = loss.item()?;
        scope.end();
        let scope = self.device.scope("backward");
        let gradients = loss.backward()?;
        scope.end();
        let _scope = self.device.scope("optimiser");
        self.adam.step(&gradients)?;
        Ok(value)
    }
}

/// Positions × channels of one field.
#[derive(Clone, Copy)]
pub struct Grid {
    pub positions: usize,
    pub channels: usize,
}

impl FromStr for Grid {
    type Err = String;

    fn from_str(text: &str) -> Result<Grid, String> {
        let sizes = text.split_once('x').and_then(|(positions, channels)| {
            Some(Grid { positions: positions.parse().ok()?, channels: channels.parse().ok()? })
        });
        sizes
            .filter(|grid| grid.positions >= 4 && grid.channels >= 1)
            .ok_or_else(|| "expected POSITIONSxCHANNELS with at least 4 positions".into())
    }
}

/// Halves the length twice and doubles it twice.
pub struct Autoencoder {
    encode: [Conv1d; 2],
    decode: [ConvTranspose1d; 2],
    smooth: Conv1d,
}

impl Autoencoder {
    pub fn new(channels: usize, device: &Device) -> capgrad::Result<Autoencoder> {
        let down = |from, to| {
            Conv1d::builder(from, to, 4).stride(2).padding(Padding::Explicit(1, 1)).build(device)
        };
        let up =
            |from, to| ConvTranspose1d::builder(from, to, 4).stride(2).padding(1).build(device);
        Ok(Autoencoder {
            encode: [down(channels, 64)?, down(64, 32)?],
            decode: [up(32, 64)?, up(64, 64)?],
            smooth: Conv1d::builder(64, channels, 3).padding(Padding::Same).build(device)?,
        })
    }

    /// `x [N, C, L]` with L a multiple of 4.
    pub fn forward(&self, x: &Var) -> capgrad::Result<Var> {
        let code = self.encode[0].forward(x)?.gelu()?;
        let code = self.encode[1].forward(&code)?.gelu()?;
        let field = self.decode[0].forward(&code)?.gelu()?;
        let field = self.decode[1].forward(&field)?.gelu()?;
        self.smooth.forward(&field)
    }

    pub fn parameters(&self) -> Vec<Parameter> {
        let mut all: Vec<Parameter> = self.encode.iter().flat_map(Conv1d::parameters).collect();
        all.extend(self.decode.iter().flat_map(ConvTranspose1d::parameters));
        all.extend(self.smooth.parameters());
        all
    }
}

/// A fixed pseudo-random number on [0, 1): the fractional part of a hash of `i` (SplitMix64, Steele,
/// Lea and Flood 2014).
fn random(i: u64) -> f32 {
    let mut z = i.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32
}

/// `size`² with `per_row` entries in each row, one in each of as many equal parts of the columns.
pub fn operator(size: usize, per_row: usize) -> capgrad::Result<SparseMatrix> {
    let nnz = size * per_row;
    let bar = ProgressBar::new(nnz as u64);
    if let Ok(style) = ProgressStyle::with_template("matrix {bar:40} {percent:>3} % {eta} left") {
        bar.set_style(style);
    }
    let (mut col_indices, mut values) = (Vec::with_capacity(nnz), Vec::with_capacity(nnz));
    let scale = 1.0 / (per_row as f32).sqrt();
    for row in 0..size {
        for part in 0..per_row {
            let entry = (row * per_row + part) as u64;
            let (from, to) = (part * size / per_row, (part + 1) * size / per_row);
            let within = (random(2 * entry) * (to - from) as f32) as usize;
            col_indices.push((from + within.min(to - from - 1)) as i32);
            values.push(scale * (2.0 * random(2 * entry + 1) - 1.0));
        }
        bar.inc(per_row as u64);
    }
    bar.finish_and_clear();
    let row_offsets: Vec<i64> = (0..=size).map(|row| (row * per_row) as i64).collect();
    SparseMatrix::from_csr_owned(size, size, row_offsets, col_indices, values)
}
