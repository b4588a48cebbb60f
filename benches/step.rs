//! One training step of each scored convolution: forward, then backward from a given output gradient
//! with every gradient wanted. Its time, and its peak beside what its tensors alone take; one line of
//! JSON a measurement. `compare_pytorch.py` sets the same figures of PyTorch beside these.
//!
//! ```text
//! cargo bench --bench step
//! cargo bench --bench step -- --rows k5,k31 --modes f32 --caps 0,64MiB,none --plans
//! cargo bench --bench step -- --sweep
//! cargo bench --bench step -- --spike --gradients random
//! ```

mod common;

use capgrad::{Conv1dOptions, DType, Device, Padding, Purpose, Ranking, Tape, Tensor, parse_bytes};
use clap::{Parser, ValueEnum};
use common::{Lines, Numbers, median, taken};
use serde::Serialize;
use serde_json::json;
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

#[derive(Parser)]
#[command(about = "Time and peak memory of convolution steps, one line of JSON each")]
struct Arguments {
    /// all, small, or parts of rows' names; a whole name is that row only. Without it, all rows on
    /// a GPU and the small ones on a CPU.
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// Arithmetic.
    #[arg(long, value_enum, value_delimiter = ',')]
    modes: Vec<Mode>,
    /// Workspace caps: 0, 64MiB, …, none.
    #[arg(long, value_delimiter = ',', value_parser = parse_cap)]
    caps: Vec<Cap>,
    /// Where the output gradient comes from.
    #[arg(long, value_enum, value_delimiter = ',')]
    gradients: Vec<Gradient>,
    /// Writes the lines to this file too, as they come.
    #[arg(long)]
    json: Option<String>,
    /// Device: best, cpu or cuda:N.
    #[arg(long, default_value = "best")]
    device: Device,
    /// Rank algorithms by timing them, not by the model's prediction.
    #[arg(long)]
    measured: bool,
    /// One pointwise layer at many numbers of samples instead, and whether the peak is a straight
    /// line.
    #[arg(long)]
    sweep: bool,
    /// First and last number of samples of the sweep, and the step between.
    #[arg(long, num_args = 3, default_values_t = [500, 8000, 100], value_names = ["FROM", "TO", "STEP"])]
    samples: Vec<usize>,
    /// Rows drawn at random instead: how many, and from which seed.
    #[arg(long, num_args = 2, value_names = ["COUNT", "SEED"])]
    drawn: Vec<u64>,
    /// The layers that spike elsewhere instead.
    #[arg(long)]
    spike: bool,
    /// What recording costs instead: the first of the rows, with and without it in turn.
    #[arg(long)]
    recording: bool,
    /// Prints every plan of a step after its line.
    #[arg(long)]
    plans: bool,
    /// Prints the rows and measures nothing.
    #[arg(long)]
    list: bool,
    /// Fewer samples, and then a shorter length, so that a step has at most so many billion operations.
    #[arg(long)]
    gflop: Option<f64>,
    /// Timings of which the median is taken.
    #[arg(long, default_value_t = 10)]
    timings: usize,
    /// A timing covers as many steps as take this long.
    #[arg(long, default_value_t = 10.0, value_name = "MS")]
    timing_ms: f64,
    /// What `cargo bench` passes.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Tf32,
    F32,
    Bf16,
    F16,
}

