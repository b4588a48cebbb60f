//! Gradients that several sparse products add up to: each after the first is added in place, so no
//! memory is taken for one product alone, and nothing that others can see is added to.

mod support;

use capgrad::{
    DType, Device, Gradients, Purpose, Ranking, SparseForm, SparseMatrix, SparseOptions,
    StoredTranspose, Tape, Tensor, Var,
};
use support::sparse::{Entries, transposed};
use support::{Numbers, assert_close, bits, devices, tensor, values};

const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// Vectors; with the sizes below, all arrays are whole numbers of the largest granule.
const WIDTH: usize = 32;

/// 512 entries in stored order, no two in one place, of a matrix with more columns than rows: its
/// operand is larger than its product.
fn entries(seed: u64) -> Entries {
    let mut numbers = Numbers(seed);
    let (rows, cols) = (24, 96);
    let places: Vec<usize> = (0..512).map(|e| 4 * e + numbers.below(4)).collect();
    Entries {
        rows,
        cols,
        i: places.iter().map(|place| place / cols).collect(),
        j: places.iter().map(|place| place % cols).collect(),
        values: numbers.sixteenths(512),
    }
}

fn build(entries: &Entries, dtype: DType, device: &Device) -> SparseMatrix {
    fn of<T: capgrad::Float>(entries: &Entries) -> SparseMatrix {
        let values: Vec<T> = entries.values.iter().map(|&value| T::from_f64(value)).collect();
        SparseMatrix::from_coo(entries.rows, entries.cols, &entries.i, &entries.j, values).unwrap()
    }
    let a = match dtype {
        DType::F32 => of::<f32>(entries),
        DType::F64 => of::<f64>(entries),
        DType::F16 => of::<capgrad::f16>(entries),
        _ => of::<capgrad::bf16>(entries),
    };
    let options = SparseOptions { form: SparseForm::Csr, ..Default::default() };
    a.to_with(device, options).unwrap()
}

/// Which way the dense side lies. References are written for `matmul`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Matmul,
    Apply,
}

impl Call {
    const BOTH: [Call; 2] = [Call::Matmul, Call::Apply];

    fn dense(self, x: &[f64], length: usize, dtype: DType, device: &Device) -> Tensor {
        match self {
            Call::Matmul => tensor(x, [length, WIDTH], dtype, device),
            Call::Apply => tensor(&transposed(x, length, WIDTH), [WIDTH, length], dtype, device),
        }
    }

    fn of(self, a: &SparseMatrix, x: &Var) -> Var {
        match self {
            Call::Matmul => a.matmul(x),
            Call::Apply => a.apply(x),
        }
        .unwrap()
    }

    fn with_values(self, a: &SparseMatrix, values: &Var, x: &Var) -> Var {
        match self {
            Call::Matmul => a.matmul_values(values, x),
            Call::Apply => a.apply_values(values, x),
        }
        .unwrap()
    }

    /// A reference that is right for `matmul`, as this call gives it.
    fn turned(self, reference: Vec<f64>, length: usize) -> Vec<f64> {
        if self == Call::Matmul { reference } else { transposed(&reference, length, WIDTH) }
    }
}

fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn total(terms: &[Var]) -> Var {
    let (first, others) = terms.split_first().unwrap();
    others.iter().fold(first.clone(), |sum, term| sum.add(term).unwrap())
}

/// The gradient of an `x` that all matrices are multiplied by, and the pass's peak of gradients.
fn shared_x(call: Call, matrices: &[SparseMatrix], dtype: DType, device: &Device) -> (Tensor, u64) {
    let (rows, cols) = (matrices[0].rows(), matrices[0].cols());
    let tape = Tape::new();
    let x = Numbers(3).sixteenths(cols * WIDTH);
    let x = tape.variable(call.dense(&x, cols, dtype, device)).unwrap();
    let products: Vec<Var> = matrices.iter().map(|a| call.of(a, &x)).collect();
    let y = total(&products);
    drop(products);
    let dy = call.dense(&dy(rows), rows, dtype, device);
    let before = device.report().live[Purpose::Gradient];
    let live = device.live_bytes() - y.tensor().bytes() as u64;
    device.reset_peak();
    let gradients = y.backward_with(dy).unwrap();
    let report = device.report();
    let dx = gradients.get(&x).unwrap().clone();
    let peak = report.peaks[Purpose::Gradient] - before;
    assert_eq!(report.live[Purpose::Gradient] - before, dx.bytes() as u64);
    if device.workspace_cap() == Some(0) {
        assert_eq!(report.peak - live, peak, "nothing beside gradients");
    }
    (dx, peak)
}

