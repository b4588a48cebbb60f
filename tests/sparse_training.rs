//! Training with a sparse matrix: memory flat over steps, a peak of one copy of the matrix and the
//! dense vectors, gradients for the values in O(nnz), and values that an optimiser changes.

mod support;

use capgrad::optim::{AdamOptions, SgdOptions};
use capgrad::{
    Adam, DType, Device, MIB, Parameter, Sgd, SparseForm, SparseMatrix, SparseOptions,
    StoredTranspose, Tape, Tensor,
};
use support::sparse::Entries;
use support::{Kind, Numbers, assert_close, devices, kinds, relative_error, tensor, values};

/// `n × n` with `per_row` entries a row, spread out.
fn large(n: usize, per_row: usize) -> Entries {
    let mut numbers = Numbers(4);
    let strip = n / per_row;
    let place = |e: usize, numbers: &mut Numbers| e % per_row * strip + numbers.below(strip);
    Entries {
        rows: n,
        cols: n,
        i: (0..n * per_row).map(|e| e / per_row).collect(),
        j: (0..n * per_row).map(|e| place(e, &mut numbers)).collect(),
        values: numbers.sixteenths(n * per_row),
    }
}

/// In compressed rows, whose bytes are known, or another form.
fn build_in(entries: &Entries, form: SparseForm, device: &Device) -> SparseMatrix {
    let values: Vec<f32> = entries.values.iter().map(|&value| value as f32).collect();
    let a = SparseMatrix::from_coo(entries.rows, entries.cols, &entries.i, &entries.j, values);
    let options = SparseOptions { form, ..Default::default() };
    a.unwrap().to_with(device, options).unwrap()
}

fn build(entries: &Entries, device: &Device) -> SparseMatrix {
    build_in(entries, SparseForm::Csr, device)
}

/// One training step with `batch` vectors: its peak, less what it may hold beside the matrix: the
/// parameter, the product, its square, and a gradient of each of two.
fn peak_beside_vectors(a: &SparseMatrix, batch: usize) -> u64 {
    let (n, device) = (a.cols(), a.device());
    let base = device.live_bytes() - a.bytes() as u64;
    let x = tensor(&Numbers(5).sixteenths(batch * n), [batch, n], DType::F32, device);
    let w = Parameter::new("w", x).unwrap();
    let mut sgd = Sgd::new([w.clone()], SgdOptions::default()).unwrap();
    device.reset_peak();
    let tape = Tape::new();
    let y = a.apply(&tape.parameter(&w)).unwrap();
    assert_eq!(y.dims(), [batch, n]);
    let loss = y.square().unwrap().mean().unwrap();
    drop(y);
    sgd.step(&loss.backward().unwrap()).unwrap();
    device.report().peak - base - 4 * (batch * n * 4) as u64
}

#[test]
fn a_step_peaks_at_one_matrix_and_the_dense_vectors() {
    let sizes = [(20_000, 100, 1), (20_000, 100, 3), (20_000, 20, 1)];
    let forms = [SparseForm::Csr, SparseForm::Tiled];
    let each = kinds().flat_map(|kind| sizes.map(|sizes| forms.map(|form| (kind, sizes, form))));
    for (kind, (n, per_row, batch), form) in each.flatten() {
        let entries = large(n, per_row);
        let device = kind.plain();
        let a = build_in(&entries, form, &device);
        let bytes = a.bytes() as u64;
        if (per_row, batch) != (100, 1) {
            // Accumulators grow with rows and vectors, not with the entries: a cap bounds them.
            device.set_workspace_cap(bytes / 20);
        }
        if a.form() == SparseForm::Csr {
            assert_eq!(bytes, 4 * (n as u64 + 1) + 8 * a.nnz() as u64);
        }
        assert!(!a.has_stored_transpose(), "without a limit there is one copy");
        let (peak, allowed) = (peak_beside_vectors(&a, batch), bytes + bytes / 20);
        assert!(peak <= allowed, "batch {batch}: {peak}, not {allowed} (the matrix: {bytes})");
    }
}

