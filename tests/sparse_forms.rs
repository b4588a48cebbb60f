//! The forms in which a device keeps a sparse matrix: each holds the same matrix, gives the same
//! products, and a matrix that is larger than the memory limit is streamed. On a CPU there is one form.

mod support;

use capgrad::optim::AdamOptions;
use capgrad::{
    Adam, CudaOptions, DType, Device, Parameter, SparseForm, SparseMatrix, SparseOptions,
    StoredTranspose, Tape, Tensor,
};
use support::sparse::{Entries, forms, transposed};
use support::{Kind, Numbers, assert_close, bits, devices, kinds, tensor, values};

/// Entries without duplicates: `per_row` in every row, spread out.
fn spread(rows: usize, cols: usize, per_row: usize, seed: u64) -> Entries {
    let mut numbers = Numbers(seed);
    let strip = cols / per_row;
    let place = |e: usize, numbers: &mut Numbers| e % per_row * strip + numbers.below(strip);
    Entries {
        rows,
        cols,
        i: (0..rows * per_row).map(|e| e / per_row).collect(),
        j: (0..rows * per_row).map(|e| place(e, &mut numbers)).collect(),
        values: numbers.sixteenths(rows * per_row),
    }
}

fn build(entries: &Entries) -> SparseMatrix {
    let Entries { rows, cols, i, j, values } = entries;
    let values: Vec<f32> = values.iter().map(|&value| value as f32).collect();
    SparseMatrix::from_coo(*rows, *cols, i, j, values).unwrap()
}

fn in_form(a: &SparseMatrix, form: SparseForm, device: &Device) -> SparseMatrix {
    let stored_transpose = StoredTranspose::Never;
    a.to_with(device, SparseOptions { form, stored_transpose, ..Default::default() }).unwrap()
}

#[test]
fn every_form_holds_the_same_matrix() {
    for device in devices() {
        let entries = spread(300, 5000, 50, 1);
        let host = build(&entries);
        let dense = values(&host.to_dense().unwrap());
        let mut previous = host.clone();
        for &form in forms(&device) {
            // From the form before, as well as from the host.
            for source in [host.clone(), previous.clone()] {
                let a = in_form(&source, form, &device);
                assert_eq!((a.form(), a.nnz()), (form, entries.values.len()));
                assert_eq!(values(&a.to_dense().unwrap()), dense, "{form:?}");
                assert_eq!(values(&a.values().unwrap()), values(&host.values().unwrap()));
                assert_eq!(values(&a.transpose().to_dense().unwrap()).len(), dense.len());
                let text = a.layout().unwrap().to_string();
                assert!(text.contains("taken: asked for"), "{text}");
                previous = a;
            }
        }
        let back = previous.to(&Device::cpu()).unwrap();
        assert_eq!(values(&back.to_dense().unwrap()), dense);
    }
}

#[test]
fn strips_take_less_memory_than_rows() {
    for device in devices().filter(|device| Kind::of(device) == Kind::Cuda) {
        let host = build(&spread(2000, 20_000, 200, 2));
        let [rows, tiled] =
            [SparseForm::Csr, SparseForm::Tiled].map(|form| in_form(&host, form, &device).bytes());
        // 6 bytes an entry and not 8, and a few per cent of marks and padding.
        assert!(tiled as f64 <= 0.8 * rows as f64, "{tiled} of {rows}");
    }
}

#[test]
fn a_matrix_that_the_limit_has_no_room_for_is_streamed() {
    for kind in kinds().filter(|&kind| kind == Kind::Cuda) {
        let entries = spread(3000, 4000, 100, 3);
        let host = build(&entries);
        for cap in [0, 100_000, 600_000] {
            for width in [1, 3] {
                let device = kind.poisoned();
                device.set_workspace_cap(cap);
                let limit = device.live_bytes() + 1_000_000;
                device.set_memory_limit(Some(limit)).unwrap();
                let options = SparseOptions { width, ..Default::default() };
                let a = host.to_with(&device, options).unwrap();
                assert_eq!(a.form(), SparseForm::Streamed);
                assert!(a.layout().unwrap().to_string().contains("leaves room for no other"));
                let x = Numbers(4).sixteenths(4000 * width);
                let dy = Numbers(5).sixteenths(3000 * width);
                let put = |data: &[f64], length| {
                    tensor(&transposed(data, length, width), [width, length], DType::F32, &device)
                };
                device.reset_peak();
                let tape = Tape::new();
                let v = tape.variable(put(&x, 4000)).unwrap();
                let y = a.apply(&v).unwrap();
                let expected = transposed(&entries.times(&x, width), 3000, width);
                assert_close("y", y.tensor(), &expected);
                let gradients = y.backward_with(put(&dy, 3000)).unwrap();
                let expected = transposed(&entries.transposed().times(&dy, width), 4000, width);
                assert_close("dx", gradients.get(&v).unwrap(), &expected);
                assert!(device.report().peak <= limit);
                let plans: String = a.plan(width).unwrap().iter().map(|p| p.to_string()).collect();
                assert!(plans.contains("chunks of"), "{plans}");
            }
        }
    }
}

