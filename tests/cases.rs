//! The cases of `tests/cases`: small inputs that others have reported as broken, with exact results
//! for the forward pass and every gradient. Each runs in every float dtype, and under predicted and
//! measured ranking; sparse ones in both layouts and through the transposed view.

mod support;

use capgrad::{
    Conv1dOptions, DType, Device, Padding, Ranking, SparseForm, SparseMatrix, SparseOptions, Tape,
    Var,
};
use serde_json::Value;
use support::sparse::transposed;
use support::{Kind, assert_close, kinds, tensor};

const CONV1D: &str = include_str!("cases/conv1d.json");
const SPARSE: &str = include_str!("cases/sparse.json");
const RANKINGS: [Ranking; 2] = [Ranking::Predicted, Ranking::Measured];

fn cases(json: &str) -> Vec<Value> {
    serde_json::from_str(json).unwrap()
}

/// The numbers of a nested array, row-major.
fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        number => vec![number.as_f64().unwrap()],
    }
}

fn sizes(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|size| size.as_u64().unwrap() as usize).collect()
}

fn size(case: &Value, name: &str) -> usize {
    case[name].as_u64().unwrap() as usize
}

fn run_conv(case: &Value, dtype: DType, device: &Device) {
    let id = format!("{} ({})", case["id"].as_str().unwrap(), case["source"].as_str().unwrap());
    let (x_shape, y_shape) = (sizes(&case["x_shape"]), sizes(&case["y_shape"]));
    let (x, w, dy) = (numbers(&case["x"]), numbers(&case["weight"]), numbers(&case["dy"]));
    let (groups, dbias) = (size(case, "groups"), numbers(&case["dbias"]));
    let kernel = w.len() / (y_shape[1] * (x_shape[1] / groups));
    let options = Conv1dOptions {
        stride: size(case, "stride"),
        dilation: size(case, "dilation"),
        groups,
        padding: Padding::Explicit(size(case, "padding_left"), size(case, "padding_right")),
        workspace_cap: None,
    };
    // Without a bias and with one; where the case has none, zeros change nothing.
    let given = &case["bias"];
    let biases = [given.is_array().then(|| numbers(given)).or(Some(vec![0.0; y_shape[1]])), None];
    for bias in &biases[..if given.is_array() { 1 } else { 2 }] {
        let tape = Tape::new();
        let x = tape.variable(tensor(&x, x_shape.clone(), dtype, device)).unwrap();
        let w_shape = [y_shape[1], x_shape[1] / groups, kernel];
        let w = tape.variable(tensor(&w, w_shape, dtype, device)).unwrap();
        let bias = bias
            .as_ref()
            .map(|bias| tape.variable(tensor(bias, [y_shape[1]], dtype, device)).unwrap());
        let y = x.conv1d(&w, bias.as_ref(), &options).unwrap();
        assert_eq!(y.dims(), y_shape, "{id}");
        assert_close(format!("{id}: y"), y.tensor(), &numbers(&case["y"]));
        let dy = tensor(&dy, y_shape.clone(), dtype, device);
        let gradients = y.backward_with(dy).unwrap();
        let dx = gradients.get(&x).unwrap();
        assert_close(format!("{id}: dx"), dx, &numbers(&case["dx"]));
        let dw = gradients.get(&w).unwrap();
        assert_close(format!("{id}: dw"), dw, &numbers(&case["dweight"]));
        if let Some(bias) = bias {
            let db = gradients.get(&bias).unwrap();
            assert_close(format!("{id}: db"), db, &dbias);
        }
    }
}

fn every_setting(kind: Kind, mut run: impl FnMut(&Device)) {
    for ranking in RANKINGS {
        for cap in [None, Some(0), Some(1 << 10)] {
            let device = kind.poisoned();
            let base = device.live_bytes();
            device.set_ranking(ranking);
            match cap {
                Some(cap) => device.set_workspace_cap(cap),
                None => device.remove_workspace_cap(),
            }
            run(&device);
            assert_eq!(device.live_bytes(), base);
        }
    }
}

