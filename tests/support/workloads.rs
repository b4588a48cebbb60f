//! The two workloads, small or large: one training step each, as a caller writes it.

use super::Numbers;
use capgrad::optim::AdamOptions;
use capgrad::{
    Adam, Conv1d, ConvTranspose1d, DType, Device, Padding, Parameter, Result, SparseMatrix,
    SparseOptions, StoredTranspose, Tape, Tensor, Var,
};

/// A model with its data and optimiser on one device.
pub struct Workload {
    pub device: Device,
    model: Model,
    x: Tensor,
    pub adam: Adam,
    steps: u64,
}

enum Model {
    Conv(Conv1d),
    Sparse { encode: Conv1d, decode: ConvTranspose1d, operator: SparseMatrix },
}

impl Workload {
    /// A pointwise convolution, 576 → 1024 channels (or a fraction of them), of length 11.
    pub fn conv(device: &Device, batch: usize, fraction: usize) -> Result<Workload> {
        let (from, to) = (576 / fraction, 1024 / fraction);
        let conv = Conv1d::builder(from, to, 1).build(device)?;
        let x = Tensor::rand([batch, from, 11], DType::F32, device)?;
        Workload::new(device, conv.parameters(), Model::Conv(conv), x)
    }

    /// A small autoencoder whose output goes through a constant operator of `channels · length` columns,
    /// which is on another device, or on none yet.
    pub fn sparse(
        device: &Device,
        operator: &SparseMatrix,
        batch: usize,
        [channels, length]: [usize; 2],
    ) -> Result<Workload> {
        let options = SparseOptions {
            stored_transpose: StoredTranspose::Never,
            width: batch,
            ..Default::default()
        };
        let operator = operator.to_with(device, options)?;
        let encode = Conv1d::builder(channels, 8, 4)
            .stride(2)
            .padding(Padding::Explicit(1, 1))
            .build(device)?;
        let decode = ConvTranspose1d::builder(8, channels, 4).stride(2).padding(1).build(device)?;
        let parameters: Vec<Parameter> =
            encode.parameters().into_iter().chain(decode.parameters()).collect();
        let x = Tensor::rand([batch, channels, length], DType::F32, device)?;
        Workload::new(device, parameters, Model::Sparse { encode, decode, operator }, x)
    }

    fn new(
        device: &Device,
        parameters: impl IntoIterator<Item = Parameter>,
        model: Model,
        x: Tensor,
    ) -> Result<Workload> {
        let adam = Adam::new(parameters, AdamOptions::default())?;
        Ok(Workload { device: device.clone(), model, x, adam, steps: 0 })
    }

    fn forward(&self, x: &Var) -> Result<Var> {
        match &self.model {
            Model::Conv(conv) => conv.forward(x),
            Model::Sparse { encode, decode, operator } => {
                let field = decode.forward(&encode.forward(x)?.gelu()?)?;
                operator.apply(&field.flatten(1)?)
            }
        }
    }

    /// One training step; the loss.
    pub fn step(&mut self) -> Result<f64> {
        let tape = Tape::for_step(1, self.steps);
        let scope = self.device.scope("forward");
        let loss = self.forward(&tape.constant(self.x.clone()))?.square()?.mean()?;
        let value = loss.item()?;
        drop(scope);
        let scope = self.device.scope("backward");
        let gradients = loss.backward()?;
        drop(scope);
        let _scope = self.device.scope("optimiser");
        self.adam.step(&gradients)?;
        self.steps += 1;
        Ok(value)
    }

    pub fn parameters(&self) -> Vec<u64> {
        self.adam.parameters().flat_map(|parameter| super::bits(parameter.tensor())).collect()
    }
}

/// An operator of `size`² with `per_row` entries in each row, anywhere.
pub fn operator(size: usize, per_row: usize) -> SparseMatrix {
    let mut numbers = Numbers(4);
    let i: Vec<usize> = (0..size * per_row).map(|e| e / per_row).collect();
    let part = size / per_row;
    let j: Vec<usize> =
        (0..size * per_row).map(|e| e % per_row * part + numbers.below(part)).collect();
    let values: Vec<f32> =
        numbers.sixteenths(size * per_row).into_iter().map(|value| value as f32).collect();
    SparseMatrix::from_coo(size, size, &i, &j, values).unwrap()
}
