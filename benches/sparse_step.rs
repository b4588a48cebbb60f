//! Products with a constant sparse matrix in each of its forms: time and memory of a step, every
//! candidate of every product beside what the prediction takes, a matrix larger than the device's
//! limit, and a training run's memory. One line of JSON a measurement; `compare_pytorch.py --sparse`
//! sets the first of these beside PyTorch.
//!
//! ```text
//! cargo bench --bench sparse_step
//! cargo bench --bench sparse_step -- --table --rows 268800 --nnz-per-row 1100
//! cargo bench --bench sparse_step -- --products --kinds powerlaw,banded --dtypes f32 --widths 1,64
//! cargo bench --bench sparse_step -- --streaming --limit 1GiB
//! cargo bench --bench sparse_step -- --steps 200
//! ```

mod common;

use capgrad::{
    DType, Device, DriverMemory, GIB, MIB, Parameter, Plan, Purpose, Ranking, Reduction, Sgd,
    SparseForm, SparseMatrix, SparseOptions, StoredTranspose, Tape, Tensor, Var, Verdict, Weighed,
    parse_bytes,
};
use clap::{Parser, ValueEnum};
use common::matrices::{self, Kind, Pattern};
use common::{Lines, median, taken};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

#[derive(Parser)]
#[command(about = "Sparse products: steps, candidates, streaming, training; one line of JSON each")]
struct Arguments {
    /// Time and memory of a step, by form, with one copy and with a transposed one.
    #[arg(long)]
    table: bool,
    /// Every candidate of every product, measured.
    #[arg(long)]
    products: bool,
    /// A matrix under a memory limit.
    #[arg(long)]
    streaming: bool,
    /// So many training steps, and what the driver says after the second and the last. Without any
    /// of these four, all of them, this one with 200.
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// Rows and columns of the uniform matrix; 268800 over the root of the scale if left out.
    #[arg(long)]
    rows: Option<usize>,
    /// Entries in each of its rows; 1100 over the root of the scale if left out.
    #[arg(long)]
    nnz_per_row: Option<usize>,
    /// Numbers of dense vectors.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64])]
    widths: Vec<usize>,
    /// Forms that are asked for; those that a device does not have are left out.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tiled,csr")]
    forms: Vec<Form>,
    /// Kinds of matrices whose products are measured; all if left out.
    #[arg(long, value_enum, value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// Their types.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "f32,f64,f16,bf16")]
    dtypes: Vec<Type>,
    /// Divides the number of entries; 1 on a GPU and 1000 on a CPU if left out.
    #[arg(long)]
    scale: Option<f64>,
    /// Workspace cap: 0, 64MiB, …
    #[arg(long, default_value = "64MiB", value_parser = parse_bytes)]
    cap: u64,
    /// Memory limit of the device while it streams.
    #[arg(long, default_value = "1GiB", value_parser = parse_bytes)]
    limit: u64,
    /// No other product is measured after so many seconds.
    #[arg(long, default_value_t = f64::INFINITY)]
    seconds: f64,
    /// Writes the lines to this file too, as they come.
    #[arg(long)]
    json: Option<String>,
    /// Device: best, cpu or cuda:N.
    #[arg(long, default_value = "best")]
    device: Device,
    /// Timings of which the median is taken.
    #[arg(long, default_value_t = 10)]
    timings: usize,
    /// A timing covers as many runs as take this long.
    #[arg(long, default_value_t = 10.0, value_name = "MS")]
    timing_ms: f64,
    /// What `cargo bench` passes.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    Auto,
    Csr,
    Tiled,
    Streamed,
}

