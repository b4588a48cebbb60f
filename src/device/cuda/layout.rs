//! Spaces of several axes that up to three operands are read over with strides of their own, for
//! kernels that take any strides. Axes that all operands can read as one are made one, so that most
//! spaces reach a kernel with one or two.

use crate::shape::Shape;
use crate::tensor::Tensor;
use smallvec::SmallVec;

/// Axes that one launch handles.
pub(super) const MOST_AXES: usize = 8;
/// Operands that one launch handles.
const OPERANDS: usize = 3;

/// A space and the strides, in elements, of the `N` operands that are read over it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Axes<const N: usize> {
    /// Outermost first; none of extent 1, and no two that could be one.
    axes: SmallVec<[Axis<N>; MOST_AXES]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis<const N: usize> {
    pub(super) extent: usize,
    pub(super) strides: [usize; N],
}

/// What a kernel gets: `Layout` of capgrad.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct Layout {
    pub(super) elements: u64,
    rank: u32,
    /// Whether indices and offsets fit 32 bits.
    narrow: u32,
    extents: [u64; MOST_AXES],
    strides: [[u64; MOST_AXES]; OPERANDS],
    /// Division by an extent is a product and a shift (Granlund and Montgomery 1994), for numbers
    /// below 2³¹.
    multipliers: [u32; MOST_AXES],
    shifts: [u32; MOST_AXES],
}

impl<const N: usize> Axes<N> {
    /// The space of `dims`; each list of strides has one for every axis, 0 where the operand
    /// stretches.
    pub(super) fn new(dims: &[usize], strides: [&[usize]; N]) -> Axes<N> {
        let axis = |(i, &extent)| Axis { extent, strides: strides.map(|strides| strides[i]) };
        Axes::merged(dims.iter().enumerate().map(axis))
    }

    /// The space of these axes, outermost first.
    pub(super) fn merged(list: impl IntoIterator<Item = Axis<N>>) -> Axes<N> {
        const { assert!(N <= OPERANDS) };
        let mut axes = SmallVec::<[Axis<N>; MOST_AXES]>::new();
        for axis in list.into_iter().filter(|axis| axis.extent != 1) {
            match axes.last_mut() {
                Some(last) if last.continues(&axis) => {
                    *last = Axis { extent: last.extent.saturating_mul(axis.extent), ..axis };
                }
                _ => axes.push(axis),
            }
        }
        Axes { axes }
    }

    /// The space of `target`, which the operands broadcast to. They may be uniform.
    pub(super) fn over(target: &Shape, operands: [&Tensor; N]) -> Axes<N> {
        let strides = operands.map(|operand| broadcast_strides(operand, target));
        Axes::new(target.dims(), strides.each_ref().map(|strides| &strides[..]))
    }

    /// `n` elements in a row; the operands are dense, or uniform.
    pub(super) fn flat(n: usize, operands: [&Tensor; N]) -> Axes<N> {
        let strides = operands.map(|operand| [usize::from(!operand.is_uniform())]);
        Axes::new(&[n], strides.each_ref().map(|strides| &strides[..]))
    }

    /// Outermost first.
    pub(super) fn axes(&self) -> &[Axis<N>] {
        &self.axes
    }

    pub(super) fn rank(&self) -> usize {
        self.axes.len()
    }

    /// Points of the space.
    pub(super) fn elements(&self) -> usize {
        elements(&self.axes)
    }

    /// The innermost axis, or one of extent 1 where there is none.
    pub(super) fn inner(&self) -> Axis<N> {
        self.axes.last().copied().unwrap_or(Axis { extent: 1, strides: [0; N] })
    }

