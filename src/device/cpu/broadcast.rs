//! Operands as their broadcast shape sees them. Whatever the shapes, a kernel asks for a block of
//! consecutive elements of the result's shape and gets a slice: of the operand itself where that is
//! possible, else of a small buffer filled by runs. So the kernels have one inner loop each.

use super::block::{BLOCK, block, convert, wide};
use crate::dtype::Element;
use crate::shape::Shape;
use crate::tensor::Tensor;
use smallvec::SmallVec;

/// An operand and how it stretches.
pub(super) struct Source<'a, T> {
    data: &'a [T],
    layout: Layout,
}

enum Layout {
    /// Of the result's shape.
    Same,
    /// One number everywhere.
    Scalar,
    /// Extents and strides, outermost first; the last stride is 0 or 1.
    Strided(SmallVec<[(usize, usize); 4]>),
}

impl<'a, T: Element> Source<'a, T> {
    /// `data` are the stored elements of `x`, which is read as `target`.
    pub(super) fn new(x: &Tensor, data: &'a [T], target: &Shape) -> Self {
        let layout = if data.len() == 1 {
            Layout::Scalar
        } else if x.elements() == target.elements() {
            Layout::Same
        } else {
            Layout::Strided(merged(target.dims(), &x.shape().broadcast_strides(target)))
        };
        Source { data, layout }
    }

    /// A reader for one thread.
    pub(super) fn reader<W: Element>(&self) -> Reader<'_, T, W> {
        let mut buffer = block::<W>();
        if let Layout::Scalar = self.layout {
            let mut value = [W::default()];
            convert(self.data, &mut value);
            buffer.fill(value[0]);
        }
        Reader { source: self, buffer }
    }
}

/// Axes of extent over 1, with neighbours that are read as one axis made one.
fn merged(extents: &[usize], strides: &[usize]) -> SmallVec<[(usize, usize); 4]> {
    let mut axes = SmallVec::<[(usize, usize); 4]>::new();
    for (&extent, &stride) in extents.iter().zip(strides).filter(|(extent, _)| **extent != 1) {
        match axes.last_mut() {
            Some(last) if last.1 == stride * extent => *last = (last.0 * extent, stride),
            _ => axes.push((extent, stride)),
        }
    }
    axes
}

/// Blocks of a source, converted to `W`.
pub(super) struct Reader<'a, T, W> {
    source: &'a Source<'a, T>,
    buffer: [W; BLOCK],
}

impl<T: Element, W: Element> Reader<'_, T, W> {
    /// Elements `start .. start + length` of the result's shape, a block at most.
    pub(super) fn block(&mut self, start: usize, length: usize) -> &[W] {
        let data = self.source.data;
        let axes = match &self.source.layout {
            Layout::Scalar => return &self.buffer[..length],
            Layout::Same => return wide(&data[start..start + length], &mut self.buffer),
            Layout::Strided(axes) => axes,
        };
        let (&(extent, stride), outer) = axes.split_last().expect("a scalar has its own layout");
        let (mut row, mut column) = (start / extent, start % extent);
        if stride == 1 && column + length <= extent {
            let at = offset(outer, row) + column;
            return wide(&data[at..at + length], &mut self.buffer);
        }
        let mut filled = 0;
        while filled < length {
            let run = (extent - column).min(length - filled);
            let at = offset(outer, row);
            let out = &mut self.buffer[filled..filled + run];
            if stride == 0 {
                convert(&data[at..at + 1], &mut out[..1]);
                let value = out[0];
                out.fill(value);
            } else {
                convert(&data[at + column..at + column + run], out);
            }
            (filled, row, column) = (filled + run, row + 1, 0);
        }
        &self.buffer[..length]
    }
}

/// The offset of position `index` of the axes together.
pub(super) fn offset(axes: &[(usize, usize)], mut index: usize) -> usize {
    let Some((&(_, first), inner)) = axes.split_first() else { return 0 };
    let mut offset = 0;
    for &(extent, stride) in inner.iter().rev() {
        offset += index % extent * stride;
        index /= extent;
    }
    offset + index * first
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn every_layout_reads_as_numpy_does() {
        let target = Shape::from([3, 1, 5, 7, 2]);
        for dims in [
            vec![3, 1, 5, 7, 2],
            vec![],
            vec![1, 1],
            vec![2],
            vec![7, 1],
            vec![5, 1, 2],
            vec![3, 1, 1, 7, 1],
            vec![3, 1, 1, 1, 1],
            vec![5, 7, 2],
        ] {
            let shape = Shape::from(dims);
            let data: Vec<i32> = (0..shape.elements() as i32).collect();
            let x = Tensor::from_slice(&data, shape.clone(), &Device::cpu()).unwrap();
            let source = Source::new(&x, &data, &target);
            let strides = shape.broadcast_strides(&target);
            let expected: Vec<i64> = (0..target.elements())
                .map(|index| {
                    let own = target.strides();
                    let parts = (0..5).map(|a| index / own[a] % target[a] * strides[a]);
                    parts.sum::<usize>() as i64
                })
                .collect();
            let mut reader = source.reader::<i64>();
            for (start, length) in [(0, 210), (13, 190), (209, 1)] {
                let got = reader.block(start, length);
                assert_eq!(got, &expected[start..start + length], "{shape}");
            }
        }
    }
}