impl Form {
    fn asked(self) -> SparseForm {
        match self {
            Form::Auto => SparseForm::Auto,
            Form::Csr => SparseForm::Csr,
            Form::Tiled => SparseForm::Tiled,
            Form::Streamed => SparseForm::Streamed,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Type {
    F32,
    F64,
    F16,
    Bf16,
}

impl Type {
    fn dtype(self) -> DType {
        match self {
            Type::F32 => DType::F32,
            Type::F64 => DType::F64,
            Type::F16 => DType::F16,
            Type::Bf16 => DType::BF16,
        }
    }
}

/// Milliseconds of one run.
#[derive(Clone, Copy, Serialize)]
struct Times {
    /// The median.
    ms: f64,
    ms_min: f64,
    ms_max: f64,
}

/// A matrix on the device.
struct Held {
    matrix: SparseMatrix,
    /// What the device's live bytes grew by.
    resident: u64,
    move_ms: f64,
}

impl Held {
    fn form(&self) -> String {
        name(self.matrix.form())
    }

    /// A field that every line has.
    fn about(&self) -> Value {
        let a = &self.matrix;
        json!({
            "form": self.form(), "transpose": a.has_stored_transpose(), "dtype": a.dtype().name(),
            "rows": a.rows(), "cols": a.cols(), "nnz": a.nnz(), "bytes": a.bytes(),
            "resident": self.resident, "move_ms": self.move_ms,
        })
    }
}

fn name(form: SparseForm) -> String {
    format!("{form:?}").to_lowercase()
}

/// Adds the fields of one object to another.
fn extend(value: &mut Value, more: Value) {
    if let (Value::Object(fields), Value::Object(more)) = (value, more) {
        fields.extend(more);
    }
}

/// One line of the summary of the products.
struct Summary {
    case: String,
    best: (String, f64),
    taken: (String, f64),
    cusparse: Option<f64>,
    floor: f64,
    floor_dense: f64,
}

struct Bench {
    arguments: Arguments,
    device: Device,
    lines: Lines,
    start: Instant,
    scale: f64,
    patterns: HashMap<Kind, Pattern>,
    /// The matrix that was made last, which is often wanted again.
    last: Option<(Kind, DType, SparseMatrix)>,
    failures: usize,
}

impl Bench {
    fn new(arguments: Arguments) -> Result<Bench, Box<dyn Error>> {
        let cpu = arguments.device.name().starts_with("cpu");
        // On a CPU a device with a meter of its own, on which the matrix as it is made is not.
        let device =
            if cpu { Device::new_cpu(Default::default())? } else { arguments.device.clone() };
        device.set_seed(1);
        device.set_workspace_cap(arguments.cap);
        Ok(Bench {
            lines: Lines::new(arguments.json.as_deref())?,
            start: Instant::now(),
            scale: arguments.scale.unwrap_or(if cpu { 1000.0 } else { 1.0 }).max(1e-3),
            patterns: HashMap::new(),
            last: None,
            failures: 0,
            arguments,
            device,
        })
    }

    /// A matrix on the CPU.
    fn host(&mut self, kind: Kind, dtype: DType) -> capgrad::Result<SparseMatrix> {
        if let Some((.., matrix)) = self.last.as_ref().filter(|l| (l.0, l.1) == (kind, dtype)) {
            return Ok(matrix.clone());
        }
        // Before the next one is made, so that there are not two.
        self.last = None;
        let (scale, arguments) = (self.scale, &self.arguments);
        let pattern = self.patterns.entry(kind).or_insert_with(|| match kind {
            Kind::Uniform => {
                let (size, per_row) = matrices::uniform(scale);
                let size = arguments.rows.unwrap_or(size).max(1);
                Pattern::uniform(size, arguments.nnz_per_row.unwrap_or(per_row))
            }
            other => Pattern::new(other, scale),
        });
        let matrix = pattern.matrix(dtype)?;
        self.last = Some((kind, dtype, matrix.clone()));
        Ok(matrix)
    }

    fn hold(&self, host: &SparseMatrix, options: SparseOptions) -> capgrad::Result<Held> {
        self.device.synchronize()?;
        self.device.trim()?;
        let before = self.device.live_bytes();
        let start = Instant::now();
        let matrix = host.to_with(&self.device, options)?;
        self.device.synchronize()?;
        let move_ms = start.elapsed().as_secs_f64() * 1e3;
        let resident = self.device.live_bytes().saturating_sub(before);
        Ok(Held { matrix, resident, move_ms })
    }

    fn randn(&self, shape: [usize; 2], dtype: DType) -> capgrad::Result<Tensor> {
        Tensor::randn(shape, dtype, &self.device)
    }

    /// Groups of runs with the device synchronised around each, after warming up.
    fn time(&self, mut run: impl FnMut() -> capgrad::Result<()>) -> capgrad::Result<Times> {
        let mut runs = |count: usize| {
            let start = Instant::now();
            for _ in 0..count {
                run()?;
            }
            self.device.synchronize()?;
            Ok::<f64, capgrad::Error>(start.elapsed().as_secs_f64() * 1e3)
        };
        self.device.synchronize()?;
        runs(1)?;
        // The queue hides the host's part of a run only when several runs are in it.
        let count = (self.arguments.timing_ms / runs(1)?).ceil().clamp(1.0, 200.0) as usize;
        runs(count)?;
        let mut times = Vec::new();
        for _ in 0..self.arguments.timings.max(1) {
            times.push(runs(count)? / count as f64);
        }
        let ms = median(&mut times);
        Ok(Times { ms, ms_min: times[0], ms_max: times[times.len() - 1] })
    }

    /// A failure is a line too, and what comes after it is tried.
    fn failed(&mut self, mut value: Value, error: &dyn Error) -> std::io::Result<()> {
        self.failures += 1;
        extend(&mut value, json!({"error": error.to_string()}));
        self.lines.line(&value)
    }

    // ---- A step by form.

    fn table(&mut self) -> Result<(), Box<dyn Error>> {
        let host = self.host(Kind::Uniform, DType::F32)?;
        for stored_transpose in [StoredTranspose::Never, StoredTranspose::Always] {
            // The transposed copy is made once, on the CPU, for all forms.
            let host = if stored_transpose == StoredTranspose::Always {
                host.to_with(
                    host.device(),
                    SparseOptions { stored_transpose, ..Default::default() },
                )?
            } else {
                host.clone()
            };
            // The form that is chosen for each width, first: which of the lines are its own. A matrix
            // that moved for that stays for its own lines.
            let widths = self.arguments.widths.clone();
            let mut chosen: Vec<Option<SparseForm>> = Vec::new();
            let mut moved: Vec<Held> = Vec::new();
            for &width in &widths {
                let options = SparseOptions { stored_transpose, width, form: SparseForm::Auto };
                // From the one before, which is shared where the form is the same.
                let from = moved.last().map_or(&host, |held| &held.matrix);
                let held = match self.hold(from, options) {
                    Ok(held) => held,
                    Err(error) => {
                        let value = json!({"kind": "step", "form": "auto", "n": width});
                        self.failed(value, &error)?;
                        chosen.push(None);
                        continue;
                    }
                };
                if let Some(layout) = held.matrix.layout() {
                    eprint!("{layout}");
                }
                let form = held.matrix.form();
                chosen.push(Some(form));
                if moved.iter().all(|other| other.matrix.form() != form) {
                    moved.push(held);
                }
            }
            for form in self.arguments.forms.clone().into_iter().map(Form::asked) {
                if form == SparseForm::Auto || moved.iter().any(|held| held.matrix.form() == form) {
                    continue;
                }
                let options = SparseOptions { stored_transpose, form, ..Default::default() };
                match self.hold(&host, options) {
                    Ok(held) if held.matrix.form() == form => moved.push(held),
                    Ok(_) => {}
                    Err(error) => {
                        self.failed(json!({"kind": "step", "form": name(form)}), &error)?
                    }
                }
            }
            for held in &moved {
                for (&width, &chosen) in widths.iter().zip(&chosen) {
                    let mut value = json!({
                        "kind": "step", "device": self.device.name(), "n": width,
                        "auto": chosen == Some(held.matrix.form()),
                    });
                    extend(&mut value, held.about());
                    match self.step(held, width) {
                        Ok(more) => {
                            extend(&mut value, more);
                            self.lines.line(&value)?;
                        }
                        Err(error) => self.failed(value, &error)?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Forward, and forward with backward from a given gradient. Bytes are those of this matrix and
    /// of the step, without what libraries and other matrices hold.
    fn step(&self, held: &Held, width: usize) -> capgrad::Result<Value> {
        let (a, device) = (&held.matrix, &self.device);
        device.forget_plans();
        device.trim()?;
        let others = device.live_bytes() - held.resident;
        let x = self.randn([width, a.cols()], a.dtype())?;
        let dy = self.randn([width, a.rows()], a.dtype())?;
        let forward = || {
            let tape = Tape::new();
            a.apply(&tape.variable(x.clone())?).map(drop)
        };
        let step = || {
            let tape = Tape::new();
            let x = tape.variable(x.clone())?;
            let gradients = a.apply(&x)?.backward_with(dy.clone())?;
            assert!(gradients.get(&x).is_some(), "the gradient is wanted");
            Ok(())
        };
        device.synchronize()?;
        device.reset_peak();
        let live = device.live_bytes();
        forward()?;
        device.synchronize()?;
        let peak_forward = device.report().peak;
        device.reset_peak();
        let forward = self.time(forward)?;
        let both = self.time(step)?;
        let report = device.report();
        let predicted = self.predict(held, width)?;
        let mut value = json!({
            "predicted": predicted, "as_predicted": predicted == report.peak - others,
            "live": live - others, "peak_forward": peak_forward - others,
            "peak": report.peak - others, "over_live": report.peak - live,
            "workspace": report.peaks[Purpose::Workspace],
            "driver_peak": report.driver.map(|driver| driver.pool_used_peak),
            "ms_forward": forward.ms, "taken": taken(device),
        });
        extend(&mut value, json!(both));
        Ok(value)
    }

    /// The peak of the same two steps of a dry run, of this matrix and of the step.
    fn predict(&self, held: &Held, width: usize) -> capgrad::Result<u64> {
        let dry = self.device.dry();
        let others = dry.live_bytes();
        let outline = held.matrix.outlined(&dry)?;
        let stored_transpose = match held.matrix.has_stored_transpose() {
            true => StoredTranspose::Always,
            false => StoredTranspose::Never,
        };
        let form = held.matrix.form();
        let a = outline.to_with(&dry, SparseOptions { stored_transpose, form, width })?;
        let x = Tensor::randn([width, a.cols()], a.dtype(), &dry)?;
        let dy = Tensor::randn([width, a.rows()], a.dtype(), &dry)?;
        dry.reset_peak();
        for _ in 0..2 {
            let tape = Tape::new();
            let x = tape.variable(x.clone())?;
            a.apply(&x)?.backward_with(dy.clone())?;
        }
        Ok(dry.report().peak - others)
    }

    // ---- Every candidate of every product.

    /// Bytes a second, read and written, of a copy from the device's memory to its memory.
    fn copy_speed(&mut self) -> Result<f64, Box<dyn Error>> {
        let cpu = self.device.name().starts_with("cpu");
        let bytes = if cpu { 64 * MIB } else { 2 * GIB };
        let shape = [(bytes / 4) as usize];
        let source = Tensor::rand(shape, DType::F32, &self.device)?;
        let target = Tensor::zeros(shape, DType::F32, &self.device)?;
        let times = self.time(|| target.copy_from(&source))?;
        let speed = 2.0 * bytes as f64 / (times.ms * 1e-3);
        self.lines.line(&json!({
            "kind": "copy", "device": self.device.name(), "bytes": bytes, "ms": times.ms,
            "bytes_per_second": speed,
            "what": "from the device's memory to its memory, read and written",
        }))?;
        Ok(speed)
    }

    fn products(&mut self) -> Result<(), Box<dyn Error>> {
        let speed = self.copy_speed()?;
        let Arguments { seconds, .. } = self.arguments;
        let kinds = if self.arguments.kinds.is_empty() {
            Kind::value_variants().to_vec()
        } else {
            self.arguments.kinds.clone()
        };
        let (dtypes, forms) = (self.arguments.dtypes.clone(), self.arguments.forms.clone());
        let widths = self.arguments.widths.clone();
        let (mut summaries, mut left_out) = (Vec::new(), Vec::new());
        // The first type with all kinds comes first: the most that a short time can tell.
        for dtype in dtypes.into_iter().map(Type::dtype) {
            for &kind in &kinds {
                let kind_name = json!(kind).as_str().unwrap_or_default().to_owned();
                for &form in &forms {
                    if self.start.elapsed().as_secs_f64() > seconds {
                        left_out.push(format!("{kind_name} {dtype} {}", name(form.asked())));
                        continue;
                    }
                    let about = json!({
                        "kind": "product", "device": self.device.name(), "matrix": kind_name,
                        "dtype": dtype.name(), "form": name(form.asked()),
                    });
                    let host = self.host(kind, dtype)?;
                    let options = SparseOptions {
                        stored_transpose: StoredTranspose::Never,
                        form: form.asked(),
                        ..Default::default()
                    };
                    let held = match self.hold(&host, options) {
                        Ok(held) => held,
                        Err(error) => {
                            self.failed(about, &error)?;
                            continue;
                        }
                    };
                    if form != Form::Auto && held.matrix.form() != form.asked() {
                        continue;
                    }
                    for &width in &widths {
                        for transposed in [false, true] {
                            let product = if transposed { "Aᵀ·G" } else { "A·X" };
                            if self.start.elapsed().as_secs_f64() > seconds {
                                let form = held.form();
                                let case = format!("{kind_name} {dtype} {form} {width} {product}");
                                left_out.push(case);
                                continue;
                            }
                            let mut value = about.clone();
                            extend(&mut value, held.about());
                            extend(&mut value, json!({"n": width, "product": product}));
                            let case = format!(
                                "{kind_name:<10} {dtype:<4} {width:>4}  {product:<4}  {:<8}",
                                held.form(),
                            );
                            let measured = self.product(&held.matrix, width, transposed, speed);
                            self.device.set_ranking(Ranking::Predicted);
                            match measured {
                                Ok((more, summary)) => {
                                    extend(&mut value, more);
                                    self.lines.line(&value)?;
                                    summaries.push(Summary { case, ..summary });
                                }
                                Err(error) => self.failed(value, &*error)?,
                            }
                        }
                    }
                }
            }
        }
        print_summaries(&summaries, speed);
        if !left_out.is_empty() {
            println!("not measured, the time was up: {}", left_out.join("; "));
        }
        Ok(())
    }

    fn product(
        &self,
        a: &SparseMatrix,
        width: usize,
        transposed: bool,
        speed: f64,
    ) -> Result<(Value, Summary), Box<dyn Error>> {
        let device = &self.device;
        device.forget_plans();
        device.trim()?;
        device.set_ranking(Ranking::Predicted);
        let predicted = a.plan(width)?[usize::from(transposed)].clone();
        device.set_ranking(Ranking::Measured);
        let view = if transposed { a.transpose() } else { a.clone() };
        let x = Var::from(self.randn([width, view.cols()], a.dtype())?);
        device.synchronize()?;
        view.apply(&x)?;
        device.synchronize()?;
        let of_this = |plan: &&std::sync::Arc<Plan>| {
            let measured = plan.weighed().iter().any(|weighed| weighed.measured.is_some());
            plan.operation() == predicted.operation() && measured
        };
        let plans = device.plans();
        let plan = plans.iter().find(of_this).ok_or("no measured plan was kept")?;

        let weighed = plan.weighed();
        let ms = |weighed: &Weighed| weighed.measured.map_or(f64::INFINITY, |s| s * 1e3);
        let fastest = |wanted: &dyn Fn(&Weighed) -> bool| {
            let timed = weighed.iter().filter(|w| w.measured.is_some() && wanted(w));
            timed.min_by(|a, b| ms(a).total_cmp(&ms(b)))
        };
        let best = fastest(&|_| true).ok_or("no candidate was measured")?;
        let first = predicted.taken();
        let same = |w: &Weighed| w.candidate.name == first.name && w.candidate.split == first.split;
        let taken = fastest(&same).ok_or_else(|| format!("{} was not measured", first.name))?;
        let cusparse = fastest(&|w| w.candidate.name.contains("cuSPARSE"));

        let describe = |w: &Weighed| {
            let candidate = &w.candidate;
            json!({
                "name": candidate.name, "split": candidate.split,
                "workspace": candidate.workspace, "deterministic": candidate.deterministic,
                "predicted": candidate.seconds, "measured": w.measured,
                "verdict": match &w.verdict {
                    Verdict::Failed(reason) => format!("failed: {reason}"),
                    other => format!("{other:?}"),
                },
            })
        };
        let dense = (width * (a.rows() + a.cols()) * a.dtype().size()) as f64;
        let floor = a.bytes() as f64 / speed * 1e3;
        let floor_dense = (a.bytes() as f64 + dense) / speed * 1e3;
        let value = json!({
            "operation": plan.operation(), "cap": plan.cap(),
            "candidates": weighed.iter().map(describe).collect::<Vec<_>>(),
            "best": describe(best), "taken": describe(taken),
            "taken_over_best": ms(taken) / ms(best), "cusparse": cusparse.map(describe),
            // The matrix once at the speed of a copy; with the dense operands, too.
            "floor_ms": floor, "floor_dense_ms": floor_dense,
        });
        let label = |w: &Weighed| {
            let split = &w.candidate.split;
            let comma = if split.is_empty() { "" } else { ", " };
            (format!("{}{comma}{split}", w.candidate.name), ms(w))
        };
        let summary = Summary {
            case: String::new(),
            best: label(best),
            taken: label(taken),
            cusparse: cusparse.map(ms),
            floor,
            floor_dense,
        };
        Ok((value, summary))
    }

    // ---- A matrix larger than the limit.

    fn streaming(&mut self) -> Result<(), Box<dyn Error>> {
        let host = self.host(Kind::Uniform, DType::F32)?;
        self.device.trim()?;
        self.device.set_memory_limit(Some(self.arguments.limit))?;
        let measured = self.stream(&host);
        self.device.set_memory_limit(None)?;
        let value = json!({
            "kind": "streaming", "device": self.device.name(), "limit": self.arguments.limit,
            "cap": self.arguments.cap, "n": 1,
        });
        match measured {
            Ok(more) => {
                let mut value = value;
                extend(&mut value, more);
                if value["form"] != "streamed" {
                    eprintln!("not streamed: the form is {}", value["form"]);
                }
                Ok(self.lines.line(&value)?)
            }
            Err(error) => Ok(self.failed(value, &error)?),
        }
    }

    fn stream(&self, host: &SparseMatrix) -> capgrad::Result<Value> {
        let device = &self.device;
        device.forget_plans();
        // The move is under the limit, too.
        device.reset_peak();
        let stored_transpose = StoredTranspose::Never;
        let held = self.hold(host, SparseOptions { stored_transpose, ..Default::default() })?;
        let a = &held.matrix;
        if let Some(layout) = a.layout() {
            eprint!("{layout}");
        }
        let transposed = a.transpose();
        let x = Var::from(self.randn([1, a.cols()], a.dtype())?);
        let dy = Var::from(self.randn([1, a.rows()], a.dtype())?);
        let forward = self.time(|| a.apply(&x).map(drop))?;
        let backward = self.time(|| transposed.apply(&dy).map(drop))?;
        let report = device.report();
        let speed = |times: Times| a.bytes() as f64 / (times.ms * 1e-3) / 1e9;
        let mut value = held.about();
        extend(
            &mut value,
            json!({
                "ms_forward": forward.ms, "ms_backward": backward.ms,
                "gb_per_second_forward": speed(forward),
                "gb_per_second_backward": speed(backward),
                "peak": report.peak, "within_limit": report.peak <= self.arguments.limit,
                "workspace": report.peaks[Purpose::Workspace],
                "driver_peak": report.driver.map(|driver| driver.pool_used_peak),
                "streamed": a.form() == SparseForm::Streamed, "taken": taken(device),
            }),
        );
        Ok(value)
    }

    // ---- What a training run leaves in memory.

    fn train(&mut self, steps: usize) -> Result<(), Box<dyn Error>> {
        let host = self.host(Kind::Uniform, DType::F32)?;
        let width = self.arguments.widths.first().copied().unwrap_or(1);
        let held = self.hold(&host, SparseOptions { width, ..Default::default() })?;
        let (a, device) = (&held.matrix, &self.device);
        device.forget_plans();
        let target = Var::from(self.randn([width, a.rows()], a.dtype())?);
        let x = Parameter::new("x", self.randn([width, a.cols()], a.dtype())?)?;
        let mut sgd = Sgd::new([x.clone()], Default::default())?;
        let mut figures: Vec<(u64, Option<DriverMemory>)> = Vec::new();
        let start = Instant::now();
        for step in 1..=steps {
            let tape = Tape::new();
            let loss = a.apply(&tape.parameter(&x))?.mse_loss(&target, Reduction::Mean)?;
            sgd.step(&loss.backward()?)?;
            drop(tape);
            if step == 2 || step == steps {
                device.synchronize()?;
                figures.push((device.live_bytes(), device.report().driver));
            }
        }
        let ms = start.elapsed().as_secs_f64() * 1e3 / steps.max(1) as f64;
        let used = |figure: &(u64, Option<DriverMemory>)| {
            (figure.0, figure.1.map(|driver| driver.pool_used))
        };
        let equal = figures.windows(2).all(|pair| used(&pair[0]) == used(&pair[1]));
        let describe = |figure: &(u64, Option<DriverMemory>)| {
            json!({
                "live": figure.0, "used": figure.1.map(|driver| driver.pool_used),
                "used_peak": figure.1.map(|driver| driver.pool_used_peak),
                "reserved": figure.1.map(|driver| driver.pool_reserved),
                "free": figure.1.map(|driver| driver.free),
            })
        };
        let mut value = json!({
            "kind": "training", "device": device.name(), "n": width, "steps": steps,
            "ms_per_step": ms, "after_2": figures.first().map(describe),
            "after_all": figures.last().map(describe), "equal": equal, "taken": taken(device),
        });
        extend(&mut value, held.about());
        self.lines.line(&value)?;
        if !equal {
            self.failures += 1;
            eprintln!("what is used after {steps} steps is not what it was after 2");
        }
        Ok(())
    }

    fn run(&mut self) -> Result<(), Box<dyn Error>> {
        let Arguments { table, products, streaming, steps, .. } = self.arguments;
        let all = !(table || products || streaming || steps.is_some());
        if table || all {
            self.table()?;
        }
        if streaming || all {
            self.streaming()?;
        }
        if let Some(steps) = steps.or(all.then_some(200)) {
            self.train(steps)?;
        }
        // Last, since it is what a short time cuts off.
        if products || all {
            self.products()?;
        }
        Ok(())
    }
}

fn print_summaries(summaries: &[Summary], speed: f64) {
    println!(
        "\nfloor: the bytes of the form, and those with x and y once, at {:.3} TB/s, which a copy \
         on the device reached (read and written)",
        speed / 1e12
    );
    println!(
        "{:<10} {:<4} {:>4}  {:<4}  {:<8} {:>10} {:>8} {:>10} {:>10} {:>10}  best; taken",
        "matrix", "type", "n", "", "form", "best ms", "taken ×", "cuSPARSE", "floor", "with x, y",
    );
    for summary in summaries {
        let Summary { case, best, taken, cusparse, floor, floor_dense } = summary;
        let cusparse = cusparse.map_or("-".to_owned(), |ms| format!("{ms:.4}"));
        let other = if taken.0 == best.0 { String::new() } else { format!("; {}", taken.0) };
        println!(
            "{case} {:>10.4} {:>8.2} {cusparse:>10} {floor:>10.4} {floor_dense:>10.4}  {}{other}",
            best.1,
            taken.1 / best.1,
            best.0,
        );
    }
    let losses: Vec<f64> = summaries.iter().map(|s| s.taken.1 / s.best.1).collect();
    let count = losses.len().max(1) as f64;
    let mean = (losses.iter().map(|loss| loss.ln()).sum::<f64>() / count).exp();
    println!(
        "{} products; what the prediction takes is within 10 % of the best in {:.0} %, {mean:.3} times \
         its time on average, {:.2} at worst",
        losses.len(),
        100.0 * losses.iter().filter(|&&loss| loss <= 1.1).count() as f64 / count,
        losses.iter().copied().fold(1.0, f64::max),
    );
}

fn main() -> ExitCode {
    let run = || -> Result<usize, Box<dyn Error>> {
        let mut bench = Bench::new(Arguments::parse())?;
        bench.run()?;
        Ok(bench.failures)
    };
    match run() {
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
