//! A naive convolution in f64: every term of the definition, one at a time.

use super::{Numbers, rounded, tensor};
use capgrad::{Conv1dOptions, DType, Device, Padding, Tensor};

/// The sizes of `x [n, c_in, l] * w [c_out, c_in/groups, k]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    pub n: usize,
    pub c_in: usize,
    pub c_out: usize,
    pub l: usize,
    pub k: usize,
    pub stride: usize,
    pub dilation: usize,
    pub groups: usize,
    pub left: usize,
    pub right: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes {
            n: 1,
            c_in: 1,
            c_out: 1,
            l: 1,
            k: 1,
            stride: 1,
            dilation: 1,
            groups: 1,
            left: 0,
            right: 0,
        }
    }
}

impl Sizes {
    pub fn span(&self) -> usize {
        (self.k - 1) * self.dilation + 1
    }

    /// Whether the kernel is no longer than the padded input.
    pub fn fits(&self) -> bool {
        self.span() <= self.l + self.left + self.right
    }

    pub fn out_length(&self) -> usize {
        (self.l + self.left + self.right - self.span()) / self.stride + 1
    }

    pub fn x_shape(&self) -> [usize; 3] {
        [self.n, self.c_in, self.l]
    }

    pub fn w_shape(&self) -> [usize; 3] {
        [self.c_out, self.c_in / self.groups, self.k]
    }

    pub fn y_shape(&self) -> [usize; 3] {
        [self.n, self.c_out, self.out_length()]
    }

    pub fn options(&self) -> Conv1dOptions {
        Conv1dOptions {
            stride: self.stride,
            dilation: self.dilation,
            groups: self.groups,
            padding: Padding::Explicit(self.left, self.right),
            workspace_cap: None,
        }
    }

    /// Calls `f(y, x, w)` with the places of every term `w·x` of every element of y.
    fn each_term(&self, mut f: impl FnMut(usize, usize, usize)) {
        let (per_in, per_out) = (self.c_in / self.groups, self.c_out / self.groups);
        let l_out = self.out_length();
        for n in 0..self.n {
            for o in 0..self.c_out {
                let group = o / per_out;
                for c in 0..per_in {
                    for k in 0..self.k {
                        for l in 0..l_out {
                            let place = l * self.stride + k * self.dilation;
                            if place < self.left || place - self.left >= self.l {
                                continue;
                            }
                            let y = (n * self.c_out + o) * l_out + l;
                            let x =
                                (n * self.c_in + group * per_in + c) * self.l + place - self.left;
                            f(y, x, (o * per_in + c) * self.k + k);
                        }
                    }
                }
            }
        }
    }

    pub fn forward(&self, x: &[f64], w: &[f64], bias: Option<&[f64]>) -> Vec<f64> {
        let l_out = self.out_length();
        let start = |i: usize| bias.map_or(0.0, |bias| bias[i / l_out % self.c_out]);
        let mut out: Vec<f64> = (0..self.n * self.c_out * l_out).map(start).collect();
        self.each_term(|i, j, k| out[i] += x[j] * w[k]);
        out
    }

    pub fn input_gradient(&self, dy: &[f64], w: &[f64]) -> Vec<f64> {
        let mut out = vec![0.0; self.n * self.c_in * self.l];
        self.each_term(|i, j, k| out[j] += dy[i] * w[k]);
        out
    }

    pub fn weight_gradient(&self, x: &[f64], dy: &[f64]) -> Vec<f64> {
        let mut out = vec![0.0; self.w_shape().iter().product()];
        self.each_term(|i, j, k| out[k] += dy[i] * x[j]);
        out
    }

    pub fn bias_gradient(&self, dy: &[f64]) -> Vec<f64> {
        let mut out = vec![0.0; self.c_out];
        for (i, dy) in dy.iter().enumerate() {
            out[i / self.out_length() % self.c_out] += dy;
        }
        out
    }
}

/// Single elements by the definition, for sizes at which all of them take too long. Operands are
/// asked for by position, so that they may be functions of it.
impl Sizes {
    /// Where tap `k` reads for position `l` of the result, if that is inside the input.
    fn read(&self, l: usize, k: usize) -> Option<usize> {
        let place = l * self.stride + k * self.dilation;
        place.checked_sub(self.left).filter(|&place| place < self.l)
    }

