//! How well predicted times choose: convolutions of random shapes, every candidate measured, and for
//! each cap the time of the candidate that the prediction takes over the time of the fastest.
//! `cargo bench --bench ranking -- --shapes 100 --seed 1`. With `--json FILE` it writes what was
//! measured, one line a plan, from which the predictions of a device can be fitted.

mod common;

use capgrad::{
    Conv1dOptions, DType, Device, MIB, Padding, Plan, Ranking, Result, Tape, Tensor, Verdict,
    Weighed,
};
use clap::Parser;
use common::Numbers;
use std::fmt::Write as _;
use std::sync::Arc;

#[derive(Parser)]
struct Options {
    /// Device: best, cpu, cuda:0.
    #[arg(long, default_value = "best")]
    device: String,
    /// How many shapes.
    #[arg(long, default_value_t = 100)]
    shapes: usize,
    /// Which shapes: another seed draws others.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Multiplications of a pass at most, in billions.
    #[arg(long, default_value_t = 100.0)]
    gflop: f64,
    /// Workspace caps in MiB; candidates over the largest are not measured.
    #[arg(long, value_delimiter = ',', default_value = "0,16,256,2048")]
    caps: Vec<u64>,
    /// Every shape under one of the caps only, drawn with it: for fitting.
    #[arg(long)]
    one_cap: bool,
    /// Stop drawing after this many seconds.
    #[arg(long, default_value_t = 1e9)]
    seconds: f64,
    /// Where every measurement goes.
    #[arg(long)]
    json: Option<String>,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    batch: usize,
    channels: [usize; 2],
    length: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
    dtype: DType,
    tf32: bool,
}

impl Shape {
    fn draw(numbers: &mut Numbers, most: f64) -> Shape {
        loop {
            let kernel = numbers.of(&[1, 1, 3, 3, 5, 7, 9, 15, 31]);
            let groups = numbers.of(&[1, 1, 1, 1, 1, 1, 2, 4, 8, 0]);
            let mut channels = [numbers.scale(4.0, 1024.0), numbers.scale(8.0, 1024.0)];
            // Most people's channels are multiples of 8.
            if numbers.of(&[true, true, true, false]) {
                channels = channels.map(|channels| channels.next_multiple_of(8));
            }
            if groups == 0 {
                channels[1] = channels[0];
            }
            let groups = if groups == 0 { channels[0] } else { groups };
            channels = channels.map(|channels| channels.next_multiple_of(groups));
            let (dtype, tf32) = numbers.of(&[
                (DType::F32, false),
                (DType::F32, true),
                (DType::BF16, false),
                (DType::F16, false),
            ]);
            let shape = Shape {
                batch: numbers.scale(1.0, 2048.0),
                channels,
                length: numbers.scale(8.0, 32768.0),
                kernel,
                stride: numbers.of(&[1, 1, 1, 1, 2, 4]),
                dilation: if kernel > 1 { numbers.of(&[1, 1, 1, 2, 8]) } else { 1 },
                groups,
                dtype,
                tf32,
            };
            let work =
                (shape.batch * shape.length * channels[0] / groups * channels[1] * kernel) as f64;
            let elements = shape.batch * shape.length * channels[0].max(channels[1]);
            let span = shape.dilation * (kernel - 1);
            if work < most && work > 1e8 && elements < 1 << 29 && span <= 2 * shape.length {
                return shape;
            }
        }
    }

    fn options(&self) -> Conv1dOptions {
        let span = self.dilation * (self.kernel - 1);
        Conv1dOptions {
            stride: self.stride,
            dilation: self.dilation,
            groups: self.groups,
            padding: Padding::Explicit(span / 2, span - span / 2),
            ..Default::default()
        }
    }

    /// The plans of the three passes with everything measured.
    fn measure(&self, device: &Device) -> Result<Vec<Arc<Plan>>> {
        device.forget_plans();
        device.set_allow_tf32(self.tf32);
        let [c_in, c_out] = self.channels;
        let x = Tensor::randn([self.batch, c_in, self.length], self.dtype, device)?;
        let w = Tensor::randn([c_out, c_in / self.groups, self.kernel], self.dtype, device)?;
        let tape = Tape::new();
        let (x, w) = (tape.variable(x)?, tape.variable(w)?);
        let y = x.conv1d(&w, None, &self.options())?;
        let dy = Tensor::randn(y.dims().to_vec(), self.dtype, device)?;
        y.backward_with(dy)?;
        Ok(device.plans())
    }
}

