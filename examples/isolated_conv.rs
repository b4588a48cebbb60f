//! The first workload: one convolution, forward, mean and backward, at two numbers of samples that
//! differ by a quarter and must not differ by more in memory.
//!
//! ```text
//! cargo run --example isolated_conv
//! cargo run --example isolated_conv -- --samples 512 --length 64 --kernel 5 --input-grad --cap 0
//! ```

use capgrad::{
    Conv1d, DType, Device, Padding, Purpose, Ranking, ScopeReport, Tape, Tensor, format_bytes,
    parse_bytes,
};
use clap::{Parser, ValueEnum};
use std::error::Error;
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(about = "One Conv1d training step, with every byte accounted for")]
struct Arguments {
    /// Samples of each run.
    #[arg(long, num_args = 1.., default_values_t = [5000, 4000])]
    samples: Vec<usize>,
    /// Input and output channels.
    #[arg(long, num_args = 2, default_values_t = [576, 1024], value_names = ["IN", "OUT"])]
    channels: Vec<usize>,
    /// Length of each sample.
    #[arg(long, default_value_t = 11)]
    length: usize,
    /// Kernel taps; the padding keeps the length.
    #[arg(long, default_value_t = 1)]
    kernel: usize,
    /// Workspace cap, such as 0, 64MiB or 1GiB.
    #[arg(long, default_value = "64MiB", value_parser = parse_bytes)]
    cap: u64,
    /// Element type.
    #[arg(long, value_enum, default_value = "f32")]
    dtype: Element,
    /// Device: best, cpu or cuda:N.
    #[arg(long, default_value = "best")]
    device: Device,
    /// The input needs a gradient too.
    #[arg(long)]
    input_grad: bool,
    /// Rank algorithms by timing them, not by the model's prediction.
    #[arg(long)]
    measured: bool,
    /// Let products of f32 be rounded to TF32, where the device has units for it.
    #[arg(long)]
    tf32: bool,
    /// Leave the sweep over 500 to 8000 samples out.
    #[arg(long)]
    no_sweep: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Element {
    F32,
    F64,
    F16,
    Bf16,
}

impl From<Element> for DType {
    fn from(element: Element) -> DType {
        match element {
            Element::F32 => DType::F32,
            Element::F64 => DType::F64,
            Element::F16 => DType::F16,
            Element::Bf16 => DType::BF16,
        }
    }
}

/// What one step was seen to do.
struct Step {
    phases: Vec<(&'static str, ScopeReport, Duration)>,
    /// Most workspace of any operation.
    workspace: u64,
    loss: f64,
}

impl Step {
    fn peak(&self) -> u64 {
        self.phases.iter().map(|(_, phase, _)| phase.peak).max().unwrap_or(0)
    }
}

fn step(arguments: &Arguments, conv: &Conv1d, samples: usize) -> capgrad::Result<Step> {
    let device = &arguments.device;
    device.reset_peak();
    let mut phases = Vec::new();
    let mut start = Instant::now();
    let mut end = |name, scope: capgrad::Scope| {
        phases.push((name, scope.end(), start.elapsed()));
        start = Instant::now();
    };

    let scope = device.scope("data");
    let shape = [samples, arguments.channels[0], arguments.length];
    let data = Tensor::rand(shape, arguments.dtype.into(), device)?;
    end("data", scope);

    let tape = Tape::new();
    let scope = device.scope("forward");
    let x = if arguments.input_grad { tape.variable(data)? } else { tape.constant(data) };
    let y = conv.forward(&x)?;
    end("forward", scope);

    let scope = device.scope("mean");
    let loss = y.mean()?;
    // Nothing needs the output itself any more.
    drop(y);
    end("mean", scope);

    let scope = device.scope("backward");
    let value = loss.item()?;
    let gradients = loss.backward()?;
    end("backward", scope);
    drop(gradients);
    let workspace = device.report().peaks[Purpose::Workspace];
    Ok(Step { phases, workspace, loss: value })
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let device = &arguments.device;
    device.set_workspace_cap(arguments.cap);
    device.set_ranking(if arguments.measured { Ranking::Measured } else { Ranking::Predicted });
    device.set_allow_tf32(arguments.tf32);
    let (inputs, outputs) = (arguments.channels[0], arguments.channels[1]);
    let conv = Conv1d::builder(inputs, outputs, arguments.kernel)
        .padding(Padding::Same)
        .dtype(arguments.dtype.into())
        .build(device)?;
    println!("{device}: {}", device.description());
    println!(
        "Conv1d {inputs} → {outputs}, kernel {}, length {}, {} on {device}, workspace cap {} bytes",
        arguments.kernel,
        arguments.length,
        DType::from(arguments.dtype),
        arguments.cap,
    );

    for &samples in &arguments.samples {
        let step = step(&arguments, &conv, samples)?;
        println!("\n{samples} samples, loss {:.6}", step.loss);
        println!(
            "  {:<10} {:>16} {:>16} {:>16} {:>10}",
            "phase", "peak", "current", "workspace", "ms"
        );
        for (name, phase, time) in &step.phases {
            println!(
                "  {name:<10} {:>16} {:>16} {:>16} {:>10.1}",
                format_bytes(phase.peak),
                format_bytes(phase.live_after),
                format_bytes(phase.at_peak[Purpose::Workspace]),
                time.as_secs_f64() * 1e3,
            );
        }
        println!(
            "  peak of the step {} bytes, most workspace {} bytes",
            step.peak(),
            step.workspace
        );
        for plan in conv.plan([samples, inputs, arguments.length])? {
            let taken = plan.taken();
            let pass = plan.operation().split(':').next().unwrap_or_default().to_owned();
            println!("  {pass}: {} with {} bytes of workspace", taken.name, taken.workspace);
            match plan.largest_over_cap() {
                Some(over) => println!(
                    "    the largest that the cap rejected: {} with {} bytes",
                    over.name, over.workspace
                ),
                None => println!("    nothing was over the cap"),
            }
        }
    }

    if !arguments.no_sweep {
        println!("\n{:>8} {:>14} {:>14} {:>14}", "samples", "peak bytes", "less workspace", "ms");
        for samples in (500..=8000).step_by(500) {
            let step = step(&arguments, &conv, samples)?;
            let peak = step.phases.iter().max_by_key(|(_, phase, _)| phase.peak);
            let workspace = peak.map_or(0, |(_, phase, _)| phase.at_peak[Purpose::Workspace]);
            let time: Duration = step.phases.iter().skip(1).map(|(_, _, time)| *time).sum();
            println!(
                "{samples:>8} {:>14} {:>14} {:>14.1}",
                step.peak(),
                step.peak() - workspace,
                time.as_secs_f64() * 1e3
            );
        }
    }
    Ok(())
}
