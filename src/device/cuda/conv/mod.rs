//! Convolutions: candidates for each of the three passes, and how each runs. Every candidate works on
//! chunks of samples: all of them where the workspace may be as large as that takes, else as many as
//! the cap allows.

mod cost;
mod cudnn;
mod depthwise;
mod depthwise_rows;
mod direct;
mod fit;
mod gather;
mod layout;
mod narrow;
mod product;
mod strips;
#[cfg(test)]
mod tests;
mod unfold;
mod weight;

pub(super) use layout::{from_last, to_last};

use super::{Cuda, memory};
use crate::device::backend::Terms;
use crate::device::spec::{ConvGeometry, ConvPass};
use crate::dtype::DType;
use crate::error::Result;
use crate::plan::Candidate;
use crate::tensor::{Storage, Tensor};
use cost::Cost;
use direct::{Direct, Engine};

/// Which method a [`Candidate`] is: its `code`.
mod code {
    /// Our implicit product, without workspace or with its sums cut into pieces there.
    pub(super) const DIRECT: u32 = 0;
    /// The same on tensor cores.
    pub(super) const DIRECT_TENSOR: u32 = 1;
    pub(super) const DEPTHWISE: u32 = 2;
    /// Tensor cores of compute capability 9.0: positions, see `gather`, and weights, see `weight`.
    pub(super) const GATHER: u32 = 3;
    pub(super) const GRADIENT: u32 = 4;
    /// Few terms and rows a group, on tensor cores: see `narrow`.
    pub(super) const NARROW: u32 = 5;
    /// Products through cuBLAS: see `product`.
    pub(super) const PRODUCT: u32 = 16;
    /// Algorithms of cuDNN: see `cudnn`.
    pub(super) const CUDNN: u32 = 32;
}

/// Parts of a workspace begin at multiples of this.
const ALIGN: u64 = 256;

/// One pass of a convolution, with what decides its candidates.
#[derive(Clone, Copy)]
pub(super) struct Question<'a> {
    pub(super) pass: ConvPass,
    pub(super) geometry: &'a ConvGeometry,
    pub(super) dtype: DType,
    pub(super) tf32: bool,
}

impl Question<'_> {
    /// What `params[3]` of a candidate says of rounding.
    fn rounding(&self) -> usize {
        if self.tf32 { TF32 } else { 0 }
    }

    /// Bytes of `elements` elements, rounded up so that another part can follow.
    fn bytes(&self, elements: usize) -> u64 {
        (elements as u64 * self.dtype.size() as u64).next_multiple_of(ALIGN)
    }

    /// Sizes are known to fit memory, so these products do not overflow.
    fn x_sample(&self) -> usize {
        self.geometry.in_channels * self.geometry.in_length
    }

    fn y_sample(&self) -> usize {
        self.geometry.out_channels * self.geometry.out_length
    }

    fn w_elements(&self) -> usize {
        let g = self.geometry;
        g.out_channels * (g.in_channels / g.groups) * g.kernel
    }

    fn x_at(&self, x: u64, sample: usize) -> u64 {
        x + (sample * self.x_sample() * self.dtype.size()) as u64
    }

    fn y_at(&self, y: u64, sample: usize) -> u64 {
        y + (sample * self.y_sample() * self.dtype.size()) as u64
    }
}

/// Addresses of a pass's operands and result, under the names of the forward pass: `x` is the input
/// or its gradient, and so on.
#[derive(Clone, Copy)]
struct Addresses {
    x: u64,
    w: u64,
    y: u64,
    /// 0 where there is none.
    bias: u64,
}