impl Shape {
    /// A line: what was asked, and each candidate's name, split, workspace, measured and predicted seconds.
    fn write(&self, plan: &Plan, cap: u64, lines: &mut String) {
        let candidates: Vec<String> = plan
            .weighed()
            .iter()
            .filter_map(|weighed| {
                let (c, measured) = (&weighed.candidate, weighed.measured?);
                let (name, split, predicted) = (&c.name, &c.split, c.seconds);
                Some(format!(
                    "[\"{name}\",\"{split}\",{},{measured:.3e},{predicted:.4e}]",
                    c.workspace
                ))
            })
            .collect();
        let Shape { batch, channels: [c_in, c_out], length, kernel, stride, .. } = self;
        let Shape { dilation, groups, dtype, tf32, .. } = self;
        writeln!(
            lines,
            "{{\"operation\":\"{}\",\"cap\":{cap},\"batch\":{batch},\"in\":{c_in},\"out\":{c_out},\
             \"length\":{length},\"kernel\":{kernel},\"stride\":{stride},\"dilation\":{dilation},\
             \"groups\":{groups},\"dtype\":\"{dtype}\",\"tf32\":{tf32},\"candidates\":[{}]}}",
            plan.operation(),
            candidates.join(",")
        )
        .expect("a string takes all");
    }
}

fn seconds(weighed: &Weighed) -> f64 {
    weighed.measured.unwrap_or(f64::INFINITY)
}

/// The time of what the prediction takes under a cap over that of the fastest.
fn loss(plan: &Plan, cap: u64) -> Option<f64> {
    let fits: Vec<&Weighed> = plan
        .weighed()
        .iter()
        .filter(|weighed| weighed.candidate.workspace <= cap && weighed.measured.is_some())
        .collect();
    let fastest = fits.iter().map(|weighed| seconds(weighed)).fold(f64::INFINITY, f64::min);
    let predicted = |weighed: &Weighed| weighed.candidate.seconds;
    let best = fits.iter().map(|weighed| predicted(weighed)).fold(f64::INFINITY, f64::min);
    // As the planner does: of those within 5 %, the one with the least workspace.
    let taken = fits
        .iter()
        .filter(|weighed| predicted(weighed) <= best * 1.05)
        .min_by_key(|weighed| weighed.candidate.workspace)?;
    Some(seconds(taken) / fastest)
}

fn main() -> Result<()> {
    let options = Options::parse();
    let device: Device = options.device.parse()?;
    device.set_ranking(Ranking::Measured);
    let mut numbers = Numbers(options.seed);
    let caps: Vec<u64> = options.caps.iter().map(|mib| mib * MIB).collect();
    let mut losses: Vec<Vec<f64>> = vec![Vec::new(); caps.len()];
    let mut lines = String::new();
    let start = std::time::Instant::now();
    for index in 0..options.shapes {
        if start.elapsed().as_secs_f64() > options.seconds {
            println!("stopped after {index} shapes");
            break;
        }
        let shape = Shape::draw(&mut numbers, options.gflop * 1e9);
        let mut worst = vec![1.0f64; caps.len()];
        // Splits differ by cap, so each cap has plans of its own.
        let only = options.one_cap.then(|| numbers.next() as usize % caps.len());
        for (which, &cap) in caps.iter().enumerate() {
            if only.is_some_and(|only| only != which) {
                continue;
            }
            device.set_workspace_cap(cap);
            let plans = match shape.measure(&device) {
                Ok(plans) => plans,
                Err(error) => {
                    println!("{shape:?}: {error}");
                    continue;
                }
            };
            for plan in &plans {
                let Some(loss) = loss(plan, cap) else { continue };
                losses[which].push(loss);
                worst[which] = worst[which].max(loss);
                for weighed in plan.weighed() {
                    if let Verdict::Failed(reason) = &weighed.verdict {
                        let name = &weighed.candidate.name;
                        println!("failed: {} {name}: {reason}", plan.operation());
                    }
                }
                shape.write(plan, cap, &mut lines);
            }
        }
        if worst.iter().any(|&worst| worst > 1.1) {
            println!("{shape:?}: worst pass by cap {worst:.2?}");
        }
    }
    if let Some(path) = &options.json {
        std::fs::write(path, lines)
            .map_err(|source| capgrad::Error::Io { path: path.clone(), source })?;
    }
    println!(
        "\n{:>10} {:>8} {:>14} {:>10} {:>10}",
        "cap", "passes", "within 10 %", "mean", "worst"
    );
    for (cap, losses) in caps.iter().zip(&losses) {
        let close = losses.iter().filter(|&&loss| loss <= 1.1).count();
        let n = losses.len().max(1) as f64;
        let mean = (losses.iter().map(|loss| loss.ln()).sum::<f64>() / n).exp();
        let worst = losses.iter().copied().fold(1.0, f64::max);
        let cap = capgrad::format_bytes(*cap);
        let share = 100.0 * close as f64 / n;
        println!("{cap:>10} {:>8} {share:>13.1}% {mean:>10.3} {worst:>10.2}", losses.len());
    }
    Ok(())
}
