//! Products of a sparse matrix with dense tensors, and their gradients, against a naive f64
//! reference: every layout, view, dtype and width, with and without a stored transpose, under caps
//! from 0 upward.

mod support;

use capgrad::{
    DType, Device, Element, Error, Float, KIB, Ranking, SparseForm, SparseMatrix, SparseOptions,
    StoredTranspose, Tape, Tensor, Var, bf16, f16, no_grad,
};
use proptest::prelude::*;
use support::sparse::{Entries, transposed};
use support::{Kind, Numbers, assert_close, devices, tensor, values, workspace_peak};

fn build_as<T: Float>(entries: &Entries) -> SparseMatrix {
    let Entries { rows, cols, i, j, values } = entries;
    let values: Vec<T> = values.iter().map(|&value| T::from_f64(value)).collect();
    SparseMatrix::from_coo(*rows, *cols, i, j, values).unwrap()
}

fn build(entries: &Entries, dtype: DType) -> SparseMatrix {
    match dtype {
        DType::F32 => build_as::<f32>(entries),
        DType::F64 => build_as::<f64>(entries),
        DType::F16 => build_as::<f16>(entries),
        _ => build_as::<bf16>(entries),
    }
}

/// How a matrix is stored and read.
#[derive(Clone, Copy, Debug)]
struct Form {
    stored: StoredTranspose,
    kept: SparseForm,
    view: bool,
    apply: bool,
    trainable: bool,
}

fn forms(device: &Device) -> impl Iterator<Item = Form> + use<> {
    let kept = support::sparse::forms(device);
    (0..16 * kept.len()).map(move |bits| Form {
        stored: if bits & 1 == 0 { StoredTranspose::Never } else { StoredTranspose::Always },
        kept: kept[bits / 16],
        view: bits & 2 != 0,
        apply: bits & 4 != 0,
        trainable: bits & 8 != 0,
    })
}

/// One product and its gradients in one form. The entries have no duplicates.
fn check(entries: &Entries, width: usize, dtype: DType, form: Form, seed: u64, device: &Device) {
    let what = format!("{}×{} x {width}, {dtype}, {form:?}", entries.rows, entries.cols);
    let given = if form.view { entries.transposed() } else { entries.clone() };
    let options = SparseOptions { stored_transpose: form.stored, width, form: form.kept };
    let a = build(&given, dtype).to_with(device, options).unwrap();
    assert_eq!(a.has_stored_transpose(), form.stored == StoredTranspose::Always);
    // Without columns there are no strips of them.
    assert!(a.form() == form.kept || given.cols == 0, "{what}: {:?}", a.form());
    let a = if form.view { a.transpose() } else { a };
    let mut numbers = Numbers(seed);
    let x = numbers.sixteenths(entries.cols * width);
    let dy = numbers.sixteenths(entries.rows * width);
    let oriented = |data: &[f64], length: usize| {
        if form.apply {
            (transposed(data, length, width), [width, length])
        } else {
            (data.to_vec(), [length, width])
        }
    };
    let put = |data: &[f64], length: usize| {
        let (data, shape) = oriented(data, length);
        tensor(&data, shape, dtype, device)
    };
    let tape = Tape::new();
    let xv = tape.variable(put(&x, entries.cols)).unwrap();
    let vv = tape.variable(a.values().unwrap()).unwrap();
    let dy_tensor = put(&dy, entries.rows);
    device.reset_peak();
    let y = match (form.trainable, form.apply) {
        (false, false) => a.matmul(&xv),
        (false, true) => a.apply(&xv),
        (true, false) => a.matmul_values(&vv, &xv),
        (true, true) => a.apply_values(&vv, &xv),
    };
    let y = y.unwrap();
    let expected = oriented(&entries.times(&x, width), entries.rows);
    assert_eq!(y.dims(), expected.1, "{what}");
    assert_close(format!("{what}: y"), y.tensor(), &expected.0);
    let gradients = y.backward_with(dy_tensor).unwrap();
    let cap = device.workspace_cap().unwrap_or(u64::MAX);
    assert!(workspace_peak(device) <= cap, "{what}: {} over {cap}", workspace_peak(device));
    let dx = oriented(&entries.transposed().times(&dy, width), entries.cols).0;
    assert_close(format!("{what}: dx"), gradients.get(&xv).unwrap(), &dx);
    if form.trainable {
        // Stored row by row of the matrix as given.
        let mut order: Vec<usize> = (0..given.values.len()).collect();
        order.sort_by_key(|&e| (given.i[e], given.j[e]));
        let gradient = entries.value_gradients(&x, &dy, width);
        let expected: Vec<f64> = order.iter().map(|&e| gradient[e]).collect();
        assert_close(format!("{what}: dvalues"), gradients.get(&vv).unwrap(), &expected);
    }
}