fn dy(rows: usize) -> Vec<f64> {
    Numbers(4).sixteenths(rows * WIDTH)
}

fn reference(all: &[Entries]) -> Vec<f64> {
    let each = all.iter().map(|e| e.transposed().times(&dy(e.rows), WIDTH));
    each.reduce(|a, b| add(&a, &b)).unwrap()
}

#[test]
fn products_that_share_their_operand_take_one_gradient() {
    let all = [entries(1), entries(2), entries(5)];
    for device in devices() {
        device.set_workspace_cap(0);
        for (dtype, call) in FLOATS.into_iter().flat_map(|d| Call::BOTH.map(|call| (d, call))) {
            let matrices: Vec<_> = all.iter().map(|e| build(e, dtype, &device)).collect();
            for count in 1..=3 {
                let (dx, peak) = shared_x(call, &matrices[..count], dtype, &device);
                let expected = call.turned(reference(&all[..count]), all[0].cols);
                assert_close(format!("{call:?} of {count}"), &dx, &expected);
                assert_eq!(peak, dx.bytes() as u64, "{call:?} of {count}, {dtype}");
            }
        }
    }
}

#[test]
fn plans_say_that_the_product_is_added() {
    let all = [entries(1), entries(2)];
    for device in devices() {
        let matrices: Vec<_> = all.iter().map(|e| build(e, DType::F32, &device)).collect();
        shared_x(Call::Apply, &matrices, DType::F32, &device);
        let plans: Vec<String> = device.plans().iter().map(|plan| plan.to_string()).collect();
        let adding = plans.iter().filter(|plan| plan.contains("added to the result")).count();
        assert_eq!(adding, 1, "{plans:?}");
    }
}

/// With a workspace too, by the transpose and by a stored one.
#[test]
fn every_layout_adds_up() {
    let all = [entries(1), entries(2), entries(5)];
    let options =
        |stored_transpose| SparseOptions { stored_transpose, width: WIDTH, ..Default::default() };
    for device in devices() {
        for (stored, call) in [StoredTranspose::Never, StoredTranspose::Always]
            .into_iter()
            .flat_map(|stored| Call::BOTH.map(|call| (stored, call)))
        {
            let lay_out = |e: &Entries| {
                build(e, DType::F64, &device).to_with(&device, options(stored)).unwrap()
            };
            let matrices: Vec<_> = all.iter().map(lay_out).collect();
            let (dx, _) = shared_x(call, &matrices, DType::F64, &device);
            let expected = call.turned(reference(&all), all[0].cols);
            assert_close(format!("{call:?}, {stored:?}"), &dx, &expected);
            let views: Vec<_> = matrices.iter().map(SparseMatrix::transpose).collect();
            let turned: Vec<_> = all.iter().map(Entries::transposed).collect();
            let (dx, _) = shared_x(call, &views, DType::F64, &device);
            let expected = call.turned(reference(&turned), turned[0].cols);
            assert_close(format!("{call:?} of views, {stored:?}"), &dx, &expected);
        }
    }
}

/// Candidates are timed by running them many times: none of those runs may be in the gradient.
#[test]
fn measuring_adds_nothing() {
    let all = [entries(1), entries(2), entries(5)];
    for device in devices() {
        device.set_ranking(Ranking::Measured);
        for (dtype, call) in FLOATS.into_iter().flat_map(|d| Call::BOTH.map(|call| (d, call))) {
            let matrices: Vec<_> = all.iter().map(|e| build(e, dtype, &device)).collect();
            // The second time by the plans that were kept.
            for time in 0..2 {
                let (dx, _) = shared_x(call, &matrices, dtype, &device);
                let expected = call.turned(reference(&all), all[0].cols);
                assert_close(format!("{call:?}, time {time}"), &dx, &expected);
            }
            shared_values(call, dtype, &device);
        }
    }
}

