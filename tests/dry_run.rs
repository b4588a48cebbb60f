//! The prediction promise: a dry run of the same code has the peak that the real run has, to the byte:
//! the peaks of every purpose and scope, what is live, and every piece that is taken and given back.

mod support;

use capgrad::optim::AdamOptions;
use capgrad::{
    Adam, Conv1d, ConvTranspose1d, DType, Device, Error, LayerNorm, Linear, MIB, Padding, Purpose,
    Ranking, Report, Result, SparseForm, SparseMatrix, SparseOptions, StoredTranspose, Tape,
    Tensor, Var, checkpoint,
};
use proptest::prelude::*;
use std::ops::RangeInclusive;
use std::time::Instant;
use support::sparse::forms;
use support::workloads::{Workload, operator};
use support::{Kind, devices, kinds, values};

/// Everything of a report but the names and the driver's figures, which a dry run does not have.
#[track_caller]
fn assert_same(real: &Report, dry: &Report) {
    assert!(dry.dry && !real.dry);
    assert_eq!(dry.bounds, Vec::<String>::new());
    assert_eq!(dry.peak, real.peak);
    assert_eq!((dry.at_peak, dry.peaks, dry.live), (real.at_peak, real.peaks, real.live));
    assert_eq!((dry.allocations, &dry.scopes), (real.allocations, &real.scopes));
    let (real, dry) = (real.recorded.as_ref().unwrap(), dry.recorded.as_ref().unwrap());
    assert_eq!((dry.peak, &dry.alive_at_peak), (real.peak, &real.alive_at_peak));
    assert_eq!((&dry.operations, &dry.workspaces), (&real.operations, &real.workspaces));
    let differ = std::iter::zip(&dry.timeline.live, &real.timeline.live).position(|(a, b)| a != b);
    assert_eq!((differ, dry.timeline.live.len()), (None, real.timeline.live.len()));
    assert_eq!(dry.timeline.scopes, real.timeline.scopes);
}

/// Runs the same code on a twin and then on the device; what both saw. What the device holds for itself
/// is the same for both.
fn both(device: &Device, run: impl Fn(&Device) -> Result<()>) -> (Report, Report) {
    let dry = device.dry();
    assert!(dry.is_dry() && !device.is_dry());
    let report = |device: &Device| {
        device.set_recording(true);
        device.reset_peak();
        run(device).unwrap_or_else(|error| panic!("{error}"));
        let report = device.report();
        device.set_recording(false);
        report
    };
    let predicted = report(&dry);
    (report(device), predicted)
}

fn steps(mut workload: Workload) -> Result<()> {
    for _ in 0..3 {
        workload.step()?;
    }
    Ok(())
}

#[test]
fn both_workloads_peak_as_predicted() {
    for kind in kinds() {
        for cap in [0, 4 * MIB, 64 * MIB] {
            let device = kind.plain();
            device.set_workspace_cap(cap);
            for batch in [50, 500] {
                let (real, dry) = both(&device, |d| steps(Workload::conv(d, batch, 1)?));
                assert_same(&real, &dry);
                // Weights, their gradient and two moments, and x at the least.
                let weights = 4 * (576 * 1024 + 1024);
                assert!(dry.peak > 4 * weights + 4 * 576 * 11 * batch as u64);
            }
            let host = operator(1200, 40);
            for batch in [1, 8] {
                let run = |d: &Device| steps(Workload::sparse(d, &host, batch, [30, 40])?);
                let (real, dry) = both(&device, run);
                assert_same(&real, &dry);
                let peaks = dry.peaks[Purpose::Sparse];
                assert!(peaks >= 6 * 1200 * 40, "{peaks} bytes of the matrix");
                // From the matrix's outline: the same again.
                let outline = host.outlined(&device.dry()).unwrap();
                let twin = device.dry();
                twin.reset_peak();
                steps(Workload::sparse(&twin, &outline, batch, [30, 40]).unwrap()).unwrap();
                let outlined = twin.report();
                assert_eq!(outlined.bounds, Vec::<String>::new());
                assert_eq!((outlined.peak, outlined.peaks), (real.peak, real.peaks));
            }
        }
    }
}