    /// The launches that cover the space: the layout of the innermost axes, and for every point of
    /// the others (in row-major order; almost always there is one) how many elements each operand
    /// begins further on. None for an empty space.
    pub(super) fn launches(&self) -> impl Iterator<Item = (Layout, [usize; N])> + '_ {
        let (outer, inner) = self.axes.split_at(self.axes.len().saturating_sub(MOST_AXES));
        let layout = Layout::new(inner);
        let count = if self.elements() == 0 { 0 } else { elements(outer) };
        (0..count).map(move |point| {
            let (mut left, mut starts) = (point, [0; N]);
            for axis in outer.iter().rev() {
                for (start, stride) in starts.iter_mut().zip(axis.strides) {
                    *start += left % axis.extent * stride;
                }
                left /= axis.extent;
            }
            (layout, starts)
        })
    }
}

/// Strides with which an operand is read as `target`: all 0 where one stored element stands for all.
pub(super) fn broadcast_strides(x: &Tensor, target: &Shape) -> SmallVec<[usize; 4]> {
    if x.is_uniform() || x.elements() == 1 {
        SmallVec::from_elem(0, target.rank())
    } else if x.elements() == target.elements() {
        // Also where the operand has more axes, of extent 1.
        target.strides()
    } else {
        x.shape().broadcast_strides(target)
    }
}

fn elements<const N: usize>(axes: &[Axis<N>]) -> usize {
    // An empty tensor may have extents whose product overflows.
    if axes.iter().any(|axis| axis.extent == 0) {
        return 0;
    }
    axes.iter().fold(1, |product, axis| product.saturating_mul(axis.extent))
}

impl<const N: usize> Axis<N> {
    /// Whether `inner`, the next axis, goes on where a step along this one leads, for all operands.
    fn continues(&self, inner: &Axis<N>) -> bool {
        let steps = self.strides.iter().zip(inner.strides);
        steps.into_iter().all(|(&outer, step)| Some(outer) == step.checked_mul(inner.extent))
    }
}

impl Layout {
    /// Of at most [`MOST_AXES`] axes.
    fn new<const N: usize>(axes: &[Axis<N>]) -> Layout {
        let mut layout: Layout = bytemuck::Zeroable::zeroed();
        layout.elements = elements(axes) as u64;
        layout.rank = axes.len() as u32;
        let mut furthest = [0usize; N];
        for (i, axis) in axes.iter().enumerate() {
            layout.extents[i] = axis.extent as u64;
            for (k, (&stride, furthest)) in axis.strides.iter().zip(&mut furthest).enumerate() {
                layout.strides[k][i] = stride as u64;
                let most = axis.extent.saturating_sub(1).saturating_mul(stride);
                *furthest = furthest.saturating_add(most);
            }
        }
        let narrow = layout.elements < 1 << 31
            && layout.elements > 0
            && furthest.iter().all(|&most| u32::try_from(most).is_ok());
        if narrow {
            layout.narrow = 1;
            for (i, axis) in axes.iter().enumerate() {
                (layout.multipliers[i], layout.shifts[i]) = reciprocal(axis.extent as u64);
            }
        }
        layout
    }
}

