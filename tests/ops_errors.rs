//! Wrong arguments are refused with a matching error, and leave the meter as it was.

mod support;

use capgrad::{
    CpuOptions, CrossEntropyOptions, DType, Device, Error, Reduction, Result, Tape, Tensor, Var,
    cat, stack,
};
use support::devices;
use support::ops::*;

/// What the refused calls are made with.
struct Given {
    /// f64 `[2, 3]`.
    x: Var,
    /// f64 `[2, 4, 5]`.
    batch: Var,
    /// f64 `[]`.
    scalar: Var,
    /// f64 `[0, 3]`.
    empty: Var,
    /// f32 `[2, 3]`.
    single: Var,
    /// i64 `[2, 3]`, from 0 to 5.
    integers: Var,
    /// f64 `[2, 3]` on another device.
    elsewhere: Var,
}

impl Given {
    fn new(device: &Device) -> Given {
        let zeros = |shape: &[usize], dtype, device: &Device| {
            Var::from(Tensor::zeros(shape, dtype, device).unwrap())
        };
        let other = Device::new_cpu(CpuOptions { threads: Some(1), poison: true }).unwrap();
        let integers: Vec<i64> = (0..6).collect();
        Given {
            x: zeros(&[2, 3], DType::F64, device),
            batch: zeros(&[2, 4, 5], DType::F64, device),
            scalar: zeros(&[], DType::F64, device),
            empty: zeros(&[0, 3], DType::F64, device),
            single: zeros(&[2, 3], DType::F32, device),
            integers: Var::from(Tensor::from_vec(integers, [2, 3], device).unwrap()),
            elsewhere: zeros(&[2, 3], DType::F64, &other),
        }
    }
}

type Call = fn(&Given) -> Result<Var>;

/// Every call must be refused with an error that `expected` takes.
fn all_refused(expected: fn(&Error) -> bool, calls: &[(&str, Call)]) {
    for device in devices() {
        let given = Given::new(&device);
        for (what, call) in calls {
            let error = refused(&device, what, || call(&given));
            assert!(expected(&error), "{what}: {error}");
        }
    }
}

const ENTROPY: CrossEntropyOptions =
    CrossEntropyOptions { ignore_index: None, reduction: Reduction::Mean };

fn labels(g: &Given, labels: &[i64]) -> Tensor {
    Tensor::from_slice(labels, [labels.len()], g.x.device()).unwrap()
}

#[test]
fn shapes_that_do_not_go_together_are_refused() {
    all_refused(
        |error| matches!(error, Error::Shape { .. }),
        &[
            ("add", |g| g.x.add(&g.batch)),
            ("mul", |g| g.x.mul(&g.batch)),
            ("eq", |g| g.x.eq(&g.batch)),
            ("select values", |g| g.x.eq(&g.x)?.select(&g.x, &g.batch)),
            ("select mask", |g| g.x.eq(&g.x)?.select(&g.batch, &g.batch)),
            ("mse_loss", |g| g.x.mse_loss(&g.scalar, Reduction::Mean)),
            ("bce_with_logits", |g| g.x.bce_with_logits(&g.batch, Reduction::None)),
            ("reshape", |g| g.x.reshape([7])),
            ("squeeze", |g| g.x.squeeze(0)),
            ("cat", |g| cat(&[&g.x, &g.batch], 0)),
            ("cat of other widths", |g| cat(&[&g.x, &g.x.transpose(0, 1)?], 0)),
            ("stack", |g| stack(&[&g.x, &g.scalar], 0)),
            ("gather", |g| g.batch.gather(0, g.integers.tensor())),
            ("layer_norm of []", |g| g.scalar.layer_norm(None, None, 0.0)),
            ("layer_norm weight", |g| g.x.layer_norm(Some(&g.x), None, 0.0)),
            ("layer_norm bias", |g| g.x.layer_norm(None, Some(&g.scalar), 0.0)),
            ("max_pool1d", |g| g.x.max_pool1d(1, 1, 0)),
            ("pool of no length", |g| g.batch.narrow(2, 0, 0)?.avg_pool1d(2, 1, 1)),
            ("cross_entropy labels", |g| g.x.cross_entropy(g.integers.tensor(), ENTROPY)),
            ("cross_entropy logits", |g| g.scalar.cross_entropy(&labels(g, &[]), ENTROPY)),
            ("mean of nothing", |g| g.empty.mean()),
            ("mean_axes of nothing", |g| g.empty.mean_axes(&[0], true)),
            ("mean loss of nothing", |g| g.empty.mse_loss(&g.empty, Reduction::Mean)),
            ("mean entropy of nothing", |g| g.empty.cross_entropy(&labels(g, &[]), ENTROPY)),
            ("mean entropy of ignored", |g| {
                let options = CrossEntropyOptions { ignore_index: Some(-1), ..ENTROPY };
                g.x.cross_entropy(&labels(g, &[-1, -1]), options)
            }),
            ("argmax of nothing", |g| g.empty.argmax(0)),
        ],
    );
}