/// The second workload's 268,800² with 100 entries a row, at full size and with the default cap.
#[test]
fn the_whole_workload_peaks_at_one_matrix_and_the_dense_vectors() {
    let (n, per_row) = (268_800, 100);
    let mut numbers = Numbers(6);
    let strip = n / per_row;
    let place = |e: usize| (e % per_row * strip + numbers.below(strip)) as i32;
    let col_indices: Vec<i32> = (0..n * per_row).map(place).collect();
    let row_offsets: Vec<i32> = (0..=n).map(|row| (row * per_row) as i32).collect();
    let values = vec![0.25f32; n * per_row];
    let a = SparseMatrix::from_csr_owned(n, n, row_offsets, col_indices, values).unwrap();
    for kind in kinds() {
        // Two threads: the accumulators of each further one are workspace, up to the cap.
        let options = SparseOptions { form: SparseForm::Csr, ..Default::default() };
        let a = a.to_with(&kind.poisoned(), options).unwrap();
        assert_eq!(a.bytes(), 4 * (n + 1) + 8 * n * per_row);
        let (peak, bytes) = (peak_beside_vectors(&a, 1), a.bytes() as u64);
        assert!(peak <= bytes + bytes / 20, "{peak}, of which {bytes} the matrix");
    }
}

/// pytorch#109445, #1473.
#[test]
fn live_bytes_are_flat_over_200_steps() {
    let entries = large(600, 12);
    let (mut offsets, mut columns) = (vec![0], Vec::<usize>::new());
    for row in entries.j.chunks(12) {
        columns.extend(row);
        offsets.push(columns.len());
    }
    let csr = |device: &Device| {
        let values: Vec<f32> = entries.values.iter().map(|&value| value as f32).collect();
        let a = SparseMatrix::from_csr(600, 600, &offsets, &columns, values);
        a.unwrap().to(device).unwrap()
    };
    for (kind, from_csr) in kinds().flat_map(|kind| [(kind, true), (kind, false)]) {
        let device = kind.poisoned();
        let a = if from_csr { csr(&device) } else { build(&entries, &device) };
        let start = tensor(&Numbers(1).reals(600), [1, 600], DType::F32, &device);
        let w = Parameter::new("w", start).unwrap();
        let target = tensor(&Numbers(2).reals(600), [1, 600], DType::F32, &device);
        let options = AdamOptions { rate: 0.02, ..Default::default() };
        let mut adam = Adam::new([w.clone()], options).unwrap();
        let mut seen = Vec::new();
        let mut losses = Vec::new();
        for step in 0..200 {
            let tape = Tape::for_step(0, step);
            let y = a.apply(&tape.parameter(&w)).unwrap();
            let error = y.sub(&tape.constant(target.clone())).unwrap();
            let loss = error.square().unwrap().mean().unwrap();
            drop((y, error));
            losses.push(loss.item().unwrap());
            adam.step(&loss.backward().unwrap()).unwrap();
            seen.push((device.live_bytes(), device.report().peak, tape.live_nodes()));
        }
        assert!(seen[1..].iter().all(|state| *state == seen[1]), "{:?}", &seen[..4]);
        assert!(losses[199] < 0.5 * losses[0], "{} to {}", losses[0], losses[199]);
    }
}

