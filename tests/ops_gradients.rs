//! Every operation's gradient against finite differences, and every dtype against f64.

mod support;

use capgrad::{DType, Device, GradCheck, Result, Tape, Tensor, Var, gradcheck};
use support::cases::{Case, all};
use support::ops::{data, tensor};
use support::{devices, relative_error, tolerance};

/// Runs `check` for every operation on every list of its shapes, and reports what fails together.
fn for_every_case(check: impl Fn(&Device, &Case, &[Tensor]) -> Result<(), String>) {
    for device in devices() {
        let mut failures = Vec::new();
        for case in all() {
            for i in 0..case.shapes.len() {
                let inputs: Vec<Tensor> = case
                    .values(i)
                    .iter()
                    .map(|(shape, values)| tensor(&device, DType::F64, shape, values))
                    .collect();
                if let Err(error) = check(&device, &case, &inputs) {
                    let constants = case.constants;
                    let shapes = case.shapes[i];
                    failures.push(format!(
                        "{} {shapes:?}, constants {constants:?}: {error}",
                        case.name
                    ));
                }
            }
        }
        assert!(failures.is_empty(), "{device}:\n{}", failures.join("\n"));
    }
}

/// The operands: `variables` in order, and between them the constants.
fn operands(case: &Case, inputs: &[Tensor], variables: &[Var]) -> Vec<Var> {
    let mut variables = variables.iter();
    let operand = |(i, input): (usize, &Tensor)| match case.constants.contains(&i) {
        true => Var::from(input),
        false => variables.next().expect("a variable for each input").clone(),
    };
    inputs.iter().enumerate().map(operand).collect()
}

#[test]
fn gradients_agree_with_finite_differences() {
    for_every_case(|_, case, inputs| {
        let variables: Vec<Tensor> = (0..inputs.len())
            .filter(|i| !case.constants.contains(i))
            .map(|i| inputs[i].clone())
            .collect();
        // As it is, and with a mean after it, whose gradient is one number for all.
        for mean in [false, true] {
            let f = |x: &[Var]| match (case.f)(&operands(case, inputs, x))? {
                value if mean && value.tensor().elements() > 0 => value.mean(),
                value => Ok(value),
            };
            gradcheck(f, &variables, GradCheck::default())
                .map_err(|error| format!("{error}{}", if mean { ", then mean" } else { "" }))?;
        }
        Ok(())
    });
}

/// The result and the gradients of all inputs that have one.
fn run(case: &Case, inputs: &[Tensor]) -> Result<Vec<Vec<f64>>> {
    let tape = Tape::new();
    let variables =
        inputs.iter().map(|input| tape.variable(input.clone())).collect::<Result<Vec<_>>>()?;
    let given = (0..inputs.len()).filter(|i| !case.constants.contains(i));
    let given: Vec<Var> = given.map(|i| variables[i].clone()).collect();
    let out = (case.f)(&operands(case, inputs, &given))?;
    let mut results = vec![out.tensor().to_f64_vec()?];
    assert_eq!(out.dtype(), inputs[0].dtype());
    // Around 0: softmax takes a mean of them away, of which a saved result of few digits leaves a
    // part. Rounded to bf16, so that every dtype has the same ones.
    let weights = data(99, out.tensor().elements(), (-1.0, 1.0));
    let dy = tensor(out.device(), DType::BF16, out.dims(), &weights).to_dtype(out.dtype())?;
    let gradients = out.backward_with(dy)?;
    for variable in &variables {
        if let Some(gradient) = gradients.get(variable) {
            assert_eq!(gradient.dtype(), variable.dtype());
            assert_eq!(gradient.shape(), variable.shape());
            results.push(gradient.to_f64_vec()?);
        }
    }
    Ok(results)
}

#[test]
fn every_dtype_agrees_with_f64() {
    for_every_case(|_, case, inputs| {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let rounded = inputs.iter().map(|x| x.to_dtype(dtype)).collect::<Result<Vec<_>>>();
            let rounded = rounded.map_err(|error| error.to_string())?;
            let exact = rounded.iter().map(|x| x.to_dtype(DType::F64)).collect::<Result<Vec<_>>>();
            let reference = exact.and_then(|x| run(case, &x)).map_err(|error| error.to_string())?;
            let results = run(case, &rounded).map_err(|error| format!("{dtype}: {error}"))?;
            if results.len() != reference.len() {
                return Err(format!("{dtype}: {} gradients", results.len() - 1));
            }
            for (i, (result, reference)) in results.iter().zip(&reference).enumerate() {
                let error = relative_error(result, reference);
                if error > tolerance(dtype) {
                    let which = if i == 0 { "result" } else { "gradient" };
                    return Err(format!("{dtype}: {which} {i} has error {error:e}"));
                }
            }
        }
        Ok(())
    });
}
