//! Every operation's gradient against finite differences, and every dtype against f64.

mod common;

use capgrad::{DType, Device, Error, GradCheck, Result, Tape, Tensor, Var, gradcheck};
use common::cases::{Case, all};
use common::{data, devices, rel_error, tensor, tolerance};

/// Each operation as it is, and with a mean after it, whose gradient is one number for all.
fn endings(case: &Case) -> [(&'static str, impl Fn(&[Var]) -> Result<Var>); 2] {
    let f = case.f;
    [false, true].map(|mean| {
        let ending = move |x: &[Var]| match f(x)? {
            value if mean && value.tensor().elements() > 0 => value.mean(),
            value => Ok(value),
        };
        (if mean { " then mean" } else { "" }, ending)
    })
}

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        let mut failures = Vec::new();
        for case in all() {
            for (i, shapes) in case.shapes.iter().enumerate() {
                let inputs: Vec<Tensor> = case
                    .values(i)
                    .iter()
                    .map(|(shape, values)| tensor(&device, DType::F64, shape, values))
                    .collect();
                for (ending, f) in endings(&case) {
                    match gradcheck(f, &inputs, GradCheck::default()) {
                        // Operands that are used as constants have differences and no gradient.
                        Err(Error::GradientMismatch { analytic: 0.0, .. })
                            if case.name.contains("constant") => {}
                        Err(error) => {
                            failures.push(format!("{}{ending} {shapes:?}: {error}", case.name))
                        }
                        Ok(_) => {}
                    }
                }
            }
        }
        assert!(failures.is_empty(), "{device}:\n{}", failures.join("\n"));
    }
}
