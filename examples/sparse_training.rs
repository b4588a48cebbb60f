//! The second workload: fields on a grid go through a small convolutional autoencoder on one
//! device, and a constant sparse operator, on the same device or another, measures what comes out.
//! The operator stays where it is, once, and is never cloned, transposed or sorted.
//!
//! ```text
//! cargo run --example sparse_training
//! cargo run --example sparse_training -- --grid 700x384 --nnz-per-row 1100
//! cargo run --example sparse_training -- --matrix-device second-cpu
//! cargo run --example sparse_training -- --form csr
//! ```

use capgrad::optim::AdamOptions;
use capgrad::{
    Adam, Conv1d, ConvTranspose1d, DType, Device, Padding, Parameter, Reduction, SparseForm,
    SparseMatrix, SparseOptions, StoredTranspose, Tape, Tensor, Var, format_bytes, parse_bytes,
};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use std::error::Error;
use std::str::FromStr;
use std::time::Instant;

#[derive(Parser)]
#[command(about = "An autoencoder trained through a constant sparse operator")]
struct Arguments {
    /// Positions x channels of one field.
    #[arg(long, default_value = "70x38")]
    grid: Grid,
    /// Entries in each row of the operator.
    #[arg(long, default_value_t = 100)]
    nnz_per_row: usize,
    /// Training steps.
    #[arg(long, default_value_t = 20)]
    steps: usize,
    /// Fields a step.
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Workspace cap of each device, such as 0 or 64MiB.
    #[arg(long, default_value = "64MiB", value_parser = parse_bytes)]
    cap: u64,
    /// Memory limit of each device; none if left out.
    #[arg(long, value_parser = parse_bytes)]
    limit: Option<u64>,
    /// Device of the model: best, cpu or cuda:N.
    #[arg(long, default_value = "best")]
    device: Device,
    /// Device of the operator: as above, or second-cpu for a CPU device with a meter of its own.
    /// The model's device if left out.
    #[arg(long)]
    matrix_device: Option<String>,
    /// How the operator's entries are kept on a GPU: auto, csr, tiled or streamed. A CPU keeps csr.
    #[arg(long, default_value = "auto", value_parser = parse_form)]
    form: SparseForm,
}

fn parse_form(text: &str) -> Result<SparseForm, String> {
    match text {
        "auto" => Ok(SparseForm::Auto),
        "csr" => Ok(SparseForm::Csr),
        "tiled" => Ok(SparseForm::Tiled),
        "streamed" => Ok(SparseForm::Streamed),
        _ => Err("expected auto, csr, tiled or streamed".into()),
    }
}

#[derive(Clone, Copy)]
struct Grid {
    positions: usize,
    channels: usize,
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
struct Autoencoder {
    encode: [Conv1d; 2],
    decode: [ConvTranspose1d; 2],
    smooth: Conv1d,
}

impl Autoencoder {
    fn new(channels: usize, device: &Device) -> capgrad::Result<Autoencoder> {
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
    fn forward(&self, x: &Var) -> capgrad::Result<Var> {
        let code = self.encode[0].forward(x)?.gelu()?;
        let code = self.encode[1].forward(&code)?.gelu()?;
        let field = self.decode[0].forward(&code)?.gelu()?;
        let field = self.decode[1].forward(&field)?.gelu()?;
        self.smooth.forward(&field)
    }

    fn parameters(&self) -> Vec<Parameter> {
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
fn operator(size: usize, per_row: usize) -> capgrad::Result<SparseMatrix> {
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

/// Smooth fields `[N, C, L]`: a few waves along the positions, another phase in each channel.
fn fields(batch: usize, grid: Grid, device: &Device) -> capgrad::Result<Tensor> {
    let mut data = Vec::with_capacity(batch * grid.channels * grid.positions);
    for sample in 0..batch {
        for channel in 0..grid.channels {
            for position in 0..grid.positions {
                let (c, p) = (channel as f32 / 8.0, position as f32 / 10.0);
                data.push((p + c).sin() * (0.3 * p + sample as f32).cos());
            }
        }
    }
    Tensor::from_vec(data, [batch, grid.channels, grid.positions], device)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let (grid, device) = (arguments.grid, &arguments.device);
    let matrix_device = match arguments.matrix_device.as_deref() {
        None => device.clone(),
        Some("second-cpu") => Device::new_cpu(Default::default())?,
        Some(name) => name.parse()?,
    };
    let mut devices = vec![device.clone()];
    if &matrix_device != device {
        devices.push(matrix_device.clone());
    }
    let size = grid.positions * grid.channels;
    if arguments.nnz_per_row == 0 || arguments.nnz_per_row > size {
        return Err(format!(
            "a row of {size} columns cannot have {} entries",
            arguments.nnz_per_row
        )
        .into());
    }

    let host = operator(size, arguments.nnz_per_row)?;
    // Before the operator moves, since its form depends on them.
    for device in &devices {
        device.set_workspace_cap(arguments.cap);
        device.set_memory_limit(arguments.limit)?;
    }
    let options = SparseOptions {
        stored_transpose: StoredTranspose::Never,
        width: arguments.batch,
        form: arguments.form,
    };
    let a = host.to_with(&matrix_device, options)?;
    drop(host);
    println!(
        "operator {}×{}, {} entries, {}{} for {matrix_device}",
        a.rows(),
        a.cols(),
        a.nnz(),
        format_bytes(a.bytes() as u64),
        if a.form() == SparseForm::Streamed { " in the host's memory" } else { "" },
    );
    if let Some(layout) = a.layout() {
        print!("{layout}");
    }
    println!();
    for device in &devices {
        device.reset_peak();
    }
    // The model works on lengths that can be halved twice.
    let padded = grid.positions.next_multiple_of(4);
    let field = Var::from(fields(arguments.batch, grid, device)?);
    let input = if padded == grid.positions {
        field.clone()
    } else {
        let zeros = [arguments.batch, grid.channels, padded - grid.positions];
        capgrad::cat(&[&field, &Tensor::zeros(zeros, DType::F32, device)?.into()], 2)?
    };
    let target = a.apply(&field.flatten(1)?.to(&matrix_device)?)?;
    let model = Autoencoder::new(grid.channels, device)?;
    let mut adam = Adam::new(model.parameters(), AdamOptions { rate: 2e-3, ..Default::default() })?;

    println!("{:>4} {:>12} {:>10}  live bytes after the step", "step", "loss", "ms");
    for step in 1..=arguments.steps {
        let start = Instant::now();
        let tape = Tape::new();
        let x = tape.constant(input.tensor().clone());
        let y = model.forward(&x)?.narrow(2, 0, grid.positions)?;
        // One graph across both devices.
        let z = a.apply(&y.flatten(1)?.to(&matrix_device)?)?;
        let loss = z.mse_loss(&target, Reduction::Mean)?;
        drop((x, y, z));
        let value = loss.item()?;
        adam.step(&loss.backward()?)?;
        drop(tape);
        let live: Vec<String> =
            devices.iter().map(|device| format!("{device} {}", device.live_bytes())).collect();
        let ms = start.elapsed().as_secs_f64() * 1e3;
        println!("{step:>4} {value:>12.6} {ms:>10.1}  {}", live.join(", "));
    }
    println!();
    for device in &devices {
        println!("{}", device.report());
    }
    for plan in a.plan(arguments.batch)? {
        println!("{plan}");
    }
    Ok(())
}