/// Values and an operand that are used again: the pass's peak of gradients beyond the two results.
fn shared_values(call: Call, dtype: DType, device: &Device) -> u64 {
    let e = entries(1);
    let a = build(&e, dtype, device);
    let x = [Numbers(6), Numbers(7)].map(|mut n| n.sixteenths(e.cols * WIDTH));
    let dy = dy(e.rows);
    let tape = Tape::new();
    let v = tape.variable(a.values().unwrap()).unwrap();
    let dense = |x: &[f64]| call.dense(x, e.cols, dtype, device);
    let (x0, x1) = (tape.variable(dense(&x[0])).unwrap(), tape.constant(dense(&x[1])));
    let products = [&x0, &x1, &x0].map(|x| call.with_values(&a, &v, x));
    let y = total(&products);
    drop(products);
    device.reset_peak();
    let gradients = y.backward_with(call.dense(&dy, e.rows, dtype, device)).unwrap();
    let peak = device.report().peaks[Purpose::Gradient];
    let each = [&x[0], &x[1], &x[0]].map(|x| e.value_gradients(x, &dy, WIDTH));
    let (dv, dx) = (gradients.get(&v).unwrap(), gradients.get(&x0).unwrap());
    assert_close(format!("{call:?}: values"), dv, &add(&add(&each[0], &each[1]), &each[2]));
    let once = e.transposed().times(&dy, WIDTH);
    assert_close(format!("{call:?}: x"), dx, &call.turned(add(&once, &once), e.cols));
    peak - (dv.bytes() + dx.bytes()) as u64
}

#[test]
fn values_that_are_used_again_take_one_gradient() {
    for device in devices() {
        device.set_workspace_cap(0);
        for (dtype, call) in FLOATS.into_iter().flat_map(|d| Call::BOTH.map(|call| (d, call))) {
            assert_eq!(shared_values(call, dtype, &device), 0, "{call:?} {dtype}");
        }
    }
}

/// `x + A·x`: what has come in for `x` is the caller's own tensor, and a kept gradient.
#[test]
fn what_others_hold_is_not_added_to() {
    let n = 96;
    let e = Entries { rows: n, ..entries(1) };
    for device in devices() {
        for (dtype, call) in FLOATS.into_iter().flat_map(|d| Call::BOTH.map(|call| (d, call))) {
            let a = build(&e, dtype, &device);
            let tape = Tape::new();
            let x = Numbers(3).sixteenths(n * WIDTH);
            let x = tape.variable(call.dense(&x, n, dtype, &device)).unwrap();
            let y = x.add(&call.of(&a, &x)).unwrap();
            y.keep_gradient();
            let check = |gradients: Gradients, dy: &[f64]| {
                let expected = add(dy, &e.transposed().times(dy, WIDTH));
                let dx = gradients.get(&x).unwrap();
                assert_close(format!("{call:?}"), dx, &call.turned(expected, n));
                assert_eq!(values(gradients.get(&y).unwrap()), call.turned(dy.to_vec(), n));
            };
            check(y.sum().unwrap().backward_retained().unwrap(), &vec![1.0; n * WIDTH]);
            let given = call.dense(&dy(n), n, dtype, &device);
            let before = bits(&given);
            check(y.clone().backward_with(given.clone()).unwrap(), &dy(n));
            assert_eq!(bits(&given), before);
        }
    }
}

/// A pass that fails when gradients have come in leaves none behind.
#[test]
fn a_pass_that_fails_leaves_nothing() {
    for device in devices() {
        let (a, b) = (entries(1), entries(2));
        let (a, b) = (build(&a, DType::F32, &device), build(&b, DType::F32, &device));
        let x = tensor(&[0.5; 96 * WIDTH], [WIDTH, 96], DType::F32, &device);
        let live = device.live_bytes();
        let tape = Tape::new();
        let x = tape.variable(x).unwrap();
        let y = total(&[&a, &b, &b].map(|a| a.apply(&x).unwrap()));
        // Shared with the matrix in compressed rows.
        a.values().unwrap().copy_from(&b.values().unwrap()).unwrap();
        assert!(y.sum().unwrap().backward().is_err());
        drop(y);
        assert_eq!(device.live_bytes(), live);
    }
}