/// A network of a few layers, of sizes that come from `choices`.
#[derive(Clone, Debug)]
struct Net {
    layers: Vec<(u8, usize, usize)>,
    batch: usize,
    channels: usize,
    length: usize,
    dtype: usize,
    cap: Option<u64>,
    checkpoint: bool,
    deterministic: bool,
}

fn net() -> impl Strategy<Value = Net> {
    let layer = (0u8..9, 1usize..33, 1usize..6);
    let cap = prop_oneof![
        Just(Some(0)),
        Just(Some(5000)),
        Just(Some(1 << 16)),
        Just(Some(64 * MIB)),
        Just(None)
    ];
    let sizes = (1usize..9, 1usize..17, 8usize..65);
    let layers = prop::collection::vec(layer, 1..7);
    (layers, sizes, 0usize..4, cap, any::<bool>(), any::<bool>()).prop_map(
        |(layers, (batch, channels, length), dtype, cap, checkpoint, deterministic)| Net {
            layers,
            batch,
            channels,
            length,
            dtype,
            cap,
            checkpoint,
            deterministic,
        },
    )
}

type Layer = Box<dyn Fn(&Var) -> Result<Var> + Send>;

impl Net {
    fn run(&self, device: &Device) -> Result<()> {
        let dtype = DType::FLOATS[self.dtype];
        let mut parameters = Vec::new();
        let mut layers: Vec<Layer> = Vec::new();
        let mut channels = self.channels;
        for &(kind, to, kernel) in &self.layers {
            match kind {
                0 | 1 => {
                    let conv = Conv1d::builder(channels, to, kernel)
                        .padding(Padding::Same)
                        .dtype(dtype)
                        .build(device)?;
                    parameters.extend(conv.parameters());
                    layers.push(Box::new(move |x| conv.forward(x)));
                    channels = to;
                }
                2 => {
                    let conv = ConvTranspose1d::builder(channels, to, kernel)
                        .dtype(dtype)
                        .build(device)?;
                    parameters.extend(conv.parameters());
                    layers.push(Box::new(move |x| conv.forward(x)));
                    channels = to;
                }
                3 => {
                    let conv = Conv1d::builder(channels, channels, kernel)
                        .groups(channels)
                        .padding(Padding::Causal)
                        .dtype(dtype)
                        .build(device)?;
                    parameters.extend(conv.parameters());
                    layers.push(Box::new(move |x| conv.forward(x)));
                }
                4 => layers.push(Box::new(|x| x.gelu())),
                5 => layers.push(Box::new(|x| x.relu()?.dropout(0.3))),
                6 => layers.push(Box::new(|x| {
                    let x = x.softmax(1)?;
                    x.mul(&x.detach())
                })),
                7 => layers.push(Box::new(|x| x.transpose(1, 2)?.transpose(1, 2)?.tanh())),
                _ => {
                    let norm = LayerNorm::new("norm", channels, dtype, device)?;
                    parameters.extend(norm.parameters());
                    layers.push(Box::new(move |x| {
                        norm.forward(&x.transpose(1, 2)?)?.transpose(1, 2)
                    }));
                }
            }
        }
        let head = Linear::new("head", channels, 3, true, dtype, device)?;
        parameters.extend(head.parameters());
        let mut adam = Adam::new(parameters, AdamOptions::default())?;
        let x = Tensor::rand([self.batch, self.channels, self.length], dtype, device)?;
        let labels = Tensor::from_vec(vec![1i64; self.batch], [self.batch], device)?;
        // Those after the first go into one segment, if there is to be one.
        let rest = layers.split_off(1);
        let segment = std::sync::Arc::new(std::sync::Mutex::new(rest));
        for step in 0..2 {
            let tape = Tape::for_step(7, step);
            let h = layers[0](&tape.constant(x.clone()))?;
            let segment = segment.clone();
            let run = move |h: &[Var]| {
                let layers = segment.lock().unwrap();
                layers.iter().try_fold(h[0].clone(), |h, layer| layer(&h))
            };
            let h = if self.checkpoint { checkpoint(&[&h], run)? } else { run(&[h])? };
            let loss = head
                .forward(&h.mean_axes(&[2], false)?)?
                .cross_entropy(&labels, Default::default())?;
            let gradients = loss.backward()?;
            adam.step(&gradients)?;
        }
        Ok(())
    }
}