/// Random entries, one a place.
fn distinct(rows: usize, cols: usize, nnz: usize, seed: u64) -> Entries {
    let mut entries = Entries::random(rows, cols, nnz, &mut Numbers(seed));
    let mut seen = std::collections::HashSet::new();
    let keep: Vec<bool> =
        (0..entries.i.len()).map(|e| seen.insert((entries.i[e], entries.j[e]))).collect();
    let mut kept = keep.iter();
    entries.i.retain(|_| *kept.next().unwrap());
    let mut kept = keep.iter();
    entries.j.retain(|_| *kept.next().unwrap());
    let mut kept = keep.iter();
    entries.values.retain(|_| *kept.next().unwrap());
    entries
}

#[test]
fn generated_products_agree_with_the_reference_under_every_cap() {
    for device in devices() {
        let base = device.live_bytes();
        let config = ProptestConfig { cases: 1_500, ..ProptestConfig::default() };
        let sizes = (0usize..30, 0usize..30, 0usize..200, 0usize..20);
        let cap = prop_oneof![Just(0), Just(1), 0u64..500, 0u64..20_000];
        let rest = (cap, 0usize..4, 0usize..48, any::<bool>(), any::<u64>());
        proptest!(config, |((rows, cols, nnz, width) in sizes, rest in rest)| {
            let (cap, dtype, form, measured, seed) = rest;
            device.set_workspace_cap(cap);
            device.set_ranking(if measured { Ranking::Measured } else { Ranking::Predicted });
            let all: Vec<Form> = forms(&device).collect();
            let form = all[form % all.len()];
            let entries = distinct(rows, cols, nnz, seed);
            check(&entries, width, DType::FLOATS[dtype], form, seed ^ 9, &device);
        });
        assert_eq!(device.live_bytes(), base);
    }
}

#[test]
fn every_width_form_and_dtype_agrees() {
    for device in devices() {
        let entries = distinct(70, 53, 500, 3);
        for cap in [0, 3 * KIB + 1, 64 << 20] {
            device.set_workspace_cap(cap);
            for width in [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 64, 143] {
                for dtype in DType::FLOATS {
                    for form in forms(&device) {
                        check(&entries, width, dtype, form, width as u64, &device);
                    }
                }
            }
        }
    }
}

#[test]
fn a_symmetric_matrix_gives_the_same_without_a_transposed_product() {
    for device in devices() {
        let half = distinct(20, 20, 60, 8);
        let (dense, mut both) = (half.dense(), half.clone());
        (both.i, both.j, both.values) = (vec![], vec![], vec![]);
        for e in 0..400 {
            let (i, j) = (e / 20, e % 20);
            both.i.push(i);
            both.j.push(j);
            both.values.push(dense[e] + dense[j * 20 + i]);
        }
        for dtype in DType::FLOATS {
            let a = build(&both, dtype).symmetric().unwrap().to(&device).unwrap();
            assert!(a.is_symmetric());
            let always = SparseOptions {
                stored_transpose: StoredTranspose::Always,
                width: 4,
                ..Default::default()
            };
            assert!(!a.to_with(&device, always).unwrap().has_stored_transpose());
            let (x, dy) = (Numbers(1).sixteenths(80), Numbers(2).sixteenths(80));
            for a in [a.clone(), a.transpose()] {
                let tape = Tape::new();
                let v = tape.variable(tensor(&x, [20, 4], dtype, &device)).unwrap();
                let y = a.matmul(&v).unwrap();
                assert_close("y", y.tensor(), &both.times(&x, 4));
                let gradients = y.backward_with(tensor(&dy, [20, 4], dtype, &device)).unwrap();
                assert_close("dx", gradients.get(&v).unwrap(), &both.times(&dy, 4));
            }
            let names: Vec<String> =
                a.plan(4).unwrap().iter().map(|plan| plan.operation().to_owned()).collect();
            assert!(names.iter().all(|name| name.contains("A·X")), "{names:?}");
        }
    }
}

/// cupy#9850.
#[test]
fn a_tiny_matrix_times_1048561_columns_is_right_in_the_last_ones() {
    let width = 1_048_561;
    for device in devices() {
        let a = SparseMatrix::from_coo(
            4,
            4,
            &[0, 1, 2, 3, 3],
            &[1, 0, 3, 2, 3],
            &[1.0f32, 2.0, 3.0, 4.0, 0.5],
        );
        let a = a.unwrap().to(&device).unwrap();
        let value = |e: usize| (e % 251) as f32 - 125.0;
        let x: Vec<f32> = (0..4 * width).map(value).collect();
        let tape = Tape::new();
        let v = tape.variable(Tensor::from_vec(x.clone(), [4, width], &device).unwrap()).unwrap();
        let y = a.matmul(&v).unwrap();
        let got = y.tensor().to_vec::<f32>().unwrap();
        for c in (0..1000).chain(width - 70_000..width) {
            let column = |row: usize| x[row * width + c];
            let expected =
                [column(1), 2.0 * column(0), 3.0 * column(3), 4.0 * column(2) + 0.5 * column(3)];
            for row in 0..4 {
                assert_eq!(got[row * width + c], expected[row], "row {row}, column {c}");
            }
        }
        let dy = Tensor::from_vec(x.clone(), [4, width], &device).unwrap();
        let dx = y.backward_with(dy).unwrap().get(&v).unwrap().to_vec::<f32>().unwrap();
        for c in (0..1000).chain(width - 70_000..width) {
            let column = |row: usize| x[row * width + c];
            assert_eq!(dx[width + c], column(0));
            assert_eq!(dx[3 * width + c], 3.0 * column(2) + 0.5 * column(3));
        }
    }
}

