//! Each pass of a convolution as matrix products, one a group: which operand is gathered how, and
//! where the result goes. A strided input gradient is one product a residue of the stride, so that
//! nothing is multiplied by the zeros between the elements of `dy`.

use super::unfold::{Columns, Rows, Taps, Window};
use crate::device::cpu::gemm::{BiasAxis, Blocks, Isa, Job, Layout, Matrix, Output, Shape};
use crate::device::spec::{ConvGeometry, ConvPass};
use crate::dtype::Float;

/// The positions of `dx` that lie at one residue of the stride, and the taps that reach them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Phase {
    /// First position of `dx`; the others follow at the stride.
    pub(super) first: usize,
    /// How many positions there are.
    pub(super) count: usize,
    /// First tap; the others follow at `tap_step`.
    pub(super) tap: usize,
    /// From one tap to the next.
    pub(super) tap_step: usize,
    /// How positions (in steps of the stride) and taps meet the elements of `dy`.
    pub(super) window: Window,
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Taps of one residue class repeat after this many.
pub(super) fn tap_period(g: &ConvGeometry) -> usize {
    g.stride / gcd(g.dilation, g.stride)
}

/// The phases of an input gradient, by their first position: as many as the stride, or as there are
/// positions where the stride is longer than the input.
pub(super) fn phases(g: &ConvGeometry) -> impl Iterator<Item = Phase> {
    let g = *g;
    let tap_step = tap_period(&g);
    (0..g.stride.min(g.in_length)).map(move |first| {
        let residue = (first + g.pad_left) % g.stride;
        let count = (g.in_length - 1 - first) / g.stride + 1;
        let hit = |t: &usize| t * g.dilation % g.stride == residue;
        let tap = (0..tap_step.min(g.kernel)).find(hit);
        let taps = tap.map_or(0, |t| (g.kernel - 1 - t) / tap_step + 1);
        let tap = tap.unwrap_or(0);
        let meets = (first + g.pad_left) as isize - (tap * g.dilation) as isize;
        let window = Window {
            step: 1,
            tap_step: -((tap_step * g.dilation / g.stride) as isize),
            offset: meets.div_euclid(g.stride as isize),
            taps,
            length: g.out_length,
        };
        Phase { first, count, tap, tap_step, window }
    })
}

/// The sizes of the products of a pass.
pub(super) fn shapes(pass: ConvPass, g: &ConvGeometry) -> Vec<Shape> {
    let (ci, co) = (g.in_channels / g.groups, g.out_channels / g.groups);
    match pass {
        ConvPass::Forward => {
            vec![Shape { batch: g.groups, m: co, n: g.batch * g.out_length, k: ci * g.kernel }]
        }
        ConvPass::WeightGradient => {
            vec![Shape { batch: g.groups, m: co, n: ci * g.kernel, k: g.batch * g.out_length }]
        }
        ConvPass::InputGradient => {
            let shape = |p: Phase| Shape {
                batch: g.groups,
                m: ci,
                n: g.batch * p.count,
                k: co * p.window.taps,
            };
            phases(g).map(shape).collect()
        }
    }
}

/// A product as large as the largest of a pass in every direction: what blocks are chosen for.
pub(super) fn envelope(shapes: &[Shape]) -> Shape {
    let largest = |size: fn(&Shape) -> usize| shapes.iter().map(size).max().unwrap_or(0);
    Shape {
        batch: largest(|s| s.batch),
        m: largest(|s| s.m),
        n: largest(|s| s.n),
        k: largest(|s| s.k),
    }
}

/// What every form of a product-based pass is given.
pub(super) struct Call<'a, T> {
    /// The pass.
    pub(super) pass: ConvPass,
    /// The sizes.
    pub(super) geometry: &'a ConvGeometry,
    /// `x`, or `dy` in the input gradient.
    pub(super) a: &'a [T],
    /// `w`, or `dy` in the weight gradient.
    pub(super) b: &'a [T],
    /// The bias of a forward pass.
    pub(super) bias: Option<&'a [T]>,
    /// The instructions to use.
    pub(super) isa: Isa,
    /// Threads that a pass without workspace may use.
    pub(super) threads: usize,
}