#[test]
fn generated_networks_peak_as_predicted() {
    for kind in kinds() {
        let config = ProptestConfig {
            cases: kind.share(500),
            failure_persistence: None,
            ..Default::default()
        };
        proptest!(config, |(net in net())| {
            let device = kind.plain();
            match net.cap {
                Some(cap) => device.set_workspace_cap(cap),
                None => device.remove_workspace_cap(),
            }
            device.set_deterministic(net.deterministic);
            let (real, dry) = both(&device, |d| net.run(d));
            assert_same(&real, &dry);
        });
    }
}

#[test]
fn a_dry_device_reads_nothing_and_says_so() {
    for device in devices() {
        let dry = device.dry();
        let x = Tensor::ones([2, 3], DType::F32, &dry).unwrap();
        assert!(values(&x).iter().all(|value| value.is_nan()));
        let labels = Tensor::from_vec(vec![4i64, 9, 1], [1, 3], &dry).unwrap();
        assert_eq!(labels.to_vec::<i64>().unwrap(), [0, 0, 0]);
        // An index that would be out of range is not known to be.
        let taken = Var::from(x.clone()).gather(0, &labels).unwrap();
        assert_eq!(taken.dims(), [1, 3]);
        // More than any machine has is only a number, until it is read back.
        let huge = Tensor::zeros([1 << 60], DType::F32, &dry).unwrap();
        assert!(matches!(huge.to_vec::<f32>(), Err(Error::OutOfMemory { .. })));
        let more: Vec<_> = (0..4).map(|_| Tensor::zeros([1 << 60], DType::F32, &dry)).collect();
        assert!(matches!(more[3], Err(Error::MemoryLimit { limit: u64::MAX, .. })));
        drop((huge, more));
        // A model of another device: the step is to make its own.
        let other = Tensor::ones([2, 3], DType::F32, &device).unwrap();
        let said = Var::from(x.clone()).add(&other.into()).unwrap_err().to_string();
        assert!(said.contains("within the step, on the dry device"), "{said}");
        let report = dry.report();
        assert!(report.dry && report.device == format!("dry {}", device.name()));
        assert!(report.driver.is_none());
        // Values go neither way.
        let host = Tensor::ones([5], DType::F64, &Device::cpu()).unwrap();
        assert!(values(&host.to(&dry).unwrap().to(&Device::cpu()).unwrap())[0].is_nan());
        // A twin of a twin is one of the device.
        assert_eq!(dry.dry().name(), dry.name());
        assert_eq!(dry.live_bytes() - 24 - 24 - 12, device.dry().live_bytes());
        drop(taken);
    }
}

#[test]
fn a_twin_has_the_settings_and_the_limit_of_its_device() {
    for kind in kinds() {
        let device = kind.plain();
        device.set_workspace_cap(123);
        device.set_deterministic(true);
        device.set_allow_tf32(true);
        let held = device.live_bytes();
        device.set_memory_limit(Some(held + 1000)).unwrap();
        let dry = device.dry();
        assert_eq!(dry.workspace_cap(), Some(123));
        assert!(dry.deterministic() && dry.allow_tf32());
        assert_eq!((dry.memory_limit(), dry.live_bytes()), (Some(held + 1000), held));
        let fits = Tensor::zeros([250], DType::F32, &dry);
        let error = Tensor::zeros([1], DType::I32, &dry).unwrap_err();
        assert!(matches!(error, Error::MemoryLimit { requested: 4, .. }), "{error}");
        drop(fits);
        // Each goes its own way from there.
        dry.set_workspace_cap(5);
        dry.set_memory_limit(None).unwrap();
        assert_eq!(device.workspace_cap(), Some(123));
        assert_eq!(device.memory_limit(), Some(held + 1000));
    }
}

#[test]
fn measured_plans_are_taken_over_and_those_that_are_not_there_are_noted() {
    for kind in kinds() {
        let device = kind.plain();
        device.set_ranking(Ranking::Measured);
        let run = |d: &Device| steps(Workload::conv(d, 20, 8)?);
        run(&device).unwrap();
        let (real, dry) = both(&device, run);
        assert_same(&real, &dry);
        let fresh = kind.plain();
        fresh.set_ranking(Ranking::Measured);
        let dry = fresh.dry();
        run(&dry).unwrap();
        assert_eq!(dry.report().bounds.len(), 1);
        assert!(fresh.plans().is_empty());
    }
}

