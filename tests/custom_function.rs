//! A user's own operation with its own gradient, and the gradient check that holds it.

mod support;

use capgrad::{DType, Error, Function, GradCheck, Result, Saves, Tape, Tensor, Var, gradcheck};
use support::{devices, tensor};

/// Multiplies by a matrix that is never written out: `y[i] = i·x[n-1-i]`.
struct Operator {
    saves: Saves,
    entries: usize,
}

impl Function for Operator {
    fn name(&self) -> &'static str {
        "operator"
    }

    fn saves(&self) -> Saves {
        self.saves
    }

    fn forward(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0].to_vec::<f64>()?;
        let y = x.iter().rev().enumerate().map(|(i, x)| i as f64 * x).collect();
        Tensor::from_vec(y, inputs[0].shape(), inputs[0].device())
    }

    fn backward(
        &self,
        dy: &Tensor,
        inputs: &[Tensor],
        output: Option<&Tensor>,
        needs: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        assert_eq!(
            (inputs.len(), output.is_some()),
            (usize::from(self.saves.inputs), self.saves.output)
        );
        assert_eq!(needs, [true]);
        let (device, dy) = (dy.device(), dy.to_vec::<f64>()?);
        let n = dy.len();
        let dx: Vec<f64> = (0..n).map(|j| (n - 1 - j) as f64 * dy[n - 1 - j]).collect();
        let dx = Tensor::from_vec(dx, [n], device)?;
        Ok((0..self.entries).map(|_| Some(dx.clone())).collect())
    }
}

#[test]
fn a_users_operation_is_recorded_with_its_own_gradient() {
    for device in devices() {
        let x = tensor(&[0.3, -1.0, 2.0, 0.7], [4], DType::F64, &device);
        for saves in [
            Saves::default(),
            Saves { inputs: true, output: false },
            Saves { inputs: false, output: true },
        ] {
            let apply = |x: &[Var]| Var::apply(Operator { saves, entries: 1 }, &[&x[0]])?.square();
            gradcheck(apply, std::slice::from_ref(&x), GradCheck::default()).unwrap();
        }
        // A gradient too many is an error that names the operation, not a panic.
        let tape = Tape::new();
        let v = tape.variable(x).unwrap();
        let wrong = Operator { saves: Saves::default(), entries: 2 };
        let error = Var::apply(wrong, &[&v]).unwrap().sum().unwrap().backward().err().unwrap();
        assert!(error.to_string().starts_with("operator"), "{error}");
    }
}

#[test]
fn gradcheck_finds_a_wrong_gradient() {
    for device in devices() {
        let x = tensor(&[0.3, -1.0], [2], DType::F64, &device);
        let cut = |x: &[Var]| x[0].mul(&x[0].detach());
        let error = gradcheck(cut, std::slice::from_ref(&x), GradCheck::default()).unwrap_err();
        assert!(matches!(error, Error::GradientMismatch { input: 0, element: 0, .. }), "{error}");
        let single = tensor(&[0.3], [1], DType::F32, &device);
        assert!(matches!(
            gradcheck(|x| x[0].square(), &[single], GradCheck::default()),
            Err(Error::DType { .. })
        ));
    }
}