/// pytorch#41128.
#[test]
fn gradients_for_the_values_take_memory_of_the_entries_and_not_of_their_square() {
    let (n, nnz, width) = (110_000usize, 860_000usize, 200usize);
    let mut numbers = Numbers(6);
    let entries = Entries::random(n, n, nnz, &mut numbers);
    // Entries in stored order.
    let mut places: Vec<(usize, usize)> =
        entries.i.iter().copied().zip(entries.j.iter().copied()).collect();
    places.sort_unstable();
    places.dedup();
    let x: Vec<f32> = (0..n * width).map(|e| (e % 17) as f32 / 16.0 - 0.5).collect();
    let dy: Vec<f32> = (0..n * width).map(|e| (e % 13) as f32 / 16.0 - 0.375).collect();
    for device in kinds().map(Kind::plain) {
        let a = build(&entries, &device);
        let tape = Tape::new();
        let values = tape.variable(a.values().unwrap()).unwrap();
        let xv = tape.constant(Tensor::from_slice(&x, [n, width], &device).unwrap());
        device.reset_peak();
        let live = device.live_bytes();
        let y = a.matmul_values(&values, &xv).unwrap();
        let gradient = Tensor::from_slice(&dy, [n, width], &device).unwrap();
        let gradients = y.backward_with(gradient).unwrap();
        let dense = (n * width * 4) as u64;
        let peak = device.report().peak - live;
        assert!(peak <= 2 * dense + 64 * MIB + 8 * nnz as u64, "{peak}");
        let got = gradients.get(&values).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(places.len(), got.len());
        let (mut out, mut expected) = (vec![], vec![]);
        for _ in 0..2_000 {
            let e = numbers.below(got.len());
            let (i, j) = places[e];
            let dot = |v: usize| dy[i * width + v] as f64 * x[j * width + v] as f64;
            out.push(got[e] as f64);
            expected.push((0..width).map(dot).sum());
        }
        assert!(relative_error(&out, &expected) <= 1e-5);
    }
}

/// `a` (symmetric or with a stored transpose) against the reference with the values it has now.
#[track_caller]
fn check_now(what: &str, a: &SparseMatrix, now: &Entries, device: &Device) {
    let (n, width) = (now.rows, 3);
    let (x, dy) = (Numbers(1).sixteenths(n * width), Numbers(2).sixteenths(n * width));
    for (view, name) in [(a.clone(), "matrix"), (a.transpose(), "view")] {
        let reference = if name == "view" { now.transposed() } else { now.clone() };
        let tape = Tape::new();
        let v = tape.variable(tensor(&x, [n, width], DType::F64, device)).unwrap();
        let y = view.matmul(&v).unwrap();
        assert_close(format!("{what}, {name}: y"), y.tensor(), &reference.times(&x, width));
        let gradients = y.backward_with(tensor(&dy, [n, width], DType::F64, device)).unwrap();
        let dx = reference.transposed().times(&dy, width);
        assert_close(format!("{what}, {name}: dx"), gradients.get(&v).unwrap(), &dx);
    }
}

#[test]
fn values_that_adam_trains_leave_no_stale_transpose_or_symmetry_behind() {
    for device in devices() {
        // A symmetric pattern with symmetric values, in stored order.
        let n = 12usize;
        let places: Vec<(usize, usize)> = (0..n * n)
            .map(|e| (e / n, e % n))
            .filter(|(i, j)| (i + j) % 3 == 0 || i.abs_diff(*j) == 1)
            .collect();
        let value = |(i, j): &(usize, usize)| ((i * j + i + j) % 7) as f64 / 4.0 - 0.5;
        let entries = |values: Vec<f64>| Entries {
            rows: n,
            cols: n,
            i: places.iter().map(|place| place.0).collect(),
            j: places.iter().map(|place| place.1).collect(),
            values,
        };
        let start = entries(places.iter().map(value).collect());
        let fresh = || SparseMatrix::from_coo(n, n, &start.i, &start.j, &start.values).unwrap();
        let always = SparseOptions {
            stored_transpose: StoredTranspose::Always,
            width: 3,
            // In which the values are shared with the matrix.
            form: SparseForm::Csr,
        };
        let once = SparseOptions { stored_transpose: StoredTranspose::Never, ..always };
        let matrices = [
            ("plain", fresh().to_with(&device, once).unwrap()),
            ("stored transpose", fresh().to_with(&device, always).unwrap()),
            ("symmetric", fresh().symmetric().unwrap().to_with(&device, once).unwrap()),
        ];
        for (what, a) in matrices {
            check_now(what, &a, &start, &device);
            let parameter = Parameter::new("values", a.values().unwrap()).unwrap();
            let options = AdamOptions { rate: 0.1, ..Default::default() };
            let mut adam = Adam::new([parameter.clone()], options).unwrap();
            let x = tensor(&Numbers(3).sixteenths(n * 2), [n, 2], DType::F64, &device);
            for step in 0..3 {
                let tape = Tape::new();
                let v = tape.parameter(&parameter);
                let y = a.matmul_values(&v, &tape.constant(x.clone())).unwrap();
                adam.step(&y.square().unwrap().mean().unwrap().backward().unwrap()).unwrap();
                let now = entries(values(parameter.tensor()));
                assert_ne!(now.values, start.values);
                check_now(&format!("{what} after step {step}"), &a, &now, &device);
            }
            assert!(!a.is_symmetric() && !a.has_stored_transpose(), "{what}");
            // Laid out again, the transpose is that of the new values.
            let again = a.to_with(&device, always).unwrap();
            assert!(again.has_stored_transpose());
            check_now(what, &again, &entries(values(&a.values().unwrap())), &device);
        }
    }
}