#[test]
fn a_matrix_without_entries_is_exact_in_rows_and_a_bound_in_tiles() {
    let host = operator(1000, 50);
    for device in devices() {
        for &form in forms(&device) {
            let options = SparseOptions {
                form,
                stored_transpose: StoredTranspose::Never,
                ..Default::default()
            };
            let real = host.to_with(&device, options).unwrap();
            let dry = device.dry();
            let outline = SparseMatrix::outline(1000, 1000, 50_000, DType::F32, &dry).unwrap();
            let outline = outline.to_with(&dry, options).unwrap();
            assert_eq!(outline.form(), form);
            let bounds = dry.report().bounds;
            if form == SparseForm::Tiled {
                // At most three entries more for each piece, of 6 bytes.
                let most = real.bytes() + 3 * 6 * 1000;
                assert!((real.bytes()..=most).contains(&outline.bytes()), "{}", outline.bytes());
                assert_eq!(bounds.len(), 1);
            } else {
                assert_eq!((outline.bytes(), bounds.len()), (real.bytes(), 0));
            }
            let exact = host.outlined(&dry).unwrap().to_with(&dry, options).unwrap();
            assert_eq!(exact.bytes(), real.bytes());
            // On the device, or for a streamed matrix in the host's part.
            let streamed = form == SparseForm::Streamed;
            let held = if streamed { dry.host() } else { dry.clone() };
            assert!(
                held.report().live[Purpose::Sparse] >= (outline.bytes() + exact.bytes()) as u64
            );
        }
    }
}

#[test]
fn outlines_are_refused_where_they_make_no_sense() {
    let dry = Device::cpu().dry();
    let outline = |rows, cols, nnz, dtype, device: &Device| {
        SparseMatrix::outline(rows, cols, nnz, dtype, device).map(|_| ()).unwrap_err().to_string()
    };
    let said = outline(2, 2, 1, DType::F32, &Device::cpu());
    assert!(said.contains("outline: device = cpu") && said.contains("Device::dry"), "{said}");
    assert!(outline(2, 2, 5, DType::F32, &dry).contains("more than the matrix has places"));
    assert!(outline(1 << 31, 2, 5, DType::F32, &dry).contains("2³¹ - 1"));
    assert!(outline(2, 2, 1, DType::I32, &dry).contains("i32"));
    let tiny = SparseMatrix::from_coo(2, 2, &[0], &[1], vec![1.0f32]).unwrap();
    assert!(tiny.outlined(&Device::cpu()).is_err());
    // Back to a device that computes it cannot go.
    let error = tiny.outlined(&dry).unwrap().to(&Device::cpu()).unwrap_err();
    assert!(error.to_string().contains("no entries, only sizes"), "{error}");
}

