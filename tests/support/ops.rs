//! What the tests of the operations share beside the rest: data by seed, operands made of it, and
//! places of elements.

use super::relative_error;
use capgrad::{DType, Device, Result, Tensor, Var};

/// `n` numbers, uniform on `[low, high)`: a linear congruential generator (Knuth's MMIX
/// constants), of which the upper half of the bits is used.
pub fn data(seed: u64, n: usize, (low, high): (f64, f64)) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 32) as f64 / (1u64 << 32) as f64
    };
    next();
    (0..n).map(|_| low + (high - low) * next()).collect()
}

/// A tensor of `dtype` with these values, rounded.
pub fn tensor(device: &Device, dtype: DType, shape: &[usize], values: &[f64]) -> Tensor {
    let exact = Tensor::from_slice(values, shape, device).expect("data of that shape");
    exact.to_dtype(dtype).expect("a conversion")
}

/// A tensor of random f64 values.
pub fn random(device: &Device, seed: u64, shape: &[usize], range: (f64, f64)) -> Tensor {
    tensor(device, DType::F64, shape, &data(seed, shape.iter().product(), range))
}

/// A constant.
pub fn constant(device: &Device, shape: &[usize], values: &[f64]) -> Var {
    Var::from(tensor(device, DType::F64, shape, values))
}

/// Fails unless `out` is close to `reference`.
pub fn assert_close(what: &str, out: &[f64], reference: &[f64], tolerance: f64) {
    let error = relative_error(out, reference);
    assert!(error <= tolerance, "{what}: error {error:e} over {tolerance:e}");
}

/// Runs `f` and fails unless it is refused, leaving the meter as it was.
pub fn refused(device: &Device, what: &str, f: impl FnOnce() -> Result<Var>) -> capgrad::Error {
    let live = device.live_bytes();
    let error = match f() {
        Ok(value) => panic!("{what}: expected an error, got {value:?}"),
        Err(error) => error,
    };
    assert_eq!(device.live_bytes(), live, "{what}: the meter has changed: {error}");
    error
}

/// The elements of a shape in row-major order, by their places.
pub fn places(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut places = vec![vec![]];
    for &extent in shape {
        places = places
            .into_iter()
            .flat_map(|place| (0..extent).map(move |i| [&place[..], &[i]].concat()))
            .collect();
    }
    places
}

/// The row-major position of a place, aligned at the end, along whose axes of extent 1 the index
/// does not matter.
pub fn position(shape: &[usize], place: &[usize]) -> usize {
    let place = &place[place.len() - shape.len()..];
    let step = |at: usize, (&n, &i): (&usize, &usize)| at * n + if n == 1 { 0 } else { i };
    shape.iter().zip(place).fold(0, step)
}