#[test]
fn a_step_between_forward_and_backward_is_noticed() {
    for device in devices() {
        let a = SparseMatrix::from_coo(2, 2, &[0, 1], &[1, 0], &[2.0f64, 3.0]).unwrap();
        let options = SparseOptions { form: SparseForm::Csr, ..Default::default() };
        let a = a.to_with(&device, options).unwrap();
        let tape = Tape::new();
        let x = tape.variable(Tensor::ones([1, 2], DType::F64, &device).unwrap()).unwrap();
        let y = a.apply(&x).unwrap().sum().unwrap();
        a.values().unwrap().copy_from(&Tensor::ones([2], DType::F64, &device).unwrap()).unwrap();
        let error = y.backward().err().unwrap();
        assert!(error.to_string().contains("sparse apply"), "{error}");
    }
}

#[test]
fn a_stored_transpose_is_taken_only_when_asked_for_or_where_a_limit_leaves_room() {
    let entries = large(2_000, 10);
    for kind in kinds() {
        let a = build(&entries, &kind.plain());
        assert!(!a.has_stored_transpose());
        let bytes = a.bytes();
        let with = |limit: u64, stored_transpose| {
            let device = kind.plain();
            let base = device.live_bytes();
            device.set_memory_limit(Some(base + limit)).unwrap();
            let options = SparseOptions { stored_transpose, width: 8, form: SparseForm::Csr };
            let moved = a.to_with(&device, options).unwrap();
            assert_eq!((device.live_bytes() - base) as usize, moved.bytes());
            (moved.has_stored_transpose(), moved.bytes())
        };
        let (auto, never, always) =
            (StoredTranspose::Auto, StoredTranspose::Never, StoredTranspose::Always);
        assert_eq!(with(bytes as u64 + 100, auto), (false, bytes));
        // Two copies alone would leave nothing for a step: as much again as the second stays free.
        for limit in [2 * bytes as u64 + 100, 3 * bytes as u64 - 8] {
            assert_eq!(with(limit, auto), (false, bytes), "{limit}");
        }
        let (stored, both) = with(100 * bytes as u64, auto);
        assert_eq!(both, if stored { 2 * bytes } else { bytes });
        assert_eq!(with(100 * bytes as u64, never), (false, bytes));
        assert_eq!(with(2 * bytes as u64, always), (true, 2 * bytes));
        let device = kind.plain();
        let base = device.live_bytes();
        device.set_memory_limit(Some(base + 2 * bytes as u64 - 1)).unwrap();
        let options = SparseOptions { stored_transpose: always, width: 8, form: SparseForm::Csr };
        assert!(a.to_with(&device, options).is_err());
        assert_eq!(device.live_bytes(), base);
    }
}