impl Mode {
    fn dtype(self) -> DType {
        match self {
            Mode::Tf32 | Mode::F32 => DType::F32,
            Mode::Bf16 => DType::BF16,
            Mode::F16 => DType::F16,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Gradient {
    Random,
    Mean,
}

/// A workspace cap, or none.
#[derive(Clone, Copy, Serialize)]
struct Cap(Option<u64>);

fn parse_cap(text: &str) -> capgrad::Result<Cap> {
    if text == "none" { Ok(Cap(None)) } else { parse_bytes(text).map(|bytes| Cap(Some(bytes))) }
}

/// One convolution. The padding keeps the length, before the stride.
#[derive(Clone, Copy, Serialize)]
struct Row {
    batch: usize,
    in_channels: usize,
    out_channels: usize,
    length: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
}

impl Row {
    const fn new(
        batch: usize,
        [in_channels, out_channels]: [usize; 2],
        length: usize,
        kernel: usize,
    ) -> Row {
        Row { batch, in_channels, out_channels, length, kernel, stride: 1, dilation: 1, groups: 1 }
    }

    /// A layer as people have them: of audio, of text or genomics, depthwise, or of one sample.
    fn draw(numbers: &mut Numbers) -> Row {
        const MOST_ELEMENTS: usize = 1 << 27;
        const MOST_OPERATIONS: f64 = 2e12;
        loop {
            let kind = numbers.of(&[0, 0, 1, 1, 2, 3]);
            let even =
                |channels: usize| channels.next_multiple_of(if channels < 8 { 1 } else { 8 });
            let row = match kind {
                0 => Row {
                    stride: numbers.of(&[1, 1, 2, 4, 5, 8]),
                    ..Row::new(
                        numbers.scale(1.0, 64.0),
                        [numbers.scale(1.0, 512.0), numbers.scale(8.0, 512.0)].map(even),
                        numbers.scale(16e3, 160e3),
                        numbers.of(&[3, 5, 7, 9, 11, 15, 25, 41]),
                    )
                },
                2 => {
                    let channels = even(numbers.scale(64.0, 1024.0));
                    let kernel = numbers.of(&[3, 4, 5, 7, 15, 31]);
                    let (batch, length) = (numbers.scale(8.0, 256.0), numbers.scale(128.0, 4096.0));
                    Row { groups: channels, ..Row::new(batch, [channels; 2], length, kernel) }
                }
                _ => Row {
                    dilation: numbers.of(&[1, 1, 1, 2, 4, 16, 64]),
                    ..Row::new(
                        if kind == 3 { 1 } else { numbers.scale(8.0, 256.0) },
                        [numbers.scale(128.0, 2048.0), numbers.scale(128.0, 2048.0)].map(even),
                        numbers.scale(128.0, 8192.0),
                        numbers.of(&[1, 3, 3, 5, 7, 9, 15]),
                    )
                },
            };
            let row = Row { dilation: if row.kernel == 1 { 1 } else { row.dilation }, ..row };
            let [x, _, _, y] = row.shapes().map(|shape| shape.iter().product::<usize>());
            let fits = x.max(y) < MOST_ELEMENTS && row.operations() < MOST_OPERATIONS;
            if fits && row.dilation * (row.kernel - 1) < row.length {
                return row;
            }
        }
    }

    /// As the other benches name theirs: `32x64-128x16000 k15 s2`.
    fn name(&self) -> String {
        let Row { batch, in_channels, out_channels, length, kernel, .. } = self;
        let mut name = format!("{batch}x{in_channels}-{out_channels}x{length} k{kernel}");
        for (letter, value) in [("s", self.stride), ("d", self.dilation), ("g", self.groups)] {
            if value != 1 {
                name += &format!(" {letter}{value}");
            }
        }
        name
    }

    /// Multiplications and additions of the three passes.
    fn operations(&self) -> f64 {
        let y = self.batch * self.out_channels * ((self.length - 1) / self.stride + 1);
        6.0 * (y * (self.in_channels / self.groups) * self.kernel) as f64
    }

    /// The same with fewer samples, and where one is too much, shorter.
    fn within(mut self, gflop: f64) -> Row {
        let over = |row: &Row| row.operations() / (gflop * 1e9);
        self.batch = ((self.batch as f64 / over(&self).max(1.0)) as usize).max(1);
        let length = (self.length as f64 / over(&self).max(1.0)) as usize;
        self.length = length.max(self.dilation * self.kernel).min(self.length);
        self
    }

    fn padding(&self) -> [usize; 2] {
        let both = self.dilation * (self.kernel - 1);
        [both / 2, both - both / 2]
    }

    fn options(&self) -> Conv1dOptions {
        let [left, right] = self.padding();
        Conv1dOptions {
            stride: self.stride,
            dilation: self.dilation,
            groups: self.groups,
            padding: Padding::Explicit(left, right),
            ..Default::default()
        }
    }

    /// Shapes of x, w, b and y.
    fn shapes(&self) -> [Vec<usize>; 4] {
        let out_length = (self.length - 1) / self.stride + 1;
        [
            vec![self.batch, self.in_channels, self.length],
            vec![self.out_channels, self.in_channels / self.groups, self.kernel],
            vec![self.out_channels],
            vec![self.batch, self.out_channels, out_length],
        ]
    }

    /// What no step can do without: the operands, dy if it is given, and the larger of y and the
    /// gradients, which are not live together.
    fn tensor_bytes(&self, mode: Mode, gradient: Gradient) -> u64 {
        let [x, w, b, y] = self.shapes().map(|shape| shape.iter().product::<usize>());
        let given = if gradient == Gradient::Random { y } else { 0 };
        ((x + w + b + given + y.max(x + w + b)) * mode.dtype().size()) as u64
    }
}

/// The rows of the table that time and peak are scored on.
const SCORED: [Row; 16] = [
    Row::new(4000, [576, 1024], 11, 1),
    Row::new(512, [576, 1024], 64, 3),
    Row::new(512, [576, 1024], 64, 5),
    Row { dilation: 2, ..Row::new(512, [576, 1024], 64, 9) },
    Row::new(512, [576, 1024], 64, 31),
    Row { groups: 64, ..Row::new(512, [576, 1024], 64, 3) },
    Row { groups: 576, ..Row::new(512, [576, 576], 64, 7) },
    Row::new(8, [512, 512], 16384, 3),
    Row::new(16, [256, 256], 65536, 7),
    Row { stride: 4, ..Row::new(16, [1, 64], 64000, 25) },
    Row { stride: 2, ..Row::new(32, [64, 128], 16000, 15) },
    Row { dilation: 32, ..Row::new(8, [128, 128], 32768, 3) },
    Row::new(64, [256, 256], 1024, 3),
    Row::new(1, [512, 512], 4096, 3),
    Row::new(256, [128, 128], 512, 5),
    Row { groups: 768, ..Row::new(16, [768, 768], 1024, 31) },
];

/// Layers for which a vendor's heuristic takes a workspace of 100 GiB.
const SPIKE: [Row; 3] = [
    Row::new(512, [576, 1024], 64, 5),
    Row::new(512, [576, 1024], 64, 7),
    Row::new(512, [576, 1024], 64, 31),
];

/// One of each kind, for a CPU.
const SMALL: [Row; 5] = [
    Row::new(40, [72, 128], 11, 1),
    Row::new(8, [72, 128], 64, 5),
    Row { stride: 4, ..Row::new(2, [1, 16], 4000, 25) },
    Row { dilation: 4, groups: 8, ..Row::new(4, [64, 64], 512, 3) },
    Row { groups: 96, ..Row::new(8, [96, 96], 64, 7) },
];

fn sweep_row(samples: usize) -> Row {
    Row::new(samples, [576, 1024], 11, 1)
}

/// The rows that are asked for: a whole name is that row only, since one name can begin another.
fn select(rows: &[Row], wanted: &[String]) -> Vec<Row> {
    let exact = |name: &str| rows.iter().any(|row| row.name() == name);
    let takes = |wanted: &String, name: &str| {
        wanted == "all" || wanted == name || (!exact(wanted) && name.contains(wanted.as_str()))
    };
    rows.iter()
        .copied()
        .filter(|row| wanted.is_empty() || wanted.iter().any(|part| takes(part, &row.name())))
        .collect()
}

struct Data {
    x: Tensor,
    w: Tensor,
    b: Tensor,
    dy: Option<Tensor>,
}

impl Data {
    fn new(row: &Row, mode: Mode, gradient: Gradient, device: &Device) -> capgrad::Result<Data> {
        let random = |shape: Vec<usize>| Tensor::randn(shape, mode.dtype(), device);
        let [x, w, b, y] = row.shapes();
        Ok(Data {
            x: random(x)?,
            w: random(w)?,
            b: random(b)?,
            dy: if gradient == Gradient::Random { Some(random(y)?) } else { None },
        })
    }

    fn step(&self, options: &Conv1dOptions) -> capgrad::Result<()> {
        let tape = Tape::new();
        let x = tape.variable(self.x.clone())?;
        let w = tape.variable(self.w.clone())?;
        let b = tape.variable(self.b.clone())?;
        let gradients = match &self.dy {
            Some(dy) => x.conv1d(&w, Some(&b), options)?.backward_with(dy.clone())?,
            None => {
                // On a line of its own, so that the output is let go of before the backward pass.
                let loss = x.conv1d(&w, Some(&b), options)?.mean()?;
                loss.backward()?
            }
        };
        for variable in [&x, &w, &b] {
            assert!(gradients.get(variable).is_some(), "every gradient is wanted");
        }
        Ok(())
    }
}

/// What one row did in one mode under one cap. Bytes and milliseconds.
#[derive(Serialize)]
struct Measured {
    /// The median.
    ms: f64,
    ms_min: f64,
    ms_max: f64,
    /// The first step, which makes the plans and starts the libraries.
    ms_first: f64,
    steps_per_timing: usize,
    /// The most that was live in any step, the first included.
    peak: u64,
    /// Live with no tensors: what libraries hold.
    base: u64,
    /// What no step can do without.
    tensors: u64,
    /// `peak - base - tensors`: what the cap bounds.
    over_tensors: i64,
    /// The peak that a dry run of two steps predicts, and whether it is this one.
    predicted: u64,
    as_predicted: bool,
    /// Most workspace at one moment.
    workspace: u64,
    within_cap: bool,
    /// The driver's high mark of the device's pool, and what is used of it with no tensors.
    driver_peak: Option<u64>,
    driver_base: Option<u64>,
    taken: Vec<String>,
}

#[derive(Clone, Copy)]
struct Case {
    row: Row,
    mode: Mode,
    cap: Cap,
    gradient: Gradient,
}

/// The peak of two steps, without running them.
fn predict(device: &Device, case: &Case) -> capgrad::Result<u64> {
    let dry = device.dry();
    let data = Data::new(&case.row, case.mode, case.gradient, &dry)?;
    dry.reset_peak();
    for _ in 0..2 {
        data.step(&case.row.options())?;
    }
    Ok(dry.report().peak)
}

fn measure(arguments: &Arguments, case: &Case) -> capgrad::Result<Measured> {
    let device = &arguments.device;
    let options = case.row.options();
    device.set_allow_tf32(case.mode == Mode::Tf32);
    match case.cap.0 {
        Some(bytes) => device.set_workspace_cap(bytes),
        None => device.remove_workspace_cap(),
    }
    // Only this case's plans are to be told of, and what other cases left cached is not its own.
    device.forget_plans();
    device.trim()?;

    let predicted = predict(device, case)?;
    let data = Data::new(&case.row, case.mode, case.gradient, device)?;
    device.synchronize()?;
    device.reset_peak();
    let steps = |count: usize| {
        let start = Instant::now();
        for _ in 0..count {
            data.step(&options)?;
        }
        device.synchronize()?;
        Ok::<f64, capgrad::Error>(start.elapsed().as_secs_f64() * 1e3)
    };
    let ms_first = steps(1)?;
    steps(1)?;
    let warm = steps(1)?;
    // The queue hides the host's part of a step only when several steps are in it.
    let steps_per_timing = (arguments.timing_ms / warm).ceil().clamp(1.0, 200.0) as usize;
    steps(steps_per_timing)?;
    let mut times = Vec::new();
    for _ in 0..arguments.timings.max(1) {
        times.push(steps(steps_per_timing)? / steps_per_timing as f64);
    }
    let report = device.report();
    drop(data);
    device.synchronize()?;
    let after = device.report();

    let ms = median(&mut times);
    let (base, tensors) = (after.live.total(), case.row.tensor_bytes(case.mode, case.gradient));
    let over_tensors = report.peak as i64 - base as i64 - tensors as i64;
    Ok(Measured {
        ms,
        ms_min: times[0],
        ms_max: times[times.len() - 1],
        ms_first,
        steps_per_timing,
        peak: report.peak,
        base,
        tensors,
        over_tensors,
        predicted,
        as_predicted: predicted == report.peak,
        workspace: report.peaks[Purpose::Workspace],
        within_cap: case.cap.0.is_none_or(|cap| over_tensors <= cap as i64),
        driver_peak: report.driver.map(|driver| driver.pool_used_peak),
        driver_base: after.driver.map(|driver| driver.pool_used),
        taken: taken(device),
    })
}

/// Where the lines go, and how many of them say that something failed.
struct Output {
    lines: Lines,
    failures: usize,
}

impl Output {
    /// Measures and prints one case; one that fails is a line too, and the next one is tried.
    fn case(
        &mut self,
        arguments: &Arguments,
        case: &Case,
    ) -> Result<Option<Measured>, Box<dyn Error>> {
        let mut value = json!({
            "kind": "step", "row": case.row.name(), "mode": case.mode, "cap": case.cap,
            "gradient": case.gradient, "device": arguments.device.name(),
        });
        let fields = value.as_object_mut().expect("an object was just made");
        let measured = measure(arguments, case);
        match &measured {
            Ok(measured) => {
                let more = serde_json::to_value(measured)?;
                fields.extend(more.as_object().cloned().unwrap_or_default());
            }
            Err(error) => {
                self.failures += 1;
                fields.insert("error".into(), error.to_string().into());
            }
        }
        self.lines.line(&value)?;
        if arguments.plans {
            let mut plans = arguments.device.plans();
            plans.sort_by(|a, b| a.operation().cmp(b.operation()));
            for plan in plans {
                println!("{plan}");
            }
        }
        Ok(measured.ok())
    }

    /// What a recording adds to a step's time: steps with and without it in turn, and the median of the
    /// ratios.
    fn recording(&mut self, arguments: &Arguments, case: &Case) -> Result<(), Box<dyn Error>> {
        let (device, options) = (&arguments.device, case.row.options());
        let data = Data::new(&case.row, case.mode, case.gradient, device)?;
        let steps = |count: usize, recording: bool| {
            device.set_recording(recording);
            device.reset_peak();
            let start = Instant::now();
            for _ in 0..count {
                data.step(&options)?;
            }
            device.synchronize()?;
            Ok::<f64, capgrad::Error>(start.elapsed().as_secs_f64() * 1e3 / count as f64)
        };
        steps(3, false)?;
        let once = steps(3, false)?;
        let count = (arguments.timing_ms / once).ceil().clamp(1.0, 2000.0) as usize;
        let mut ratios = Vec::new();
        let mut without = Vec::new();
        for _ in 0..arguments.timings.max(1) * 3 {
            let plain = steps(count, false)?;
            ratios.push(steps(count, true)? / plain);
            without.push(plain);
        }
        device.set_recording(false);
        device.reset_peak();
        self.lines.line(&json!({
            "kind": "recording", "row": case.row.name(), "device": device.name(),
            "ms": median(&mut without), "with_over_without": median(&mut ratios),
        }))?;
        Ok(())
    }

    /// Whether the peaks of a sweep are a straight line, and how far its times jump.
    fn summary(
        &mut self,
        mode: Mode,
        cap: Cap,
        points: &[(usize, Measured)],
    ) -> std::io::Result<()> {
        if points.len() < 2 {
            return Ok(());
        }
        let peak = |m: &Measured| (m.peak - m.base) as f64;
        let count = points.len() as f64;
        let mean =
            |f: &dyn Fn(&(usize, Measured)) -> f64| points.iter().map(f).sum::<f64>() / count;
        let (mean_n, mean_peak) = (mean(&|p| p.0 as f64), mean(&|p| peak(&p.1)));
        let covariance = mean(&|p| (p.0 as f64 - mean_n) * (peak(&p.1) - mean_peak));
        let slope = covariance / mean(&|p| (p.0 as f64 - mean_n).powi(2));
        let off_line = points
            .iter()
            .map(|(n, m)| (peak(m) - mean_peak - slope * (*n as f64 - mean_n)).abs())
            .fold(0.0, f64::max);
        // Up or down: the larger of two neighbours over the smaller.
        let (jump, at) = points
            .windows(2)
            .map(|pair| {
                (pair[0].1.ms.max(pair[1].1.ms) / pair[0].1.ms.min(pair[1].1.ms), pair[1].0)
            })
            .fold((1.0, 0), |most: (f64, usize), next| if next.0 > most.0 { next } else { most });
        self.lines.line(&json!({
            "kind": "sweep", "mode": mode, "cap": cap, "points": points.len(),
            "bytes_per_sample": slope, "most_off_line": off_line,
            "most_over_tensors": points.iter().map(|(_, m)| m.over_tensors).max(),
            "within_cap": points.iter().all(|(_, m)| m.within_cap),
            "largest_jump": jump, "largest_jump_at": at,
        }))
    }
}

fn or<T: Clone>(given: &[T], otherwise: &[T]) -> Vec<T> {
    if given.is_empty() { otherwise.to_vec() } else { given.to_vec() }
}

fn run(arguments: &Arguments) -> Result<usize, Box<dyn Error>> {
    let device = &arguments.device;
    let lines = Lines::new(arguments.json.as_deref())?;
    let mut output = Output { lines, failures: 0 };
    device.set_seed(1);
    device.set_ranking(if arguments.measured { Ranking::Measured } else { Ranking::Predicted });
    let mib = |mib: u64| Cap(Some(mib << 20));

    if arguments.sweep {
        let (from, to, step) = (arguments.samples[0], arguments.samples[1], arguments.samples[2]);
        let gradient = arguments.gradients.first().copied().unwrap_or(Gradient::Random);
        for mode in or(&arguments.modes, &[Mode::F32, Mode::Tf32]) {
            for cap in or(&arguments.caps, &[mib(64)]) {
                let mut points = Vec::new();
                for samples in (from..=to).step_by(step.max(1)) {
                    let case = Case { row: sweep_row(samples), mode, cap, gradient };
                    if let Some(measured) = output.case(arguments, &case)? {
                        points.push((samples, measured));
                    }
                }
                output.summary(mode, cap, &points)?;
            }
        }
        return Ok(output.failures);
    }

    let small = arguments.rows == ["small"]
        || arguments.rows.is_empty() && !arguments.spike && device.name().starts_with("cpu");
    let (rows, modes, gradients) = if arguments.spike {
        let both = [Gradient::Mean, Gradient::Random];
        (select(&SPIKE, &arguments.rows), vec![Mode::F32], or(&arguments.gradients, &both))
    } else {
        let rows = match arguments.drawn[..] {
            [count, seed] => {
                let mut numbers = Numbers(seed);
                (0..count).map(|_| Row::draw(&mut numbers)).collect()
            }
            _ if small => SMALL.to_vec(),
            _ => select(&SCORED, &arguments.rows),
        };
        let modes = or(&arguments.modes, Mode::value_variants());
        (rows, modes, or(&arguments.gradients, &[Gradient::Random]))
    };
    let rows: Vec<Row> = match arguments.gflop {
        Some(gflop) => rows.into_iter().map(|row| row.within(gflop)).collect(),
        None => rows,
    };
    if rows.is_empty() {
        return Err(format!("no row is called {:?}; --list shows them", arguments.rows).into());
    }
    if arguments.recording {
        for &row in &rows {
            let case = Case { row, mode: Mode::F32, cap: mib(64), gradient: gradients[0] };
            output.recording(arguments, &case)?;
        }
        return Ok(output.failures);
    }
    let caps = or(&arguments.caps, &[mib(0), mib(64), mib(512)]);
    for mode in modes {
        for &row in &rows {
            if arguments.list {
                let [x, w, b, y] = row.shapes();
                let tensors: Vec<_> =
                    gradients.iter().map(|&g| row.tensor_bytes(mode, g)).collect();
                output.lines.line(&json!({
                    "kind": "row", "row": row.name(), "mode": mode, "sizes": row,
                    "padding": row.padding(), "x": x, "w": w, "b": b, "y": y,
                    "gradients": gradients, "tensors": tensors,
                }))?;
                continue;
            }
            for &gradient in &gradients {
                for &cap in &caps {
                    output.case(arguments, &Case { row, mode, cap, gradient })?;
                }
            }
        }
    }
    Ok(output.failures)
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failures) => {
            eprintln!("{failures} failed");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