impl<T: Float> Call<'_, T> {
    /// Runs the pass as products cut into `blocks`.
    pub(super) fn run(&self, blocks: Blocks, out: &mut [T], workspace: &mut [u8]) {
        match self.pass {
            ConvPass::Forward => self.forward(blocks, out, workspace),
            ConvPass::InputGradient => self.input_gradient(blocks, out, workspace),
            ConvPass::WeightGradient => self.weight_gradient(blocks, out, workspace),
        }
    }

    /// The channels of `x`-shaped data.
    fn x_rows<'d>(&self, data: &'d [T]) -> Rows<'d, T> {
        let g = self.geometry;
        let group = g.in_channels / g.groups * g.in_length;
        Rows { data, sample: g.in_channels * g.in_length, group, channel: g.in_length }
    }

    /// The channels of `y`-shaped data.
    fn y_rows<'d>(&self, data: &'d [T]) -> Rows<'d, T> {
        let g = self.geometry;
        let group = g.out_channels / g.groups * g.out_length;
        Rows { data, sample: g.out_channels * g.out_length, group, channel: g.out_length }
    }

    fn x_window(&self) -> Window {
        let g = self.geometry;
        Window {
            step: g.stride,
            tap_step: g.dilation as isize,
            offset: -(g.pad_left as isize),
            taps: g.kernel,
            length: g.in_length,
        }
    }

    fn forward(&self, blocks: Blocks, out: &mut [T], workspace: &mut [u8]) {
        let g = self.geometry;
        let shape = shapes(self.pass, g)[0];
        let w = Matrix::plain(self.b, shape.m * shape.k, shape.k, 1);
        let (rows, window) = (self.x_rows(self.a), self.x_window());
        let x = Columns { rows, window, positions: g.out_length };
        let layout = Layout {
            first: 0,
            batch: shape.m * g.out_length,
            row: g.out_length,
            period: g.out_length,
            sample: g.out_channels * g.out_length,
            column: 1,
        };
        let y = Output::new(out, layout).bias(self.bias, BiasAxis::Row, shape.m);
        let isa = self.isa;
        Job { shape, blocks, a: &w, b: &x, c: &y, isa }.run(workspace, self.threads);
    }

    fn input_gradient(&self, blocks: Blocks, out: &mut [T], workspace: &mut [u8]) {
        let g = self.geometry;
        let (ci, co) = (g.in_channels / g.groups, g.out_channels / g.groups);
        for phase in phases(g) {
            let window = phase.window;
            let shape =
                Shape { batch: g.groups, m: ci, n: g.batch * phase.count, k: co * window.taps };
            let w = Matrix::nested(
                &self.b[phase.tap.min(self.b.len())..],
                [co * ci * g.kernel, g.kernel],
                window.taps,
                [ci * g.kernel, phase.tap_step],
            );
            let dy = Columns { rows: self.y_rows(self.a), window, positions: phase.count };
            let layout = Layout {
                first: phase.first,
                batch: ci * g.in_length,
                row: g.in_length,
                period: phase.count,
                sample: g.in_channels * g.in_length,
                column: g.stride,
            };
            let dx = Output::new(&mut *out, layout);
            let isa = self.isa;
            Job { shape, blocks, a: &w, b: &dy, c: &dx, isa }.run(workspace, self.threads);
        }
    }

    fn weight_gradient(&self, blocks: Blocks, out: &mut [T], workspace: &mut [u8]) {
        let g = self.geometry;
        let shape = shapes(self.pass, g)[0];
        let Rows { data, sample, group, channel } = self.y_rows(self.b);
        let dy = Matrix::nested(data, [group, channel], g.out_length, [sample, 1]);
        let (rows, window) = (self.x_rows(self.a), self.x_window());
        let x = Taps { rows, window, positions: g.out_length };
        let layout = Layout {
            first: 0,
            batch: shape.m * shape.n,
            row: shape.n,
            period: shape.n,
            sample: 0,
            column: 1,
        };
        let dw = Output::new(out, layout);
        let isa = self.isa;
        Job { shape, blocks, a: &dy, b: &x, c: &dw, isa }.run(workspace, self.threads);
    }
}