#[test]
fn arguments_out_of_range_are_refused() {
    all_refused(
        |error| matches!(error, Error::Argument { .. }),
        &[
            ("clamp the wrong way round", |g| g.x.clamp(1.0, 0.5)),
            ("clamp NaN", |g| g.x.clamp(f64::NAN, 1.0)),
            ("leaky_relu NaN", |g| g.x.leaky_relu(f64::NAN)),
            ("dropout over 1", |g| g.x.dropout(1.5)),
            ("dropout below 0", |g| g.x.dropout(-0.1)),
            ("dropout NaN", |g| g.x.dropout(f64::NAN)),
            ("huber delta 0", |g| g.x.huber_loss(&g.x, 0.0, Reduction::Mean)),
            ("huber delta NaN", |g| g.x.huber_loss(&g.x, f64::NAN, Reduction::Mean)),
            ("layer_norm epsilon", |g| g.x.layer_norm(None, None, -1.0)),
            ("layer_norm NaN", |g| g.x.layer_norm(None, None, f64::NAN)),
            ("softmax axis", |g| g.x.softmax(2)),
            ("log_softmax of []", |g| g.scalar.log_softmax(0)),
            ("argmax axis", |g| g.x.argmax(-3)),
            ("sum axis", |g| g.x.sum_axes(&[2], false)),
            ("sum axis twice", |g| g.x.sum_axes(&[1, -1], false)),
            ("flatten axis", |g| g.x.flatten(2)),
            ("unsqueeze axis", |g| g.x.unsqueeze(3)),
            ("squeeze axis", |g| g.x.squeeze(-3)),
            ("transpose axis", |g| g.x.transpose(0, 2)),
            ("permute too few", |g| g.x.permute(&[0])),
            ("permute twice", |g| g.x.permute(&[0, 0])),
            ("permute too far", |g| g.x.permute(&[0, 2])),
            ("narrow too far", |g| g.x.narrow(1, 2, 2)),
            ("narrow overflowing", |g| g.x.narrow(1, usize::MAX, 2)),
            ("narrow axis", |g| g.x.narrow(2, 0, 1)),
            ("cat of nothing", |_| cat(&[], 0)),
            ("cat axis", |g| cat(&[&g.x], 2)),
            ("stack axis", |g| stack(&[&g.x], 3)),
            ("gather axis", |g| g.x.gather(2, g.integers.tensor())),
            ("gather past the end", |g| g.x.gather(1, g.integers.tensor())),
            ("gather below 0", |g| {
                let index = Tensor::from_vec(vec![-1i32, 0], [2, 1], g.x.device())?;
                g.x.gather(1, &index)
            }),
            ("pool kernel 0", |g| g.batch.max_pool1d(0, 1, 0)),
            ("pool stride 0", |g| g.batch.avg_pool1d(1, 0, 0)),
            ("pool padding", |g| g.batch.max_pool1d(3, 1, 2)),
            ("label past the end", |g| g.x.cross_entropy(&labels(g, &[0, 3]), ENTROPY)),
            ("label below 0", |g| g.x.cross_entropy(&labels(g, &[0, -1]), ENTROPY)),
            ("entropy terms", |g| {
                let options = CrossEntropyOptions { reduction: Reduction::None, ..ENTROPY };
                g.x.cross_entropy(&labels(g, &[0, 1]), options)
            }),
        ],
    );
}

#[test]
fn a_label_out_of_range_is_named() {
    for device in devices() {
        let given = Given::new(&device);
        let error = given.x.cross_entropy(&labels(&given, &[0, 17]), ENTROPY).unwrap_err();
        assert!(error.to_string().contains("17") && error.to_string().contains('3'), "{error}");
    }
}