#[test]
fn the_largest_batch_is_found_runs_and_one_more_does_not() {
    for kind in kinds() {
        let device = kind.plain();
        let held = device.live_bytes();
        let step = |device: &Device, batch: usize| steps(Workload::conv(device, batch, 4)?);
        for (cap, room) in [(0, 24 * MIB), (64 * MIB, 24 * MIB), (64 * MIB, 90 * MIB)] {
            device.set_workspace_cap(cap);
            device.set_memory_limit(Some(held + room)).unwrap();
            let start = Instant::now();
            let fit = device.max_batch(1..=1_000_000, step).unwrap();
            let seconds = start.elapsed().as_secs_f64();
            let batch = fit.largest.unwrap();
            println!("{} cap {cap} room {room}: {batch} in {:.1} ms", device.name(), seconds * 1e3);
            assert!(fit.report.as_ref().unwrap().peak <= held + room);
            assert_eq!(fit.refused.as_ref().unwrap().0, batch + 1);
            device.reset_peak();
            step(&device, batch).unwrap();
            assert_eq!(device.report().peak, fit.report.as_ref().unwrap().peak);
            let error = step(&device, batch + 1).unwrap_err();
            assert!(matches!(error, Error::MemoryLimit { .. }), "{error}");
            assert_eq!(device.live_bytes(), held);
            let text = fit.to_string();
            assert!(text.contains(&format!("largest batch that fits is {batch}:")), "{text}");
        }
        // What is live already counts.
        device.set_memory_limit(Some(held + 90 * MIB)).unwrap();
        let model = Tensor::zeros([5 << 20], DType::F32, &device).unwrap();
        let less = device.max_batch(1..=1_000_000, step).unwrap().largest.unwrap();
        step(&device, less).unwrap();
        assert!(matches!(step(&device, less + 1), Err(Error::MemoryLimit { .. })));
        drop(model);
        // A range that fits, one that does not, an empty one, an error, and no limit.
        let all = device.max_batch(1..=3, step).unwrap();
        assert!(all.largest == Some(3) && all.refused.is_none());
        let none = device.max_batch(1 << 30..=1 << 31, step).unwrap();
        assert!(none.largest.is_none() && none.report.is_none());
        let most = device.max_batch(1..=usize::MAX, step).unwrap();
        assert_eq!(most.refused.unwrap().0, most.largest.unwrap() + 1);
        assert!(matches!(
            device.max_batch(RangeInclusive::new(3, 2), step),
            Err(Error::Argument { .. })
        ));
        let broken = device.max_batch(1..=8, |_, _| Err(Error::custom("step", "broken")));
        assert!(matches!(broken, Err(Error::Custom { .. })));
        device.set_memory_limit(None).unwrap();
        assert!(matches!(device.max_batch(1..=8, step), Err(Error::Argument { .. })));
    }
}

/// A step that takes less above a size, as a plan that changes does: the search must not step over the
/// first size that is refused.
#[test]
fn a_smaller_batch_that_takes_more_is_found() {
    let device = Kind::Cpu.plain();
    device.set_memory_limit(Some(4000)).unwrap();
    let step = |device: &Device, batch: usize| {
        let bytes = if (300..800).contains(&batch) { 4001 } else { batch };
        Tensor::zeros([bytes.div_ceil(4)], DType::F32, device).map(|_| ())
    };
    let fit = device.max_batch(1..=5000, step).unwrap();
    assert_eq!((fit.largest, fit.refused.unwrap().0), (Some(299), 300));
}

#[test]
fn a_profile_predicts_elsewhere_and_says_where_it_cannot() {
    let host = operator(1200, 40);
    for kind in kinds() {
        let device = kind.plain();
        device.set_workspace_cap(MIB);
        let run = |d: &Device, batch: usize| {
            steps(Workload::conv(d, batch, 4)?)?;
            let operator = if d.is_dry() { host.outlined(&d.dry())? } else { host.clone() };
            steps(Workload::sparse(d, &operator, batch, [30, 40])?)
        };
        let (real, _) = both(&device, |d| run(d, 50));
        let elsewhere = Device::from_profile(&device.profile().unwrap()).unwrap();
        elsewhere.set_recording(true);
        run(&elsewhere, 50).unwrap();
        let report = elsewhere.report();
        assert_eq!((report.peak, report.peaks, report.bounds.len()), (real.peak, real.peaks, 0));
        // Another batch is not in it: the cap is what it takes at the most.
        elsewhere.reset_peak();
        run(&elsewhere, 51).unwrap();
        let bound = elsewhere.report();
        let (exact, _) = both(&device, |d| run(d, 51));
        assert!(bound.peak >= exact.peak && bound.peak <= exact.peak + MIB);
        assert!(bound.bounds.iter().any(|why| why.contains("not in the profile")));
        assert!(elsewhere.is_dry() && elsewhere.dry().is_dry());
        assert_eq!(elsewhere.workspace_cap(), Some(MIB));
    }
    for text in ["", "{}", "[1]", "{\"version\": 1}"] {
        assert!(matches!(Device::from_profile(text), Err(Error::Argument { .. })), "{text}");
    }
    let saved = Kind::Cpu.plain().profile().unwrap();
    let newer = saved.replacen("\"version\":1", "\"version\":2", 1);
    let error = Device::from_profile(&newer).unwrap_err().to_string();
    assert!(error.contains("version 2; this is 1"), "{error}");
}