#[test]
fn deterministic_products_repeat_bit_for_bit() {
    for device in devices() {
        device.set_deterministic(true);
        let (rows, cols) = (2500, 3000);
        let host = build(&spread(rows, cols, 60, 6));
        for dtype in [DType::F32, DType::F16] {
            let host = match dtype {
                DType::F16 => {
                    let entries = spread(rows, cols, 60, 6);
                    let values: Vec<capgrad::f16> =
                        entries.values.iter().map(|&v| capgrad::f16::from_f64(v)).collect();
                    SparseMatrix::from_coo(rows, cols, &entries.i, &entries.j, values).unwrap()
                }
                _ => host.clone(),
            };
            for &form in forms(&device) {
                let a = in_form(&host, form, &device);
                for width in [1, 8] {
                    let x = tensor(&Numbers(7).reals(width * cols), [width, cols], dtype, &device);
                    let g = tensor(&Numbers(8).reals(rows * width), [rows, width], dtype, &device);
                    let run = || {
                        let y = a.apply(&x.clone().into()).unwrap();
                        let z = a.transpose().matmul(&g.clone().into()).unwrap();
                        (bits(y.tensor()), bits(z.tensor()))
                    };
                    let first = run();
                    for _ in 0..20 {
                        assert!(run() == first, "{dtype} {form:?} {width}");
                    }
                }
            }
        }
    }
}

#[test]
fn values_train_in_every_form_as_they_do_on_a_cpu() {
    let entries = spread(40, 60, 6, 9);
    let train = |device: &Device, form: SparseForm| -> Vec<f64> {
        let a = in_form(&build(&entries), form, device);
        let parameter = Parameter::new("values", a.values().unwrap()).unwrap();
        let options = AdamOptions { rate: 0.01, ..Default::default() };
        let mut adam = Adam::new([parameter.clone()], options).unwrap();
        let x = tensor(&Numbers(3).sixteenths(60 * 4), [4, 60], DType::F32, device);
        for _ in 0..10 {
            let tape = Tape::new();
            let v = tape.parameter(&parameter);
            let y = a.apply_values(&v, &tape.constant(x.clone())).unwrap();
            adam.step(&y.square().unwrap().mean().unwrap().backward().unwrap()).unwrap();
        }
        values(parameter.tensor())
    };
    let expected = train(&Device::cpu(), SparseForm::Csr);
    let start: Vec<f64> = values(&build(&entries).values().unwrap());
    assert_ne!(expected, start);
    for device in devices() {
        for &form in forms(&device) {
            let got = train(&device, form);
            let error = support::relative_error(&got, &expected);
            assert!(error < 1e-4, "{form:?}: {error}");
        }
    }
}

/// The width is a hint, whatever it is.
#[test]
fn any_width_can_be_expected() {
    for device in devices() {
        let host = build(&spread(30, 40, 5, 1));
        for width in [0, 1, 1 << 20, usize::MAX] {
            for limit in [None, Some(device.live_bytes() + (1 << 30))] {
                device.set_memory_limit(limit).unwrap();
                let options = SparseOptions { width, ..Default::default() };
                let a = host.to_with(&device, options).unwrap();
                let x = tensor(&[1.0; 40], [1, 40], DType::F32, &device);
                let expected = build(&spread(30, 40, 5, 1));
                let y =
                    expected.apply(&tensor(&[1.0; 40], [1, 40], DType::F32, &Device::cpu()).into());
                assert_close(
                    "y",
                    a.apply(&x.into()).unwrap().tensor(),
                    &values(y.unwrap().tensor()),
                );
            }
        }
    }
}