#[test]
fn a_window_longer_than_the_padded_input_is_refused() {
    all_refused(
        |error| matches!(error, Error::KernelTooLong { padded_length: 5 | 11, .. }),
        &[
            ("max", |g| g.batch.max_pool1d(6, 1, 0)),
            ("avg", |g| g.batch.avg_pool1d(12, 1, 3)),
            ("huge", |g| g.batch.avg_pool1d(usize::MAX, 1, 0)),
        ],
    );
}

#[test]
fn dtypes_that_do_not_compute_are_refused() {
    all_refused(
        |error| matches!(error, Error::DType { .. }),
        &[
            ("relu", |g| g.integers.relu()),
            ("neg", |g| g.integers.neg()),
            ("add", |g| g.integers.add(&g.integers)),
            ("sum", |g| g.integers.sum()),
            ("argmax", |g| g.integers.argmax(0)),
            ("softmax", |g| g.integers.softmax(0)),
            ("layer_norm", |g| g.integers.layer_norm(None, None, 0.0)),
            ("dropout", |g| g.integers.dropout(0.5)),
            ("max_pool1d", |g| g.integers.max_pool1d(1, 1, 0)),
            ("mse_loss", |g| g.integers.mse_loss(&g.integers, Reduction::Mean)),
            ("select mask", |g| g.integers.select(&g.x, &g.x)),
            ("float labels", |g| g.x.cross_entropy(g.x.tensor(), ENTROPY)),
            ("integer logits", |g| g.integers.cross_entropy(&labels(g, &[0, 1]), ENTROPY)),
            ("float index", |g| g.x.gather(0, g.x.tensor())),
            ("integer values", |g| g.integers.gather(0, g.integers.tensor())),
        ],
    );
}

#[test]
fn operands_of_different_dtypes_are_refused() {
    all_refused(
        |error| matches!(error, Error::DTypeMismatch { .. }),
        &[
            ("add", |g| g.x.add(&g.single)),
            ("lt", |g| g.x.lt(&g.single)),
            ("select", |g| g.x.eq(&g.x)?.select(&g.x, &g.single)),
            ("cat", |g| cat(&[&g.x, &g.single], 0)),
            ("l1_loss", |g| g.x.l1_loss(&g.single, Reduction::Mean)),
            ("layer_norm", |g| g.x.layer_norm(Some(&g.single), None, 0.0)),
        ],
    );
}

#[test]
fn operands_on_different_devices_are_refused() {
    all_refused(
        |error| matches!(error, Error::DeviceMismatch { .. }),
        &[
            ("add", |g| g.x.add(&g.elsewhere)),
            ("select", |g| g.x.eq(&g.x)?.select(&g.elsewhere, &g.elsewhere)),
            ("stack", |g| stack(&[&g.x, &g.elsewhere], 0)),
            ("mse_loss", |g| g.x.mse_loss(&g.elsewhere, Reduction::Mean)),
            ("cross_entropy", |g| g.elsewhere.cross_entropy(&labels(g, &[0, 1]), ENTROPY)),
        ],
    );
}

#[test]
fn operands_of_two_tapes_are_refused() {
    for device in devices() {
        let (one, two) = (Tape::new(), Tape::new());
        let x = one.variable(Given::new(&device).x.into_tensor()).unwrap();
        let y = two.variable(Given::new(&device).x.into_tensor()).unwrap();
        let error = refused(&device, "add", || x.add(&y));
        assert!(matches!(error, Error::TapeMismatch { op: "add" }), "{error}");
        assert!(x.add(&y.detach()).unwrap().requires_grad());
    }
}

#[test]
fn a_result_over_the_limit_is_refused() {
    for device in devices() {
        let given = Given::new(&device);
        device.set_memory_limit(Some(device.live_bytes() + 47)).unwrap();
        let calls: &[(&str, Call)] = &[
            ("relu", |g| g.x.relu()),
            ("add", |g| g.x.add(&g.x)),
            ("cat", |g| cat(&[&g.x, &g.x], 0)),
            ("dropout", |g| g.x.dropout(0.5)),
            ("layer_norm", |g| g.x.layer_norm(None, None, 0.1)),
            ("transpose", |g| g.x.transpose(0, 1)),
            ("softmax", |g| g.x.softmax(0)),
        ];
        for (what, call) in calls {
            let error = refused(&device, what, || call(&given));
            assert!(matches!(error, Error::MemoryLimit { .. }), "{what}: {error}");
        }
        assert!(given.x.reshape([6]).is_ok(), "a view takes no memory");
    }
}
