//! Does it fit, and what is the largest batch? Answered by dry runs: nothing is computed, and no memory of
//! the device is taken.
//!
//! ```text
//! cargo run --example will_it_fit -- --limit 2GiB
//! cargo run --example will_it_fit -- --workload sparse --limit 11GiB 24GiB --device cuda:0
//! cargo run --example will_it_fit -- --limit 1GiB --check
//! ```

mod workloads;

use capgrad::{DType, Device, Error, SparseMatrix, format_bytes, parse_bytes};
use clap::Parser;
use std::time::Instant;
use workloads::{Grid, Training, Workload, operator};

#[derive(Parser)]
#[command(about = "The largest batch of a workload under a memory limit")]
struct Arguments {
    /// Which workload.
    #[arg(long, value_enum, default_value = "conv")]
    workload: Workload,
    /// Memory limits.
    #[arg(long, num_args = 1.., default_values = ["24GiB"], value_parser = parse_bytes)]
    limit: Vec<u64>,
    /// Workspace cap, such as 0 or 64MiB.
    #[arg(long, default_value = "64MiB", value_parser = parse_bytes)]
    cap: u64,
    /// Positions x channels of a field of the sparse workload.
    #[arg(long, default_value = "700x384")]
    grid: Grid,
    /// Entries in each row of its operator; 1100 on a GPU and 500 on a CPU if left out.
    #[arg(long)]
    nnz_per_row: Option<usize>,
    /// Device: best, cpu or cuda:N.
    #[arg(long, default_value = "best")]
    device: Device,
    /// Run the batch that was found, and one more, to see whether it is so.
    #[arg(long)]
    check: bool,
}

/// Two steps: in the second one the optimiser has its state.
fn steps(mut training: Training) -> capgrad::Result<()> {
    training.step()?;
    training.step()?;
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let (device, grid) = (&arguments.device, arguments.grid);
    device.set_workspace_cap(arguments.cap);
    let size = grid.positions * grid.channels;
    let gpu = device.name().starts_with("cuda");
    let per_row = arguments.nnz_per_row.unwrap_or(if gpu { 1100 } else { 500 }).min(size);
    // Sizes are enough; with the entries a tiled matrix is exact, and there is something to check with.
    let mut operators: Option<(SparseMatrix, Option<SparseMatrix>)> = None;
    if arguments.workload == Workload::Sparse {
        let dry = device.dry();
        operators = Some(if arguments.check {
            let real = operator(size, per_row)?;
            (real.outlined(&dry)?, Some(real))
        } else {
            (SparseMatrix::outline(size, size, size * per_row, DType::F32, &dry)?, None)
        });
    }
    let run = |device: &Device, batch: usize, operator: Option<&SparseMatrix>| {
        steps(match operator {
            None => Training::conv(device, batch)?,
            Some(operator) => Training::sparse(device, operator, grid, batch)?,
        })
    };
    let outline = operators.as_ref().map(|(outline, _)| outline);
    // Libraries are loaded and kernels are looked up when they are first used.
    run(&device.dry(), 1, outline)?;
    for &limit in &arguments.limit {
        device.set_memory_limit(Some(limit))?;
        let start = Instant::now();
        let fit = device.max_batch(1..=1 << 24, |dry, batch| run(dry, batch, outline))?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        print!("{fit}");
        println!("  {} dry runs, {ms:.1} ms", fit.tried.len() + 1);
        let real = operators.as_ref().and_then(|(_, real)| real.as_ref());
        if let Some(batch) = fit.largest.filter(|_| arguments.check) {
            device.reset_peak();
            let start = Instant::now();
            run(device, batch, real)?;
            let seconds = start.elapsed().as_secs_f64();
            let peak = device.report().peak;
            let predicted = fit.report.map_or(0, |report| report.peak);
            println!(
                "  checked: {batch} runs, {seconds:.1} s, peak {} ({} bytes, predicted {predicted})",
                format_bytes(peak),
                peak
            );
            match run(device, batch + 1, real) {
                Err(Error::MemoryLimit { .. }) => println!("  checked: {} does not", batch + 1),
                Err(error) => return Err(error.into()),
                Ok(()) => return Err(format!("a batch of {} runs as well", batch + 1).into()),
            }
        }
    }
    Ok(())
}