    /// Element `i` of the result, without bias.
    pub fn forward_at(&self, x: impl Fn(usize) -> f64, w: impl Fn(usize) -> f64, i: usize) -> f64 {
        let (per_in, per_out) = (self.c_in / self.groups, self.c_out / self.groups);
        let l_out = self.out_length();
        let (n, o, l) = (i / (self.c_out * l_out), i / l_out % self.c_out, i % l_out);
        let mut sum = 0.0;
        for k in 0..self.k {
            let Some(place) = self.read(l, k) else { continue };
            for c in 0..per_in {
                let channel = n * self.c_in + o / per_out * per_in + c;
                sum += x(channel * self.l + place) * w((o * per_in + c) * self.k + k);
            }
        }
        sum
    }

    /// Element `i` of the input's gradient.
    pub fn input_gradient_at(
        &self,
        dy: impl Fn(usize) -> f64,
        w: impl Fn(usize) -> f64,
        i: usize,
    ) -> f64 {
        let (per_in, per_out) = (self.c_in / self.groups, self.c_out / self.groups);
        let l_out = self.out_length();
        let (n, c, place) = (i / (self.c_in * self.l), i / self.l % self.c_in, i % self.l);
        let mut sum = 0.0;
        for k in 0..self.k {
            // The positions of the result of which tap k reads this place.
            let Some(start) = (place + self.left).checked_sub(k * self.dilation) else { continue };
            if !start.is_multiple_of(self.stride) || start / self.stride >= l_out {
                continue;
            }
            for o in c / per_in * per_out..(c / per_in + 1) * per_out {
                let y = (n * self.c_out + o) * l_out + start / self.stride;
                sum += dy(y) * w((o * per_in + c % per_in) * self.k + k);
            }
        }
        sum
    }

    /// Element `i` of the weights' gradient.
    pub fn weight_gradient_at(
        &self,
        x: impl Fn(usize) -> f64,
        dy: impl Fn(usize) -> f64,
        i: usize,
    ) -> f64 {
        let (per_in, per_out) = (self.c_in / self.groups, self.c_out / self.groups);
        let l_out = self.out_length();
        let (o, c, k) = (i / (per_in * self.k), i / self.k % per_in, i % self.k);
        let mut sum = 0.0;
        for n in 0..self.n {
            let from = (n * self.c_in + o / per_out * per_in + c) * self.l;
            for l in 0..l_out {
                if let Some(place) = self.read(l, k) {
                    sum += x(from + place) * dy((n * self.c_out + o) * l_out + l);
                }
            }
        }
        sum
    }
}

/// Operands of a convolution, as f64 numbers that are exact in the dtype, and as tensors.
pub struct Operands {
    pub x: Vec<f64>,
    pub w: Vec<f64>,
    pub b: Vec<f64>,
    pub dy: Vec<f64>,
    sizes: Sizes,
    dtype: DType,
}

impl Operands {
    /// `exact` numbers are those of [`Numbers::sixteenths`].
    pub fn new(sizes: Sizes, dtype: DType, seed: u64, exact: bool) -> Operands {
        let mut numbers = Numbers(seed);
        let mut draw = |shape: &[usize]| {
            let count = shape.iter().product();
            if exact { numbers.sixteenths(count) } else { rounded(&numbers.reals(count), dtype) }
        };
        let (x, w) = (draw(&sizes.x_shape()), draw(&sizes.w_shape()));
        let (b, dy) = (draw(&[sizes.c_out]), draw(&sizes.y_shape()));
        Operands { x, w, b, dy, sizes, dtype }
    }

    /// The same numbers in another dtype (in which they must be exact).
    pub fn in_dtype(self, dtype: DType) -> Operands {
        Operands { dtype, ..self }
    }

    /// The same numbers under other sizes.
    pub fn of(self, sizes: Sizes) -> Operands {
        Operands { sizes, ..self }
    }

    pub fn x(&self, device: &Device) -> Tensor {
        tensor(&self.x, self.sizes.x_shape(), self.dtype, device)
    }

    pub fn w(&self, device: &Device) -> Tensor {
        tensor(&self.w, self.sizes.w_shape(), self.dtype, device)
    }

    pub fn b(&self, device: &Device) -> Tensor {
        tensor(&self.b, [self.sizes.c_out], self.dtype, device)
    }

    pub fn dy(&self, device: &Device) -> Tensor {
        tensor(&self.dy, self.sizes.y_shape(), self.dtype, device)
    }
}