#[test]
fn every_convolution_case_gives_its_exact_results() {
    let cases = cases(CONV1D);
    assert_eq!(cases.len(), 13);
    for kind in kinds() {
        every_setting(kind, |device| {
            for case in &cases {
                for dtype in DType::FLOATS {
                    run_conv(case, dtype, device);
                }
            }
        });
    }
}

/// Builds the case's matrix in a dtype, with the map from given to stored entries.
macro_rules! build {
    ($t:ty, $rows:expr, $cols:expr, $i:expr, $j:expr, $values:expr) => {{
        let rounded: Vec<$t> =
            $values.iter().map(|&value| <$t as capgrad::Element>::from_f64(value)).collect();
        SparseMatrix::from_coo_with_map($rows, $cols, $i, $j, rounded).unwrap()
    }};
}

fn run_sparse(
    case: &Value,
    dtype: DType,
    device: &Device,
    form: SparseForm,
    apply: bool,
    view: bool,
) {
    let id = format!("{}, {form:?}, apply {apply}, view {view}", case["id"].as_str().unwrap());
    let (rows, cols) = (size(case, "rows"), size(case, "cols"));
    let (i, j) = (sizes(&case["row_indices"]), sizes(&case["col_indices"]));
    let (given, width) = (numbers(&case["values"]), sizes(&case["x_shape"])[1]);
    // The view is of the transpose, built from exchanged indices.
    let (r, c, i, j) = if view { (cols, rows, j, i) } else { (rows, cols, i, j) };
    let (a, map) = match dtype {
        DType::F32 => build!(f32, r, c, &i, &j, given),
        DType::F64 => build!(f64, r, c, &i, &j, given),
        DType::F16 => build!(capgrad::f16, r, c, &i, &j, given),
        _ => build!(capgrad::bf16, r, c, &i, &j, given),
    };
    let options = SparseOptions { form, ..Default::default() };
    let a = a.to_with(device, options).unwrap();
    let a = if view { a.transpose() } else { a };
    let oriented = |name: &str, length: usize| {
        let data = numbers(&case[name]);
        if apply { transposed(&data, length, width) } else { data }
    };
    let shape = |length: usize| if apply { [width, length] } else { [length, width] };
    let product = |values: Option<&Var>, x: &Var| match (values, apply) {
        (None, false) => a.matmul(x).unwrap(),
        (None, true) => a.apply(x).unwrap(),
        (Some(values), false) => a.matmul_values(values, x).unwrap(),
        (Some(values), true) => a.apply_values(values, x).unwrap(),
    };
    for trainable in [false, true] {
        let tape = Tape::new();
        let x = tape.variable(tensor(&oriented("x", cols), shape(cols), dtype, device)).unwrap();
        let values = tape.variable(a.values().unwrap()).unwrap();
        let y = product(trainable.then_some(&values), &x);
        assert_close(format!("{id}: y"), y.tensor(), &oriented("y", rows));
        let dy = tensor(&oriented("dy", rows), shape(rows), dtype, device);
        let gradients = y.backward_with(dy).unwrap();
        let dx = gradients.get(&x).unwrap();
        assert_close(format!("{id}: dx"), dx, &oriented("dx", cols));
        if trainable {
            let stored = support::values(gradients.get(&values).unwrap());
            let as_given: Vec<f64> = (0..i.len()).map(|e| stored[map.get(e)]).collect();
            let as_given = tensor(&as_given, [i.len()], dtype, device);
            let expected = numbers(&case["dvalues_as_given"]);
            assert_close(format!("{id}: dvalues"), &as_given, &expected);
        }
    }
}

#[test]
fn every_sparse_case_gives_its_exact_results() {
    let cases = cases(SPARSE);
    assert_eq!(cases.len(), 6);
    let ways = [(false, false), (true, false), (false, true), (true, true)];
    for kind in kinds() {
        every_setting(kind, |device| {
            for case in &cases {
                for dtype in DType::FLOATS {
                    for (apply, view) in ways {
                        for &form in support::sparse::forms(device) {
                            run_sparse(case, dtype, device, form, apply, view);
                        }
                    }
                }
            }
        });
    }
}