/// pytorch#90693.
#[test]
fn empty_sides_and_no_entries_give_zeros() {
    for device in devices() {
        let none: [i32; 0] = [];
        for dtype in DType::FLOATS {
            for (rows, cols, width) in [(1, 0, 2), (3, 0, 2), (3, 4, 2), (0, 4, 2), (3, 4, 0)] {
                let empty = Entries { rows, cols, i: vec![], j: vec![], values: vec![] };
                for form in forms(&device) {
                    check(&empty, width, dtype, form, 1, &device);
                }
            }
        }
        let a =
            SparseMatrix::from_coo(3, 0, &none, &none, &[0f64; 0]).unwrap().to(&device).unwrap();
        let x = Var::from(Tensor::zeros([0, 2], DType::F64, &device).unwrap());
        assert_eq!(values(a.matmul(&x).unwrap().tensor()), [0.0; 6]);
    }
}

#[test]
fn a_sum_around_the_product_has_gradient_three_and_no_grad_cuts_it() {
    for device in devices() {
        let places: Vec<usize> = (0..5).collect();
        let a = SparseMatrix::from_coo(5, 5, &places, &places, vec![2.0f64; 5]).unwrap();
        let a = a.to(&device).unwrap();
        let h = tensor(&[1.0, -2.0, 3.0, 0.5, 4.0], [1, 5], DType::F64, &device);
        for (cut, expected) in [(false, 3.0), (true, 1.0)] {
            let tape = Tape::new();
            let v = tape.variable(h.clone()).unwrap();
            let product = if cut { no_grad(|| a.apply(&v)) } else { a.apply(&v) };
            let y = v.add(&product.unwrap()).unwrap();
            assert_eq!(values(y.tensor()), [3.0, -6.0, 9.0, 1.5, 12.0]);
            let gradients = y.sum().unwrap().backward().unwrap();
            assert_eq!(values(gradients.get(&v).unwrap()), [expected; 5], "cut {cut}");
        }
    }
}

#[test]
fn operands_that_do_not_go_together_are_refused() {
    for device in devices() {
        let a = SparseMatrix::from_coo(2, 3, &[0], &[1], &[1.0f32]).unwrap().to(&device).unwrap();
        let ones = |shape: &[usize], dtype| Var::from(Tensor::ones(shape, dtype, &device).unwrap());
        let live = device.live_bytes();
        let error = a.matmul(&ones(&[2, 3], DType::F32)).unwrap_err();
        assert!(
            error.to_string().contains("2×3") && error.to_string().contains("[2, 3]"),
            "{error}"
        );
        for result in [
            a.apply(&ones(&[3, 2], DType::F32)),
            a.apply(&ones(&[3], DType::F32)),
            a.matmul(&ones(&[3, 1, 1], DType::F32)),
            a.matmul_values(&ones(&[2], DType::F32), &ones(&[3, 1], DType::F32)),
            a.matmul_values(&ones(&[1, 1], DType::F32), &ones(&[3, 1], DType::F32)),
        ] {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::Shape { .. }), "{error}");
        }
        let error = a.matmul(&ones(&[3, 1], DType::F64)).unwrap_err();
        assert!(matches!(error, Error::DTypeMismatch { .. }), "{error}");
        let error = a.matmul(&ones(&[3, 1], DType::I32)).unwrap_err();
        assert!(matches!(error, Error::DTypeMismatch { .. } | Error::DType { .. }), "{error}");
        let other = Kind::of(&device).poisoned();
        let x = Var::from(Tensor::ones([3, 1], DType::F32, &other).unwrap());
        let text = a.matmul(&x).unwrap_err().to_string();
        assert!(text.contains(device.name()) && text.contains(other.name()), "{text}");
        assert!(text.contains("sparse matmul"), "{text}");
        assert_eq!(device.live_bytes(), live);
        assert!(SparseMatrix::from_dense(ones(&[2], DType::F32).tensor()).is_err());
        assert!(SparseMatrix::from_dense(ones(&[2, 2], DType::I64).tensor()).is_err());
        assert_eq!(f32::DTYPE, a.dtype());
    }
}