/// `(m, s)` with `n / divisor = (n·m/2³² + n) >> s` for all n below 2³¹, as the divisor is.
fn reciprocal(divisor: u64) -> (u32, u32) {
    let shift = divisor.next_power_of_two().trailing_zeros();
    let multiplier = ((1u64 << 32) * ((1u64 << shift) - divisor)) / divisor + 1;
    (multiplier as u32, shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the device does.
    fn locate(layout: &Layout, index: u64, operand: usize) -> u64 {
        let (mut left, mut at) = (index, 0);
        for axis in (1..layout.rank as usize).rev() {
            let quotient = if layout.narrow == 1 {
                let high = (left * u64::from(layout.multipliers[axis])) >> 32;
                (high + left) >> layout.shifts[axis]
            } else {
                left / layout.extents[axis]
            };
            at += (left - quotient * layout.extents[axis]) * layout.strides[operand][axis];
            left = quotient;
        }
        at + left * layout.strides[operand][0]
    }

    #[test]
    fn axes_merge_where_every_operand_allows_it() {
        let merged = |dims: &[usize], a: &[usize], b: &[usize]| {
            let axes = Axes::new(dims, [a, b]);
            axes.axes().iter().map(|axis| (axis.extent, axis.strides)).collect::<Vec<_>>()
        };
        // Two dense operands are one axis, whatever lies between.
        assert_eq!(merged(&[2, 1, 3, 4], &[12, 5, 4, 1], &[12, 0, 4, 1]), [(24, [1, 1])]);
        // A single number against a dense operand, and two single numbers.
        assert_eq!(merged(&[2, 3], &[3, 1], &[0, 0]), [(6, [1, 0])]);
        assert_eq!(merged(&[2, 3], &[0, 0], &[0, 0]), [(6, [0, 0])]);
        // A bias of channels, and one of features.
        let bias = merged(&[2, 3, 4], &[12, 4, 1], &[0, 1, 0]);
        assert_eq!(bias, [(2, [12, 0]), (3, [4, 1]), (4, [1, 0])]);
        let features = merged(&[2, 3, 4], &[12, 4, 1], &[0, 0, 1]);
        assert_eq!(features, [(6, [4, 0]), (4, [1, 1])]);
        assert_eq!(merged(&[], &[], &[]), []);
    }

    #[test]
    fn launches_cover_every_point_of_spaces_of_any_rank() {
        // Every second axis of one operand stretches, so that nothing merges.
        for rank in 0..12 {
            let dims: Vec<usize> = (0..rank).map(|i| 2 + i % 2).collect();
            let (mut a, mut b) = (vec![0; rank], vec![0; rank]);
            let (mut dense, mut thin) = (1, 1);
            for i in (0..rank).rev() {
                a[i] = dense;
                dense *= dims[i];
                if i % 2 == 0 {
                    b[i] = thin;
                    thin *= dims[i];
                }
            }
            let axes = Axes::new(&dims, [&a, &b]);
            assert_eq!((axes.rank(), axes.elements()), (rank, dense));
            let mut index = 0;
            for (layout, starts) in axes.launches() {
                for i in 0..layout.elements {
                    assert_eq!(starts[0] as u64 + locate(&layout, i, 0), index);
                    let (mut left, mut at) = (index as usize, 0);
                    for axis in (0..rank).rev() {
                        at += left % dims[axis] * b[axis];
                        left /= dims[axis];
                    }
                    assert_eq!(starts[1] as u64 + locate(&layout, i, 1), at as u64);
                    index += 1;
                }
            }
            assert_eq!(index, dense as u64);
        }
        let empty = Axes::new(&[usize::MAX, 3, 0, 2], [&[6, 2, 2, 1]]);
        assert_eq!((empty.elements(), empty.launches().count()), (0, 0));
    }

    #[test]
    fn division_is_exact_below_its_bound() {
        let most = (1u64 << 31) - 1;
        let divisors = (2..2000).chain([65_535, 65_536, 65_537, 1 << 30, (1 << 30) + 1, most]);
        for divisor in divisors {
            let (multiplier, shift) = reciprocal(divisor);
            for n in [0, 1, divisor - 1, divisor, divisor + 1, 1 << 30, most - 1, most]
                .into_iter()
                .chain((1..50).map(|i| (most / divisor).saturating_sub(i) * divisor))
                .filter(|&n| n <= most)
            {
                let high = (n * u64::from(multiplier)) >> 32;
                assert_eq!((high + n) >> shift, n / divisor, "{n} / {divisor}");
            }
        }
        // Past the bounds it is left to 64 bits.
        let wide = Axes::new(&[3, 1 << 31], [&[1 << 33, 1]]);
        let (layout, _) = wide.launches().next().unwrap();
        assert_eq!((layout.narrow, locate(&layout, (1 << 31) + 5, 0)), (0, (1 << 33) + 5));
    }
}