pub(super) fn candidates(
    cuda: &Cuda,
    pass: ConvPass,
    geometry: &ConvGeometry,
    dtype: DType,
    terms: Terms,
) -> Vec<Candidate> {
    let tf32 = terms.allow_tf32 && dtype == DType::F32;
    let question = Question { pass, geometry, dtype, tf32 };
    let cost = Cost::new(&cuda.gpu().properties, &question);
    let own =
        |name: &'static str, code: u32, workspace: u64, seconds: f64, pieces: usize| Candidate {
            name: name.into(),
            split: if pieces > 1 { format!("sums in {pieces} pieces") } else { String::new() },
            workspace,
            seconds,
            deterministic: true,
            code,
            params: [pieces, 0, 0, 0],
        };
    let mut all = vec![own("direct", code::DIRECT, 0, cost.direct(Engine::Plain, 1), 1)];
    if geometry.batch == 0 || geometry.in_channels == 0 || geometry.in_length == 0 {
        // Sums of nothing; no library takes extents of 0.
        return all;
    }
    all.extend(match pass {
        ConvPass::WeightGradient => weight::candidates(cuda, &question, &cost, terms.cap),
        _ => gather::candidates(cuda, &question, &cost, terms.cap),
    });
    all.extend(narrow::candidate(cuda, &question, &cost));
    let tensor = direct::has_tensor_cores(cuda, &question);
    if tensor {
        let (name, seconds) = ("direct, tensor cores", cost.direct(Engine::Tensor, 1));
        all.push(own(name, code::DIRECT_TENSOR, 0, seconds, 1));
    }
    if pass == ConvPass::WeightGradient {
        let mut in_pieces = |name: &'static str, code: u32, engine: Engine| {
            let pieces = direct::useful_pieces(cuda, geometry, dtype, engine);
            if pieces > 1 {
                let workspace = direct::pieces_workspace(geometry, dtype, pieces);
                let seconds = cost.direct(engine, pieces);
                all.push(own(name, code, workspace, seconds, pieces));
            }
        };
        in_pieces("direct", code::DIRECT, Engine::Plain);
        if tensor {
            in_pieces("direct, tensor cores", code::DIRECT_TENSOR, Engine::Tensor);
        }
    }
    if depthwise::takes(geometry) {
        all.push(own("depthwise", code::DEPTHWISE, 0, cost.depthwise(), 1));
    }
    if cuda.cublas().is_some() {
        all.extend(product::candidates(cuda, &question, &cost, terms.cap));
    }
    if cuda.cudnn().is_some() {
        all.extend(cudnn::candidates(cuda, &question, &cost, terms.cap));
    }
    all
}

pub(super) fn run(
    cuda: &Cuda,
    pass: ConvPass,
    geometry: &ConvGeometry,
    candidate: &Candidate,
    operands: &[&Tensor],
    out: &Tensor,
    workspace: Option<&Storage>,
) -> Result<()> {
    let dtype = out.dtype();
    let [first, second] = [operands[0], operands[1]].map(memory::pointer);
    let (out, bias) = (memory::pointer(out), operands.get(2).map_or(0, |b| memory::pointer(b)));
    let at = match pass {
        ConvPass::Forward => Addresses { x: first, w: second, y: out, bias },
        ConvPass::InputGradient => Addresses { x: out, w: second, y: first, bias: 0 },
        ConvPass::WeightGradient => Addresses { x: first, w: out, y: second, bias: 0 },
    };
    let workspace = memory::workspace(workspace);
    let question = Question { pass, geometry, dtype, tf32: candidate.params[3] == TF32 };
    match candidate.code {
        code::CUDNN => cudnn::run(cuda, &question, candidate, at, workspace),
        code::DEPTHWISE => match pass {
            ConvPass::Forward => {
                depthwise::forward(cuda, geometry, dtype, at.x, at.w, at.bias, at.y)
            }
            ConvPass::InputGradient => {
                depthwise::input_gradient(cuda, geometry, dtype, at.y, at.w, at.x)
            }
            ConvPass::WeightGradient => {
                depthwise::weight_gradient(cuda, geometry, dtype, at.x, at.y, at.w)
            }
        },
        code::GATHER => gather::run(cuda, &question, candidate, at, workspace),
        code::GRADIENT => weight::run(cuda, &question, candidate, at, workspace),
        code::NARROW => narrow::run(cuda, &question, at),
        code::DIRECT | code::DIRECT_TENSOR => {
            let engine = match candidate.code {
                code::DIRECT => Engine::Plain,
                _ => Engine::Tensor,
            };
            let direct = Direct { cuda, geometry, dtype, engine };
            match pass {
                ConvPass::Forward => direct.forward(at.x, at.w, at.bias, at.y),
                ConvPass::InputGradient => direct.input_gradient(at.y, at.w, at.x),
                ConvPass::WeightGradient => {
                    direct.weight_gradient(at.x, at.y, at.w, candidate.params[0], workspace)
                }
            }
        }
        _ => product::run(cuda, &question, candidate, at, workspace),
    }
}

/// In `params[3]` of a candidate that may round f32 to TF32.
const TF32: usize = 1;

/// Chunks of a weight gradient in halves: each adds a rounding of the sum so far.
const MOST_HALF_CHUNKS: usize = 16;

/// The parts of `total` in steps of `chunk`: start and length.
fn chunks(total: usize, chunk: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..total).step_by(chunk.max(1)).map(move |start| (start, chunk.min(total - start)))
}

/// How many samples of `total` at a time take at most `cap` bytes of workspace: the most, by halving;
/// `None` where one alone takes more.
fn fitting_chunk(
    total: usize,
    cap: u64,
    mut workspace: impl FnMut(usize) -> Option<u64>,
) -> Option<usize> {
    let mut chunk = total;
    loop {
        if workspace(chunk).is_some_and(|bytes| bytes <= cap) {
            return Some(chunk);
        }
        if chunk <= 1 {
            return None;
        }
        chunk = chunk.div_ceil(2);
    }
}
