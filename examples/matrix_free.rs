//! An operation of one's own: a linear operator that exists only as code, with its adjoint as
//! gradient, inside an ordinary training loop. Here it is a blur along a circle, and the loop finds
//! the signal that was blurred.
//!
//! ```text
//! cargo run --example matrix_free
//! ```

use capgrad::optim::AdamOptions;
use capgrad::{
    Adam, Device, Function, GradCheck, Parameter, Reduction, Result, Saves, Tape, Tensor, Var,
    gradcheck,
};

/// `y[i] = x[i]/2 + x[i-1]/3 + x[i-2]/6` on a circle. No matrix is ever made.
struct Blur;

const TAPS: [f64; 3] = [1.0 / 2.0, 1.0 / 3.0, 1.0 / 6.0];

impl Blur {
    /// The operator (`sign` -1) or its adjoint (`sign` +1): the same taps, looking the other way.
    fn along(x: &Tensor, sign: isize) -> Result<Tensor> {
        let data = x.to_vec::<f64>()?;
        let n = data.len() as isize;
        let blurred = (0..n)
            .map(|i| {
                let taps = TAPS.iter().enumerate();
                taps.map(|(k, tap)| tap * data[(i + sign * k as isize).rem_euclid(n) as usize])
                    .sum()
            })
            .collect::<Vec<f64>>();
        Tensor::from_vec(blurred, x.shape(), x.device())
    }
}

impl Function for Blur {
    fn name(&self) -> &'static str {
        "blur"
    }

    /// A linear operator needs neither its input nor its output again.
    fn saves(&self) -> Saves {
        Saves::default()
    }

    fn forward(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        Blur::along(inputs[0], -1)
    }

    fn backward(
        &self,
        dy: &Tensor,
        _inputs: &[Tensor],
        _output: Option<&Tensor>,
        _needs: &[bool],
    ) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(Blur::along(dy, 1)?)])
    }
}

fn main() -> Result<()> {
    let device = Device::cpu();
    let worst = gradcheck(
        |x| Var::apply(Blur, &[&x[0]])?.square(),
        &[Tensor::randn([7], capgrad::DType::F64, &device)?],
        GradCheck::default(),
    )?;
    println!("gradient against finite differences: worst relative difference {worst:.1e}");

    let n = 64;
    let signal: Vec<f64> = (0..n).map(|i| if (20..30).contains(&i) { 1.0 } else { 0.0 }).collect();
    let signal = Tensor::from_vec(signal, [n], &device)?;
    let blurred = Blur.forward(&[&signal])?;

    let estimate = Parameter::new("signal", Tensor::zeros([n], capgrad::DType::F64, &device)?)?;
    let mut adam = Adam::new([estimate.clone()], AdamOptions { rate: 0.05, ..Default::default() })?;
    for step in 0..=200 {
        let tape = Tape::new();
        let guess = Var::apply(Blur, &[&tape.parameter(&estimate)])?;
        let loss = guess.mse_loss(&Var::from(&blurred), Reduction::Mean)?;
        if step % 50 == 0 {
            println!("step {step:>3}: loss {:.3e}", loss.item()?);
        }
        adam.step(&loss.backward()?)?;
    }
    Ok(())
}
