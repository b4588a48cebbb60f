//! Where every byte of a small training step was, and when: prints the report, and writes it as JSON and
//! its timeline as a picture.
//!
//! ```text
//! cargo run --example memory_report
//! cargo run --example memory_report -- --workload sparse --svg timeline.svg --json report.json
//! cargo run --example memory_report -- --dry --batch 4000
//! ```

mod workloads;

use capgrad::{Device, SparseMatrix, format_bytes, parse_bytes};
use clap::Parser;
use std::error::Error;
use std::path::PathBuf;
use workloads::{Grid, Training, Workload, operator};

#[derive(Parser)]
#[command(about = "The memory of a training step: a table, a picture and JSON")]
struct Arguments {
    /// Which workload.
    #[arg(long, value_enum, default_value = "conv")]
    workload: Workload,
    /// Samples or fields a step.
    #[arg(long, default_value_t = 500)]
    batch: usize,
    /// Steps.
    #[arg(long, default_value_t = 2)]
    steps: usize,
    /// Positions x channels of a field of the sparse workload.
    #[arg(long, default_value = "72x40")]
    grid: Grid,
    /// Entries in each row of its operator.
    #[arg(long, default_value_t = 100)]
    nnz_per_row: usize,
    /// Workspace cap, such as 0 or 64MiB.
    #[arg(long, default_value = "64MiB", value_parser = parse_bytes)]
    cap: u64,
    /// Memory limit; none if left out.
    #[arg(long, value_parser = parse_bytes)]
    limit: Option<u64>,
    /// Device: best, cpu or cuda:N.
    #[arg(long, default_value = "best")]
    device: Device,
    /// Predict it: nothing is computed.
    #[arg(long)]
    dry: bool,
    /// Where the picture goes.
    #[arg(long, default_value = "target/timeline.svg")]
    svg: PathBuf,
    /// Where the figures go.
    #[arg(long, default_value = "target/report.json")]
    json: PathBuf,
}

fn write(path: &PathBuf, text: &str) -> Result<(), Box<dyn Error>> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, text)?;
    println!("{}: {}", path.display(), format_bytes(text.len() as u64));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    arguments.device.set_workspace_cap(arguments.cap);
    arguments.device.set_memory_limit(arguments.limit)?;
    let device = if arguments.dry { arguments.device.dry() } else { arguments.device };
    let size = arguments.grid.positions * arguments.grid.channels;
    let host: Option<SparseMatrix> = match arguments.workload {
        Workload::Conv => None,
        Workload::Sparse => Some(operator(size, arguments.nnz_per_row.min(size))?),
    };
    device.set_recording(true);
    let scope = device.scope("model and data");
    let mut training = match &host {
        None => Training::conv(&device, arguments.batch)?,
        Some(host) => Training::sparse(&device, host, arguments.grid, arguments.batch)?,
    };
    scope.end();
    for step in 1..=arguments.steps {
        let _scope = device.scope(&format!("step {step}"));
        training.step()?;
    }
    device.set_recording(false);
    let report = device.report();
    println!("{report}");
    write(&arguments.json, &serde_json::to_string(&report)?)?;
    if let Some(recorded) = &report.recorded {
        write(&arguments.svg, &recorded.timeline.to_svg(1000, 520)?)?;
    }
    Ok(())
}
