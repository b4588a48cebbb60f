//! What operations keep for their gradients, by the meter.

mod support;

use capgrad::{DType, Device, Reduction, Result, Tape, Tensor, Var, cat};
use support::devices;
use support::ops::*;

const N: usize = 1000;
const BYTES: u64 = 8 * N as u64;

/// Bytes that stay live once all but the result of `f` has been let go, without those results.
fn kept(device: &Device, f: impl Fn(&Var) -> Result<Var>) -> u64 {
    let before = device.live_bytes();
    let tape = Tape::new();
    // Not the variable itself: what is asked is what becomes of intermediate values.
    let x = tape.variable(random(device, 1, &[N], (0.5, 1.0))).unwrap();
    let intermediate = x.mul_scalar(2.0).unwrap();
    drop(x);
    let out = f(&intermediate).unwrap();
    drop(intermediate);
    device.live_bytes() - before - out.tensor().bytes() as u64
}

#[test]
fn operations_save_the_least() {
    type Row = (&'static str, fn(&Var) -> Result<Var>, u64);
    let rows: &[Row] = &[
        ("affine", |x| x.mul_scalar(3.0)?.add_scalar(1.0)?.neg(), 0),
        ("relu saves its result", |x| x.relu(), 0),
        ("exp saves its result", |x| x.exp(), 0),
        ("softmax saves its result", |x| x.softmax(0), 0),
        ("square saves its operand", |x| x.square(), BYTES),
        ("add", |x| x.add(x), 0),
        ("mul by a constant saves the constant", |x| x.mul(&x.detach().relu()?), BYTES),
        ("mul with itself saves it once", |x| x.mul(x), BYTES),
        ("div by a constant saves the constant", |x| x.div(&x.detach().relu()?), BYTES),
        ("mean", |x| x.mean(), 0),
        ("sum", |x| x.sum(), 0),
        ("sum over an axis", |x| x.reshape([10, 100])?.sum_axes(&[0], false), 0),
        ("dropout", |x| x.dropout(0.5), 0),
        ("reshape shares", |x| x.reshape([10, 100]), 0),
        ("transpose", |x| x.reshape([10, 100])?.transpose(0, 1), 0),
        ("cat", |x| cat(&[x, x], 0), 0),
        ("avg_pool1d", |x| x.reshape([1, 10, 100])?.avg_pool1d(2, 2, 0), 0),
        // i32 places of half as many results.
        ("max_pool1d", |x| x.reshape([1, 10, 100])?.max_pool1d(2, 2, 0), BYTES / 4),
        ("loss of a constant target", |x| x.mse_loss(x, Reduction::Mean), BYTES),
        ("to_dtype", |x| x.to_dtype(DType::F32), 0),
    ];
    for device in devices() {
        for (what, f, expected) in rows {
            assert_eq!(kept(&device, f), *expected, "{what}");
        }
    }
}

#[test]
fn nothing_is_kept_of_what_needs_no_gradient() {
    for device in devices() {
        let tape = Tape::new();
        let x = tape.constant(random(&device, 1, &[N], (0.5, 1.0)));
        let before = device.live_bytes();
        let y = x.square().unwrap().exp().unwrap().mul(&x).unwrap();
        assert!(!y.requires_grad());
        assert_eq!(device.live_bytes() - before, BYTES);
        let z = x.gt(&y).unwrap().select(&x, &y).unwrap();
        assert!(!z.requires_grad());
    }
}

#[test]
fn the_gradient_of_a_mean_is_not_written_out() {
    type Row = (&'static str, fn(&Var) -> Result<Var>);
    // Nothing but the one gradient of the variable, and a few single numbers.
    let rows: &[Row] = &[
        ("add", |x| x.add(&x.detach())),
        ("affine", |x| x.mul_scalar(3.0)?.neg()),
        ("reshape", |x| x.reshape([10, 100])),
        ("transpose", |x| x.reshape([10, 100])?.transpose(0, 1)),
        ("sum over an axis", |x| x.reshape([10, 100])?.sum_axes(&[1], true)),
        ("cat", |x| cat(&[&x.detach(), x], 0)),
        ("broadcast", |x| {
            x.reshape([1, N])?.add(&Var::from(random(x.device(), 2, &[7, 1], (0.0, 1.0))))
        }),
        ("tanh", |x| x.tanh()),
    ];
    for device in devices() {
        for (what, f) in rows {
            let tape = Tape::new();
            let x = tape.variable(random(&device, 1, &[N], (0.5, 1.0))).unwrap();
            let loss = f(&x).unwrap().mean().unwrap();
            device.reset_peak();
            let before = device.live_bytes();
            let gradients = loss.backward().unwrap();
            let peak = device.report().peak - before;
            assert!(peak <= BYTES + 64, "{what}: {peak} bytes");
            assert_eq!(gradients.get(&x).unwrap().elements(), N);
        }
    }
}

#[test]
fn a_gradient_can_be_computed_with() {
    for device in devices() {
        let tape = Tape::new();
        let x = tape.variable(random(&device, 1, &[3], (0.5, 1.0))).unwrap();
        let gradients = x.sum().unwrap().backward().unwrap();
        let gradient = Var::from(gradients.get(&x).unwrap());
        let doubled = gradient.exp().unwrap().ln().unwrap().softmax(0).unwrap();
        assert_close("softmax", &doubled.tensor().to_f64_vec().unwrap(), &[1.0 / 3.0; 3], 1e-12);
    }
}

#[test]
fn a_cut_along_the_first_axis_shares_storage() {
    for device in devices() {
        let x = Var::from(Tensor::zeros([10, 100], DType::F64, &device).unwrap());
        let before = device.live_bytes();
        let rows = x.narrow(0, 3, 2).unwrap();
        let columns = x.unsqueeze(0).unwrap().narrow(1, 5, 5).unwrap();
        assert_eq!(device.live_bytes(), before);
        assert_eq!((rows.dims(), columns.dims()), (&[2, 100][..], &[1, 5, 100][..]));
        assert!(x.narrow(1, 3, 2).unwrap().tensor().bytes() > 0 && device.live_bytes() == before);
    }
}

#[test]
fn the_gradient_of_a_stretched_operand_takes_its_own_size_only() {
    type Row = (&'static str, fn(&Var, &Var) -> Result<Var>);
    let rows: [Row; 6] = [
        ("select", |x, s| x.gt(&x.mean()?)?.select(x, s)),
        ("select, stretched on the left", |x, s| x.gt(&x.mean()?)?.select(s, x)),
        ("mul", |x, s| x.mul(s)),
        ("mul, stretched on the left", |x, s| s.mul(x)),
        ("div", |x, s| x.div(s)),
        ("div, stretched on the left", |x, s| s.div(x)),
    ];
    for device in devices() {
        let x = Var::from(random(&device, 1, &[100, 1000], (0.5, 1.0)));
        let dy = random(&device, 2, &[100, 1000], (-1.0, 1.0));
        for shape in [[100, 1], [1, 1000], [1, 1]] {
            for (what, f) in rows {
                let tape = Tape::new();
                let s = tape.variable(random(&device, 3, &shape, (0.5, 1.0))).unwrap();
                let y = f(&x, &s).unwrap();
                device.reset_peak();
                let before = device.report().peak;
                let grads = y.backward_with(dy.clone()).unwrap();
                let bytes = grads.get(&s).unwrap().bytes() as u64;
                let more = device.report().peak - before;
                assert!(more <= bytes, "{what} {shape:?}: {more} bytes more, gradient {bytes}");
            }
        }
    }
}
