//! The second workload: fields on a grid go through a small convolutional autoencoder on one
//! device, and a constant sparse operator, on the same device or another, measures what comes out.
//! The operator stays where it is, once, and is never cloned, transposed or sorted.
//!
//! ```text
//! cargo run --example sparse_training
//! cargo run --example sparse_training -- --grid 700x384 --nnz-per-row 1100
//! cargo run --example sparse_training -- --matrix-device second
//! cargo run --example sparse_training -- --device cuda:0 --matrix-device cuda:1
//! cargo run --example sparse_training -- --device cuda:0 --matrix-device cpu
//! cargo run --example sparse_training -- --form csr
//! ```

mod workloads;

use capgrad::optim::AdamOptions;
use capgrad::{
    Adam, DType, Device, Reduction, Reports, SparseForm, SparseOptions, StoredTranspose, Tape,
    Tensor, Var, format_bytes, parse_bytes,
};
use clap::Parser;
use std::error::Error;
use std::time::Instant;
use workloads::{Autoencoder, Grid, operator};

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
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
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
    /// Device of the operator: as above, or `second` for another device on the same hardware as the
    /// model's, with a meter and limit of its own. The model's device if left out.
    #[arg(long)]
    matrix_device: Option<String>,
    /// How the operator's entries are kept on a GPU: auto, csr, tiled or streamed. A CPU keeps csr.
    #[arg(long, default_value = "auto", value_parser = parse_form)]
    form: SparseForm,
}

/// Another device where `device` is.
fn second(device: &Device) -> capgrad::Result<Device> {
    match device.name().strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok()) {
        Some(ordinal) => Device::new_cuda(ordinal, Default::default()),
        None => Device::new_cpu(Default::default()),
    }
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
        Some("second") => second(device)?,
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

    let mut times = Vec::new();
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
        println!("{step:>4} {value:>12.8} {ms:>10.1}  {}", live.join(", "));
        times.push(ms);
    }
    // The first step starts libraries and makes the optimiser's state.
    times.remove(0);
    times.sort_by(f64::total_cmp);
    if let Some(median) = times.get(times.len() / 2) {
        println!("a step after the first takes {median:.2} ms (median)");
    }
    println!();
    for device in &devices {
        println!("{}", device.report());
    }
    println!("{}", Reports::of(&devices));
    for plan in a.plan(arguments.batch)? {
        println!("{plan}");
    }
    Ok(())
}