#[test]
fn a_form_that_a_device_does_not_have_is_compressed_rows() {
    let host = build(&spread(10, 20, 2, 1));
    for form in [SparseForm::Tiled, SparseForm::Streamed] {
        assert_eq!(in_form(&host, form, &Device::cpu()).form(), SparseForm::Csr);
    }
    let x = Tensor::ones([1, 20], DType::F32, &Device::cpu()).unwrap();
    assert_eq!(host.apply(&x.into()).unwrap().dims(), [1, 10]);
}

#[test]
fn every_form_goes_to_other_dtypes_and_back() {
    let entries = spread(60, 3000, 40, 5);
    let host = build(&entries);
    for device in devices() {
        for &form in forms(&device) {
            let a = in_form(&host, form, &device);
            for dtype in DType::FLOATS {
                let b = a.to_dtype(dtype).unwrap();
                assert_eq!((b.dtype(), b.form(), b.device()), (dtype, form, &device));
                // Sixteenths below 8 are exact in every dtype.
                assert_eq!(values(&b.to_dense().unwrap()), values(&host.to_dense().unwrap()));
                let x = tensor(&Numbers(2).sixteenths(2 * 3000), [2, 3000], dtype, &device);
                let expected =
                    transposed(&entries.times(&transposed(&values(&x), 2, 3000), 2), 60, 2);
                assert_close(format!("{form:?}"), b.apply(&x.into()).unwrap().tensor(), &expected);
                let back = b.transpose().to_dtype(DType::F32).unwrap();
                assert_eq!((back.rows(), back.cols(), back.form()), (3000, 60, form));
            }
            let both = SparseOptions {
                form,
                stored_transpose: StoredTranspose::Always,
                ..Default::default()
            };
            let both = a.to_with(&device, both).unwrap().to_dtype(DType::F64).unwrap();
            assert!(both.has_stored_transpose());
            assert!(a.to_dtype(DType::I32).is_err());
        }
    }
}

/// Sums of a million equal terms: in partial sums that grew much larger than the terms, these would lose
/// their digits.
#[test]
fn long_sums_keep_their_digits() {
    const N: usize = 1_000_003;
    let (v, x) = (f64::from(0.1f32), f64::from(0.3f32));
    let line = |rows, cols| {
        let along = |extent: usize| (0..N).map(move |e| if extent == 1 { 0 } else { e });
        let (i, j): (Vec<_>, Vec<_>) = (along(rows).collect(), along(cols).collect());
        SparseMatrix::from_coo(rows, cols, &i, &j, vec![0.1f32; N]).unwrap()
    };
    // A place that is given so many times.
    assert_close("duplicates", &line(1, 1).values().unwrap(), &[N as f64 * v]);
    for device in devices() {
        // A library may add up as it likes.
        let device = match Kind::of(&device) {
            Kind::Cpu => device,
            Kind::Cuda => {
                let options = CudaOptions { kernels_only: true, ..Default::default() };
                Device::new_cuda(0, options).unwrap()
            }
        };
        for &form in forms(&device) {
            let long = in_form(&line(1, N), form, &device);
            for width in [1, 3, 8] {
                let what = |product| format!("{} {form:?} {product} {width}", device.name());
                let side = |shape| tensor(&vec![x; N * width], shape, DType::F32, &device).into();
                let expected = vec![N as f64 * v * x; width];
                let y = long.apply(&side([width, N])).unwrap();
                assert_close(what("apply"), y.tensor(), &expected);
                let y = long.matmul(&side([N, width])).unwrap();
                assert_close(what("matmul"), y.tensor(), &expected);
            }
            // The gradient of a value goes along the vectors.
            let one = SparseMatrix::from_coo(1, 2, &[0], &[1], vec![1.0f32]).unwrap();
            let one = in_form(&one, form, &device);
            let ones = vec![x; 2 * N];
            for apply in [true, false] {
                let tape = Tape::new();
                let values = tape.variable(one.values().unwrap()).unwrap();
                let y = if apply {
                    one.apply_values(&values, &tensor(&ones, [N, 2], DType::F32, &device).into())
                } else {
                    one.matmul_values(&values, &tensor(&ones, [2, N], DType::F32, &device).into())
                };
                let y = y.unwrap();
                let dy = tensor(&vec![v; N], y.tensor().shape().clone(), DType::F32, &device);
                let gradients = y.backward_with(dy).unwrap();
                let what = format!("{} {form:?} values, apply {apply}", device.name());
                assert_close(what, gradients.get(&values).unwrap(), &[N as f64 * v * x]);
            }
        }
    }
}
